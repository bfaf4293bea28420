"""Kernel parameters and modules in a folder that looks like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from files.agent import act_kernel
from files.agent.probe_system import sysctl_path
from rules import plan_kernel
from tests.unit.act_support import act, calls, program


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("HERE", str(tmp_path))
    monkeypatch.setattr(act_kernel, "MODULES", tmp_path)
    monkeypatch.setattr(act_kernel, "sysctl_path", lambda key: f"{tmp_path}{sysctl_path(key)}")
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / "proc/sys/vm/swappiness").write_text("60\n")
    return tmp_path


def test_sysctl(host: Path) -> None:
    action = {"do": "sysctl.set", "key": "vm.swappiness", "value": "10"}
    assert act(action).of("done")["0"]["changed"] is True
    assert (host / "proc/sys/vm/swappiness").read_text() == "10"
    assert act(action).of("done")["0"]["changed"] is False


def test_sysctl_failures(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = act(
        {"do": "sysctl.set", "key": "vm.swapiness", "value": "10"},
        {"do": "sysctl.set", "key": "vm/../../etc", "value": "10"},
    )
    assert events.failure("0").startswith("this kernel has no parameter vm.swapiness")
    assert "is not the name of a kernel parameter" in events.failure("1")
    monkeypatch.setattr(Path, "write_text", lambda self, text: len(text))  # the kernel ignores it
    events = act({"do": "sysctl.set", "key": "vm.swappiness", "value": "10"})
    assert events.failure("0") == "the kernel took 10 for vm.swappiness but reads 60"


def module(host: Path, value: str = "0", refcnt: str = "0", holder: str = "") -> None:
    folder = host / "loop"
    (folder / "parameters").mkdir(parents=True)
    (folder / "holders").mkdir()
    (folder / "parameters" / "max_loop").write_text(f"{value}\n")
    (folder / "refcnt").write_text(f"{refcnt}\n")
    if holder:
        (folder / "holders" / holder).mkdir()


RELOAD = {"do": "module.reload", "module": "loop", "options": {"max_loop": "8"}}


def test_an_unused_module_is_reloaded(host: Path) -> None:
    module(host)
    program(
        host,
        "modprobe",
        '[ "$1" = --remove ] || echo 8 > "$HERE/loop/parameters/max_loop"',
    )
    assert act(RELOAD).of("done")["0"]["changed"] is True
    assert calls(host, "modprobe") == ["--remove loop", "loop"]
    assert act(RELOAD).of("done")["0"]["changed"] is False


def test_a_module_that_is_not_loaded_waits(host: Path) -> None:
    assert act(RELOAD).of("done")["0"]["changed"] is False


@pytest.mark.parametrize(
    ("refcnt", "holder", "user"),
    [("0", "dm_mod", "dm_mod"), ("2", "", "2 open handles"), ("", "", "the kernel itself")],
)
def test_a_used_module_is_left_alone(host: Path, refcnt: str, holder: str, user: str) -> None:
    module(host, refcnt=refcnt, holder=holder)
    program(host, "modprobe", "true")
    message = act(RELOAD).failure("0")
    assert f"module loop is in use by {user}" in message
    assert "max_loop=0" in message
    assert calls(host, "modprobe") == []


def test_a_module_that_does_not_come_back_is_loaded_without_options(host: Path) -> None:
    module(host)
    failing = "echo \"modprobe: ERROR: could not insert 'loop': Invalid argument\" >&2; exit 1"
    program(host, "modprobe", f'[ "$1" != loop ] || {{ {failing}; }}')
    assert act(RELOAD).failure("0") == (
        "module loop can't be loaded with its options and is loaded without any option: "
        "modprobe: ERROR: could not insert 'loop': Invalid argument"
    )
    assert calls(host, "modprobe")[-1] == "--config /dev/null loop"


def test_an_option_that_does_not_take_effect_is_told(host: Path) -> None:
    module(host)
    program(host, "modprobe", "true")
    assert "still has max_loop=0" in act(RELOAD).failure("0")


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [("Y", "1", True), ("n", "0", True), ("4096\t1 2", "4096 1  2", True), ("10", "1 0", False)],
)
def test_plan_and_agent_compare_alike(a: str, b: str, same: bool) -> None:
    # two rooms, one meaning: else the plan would never be empty
    assert plan_kernel.same_value(a, b) is act_kernel.same_value(a, b) is same
