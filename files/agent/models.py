"""What is known of the models on this host, without reading them: manifests and file states.

A model lies under ``<root>/<revision>/``; ``<root>/<revision>.partial/`` holds what is still
coming and is never served; ``<root>/current`` is a link to the revision in use. The manifest
``/var/lib/voltfleet/models/<name>.json`` records, for every file that was read whole, its sha256
with the size, times and inode it had then: a file with the same ones needs no second reading.
"""

from __future__ import annotations

import copy
import errno
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .gguf import PassedOver

MANIFESTS = Path("/var/lib/voltfleet/models")
BLOCK = 4 << 20
LOCK_S = 30  # a manifest is written in milliseconds
KEPT_TEXT = 200  # characters of a metadata text that a manifest keeps

State = dict[str, Any]  # {"state": "sound"|"absent"|"bad"|"unchecked", "size": …, "reason": …}
Manifest = dict[str, Any]


class Changed(Exception):
    """A file changed while it was read; the message is a sentence."""


def manifest(name: str, revision: str) -> Manifest:
    """What is recorded about a model's revision; an empty record when there is none to trust."""
    empty: Manifest = {"name": name, "revision": revision, "files": {}, "metadata": None}
    try:
        value = json.loads((MANIFESTS / f"{name}.json").read_bytes())
        if value["revision"] != revision or not isinstance(value["files"], dict):
            return empty
    except (OSError, ValueError, KeyError, TypeError):
        return empty
    return dict(value)


@contextmanager
def updated(name: str, revision: str) -> Iterator[Manifest]:
    """A manifest as it is now, to be changed in place, and saved when it was; others wait so long.

    A run and the weekly check may work on a model at the same time: each reads for as long as it
    takes, and then adds only what it has found itself.
    """
    MANIFESTS.mkdir(parents=True, exist_ok=True, mode=0o755)
    with _locked():
        record = manifest(name, revision)
        before = copy.deepcopy(record)
        yield record
        if record != before:
            _save(record)


def forget_gone(name: str) -> Path | None:
    """Remove the manifest of a model whose files are gone; the folder they were in, else None."""
    with _locked():  # a run puts a model in place before it records it
        path = MANIFESTS / f"{name}.json"
        record = json.loads(path.read_bytes())
        place = Path(record["root"]) / str(record["revision"])
        if place.exists():
            return None
        path.unlink()
        return place


@contextmanager
def _locked() -> Iterator[None]:
    """Keep other writers of manifests out; `OSError` when one of them does not come to an end."""
    folder = os.open(MANIFESTS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ends = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= ends:
                    raise OSError(
                        errno.EBUSY, f"another process has held it for {LOCK_S} s", str(MANIFESTS)
                    ) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(folder)


def _save(record: Manifest) -> None:
    """Write a manifest, beside and renamed."""
    path = MANIFESTS / f"{record['name']}.json"
    beside = path.with_suffix(".json.new")
    with beside.open("w") as stream:
        json.dump(record, stream, indent=1, sort_keys=True)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    beside.replace(path)


def identity(found: os.stat_result) -> dict[str, int]:
    """What a file that was not touched still has; ctime can't be set back by ordinary means."""
    return {
        "size": found.st_size,
        "mtime_ns": found.st_mtime_ns,
        "ctime_ns": found.st_ctime_ns,
        "inode": found.st_ino,
    }


def is_same(path: Path, record: Mapping[str, Any]) -> bool:
    """Whether a file is still the one that a record is about."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return all(record.get(key) == value for key, value in identity(found).items())


def state(path: Path, wanted: Mapping[str, Any], record: Mapping[str, Any] | None) -> State:
    """The state of one file by a single stat; `wanted` has ``size`` and ``sha256``."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return {"state": "absent", "size": None, "reason": "there is no such file"}
    except OSError as error:
        return {"state": "unchecked", "size": None, "reason": f"can't be read: {error.strerror}"}
    size = found.st_size
    if not stat.S_ISREG(found.st_mode):
        return {"state": "bad", "size": size, "reason": "is no regular file"}
    if size != wanted["size"]:
        reason = f"has {size} bytes, expected {wanted['size']}"
        return {"state": "bad", "size": size, "reason": reason}
    if record is None:
        return {"state": "unchecked", "size": size, "reason": "was never read whole"}
    if not is_same(path, record):
        return {"state": "unchecked", "size": size, "reason": "changed since it was read whole"}
    if record.get("sha256") != wanted["sha256"]:
        reason = f"has sha256 {record.get('sha256')}, expected {wanted['sha256']}"
        return {"state": "bad", "size": size, "reason": reason}
    return {"state": "sound", "size": size, "reason": ""}


def observe(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The probe's answer about one model; a stat per file.

    `spec` is as in the question: ``root``, ``revision``, ``files``. The answer is as described in
    the package's docstring; besides, ``repaired_at`` (seconds since 1970, or null) is when files
    of a revision in use were replaced, while a server may have been running from the old ones.
    """
    root, revision = Path(spec["root"]), str(spec["revision"])
    record = manifest(name, revision)
    known = record["metadata"]
    asked = spec.get("metadata")  # names of the keys to give back
    if known is not None and asked is not None:
        known = {key: known[key] for key in asked if key in known}
    return {
        "current": current(root),
        "files": {
            path: state(root / revision / path, wanted, record["files"].get(path))
            for path, wanted in spec["files"].items()
        },
        "metadata": known,
        "repaired_at": record.get("repaired_at"),
    }


def current(root: Path) -> str | None:
    """The revision (or release) that ``<root>/current`` names, None when there is no such link."""
    try:
        return (root / "current").readlink().name
    except OSError:
        return None


def read_whole(path: Path, tell: Callable[[int], None] | None = None) -> dict[str, Any]:
    """Read a file once and record its sha256 and identity; `tell` gets the bytes read so far.

    Raises `OSError`, and `Changed` when the file changed meanwhile.
    """
    digest = hashlib.sha256()
    done = 0
    with open(path, "rb", buffering=0) as stream:
        before = identity(os.fstat(stream.fileno()))
        while done <= before["size"] and (block := stream.read(BLOCK)):
            digest.update(block)
            done += len(block)
            if tell is not None:
                tell(done)
        after = identity(os.fstat(stream.fileno()))
    if before != after or done != after["size"]:
        raise Changed(f"{path} changed while it was read; run again when nothing writes it")
    return {**after, "sha256": digest.hexdigest(), "verified_at": int(time.time())}


def kept_metadata(metadata: Mapping[str, Any], required: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a GGUF's metadata that a manifest keeps: what is required, which the plan
    compares, and of the rest numbers, booleans and short texts."""
    return {
        key: value
        for key, value in metadata.items()
        if key in required
        or not isinstance(value, (list, PassedOver, str))
        or (isinstance(value, str) and len(value) <= KEPT_TEXT)
    }
