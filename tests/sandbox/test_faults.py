"""What goes wrong on real hosts: each fault ends in one sentence for that host and an exit code,
the other hosts are converged, and the next run finishes the job from where it stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.sandbox.conftest import BARE, HOSTS, ROOT_LOGIN, SUDO_LOGIN, Fleet
from tests.sandbox.support import (
    SYSCTL_CHANGE,
    UNIT,
    Under,
    big_model,
    broken,
    converges,
    edit,
    eventually,
    failure,
    forget_models,
    hub_fault,
    lab_data,
    replaced,
    requests,
    settled,
    with_models,
)

HOST = ROOT_LOGIN
ONLY = ("--limit", HOST)
MEGABYTES = 8
BIG = "big.gguf"


# --- hosts that cannot be worked on ------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            ("unplug", ("did not answer within 10 s", "power and a network")),
            ("pause", ("takes connections, but its ssh server said nothing", "hangs")),
        ),
        (
            ("lock-out", ("refuses the login of ops with the key", "authorized_keys")),
            ("hostkey", ("shows another ssh host key than", "ssh-keygen -f")),
        ),
        (
            ("sudo-password", ("sudo asked for a password and none was given",)),
            ("unsupported-os", ("runs Slackware 15.0", "supported are debian 13")),
        ),
    ],
    ids=lambda fault: fault[0],
)
def test_host_that_cannot_be_worked_on(
    converged: Fleet, first: tuple[str, tuple[str, ...]], second: tuple[str, tuple[str, ...]]
) -> None:
    edit(converged, *HOSTS)
    with broken(converged, SUDO_LOGIN, first[0]), broken(converged, BARE, second[0]):
        run = converged.deploy()
    for host, (_, words) in ((SUDO_LOGIN, first), (BARE, second)):
        sentence = failure(run, host)
        assert all(word in sentence for word in words), sentence
        assert run.changed(host) == set()
    assert SYSCTL_CHANGE in run.changed(ROOT_LOGIN)
    run = converges(converged)
    assert {name for name in HOSTS if run.changed(name)} == {SUDO_LOGIN, BARE}


def test_hung_tool_is_named_and_the_other_hosts_go_on(converged: Fleet) -> None:
    edit(converged, *HOSTS)
    hang = "#!/bin/sh\ntrap '' TERM INT HUP\nsleep 3007\nsleep 3007"
    with replaced(converged, SUDO_LOGIN, "/usr/bin/dpkg-query", hang):
        run = converged.deploy("--data", "probe_timeout_s=4")
        left = converged.lab.sh(SUDO_LOGIN, "pgrep -f '[s]leep 3007' || true")
    sentence = failure(run, SUDO_LOGIN)
    assert "could not learn the host's packages (dpkg-query timed out after" in sentence
    assert not left, "the hung tool was left behind"
    for host in (ROOT_LOGIN, BARE):
        assert SYSCTL_CHANGE in run.changed(host)
    run = converges(converged)
    assert SYSCTL_CHANGE in run.changed(SUDO_LOGIN)


def test_held_apt_lock_is_waited_for_and_left_alone(converged: Fleet) -> None:
    converged.lab.break_(HOST, "remove-package", "curl")
    with broken(converged, HOST, "hold-apt-lock"):
        run = converged.deploy(*ONLY, "--data", "apt_lock_wait_s=2")
        holder = converged.lab.sh(HOST, "systemctl is-active sandbox-apt-lock.service")
    sentence = failure(run, HOST)
    assert "(unattended-upgr) holds /var/lib/dpkg/lock" in sentence
    assert "still so after 2 s" in sentence
    assert holder == "active"
    assert converges(converged, *ONLY).changed(HOST) == {"package:curl"}


# --- downloads -----------------------------------------------------------------------------------


@pytest.fixture
def big(converged: Fleet) -> Iterator[tuple[str, str]]:
    """A model of some megabytes that is on the hub and not on the host."""
    entry = big_model(converged, "big", MEGABYTES)
    yield with_models({"big": entry})
    converged.lab.hub_clear()
    forget_models(converged, HOST, "big")


def came(fleet: Fleet) -> int:
    """Bytes of the big model that a host keeps of a download that broke off."""
    text = fleet.lab.sh(HOST, f"stat -c %b /srv/models/big/main.partial/{BIG} || echo 0")
    return int(text) * 512


def finishes(fleet: Fleet, big: tuple[str, str], kept: int, lost: int = 1 << 20) -> None:
    """The next run finishes the download and asks only for what was not there.

    `lost`: bytes that may be fetched again: aria2 keeps a file in pieces of 1 MiB, and after a
    power loss trusts only what it had noted a second before.
    """
    before = len(requests(fleet, BIG))
    assert kept > 0
    run = converges(fleet, *ONLY, *big)
    assert "model:big" in run.changed(HOST)
    asked = requests(fleet, BIG)[before:]
    # it may first ask for the whole file, to learn its size, and break that off
    assert asked[-1]["status"] == 206, asked
    assert asked[-1]["bytes"] <= (MEGABYTES << 20) - kept + lost + 4096, asked
    whole = fleet.lab.sh(HOST, f"sha256sum /srv/models/big/main/{BIG} | cut -d' ' -f1")
    assert whole in big[1]


def test_bad_downloads_are_told_apart_and_fetched_next_time(converged: Fleet) -> None:
    bad = {
        "wrong-bytes": "wrongbytes.gguf: has sha256",
        "wrong-size": "wrongsize.gguf: has",
        "html": "html.gguf: is a web page",
        "lfs-pointer": "lfspointer.gguf: is a Git LFS pointer",
        "404": "404.gguf: the server does not have it (404)",
        "503": "503.gguf: the server answers 503",
        "good": "",
    }
    names = {kind: kind.replace("-", "") for kind in bad}
    models = {
        name: big_model(converged, name, 1, seed=number)
        for number, name in enumerate(names.values())
    }
    option = with_models(models)
    try:
        for kind, name in names.items():
            if bad[kind]:
                converged.lab.hub_fault(kind, match=f"/{name}.gguf")
        run = converged.deploy(*ONLY, *option)
        sentence = failure(run, HOST)
        for kind, words in bad.items():
            assert words in sentence, (kind, sentence)
        assert "model good" not in sentence
        assert {change for change in run.changed(HOST) if "model:" in change} == {"model:good"}
        converged.lab.hub_clear()
        run = converges(converged, *ONLY, *option)
        assert run.changed(HOST) == {f"model:{name}" for name in models} - {"model:good"}
    finally:
        converged.lab.hub_clear()
        forget_models(converged, HOST, *models)


def test_cut_download_is_resumed(converged: Fleet, big: tuple[str, str]) -> None:
    converged.lab.hub_fault("cut-at", 3_000_000)
    converged.lab.hub_fault("slow", 1500)
    run = Under(converged, *ONLY, *big)
    run.until("fetches")
    converged.lab.hub_fault("503")  # from the second request on
    sentence = failure(run.end(), HOST)
    assert "model big: big.gguf: the server answers 503" in sentence
    kept = came(converged)
    converged.lab.hub_clear()
    finishes(converged, big, kept)


def test_disk_that_fills_up_during_a_download(converged: Fleet, big: tuple[str, str]) -> None:
    with hub_fault(converged, "slow", 2000):
        run = Under(converged, *ONLY, *big)
        run.until("fetches")
        with broken(converged, HOST, "fill-disk"):
            sentence = failure(run.end(), HOST)
            again = failure(converged.deploy(*ONLY, *big), HOST)
            kept = came(converged)
    assert "model big: big.gguf: the disk is full" in sentence
    assert "must stay free, /srv/models/big has" in again
    assert "make room" in again
    finishes(converged, big, kept)


@pytest.mark.parametrize("how", ["controller", "connections", "host"])
def test_run_that_is_cut_off_during_a_download(
    converged: Fleet, big: tuple[str, str], how: str
) -> None:
    with hub_fault(converged, "slow", 2000):
        run = Under(converged, *ONLY, *big)
        run.until("fetches [3-7]")
        if how == "controller":
            run.kill()
        elif how == "connections":
            converged.lab.break_(HOST, "kill-connections")
            assert "run again" in failure(run.end(), HOST)
        else:
            converged.lab.break_(HOST, "kill")
            converged.lab.command("start", HOST)
            assert "run again" in failure(run.end(), HOST)
        # what the host was doing ends by itself, and its lease with it
        eventually(lambda: not converged.lab.sh(HOST, "pgrep aria2c || true"))
    finishes(converged, big, came(converged), lost=(3 if how == "host" else 1) << 20)


# --- programs, links and restarts ----------------------------------------------------------------


def main_pid(fleet: Fleet) -> str:
    return fleet.lab.sh(HOST, f"systemctl show -p MainPID --value {UNIT}")


def test_restart_that_was_still_due_happens_in_the_next_run(converged: Fleet) -> None:
    instances = lab_data()["instances"]
    instances["tiny"]["ctx_size"] = 2048
    option = ("--data", f"instances={json.dumps(instances)}")
    block = (
        "#!/bin/sh\ncase \" $* \" in *' restart '*) touch /run/blocked; exec sleep 300;; esac\n"
        'exec /usr/bin/systemctl.real "$@"'
    )
    before = main_pid(converged)
    try:
        with replaced(converged, HOST, "/usr/bin/systemctl", block):
            under = Under(converged, *ONLY, *option)
            eventually(lambda: bool(converged.lab.sh(HOST, "ls /run/blocked", check=False)))
            # the files are written, the server is not restarted: now the agent dies
            converged.lab.sh(HOST, "rm /run/blocked; pkill -KILL -x python3; pkill -x sleep")
            assert "the agent's apply was killed" in failure(under.end(), HOST)
        assert main_pid(converged) == before
        run = converges(converged, *ONLY, *option)
        assert run.changed(HOST) == {f"unit:{UNIT}:restart"}
        assert main_pid(converged) != before
    finally:
        converges(converged, *ONLY)


def test_program_replaced_while_it_runs_is_found_and_put_right(converged: Fleet) -> None:
    current = converged.lab.sh(HOST, "readlink -f /opt/llama.cpp/current")
    program, before = f"{current}/bin/llama-server", main_pid(converged)
    converged.lab.sh(HOST, f"cp /bin/true {program}.new && mv {program}.new {program}")
    run = converges(converged, *ONLY)
    fingerprint = current.rpartition("/")[2]
    assert run.changed(HOST) == {f"release:llama_cpp:{fingerprint}", f"unit:{UNIT}:restart"}
    assert main_pid(converged) != before
    running = converged.lab.sh(HOST, f"readlink /proc/{main_pid(converged)}/exe")
    assert running == program
    settled(converged, *ONLY)


def test_moved_release_link_is_put_back(converged: Fleet) -> None:
    converged.lab.break_(HOST, "move-link", "/opt/llama.cpp/current")
    assert converges(converged, *ONLY).changed(HOST) == {"link:/opt/llama.cpp/current"}


def test_changed_byte_with_size_and_times_kept_is_found(converged: Fleet) -> None:
    """The quick look sees that something wrote to the file, and then reads it."""
    converged.lab.break_(HOST, "flip-byte", "/srv/models/tiny/current/tiny.gguf")
    assert converges(converged, *ONLY).changed(HOST) == {"model:tiny", "serve:tiny:refresh"}
    settled(converged, *ONLY)
