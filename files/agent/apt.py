"""apt-get: run with progress and a bounded wait for its locks, its errors told in one sentence.

No lock file is ever removed, no signature check switched off, no hold changed, and nothing is
removed to install something else.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from .apt_errors import locked
from .handler import ActionError, Ended, kill_session
from .probe_tools import environment

LISTS = Path("/var/lib/apt/lists")
QUIET_LIMIT_S = 1800  # a DKMS build is silent for minutes; this long means that it hangs
LOCK_SLICE_S = 10  # after each, the wait for a lock is told
STATUS = re.compile(r"(dlstatus|pmstatus):(.+?):(\d+(?:\.\d+)?):(.*)")
Progress = Callable[[str, str, "float | None"], None]  # package or "", message, percent


def lists_age_s() -> float:
    """Seconds since apt's lists were last renewed; infinite when never."""
    times = []
    for folder in (LISTS, LISTS / "partial"):  # list files carry the server's time, folders ours
        with suppress(OSError):
            times.append(folder.stat().st_mtime)
    return time.time() - max(times) if times else float("inf")


def run(words: Sequence[str], lock_wait_s: float, progress: Progress) -> Ended:
    """Run apt-get or dpkg, again and again for at most `lock_wait_s` seconds while it is locked.

    Raises `ActionError` when the lock is not free by then, or when the program falls silent.
    """
    ends = time.monotonic() + lock_wait_s
    while True:
        left = max(0.0, ends - time.monotonic())
        ended = _run_once(words, min(left, LOCK_SLICE_S), progress)
        problem = locked(ended.out) if ended.rc != 0 else None
        if problem is None:
            return ended
        if time.monotonic() >= ends:
            raise ActionError(
                f"{problem.sentence}, still so after {lock_wait_s:g} s: wait for it to end and "
                "run again"
            )
        progress("", f"waits: {problem.sentence}", None)
        time.sleep(min(1.0, max(0.0, ends - time.monotonic())))


def _run_once(words: Sequence[str], lock_slice_s: float, progress: Progress) -> Ended:
    """One run; output and errors together are in `out` of the result."""
    reads, writes = os.pipe()
    argv = list(words)
    if argv[0] == "apt-get":
        argv[1:1] = ["-o", f"APT::Status-Fd={writes}"]
        argv[1:1] = ["-o", f"DPkg::Lock::Timeout={round(lock_slice_s)}"]
    extra = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_MODE": "a"}
    with tempfile.TemporaryFile() as output, os.fdopen(reads, "rb", buffering=0) as status:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(**extra),
                pass_fds=(writes,),
                start_new_session=True,
            )
        except OSError as error:
            raise ActionError(f"{argv[0]} can't be run here: {error.strerror}") from error
        finally:
            os.close(writes)
        _follow(process, status.fileno(), progress)
        output.seek(0)
        return Ended(process.returncode, output.read().decode(errors="replace"), "")


def _follow(process: subprocess.Popen[bytes], status: int, progress: Progress) -> None:
    """Tell progress until the program ends. The status pipe alone does not tell that it ended:
    a service that a package started may have inherited it."""
    quiet_until = time.monotonic() + QUIET_LIMIT_S
    pending, said, is_open = b"", "", True
    while process.poll() is None or (is_open and select.select([status], [], [], 0)[0]):
        if time.monotonic() > quiet_until:
            _stop(process)
            raise ActionError(
                f"the package manager was silent for {QUIET_LIMIT_S} s and was stopped"
            )
        if not is_open:
            time.sleep(0.05)
            continue
        if not select.select([status], [], [], 0.2)[0]:
            continue
        part = os.read(status, 65536)
        is_open = bool(part)
        quiet_until = time.monotonic() + QUIET_LIMIT_S
        *lines, pending = (pending + part).split(b"\n")
        for line in lines:
            found = STATUS.fullmatch(line.decode(errors="replace").strip())
            if found and found[4] != said:
                said = found[4]
                progress(found[2] if found[1] == "pmstatus" else "", said, float(found[3]))


def _stop(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)  # dpkg then ends in a state it can go on from
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        kill_session(process)
        process.wait(timeout=20)
