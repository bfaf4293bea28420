"""What installs python3: on which systems, how it is bounded, and what it says when it can't."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.act_support import calls, program
from tests.unit.mini_project import ROOT

UBUNTU = 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\nID=ubuntu\nVERSION_ID="24.04"\n'

# In a process of its own: operations patch the standard library for gevent.
ASK = """
import json, sys
from types import SimpleNamespace
from operations import bootstrap
from operations.converge import Stopped
from operations.report import REPORT
from rules.change import Change
from rules.observed import Observed

asked = json.load(sys.stdin)
log = lambda text, **style: None
change = Change("bootstrap:python3", "bootstrap", "install", "python3", "too old", "installed")


def install(name, status, lacking):
    "What an installation says and reports, after which the probe finds this lacking."
    host = SimpleNamespace(name=name, connector_data={}, log=log, log_styled=log)
    config = SimpleNamespace(supported_os=["debian 13"], apt_lock_wait_s=1)
    bootstrap.config_of = lambda host: config
    bootstrap.shell = lambda *args, **more: (status, ["E: no network"])
    bootstrap.observe = lambda host: Observed({}, lacking)
    try:
        bootstrap._install(host, [change])
        said = ""
    except Stopped as stop:
        said = str(stop)
    return [said, REPORT.of(name).changed]


json.dump({
    "script": bootstrap.script(["debian 13", "ubuntu 24.04"], 42),
    "why": [bootstrap.why(*item) for item in asked],
    "good": install("a", 0, None),
    "old": install("b", 0, "python3 is 3.8, 3.10 or newer is needed"),
    "failed": install("c", 100, None),
}, sys.stdout)
"""
WHY: list[tuple[int, list[str], str]] = [
    (3, ["Get:1 x", "! this host runs X"], "this host runs X"),
    (124, ["Get:1 x"], "python3 could not be installed within 9 s"),
    (137, [], "python3 could not be installed within 9 s"),
    (100, ["E: no network", "W: ignored"], "python3 could not be installed: E: no network; see"),
    (100, ["sh: out of memory"], "python3 could not be installed: sh: out of memory; see"),
    (1, [], "python3 could not be installed: apt-get said nothing; see"),
]


@pytest.fixture(scope="module")
def told() -> Any:
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps([(status, lines, 9) for status, lines, _ in WHY]),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run(told: Any, folder: Path, os_release: str | None, **tools: str) -> tuple[int, str]:
    """The script on a host with this os-release and these tools: its status and output."""
    script = told["script"]
    for path in ("/etc/os-release", "/usr/lib/os-release", "/var/lib/dpkg/updates"):
        assert path in script
        script = script.replace(path, str(folder / path.rpartition("/")[2]))
    if os_release is not None:
        (folder / "os-release").write_text(os_release)
    for name, text in {"id": "echo 0", "apt-get": "true", "dpkg": "true", **tools}.items():
        program(folder, name, text)
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        env={"PATH": str(folder), "HERE": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.strip()


def test_a_system_that_is_named_gets_it(told: Any, tmp_path: Path) -> None:
    assert run(told, tmp_path, UBUNTU) == (0, "")
    options = "-q -y -o DPkg::Lock::Timeout=42 -o Dpkg::Use-Pty=0"
    assert calls(tmp_path, "apt-get") == [
        f"{options} update",
        f"{options} install --no-install-recommends python3",
    ]
    assert calls(tmp_path, "dpkg") == []


@pytest.mark.parametrize(
    ("os_release", "sentence"),
    [
        (UBUNTU.replace("24.04", "20.04"), "this host runs Ubuntu 20.04.1 LTS (ubuntu 20.04), su"),
        ("ID=debian\n", "this host runs debian (debian), supported are debian 13, ubuntu 24.04:"),
        ("", "this host runs linux (linux), supported are"),
        ("ID='*'\nVERSION_ID=13\n", "this host runs * 13 (* 13), supported are"),
        (None, "this host has no /etc/os-release, supported are debian 13, ubuntu 24.04"),
    ],
)
def test_nothing_is_changed_on_another(
    told: Any, tmp_path: Path, os_release: str | None, sentence: str
) -> None:
    status, out = run(told, tmp_path, os_release)
    assert status == 3
    assert out.replace(str(tmp_path), "/etc").startswith(f"! {sentence}")
    assert len(out.splitlines()) == 1
    assert calls(tmp_path, "apt-get") == calls(tmp_path, "dpkg") == []


def test_only_root_can(told: Any, tmp_path: Path) -> None:
    status, out = run(told, tmp_path, UBUNTU, id="echo 1000")
    assert status == 3 and out.startswith("! only root may install python3")
    assert calls(tmp_path, "apt-get") == []


def test_what_was_cut_off_is_finished_first(told: Any, tmp_path: Path) -> None:
    (tmp_path / "updates").mkdir()
    (tmp_path / "updates" / "0001").touch()
    assert run(told, tmp_path, UBUNTU)[0] == 0
    assert calls(tmp_path, "dpkg") == ["--force-confdef --force-confold --configure -a"]


def test_a_failing_apt_is_told(told: Any, tmp_path: Path) -> None:
    status, out = run(told, tmp_path, UBUNTU, **{"apt-get": "echo 'E: no network'; exit 100"})
    assert (status, out) == (100, "E: no network")
    assert len(calls(tmp_path, "apt-get")) == 1


@pytest.mark.parametrize("number", range(len(WHY)), ids=[item[2][:40] for item in WHY])
def test_every_failure_is_one_sentence(told: Any, number: int) -> None:
    assert told["why"][number].startswith(WHY[number][2])
    assert len(told["why"][number].splitlines()) == 1


def test_only_what_the_agent_can_run_with_counts_as_installed(told: Any) -> None:
    assert told["good"] == ["", ["bootstrap:python3"]]
    said, changed = told["old"]
    assert "yet python3 is 3.8, 3.10 or newer is needed" in said and changed == []
    said, changed = told["failed"]
    assert "E: no network" in said and changed == []
