"""python3 on a host that has none: the only thing done without the agent."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Sequence
from typing import Any

from pyinfra.api.host import Host
from pyinfra.api.operation import operation

from facts.bundle import FILES
from facts.host import config_of, forget, observe
from facts.shell import shell
from operations.converge import Progress, Stopped, converge
from operations.report import REPORT
from rules.change import Change

SCRIPT = FILES / "bootstrap.sh"
# Seconds for package lists and python3 over a slow line, beside waiting for apt's lock.
INSTALL_S = 1200
OWN = "! "  # begins a line that is the script's own sentence, not apt's
TIMED_OUT = (124, 137)  # of `timeout`, when it asked the script to end and when it ended it


@operation()
def python() -> Generator[Any, None, None]:
    """Install python3 where the probe found none that is complete."""
    yield from converge("bootstrap", execute=_install)


def _install(host: Host, changes: list[Change]) -> None:
    config = config_of(host)
    limit_s = INSTALL_S + config.apt_lock_wait_s
    progress = Progress(host)

    def show(line: str) -> None:
        if not line.startswith(OWN):  # shown as the failure that it is
            progress.show(changes[0], None, line)

    status, lines = shell(
        host,
        "bootstrap",
        script(config.supported_os, config.apt_lock_wait_s),
        timeout_s=limit_s,
        on_line=show,
    )
    if status != 0:
        raise Stopped(why(status, lines, limit_s))
    # Only the agent itself can tell whether it runs now: python3 may be there and too old.
    forget(host)
    lacking = observe(host).nothing_known
    if lacking is not None:
        raise Stopped(
            f"apt installed what it has, and yet {lacking}: see which python3 comes first on "
            "root's PATH, or upgrade this host's system"
        )
    for change in changes:
        REPORT.touch(host.name).changed.append(change.id)
        host.log_styled(change.sentence(), fg="green")


def script(supported_os: Sequence[str], lock_wait_s: int) -> str:
    """The script for a host whose data allows these systems ('id version')."""
    given = {
        "supported": "|".join(supported_os),
        "names": ", ".join(supported_os),
        "lock_wait_s": str(lock_wait_s),
    }
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in given.items()) + (
        SCRIPT.read_text()
    )


def why(status: int, lines: Sequence[str], limit_s: int) -> str:
    """The sentence of a script that failed: its own, or what apt said last."""
    own = [line.removeprefix(OWN) for line in lines if line.startswith(OWN)]
    if own:
        return own[-1]
    if status in TIMED_OUT:
        return (
            f"python3 could not be installed within {limit_s} s: see that the host's apt sources "
            "answer and that no other apt is stuck, and run again"
        )
    errors = [line for line in lines if line.startswith("E: ")]
    said = (errors or list(lines) or ["apt-get said nothing"])[-1].strip()
    return f"python3 could not be installed: {said}; see that the host's apt sources answer"
