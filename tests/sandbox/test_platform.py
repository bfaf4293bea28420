"""CUDA and the driver on real (simulated) hosts: installed, held, moved, rebooted, refused.

One lab of three hosts with four V100 each goes through its life in the order of this file. What a
run claims is read back from inside the host with the vendor's own programs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from sandbox import machine, settings
from sandbox.client import Lab
from tests.sandbox.conftest import Fleet, Run
from tests.sandbox.support import Under, eventually

NAME = "vfg"
SUBNET = "198.18.80.0/24"
SHARED = ("base", "apt", "vendor")
FIRST, SECOND, THIRD = HOSTS = ("smc-01", "smc-02", "smc-03")
HOOK = "/etc/apt/apt.conf.d/99broken"
REMOVED_AT_CLEAN_UP = {
    "cuda-conflict:packages:11.8",
    "cuda-conflict:/usr/local/cuda-11.2",
    "cuda-conflict:/etc/profile.d/old-cuda.sh",
}

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="the sandbox needs root")]


def data(**values: object) -> list[str]:
    """Options that set variables for one run; no server here, this file is about the platform."""
    base = {"instances": {}, "models": {}, "llama_cpp_source": None, "driver_branch": 550}
    words = []
    for name, value in {**base, **values}.items():
        words += ["--data", f"{name}={json.dumps(value)}"]
    return words


@pytest.fixture(scope="module")
def gpus() -> Iterator[Fleet]:
    """Three hosts up; the first has what the field leaves behind: toolkits, a line, user data."""
    usual = settings.load()
    cache = usual.cache / "platform-tests"
    cache.mkdir(parents=True, exist_ok=True)
    for name in SHARED:
        (usual.cache / name).mkdir(exist_ok=True)
        if not (cache / name).is_symlink():
            (cache / name).symlink_to(usual.cache / name)
    lab = Lab(
        {
            "VOLTFLEET_CACHE": str(cache),
            "VOLTFLEET_SANDBOX_NAME": NAME,
            "VOLTFLEET_SANDBOX_SUBNET": SUBNET,
        }
    )
    lab.command("down")
    lab.command("up", "--hosts", "3", "--profile", "supermicro", "--gpus")
    others = "/run/vendor/other-toolkits"
    lab.sh(FIRST, f"dpkg -i {others}/cuda-*11-8*.deb")
    lab.sh(FIRST, "mkdir -p /usr/local/cuda-11.2/bin /usr/local/cuda-data")
    lab.sh(FIRST, "touch /usr/local/cuda-11.2/bin/nvcc /usr/local/cuda-data/results.csv")
    line = "export PATH=/usr/local/cuda-11.2/bin:$PATH"
    lab.sh(FIRST, f"echo '{line}' > /etc/profile.d/old-cuda.sh")
    yield Fleet(lab)
    if not os.environ.get("VOLTFLEET_KEEP_LAB"):
        lab.command("down")


def well(run: Run) -> Run:
    assert "Traceback" not in run.out + run.err, run.err[-4000:]
    assert run.code == 0, run.err[-4000:]
    return run


def stack(fleet: Fleet, host: str) -> dict[str, str]:
    """Installed packages of the driver that carry a version of its own."""
    form = r"${db:Status-Status} ${Package} ${Version}\n"
    lines = fleet.lab.sh(host, f"dpkg-query -W -f='{form}' '*nvidia*' 'cuda-drivers*'").splitlines()
    rows = [line.split() for line in lines]
    return {row[1]: row[2] for row in rows if row[0] == "installed" and len(row) == 3}


def assert_serves(fleet: Fleet, host: str, branch: int) -> None:
    """The driver of one piece, loaded, with its cards, and held as a whole."""
    listed = fleet.lab.sh(host, "nvidia-smi -L").splitlines()
    assert len([line for line in listed if "Tesla V100-PCIE-32GB" in line]) == 4, listed
    assert f"  {branch}." in fleet.lab.sh(host, "head -1 /proc/driver/nvidia/version")
    assert_held(fleet, host, branch)


def assert_held(fleet: Fleet, host: str, branch: int) -> None:
    installed = stack(fleet, host)
    assert installed
    # of nvidia-modprobe there is one for all branches
    parts = {v.partition(".")[0] for name, v in installed.items() if name != "nvidia-modprobe"}
    assert parts == {str(branch)}, installed
    held = set(fleet.lab.sh(host, "apt-mark showhold").split())
    assert set(installed) <= held


def boot_id(fleet: Fleet, host: str) -> str:
    return fleet.lab.sh(host, "cat /proc/sys/kernel/random/boot_id")


def test_fresh_hosts_reach_cuda_and_driver(gpus: Fleet) -> None:
    before = {host: boot_id(gpus, host) for host in HOSTS}
    run = well(gpus.deploy(*data(cuda_exclusive=False)))
    for host in HOSTS:
        nvcc = gpus.lab.sh(host, ". /etc/profile.d/cuda.sh && nvcc --version")
        assert "release 12.4, V12.4.131" in nvcc
        assert_serves(gpus, host, 550)
        assert "reboot" in run.changed(host)
        assert boot_id(gpus, host) != before[host]
    assert {state["word"] for state in run.hosts[FIRST]["states"]} == {"COEXISTS"}
    assert gpus.lab.sh(FIRST, "ls -d /usr/local/cuda-11.*").split() == [
        "/usr/local/cuda-11.2",
        "/usr/local/cuda-11.8",
    ]


def test_the_compiler_makes_code_for_v100(gpus: Fleet) -> None:
    script = """
        . /etc/profile.d/cuda.sh; cd /tmp
        echo '__global__ void k(float *x) { x[threadIdx.x] += 1; }' > k.cu
        nvcc -gencode arch=compute_70,code=sm_70 -c k.cu -o k.o && cuobjdump --list-elf k.o
    """
    assert ".sm_70.cubin" in gpus.lab.sh(FIRST, script)


def test_again_changes_nothing(gpus: Fleet) -> None:
    run = well(gpus.deploy(*data(cuda_exclusive=False)))
    assert set(run.states.values()) == {"no change"}, run.hosts


def test_what_is_in_the_way_goes_only_where_the_host_is_ours(gpus: Fleet) -> None:
    run = well(gpus.deploy(*data()))
    assert run.changed(FIRST) >= REMOVED_AT_CLEAN_UP
    assert run.states[SECOND] == run.states[THIRD] == "no change"
    assert gpus.lab.sh(FIRST, "ls -d /usr/local/cuda-11* || true") == ""
    assert gpus.lab.sh(FIRST, "cat /usr/local/cuda-data/results.csv && echo kept") == "kept"
    assert gpus.lab.sh(FIRST, "readlink -f /usr/local/cuda") == "/usr/local/cuda-12.4"
    run = well(gpus.deploy(*data()))
    assert set(run.states.values()) == {"no change"}, run.hosts


def test_c01_a_hold_that_misses_the_library(gpus: Fleet) -> None:
    gpus.lab.sh(SECOND, "apt-mark unhold libnvidia-compute-550")
    run = well(gpus.deploy(*data()))
    assert run.changed(SECOND) == {"driver:hold"}
    assert_serves(gpus, SECOND, 550)


def selections(fleet: Fleet, host: str) -> str:
    """All packages with their holds and versions, by dpkg: apt's tools may be out of order."""
    return fleet.lab.sh(host, r"dpkg-query -W -f='${Package} ${Status} ${Version}\n'")


def refused(fleet: Fleet, host: str, *words: str) -> str:
    """The sentence a host is refused with, having stayed as it was."""
    before = selections(fleet, host)
    run = fleet.deploy("--limit", host, *words)
    assert run.code == 1
    assert run.changed(host) == set()
    assert selections(fleet, host) == before
    (sentence,) = run.hosts[host]["failed"]
    return str(sentence)


def test_c03_two_entries_for_one_repository(gpus: Fleet) -> None:
    source = "/etc/apt/sources.list.d/second-cuda.list"
    line = "deb [signed-by=/usr/share/keyrings/x.gpg] file:///var/cuda-repo-debian13-12-4-local /"
    gpus.lab.sh(THIRD, f"echo '{line}' > {source}")
    try:
        sentence = refused(gpus, THIRD, *data())
    finally:
        gpus.lab.sh(THIRD, f"rm {source}")
    assert source in sentence
    assert "different keyrings" in sentence


def test_c04_a_package_that_only_leads_to_another_branch(gpus: Fleet) -> None:
    asked = {
        "driver_source": {"kind": "distribution"},
        "driver_packages": ["nvidia-driver-550-server"],
    }
    sentence = refused(gpus, THIRD, *data(**asked))
    assert "570" in sentence


def test_c05_a_driver_that_ignores_the_cards(gpus: Fleet) -> None:
    sentence = refused(gpus, THIRD, *data(driver_branch=595))
    assert sentence.startswith("DRIVER_TOO_NEW")
    assert "highest is 580" in sentence


def test_c07_secure_boot_without_an_enrolled_key(gpus: Fleet) -> None:
    firmware = machine.folder(gpus.lab.settings, THIRD) / "sim" / "machine"
    was = firmware.read_text()
    firmware.write_text("secureboot=enabled\n")
    try:
        sentence = refused(gpus, THIRD, *data(driver_branch=580))
    finally:
        firmware.write_text(was)
    assert "mokutil --import" in sentence


def test_a_reboot_that_is_not_allowed_is_said_and_waited_for(gpus: Fleet) -> None:
    before = boot_id(gpus, THIRD)
    words = ["--limit", THIRD, *data(driver_branch=580, reboot_allowed=False)]
    run = well(gpus.deploy(*words))
    assert run.states[THIRD] == "REBOOT_REQUIRED"
    (state,) = run.hosts[THIRD]["states"]
    assert "550.54.15 is loaded, 580.126.09 is on disk" in state["sentence"]
    assert state["sentence"] in run.err
    assert_held(gpus, THIRD, 580)
    run = well(gpus.deploy(*words))
    assert run.states[THIRD] == "REBOOT_REQUIRED"
    assert run.changed(THIRD) == set()
    assert boot_id(gpus, THIRD) == before
    run = well(gpus.deploy("--limit", THIRD, *data(driver_branch=580)))
    assert "reboot" in run.changed(THIRD)
    assert boot_id(gpus, THIRD) != before
    assert_serves(gpus, THIRD, 580)


def test_a_move_that_fails_on_the_first_stops_the_others(gpus: Fleet) -> None:
    well(gpus.deploy("--limit", THIRD, *data()))  # all on 550 again: a move down is one as well
    assert_serves(gpus, THIRD, 550)
    gpus.lab.sh(FIRST, f"echo 'DPkg::Pre-Invoke {{\"false\";}};' > {HOOK}")
    try:
        run = gpus.deploy(*data(driver_branch=580))
    finally:
        gpus.lab.sh(FIRST, f"rm {HOOK}")
    assert run.code == 1
    assert "Pre-Invoke" in run.hosts[FIRST]["failed"][0]
    for host in (SECOND, THIRD):
        assert f"it failed on {FIRST}" in run.hosts[host]["failed"][0]
    for host in HOSTS:
        assert_serves(gpus, host, 550)


def test_power_lost_in_the_middle_of_dpkg(gpus: Fleet) -> None:
    under = Under(gpus, "--limit", FIRST, *data(driver_branch=580))
    eventually(lambda: _dpkg_works(gpus) or under.process.poll() is not None)
    gpus.lab.break_(FIRST, "kill")
    assert under.end().code != 0
    gpus.lab.command("start", FIRST)
    assert gpus.lab.sh(FIRST, "dpkg --audit") != "", "nothing was half done: the test was late"
    run = well(gpus.deploy("--limit", FIRST, *data(driver_branch=580)))
    assert "dpkg --configure -a" in run.err or "package:repair" in str(run.changed(FIRST))
    assert gpus.lab.sh(FIRST, "dpkg --audit") == ""
    assert_serves(gpus, FIRST, 580)


def _dpkg_works(fleet: Fleet) -> bool:
    """Whether dpkg has begun to change packages, by its own log."""
    log = fleet.lab.sh(FIRST, "grep -c 'unpack.*-580' /var/log/dpkg.log || true")
    return int(log or 0) > 0


def test_the_others_move_one_after_another(gpus: Fleet) -> None:
    run = well(gpus.deploy(*data(driver_branch=580)))
    assert run.changed(FIRST) == set()
    for host in (SECOND, THIRD):
        assert {"driver", "reboot"} <= run.changed(host)
        assert_serves(gpus, host, 580)
    second_done = run.err.index(f"[{SECOND}] booted again")
    assert run.err.index(f"[{THIRD}]   move NVIDIA driver") > second_done


def test_an_offline_host_converges_from_the_controllers_folder(gpus: Fleet) -> None:
    gpus.lab.sh(
        SECOND,
        "echo 'Acquire::http::Proxy \"http://127.0.0.1:9\";' > /etc/apt/apt.conf.d/99offline;"
        "apt-get -qq purge -y 'cuda-*-12-4' 'cuda-toolkit-12-4*';"
        "dpkg --purge cuda-repo-debian13-12-4-local;"
        "rm -rf /var/cache/voltfleet /var/lib/voltfleet/repositories /var/lib/apt/lists/*",
    )
    run = well(gpus.deploy("--limit", SECOND, *data(driver_branch=580)))
    assert {"cuda", "cuda:proof"} <= run.changed(SECOND)
    assert "V12.4.131" in gpus.lab.sh(SECOND, ". /etc/profile.d/cuda.sh && nvcc --version")
    assert_serves(gpus, SECOND, 580)
    run = well(gpus.deploy("--limit", SECOND, *data(driver_branch=580)))
    assert run.states[SECOND] == "no change"
