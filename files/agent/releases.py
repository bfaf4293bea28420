"""Built releases of an engine: ``<root>/releases/<fingerprint>/{bin,lib,release.json}``.

A release is made as ``<fingerprint>.new``, proved, sealed (``release.json`` with the size and
sha256 of every file) and renamed; what has no whole ``release.json`` is no release. The programs
find their libraries through ``$ORIGIN/../lib``, so a release can be packed on one host and
unpacked on another. Packing the same release twice gives the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import mmap
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from .handler import ActionError
from .models import current

# Archives on their way and what builds keep; root's alone.
CACHE = Path("/var/cache/voltfleet")

SEAL = "release.json"
PROGRAM_S = 60  # a program may take to say its version or its flags
FLAG = re.compile(r"(?<![\w-])--[a-z0-9][a-z0-9-]*")
CLEAN = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}  # no LD_LIBRARY_PATH


def folder(root: str, fingerprint: str) -> Path:
    """Where a release lies."""
    return Path(root) / "releases" / fingerprint


def named(place: Path) -> str:
    """A release's name for people, also while it is being made."""
    return place.name.removesuffix(".new")


def observe(root: str, fingerprints: Iterable[str]) -> dict[str, Any]:
    """The probe's answer about the releases below a root; a stat per file.

    It tells of every release there is, not only of those asked for: which one is wanted depends
    on the host's operating system, which the first question of a run does not know yet.
    """
    present = {}
    names = {path.name for path in (Path(root) / "releases").glob("*") if path.is_dir()}
    for fingerprint in sorted(names | {name for name in fingerprints if name}):
        place = folder(root, fingerprint)
        if place.exists() and not fingerprint.endswith((".new", ".old")):
            reason = unsound(place)
            present[fingerprint] = {"sound": not reason, "reason": reason}
    return {"current": current(Path(root)), "present": present}


def sealed(place: Path) -> dict[str, Any] | None:
    """What ``release.json`` says, None when there is none that can be read."""
    try:
        value = json.loads((place / SEAL).read_bytes())
        return value if isinstance(value["files"], dict) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def unsound(place: Path, whole: bool = False) -> str:
    """What is wrong with a release, empty when nothing is; `whole` reads every byte."""
    seal = sealed(place)
    if seal is None:
        return f"has no readable {SEAL}"
    for name, wanted in seal["files"].items():
        path = place / name
        try:
            found = path.lstat()
        except OSError:
            return f"lacks {name}"
        if "link" in wanted:
            if not path.is_symlink() or str(path.readlink()) != wanted["link"]:
                return f"has another link as {name}"
            continue
        if not path.is_file() or path.is_symlink() or found.st_size != wanted["size"]:
            return f"has {found.st_size} bytes as {name}, expected {wanted['size']}"
        if name.startswith("bin/") and not found.st_mode & 0o111:
            return f"has a {name} that can't be executed"
        if whole and sha256_of(path) != wanted["sha256"]:
            return f"has other bytes as {name} than were sealed"
    return ""


def seal(place: Path, facts: Mapping[str, Any]) -> None:
    """Write ``release.json`` over everything that lies in `place`."""
    files: dict[str, Any] = {}
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        if path.is_symlink():
            files[name] = {"link": str(path.readlink())}
        elif path.is_file() and name != SEAL:
            files[name] = {"size": path.stat().st_size, "sha256": sha256_of(path)}
    text = json.dumps({**facts, "files": files}, indent=1, sort_keys=True) + "\n"
    (place / SEAL).write_text(text)


def prove(
    place: Path,
    targets: Sequence[str],
    flags: Sequence[str],
    architectures: Sequence[str],
    hints: Mapping[str, str],
) -> dict[str, Any]:
    """Run a release's programs and compare what they know with what will be asked of them.

    `flags` are long flags of llama-server (``--port``), `architectures` values of a model's
    general.architecture, `hints` today's equivalents of flags, for the message. Returns the
    release's ``version`` and ``flags`` (by program); raises `ActionError` with what is wrong.
    """
    known = {}
    version = ""
    for target in targets:
        program = place / "bin" / target
        if not program.is_file():
            raise ActionError(f"release {named(place)}: bin/{target} was not made")
        _libraries_inside(place, program)
        version = version or _said(place, program, "--version").splitlines()[0].strip()
        known[target] = sorted(set(FLAG.findall(_said(place, program, "--help"))))
    if "llama-server" in known:
        knows(named(place), known["llama-server"], flags, hints)
    for name in architectures:
        if not knows_architecture(place, name):
            raise ActionError(
                f"release {named(place)} ({version}) does not know the model architecture "
                f"{name!r}: pin newer llama.cpp sources"
            )
    return {"version": version, "flags": known}


def knows(
    fingerprint: str, known: Sequence[str], flags: Sequence[str], hints: Mapping[str, str]
) -> None:
    """Refuse flags that a release's llama-server does not know, naming today's equivalents."""
    unknown = [flag for flag in flags if flag not in known]
    if not unknown:
        return
    said = []
    for flag in unknown:
        near = get_close_matches(flag, known, 1)
        hint = hints.get(flag) or (f"the nearest it knows is {near[0]}" if near else "drop it")
        said.append(f"{flag} ({hint})")
    raise ActionError(f"release {fingerprint}: llama-server does not know {', '.join(said)}")


def knows_architecture(place: Path, name: str) -> bool:
    """Whether a name is among the texts of the release's libraries and programs."""
    wanted = name.encode() + b"\0"
    for path in [*(place / "lib").glob("*"), *(place / "bin").glob("*")]:
        if path.is_symlink() or path.stat().st_size == 0:
            continue
        with (
            open(path, "rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as m,
        ):
            if m.find(wanted) >= 0:
                return True
    return False


def pack(root: str, fingerprint: str, path: Path) -> str:
    """Pack a sound release as a .tar.gz at `path`, mode 0600; its sha256."""
    place = folder(root, fingerprint)
    reason = unsound(place, whole=True)
    if reason:
        raise ActionError(f"release {fingerprint} {reason}, so it is not packed")
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with (
        os.fdopen(handle, "wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for item in sorted(place.rglob("*")):
            info = archive.gettarinfo(item, str(item.relative_to(place)))
            info.mtime = info.uid = info.gid = 0
            info.uname = info.gname = "root"
            info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
            if info.isfile():
                with item.open("rb") as stream:
                    archive.addfile(info, stream)
            else:
                archive.addfile(info)
    beside.replace(path)
    return sha256_of(path)


def extract(archive: Path, target: Path) -> None:
    """Unpack a tar archive into a fresh folder; a member that leads out of it is refused."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    try:
        with tarfile.open(archive, "r:*") as packed:
            members = packed.getmembers()
            for member in members:
                _refuse_outside(archive, member)
                member.uid = member.gid = os.getuid()
                member.uname = member.gname = ""
                member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            packed.extractall(target, members)  # noqa: S202, every member was looked at
    except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
        raise ActionError(f"archive {archive} can't be unpacked: {error}") from error


def _refuse_outside(archive: Path, member: tarfile.TarInfo) -> None:
    """Python's own filter for this came with 3.12."""
    where = Path(member.name)
    links = member.issym() or member.islnk()
    if (
        where.is_absolute()
        or ".." in where.parts
        or not (member.isfile() or member.isdir() or links)
    ):
        raise ActionError(f"archive {archive} holds {member.name!r}, which leads out of its folder")
    base = where.parent if member.issym() else Path()
    if links and not _stays(base / member.linkname):
        raise ActionError(f"archive {archive}: the link {member.name!r} leads out of its folder")


def _stays(path: Path) -> bool:
    depth = 0
    for part in path.parts:
        depth += -1 if part == ".." else 1
        if depth < 0 or part == "/":
            return False
    return True


def sha256_of(path: Path) -> str:
    """The sha256 of a file, as hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _said(place: Path, program: Path, flag: str) -> str:
    ended = _run(place, [str(program), flag], {})
    if ended.returncode != 0:
        lines = ended.stdout.strip().splitlines() or ["no message"]
        raise ActionError(
            f"release {named(place)}: {program.name} {flag} ended with status {ended.returncode}: "
            f"{lines[-1]}"
        )
    return ended.stdout


def _libraries_inside(place: Path, program: Path) -> None:
    """Every library that the release holds is the one that the program loads."""
    traced = _run(place, [str(program)], {"LD_TRACE_LOADED_OBJECTS": "1"}).stdout
    inside = place.resolve()
    for name, path in re.findall(r"^\s*(\S+) => (\S+|not found)", traced, re.M):
        if path == "not":
            raise ActionError(
                f"release {named(place)}: {program.name} needs {name}, which is missing"
            )
        if (place / "lib" / name).exists() and inside not in Path(path).resolve().parents:
            raise ActionError(f"release {named(place)}: {program.name} takes {name} from {path}")


def _run(place: Path, argv: list[str], more: dict[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**CLEAN, **more},
            timeout=PROGRAM_S,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ActionError(
            f"release {named(place)}: {argv[0]} did not end in {PROGRAM_S} s"
        ) from error
    except OSError as error:
        raise ActionError(
            f"release {named(place)}: {argv[0]} can't be run: {error.strerror}"
        ) from error
