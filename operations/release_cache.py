"""Built releases kept on the controller: one build for all hosts with the same fingerprint.

``$VOLTFLEET_CACHE/releases/<fingerprint>.tar.gz`` with its sha256 beside it. A file whose sha256
is not the recorded one is not used. `building` lets one host build while the others, of this run
or of another one on this controller, wait for the result.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gevent
from gevent.lock import BoundedSemaphore

from operations.sending import sha256_of

_locks: dict[str, BoundedSemaphore] = {}


def folder() -> Path:
    """Where releases are kept on this controller."""
    base = os.environ.get("VOLTFLEET_CACHE") or Path.home() / ".cache" / "voltfleet"
    return Path(base) / "releases"


class CacheError(Exception):
    """The cache of this controller cannot be used. The message is one sentence."""


def archive(fingerprint: str) -> Path:
    return folder() / f"{fingerprint}.tar.gz"


def part(fingerprint: str, host_name: str) -> Path:
    """Where an archive lies while it comes from a host, whose name may hold a ``/`` (@ssh/x)."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", host_name)[:100]
    return folder() / f"{fingerprint}.{name}.part"


def known_sha256(fingerprint: str) -> str | None:
    """The sha256 of the kept release, None when there is none or it is not what was kept."""
    path = archive(fingerprint)
    beside = path.with_suffix(".sha256")
    if not (path.is_file() and beside.is_file()):
        return None
    expected = beside.read_text().strip()
    return expected if sha256_of(path) == expected else None


def keep(fingerprint: str, received: Path, sha256: str) -> None:
    """Take a received archive into the cache: the archive first, what vouches for it last."""
    path = archive(fingerprint)
    received.rename(path)
    beside = path.with_suffix(".sha256.new")
    try:
        beside.write_text(sha256 + "\n")
        beside.rename(path.with_suffix(".sha256"))
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def building(fingerprint: str) -> Iterator[None]:
    """Hold the right to build one fingerprint on this controller. Raises `CacheError`."""
    lock = _locks.setdefault(fingerprint, BoundedSemaphore())
    try:
        folder().mkdir(parents=True, exist_ok=True)
        opened = (folder() / f"{fingerprint}.lock").open("w")
    except OSError as error:
        raise CacheError(
            f"releases cannot be kept in {folder()} on this controller ({error.strerror}): make "
            "it writable, or name another folder in VOLTFLEET_CACHE"
        ) from error
    with opened as stream, lock:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                gevent.sleep(1)
        yield
