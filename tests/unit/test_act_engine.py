"""The engine of verb apply: order, needs, groups, failures, and a controller that went away."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from files.agent import actions, lease
from files.agent.handler import Action, ActionError, Context, Handler, Outcome
from files.agent.wire import Wire, WireError
from tests.unit.act_support import Events, act


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Handlers for the tests; returns what was handled, in order."""
    seen: list[Any] = []

    def one(context: Context, action: Action) -> Outcome:
        seen.append(action["id"])
        context.progress(action, action.get("says", "half way"), 50)
        if "raises" in action:
            raise action["raises"]
        return Outcome(changed=action.get("changed", True), message="well")

    def together(context: Context, group: Sequence[Action]) -> Mapping[str, Outcome | ActionError]:
        seen.append([action["id"] for action in group])
        results: dict[str, Outcome | ActionError] = {}
        for action in group:
            if action.get("bad"):
                results[action["id"]] = ActionError("bad one")
            elif not action.get("forgotten"):
                results[action["id"]] = Outcome(changed=True)
        return results

    monkeypatch.setitem(actions.HANDLERS, "one", Handler(one=one))
    monkeypatch.setitem(actions.HANDLERS, "many", Handler(together=together))
    return seen


def test_events_of_an_action_in_order() -> None:
    assert act({"do": "one", "changed": False}).lines == [
        {"id": "0", "event": "start"},
        {"id": "0", "event": "progress", "message": "half way", "percent": 50},
        {"id": "0", "event": "done", "changed": False, "message": "well"},
    ]


def test_what_needs_a_failed_one_is_skipped_and_so_is_what_needs_that(handlers: list[Any]) -> None:
    events = act(
        {"id": "a", "do": "one", "raises": ActionError("no room")},
        {"id": "b", "do": "one", "needs": ["a"]},
        {"id": "c", "do": "one", "needs": ["b"]},
        {"id": "d", "do": "one"},
    )
    assert handlers == ["a", "d"]
    assert events.failure("a") == "no room"
    assert events.of("skipped")["b"]["message"] == "needs a, which was not done"
    assert set(events.of("skipped")) == {"b", "c"}
    assert set(events.of("done")) == {"d"}


def test_a_need_from_outside_the_request_is_not_taken_for_done() -> None:
    events = act({"id": "a", "do": "one", "needs": ["package:curl"]})
    assert events.of("skipped")["a"]["message"] == "needs package:curl, which was not done"


def test_consecutive_ones_go_together_unless_one_needs_another(handlers: list[Any]) -> None:
    events = act(
        {"id": "a", "do": "many"},
        {"id": "b", "do": "many", "bad": True},
        {"id": "c", "do": "many", "needs": ["a"]},
        {"id": "d", "do": "one"},
        {"id": "e", "do": "many", "needs": ["b"]},
    )
    assert handlers == [["a", "b"], ["c"], "d"]
    assert set(events.of("done")) == {"a", "c", "d"}
    assert events.failure("b") == "bad one"
    assert set(events.of("skipped")) == {"e"}


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (
            {"do": "one", "raises": KeyError("x")},
            "one failed unexpectedly: KeyError: 'x'",
        ),
        (
            {"do": "one", "raises": OSError(28, "No space left on device")},
            "one failed unexpectedly: OSError: [Errno 28] No space left on device",
        ),
        ({"do": "many", "forgotten": True}, "the handler of many told nothing about it: a bug"),
        ({"do": "dance"}, "this agent knows no action dance: controller and agent differ"),
        (
            {"do": "unit.enable"},
            "action unit.enable of 0 needs name of type str, got NoneType: "
            "controller and agent differ in version",
        ),
    ],
)
def test_whatever_goes_wrong_is_one_sentence(action: dict[str, Any], message: str) -> None:
    events = act(action, {"do": "one"})
    assert events.failure("0") == message
    assert set(events.of("done")) == {"1"}


def test_nothing_is_begun_once_nobody_listens(handlers: list[Any]) -> None:
    events = Events(until=2)  # the reader is lost in the middle of the first action
    context = Context(run="test", sink=events)
    three = [{"id": name, "do": "one", "needs": []} for name in "abc"]
    assert actions.perform(context, three, lambda doing: None) is False
    assert handlers == ["a"]


def test_messages_never_show_a_secret_of_this_run(tmp_path: Path) -> None:
    events = Events()
    context = Context(run="test", sink=events, secrets={"correct-horse"})
    failing: dict[str, Any] = {"id": "a", "do": "one", "says": "with correct-horse", "needs": []}
    failing["raises"] = ActionError("log: key correct-horse refused; api_key: abcdef, token=ghi")
    actions.perform(context, [failing], lambda doing: None)
    text = json.dumps(events.lines)
    assert "with ***" in text
    assert "key *** refused" in text
    for secret in ("correct-horse", "abcdef", "ghi"):
        assert secret not in text


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"run": "r", "actions": {}},
        {"run": "r", "actions": ["x"]},
        {"run": "r", "actions": [{"do": "one"}]},
        {"run": "r", "actions": [{"id": "a", "do": "one"}, {"id": "a", "do": "one"}]},
        {"run": "r", "actions": [{"id": "a", "do": "one", "needs": "b"}]},
    ],
)
def test_a_request_out_of_shape_is_refused_as_a_whole(
    request_: dict[str, Any], handlers: list[Any]
) -> None:
    with pytest.raises(WireError):
        actions.main(request_, Wire())
    assert handlers == []


def test_the_verb_works_under_the_lock_and_tells_what_it_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[str] = []
    path = str(tmp_path / "lease")

    def one(context: Context, action: Action) -> Outcome:
        told.append(str((lease.busy(path) or {}).get("doing")))
        return Outcome(changed=True)

    real = lease.applying
    monkeypatch.setattr(lease, "applying", lambda run, doing: real(run, doing, path))
    monkeypatch.setitem(actions.HANDLERS, "one", Handler(one=one))
    reads, writes = os.pipe()
    action = {"id": "a", "do": "one", "needs": []}
    request = {"run": "r", "doing": "kernel", "actions": [action]}
    assert actions.main(request, Wire(sink=writes)) is True
    os.close(writes)
    with os.fdopen(reads) as lines:
        events = [json.loads(line) for line in lines]
    assert [event["event"] for event in events] == ["start", "done"]
    assert told == ["kernel: a"]
    assert lease.busy(path) is None


def test_the_verb_ends_quietly_when_its_output_is_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, handlers: list[Any]
) -> None:
    real = lease.applying
    monkeypatch.setattr(
        lease, "applying", lambda run, doing: real(run, doing, str(tmp_path / "lease"))
    )
    reads, writes = os.pipe()
    os.close(reads)
    request = {"run": "r", "actions": [{"id": "a", "do": "one"}, {"id": "b", "do": "one"}]}
    assert actions.main(request, Wire(sink=writes)) is False
    os.close(writes)
    assert handlers == []
