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


# What is broken by hand -> all ids that the next run reports; the one rollout check that fails.
DAMAGE = {
    "file edited": (
        ["edit-file", SYSCTL_FILE],
        {f"file:{SYSCTL_FILE}"},
        f"test_file[HOST:{SYSCTL_FILE}]",
    ),
    "mode changed": (
        ["chmod-file", SYSCTL_FILE, "0666"],
        {f"file:{SYSCTL_FILE}"},
        f"test_file[HOST:{SYSCTL_FILE}]",
    ),
    "package removed": (
        ["remove-package", "curl"],
        {"package:curl"},
        "test_package[HOST:curl]",
    ),
    "unit stopped": (
        ["stop", UNIT],
        {f"unit:{UNIT}:start"},
        f"test_unit[HOST:{UNIT}]",
    ),
    "unit disabled": (
        ["disable", UNIT],
        {f"unit:{UNIT}:enable"},
        f"test_unit[HOST:{UNIT}]",
    ),
    "unit masked": (
        ["mask", UNIT],
        {f"unit:{UNIT}:unmask", f"unit:{UNIT}:start"},
        f"test_unit[HOST:{UNIT}]",
    ),
    "model grown": (
        ["edit-file", MODEL],
        {"model:tiny", "serve:tiny:refresh"},
        "test_model[HOST:tiny]",
    ),
    "link moved": (
        ["move-link", MODEL_LINK],
        {f"link:{MODEL_LINK}"},
        f"test_link[HOST:{MODEL_LINK}]",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_repaired_and_reported_alone(converged: Fleet, damage: str) -> None:
    what, ids, check = DAMAGE[damage]
    host = SUDO_LOGIN
    converged.lab.break_(host, *what)
    failed = converged.rollout_failures("--limit", host)
    run = converged.deploy()
    assert run.code == 0, run.err[-3000:]
    assert failed == {check.replace("HOST", host)}
    assert {name: run.changed(name) for name in HOSTS} == {
        name: ids if name == host else set() for name in HOSTS
    }


def test_a_truncated_model_is_fetched_again(converged: Fleet) -> None:
    """A server that maps the file dies of it, or not yet: then it is restarted for the repair."""
    converged.lab.break_(SUDO_LOGIN, "truncate", MODEL)
    assert f"test_model[{SUDO_LOGIN}:tiny]" in converged.rollout_failures("--limit", SUDO_LOGIN)
    run = converged.deploy()
    assert run.code == 0, run.err[-3000:]
    changed = run.changed(SUDO_LOGIN)
    assert "model:tiny" in changed
    assert changed - {"model:tiny"} in ({"serve:tiny:refresh"}, {f"unit:{UNIT}:start"})
    assert set(converged.deploy().states.values()) == {"no change"}


def test_a_changed_byte_is_found_by_the_full_check(converged: Fleet) -> None:
    """Size and times kept, and the manifest made to believe it: as a failing disk does it."""
    host, lab = ROOT_LOGIN, converged.lab
    lab.break_(host, "flip-byte", MODEL)
    lab.sh(
        host,
        "python3 - <<'END'\n"
        "import json, os\n"
        "path = '/var/lib/voltfleet/models/tiny.json'\n"
        "record = json.load(open(path))\n"
        f"record['files']['tiny.gguf']['ctime_ns'] = os.stat('{MODEL}').st_ctime_ns\n"
        "json.dump(record, open(path, 'w'))\n"
        "END",
    )
    assert set(converged.deploy().states.values()) == {"no change"}
    assert converged.rollout_failures("--limit", host, "--full") == {f"test_model[{host}:tiny]"}
    run = converged.deploy("--data", "models_full_check=true")
    assert run.code == 0, run.err[-3000:]
    assert run.changed(host) == {"model:tiny:check", "serve:tiny:refresh"}
    assert not converged.rollout_failures("--limit", host, "--full")


# What a server does wrong although its managed files are right, by a drop-in of nobody's.
SERVER = "/opt/llama.cpp/current/bin/llama-server"
STUB = """
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def answer(self):
        self.send_response(500 if self.headers.get("Authorization") else 401)
        self.end_headers()
    do_GET = do_POST = answer

HTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
"""
MISBEHAVIOUR = {
    "port": (f"{SERVER} $VOLTFLEET_ARGS --port 8099", "test_port[HOST:tiny]"),
    "key": (
        f"{SERVER} --model {MODEL} --host 0.0.0.0 --port 8080 --ctx-size 512",
        "test_key_required[HOST:tiny]",
    ),
    "completion": ("/usr/bin/python3 /run/stub.py", "test_completion[HOST:tiny]"),
}


@pytest.mark.parametrize("what", MISBEHAVIOUR)
def test_rollout_sees_what_a_server_does_wrong(converged: Fleet, what: str) -> None:
    command, check = MISBEHAVIOUR[what]
    host, lab = SUDO_LOGIN, converged.lab
    folder = f"/run/systemd/system/{UNIT}.d"
    lab.sh(
        host,
        f"cat > /run/stub.py <<'END'\n{STUB}\nEND\n"
        f"mkdir -p {folder} && printf '[Service]\\nExecStart=\\nExecStart=%s\\n' '{command}' "
        f"> {folder}/zz.conf && systemctl daemon-reload && systemctl restart {UNIT} && sleep 2",
    )
    try:
        assert converged.rollout_failures("--limit", host) == {check.replace("HOST", host)}
    finally:
        lab.sh(host, f"rm -r {folder} && systemctl daemon-reload && systemctl restart {UNIT}")


# Damage that no run leads to in the tests above, so that every rollout check is seen failing.
OTHER_DAMAGE = {
    "user": ("usermod --shell /bin/sh voltfleet", "test_user[HOST:voltfleet]"),
    "directory": ("chmod 0777 /opt/voltfleet", "test_directory[HOST:/opt/voltfleet]"),
    "sysctl": (
        "echo 100 > /proc/sys/net/core/somaxconn",
        "test_sysctl[HOST:net.core.somaxconn]",
    ),
}


@pytest.mark.parametrize("what", OTHER_DAMAGE)
def test_rollout_sees_other_damage_and_a_run_repairs_it(converged: Fleet, what: str) -> None:
    script, check = OTHER_DAMAGE[what]
    host = BARE
    converged.lab.sh(host, script)
    assert converged.rollout_failures("--limit", host) == {check.replace("HOST", host)}
    run = converged.deploy("--limit", host)
    assert run.code == 0 and len(run.changed(host)) == 1, (run.hosts, run.err[-2000:])
    assert not converged.rollout_failures("--limit", host)
