"""The controller's side of the lease: its loss is noticed, and waiting for it has an end."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent.queue import Queue

from facts import remote
from operations import lease


class FakeChannel:
    """A channel whose lines a test gives; None ends it, an exception is raised."""

    def __init__(self, lines: Iterable[Any] = ()) -> None:
        self.lines: Queue[Any] = Queue()
        for line in lines:
            self.lines.put(line)
        self.closed = False

    def read(self) -> Any:
        line = self.lines.get()
        if isinstance(line, Exception):
            raise line
        return line

    def write(self, chunks: Iterable[bytes]) -> None:
        pass

    def why_it_ended(self) -> str:
        return "the connection was lost during lease"

    def close(self) -> None:
        self.closed = True


def fake_host() -> Any:
    return SimpleNamespace(connector_data={}, log=lambda text: None)


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> FakeChannel:
    made = FakeChannel()
    monkeypatch.setattr(remote, "agent", lambda *_: made)
    config = SimpleNamespace(lease_policy="refuse", lease_wait_s=600)
    monkeypatch.setattr(lease, "config_of", lambda host: config)
    return made


def taken(channel: FakeChannel) -> Any:
    host = fake_host()
    channel.lines.put({"lease": "held"})
    assert lease.take(host) is True
    gevent.sleep(0)
    return host


def test_it_is_taken_once_and_given_back(channel: FakeChannel) -> None:
    host = taken(channel)
    channel.lines.put({"alive": True})
    gevent.sleep(0)
    assert lease.take(host) is False
    lease.must_hold(host)
    lease.give_back(host)
    assert channel.closed
    lease.must_hold(fake_host())  # one that never took it has nothing to lose


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ({"lease": "lost", "reason": "no line for 60 s"}, "the host saw no line for 60 s"),
        ({"end": "lease", "ok": False, "message": "what it said"}, "what it said"),
        ({"end": "lease", "ok": True}, "the host gave it up"),
        (None, "the connection was lost during lease"),
        (remote.RemoteError("said nothing for 90 s"), "said nothing for 90 s"),
    ],
)
def test_its_loss_stops_the_next_change(channel: FakeChannel, ending: Any, words: str) -> None:
    host = taken(channel)
    channel.lines.put(ending)
    gevent.sleep(0)
    for changing in (lease.take, lease.must_hold):
        with pytest.raises(remote.RemoteError) as caught:
            changing(host)
        assert words in str(caught.value)
        assert "run again" in str(caught.value)


@pytest.mark.parametrize(("policy", "limit_s"), [("refuse", 0.05), ("wait", 0.1)])
def test_a_host_that_does_not_answer_is_not_waited_for(
    channel: FakeChannel, monkeypatch: pytest.MonkeyPatch, policy: str, limit_s: float
) -> None:
    config = SimpleNamespace(lease_policy=policy, lease_wait_s=0.05)
    monkeypatch.setattr(lease, "config_of", lambda host: config)
    monkeypatch.setattr(remote, "GRACE_S", 0.05)

    def chatty() -> None:
        while True:
            channel.lines.put({"alive": True})
            gevent.sleep(0.01)

    signs = gevent.spawn(chatty)
    with pytest.raises(remote.RemoteError, match=f"within {limit_s} s"):
        lease.take(fake_host())
    signs.kill()
    assert channel.closed


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([{"lease": "busy", "run": "r7", "who": "ann@desk", "since": "…"}], "run r7 of ann@desk"),
        ([{"end": "lease", "ok": False, "message": "[Errno 30] /run: read-only"}], "read-only"),
        ([{"lease": "waiting", "run": "r7"}, None], "the connection was lost"),
    ],
)
def test_without_a_lease_it_is_one_sentence(
    channel: FakeChannel, lines: list[Any], words: str
) -> None:
    host = fake_host()
    for line in lines:
        channel.lines.put(line)
    with pytest.raises(remote.RemoteError, match=words.replace("[", r"\[")):
        lease.take(host)
    assert channel.closed
    assert host.connector_data == {}
