"""One run per host: a lease that ends with the connection, and a lock while changes are made.

Two files in ``/run/voltfleet``, both held with ``flock(2)``, so that a holder that crashed leaves
nothing behind: ``lease`` by the verb ``lease`` for a whole run, ``apply`` while actions are being
executed. A run whose connection died loses its lease at once, but may still be in the middle of a
build; ``apply`` keeps others away until that is over. What is written in the files is only for
people; whether they count is decided by the lock. Folder and files are root's alone: whoever may
open a file may lock it, and with that keep every run away.
"""

# Paths are handled with os.path: pathlib would double what the agent imports at start.
# ruff: noqa: PTH103, PTH118, PTH120, PTH116
from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .wire import Idle, Wire, WireError

LEASE = "/run/voltfleet/lease"
IDLE_S = 60.0
# A probe looks at a lock by taking it shared for a moment; whoever asks must outlast that.
RETRY_S = 0.3
WAITING_EVERY_S = 10.0


class Busy(Exception):
    """Another run holds the host; `holder` is what it wrote about itself."""

    def __init__(self, holder: Mapping[str, Any]) -> None:
        self.holder = dict(holder)
        super().__init__(
            f"run {self.holder.get('run', '?')} of {self.holder.get('who') or 'somebody'} holds "
            f"this host since {self.holder.get('since', '?')} ({self.holder.get('doing') or '?'}); "
            "wait for it to end and run again"
        )


def now() -> str:
    """The time in UTC as ISO 8601, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def apply_path(path: str) -> str:
    """The lock of running actions that belongs to a lease file."""
    return os.path.join(os.path.dirname(path), "apply")


def busy(path: str = LEASE) -> dict[str, Any] | None:
    """Who holds the host, or None; changes nothing.

    What a running apply says it is doing goes before what the lease says. Raises `OSError` when
    the files cannot be read.
    """
    applying_now = _holder(apply_path(path))
    leased = _holder(path)
    if applying_now is None:
        return leased
    if leased is None:
        return applying_now
    if applying_now.get("run") == leased.get("run"):
        return {**leased, "doing": applying_now.get("doing")}
    return applying_now


def _holder(path: str) -> dict[str, Any] | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _said(file)
        return None
    finally:
        os.close(file)


def _said(file: int) -> dict[str, Any]:
    """What the holder wrote; only the first line counts (see `_say`)."""
    try:
        value = json.loads(os.pread(file, 4096, 0).partition(b"\n")[0])
    except ValueError:
        return {}  # taken a moment ago, nothing written yet
    return value if isinstance(value, dict) else {}


def _say(file: int, value: Mapping[str, Any]) -> None:
    # One write of one line, then the old rest cut off: a reader in between sees a whole line.
    data = json.dumps(value).encode() + b"\n"
    os.pwrite(file, data, 0)
    os.ftruncate(file, len(data))


def _take(path: str) -> int:
    """The locked file, empty; raises `Busy`, or `OSError` when it cannot be made."""
    _private(os.path.dirname(path))
    ends = time.monotonic() + RETRY_S
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.fchmod(file, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(file, path):
                os.ftruncate(file, 0)
                return file
            os.close(file)  # somebody removed the file: a lock on it keeps nobody away
        except BlockingIOError:
            said = _said(file)
            os.close(file)
            if time.monotonic() >= ends:
                raise Busy(said) from None
            time.sleep(RETRY_S / 10)


def _private(folder: str) -> None:
    """Have a folder that nobody else can look into, also where an earlier run left it open."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(handle).st_mode & 0o077:
            os.fchmod(handle, 0o700)
    finally:
        os.close(handle)


def _is_still(file: int, path: str) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(file), there)


def _give_back(file: int) -> None:
    os.ftruncate(file, 0)
    os.close(file)


@contextlib.contextmanager
def applying(run: str, doing: str, path: str = LEASE) -> Iterator[Callable[[str], None]]:
    """Hold the lock of running actions; raises `Busy` when another apply is at work.

    Also raises `Busy` when another run has the lease. Gives a function that says what is being
    done now, for whoever asks meanwhile. The lock ends with the process, whatever ends it.
    """
    file = _take(apply_path(path))
    try:
        # Each side locks its own file before it looks at the other's, so of two that come at the
        # same moment at least one sees the other.
        leased = _holder(path)
        if leased is not None and leased.get("run") != run:
            raise Busy(leased)
        who = (leased or {}).get("who", "")
        about = {"run": run, "who": who, "since": now(), "pid": os.getpid()}

        def tell(doing: str) -> None:
            _say(file, {**about, "doing": doing, "heartbeat": now()})

        tell(doing)
        yield tell
    finally:
        _give_back(file)


def _acquire(path: str, about: Mapping[str, Any]) -> int:
    """The lease, taken; raises `Busy` when it is held or an apply is still at work."""
    try:
        file = _take(path)
    except Busy as taken:
        raise Busy({**taken.holder, **(busy(path) or {})}) from None
    working = _holder(apply_path(path))
    if working is not None:
        _give_back(file)
        raise Busy(working)
    _say(file, about)
    return file


def main(request: Mapping[str, Any], wire: Wire) -> None:
    """The verb: take the lease, stay, give it back when the input ends or falls silent.

    Returns when the other side ended it; raises `Busy` after the line that says so, and
    `WireError` when the other side fell silent. Keys of the request beyond the protocol, for
    tests: ``path`` (the lease file), ``idle_s``, ``waiting_every_s``.
    """
    file = _wait_for(request, wire)
    if file is None:
        return
    try:
        wire.line({"lease": "held"})
        _stay(file, _about(request), wire, float(request.get("idle_s", IDLE_S)))
    finally:
        _give_back(file)


def _about(request: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "run": str(request.get("run", "")),
        "who": str(request.get("who", "")),
        "since": now(),
        "pid": os.getpid(),
        "doing": "a run",
    }


def _wait_for(request: Mapping[str, Any], wire: Wire) -> int | None:
    """The lease; None when whoever asked for it has gone. Raises `Busy`."""
    path = str(request.get("path", LEASE))
    waits = request.get("policy", "refuse") == "wait"
    ends = time.monotonic() + (float(request.get("wait_s", 600)) if waits else 0.0)
    next_sign = time.monotonic()
    while True:
        try:
            return _acquire(path, _about(request))
        except Busy as taken:
            holder = {key: taken.holder.get(key) for key in ("run", "who", "since", "doing")}
            if time.monotonic() >= ends:
                wire.line({"lease": "busy", **holder})
                raise
            if time.monotonic() >= next_sign:
                wire.line({"lease": "waiting", **holder})
                next_sign += float(request.get("waiting_every_s", WAITING_EVERY_S))
        # Waiting on the input rather than sleeping: its end means that nobody waits any more.
        with contextlib.suppress(Idle):
            if wire.read_line(min(1.0, max(0.0, ends - time.monotonic()))) is None:
                return None


def _stay(file: int, about: Mapping[str, Any], wire: Wire, idle_s: float) -> None:
    while True:
        _say(file, {**about, "heartbeat": now()})
        try:
            if wire.read_line(idle_s) is None:
                return
        except Idle:
            wire.line({"lease": "lost", "reason": f"no line for {idle_s:g} s"})
            raise WireError(f"the lease was given back: no line for {idle_s:g} s") from None
