"""Turns: the stated order, a bounded number at once, and nobody after a failure."""

from __future__ import annotations

from collections.abc import Collection

import gevent
import pytest

from operations import turns
from operations.turns import Held, Turns

ORDER = ["a", "b", "c", "d"]


class Fleet:
    """Hosts that take a turn in greenlets of their own; what they did, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, expected: Collection[str] = ()) -> None:
        monkeypatch.setattr(turns, "LOOK_EVERY_S", 0.001)
        self.turns = Turns("driver move")
        self.expected = expected
        self.told: list[str] = []
        self.most = self.now = 0

    def host(self, name: str, parallel: int = 1, fails: bool = False) -> gevent.Greenlet:
        return gevent.spawn(self._run, name, parallel, fails)

    def _run(self, name: str, parallel: int, fails: bool) -> None:
        try:
            with self.turns.turn(name, ORDER, parallel, lambda: self.expected):
                self.now += 1
                self.most = max(self.most, self.now)
                gevent.sleep(0.005)
                self.now -= 1
                if fails:
                    raise ValueError("no")
                self.told.append(name)
        except Held as held:
            self.told.append(f"{name}: {held}")
        except ValueError:
            self.told.append(f"{name} failed")


def test_hosts_go_one_after_another_in_the_order_given(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(monkeypatch, ORDER)
    gevent.joinall([fleet.host(name) for name in ("c", "b", "d", "a")], timeout=5)
    assert fleet.told == ORDER
    assert fleet.most == 1


def test_two_at_once_where_two_may(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(monkeypatch, ORDER)
    gevent.joinall([fleet.host(name, parallel=2) for name in ORDER], timeout=5)
    assert sorted(fleet.told) == ORDER
    assert fleet.most == 2


def test_a_failure_holds_back_whoever_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(monkeypatch, ORDER)
    gevent.joinall(
        [fleet.host("a"), fleet.host("b", fails=True), fleet.host("c"), fleet.host("d")], timeout=5
    )
    assert fleet.told[:2] == ["a", "b failed"]
    assert sorted(text.partition(":")[0] for text in fleet.told[2:]) == ["c", "d"]
    for text in fleet.told[2:]:
        assert "no driver move here: b failed" in text


def test_whoever_passes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(monkeypatch, ORDER)
    second = fleet.host("b")
    gevent.sleep(0.02)
    assert fleet.told == []  # a is expected and before it
    fleet.turns.passes("a")
    second.join(timeout=5)
    assert fleet.told == ["b"]


def test_whoever_is_expected_and_does_not_come_is_waited_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "EXPECTED_WITHIN_S", 0.05)
    fleet = Fleet(monkeypatch, ["a"])
    fleet.host("b").join(timeout=5)
    assert fleet.told == ["b"]
