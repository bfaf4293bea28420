"""Packages with stand-ins for apt-get and dpkg that print what the real ones print."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from files.agent import act_packages, apt, apt_errors
from files.agent.actions import perform
from files.agent.handler import Context
from tests.unit.act_support import Events, act, calls, program

# every name after -- becomes installed, NAME=VERSION at that version
INSTALL = """
shift_to() { while [ "$1" != "--" ]; do shift; done; shift
  for spec in "$@"; do
    name=${spec%%=*}; version=1.0-1
    [ "$spec" = "$name" ] || version=${spec#*=}
    printf '%s\\tamd64\\tinstalled\\t%s\\n' "$name" "$version" >> "$HERE/installed"
  done; }
shift_to "$@"
"""
UPDATE = 'case "$*" in *update) exit 0;; esac\n'
LOCKED = (
    "E: Could not get lock /var/lib/dpkg/lock-frontend. "
    "It is held by process 1432 (unattended-upgr)\n"
    "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), "
    "is another process using it?"
)
INTERRUPTED = (
    "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem. "
)
HELD = """The following packages have unmet dependencies:
 cuda-drivers : Depends: nvidia-driver-440 (>= 440.33.01) but it is not going to be installed
E: Unable to correct problems, you have held broken packages."""
SIGNED_BY = (
    "E: Conflicting values set for option Signed-By regarding source "
    "https://repo.example/cuda/debian12/x86_64/ /: "
    "/usr/share/keyrings/cuda-archive-keyring.gpg != "
    "/usr/share/keyrings/cuda-0a1b2c3d-keyring.gpg\n"
    "E: The list of sources could not be read."
)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is first on the PATH; its file ``installed`` is dpkg's database."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("HERE", str(tmp_path))
    monkeypatch.setattr(apt, "LISTS", tmp_path)  # as fresh as the folder: no update
    monkeypatch.setattr(apt, "LOCK_SLICE_S", 0)
    monkeypatch.setattr(apt_errors, "SOURCES", tmp_path / "etc")
    (tmp_path / "installed").touch()
    program(tmp_path, "dpkg-query", 'cat "$HERE/installed"')
    program(tmp_path, "apt-mark", "true")
    program(tmp_path, "apt-get", UPDATE + INSTALL)
    program(tmp_path, "dpkg", "true")
    return tmp_path


def fails(host: Path, output: str, when: str = "true") -> None:
    """apt-get prints `output` and exits with 100 when the shell test holds, else it installs."""
    (host / "output").write_text(output + "\n")
    body = f'if {when}; then cat "$HERE/output"; exit 100; fi\n'
    program(host, "apt-get", UPDATE + body + INSTALL)


def package(name: str, version: str | None = None, lock_wait_s: int = 0) -> dict[str, Any]:
    return {
        "id": f"package:{name}",
        "do": "package.install",
        "name": name,
        "version": version,
        "lock_wait_s": lock_wait_s,
    }


def installs(host: Path) -> list[str]:
    return [line.partition(" -- ")[2] for line in calls(host, "apt-get") if " -- " in line]


def test_all_that_is_missing_comes_in_one_call_and_each_is_told(host: Path) -> None:
    (host / "installed").write_text("jq\tamd64\tinstalled\t1.7\n")
    events = act(package("curl"), package("jq"), package("git", "1:2.47-1"))
    assert {i: e["changed"] for i, e in events.of("done").items()} == {
        "package:curl": True,
        "package:jq": False,
        "package:git": True,
    }
    assert installs(host) == ["curl git=1:2.47-1"]
    (line,) = calls(host, "apt-get")
    for option in (
        "--yes",
        "--no-install-recommends",
        "--no-remove",
        "DPkg::Lock::Timeout=0",
        "Dpkg::Options::=--force-confold",
        "--allow-downgrades",
    ):
        assert option in line
    assert "allow-change-held" not in line
    assert "allow-unauthenticated" not in line
    again = act(package("curl"), package("git", "1:2.47-1"))
    assert [e["changed"] for e in again.of("done").values()] == [False, False]
    assert len(calls(host, "apt-get")) == 1


def test_a_removed_package_with_its_configuration_left_is_installed(host: Path) -> None:
    (host / "installed").write_text("curl\tamd64\tconfig-files\t8\n")
    assert act(package("curl")).of("done")["package:curl"]["changed"] is True


def test_progress_is_apt_s_own(host: Path) -> None:
    status = """
for word in "$@"; do case $word in APT::Status-Fd=*) fd=${word#*=};; esac; done
printf 'dlstatus:1:25.5:Retrieving file 1 of 2\\n' > /dev/fd/$fd
printf 'pmstatus:git:60.0:Unpacking git (amd64)\\n' > /dev/fd/$fd
"""
    program(host, "apt-get", status + INSTALL)
    events = act(package("curl"), package("git"))
    told = [e for e in events.lines if e["event"] == "progress"]
    assert [(e["id"], e["message"], e["percent"]) for e in told] == [
        ("package:curl", "Retrieving file 1 of 2", 26),
        ("package:git", "Unpacking git (amd64)", 60),
    ]


def test_a_service_that_keeps_the_status_pipe_open_is_not_waited_for(host: Path) -> None:
    program(host, "apt-get", INSTALL + "\n(sleep 30 >/dev/null 2>&1) & echo $! > $HERE/daemon\n")
    act(package("curl"))
    daemon = int((host / "daemon").read_text())
    os.kill(daemon, signal.SIGTERM)  # raises if it had ended, that is, had been waited for


def test_a_held_lock_is_waited_for_and_told(host: Path) -> None:
    fails(host, LOCKED, when='[ "$(wc -l < "$HERE/apt-get.calls")" -lt 2 ]')
    events = act(package("curl", lock_wait_s=60))
    assert events.of("done")["package:curl"]["changed"] is True
    assert events.of("progress")["package:curl"]["message"] == (
        "waits: process 1432 (unattended-upgr) holds /var/lib/dpkg/lock-frontend"
    )


def test_a_lock_that_stays_held_fails_within_the_wait_and_stays(host: Path) -> None:
    fails(host, LOCKED)
    events = act(package("curl"), package("git"))
    assert events.failure("package:git") == (
        "package git: process 1432 (unattended-upgr) holds /var/lib/dpkg/lock-frontend, still so "
        "after 0 s: wait for it to end and run again"
    )
    assert events.failure("package:curl").startswith("package curl: process 1432")


def test_an_interrupted_dpkg_is_finished_once_and_told(host: Path) -> None:
    fails(host, INTERRUPTED, when='[ ! -e "$HERE/dpkg.calls" ]')
    events = act(package("curl"))
    done = events.of("done")["package:curl"]
    assert done["message"] == "an interrupted dpkg was finished first"
    assert calls(host, "dpkg") == ["--force-confold --configure -a"]


def test_a_dpkg_that_stays_interrupted_is_not_repaired_for_ever(host: Path) -> None:
    fails(host, INTERRUPTED)
    assert "dpkg was interrupted" in act(package("curl")).failure("package:curl")
    assert len(calls(host, "dpkg")) == 1


def test_a_hold_in_the_way_is_named_and_left_and_keeps_only_its_own_away(host: Path) -> None:
    fails(host, HELD, when='expr "$*" : ".*cuda-drivers" >/dev/null')
    program(host, "apt-mark", "echo nvidia-driver-440")
    events = act(package("cuda-drivers"), package("curl"))
    message = events.failure("package:cuda-drivers")
    assert "cuda-drivers depends on nvidia-driver-440 (>= 440.33.01)" in message
    assert "the hold on nvidia-driver-440" in message
    assert "\n" not in message
    assert calls(host, "apt-mark") == ["showhold"] * 2
    assert events.of("done")["package:curl"]["changed"] is True
    assert installs(host) == ["cuda-drivers curl", "cuda-drivers", "curl"]


def test_two_entries_for_one_repository_are_named(host: Path) -> None:
    entries = host / "etc" / "sources.list.d"
    entries.mkdir(parents=True)
    for name in ("cuda.list", "nvidia.list"):
        (entries / name).write_text("deb https://repo.example/cuda/debian12/x86_64/ /\n")
    (entries / "debian.list").write_text("deb https://deb.example/debian trixie main\n")
    fails(host, SIGNED_BY)
    message = act(package("curl")).failure("package:curl")
    assert "/usr/share/keyrings/cuda-archive-keyring.gpg" in message
    assert "/usr/share/keyrings/cuda-0a1b2c3d-keyring.gpg" in message
    assert f"{entries}/cuda.list, {entries}/nvidia.list" in message
    assert "debian.list" not in message


def test_a_misspelt_package_is_named_after_the_lists_were_renewed_and_the_rest_comes(
    host: Path,
) -> None:
    fails(host, "E: Unable to locate package crul", when='expr "$*" : ".*crul" >/dev/null')
    events = act(package("crul"), package("git"))
    assert events.failure("package:crul").startswith(
        "package crul: crul is in no source of this host"
    )
    assert events.of("done")["package:git"]["changed"] is True
    assert sum(line.endswith("update") for line in calls(host, "apt-get")) == 1


def test_old_lists_are_renewed_first(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt, "LISTS", host / "none")
    act(package("curl"))
    first, second = calls(host, "apt-get")
    assert first.endswith("update")
    assert second.endswith("-- curl")


def test_lists_that_promise_a_gone_file_are_renewed_once(host: Path) -> None:
    stale = (
        "Err:1 https://deb.example/debian trixie/main amd64 curl amd64 8.1-1\n"
        "  404  Not Found [IP: 192.0.2.1 80]\n"
        "E: Failed to fetch https://deb.example/debian/pool/c/curl.deb  404  Not Found"
    )
    fails(host, stale, when='! grep -q update "$HERE/apt-get.calls"')
    assert act(package("curl")).of("done")["package:curl"]["changed"] is True
    fails(host, stale)
    message = act(package("git")).failure("package:git")
    assert message.startswith("package git: a repository does not have what its lists promise")


def test_success_without_the_package_is_a_failure(host: Path) -> None:
    program(host, "apt-get", "true")
    assert "a virtual one?" in act(package("awk")).failure("package:awk")


def test_a_name_that_apt_would_read_as_a_removal_is_refused(host: Path) -> None:
    assert "no name of a package" in act(package("curl-")).failure("package:curl-")
    assert calls(host, "apt-get") == []


def test_without_apt_there_is_a_sentence(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (host / "apt-get").unlink()
    monkeypatch.setattr("files.agent.apt.environment", lambda **extra: {"PATH": str(host)})
    message = act(package("curl")).failure("package:curl")
    assert message == "package curl: apt-get can't be run here: No such file or directory"


def test_repair(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [True, False]
    monkeypatch.setattr(
        act_packages, "packages_state", lambda: {"interrupted": answers.pop(0), "manager": "apt"}
    )
    repair = {"do": "package.repair", "lock_wait_s": 0}
    assert act(repair).of("done")["0"]["changed"] is True
    answers[:] = [False]
    assert act(repair).of("done")["0"]["changed"] is False
    answers[:] = [True, True]
    assert "still half done" in act(repair).failure("0")
    assert calls(host, "dpkg") == ["--force-confold --configure -a"] * 2


@pytest.mark.parametrize(
    ("output", "kind", "says"),
    [
        (LOCKED, "lock", "process 1432 (unattended-upgr) holds /var/lib/dpkg/lock-frontend"),
        (
            "E: Could not get lock /var/lib/apt/lists/lock - open (11: Resource temporarily "
            "unavailable)",
            "lock",
            "another process holds /var/lib/apt/lists/lock",
        ),
        (
            "dpkg: error: dpkg frontend lock was locked by another process with pid 77\n"
            "Note: removing the lock file is always wrong",
            "lock",
            "process 77 holds the lock of dpkg",
        ),
        (INTERRUPTED, "interrupted", "an earlier dpkg was interrupted"),
        (HELD, "dependencies", "cuda-drivers depends on nvidia-driver-440 (>= 440.33.01)"),
        (
            "Unsatisfied dependencies:\n a : Depends: b (>= 2) but 1 is to be installed\n"
            "Error: Unable to satisfy dependencies. Reached two conflicting assignments:\n"
            "   1. a:amd64 is selected for install\n   2. b:amd64 is not selected for install",
            "dependencies",
            "a depends on b (>= 2)",
        ),
        (SIGNED_BY, "sources", "name different keyrings"),
        (
            "E: Malformed entry 1 in list file /etc/apt/sources.list.d/x.list (Component)\n"
            "E: The list of sources could not be read.",
            "sources",
            "Malformed entry 1 in list file /etc/apt/sources.list.d/x.list",
        ),
        (
            "W: GPG error: https://r.example ./ InRelease: The following signatures couldn't be "
            "verified because the public key is not available: NO_PUBKEY A4B469963BF863CC\n"
            "E: The repository 'https://r.example ./ InRelease' is not signed.",
            "sources",
            "key A4B469963BF863CC is missing",
        ),
        (
            "E: You don't have enough free space in /var/cache/apt/archives/.",
            "space",
            "not enough free space in /var/cache/apt/archives/",
        ),
        (
            "dpkg: error processing archive /x/a_1_amd64.deb (--unpack):\n cannot copy extracted "
            "data: failed to write (No space left on device)",
            "space",
            "the disk became full",
        ),
        (
            "The following packages will be REMOVED:\n  nvidia-driver-580\n"
            "E: Packages need to be removed but remove is disabled.",
            "removal",
            "apt would remove nvidia-driver-580",
        ),
        ("E: Package 'awk' has no installation candidate", "unknown", "awk is in no source"),
        ("E: Version '9' for 'jq' was not found", "unknown", "no source has version 9 of jq"),
        (
            "E: Failed to fetch https://r.example/a.deb  Hash Sum mismatch",
            "stale",
            "(https://r.example/a.deb): wrong hash",
        ),
        (
            "Err:1 https://r.example trixie InRelease\n  Temporary failure resolving 'r.example'",
            "network",
            "Temporary failure resolving 'r.example'",
        ),
        (
            "dpkg: error processing package nvidia-dkms-580 (--configure):\n installed "
            "nvidia-dkms-580 package post-installation script subprocess returned error exit "
            "status 10",
            "script",
            "dpkg failed on nvidia-dkms-580: installed nvidia-dkms-580 package post-installation",
        ),
        ("E: Something new", "other", "Something new"),
        ("", "other", "no message"),
    ],
)
def test_errors_in_one_sentence(host: Path, output: str, kind: str, says: str) -> None:
    problem = apt_errors.classify(output)
    assert problem.kind == kind
    assert says in problem.sentence
    assert "\n" not in problem.sentence


def test_a_lost_connection_ends_the_retries(host: Path) -> None:
    fails(host, "E: Unable to locate package curl")
    context = Context("test", Events(until=3))  # two starts, and the renewal of the lists
    actions = [{**package(name), "needs": []} for name in ("curl", "git")]
    assert perform(context, actions, lambda doing: None) is False
    assert len(installs(host)) == 2
