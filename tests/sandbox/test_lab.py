"""The sandbox itself, on a lab of its own beside any other that is up.

The base images are those of the usual cache (building them takes a minute); hosts, network name
and addresses are this module's.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import cgroups, settings
from sandbox.client import REPOSITORY, Lab
from sandbox.errors import SandboxError

NAME = "vft"
SUBNET = "198.18.78.0/24"
BLOB = bytes(range(256)) * 4096  # 1 MiB
BLOB_PATH = "acme/blob/resolve/v1/blob.bin"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="the sandbox needs root"),
]


@pytest.fixture(scope="session")
def empty_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab that is not up, with the machine's usual base images."""
    usual = settings.load()
    usual.base.mkdir(parents=True, exist_ok=True)
    cache = tmp_path_factory.mktemp("lab") / "cache"
    cache.mkdir()
    (cache / "base").symlink_to(usual.base)
    lab = Lab(
        {
            "VOLTFLEET_CACHE": str(cache),
            "VOLTFLEET_SANDBOX_NAME": NAME,
            "VOLTFLEET_SANDBOX_SUBNET": SUBNET,
            "VOLTFLEET_SANDBOX_DISK": "64M",
        }
    )
    yield lab
    lab.command("down")


@pytest.fixture(scope="session")
def before(empty_lab: Lab) -> dict[str, list[str]]:
    """What the machine looks like without the lab."""
    return footprint(empty_lab)


@pytest.fixture(scope="session")
def lab(empty_lab: Lab, before: dict[str, list[str]]) -> Lab:
    """Two hosts: r740-01 with python3 (login root), smc-01 bare (login ops)."""
    empty_lab.command("up", "--hosts", "2", "--bare", "1")
    return empty_lab


def footprint(lab: Lab) -> dict[str, list[str]]:
    """Everything a lab could leave behind on a machine, except in its cache folder."""

    def lines(*command: str) -> list[str]:
        return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()

    mark = str(lab.settings.cache)
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            group = (folder / "cgroup").read_text()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state == "Z":
            continue  # ended; only its parent, this machine's init, has not looked yet
        if mark in words or lab.settings.cgroup in group:
            processes.append(words)
    return {
        "processes": processes,
        "mounts": [line for line in lines("mount") if mark in line or NAME in line],
        "links": [line.split()[0] for line in lines("ip", "-br", "link") if NAME in line],
        "namespaces": lines("ip", "netns", "list"),
        "loops": [line for line in lines("losetup", "-a") if mark in line],
        "cgroups": [str(p) for p in cgroups.mount_point().glob("voltfleet-" + NAME + "*")],
        "nspawn": [str(p) for p in Path("/run/systemd/nspawn").rglob(f"*{NAME}*")],
        "inotify": lines("cat", "/proc/sys/fs/inotify/max_user_instances"),
        "subnet": [line for line in lines("ip", "route") if SUBNET.split("/")[0] in line],
    }


def get(url: str, start: int | None = None) -> tuple[int, bytes]:
    """Status and content; content may be shorter than announced."""
    request = urllib.request.Request(url)
    if start is not None:
        request.add_header("Range", f"bytes={start}-")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as answer:
            content = b""
            while piece := answer.read1(65536):
                content += piece
            return answer.status, content
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.fixture
def blob(lab: Lab, tmp_path: Path) -> Iterator[str]:
    """URL of a file on the hub, all faults off before and after."""
    file = tmp_path / "blob.bin"
    file.write_bytes(BLOB)
    lab.hub_clear()
    lab.command("hub", "add", str(file), BLOB_PATH)
    yield f"{lab.hub_url}/{BLOB_PATH}"
    lab.hub_clear()


# --- hosts -------------------------------------------------------------------------------------


def test_hosts_run_systemd_without_failed_units(lab: Lab) -> None:
    for name in lab.status()["hosts"]:
        assert lab.sh(name["name"], "cat /proc/1/comm") == "systemd"
        assert lab.sh(name["name"], "systemctl is-system-running") == "running"
        assert lab.sh(name["name"], "systemctl --failed --no-legend --plain") == ""


def test_ssh_reaches_root_and_a_user_with_sudo(lab: Lab) -> None:
    assert lab.ssh("r740-01", "id -un").stdout.strip() == "root"
    assert lab.ssh("smc-01", "id -un && sudo -n id -un").stdout.split() == ["ops", "root"]


def test_a_key_that_is_not_the_sandboxs_is_refused(lab: Lab, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    command = lab.ssh_command("r740-01", "true")
    command[command.index("-i") + 1] = str(other)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 255
    assert "Permission denied" in done.stderr


def test_bare_host_has_no_python_and_the_other_a_whole_one(lab: Lab) -> None:
    assert lab.run("smc-01", "sh", "-c", "command -v python3", check=False).returncode != 0
    assert lab.sh("r740-01", "python3 -c 'import json, ctypes; print(1)'") == "1"


def test_unit_features_work(lab: Lab) -> None:
    properties = [
        "User=ops",
        "ProtectSystem=strict",
        "NoNewPrivileges=yes",
        "PrivateTmp=yes",
        "ProtectHome=yes",
        "MemoryMax=64M",
        "SetCredential=word:secret",
    ]
    options = [word for item in properties for word in ("-p", item)]
    script = 'id -un; cat "$CREDENTIALS_DIRECTORY/word"; touch /usr/x 2>/dev/null || echo read-only'
    command = ["systemd-run", "--wait", "--pipe", "--quiet", *options, "sh", "-c", script]
    assert lab.run("r740-01", *command).stdout.split() == ["ops", "secretread-only"]


def test_chassis_shows_in_dmi(lab: Lab) -> None:
    vendor = {
        name: lab.sh(name, "cat /sys/class/dmi/id/sys_vendor") for name in ("r740-01", "smc-01")
    }
    assert vendor == {"r740-01": "Dell Inc.", "smc-01": "Supermicro"}
    assert "host0" in lab.sh("r740-01", "ls /sys/class/net")


def test_kernel_settings_are_the_hosts_own(lab: Lab) -> None:
    machine = Path("/proc/sys/vm/swappiness").read_text()
    lab.sh("r740-01", "sysctl -q -w vm.swappiness=7 net.core.somaxconn=1234")
    assert lab.sh("r740-01", "sysctl -n vm.swappiness net.core.somaxconn").split() == ["7", "1234"]
    assert lab.sh("smc-01", "sysctl -n vm.swappiness") == "60"
    assert Path("/proc/sys/vm/swappiness").read_text() == machine


def test_reboot_from_inside_gives_a_new_boot_id(lab: Lab) -> None:
    old = lab.sh("r740-01", "cat /proc/sys/kernel/random/boot_id")
    lab.ssh("r740-01", "systemctl reboot")
    deadline = time.monotonic() + 60
    new = ""
    while new in ("", old) and time.monotonic() < deadline:
        time.sleep(0.3)
        new = lab.ssh("r740-01", "cat /proc/sys/kernel/random/boot_id").stdout.strip()
    assert new not in ("", old)


# --- network -----------------------------------------------------------------------------------


def test_no_way_out(lab: Lab) -> None:
    # an address of this machine that is not on the bridge stands for "outside": nothing else may
    # be asked from here
    outside = own_address()
    script = f"ip route get {outside}"
    assert lab.run("r740-01", "sh", "-c", script, check=False).returncode != 0
    # nor with a route that somebody adds: the bridge does not forward
    forwarding = Path(f"/proc/sys/net/ipv4/conf/{lab.settings.bridge}/forwarding").read_text()
    assert forwarding.strip() == "0"
    # nor through the proxy, which serves Debian's mirrors alone
    ask = f"""
import urllib.request as u
opener = u.build_opener(u.ProxyHandler({{"http": "http://{lab.settings.gateway}:3142"}}))
try:
    print(opener.open("http://{outside}:9/x/dists/InRelease", timeout=10).status)
except Exception as error:
    print(getattr(error, "code", error))
"""
    assert lab.run("r740-01", "python3", "-c", ask).stdout.strip() == "403"


def own_address() -> str:
    """An address of this machine's outer interface (no packet is sent to learn it)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


def test_apt_works_through_the_cache(lab: Lab) -> None:
    lab.run("smc-01", "apt-get", "-qq", "update", timeout=300)
    lab.run("smc-01", "apt-get", "-qq", "install", "-y", "hello", timeout=300)
    assert "Hello" in lab.sh("smc-01", "hello")
    assert list(lab.settings.apt.rglob("hello_*.deb")), "the proxy kept no copy"


# --- hub ---------------------------------------------------------------------------------------


def test_hub_serves_files_ranges_and_digests(lab: Lab, blob: str) -> None:
    assert get(blob) == (200, BLOB)
    assert get(blob, start=1_000_000) == (206, BLOB[1_000_000:])
    assert get(blob, start=len(BLOB))[0] == 416
    listing = json.loads(get(f"{lab.hub_url}/acme/blob/sha256?revision=v1")[1])
    digest = hashlib.sha256(BLOB).hexdigest()
    assert listing == [{"path": "blob.bin", "size": len(BLOB), "sha256": digest}]
    assert get(f"{lab.hub_url}/acme/blob/resolve/v1/none")[0] == 404
    assert get(f"{lab.hub_url}/acme/blob/resolve/v1/../../../../etc/passwd")[0] == 404


def test_hub_log_proves_that_a_download_resumes(lab: Lab, blob: str) -> None:
    lab.command("hub", "cut-at", "300000", "--times", "1")
    first = get(blob)[1]
    rest = get(blob, start=len(first))[1]
    assert len(first) == 300000
    assert first + rest == BLOB
    log = [entry for entry in lab.hub_log() if entry["path"].endswith("blob.bin")][-2:]
    seen = [(entry["range"], entry["bytes"], entry["whole"]) for entry in log]
    assert seen == [(None, 300000, False), ("bytes=300000-", len(BLOB) - 300000, True)]


@pytest.mark.parametrize(
    ("words", "status", "same", "size"),
    [
        (["wrong-bytes"], 200, False, len(BLOB)),
        (["wrong-size"], 200, False, len(BLOB) - 100),
        (["html"], 200, False, None),
        (["lfs-pointer"], 200, False, None),
        (["404"], 404, False, None),
        (["416"], 416, False, None),
        (["503"], 503, False, None),
        (["404", "--match", "another"], 200, True, len(BLOB)),
    ],
)
def test_hub_faults(
    lab: Lab, blob: str, words: list[str], status: int, same: bool, size: int | None
) -> None:
    lab.command("hub", *words)
    code, content = get(blob)
    assert (code, content == BLOB) == (status, same)
    assert size is None or len(content) == size
    lab.command("hub", "clear")
    assert get(blob) == (200, BLOB)


def test_hub_can_be_slow_and_redirect_for_ever(lab: Lab, blob: str) -> None:
    lab.hub_fault("slow", 2000)
    began = time.monotonic()
    assert get(blob)[1] == BLOB
    assert time.monotonic() - began > 0.3  # a megabyte at 2 MB/s
    lab.hub_clear()
    lab.hub_fault("redirect-loop")
    assert get(blob)[0] == 302  # urllib gives up and hands out the last answer


# --- faults of hosts ---------------------------------------------------------------------------


def test_flip_byte_keeps_size_and_times(lab: Lab) -> None:
    look = 'stat -c "%s %y" /srv/models/f; sha256sum < /srv/models/f'
    lab.sh(
        "r740-01",
        "head -c 5000 /dev/zero > /srv/models/f; touch -d '2020-02-02 3:4:5.6' /srv/models/f",
    )
    stat, digest = lab.sh("r740-01", look).split("\n")
    lab.break_("r740-01", "flip-byte", "/srv/models/f")
    new_stat, new_digest = lab.sh("r740-01", look).split("\n")
    assert new_stat == stat
    assert new_digest != digest


def test_full_disk_is_full_and_can_be_freed(lab: Lab) -> None:
    write = "head -c 100000 /dev/zero > /srv/models/more"
    lab.break_("r740-01", "fill-disk", "20")
    done = lab.run("r740-01", "sh", "-c", write, check=False)
    assert "No space left on device" in done.stderr
    lab.break_("r740-01", "free-disk")
    lab.sh("r740-01", write)


def test_apt_lock_is_held(lab: Lab) -> None:
    lab.break_("smc-01", "hold-apt-lock")
    done = lab.run("smc-01", "apt-get", "-qq", "remove", "-y", "hello", check=False)
    assert "Could not get lock /var/lib/dpkg/lock-frontend" in done.stderr
    lab.break_("smc-01", "release-apt-lock")
    lab.run("smc-01", "apt-get", "-qq", "remove", "-y", "hello")


def test_sudo_wants_a_password(lab: Lab) -> None:
    lab.break_("smc-01", "sudo-password")
    assert "a password is required" in lab.ssh("smc-01", "sudo -n true").stderr
    lab.break_("smc-01", "sudo-free")
    assert lab.ssh("smc-01", "sudo -n true").returncode == 0


def test_changed_host_key_is_noticed(lab: Lab) -> None:
    lab.break_("smc-01", "hostkey")
    assert "Host key verification failed" in lab.ssh("smc-01", "true").stderr
    lab.break_("smc-01", "trust-hostkey")
    assert lab.ssh("smc-01", "true").returncode == 0


def test_unplugged_host_is_unreachable(lab: Lab) -> None:
    lab.break_("smc-01", "unplug")
    assert lab.ssh("smc-01", "true").returncode == 255
    lab.break_("smc-01", "plug")
    assert lab.ssh("smc-01", "true").returncode == 0


def test_paused_host_says_nothing_and_goes_on_later(lab: Lab) -> None:
    lab.break_("smc-01", "pause")
    assert "timed out" in lab.ssh("smc-01", "true").stderr
    with pytest.raises(SandboxError, match="paused"):
        lab.sh("smc-01", "true")
    lab.break_("smc-01", "resume")
    assert lab.ssh("smc-01", "true").returncode == 0


def test_connections_can_be_counted_and_killed(lab: Lab) -> None:
    mark = lab.journal_mark("r740-01")
    lab.ssh("r740-01", "true")
    assert lab.traffic("r740-01", mark).connections == 1
    assert len(lab.traffic("r740-01", mark).sessions) == 1
    running = subprocess.Popen(lab.ssh_command("r740-01", "sleep 60"))
    while len(lab.traffic("r740-01", mark).sessions) < 2:
        time.sleep(0.1)
    lab.break_("r740-01", "kill-connections")
    assert running.wait(10) == 255
    assert lab.ssh("r740-01", "true").returncode == 0


def test_killed_host_starts_again_with_its_disk(lab: Lab) -> None:
    lab.sh("r740-01", "echo kept > /etc/kept; echo kept > /srv/models/kept")
    lab.break_("r740-01", "kill")
    assert [h["condition"] for h in lab.status()["hosts"]] == ["dead", "running"]
    lab.command("start", "r740-01")
    assert lab.sh("r740-01", "cat /etc/kept /srv/models/kept") == "kept\nkept"


def test_renewed_host_is_fresh(lab: Lab) -> None:
    lab.sh("r740-01", "echo old > /etc/old")
    lab.command("renew", "r740-01")
    assert lab.run("r740-01", "test", "-e", "/etc/old", check=False).returncode == 1
    assert lab.ssh("r740-01", "true").returncode == 0


def test_errors_are_one_sentence(lab: Lab) -> None:
    for words, sentence in (
        (("break", "r740-01", "nonsense"), "no fault nonsense"),
        (("break", "nobody", "kill"), "no host nobody: the lab has r740-01, smc-01"),
        (("break", "r740-01", "truncate", "/none"), "Could not truncate /none on r740-01"),
    ):
        done = lab.command(*words, check=False)
        assert done.returncode == 1
        assert sentence in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


# --- inventory ---------------------------------------------------------------------------------


def debug_inventory(lab: Lab) -> subprocess.CompletedProcess[str]:
    pyinfra = Path(sys.executable).with_name("pyinfra")
    return subprocess.run(
        [str(pyinfra), "--json", "inventory/sandbox.py", "debug-inventory"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=lab.environment,
    )


def test_inventory_has_what_is_up(lab: Lab) -> None:
    done = debug_inventory(lab)
    assert done.returncode == 0, done.stderr
    hosts = {host["name"]: host for host in json.loads(done.stdout)}
    assert sorted(hosts) == ["r740-01", "smc-01"]
    assert hosts["r740-01"]["data"]["ssh_user"] == "root"
    assert hosts["smc-01"]["data"]["ssh_user"] == "ops"
    assert hosts["smc-01"]["data"]["_sudo"] is True
    assert {"sandbox", "llama_cpp", "supermicro"} <= set(hosts["smc-01"]["groups"])


# --- up and down -------------------------------------------------------------------------------


def test_up_again_changes_nothing(lab: Lab) -> None:
    boots = {n: lab.sh(n, "cat /proc/sys/kernel/random/boot_id") for n in ("r740-01", "smc-01")}
    done = lab.command("up", "--hosts", "2", "--bare", "1")
    assert "nothing to do" in done.stdout
    for name, boot in boots.items():
        assert lab.sh(name, "cat /proc/sys/kernel/random/boot_id") == boot


def test_two_ups_at_once_wait_for_each_other(lab: Lab) -> None:
    command = [sys.executable, "-m", "sandbox", "up", "--hosts", "3"]
    both = [
        subprocess.Popen(command, env=lab.environment, cwd=REPOSITORY, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    assert [process.wait(120) for process in both] == [0, 0]
    assert len(lab.status()["hosts"]) == 3


def test_status_as_json(lab: Lab) -> None:
    now = json.loads(lab.command("status", "--json").stdout)
    assert now["up"] is True
    assert {host["name"]: host["condition"] for host in now["hosts"]} == {
        "r740-01": "running",
        "smc-01": "running",
        "dock-01": "running",
    }
    assert all(info["pids"] for info in now["services"].values())


def test_down_after_kill_leaves_nothing(lab: Lab, before: dict[str, list[str]]) -> None:
    """The last test: whatever of ours is killed, down finds the rest."""
    during = footprint(lab)
    for part in ("processes", "links", "loops", "cgroups", "subnet"):
        assert during[part] != before[part], f"the look at {part} sees nothing"
    # all of nspawn's supervisors and a server, and the record of what is up
    root = cgroups.root(lab.settings)
    victims = [pid for path in root.glob("host.*/supervisor") for pid in cgroups.processes(path)]
    victims += cgroups.processes(cgroups.service(lab.settings, "hub"))
    assert victims
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    (lab.settings.run / "state.json").unlink()
    lab.command("down")
    assert footprint(lab) == before
    assert not lab.settings.hosts.exists()
    assert lab.command("down").stdout.strip() == "Nothing was up."
    done = debug_inventory(lab)
    assert done.returncode != 0
    assert "Run: python -m sandbox up" in done.stderr + done.stdout


def test_down_after_a_killed_up_leaves_nothing(lab: Lab, before: dict[str, list[str]]) -> None:
    command = [sys.executable, "-m", "sandbox", "up", "--hosts", "2"]
    process = subprocess.Popen(command, env=lab.environment, cwd=REPOSITORY)
    while not list(cgroups.root(lab.settings).glob("host.*")):
        time.sleep(0.05)
    process.kill()
    process.wait()
    lab.command("down")
    assert footprint(lab) == before
