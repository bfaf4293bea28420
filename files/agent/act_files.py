"""Directories, files and links: written beside, proved, renamed.

Everything is done relative to an open parent folder that is not a link itself, so that nobody who
may write there can turn a path aside between the look and the change.
"""

from __future__ import annotations

import base64
import binascii
import errno
import grp
import hashlib
import os
import pwd
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .handler import (
    Action,
    ActionError,
    Context,
    Former,
    Handler,
    Outcome,
    argument,
    os_sentence,
)

KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFREG: "a file",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}
MASK = "/dev/null"  # a unit file that is a link to this is masked


def kind_of(found: os.stat_result) -> str:
    """What a thing is, for people."""
    return KINDS.get(stat.S_IFMT(found.st_mode), "a thing of unknown kind")


def file_write(context: Context, action: Action) -> Outcome:
    """Make a regular file with this content, mode and owner; what was there is kept aside.

    A link or directory in its place is refused, except a unit file's mask where `over_mask`.
    """
    path = _path(action)
    try:
        content = base64.b64decode(argument(action, "content", str), validate=True)
    except binascii.Error as error:
        raise ActionError(f"the content of {path} did not arrive as base64") from error
    if argument(action, "secret", bool):
        lines = content.decode("utf-8", "replace").split()
        context.secrets.update(line for line in lines if len(line) >= 8)  # not "on" or "1"
    with _parent(path) as folder, _sentences(f"writing {path}"):
        found = _lstat(path.name, folder)
        if found is not None and not stat.S_ISREG(found.st_mode):
            mask = stat.S_ISLNK(found.st_mode) and os.readlink(path.name, dir_fd=folder) == MASK
            if not (mask and action.get("over_mask") is True):
                raise ActionError(f"{path} is {kind_of(found)}, not a file: move it away and rerun")
            found = None
        former = None if found is None else _read(path.name, folder)
        if former is not None and former.content == content:
            return Outcome(changed=_set_attributes(path, folder, action))
        write_beside(path, folder, Former(content, *_wanted(action)))
        context.former.setdefault(str(path), former)
        _prove(path, folder, content, action)
    return Outcome(changed=True)


def write_beside(path: Path, folder: int, wanted: Former) -> None:
    """Write a file next to `path` and rename it over it; `folder` is the parent's descriptor.

    The file has its final mode and owner before it has any content.
    """
    prefix = f".{path.name[:200]}.voltfleet-"
    for left_over in os.listdir(folder):  # of a run that was killed half way
        if left_over.startswith(prefix):
            os.unlink(left_over, dir_fd=folder)
    beside = prefix + secrets.token_hex(8)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(beside, flags, 0o600, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as out:
            os.fchown(handle, wanted.uid, wanted.gid)
            os.fchmod(handle, wanted.mode)
            out.write(wanted.content)
            out.flush()
            os.fsync(handle)
        os.rename(beside, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside, dir_fd=folder)
        raise
    os.fsync(folder)


def put_back(context: Context, paths: list[str]) -> list[str]:
    """Make files and links that this run replaced what they were before; returns those paths."""
    done = []
    for text in paths:
        if text not in context.former:
            continue
        path, former = Path(text), context.former.pop(text)
        with _parent(path) as folder, _sentences(f"putting back {path}"):
            if former is None:
                os.unlink(path.name, dir_fd=folder)
            elif isinstance(former, str):
                _link_beside(path, folder, former)
            else:
                write_beside(path, folder, former)
        done.append(text)
    return done


def file_attributes(context: Context, action: Action) -> Outcome:
    """Set mode and owner of a file that is otherwise right."""
    path = _path(action)
    with _parent(path) as folder, _sentences(f"setting mode and owner of {path}"):
        return Outcome(changed=_set_attributes(path, folder, action))


def directory_make(context: Context, action: Action) -> Outcome:
    """Make a directory, or set its mode and owner; missing parents become 0755 root."""
    path = _path(action)
    _wanted(action)  # an owner that does not exist is found before anything is made
    with _sentences(f"making {path}"):
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with _parent(path) as folder, _sentences(f"making {path}"):
        found = _lstat(path.name, folder)
        if found is not None and not stat.S_ISDIR(found.st_mode):
            raise ActionError(
                f"{path} is {kind_of(found)}, not a directory: move it away and rerun"
            )
        if found is None:
            os.mkdir(path.name, 0o700, dir_fd=folder)
        changed = _set_attributes(path, folder, action)
    return Outcome(changed=changed or found is None)


def link_set(context: Context, action: Action) -> Outcome:
    """Point a symbolic link at its target, atomically; only a link is ever replaced."""
    path, target = _path(action), argument(action, "target", str)
    with _parent(path) as folder, _sentences(f"linking {path}"):
        found, former = _lstat(path.name, folder), None
        if found is not None:
            if not stat.S_ISLNK(found.st_mode):
                raise ActionError(f"{path} is {kind_of(found)}, not a link: move it away and rerun")
            former = os.readlink(path.name, dir_fd=folder)
            if former == target:
                return Outcome(changed=False)
        _link_beside(path, folder, target)
        context.former.setdefault(str(path), former)
        if os.readlink(path.name, dir_fd=folder) != target:
            raise ActionError(f"{path} was linked to {target} and points elsewhere again")
    return Outcome(changed=True)


def _link_beside(path: Path, folder: int, target: str) -> None:
    """Make a link next to `path` and rename it over it."""
    beside = f".{path.name[:200]}.voltfleet-{secrets.token_hex(8)}"
    os.symlink(target, beside, dir_fd=folder)
    try:
        os.rename(beside, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        os.unlink(beside, dir_fd=folder)
        raise
    os.fsync(folder)


def _path(action: Action) -> Path:
    text = argument(action, "path", str)
    path = Path(text)
    if not path.is_absolute() or ".." in path.parts or path == path.parent:
        raise ActionError(f"{text} is no absolute path of a thing that can be managed")
    return path


@contextmanager
def _parent(path: Path) -> Iterator[int]:
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and path.parent.is_symlink():
            raise ActionError(
                f"{path.parent} is a link, so {path} is left alone: name the real path"
            ) from error
        raise ActionError(os_sentence(error, f"opening {path.parent} for {path.name}")) from error
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _sentences(doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ActionError(os_sentence(error, doing)) from error


def _lstat(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _read(name: str, folder: int) -> Former:
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        mode = stat.S_IMODE(found.st_mode)
        return Former(file.read(), mode, found.st_uid, found.st_gid)


def _wanted(action: Action) -> tuple[int, int, int]:
    """Mode, user id and group id that an action asks for."""
    owner, group = argument(action, "owner", str), argument(action, "group", str)
    try:
        mode = int(argument(action, "mode", str), 8)
    except ValueError as error:
        raise ActionError(f"mode {action['mode']!r} is not four octal digits") from error
    try:
        uid = pwd.getpwnam(owner).pw_uid
    except KeyError as error:
        raise ActionError(f"user {owner}, owner of {action['path']}, does not exist") from error
    try:
        return mode, uid, grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise ActionError(f"group {group} of {action['path']} does not exist") from error


def _set_attributes(path: Path, folder: int, action: Action) -> bool:
    """Set mode and owner of the file or directory `path`; True when they were different."""
    mode, uid, gid = _wanted(action)
    handle = os.open(
        path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
    )
    try:
        found = os.fstat(handle)
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            raise ActionError(f"{path} is {kind_of(found)}: move it away and rerun")
        changed = False
        if (found.st_uid, found.st_gid) != (uid, gid):
            os.fchown(handle, uid, gid)  # before the mode: it clears setuid and setgid
            changed = True
        if stat.S_IMODE(os.fstat(handle).st_mode) != mode:
            os.fchmod(handle, mode)
            changed = True
        found = os.fstat(handle)
        if (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) != (mode, uid, gid):
            raise ActionError(f"the file system of {path} does not keep the mode or owner")
        return changed
    finally:
        os.close(handle)


def _prove(path: Path, folder: int, content: bytes, action: Action) -> None:
    found = _read(path.name, folder)
    same = hashlib.sha256(found.content).digest() == hashlib.sha256(content).digest()
    if not same or (found.mode, found.uid, found.gid) != _wanted(action):
        raise ActionError(f"{path} was written and reads back different: somebody else writes it")


HANDLERS = {
    "file.write": Handler(one=file_write),
    "file.attributes": Handler(one=file_attributes),
    "directory.make": Handler(one=directory_make),
    "link.set": Handler(one=link_set),
}
