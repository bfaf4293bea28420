"""Serving units: everything a running server reads, and the server itself.

All of it was staged beside the old on all hosts before. A host whose running servers are to be
restarted waits for its turn, and one that fails is put back by the agent; see `operations.turns`.
A host that serves nothing yet, or whose servers run on, has nothing to lose and does not wait.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from pyinfra.api.host import Host
from pyinfra.api.operation import operation

from facts.host import config_of, forget
from glue.run import this_host
from operations.converge import Stopped, apply, converge, current_plan
from operations.turns import Turns
from rules.change import Change, of_area

AREA = "serving"
TURNS = Turns()


@operation()
def switched() -> Generator[Any, None, None]:
    """Switch the servers to what was staged, restart those that changed, prove that they answer."""
    host = this_host()
    TURNS.come(host.name)
    try:
        yield from converge(AREA, execute=_switch)
    finally:
        TURNS.leave(host.name)


def _switch(host: Host, changes: list[Change]) -> None:
    if not any(change.verb == "restart" for change in changes):
        TURNS.leave(host.name)
        apply(host, changes)
        return
    waited: list[str] = []

    def waits(ahead: str) -> None:
        waited.append(ahead)
        host.log(f"  waits for its turn to switch, after {ahead}")

    order = [other.name for other in host.state.inventory]
    at_once = config_of(host).serving_switch_at_once
    with TURNS.turn(host.name, order, at_once, waits) as begins:
        if not begins:
            raise Stopped(f"not switched: the switch failed on {TURNS.failed}")
        if waited:  # for an hour maybe
            forget(host)
            changes = of_area(current_plan(host), AREA)
        try:
            apply(host, changes)
        except Exception:
            TURNS.stop(host.name)
            raise
