"""Fetch files over HTTP with aria2, resuming what an earlier run began.

aria2 gets addresses and the hub's token on standard input, so that neither is in an argument that
other users of the host could read. It stops with this process (``--stop-with-process``). Its own
checksum option is not used: the caller reads every file once itself.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .handler import ActionError, kill_session
from .probe_tools import environment

PARALLEL_FILES = 2
CONNECTIONS = 4  # per file
TRIES = 5
SILENCE_S = 30  # without a byte, then a new try
CONNECT_S = 10
STOP_S = 10  # aria2 may take to write down what came
REDIRECTS = 5
MARGIN = 1 << 20  # bytes; with less, a failure is the disk's
# of aria2's exit codes (aria2c(1), EXIT STATUS)
FAULTS = {
    "2": "no byte came for {silence} s",
    "3": "the server does not have it (404)",
    "5": "the server was too slow",
    "6": "the server can't be reached",
    "8": "the server can't resume a download",
    "9": "the disk is full",
    "19": "the server's name can't be resolved",
    "23": "the server redirects without an end",
    "24": "the server asks for a token or refuses the one given (401)",
}
STATUSES = {
    "401": "the server asks for a token or refuses the one given (401)",
    "403": "the server forbids it (403): the token lacks access",
    "404": "the server does not have it (404)",
    "416": "the server has fewer bytes than were expected (416)",
}


@dataclass(frozen=True)
class Fetch:
    """One file to fetch: from where, to where, how many bytes it should have."""

    url: str
    target: Path
    size: int


def present_bytes(path: Path) -> int:
    """Bytes of a file that are on the disk; it may have holes while several parts come."""
    try:
        found = path.stat()
    except OSError:
        return 0
    return min(found.st_blocks * 512, found.st_size)


def fetch(
    wanted: Sequence[Fetch],
    token: str | None,
    tell: Callable[[int, float], None],
    deserted: Callable[[], bool] = lambda: False,
) -> dict[Path, str]:
    """Fetch files, several at a time; what failed, by target, one clause each.

    `tell` gets the bytes present and the bytes per second, about once a second. What came of a
    failed file stays and the next call goes on from there. `ActionError` when aria2 isn't there,
    and when it is stopped because nobody waits for it any more (`deserted`): a run that was
    broken off must not keep the next one away for the hours that a model takes.
    """
    faults: dict[Path, str] = {}
    left = list(wanted)
    for _ in range(TRIES):
        addresses: dict[Path, str] = {}
        lines = []
        for item in left:
            item.target.parent.mkdir(parents=True, exist_ok=True)
            _drop_empty_control(item.target)
            try:
                url, header = _resolved(item.url, token)
            except _Refused as refusal:
                faults[item.target] = str(refusal)
                continue
            addresses[item.target] = url
            lines.append(f"{url}\n dir={item.target.parent}\n out={item.target.name}\n")
            lines += [f" header={header}\n"] if header else []
        before = {item: present_bytes(item.target) for item in left}
        out = _run("".join(lines), wanted, tell, deserted) if lines else ""
        left = [item for item in left if item.target in addresses and not _whole(item.target)]
        faults.update({item.target: _fault(item, addresses[item.target], out) for item in left})
        # what was cut goes on at once, as long as every try brings it further
        left = [item for item in left if present_bytes(item.target) > before[item]]
        if not left:
            break
    return {target: clause for target, clause in faults.items() if not _whole(target)}


def _control(target: Path) -> Path:
    """aria2's own record of which parts of an unfinished file are there."""
    return target.with_name(target.name + ".aria2")


def _drop_empty_control(target: Path) -> None:
    """A full disk leaves an empty record, which aria2 then refuses to read."""
    control = _control(target)
    if control.exists() and control.stat().st_size == 0:
        control.unlink()


def _whole(target: Path) -> bool:
    """Whether aria2 ended with this file; its size and content are not looked at."""
    return target.exists() and not _control(target).exists()


class _Refused(Exception):
    """The hub would not say where a file lies; the message is a clause."""


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def _resolved(url: str, token: str | None) -> tuple[str, str | None]:
    """The address to fetch from and the header to send.

    A hub answers with a redirect to another host that holds the bytes. aria2 would send the token
    there too, so with a token the redirect is followed here.
    """
    if token is None:
        return url, None
    header = f"Authorization: Bearer {token}"
    opener = urllib.request.build_opener(_Stay)
    host = urllib.parse.urlsplit(url).netloc
    for _ in range(REDIRECTS):
        request = urllib.request.Request(url, method="HEAD")  # noqa: S310, validated data
        request.add_header("Authorization", f"Bearer {token}")
        try:
            with opener.open(request, timeout=SILENCE_S):
                return url, header
        except urllib.error.HTTPError as error:
            location = error.headers.get("Location")
            if error.code not in (301, 302, 303, 307, 308) or not location:
                clause = STATUSES.get(str(error.code), f"the server answers {error.code}")
                raise _Refused(clause) from error
        except OSError as error:
            raise _Refused(f"the server can't be reached: {error}") from error
        url = urllib.parse.urljoin(url, location)
        if urllib.parse.urlsplit(url).netloc != host:
            return url, None
    raise _Refused(FAULTS["23"])


def _run(
    lines: str,
    wanted: Sequence[Fetch],
    tell: Callable[[int, float], None],
    deserted: Callable[[], bool],
) -> str:
    """Run aria2 to its end; what it printed."""
    argv = [
        "aria2c",
        "--no-conf",
        "--input-file=-",
        "--continue=true",
        "--allow-overwrite=true",
        "--auto-file-renaming=false",
        "--file-allocation=none",
        "--auto-save-interval=1",  # seconds: what a power loss costs
        f"--max-concurrent-downloads={PARALLEL_FILES}",
        f"--split={CONNECTIONS}",
        f"--max-connection-per-server={CONNECTIONS}",
        "--min-split-size=16M",
        f"--max-tries={TRIES}",
        "--retry-wait=1",
        f"--timeout={SILENCE_S}",
        f"--connect-timeout={CONNECT_S}",
        "--console-log-level=error",
        "--show-console-readout=false",
        "--summary-interval=0",
        "--download-result=full",
        "--enable-color=false",
        f"--stop-with-process={os.getpid()}",
    ]
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise ActionError(
            f"aria2c can't be run here ({os.strerror(error.errno or errno.ENOENT)}): the package "
            "aria2 is needed for models"
        ) from error
    try:
        # its output is some lines at the end, far less than a pipe holds
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(lines.encode())
        process.stdin.close()
        before, since = sum(present_bytes(item.target) for item in wanted), time.monotonic()
        while process.poll() is None:
            try:
                process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                now = time.monotonic()
                present = sum(present_bytes(item.target) for item in wanted)
                tell(present, max(0.0, (present - before) / (now - since)))
                before, since = present, now
                if deserted():
                    gone = "the connection was lost; what came is kept, run again"
                    raise ActionError(gone) from None
        return process.stdout.read().decode(errors="replace")
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop aria2 so that it still writes down what came."""
    process.terminate()
    try:
        process.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        kill_session(process)
        process.wait()


def _fault(item: Fetch, url: str, out: str) -> str:
    """Why a file did not come, from the messages of aria2 that name its address."""
    room = shutil.disk_usage(item.target.parent).free
    if "No space left" in out or room < min(item.size - present_bytes(item.target), MARGIN):
        return FAULTS["9"]
    blocks = re.split(r"(?m)^(?=\d\d/\d\d \d\d:\d\d:\d\d \[)", out)
    text = "".join(block for block in blocks if url in block) or out
    status = re.search(r"status=(\d+)", text)
    if status:
        return STATUSES.get(status[1], f"the server answers {status[1]}")
    if "Got EOF" in text:
        return f"the connection was cut at {present_bytes(item.target)} of {item.size} bytes"
    if "establish connection" in text:
        return FAULTS["6"]
    told = re.findall(r"errorCode=(\d+) (.*)", text)
    for code, _ in reversed(told):
        if code in FAULTS:
            return FAULTS[code].format(silence=SILENCE_S)
    return f"the download failed: {told[-1][1] if told else 'aria2c said nothing about it'}"
