"""Control groups of the lab: who is ours, stop all at once, freeze.

One cgroup2 tree ``voltfleet-<name>-<mark>`` holds every process that the lab ever started:
``host.<name>`` per host, ``service.<name>`` per server, ``build`` while an image is made.
A process cannot leave it by forking or by losing its parent, so membership proves ownership,
also after a kill -9 of the command that started it. No controller is needed for that.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from sandbox.errors import SandboxError
from sandbox.settings import Settings


def mount_point() -> Path:
    """Where cgroup2 is mounted: /sys/fs/cgroup, or below it on hybrid machines."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if right.split()[0] == "cgroup2" and left.split()[3] == "/":
            return Path(left.split()[4])
    raise SandboxError(
        "No cgroup2 file system is mounted here, and the hosts need one: "
        "run `mount -t cgroup2 none /sys/fs/cgroup` (or boot with the unified hierarchy)."
    )


def root(settings: Settings) -> Path:
    """The lab's cgroup; it may not exist."""
    return mount_point() / settings.cgroup


def host(settings: Settings, name: str) -> Path:
    """Cgroup of one host."""
    return root(settings) / f"host.{name}"


def service(settings: Settings, name: str) -> Path:
    """Cgroup of one server process (apt proxy, hub)."""
    return root(settings) / f"service.{name}"


def make(path: Path) -> Path:
    """Create a cgroup (and its parents)."""
    path.mkdir(parents=True, exist_ok=True)
    return path


def populated(path: Path) -> bool:
    """True when any process lives in the cgroup or below it."""
    try:
        return "populated 1" in (path / "cgroup.events").read_text()
    except OSError:
        return False


def frozen(path: Path) -> bool:
    """True when the cgroup is asked to stand still."""
    try:
        return (path / "cgroup.freeze").read_text().strip() == "1"
    except OSError:
        return False


def freeze(path: Path, on: bool) -> None:
    """Stop or continue all processes of the cgroup, and wait until it is so."""
    (path / "cgroup.freeze").write_text("1" if on else "0")
    deadline = time.monotonic() + 10
    wanted = f"frozen {int(on)}"
    while wanted not in (path / "cgroup.events").read_text():
        if time.monotonic() > deadline:
            raise SandboxError(f"{path.name} did not {'freeze' if on else 'thaw'} within 10 s.")
        time.sleep(0.02)


def processes(path: Path) -> list[int]:
    """All process ids in the cgroup and below it, as this machine numbers them."""
    pids: set[int] = set()
    for file in path.rglob("cgroup.procs"):
        with contextlib.suppress(OSError):
            pids.update(int(pid) for pid in file.read_text().split() if pid != "0")
    return sorted(pids)


def kill(path: Path, timeout: float = 15) -> None:
    """SIGKILL everything in the cgroup at the same moment, then remove it.

    Raises SandboxError when something survives (a process stuck in the kernel).
    """
    if not path.is_dir():
        return
    deadline = time.monotonic() + timeout
    while True:
        with contextlib.suppress(OSError):
            (path / "cgroup.kill").write_text("1")
        if not populated(path) and _remove(path):
            return
        if time.monotonic() > deadline:
            raise SandboxError(
                f"Processes of {path.name} do not end: {processes(path)}; look at them with "
                "`ps` and run `python -m sandbox down` again."
            )
        time.sleep(0.02)


def _remove(path: Path) -> bool:
    """Remove an empty cgroup tree; False while the kernel still holds a part of it."""
    folders = [path, *(p for p in path.rglob("*") if p.is_dir())]
    for folder in sorted(folders, key=lambda p: len(p.parts), reverse=True):
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True
