"""Running tools: one place for errors, progress lines and the check that a tool is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sandbox.errors import SandboxError

REQUIREMENTS = Path(__file__).parent / "requirements.apt"

# tool -> Debian package, for the one sentence that names what is missing
TOOLS = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "apt-cacher-ng": "apt-cacher-ng",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "mke2fs": "e2fsprogs",
}

_started = time.monotonic()


def environment() -> dict[str, str]:
    """Environment for tools: sbin on the path, messages in English."""
    path = os.environ.get("PATH", "")
    return {**os.environ, "PATH": f"{path}:/usr/local/sbin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"}


def say(text: str) -> None:
    """Print one progress line with the seconds since the command began."""
    print(f"[{time.monotonic() - _started:5.1f} s] {text}", file=sys.stderr, flush=True)


def check_tools() -> None:
    """Raise SandboxError naming the packages when we are not root or a tool is missing."""
    if os.geteuid() != 0:
        raise SandboxError(
            "The sandbox boots containers and needs root: run it as root, or use `make check`, "
            "which needs no sandbox."
        )
    path = environment()["PATH"]
    missing = sorted({pkg for tool, pkg in TOOLS.items() if not shutil.which(tool, path=path)})
    if missing:
        raise SandboxError(
            f"The sandbox needs tools that are not installed: run `apt-get install "
            f"{' '.join(missing)}` (or `make setup`)."
        )


def run(
    command: Sequence[str | Path],
    *,
    what: str,
    check: bool = True,
    stdin: str | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run a command and return it with its output as text.

    what: the purpose, for the error sentence ("create the bridge").
    Raises SandboxError when check is set and the command fails, and when it hangs.
    """
    try:
        done = subprocess.run(
            [str(part) for part in command],
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment(),
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"Could not {what}: no end after {timeout:.0f} s.") from error
    if check and done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        raise SandboxError(f"Could not {what}: {' / '.join(lines[-3:])} (exit {done.returncode}).")
    return done
