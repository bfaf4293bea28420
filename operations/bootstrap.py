"""python3 on a host that has none: the only thing done without the agent."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from pyinfra.api.command import StringCommand
from pyinfra.api.host import Host
from pyinfra.api.operation import operation
from pyinfra.connectors.util import CommandOutput

from operations.converge import Stopped, converge
from operations.report import REPORT
from rules.change import Change

LOCK_WAIT_S = 300

# Debian and Ubuntu name it the same; python3-minimal alone has no json and no ctypes.
INSTALL = (
    "export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a LC_ALL=C; "
    f"apt='apt-get -q -y -o DPkg::Lock::Timeout={LOCK_WAIT_S}'; "
    "command -v apt-get >/dev/null || { echo 'no apt-get: only Debian and Ubuntu are supported' "
    ">&2; exit 1; }; $apt update && $apt install --no-install-recommends python3"
)


@operation()
def python() -> Generator[Any, None, None]:
    """Install python3 where the probe found none that is complete."""
    yield from converge("bootstrap", execute=_install)


def _install(host: Host, changes: list[Change]) -> None:
    ok: bool
    output: CommandOutput
    ok, output = host.run_shell_command(StringCommand(INSTALL), **_privileges(host))
    if not ok:
        lines = [line for line in output.stderr_lines + output.stdout_lines if line.strip()]
        raise Stopped(
            f"python3 could not be installed: {lines[-1] if lines else 'apt-get said nothing'}; "
            "see that the host's apt sources answer"
        )
    for change in changes:
        REPORT.touch(host.name).changed.append(change.id)
        host.log_styled(change.sentence(), fg="green")


def _privileges(host: Host) -> dict[str, Any]:
    given: dict[str, Any] = dict(host.current_op_global_arguments or {})
    keys = ("_sudo", "_sudo_user", "_su_user", "_doas", "_sudo_password")
    return {key: given[key] for key in keys if given.get(key)}
