"""The main job on real (simulated) hosts: look, do, do again, break one thing, repair it, prove.

State is read back by other means than the code that set it: from inside the host, without ssh,
and by the rollout checks.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.sandbox.conftest import BARE, HOSTS, ROOT_LOGIN, SUDO_LOGIN, Fleet

UNIT = "llama-server@tiny.service"
MODEL = "/srv/models/tiny/main/tiny.gguf"
MODEL_LINK = "/srv/models/tiny/current"
RELEASE_LINK = "/opt/llama.cpp/current"
SYSCTL_FILE = "/etc/sysctl.d/90-voltfleet.conf"

# Every file, link and folder of a host with what a change to it would show. /run and logs move on
# their own, and a login is written to utmp-like files.
LISTING = (
    "find / -xdev -path /run -prune -o -path /tmp -prune -o -path /var/log -prune "
    "-o -path /var/lib/systemd -prune -o -path /root/.cache -prune "
    r"-o -printf '%p %y %m %u %g %s %T@ %l\n' | sort"
)


def test_dry_run_shows_everything_and_changes_nothing(fleet: Fleet) -> None:
    before = {name: fleet.lab.sh(name, LISTING) for name in HOSTS}
    run = fleet.deploy("--dry", yes=False)
    assert run.code == 0, run.err[-3000:]
    for name in HOSTS:
        found = fleet.lab.sh(name, LISTING)
        assert found == before[name], f"a dry run changed {name}"
    assert set(run.states.values()) == {"planned"}
    planned = {name: [item["id"] for item in run.hosts[name]["planned"]] for name in HOSTS}
    assert planned[BARE][0] == "bootstrap:python3"
    # the bare host shows the same story as one about which everything is known
    known = [re.sub(r"release:llama_cpp:.*", "release", item) for item in planned[ROOT_LOGIN]]
    bare = [re.sub(r"release:llama_cpp:.*", "release", item) for item in planned[BARE]]
    assert set(known) <= set(bare)
    assert [item for item in bare if item in known] == known


def test_deploy_converges_every_host(converged: Fleet) -> None:
    for name in HOSTS:
        assert converged.lab.sh(name, f"systemctl is-active {UNIT}") == "active"
        assert converged.lab.sh(name, f"systemctl is-enabled {UNIT}") == "enabled"
        assert "current" in converged.lab.sh(name, f"readlink -f {MODEL_LINK} && echo current")


def test_second_run_changes_nothing(converged: Fleet) -> None:
    run = converged.deploy()
    assert run.code == 0, run.err[-3000:]
    assert set(run.states.values()) == {"no change"}, run.states
    run = converged.deploy("--json")
    results = json.loads(run.out)
    text = json.dumps(results)
    counts = [int(number) for number in re.findall(r'"(?:success|error)(?:_ops)?": (\d+)', text)]
    assert counts and not any(counts), text[:2000]


def test_second_run_is_one_connection_and_one_command(converged: Fleet) -> None:
    marks = {name: converged.lab.journal_mark(name) for name in HOSTS}
    run = converged.deploy()
    assert set(run.states.values()) == {"no change"}
    for name in HOSTS:
        traffic = converged.lab.traffic(name, marks[name])
        assert traffic.connections == 1, (name, traffic)
        assert len(traffic.sessions) == 1, (name, traffic)


def test_rollout_checks_pass(converged: Fleet) -> None:
    found = converged.rollout()
    failed = {name: message for name, message in found.items() if message != "passed"}
    assert not failed
    assert len(found) >= 10 * len(HOSTS)


# What is broken by hand -> ids that the next run reports, all of them; rollout checks that fail.
DAMAGE = {
    "file edited": (
        ["edit-file", SYSCTL_FILE],
        {f"file:{SYSCTL_FILE}"},
        {f"test_file[HOST:{SYSCTL_FILE}]"},
    ),
    "mode changed": (
        ["chmod-file", SYSCTL_FILE, "0666"],
        {f"file:{SYSCTL_FILE}"},
        {f"test_file[HOST:{SYSCTL_FILE}]"},
    ),
    "unit stopped": (
        ["stop", UNIT],
        {f"unit:{UNIT}:start", "serve:tiny:gate"},
        {
            f"test_unit[HOST:{UNIT}]",
            "test_port[HOST:tiny]",
            "test_completion[HOST:tiny]",
        },
    ),
    "unit disabled": (
        ["disable", UNIT],
        {f"unit:{UNIT}:enable"},
        {f"test_unit[HOST:{UNIT}]"},
    ),
    "package removed": (
        ["remove-package", "curl"],
        {"package:curl"},
        {"test_package[HOST:curl]", "test_completion[HOST:tiny]"},
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_repaired_and_reported_alone(converged: Fleet, damage: str) -> None:
    what, ids, checks = DAMAGE[damage]
    host = SUDO_LOGIN
    converged.lab.break_(host, *what)
    found = converged.rollout("--limit", host)
    failed = {name for name, message in found.items() if message != "passed"}
    run = converged.deploy()
    assert run.code == 0, run.err[-3000:]
    assert failed == {check.replace("HOST", host) for check in checks}
    assert run.changed(host) == ids
    assert {name: run.changed(name) for name in HOSTS if name != host} == {
        name: set() for name in HOSTS if name != host
    }
    again = converged.deploy()
    assert set(again.states.values()) == {"no change"}
