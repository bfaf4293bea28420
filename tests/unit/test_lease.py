"""One run per host: the second one is told who holds it, a dead one leaves nothing behind."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from facts import bundle
from files.agent import lease
from tests.unit import agent_host


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "run" / "lease")


def request(path: str, run: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "run": run, "who": f"{run}@desk", "policy": "refuse", **more}


def hold(path: str, run: str, **more: Any) -> subprocess.Popen[str]:
    """A process that holds the lease."""
    process = agent_host.start("lease", timeout_s=0)
    assert process.stdin is not None
    process.stdin.write(bundle.payload(request(path, run, **more)))
    process.stdin.flush()
    assert heard(process) == {"lease": "held"}
    return process


def heard(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    return dict(json.loads(process.stdout.readline()))


def test_it_is_held_until_the_input_ends(path: str) -> None:
    holder = hold(path, "r1")
    found = lease.busy(path)
    assert found is not None and (found["run"], found["who"]) == ("r1", "r1@desk")
    out, _ = holder.communicate("\n\n", timeout=60)
    assert agent_host.lines_of(out) == [{"end": "lease", "ok": True}]
    assert lease.busy(path) is None


@pytest.mark.parametrize("left_open", [False, True])
def test_nobody_else_can_open_the_locks(path: str, left_open: bool) -> None:
    if left_open:
        Path(path).parent.mkdir(mode=0o755)
        for name in ("lease", "apply"):
            Path(path).with_name(name).touch(0o644)
    hold(path, "r1").communicate(timeout=60)
    with lease.applying("r1", "x", path):
        pass
    found = [Path(path).parent, Path(path), Path(lease.apply_path(path))]
    assert [oct(item.stat().st_mode & 0o777) for item in found] == ["0o700", "0o600", "0o600"]


def test_the_second_is_told_who_holds_it(path: str) -> None:
    holder = hold(path, "r1")
    first, end = agent_host.ask("lease", request(path, "r2"))
    since = first.pop("since")
    assert first == {"lease": "busy", "run": "r1", "who": "r1@desk", "doing": "a run"}
    assert len(since) == len("2024-01-01T00:00:00Z") and since.endswith("Z")
    assert end["ok"] is False and "run r1 of r1@desk holds this host since" in end["message"]
    holder.communicate(timeout=60)
    assert agent_host.ask("lease", request(path, "r2")) == [
        {"lease": "held"},
        {"end": "lease", "ok": True},
    ]


def test_the_second_waits_and_gets_it(path: str) -> None:
    holder = hold(path, "r1")
    second = agent_host.start("lease", timeout_s=0)
    assert second.stdin is not None
    second.stdin.write(bundle.payload(request(path, "r2", policy="wait", wait_s=60)))
    second.stdin.flush()
    waiting = heard(second)
    assert (waiting["lease"], waiting["run"]) == ("waiting", "r1")
    holder.communicate(timeout=60)
    assert heard(second) == {"lease": "held"}
    second.communicate(timeout=60)


def test_waiting_says_so_again_and_ends_with_busy(path: str) -> None:
    holder = hold(path, "r1")
    patient = agent_host.start("lease", timeout_s=0)
    assert patient.stdin is not None and patient.stdout is not None
    patient.stdin.write(
        bundle.payload(request(path, "r2", policy="wait", wait_s=2, waiting_every_s=0.1))
    )
    patient.stdin.flush()
    lines = agent_host.lines_of(patient.stdout.read())
    assert [line.get("lease") for line in lines[:2]] == ["waiting", "waiting"]
    assert (lines[-2]["lease"], lines[-1]["ok"]) == ("busy", False)
    holder.communicate(timeout=60)


def test_nobody_waits_for_one_that_has_gone(path: str) -> None:
    holder = hold(path, "r1")
    lines = agent_host.ask("lease", request(path, "r2", policy="wait", wait_s=3600))
    assert [line.get("lease") for line in lines] == ["waiting", None]
    holder.communicate(timeout=60)


def test_a_killed_holder_leaves_no_lease(path: str) -> None:
    # without `timeout` around it, the process that is killed is the holder itself
    holder = subprocess.Popen(
        ["python3", "-m", "agent", "lease"],
        cwd=bundle.FILES,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None
    holder.stdin.write(json.dumps(request(path, "r1")) + "\n")
    holder.stdin.flush()
    assert heard(holder) == {"lease": "held"}
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert "r1" in Path(path).read_text()  # what it wrote is still there and does not count
    assert lease.busy(path) is None
    holder.communicate()
    assert agent_host.ask("lease", request(path, "r2"))[0] == {"lease": "held"}


def test_a_silent_run_loses_it(path: str) -> None:
    holder = hold(path, "r1", idle_s=0.2)
    assert heard(holder) == {"lease": "lost", "reason": "no line for 0.2 s"}
    assert heard(holder)["ok"] is False
    assert lease.busy(path) is None
    holder.communicate()


def test_an_apply_left_behind_keeps_others_away(path: str) -> None:
    with lease.applying("r1", "build llama.cpp", path) as tell:
        first, end = agent_host.ask("lease", request(path, "r2"))
        assert (first["lease"], first["run"], first["doing"]) == ("busy", "r1", "build llama.cpp")
        assert end["ok"] is False
        tell("fetch model tiny")
        found = lease.busy(path)
        assert found is not None and found["doing"] == "fetch model tiny"
        with pytest.raises(lease.Busy), lease.applying("r2", "other", path):
            pass
    assert lease.busy(path) is None
    assert agent_host.ask("lease", request(path, "r2"))[0] == {"lease": "held"}


def test_an_apply_under_its_own_lease(path: str) -> None:
    holder = hold(path, "r1")
    with lease.applying("r1", "write /etc/x", path):
        found = lease.busy(path)
        assert found is not None
        assert (found["run"], found["who"], found["doing"]) == ("r1", "r1@desk", "write /etc/x")
    with pytest.raises(lease.Busy, match="run r1 of r1@desk"), lease.applying("r2", "y", path):
        pass
    # what failed to start has not left a lock behind
    with lease.applying("r1", "write /etc/y", path):
        pass
    holder.communicate(timeout=60)


def test_a_failing_apply_gives_the_host_back(path: str) -> None:
    with pytest.raises(RuntimeError), lease.applying("r1", "x", path):
        raise RuntimeError
    assert lease.busy(path) is None


def test_a_probe_looking_does_not_disturb_a_taker(path: str) -> None:

    file = lease._take(path)
    lease._give_back(file)
    with open(path) as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.05, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        lease._give_back(lease._take(path))


def test_a_removed_lease_file_is_not_taken_for_the_lease(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease._give_back(lease._take(path))
    lock = fcntl.flock
    removed: list[str] = []

    def removed_meanwhile(file: int, how: int) -> None:
        lock(file, how)
        if not removed:
            removed.append(path)
            Path(path).unlink()

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    file = lease._take(path)
    assert Path(path).stat().st_ino == os.fstat(file).st_ino
    lease._give_back(file)


def test_a_link_in_its_place_is_refused(path: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    Path(path).parent.mkdir()
    Path(path).symlink_to(victim)
    (end,) = agent_host.ask("lease", request(path, "r1"))
    assert end["ok"] is False and path in end["message"]
    assert victim.read_text() == "precious"


def test_what_a_holder_wrote_in_part_is_nothing(path: str) -> None:
    file = lease._take(path)
    assert lease.busy(path) == {}
    os.pwrite(file, b'{"run": "r1"', 0)
    assert lease.busy(path) == {}
    lease._say(file, {"run": "r1", "doing": "x" * 100})
    lease._say(file, {"run": "r1"})
    assert lease.busy(path) == {"run": "r1"}
    os.pwrite(file, b'{"run": "r1", "doing": "x"}\n{"the rest of what was there": 1}\n', 0)
    assert lease.busy(path) == {"run": "r1", "doing": "x"}
    lease._give_back(file)
    working = lease._take(lease.apply_path(path))
    assert lease.busy(path) == {}
    lease._give_back(working)
    assert lease.busy(path) is None
