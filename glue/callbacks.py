"""Habit: pyinfra's callbacks come without what one needs to know.

Upstream: `operation_host_success` is called whether commands ran or not, and before the result of
the operation can be read. `host_disconnect` is called while an ssh connection still works.
Here: `on_change` is told after an operation that ran commands on a host, failed or not (used to
drop what is known of that host); `on_disconnect` before a host's connection ends (used to give
leases back). Both once per function, however often they are asked for: deploy.py runs per host.
Remove: when upstream's callback carries the operation's result.
"""

from __future__ import annotations

from collections.abc import Callable

from pyinfra import logger
from pyinfra.api.host import Host
from pyinfra.api.state import BaseStateCallback, State

from glue.run import the_state

Told = Callable[[Host], None]

_on_change: list[Told] = []
_on_disconnect: list[Told] = []


def on_change(told: Told) -> None:
    """Call ``told(host)`` after each operation that ran commands on a host."""
    if told not in _on_change:
        _on_change.append(told)


def on_disconnect(told: Told) -> None:
    """Call ``told(host)`` at the end of the run, while the host's connection still works."""
    if told not in _on_disconnect:
        _on_disconnect.append(told)
    state = the_state()
    if not any(isinstance(handler, _Disconnect) for handler in state.callback_handlers):
        state.add_callback_handler(_Disconnect())


def changed(host: Host) -> None:
    """Tell that commands ran on a host. Called by `glue.hosts`, which sees operations end."""
    _tell(_on_change, host)


class _Disconnect(BaseStateCallback):
    @staticmethod
    def host_disconnect(state: State, host: Host) -> None:
        _tell(_on_disconnect, host)


def _tell(functions: list[Told], host: Host) -> None:
    for told in functions:
        try:
            told(host)
        except Exception as error:  # one listener's trouble is no reason to leave the others out
            logger.error(f"{host.print_prefix}{told.__name__} failed: {error}")
