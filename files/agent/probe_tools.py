"""What only tools know: packages (dpkg-query) and units (systemctl), each asked once.

A tool runs in a process group of its own and is ended by SIGKILL when its time is up. A tool that
is missing, fails or hangs leads to `Unlearned`, never to "absent".
"""

# Paths are handled with os.path: pathlib would double what the agent imports at start.
# ruff: noqa: PTH115, PTH118, PTH208
from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any

# An ssh session of an unprivileged user often lacks the sbin folders.
SBIN = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DPKG = "/var/lib/dpkg"
# dpkg's names of CPU architectures, by uname's; used only where a package is installed twice
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
UNIT_PROPERTIES = "Id,LoadState,ActiveState,SubState,UnitFileState,NeedDaemonReload,MainPID"
_running: set[int] = set()


class Unlearned(Exception):
    """Something could not be learned; the message is one clause saying why."""


def environment(**more: str) -> dict[str, str]:
    """The environment of tools: their messages in English, sbin on the path, nobody asked."""
    path = os.environ.get("PATH", "")
    return {
        **os.environ,
        "PATH": f"{path}:{SBIN}" if path else SBIN,
        "LC_ALL": "C",
        "LANGUAGE": "C",
        "SYSTEMD_COLORS": "0",
        "SYSTEMD_PAGER": "",
        **more,
    }


def run_tool(argv: Sequence[str], limit_s: float) -> tuple[int, str, str]:
    """Exit status, output and errors of a tool; raises `Unlearned` when missing or hanging."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            start_new_session=True,
        )
    except FileNotFoundError:
        raise Unlearned(f"{argv[0]} is not installed") from None
    except OSError as error:
        raise Unlearned(f"{argv[0]} cannot be run: {error.strerror}") from None
    _running.add(process.pid)
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _kill(process.pid)
        # Its pipes may be held by something that left the group: they are not waited for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.05 * limit_s)
        raise Unlearned(f"{argv[0]} timed out after {limit_s:g} s") from None
    finally:
        _running.discard(process.pid)
    return process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


def _kill(group: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)


def stop_all() -> None:
    """End every tool that is still running."""
    for group in tuple(_running):
        _kill(group)


def _why(tool: str, status: int, err: str) -> Unlearned:
    lines = err.strip().splitlines()
    return Unlearned(f"{tool} failed with {status}: {lines[0] if lines else 'no message'}")


def packages(names: Sequence[str], limit_s: float) -> dict[str, Any]:
    """Packages by the name asked for: version, dpkg status, held; null where dpkg has none.

    A package whose files were removed but not its configuration has the status ``config-files``.
    """
    if not names:
        return {}
    form = "${Package}\\t${Architecture}\\t${Version}\\t${Status}\\n"
    status, out, err = run_tool(["dpkg-query", "-W", f"-f={form}", "--", *names], limit_s)
    others = [line for line in err.splitlines() if "no packages found matching" not in line]
    if status not in (0, 1) or (status and others):
        raise _why("dpkg-query", status, "\n".join(others))
    return parse_packages(names, out, ARCHITECTURES.get(os.uname().machine, ""))


def parse_packages(names: Sequence[str], out: str, native: str) -> dict[str, Any]:
    """The answer about `names` from dpkg-query's lines: name, architecture, version, status."""
    found: dict[str, Any] = dict.fromkeys(names)
    ranks: dict[str, tuple[bool, bool]] = {}
    for line in out.splitlines():
        name, architecture, version, words = line.split("\t")
        want, _, state = words.split()
        held = want == "hold"
        if state == "not-installed" and not held:
            continue
        # Of the same package for several architectures, the installed native one counts.
        rank = (state == "installed", architecture in (native, "all"))
        for key in (name, f"{name}:{architecture}"):
            if key in found and (found[key] is None or rank > ranks[key]):
                found[key] = {"version": version, "status": state, "held": held}
                ranks[key] = rank
    return found


def packages_state(folder: str = DPKG) -> dict[str, Any]:
    """Whether an earlier dpkg was interrupted, and which manager there is.

    dpkg keeps a numbered journal in ``updates`` while it works; apt refuses to go on while one is
    there. An unpacked or half configured package needs the same ``dpkg --configure -a``.
    """
    path = environment()["PATH"].split(":")
    if not any(os.access(os.path.join(part, "apt-get"), os.X_OK) for part in path):
        raise Unlearned("apt-get is not installed")
    interrupted = any(name.isdigit() for name in os.listdir(os.path.join(folder, "updates")))
    with open(os.path.join(folder, "status"), "rb") as file:
        status = file.read()
    half = any(
        b"\nStatus: install ok " + word + b"\n" in status
        or b"\nStatus: hold ok " + word + b"\n" in status
        for word in (b"unpacked", b"half-configured")
    )
    return {"interrupted": interrupted or half, "manager": "apt"}


def units(names: Sequence[str], limit_s: float) -> dict[str, Any]:
    """Units by name; null where systemd knows none of that name."""
    # systemctl answers nothing at all when one name is a template or a pattern.
    odd = [name for name in names if "@." in name or set(name) & set("*?[")]
    plain = [name for name in names if name not in odd]
    found: dict[str, Any] = {
        name: {"unknown": "is a template or a pattern, expected the name of one unit"}
        for name in odd
    }
    if plain:
        status, out, err = run_tool(
            ["systemctl", "show", f"--property={UNIT_PROPERTIES}", "--", *plain], limit_s
        )
        blocks = [block for block in out.split("\n\n") if block.strip()]
        if status != 0 or len(blocks) != len(plain):
            raise _why("systemctl", status, err)
        for name, block in zip(plain, blocks, strict=True):
            found[name] = _unit(block)
    return found


def _unit(block: str) -> dict[str, Any] | None:
    said = dict(line.partition("=")[::2] for line in block.splitlines())
    active = said["ActiveState"]
    # A unit whose file was removed under a running process is not found, but not absent either.
    if said["LoadState"] == "not-found" and active in ("inactive", "failed"):
        return None
    pid = int(said.get("MainPID") or 0)
    try:
        stamp, deleted, started = _process(pid) if pid else (None, False, None)
    except PermissionError:
        return {"unknown": f"process {pid} may be looked into by root only"}
    return {
        "load": said["LoadState"],
        "active": active,
        "sub": said["SubState"],
        "enabled": said.get("UnitFileState", ""),
        "need_reload": said["NeedDaemonReload"] == "yes",
        "pid": pid,
        "stamp": stamp,
        "exe_deleted": deleted,
        "started_at": started,
    }


def _process(pid: int) -> tuple[str | None, bool, float | None]:
    """The stamp a process was started with, whether its program was replaced since, its start."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
        program = os.readlink(f"/proc/{pid}/exe")
        started = started_at(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None, False, None  # it ended meanwhile
    name = b"VOLTFLEET_STAMP="
    stamps = [entry[len(name) :] for entry in variables if entry.startswith(name)]
    stamp = stamps[-1].decode("utf-8", "replace") if stamps else None
    return stamp, program.endswith(" (deleted)"), started


def started_at(pid: int) -> float:
    """When a process started, in seconds since 1970 by the clock as it is set now.

    Not systemd's own note of it: on a host that gets its time from the network after boot, that
    is by a clock that was wrong, and can't be compared with the times of files.
    """
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    ticks = int(fields[19])  # starttime since boot, field 22 of proc(5)
    up = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")
