"""Whose turn it is to switch: hosts in the order of the inventory, few at a time, until one fails.

pyinfra works on all hosts at once. A host that comes to an operation says so (`come`), and either
leaves again (`leave`) or waits for its `turn`: until every host before it that came has begun or
left, and few enough are at it. After `stop` nobody begins any more. The hosts of one batch come
before any of them can have its turn, since nothing that takes time lies before `come`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gevent.event import Event


class Turns:
    """The turns of one run, by host name."""

    def __init__(self) -> None:
        self.failed = ""  # the first host whose switch failed
        self._to_come: set[str] = set()  # came, and neither begun nor left
        self._begun: dict[str, int] = {}  # at it now, with how many at once each allows
        self._moved = Event()

    def come(self, name: str) -> None:
        self._to_come.add(name)

    def leave(self, name: str) -> None:
        """Nobody has to wait for this host."""
        self._to_come.discard(name)
        self._wake()

    def stop(self, name: str) -> None:
        """The switch failed on this host: hosts that have not begun are left as they are."""
        self.failed = self.failed or name

    @contextmanager
    def turn(
        self, name: str, order: Sequence[str], at_once: int, waits: Callable[[str], None]
    ) -> Iterator[bool]:
        """Wait for a host's turn and hold it; False when there will be none, since one failed.

        `order` are the names of all hosts; `waits` is called with the host that is waited for.
        """
        before = set(order[: order.index(name)])
        told = False
        while not self.failed and (ahead := self._ahead(before, at_once)):
            if not told:
                waits(ahead)
                told = True
            self._moved.wait()
        if self.failed:
            self.leave(name)
            yield False
            return
        self._begun[name] = at_once
        self.leave(name)
        try:
            yield True
        finally:
            del self._begun[name]
            self._wake()

    def _ahead(self, before: set[str], at_once: int) -> str:
        """A host that is to be waited for, empty when it is this host's turn."""
        if self._begun and len(self._begun) >= min(at_once, *self._begun.values()):
            return next(iter(self._begun))
        return min(before & self._to_come, default="")

    def _wake(self) -> None:
        self._moved.set()
        self._moved = Event()
