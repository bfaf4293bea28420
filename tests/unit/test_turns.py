"""Switching servers: in the order of the inventory, few at a time, until one fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from glue import order as glue_order
from operations import serving
from operations.converge import Stopped
from operations.turns import Turns
from rules.change import Change

NAMES = ["c", "a", "d", "b"]  # the order of the inventory is not that of the names


def change(verb: str) -> Change:
    return Change("x", "serving", verb, "unit x", "old", "new", action={"do": "x"})


class Fleet:
    """Hosts that come to the operation together, as pyinfra lets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at_once: int = 1, **verbs: str) -> None:
        self.verbs = verbs
        self.log: list[str] = []
        self.most = 0  # hosts that were switched at the same time
        self.bad: set[str] = set()
        self._at_it = 0
        inventory = [SimpleNamespace(name=name) for name in NAMES]
        self.state = SimpleNamespace(inventory=inventory)
        monkeypatch.setattr(serving, "TURNS", Turns())
        config = SimpleNamespace(serving_switch_at_once=at_once)
        monkeypatch.setattr(serving, "config_of", lambda host: config)
        monkeypatch.setattr(serving, "forget", lambda host: self.log.append(f"forget {host.name}"))
        monkeypatch.setattr(
            serving, "current_plan", lambda host: [change(self.verbs.get(host.name, "restart"))]
        )
        monkeypatch.setattr(serving, "apply", self._apply)

    def _apply(self, host: Any, changes: list[Change]) -> None:
        self._at_it += 1
        self.most = max(self.most, self._at_it)
        self.log.append(f"begin {host.name}")
        gevent.sleep(0.01)
        self._at_it -= 1
        if host.name in self.bad:
            raise Stopped("the gate failed")
        self.log.append(f"end {host.name}")

    def run(self, come: list[str]) -> dict[str, str]:
        """What became of each host; they come in this order, and learn their plan meanwhile."""
        ends = {}

        def one(name: str) -> None:
            host: Any = SimpleNamespace(name=name, state=self.state, log=lambda text: None)
            serving.TURNS.come(name)
            gevent.sleep(0.001 * (len(come) - come.index(name)))
            try:
                serving._switch(host, [change(self.verbs.get(name, "restart"))])
                ends[name] = "well"
            except Stopped as stop:
                ends[name] = str(stop)
            finally:
                serving.TURNS.leave(name)

        greenlets = [gevent.spawn(one, name) for name in come]
        assert len(gevent.joinall(greenlets, timeout=20)) == len(come), "somebody waits for ever"
        return ends

    def begun(self) -> list[str]:
        return [line.split()[1] for line in self.log if line.startswith("begin")]


@pytest.mark.parametrize("come", [NAMES, NAMES[::-1], sorted(NAMES)])
def test_one_at_a_time_in_the_order_of_the_inventory(
    monkeypatch: pytest.MonkeyPatch, come: list[str]
) -> None:
    fleet = Fleet(monkeypatch)
    assert set(fleet.run(come).values()) == {"well"}
    assert fleet.begun() == NAMES
    assert fleet.most == 1
    # who waited is looked at again before anything is done to it
    assert [line for line in fleet.log if "forget" in line] == ["forget a", "forget d", "forget b"]


def test_the_first_that_fails_stops_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(monkeypatch)
    fleet.bad = {"a"}
    assert fleet.run(NAMES[::-1]) == {
        "c": "well",
        "a": "the gate failed",
        "d": "not switched: the switch failed on a",
        "b": "not switched: the switch failed on a",
    }
    assert fleet.begun() == ["c", "a"]


def test_as_many_at_once_as_the_data_says(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(monkeypatch, at_once=2)
    fleet.bad = {"c"}
    ends = fleet.run(NAMES)
    assert (fleet.most, fleet.begun()) == (2, ["c", "a"])
    assert ends["a"] == "well"  # begun, so it is brought to its end
    assert ends["b"] == ends["d"] == "not switched: the switch failed on c"


def test_hosts_that_serve_nothing_yet_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(monkeypatch, c="start", d="start")
    fleet.bad = {"c"}  # a host's own trouble: nothing was switched there
    ends = fleet.run(NAMES)
    assert ends["c"] == "the gate failed"
    assert {ends[name] for name in "abd"} == {"well"}
    assert fleet.most > 1
    assert [name for name in fleet.begun() if name in "ab"] == ["a", "b"]


def test_a_host_that_leaves_is_not_waited_for() -> None:
    turns = Turns()
    log: list[str] = []
    for name in NAMES:
        turns.come(name)

    def one() -> None:
        with turns.turn("b", NAMES, 1, log.append) as begins:
            log.append(f"begins {begins}")

    waiting = gevent.spawn(one)
    gevent.sleep(0)
    for name in ("c", "d", "a"):  # no lease, no change, connection lost
        assert log == ["a"]
        turns.leave(name)
        gevent.sleep(0)
    waiting.join(timeout=20)
    assert log == ["a", "begins True"]


def test_the_most_careful_host_decides() -> None:
    turns = Turns()
    log: list[str] = []

    def one(name: str, at_once: int) -> None:
        turns.come(name)
        with turns.turn(name, NAMES, at_once, lambda ahead: log.append(f"{name} waits")):
            log.append(f"{name} begins")
            gevent.sleep(0.01)

    gevent.joinall([gevent.spawn(one, "c", 1), gevent.spawn(one, "a", 9)], timeout=20)
    assert log == ["c begins", "a waits", "a begins"]


def test_active_hosts_come_in_the_order_of_the_inventory() -> None:
    inventory = [f"h{number}" for number in range(50)]
    active = glue_order._get_active_hosts(lambda self: set(inventory) - {"h3"})(inventory)
    assert active == [name for name in inventory if name != "h3"]
