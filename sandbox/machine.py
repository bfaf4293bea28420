"""One host: its folder, its boot, what it is doing, and a way in that needs no network."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from sandbox import aptproxy, cgroups, services
from sandbox.errors import SandboxError
from sandbox.image import Image
from sandbox.profiles import Profile
from sandbox.settings import MODEL_FOLDER, Settings
from sandbox.shell import run
from sandbox.state import Host

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SYSCTL = Path(__file__).parent / "files" / "sysctl.yaml"

# Runs in a private mount namespace that only the host's processes share: the overlay, the model
# disk and its loop device go away with the last of them. /run is covered because nspawn leaves
# folders there when it is killed. Exit code 133 is nspawn's word for "the host wants to reboot";
# each boot gets a cgroup of its own beside this script's.
BOOT = """\
#!/bin/sh
# Boots the host; written by the sandbox.
set -eu
cd {folder}
mount -t cgroup2 none /sys/fs/cgroup
mount -t tmpfs -o mode=0755 none /run
mount -t overlay overlay -o lowerdir={lower},upperdir=upper,workdir=work root
mount -o loop,discard models.img models
export SYSTEMD_NSPAWN_API_VFS_WRITABLE=network
boot() {{
    /bin/sh -c {enter} /sys/fs/cgroup/{cgroup} \\
        systemd-nspawn --quiet --boot --register=no --keep-unit --settings=no \\
        --machine={machine} --hostname={name} --directory={folder}/root --uuid={uuid} \\
        --network-bridge={bridge} --console=pipe --link-journal=no \\
        --resolv-conf=off --timezone=off \\
        --bind={folder}/models:{models} --bind-ro={folder}/chassis:/run/chassis {mounts}
}}
while true; do
    code=0
    boot || code=$?
    test "$code" -eq 133 || exit "$code"
done
"""

NETWORK = """\
[Match]
Name=host0

[Network]
Address={address}/{prefix}
LinkLocalAddressing=no
LLDP=no
EmitLLDP=no
IPv6AcceptRA=no
"""


def folder(settings: Settings, name: str) -> Path:
    """The host's folder in the cache."""
    return settings.hosts / name


def prepare(settings: Settings, host: Host, profile: Profile) -> None:
    """Lay out a new host's folder: overlay, disk, keys, address, chassis."""
    path = folder(settings, host.name)
    shutil.rmtree(path, ignore_errors=True)
    for name in ("upper", "work", "root", "models"):
        (path / name).mkdir(parents=True)
    _make_disk(settings, path / "models.img")
    upper = path / "upper"
    login = settings.login_key.with_suffix(".pub").read_text()
    _write(upper / "root/.ssh/authorized_keys", login, 0o600)
    _write(upper / "home/ops/.ssh/authorized_keys", login, 0o600, owner=1000)
    (upper / "root").chmod(0o700)
    (upper / "root/.ssh").chmod(0o700)
    for part in ("home/ops", "home/ops/.ssh"):
        (upper / part).chmod(0o700)
        os.chown(upper / part, 1000, 1000)
    make_host_key(settings, host)
    _write(upper / "etc/hostname", f"{host.name}\n")
    _write(upper / "etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n::1 localhost\n")
    _write(upper / "etc/machine-id", machine_id(settings, host.name) + "\n", 0o444)
    _write(
        upper / "etc/systemd/network/10-lab.network",
        NETWORK.format(address=host.address, prefix=settings.subnet.prefixlen),
    )
    proxy = f'Acquire::http::Proxy "{aptproxy.url(settings)}";\n'
    _write(upper / "etc/apt/apt.conf.d/80sandbox-proxy", proxy)
    _write_chassis(path / "chassis", host, profile)


def _make_disk(settings: Settings, target: Path) -> None:
    with target.open("wb") as handle:
        unit = 1 << 20 if settings.disk.endswith("M") else 1 << 30
        handle.truncate(int(settings.disk[:-1]) * unit)
    # lazy: 0.7 MB of real disk instead of tens; no reserved blocks, or root would never see
    # the disk full
    options = ["-m", "0", "-J", "size=4", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"]
    run(["mke2fs", "-q", "-F", "-t", "ext4", *options, target], what="make a model disk")


def _write_chassis(path: Path, host: Host, profile: Profile) -> None:
    serial = hashlib.sha256(host.name.encode()).hexdigest()[:7].upper()
    strings = {"product_serial": serial, "chassis_serial": serial, **profile.dmi}
    for key, value in strings.items():
        secret = key.endswith(("_serial", "_uuid"))
        _write(path / "class/dmi/id" / key, f"{value}\n", 0o400 if secret else 0o444)
    for key, value in yaml.safe_load(SYSCTL.read_text()).items():
        _write(path / "sysctl" / key, f"{value}\n", 0o644)


def _write(path: Path, text: str, mode: int = 0o644, owner: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w") as handle:
        os.fchmod(handle.fileno(), mode)  # whatever the umask says
        os.fchown(handle.fileno(), owner, owner)
        handle.write(text)


def machine_id(settings: Settings, name: str) -> str:
    """32 hex digits: the same for a host at each boot, different between labs."""
    return hashlib.md5(f"{settings.owner} {name}".encode(), usedforsecurity=False).hexdigest()


def make_host_key(settings: Settings, host: Host) -> None:
    """Give the host a new SSH host key in its overlay."""
    key = folder(settings, host.name) / "upper/etc/ssh/ssh_host_ed25519_key"
    key.parent.mkdir(parents=True, exist_ok=True)
    for path in (key, key.with_suffix(".pub")):
        path.unlink(missing_ok=True)
    command: list[str | Path] = [
        "ssh-keygen",
        "-q",
        "-t",
        "ed25519",
        "-N",
        "",
        "-C",
        host.name,
        "-f",
        key,
    ]
    run(command, what=f"make {host.name}'s host key")


def host_key(settings: Settings, host: Host) -> str:
    """The host's public key as it lies in its overlay: type and base64."""
    file = folder(settings, host.name) / "upper/etc/ssh/ssh_host_ed25519_key.pub"
    return " ".join(file.read_text().split()[:2])


def boot(settings: Settings, host: Host, image: Image, mounts: Sequence[str] = ()) -> None:
    """Start the host's process tree, with further mounts of nspawn's; returns at once."""
    path = folder(settings, host.name)
    group = cgroups.host(settings, host.name)
    cgroups.kill(group)
    script = BOOT.format(
        folder=shlex.quote(str(path)),
        lower=shlex.quote(image.lower(host.bare)),
        machine=settings.machine(host.name),
        name=host.name,
        uuid=machine_id(settings, host.name),
        bridge=settings.bridge,
        models=MODEL_FOLDER,
        mounts=shlex.join(mounts),
        enter=shlex.quote(services.ENTER),
        cgroup=f"{settings.cgroup}/{group.name}",
    )
    (path / "boot.sh").write_text(script)
    command = ["unshare", "--mount", "--propagation", "private", "/bin/sh", str(path / "boot.sh")]
    services.spawn(group / "launcher", command, path / "console.log")


def condition(settings: Settings, name: str) -> str:
    """``running``, ``paused`` (frozen) or ``dead``."""
    group = cgroups.host(settings, name)
    if not cgroups.populated(group):
        return "dead"
    return "paused" if cgroups.frozen(group) else "running"


def leader(settings: Settings, name: str) -> int:
    """Pid (as this machine numbers it) of the host's pid 1.

    Raises SandboxError when the host is not running.
    """
    for pid in cgroups.processes(cgroups.host(settings, name)):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("NSpid:") and line.split()[-1] == "1" and len(line.split()) > 2:
                    return pid
    raise SandboxError(f"{name} is not running: run `python -m sandbox start {name}`.")


def inside(settings: Settings, name: str, command: Sequence[str]) -> list[str]:
    """Command line that runs a command in the host without the network.

    The process joins the host's cgroup (beside its own tree), so that it ends with the host.
    """
    if condition(settings, name) == "paused":
        # a process that joins a frozen cgroup freezes too
        raise SandboxError(f"{name} is paused: run `python -m sandbox break {name} resume`.")
    group = cgroups.make(cgroups.host(settings, name) / "visitors")
    enter = ["nsenter", "--target", str(leader(settings, name)), "--mount", "--uts", "--ipc"]
    enter += ["--net", "--pid", "--cgroup", "--root"]
    clean = [
        "env",
        "-C",
        "/",
        "-i",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ]
    clean += ["HOME=/root", "USER=root", f"TERM={os.environ.get('TERM', 'dumb')}", "LANG=C.UTF-8"]
    return ["/bin/sh", "-c", services.ENTER, str(group), *enter, "--", *clean, *command]


def call(settings: Settings, name: str, *command: str, what: str, check: bool = True) -> str:
    """Run a command in the host as root, without the network; its standard output."""
    return run(inside(settings, name, command), what=f"{what} on {name}", check=check).stdout


def wait(settings: Settings, host: Host, timeout: float = 90) -> str:
    """Wait until the host answers on ssh and its boot is over.

    Returns systemd's word for it: ``running``, or ``degraded`` when a unit failed.
    Raises SandboxError with the end of the console when it dies or takes too long.
    """
    deadline = time.monotonic() + timeout
    while not _banner(host.address):
        dead = condition(settings, host.name) == "dead"
        if dead or time.monotonic() > deadline:
            log = folder(settings, host.name) / "console.log"
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            raise SandboxError(
                f"{host.name} {'died while booting' if dead else f'has no ssh after {timeout} s'}: "
                f"{' / '.join(lines[-3:]) or 'no message'} (console: {log})."
            )
        time.sleep(0.05)
    left = max(1.0, deadline - time.monotonic())
    command = ["timeout", f"{left:.0f}", "systemctl", "is-system-running", "--wait"]
    what = "wait for the end of the boot"
    return call(settings, host.name, *command, what=what, check=False).strip() or "unknown"


def _banner(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=1) as connection:
            connection.settimeout(2)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
