"""Files, directories, links and free space, as they are; nothing is followed, nothing changed."""

# Paths are handled with os.path: pathlib would double what the agent imports at start.
# ruff: noqa: PTH115, PTH120
from __future__ import annotations

import contextlib
import grp
import hashlib
import os
import pwd
import stat
from collections.abc import Mapping
from typing import Any

from .probe_tools import Unlearned

TEXT_LIMIT = 64 * 1024  # bytes
# Managed files are small; what is larger was put there by somebody else and is not read whole.
HASH_LIMIT = 256 * 1024 * 1024  # bytes
CHUNK = 1024 * 1024  # bytes

KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFBLK: "device",
    stat.S_IFCHR: "device",
}


def printable(text: str) -> str:
    """A name from the file system as valid Unicode; bytes that are no UTF-8 are replaced."""
    return os.fsencode(text).decode("utf-8", "replace")


def _owner(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _described(found: os.stat_result) -> dict[str, Any]:
    return {
        "kind": KINDS.get(stat.S_IFMT(found.st_mode), "other"),
        "mode": f"{stat.S_IMODE(found.st_mode):04o}",
        "owner": _owner(found.st_uid),
        "group": _group(found.st_gid),
        "changed_at": found.st_ctime,  # can't be set back by ordinary means
    }


def entry(path: str) -> dict[str, Any] | None:
    """What is at a path: kind, mode, owner, group, when it was last changed, and a link's target.

    None when nothing is there.
    """
    found = _lstat(path)
    if found is None:
        return None
    described = _described(found)
    if described["kind"] == "link":
        described["target"] = printable(os.readlink(path))
    return described


def file(path: str, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """A file with its sha256 and size; its text where it differs from what is asked for.

    `asked` has ``sha256`` and ``secret``. Whatever else is at the path is described as `entry`
    does. Raises `Unlearned` for a file too large to hash.
    """
    found = _lstat(path)
    if found is None or not stat.S_ISREG(found.st_mode):
        return entry(path)
    # Without waiting: a named pipe put there meanwhile, or a lease on the file, must not block.
    # NOFOLLOW for the same reason: what was looked at is what is read.
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode):
            raise Unlearned("changed while it was being read")
        digest, start = _hashed(opened)
    finally:
        os.close(opened)
    described = {**_described(found), "sha256": digest, "size": found.st_size}
    if digest != asked.get("sha256") and not asked.get("secret", True) and start is not None:
        with contextlib.suppress(UnicodeDecodeError):  # bytes that are no text are not shown
            described["text"] = start.decode("utf-8")
    return described


def _hashed(opened: int) -> tuple[str, bytes | None]:
    """The sha256 of an open file, and its content when it is short enough to be shown."""
    digest = hashlib.sha256()
    size = 0
    content: bytes | None = b""
    while part := os.read(opened, CHUNK):
        digest.update(part)
        size += len(part)
        if size > HASH_LIMIT:
            raise Unlearned(f"is larger than {HASH_LIMIT >> 20} MiB, not hashed")
        content = content + part if content is not None and size <= TEXT_LIMIT else None
    return digest.hexdigest(), content


def free_space(path: str) -> dict[str, int]:
    """Bytes that root's processes may still write below a path that need not exist yet."""
    while _lstat(path) is None and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    found = os.statvfs(path)
    return {"bytes": found.f_bavail * found.f_frsize}
