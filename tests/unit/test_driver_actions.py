"""The driver's actions where no package manager is needed to see them right (C02, C04, C07)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from files.agent import act_driver, act_platform, actions, apt_install, platform, platform_apt
from files.agent.apt_errors import Problem
from files.agent.handler import ActionError, Context, Ended


class Nobody:
    gone = False

    def line(self, value: Any) -> None:
        pass


CONTEXT = Context(run="r", sink=Nobody())


class Host:
    """A package manager in memory: holds, versions, and what an installation does."""

    def __init__(self, held: list[str], versions: dict[str, str]) -> None:
        self.held = set(held)
        self.versions = dict(versions)
        self.during: set[str] | None = None  # the holds while apt was at work

    def must(self, argv: list[str], limit_s: float) -> Ended:
        if argv[:2] == ["apt-mark", "showhold"]:
            return Ended(0, "\n".join(sorted(self.held)) + "\n", "")
        if argv[:2] == ["apt-mark", "hold"]:
            self.held |= set(argv[2:])
        elif argv[:2] == ["apt-mark", "unhold"]:
            self.held -= set(argv[2:])
        else:
            raise AssertionError(argv)
        return Ended(0, "", "")

    def packages(self, request: Any) -> dict[str, Any]:
        return {
            name: {"version": version, "status": "installed", "held": name in self.held}
            for name, version in self.versions.items()
        }


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    stack = {"cuda-drivers-550": "550.163.01-1", "libnvidia-compute-550": "550.163.01-0ubuntu1"}
    host = Host([*stack, "dkms"], stack)
    monkeypatch.setattr(act_driver, "must", host.must)
    monkeypatch.setattr(platform_apt, "packages", host.packages)
    monkeypatch.setattr(platform_apt, "simulation", lambda request: host_simulation)
    monkeypatch.setattr(platform, "driver", lambda request: {"loaded": "550.163.01"})
    monkeypatch.setattr(act_driver, "LIFTED", tmp_path / "lifted.json")
    return host


host_simulation: dict[str, Any] = {
    "asked": ["cuda-drivers-580"],
    "held": ["cuda-drivers-550", "libnvidia-compute-550", "dkms"],
    "rc": 0,
    "out": "Remv cuda-drivers-550 [550.163.01-1]\nInst cuda-drivers-580 (580.95.05-1 x [amd64])\n"
    "Inst libnvidia-compute-580 [550.163.01-0ubuntu1] (580.95.05-0ubuntu1 x [amd64])\n",
    "err": "",
    "offers": "",
}
MOVE = {
    "do": "driver.install",
    "id": "driver",
    "packages": ["cuda-drivers-580"],
    "branch": 580,
    "flavour": "proprietary",
    "hold": True,
    "pins": "",
    "lock_wait_s": 1,
}


def installing(monkeypatch: pytest.MonkeyPatch, host: Host, versions: dict[str, str]) -> None:
    def install(context: Any, action: Any, names: Any, options: Any) -> str:
        host.during = set(host.held)
        host.versions = versions
        return ""

    monkeypatch.setattr(apt_install, "install", install)


NEW = {"cuda-drivers-580": "580.95.05-1", "libnvidia-compute-580": "580.95.05-0ubuntu1"}


def test_a_move_lifts_our_holds_and_holds_the_whole_new_stack(
    monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    installing(monkeypatch, host, NEW)
    outcome = act_driver.install(CONTEXT, MOVE)
    assert outcome.changed and "driver 550.163.01 stays loaded" in outcome.message
    assert host.during == {"dkms"}  # somebody else's hold is never lifted
    assert host.held >= set(NEW) | {"dkms"}
    assert not act_driver.LIFTED.exists()


def test_a_failed_move_leaves_every_hold_as_it_was(
    monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    before = set(host.held)

    def fails(*_: Any) -> str:
        raise ActionError("apt broke")

    monkeypatch.setattr(apt_install, "install", fails)
    with pytest.raises(ActionError, match="apt broke"):
        act_driver.install(CONTEXT, MOVE)
    assert host.held == before


def test_holds_that_a_power_loss_left_lifted_come_back(host: Host) -> None:
    host.held = {"dkms"}
    act_driver.LIFTED.write_text(json.dumps(["cuda-drivers-550", "nvidia-smi"]))
    with act_driver.lifted_holds():
        assert host.held == {"dkms"}
    assert host.held == {"dkms", "cuda-drivers-550"}  # nvidia-smi is not installed any more


def test_without_hold_in_the_data_nothing_new_is_held(
    monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    installing(monkeypatch, host, NEW)
    act_driver.install(CONTEXT, {**MOVE, "hold": False})
    assert not host.held & set(NEW)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"out": "Inst libcuda1 (590.48.01-1 x)\n"}, "580 asked, apt gives 590"),
        ({"out": "Inst nvidia-open-580 (580.95.05-1 x)\n"}, "apt gives the open ones"),
        ({"out": "Remv docker-ce [1]\n"}, "would remove docker-ce"),
        ({"out": "Inst dkms [3.0] (3.1 x)\n"}, "change dkms, which somebody holds"),
    ],
)
def test_apts_answer_is_compared_before_anything_is_touched(
    monkeypatch: pytest.MonkeyPatch, host: Host, changed: dict[str, str], said: str
) -> None:
    monkeypatch.setattr(platform_apt, "simulation", lambda _: {**host_simulation, **changed})
    installing(monkeypatch, host, NEW)
    before = set(host.held)
    with pytest.raises(ActionError, match=f"nothing was installed: .*{said}"):
        act_driver.install(CONTEXT, MOVE)
    assert (host.during, host.held) == (None, before)


def test_another_branch_after_all_is_an_error(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    installing(monkeypatch, host, {"libcuda1": "590.48.01-1", "nvidia-settings": "510.47.03-1"})
    with pytest.raises(ActionError, match=r"libcuda1 590\.48\.01-1 is there, expected branch 580"):
        act_driver.install(CONTEXT, MOVE)


def test_c01_hold_alone(host: Host) -> None:
    host.held = {"cuda-drivers-550"}
    assert act_driver.hold(CONTEXT, {"id": "h"}).message == "2 packages held"
    assert host.held == {"cuda-drivers-550", "libnvidia-compute-550"}


def test_a_hold_that_does_not_take_is_an_error(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    host.held = set()
    monkeypatch.setattr(act_driver, "_mark", lambda verb, names: None)
    with pytest.raises(ActionError, match="but not cuda-drivers-550, libnvidia-compute-550"):
        act_driver.hold_all()


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service",
            "enrol the key it is signed with",
        ),
        ("modprobe: ERROR: could not insert 'nvidia': No such device", "drives no card"),
        ("modprobe: FATAL: Module nvidia not found", "modprobe nvidia failed: modprobe: FATAL"),
    ],
)
def test_c07_why_the_module_is_not_loaded(said: str, sentence: str) -> None:
    assert sentence in act_driver.why_not_loaded("nvidia", said)


def test_c02_the_message_says_whose_hold_it_is() -> None:
    ours = Problem("dependencies", "held", ("nvidia-driver-440",))
    others = Problem("dependencies", "held", ("dkms",))
    assert apt_install.told(ours).endswith("the hold is ours (driver_hold)")
    assert apt_install.told(others) == "held"


def test_a_reboot_of_another_boot_than_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "boot", lambda request: {"boot_id": "new"})
    monkeypatch.setattr(act_driver, "must", lambda *_: pytest.fail("it must not reboot"))
    outcome = act_driver.reboot(CONTEXT, {"boot_id": "old"})
    assert not outcome.changed and "meanwhile" in outcome.message


def test_no_reboot_with_half_configured_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "boot", lambda request: {"boot_id": "b"})
    monkeypatch.setattr(act_driver, "packages_state", lambda: {"interrupted": True})
    with pytest.raises(ActionError, match="half configured"):
        act_driver.reboot(CONTEXT, {"boot_id": "b"})


def test_names_of_actions_are_nobody_elses() -> None:
    ours = set(act_platform.HANDLERS)
    others = {
        name
        for module in actions.MODULES
        if module != "act_platform"
        for name in __import__(f"files.agent.{module}", fromlist=["HANDLERS"]).HANDLERS
    }
    assert ours and not ours & others
