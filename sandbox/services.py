"""Long-lived helpers of the lab (apt proxy, model hub): each one process in a cgroup of its own."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from sandbox import cgroups
from sandbox.errors import SandboxError
from sandbox.settings import Settings
from sandbox.shell import environment

# The shell puts itself into the cgroup before it becomes the program, so there is no moment at
# which the program runs outside it.
ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


def spawn(cgroup: Path, command: Sequence[str | Path], log: Path, cwd: Path | None = None) -> int:
    """Start a detached process in a cgroup; its output goes to the log. Returns its pid."""
    cgroups.make(cgroup)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        process = subprocess.Popen(
            ["/bin/sh", "-c", ENTER, str(cgroup), *(str(part) for part in command)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment(),
            cwd=cwd,
            start_new_session=True,
        )
    while process.poll() is None and not cgroups.populated(cgroup):
        time.sleep(0.005)  # callers may ask at once whether it lives
    # The child outlives this command by intent; without this, Python warns about it at exit.
    process.returncode = 0
    return process.pid


def answers(address: str, port: int, timeout: float = 1) -> bool:
    """True when something accepts a connection there."""
    try:
        with socket.create_connection((address, port), timeout=timeout):
            return True
    except OSError:
        return False


def start(
    settings: Settings,
    name: str,
    port: int,
    command: Sequence[str | Path],
    cwd: Path | None = None,
) -> bool:
    """Start a server unless it runs, and wait until its port answers. True when it was started.

    Raises SandboxError with the end of its log when it does not come up.
    """
    cgroup = cgroups.service(settings, name)
    if cgroups.populated(cgroup) and answers(settings.gateway, port):
        return False
    cgroups.kill(cgroup)
    log = settings.run / f"{name}.log"
    log.unlink(missing_ok=True)
    spawn(cgroup, command, log, cwd=cwd or settings.run)
    deadline = time.monotonic() + 15
    while not answers(settings.gateway, port):
        if not cgroups.populated(cgroup) or time.monotonic() > deadline:
            tail = " / ".join(log.read_text(errors="replace").splitlines()[-3:])
            cgroups.kill(cgroup)
            raise SandboxError(
                f"The sandbox's {name} server does not answer on {settings.gateway}:{port} "
                f"(log {log}: {tail or 'empty'})."
            )
        time.sleep(0.05)
    return True


def pids(settings: Settings, name: str) -> list[int]:
    """Processes of a server."""
    return cgroups.processes(cgroups.service(settings, name))
