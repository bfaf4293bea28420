"""One change to a host: what the plan is made of.

A plan is an ordered list of `Change`. The same list is shown by a dry run, written as JSON,
executed on the host and read to decide restarts, so that none of these can disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# The order in which a host is converged; an operation handles one area.
AREAS = (
    "bootstrap",  # python3 for the agent
    "packages",
    "accounts",
    "files",  # directories, files and links that no running server reads
    "platform",  # CUDA toolkit, NVIDIA driver, boot
    "kernel",  # sysctl values, module options
    "llama_cpp",  # releases, staged beside the running one
    "models",  # revisions, staged beside the running one
    "serving",  # whatever a running server reads, and the server
)


@dataclass(frozen=True)
class Change:
    """A planned change.

    `id` is stable and unique in a plan (``file:/etc/x``, ``unit:a.service:active``): results,
    reports and tests name a change by it. `reason` holds requirement ids of the documented state
    (``G13``). `needs` are ids of changes that must have succeeded first. `action` is what the
    agent is told to do (see ``files/agent/__init__.py``); None for a change that is decided only
    when earlier ones are done, which a dry run shows and an execution plans again.
    """

    id: str
    area: str
    verb: str  # install, write, create, set, start, stop, enable, restart, build, fetch, switch…
    thing: str  # what a person calls it: "file /etc/x", "unit llama-server@tiny.service"
    before: str
    after: str
    reason: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    action: Mapping[str, Any] | None = field(default=None, repr=False)
    diff: str | None = field(default=None, repr=False)  # unified text difference; never a secret's

    def __post_init__(self) -> None:
        if self.area not in AREAS:
            raise ValueError(f"change {self.id}: unknown area {self.area!r}, one of {AREAS}")

    def sentence(self) -> str:
        """One line for people: ``write file /etc/x: 0644 -> 0600``."""
        return f"{self.verb} {self.thing}: {self.before} -> {self.after}"

    def public(self) -> dict[str, Any]:
        """The change for JSON output: everything but the action, which may hold a secret."""
        return {
            "id": self.id,
            "area": self.area,
            "verb": self.verb,
            "thing": self.thing,
            "before": self.before,
            "after": self.after,
            "reason": list(self.reason),
            "needs": list(self.needs),
            "decided_later": self.action is None,
        }


def of_area(changes: Iterable[Change], area: str) -> list[Change]:
    """The changes of one area, in plan order."""
    return [change for change in changes if change.area == area]
