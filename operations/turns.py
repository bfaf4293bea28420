"""Steps that hosts take one after another: who may go on, and what a failure stops.

pyinfra runs an operation on all hosts at once, in no order. `Turns` lets the hosts that reach such
a step go on in the order of the inventory, a bounded number at a time, and holds those that have
not begun back for good as soon as one has failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import gevent

from rules.reboot import turns

LOOK_EVERY_S = 0.2
# A host that is expected and does not come (a run host by host, a pool that is full) is waited
# for this long: longer than the probe before the step takes.
EXPECTED_WITHIN_S = 60


class Held(Exception):
    """This host's turn does not come any more: another one failed. One sentence."""


class Turns:
    """The turns of one kind of step (`what`, for people: "driver move") in one run."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._waiting: set[str] = set()
        self._under_way: set[str] = set()
        self._ended: set[str] = set()
        self._passed: set[str] = set()
        self._failed: list[str] = []

    def passes(self, name: str) -> None:
        """This host does not take the step: nobody waits for it."""
        self._passed.add(name)

    @contextmanager
    def turn(
        self,
        name: str,
        order: Sequence[str],
        parallel: int = 1,
        expected: Callable[[], Collection[str]] = tuple,
    ) -> Iterator[None]:
        """Wait for this host's turn, and hold it inside; raises `Held` when it won't come.

        `order` names all hosts; `expected` gives those that may still come, and go before this one
        if they are before it in `order`. An exception inside is a failure of this host.
        """
        self._waiting.add(name)
        try:
            self._wait(name, order, parallel, expected)
        finally:
            self._waiting.discard(name)
        self._under_way.add(name)
        try:
            yield
        except BaseException:
            self._failed.append(name)
            raise
        finally:
            self._under_way.discard(name)
            self._ended.add(name)

    def _wait(
        self,
        name: str,
        order: Sequence[str],
        parallel: int,
        expected: Callable[[], Collection[str]],
    ) -> None:
        begun = time.monotonic()
        while not self._failed:
            coming = set(expected()) if time.monotonic() - begun < EXPECTED_WITHIN_S else set()
            ahead = (coming | self._waiting) - self._passed - self._ended - self._under_way
            queue = [host for host in order if host in ahead or host == name]
            if name in turns(queue, self._under_way, self._failed, parallel):
                return
            gevent.sleep(LOOK_EVERY_S)
        raise Held(
            f"no {self._what} here: {self._failed[0]} failed, so that the hosts after it are left "
            "as they were; repair that one and run again"
        )
