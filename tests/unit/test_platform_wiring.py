"""CUDA and the driver in the whole: data, desired state, question, probe, plan, report."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from facts import bundle
from files.agent import actions, probe
from files.agent.platform import LOOKS
from files.agent.wire import WireError
from operations import platform as operation
from operations.converge import Stopped
from operations.report import HostReport, RunReport
from operations.turns import Turns
from rules.change import AREAS, Change
from rules.compose import Inputs, desired_state
from rules.desired import Desired
from rules.desired_platform import Reboots
from rules.observed import Observed
from rules.plan import plan, refusals, states
from rules.plan_platform import faults
from rules.question import question
from rules.reboot import ID as REBOOT
from rules.reboot import State
from rules.schema import HostConfig
from rules.validate import problems, validated
from tests.unit.plan_support import as_desired
from tests.unit.platform_parts import DRIVER, FOUR_V100, SHA, package, part, wanted

DATA: dict[str, Any] = {
    "cuda_version": "12.4",
    "cuda_source": {"url": "http://hub/cuda.deb", "sha256": SHA},
    "driver_source": {"kind": "toolkit_repository"},
}
SYSTEM = {"id": "debian", "version": "13"}
MANAGED = [
    "/etc/profile.d/cuda.sh",
    "/etc/apt/preferences.d/voltfleet-nvidia",
    "/etc/apt/apt.conf.d/52voltfleet-nvidia",
    "/etc/modprobe.d/voltfleet-nouveau.conf",
    "/etc/modules-load.d/voltfleet-nvidia.conf",
    "/etc/systemd/system/voltfleet-nvidia-nodes.service",
]
UNITS = ["voltfleet-nvidia-nodes.service", "nvidia-persistenced.service"]
INSTALLED = {"cuda-drivers-580": package("580.95.05-1", True), "cuda-toolkit-12-4": package("1")}


def desired(**more: Any) -> Desired:
    return desired_state(HostConfig.model_validate({**DATA, **more}), Inputs({}, {}), SYSTEM)


def document(wish: Desired, **changed: Any) -> dict[str, Any]:
    return {**as_desired(wish), "platform": part(**{"packages": INSTALLED, **changed})}


# --- data ----------------------------------------------------------------------------------------


def test_hosts_are_left_alone_by_default() -> None:
    wish = desired_state(HostConfig(), Inputs({}, {}), SYSTEM)
    assert wish.platform is None
    assert "platform" not in question(wish)
    assert not {file.path for file in wish.files} & set(MANAGED)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            {"cuda_version": "12.4"},
            "h: cuda_source: found None: cuda_version and cuda_source go together: set both or "
            "neither",
        ),
        (
            {"cuda_version": "twelve"},
            "h: cuda_version: found 'twelve', expected a toolkit version, like '12.4' or "
            "'12.4.1' or None",
        ),
        (
            {"gpu_generations": {"1db5": "volta"}},
            "h: gpu_generations.1db5: this key must be a PCI id of an NVIDIA card, like "
            "'10de:1db5'",
        ),
    ],
)
def test_what_is_impossible_is_one_sentence(data: dict[str, Any], sentence: str) -> None:
    assert problems(data, "h") == [sentence]


def test_the_hub_may_serve_the_repository() -> None:
    source = {"url": "{model_hub_url}/files/cuda.deb", "sha256": SHA}
    config = validated({**DATA, "cuda_source": source, "model_hub_url": "http://lab:80/"})
    assert config.cuda_source is not None
    assert getattr(config.cuda_source, "url", "") == "http://lab:80/files/cuda.deb"


# --- desired state and question ------------------------------------------------------------------


def test_desired_state_has_the_platform_its_files_and_units() -> None:
    wish = desired()
    assert wish.platform is not None
    assert [f.path for f in wish.files if f.path in MANAGED] == MANAGED
    assert [unit.name for unit in wish.units if unit.area == "kernel"] == UNITS
    assert question(wish)["platform"]["toolkit"] == {"nvcc": "/usr/local/cuda-12.4/bin/nvcc"}
    assert question(wish)["platform"]["driver"]["packages"] == ["cuda-drivers-580"]
    assert question(wish) == json.loads(json.dumps(question(wish)))


# --- probe ---------------------------------------------------------------------------------------


def modules(request: Mapping[str, Any]) -> set[str]:
    line = bundle.payload(request, "probe").splitlines()[0].removeprefix("agent:")
    return set(json.loads(zlib.decompress(base64.b64decode(line))))


def test_the_looks_travel_only_with_a_question_that_needs_them() -> None:
    added = modules({"platform": {}}) - modules({})
    assert {"agent.platform", "agent.platform_apt", "agent.platform_cuda"} <= added


def test_the_probe_answers_about_the_platform_only_when_asked() -> None:
    assert "platform" not in {part.name for part in probe.parts({}, 1)}
    asked = {"platform": {"toolkit": None, "driver": None, "urls": []}}
    (found,) = [part for part in probe.parts(asked, 10) if part.name == "platform"]
    document = probe.learn([found], 30)
    assert set(document["platform"]) == set(LOOKS)
    assert document["platform"]["boot"]["boot_id"]


def test_a_platform_of_another_shape_is_refused() -> None:
    with pytest.raises(WireError, match="platform is a list"):
        probe.parts({"platform": []}, 1)


def test_the_agent_knows_the_actions_of_the_platform() -> None:
    assert {"cuda.repo", "cuda.install", "driver.install", "host.reboot"} <= set(actions.HANDLERS)


# --- plan ----------------------------------------------------------------------------------------


def test_a_converged_host_has_an_empty_plan() -> None:
    wish = desired()
    observed = Observed(document(wish))
    assert plan(wish, observed) == []
    assert refusals(wish, observed) == []
    assert states(wish, observed) == []


def test_the_platform_stands_between_files_and_kernel() -> None:
    wish = desired(reboot_allowed=True)
    there = document(wish, driver={**part()["driver"], "on_disk": "580.126.09"})
    there["files"][MANAGED[0]] = None
    there["units"][UNITS[1]].update(active="inactive", sub="dead")
    found = plan(wish, Observed(there))
    assert [change.id for change in found] == [
        f"file:{MANAGED[0]}",
        REBOOT,
        f"unit:{UNITS[1]}:start",
    ]
    order = [AREAS.index(change.area) for change in found]
    assert order == sorted(order)


def test_what_the_driver_cannot_serve_before_a_boot_is_not_started() -> None:
    wish = desired()
    there = document(wish, driver={**part()["driver"], "on_disk": "580.126.09"})
    there["units"][UNITS[1]].update(active="inactive", sub="dead")
    observed = Observed(there)
    assert plan(wish, observed) == []
    (state,) = states(wish, observed)
    assert state.word == "REBOOT_REQUIRED"


def test_a_host_without_cards_starts_nothing_for_them() -> None:
    wish = desired()
    there = document(wish, gpus={"devices": []})
    there["units"][UNITS[1]].update(active="inactive", sub="dead")
    assert plan(wish, Observed(there)) == []


def test_a_part_that_was_not_learned_stops_the_host() -> None:
    wish = desired()
    there = document(wish, packages={"unknown": "timed out after 19 s"})
    assert any("timed out after 19 s" in text for text in refusals(wish, Observed(there)))


def test_nothing_is_known_of_a_host_without_python() -> None:
    found = plan(desired(), Observed({}, nothing_known="python3 is not installed"))
    about = [change for change in found if change.area == "platform"]
    assert {change.id for change in about} == {"cuda", "driver"}
    assert all(change.action is None for change in about)


# --- the gate ------------------------------------------------------------------------------------


def gate(allowed: bool = True, **changed: Any) -> list[str]:
    platform = wanted(toolkit=None, driver=DRIVER, reboots=Reboots(allowed))
    return faults(platform, Observed({"platform": part(**changed)}))


def test_a_driver_of_one_piece_passes_the_gate() -> None:
    assert gate() == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"gpus": {"devices": [{**FOUR_V100[0], "driver": None}]}}, "driven by nothing"),
        ({"driver": {**part()["driver"], "on_disk": "580.1"}}, "580.1 is on disk"),
        ({"packages": {}}, "not all of branch 580"),
        ({"packages": {"nvidia-driver-580-server": package("580.1-1")}}, "not held"),
        ({"gpus": {"unknown": "hangs"}}, "gpus unknown (hangs)"),
    ],
)
def test_the_gate_stops(changed: dict[str, Any], words: str) -> None:
    assert words in "; ".join(gate(**changed))


def test_the_gate_does_not_wait_for_a_boot_that_is_not_allowed() -> None:
    assert gate(allowed=False, driver={**part()["driver"], "on_disk": "580.1"}) == []


# --- report --------------------------------------------------------------------------------------

REQUIRED = State("REBOOT_REQUIRED", "REBOOT_REQUIRED: driver 1 is loaded, 2 is on disk; reboot it")


@pytest.mark.parametrize(
    ("entry", "state"),
    [
        (HostReport(states=[REQUIRED]), "REBOOT_REQUIRED"),
        (HostReport(states=[REQUIRED], changed=["driver"]), "REBOOT_REQUIRED"),
        (HostReport(states=[REQUIRED], failed=["no"]), "failed"),
        (HostReport(states=[State("COEXISTS", "x")]), "no change"),
    ],
)
def test_the_state_of_a_host(entry: HostReport, state: str) -> None:
    assert entry.state == state


def test_a_reboot_that_waits_is_shown_and_written(tmp_path: Path) -> None:
    report = RunReport()
    report.of("h1").states = [REQUIRED]
    report.write(tmp_path / "r" / "last.json")
    written = json.loads((tmp_path / "r" / "last.json").read_text())["hosts"]["h1"]
    assert written["state"] == "REBOOT_REQUIRED"
    assert written["states"] == [{"word": REQUIRED.word, "sentence": REQUIRED.sentence}]
    (line,) = report.lines()
    assert REQUIRED.sentence in line


# --- the operation -------------------------------------------------------------------------------


class Steps:
    """A host whose plans are given; what the operation did with them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *plans: list[str]) -> None:
        self.plans = list(plans)
        self.did: list[str] = []
        self.host: Any = SimpleNamespace(
            name="h1", state=SimpleNamespace(inventory=[SimpleNamespace(name="h1")])
        )
        monkeypatch.setattr(operation, "apply", lambda _, made: self._did("apply", made))
        monkeypatch.setattr(
            operation.reboots, "reboot", lambda _, made: self.did.append(f"boot {made.id}")
        )
        monkeypatch.setattr(operation, "REBOOTS", Turns())
        monkeypatch.setattr(operation, "forget", lambda _: None)
        monkeypatch.setattr(operation, "config_of", lambda _: HostConfig())
        monkeypatch.setattr(operation, "current_plan", lambda _: changes(*self.plans.pop(0)))

    def _did(self, what: str, made: list[Change]) -> None:
        self.did.append(f"{what} {' '.join(change.id for change in made)}")

    def converge(self, *first: str) -> list[str]:
        operation._converge(self.host, changes(*first))
        return self.did


def changes(*ids: str) -> list[Change]:
    return [Change(key, "platform", "do", key, f"{key} is wrong", "right") for key in ids]


def test_a_reboot_goes_alone_and_last(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch, [REBOOT, "load"], [REBOOT], ["proof"], [])
    assert steps.converge("cuda", "driver", REBOOT) == [
        "apply cuda driver",
        "apply load",
        "boot reboot",
        "apply proof",
    ]


def test_what_does_not_help_is_not_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch, [REBOOT], [REBOOT])
    with pytest.raises(Stopped, match="reboot was made and is to be made again: reboot is wrong"):
        steps.converge("driver", REBOOT)
    assert steps.did == ["apply driver", "boot reboot"]


def uploading(path: Path, sha256: str) -> Change:
    action = {"do": "cuda.repo", "upload": str(path), "file": "/var/cache/x.deb", "sha256": sha256}
    return replace(changes("repository:x")[0], action=action)


def test_a_file_of_the_controller_is_sent_where_the_action_wants_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deb = tmp_path / "cuda.deb"
    deb.write_bytes(b"abc")
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    sent: list[tuple[Any, ...]] = []
    monkeypatch.setattr(operation.sending, "send", lambda *words: sent.append(words[1:4]))
    host: Any = SimpleNamespace(name="h1")
    operation._send(host, [*changes("cuda"), uploading(deb, abc), uploading(deb, "")])
    assert sent == [(deb, "/var/cache/x.deb", abc)] * 2
    with pytest.raises(Stopped, match="expected 00: correct one of them"):
        operation._send(host, [uploading(deb, "00")])
    with pytest.raises(Stopped, match="No such file"):
        operation._send(host, [uploading(tmp_path / "gone", abc)])
    assert len(sent) == 2


class Fleet:
    """Hosts whose driver is to be moved, at the operation at the same time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, bad: str = "") -> None:
        self.log: list[str] = []
        self.bad = bad
        self.state = SimpleNamespace(inventory=[SimpleNamespace(name=name) for name in "cab"])
        move = [replace(changes("driver")[0], verb="move")]
        monkeypatch.setattr(operation, "MOVES", Turns())
        monkeypatch.setattr(operation, "forget", lambda _: None)
        monkeypatch.setattr(operation, "current_plan", lambda _: move)
        monkeypatch.setattr(operation, "_converge", self._converge)
        monkeypatch.setattr(operation, "_gate", lambda host: self.log.append(f"gate {host.name}"))
        self.move = move

    def _converge(self, host: Any, made: list[Change]) -> None:
        self.log.append(f"{made[0].verb} {host.name}")
        gevent.sleep(0.001)
        if host.name == self.bad:
            raise Stopped("no")

    def _one(self, name: str) -> None:
        host: Any = SimpleNamespace(name=name, state=self.state, log=lambda _: None)
        operation.MOVES.come(name)
        gevent.sleep(0)  # all have come before one has its turn
        try:
            operation._platform(host, self.move)
        except Stopped as stop:
            self.log.append(f"{name}: {stop}")
        finally:
            operation.MOVES.leave(name)

    def run(self) -> list[str]:
        gevent.joinall([gevent.spawn(self._one, name) for name in "abc"], timeout=5)
        return self.log


def test_drivers_move_host_by_host_each_with_its_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Fleet(monkeypatch).run()
    assert log == [f"{step} {host}" for host in "cab" for step in ("move", "gate")]


def test_a_move_that_fails_stops_those_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Fleet(monkeypatch, bad="c").run()
    assert log[:2] == ["move c", "c: no"]
    assert sorted(text.partition(":")[0] for text in log[2:]) == ["a", "b"]
    assert all("no driver move here: it failed on c" in text for text in log[2:])
