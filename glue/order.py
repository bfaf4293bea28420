"""Habit: hosts are worked on in no stated order.

Upstream: `Inventory.get_active_hosts` lists a set. With ``--serial``, with ``_serial``, and when
there are more hosts than fit into one batch (``--parallel``, or 20 a core), who comes first is
chance.
Here: active hosts come in the order of the inventory.
Remove: when upstream keeps the order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyinfra.api.host import Host
from pyinfra.api.inventory import Inventory

from glue.patch import wrap


def apply() -> None:
    """Let the inventory's order hold."""
    wrap(Inventory, "get_active_hosts", _get_active_hosts)


def _get_active_hosts(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_active_hosts(self: Any) -> list[Host]:
        active = set(original(self))
        return [host for host in self if host in active]

    return get_active_hosts
