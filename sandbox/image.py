"""Root file systems: a minimal base without python3, and a layer that adds it.

A host's root is an overlay: its own folder over ``python`` over ``base`` (a bare host leaves
``python`` out). Both are built once and kept under a key of everything that goes into them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from sandbox import aptproxy, cgroups
from sandbox.errors import SandboxError
from sandbox.services import ENTER
from sandbox.settings import Settings
from sandbox.shell import run, say

RELEASES = ("trixie", "bookworm")
FILES = Path(__file__).parent / "files" / "base"

# What a fresh Debian server has (standard installation with the SSH server task), as far as a
# deploy can notice, and no python3: that is the layer's.
PACKAGES = (
    "ca-certificates",
    "dbus",
    "e2fsprogs",
    "init",
    "iproute2",
    "iputils-ping",
    "kmod",
    "less",
    "libpam-systemd",
    "openssh-server",
    "procps",
    "sudo",
    "systemd",
    "systemd-sysv",
    "udev",
)
LAYER = ("python3",)
KEEP_DAYS = 7

# Setting up accounts is part of the key through this text.
SETUP = """\
set -eu
useradd --create-home --shell /bin/bash --user-group ops
rm -f /etc/ssh/ssh_host_*                     # every host gets its own
: > /etc/machine-id
rm -f /var/lib/dbus/machine-id /etc/hostname
chmod 0440 /etc/sudoers.d/ops
echo LANG=C.UTF-8 > /etc/locale.conf
ln -sf ../locale.conf /etc/default/locale     # as Debian 13 has it; 12 has only this name
systemctl enable systemd-networkd.service sandbox-chassis.service ssh.service
# daily downloads would hold apt's lock at a moment that no test chose
systemctl disable apt-daily.timer apt-daily-upgrade.timer
# units that can do nothing useful in a container
systemctl mask systemd-networkd-wait-online.service
"""

# $0 root, $1 lower, $2 upper, $3 work, $4... command: run in an overlay that ends with us
IN_OVERLAY = """\
set -eu
root=$0; lower=$1; upper=$2; work=$3; shift 3
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$upper,workdir=$work" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
exec chroot "$root" "$@"
"""


@dataclass(frozen=True)
class Image:
    """Built folders of one release: lowest first."""

    base: Path
    python: Path

    @property
    def name(self) -> str:
        """Folder name below ``base/``: release and key."""
        return self.base.parent.name

    def lower(self, bare: bool) -> str:
        """Overlay's lowerdir of a host, topmost first."""
        return str(self.base) if bare else f"{self.python}:{self.base}"


def key(release: str) -> str:
    """Digest of everything that goes into the image of a release."""
    digest = hashlib.sha256()
    for text in (release, *PACKAGES, SETUP, *LAYER):
        digest.update(f"{text}\0".encode())
    for file in sorted(path for path in FILES.rglob("*") if path.is_file()):
        digest.update(f"{file.relative_to(FILES)}\0{file.stat().st_mode & 0o111:o}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def ensure(settings: Settings, release: str) -> Image:
    """The image of a release, built when the cache has none. Needs the apt proxy.

    Raises SandboxError for an unknown release or a failed build.
    """
    if release not in RELEASES:
        raise SandboxError(f"There is no release {release}: use {' or '.join(RELEASES)}.")
    folder = settings.base / f"{release}-{key(release)}"
    if folder.is_dir():
        os.utime(folder)  # still wanted
        return at(settings, folder.name)
    _prune(settings)
    part = settings.base / f"{folder.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        say(f"building Debian {release} (first time only, about half a minute)")
        _build_base(settings, release, part)
        say(f"adding python3 to Debian {release}")
        _build_layer(settings, part)
        part.rename(folder)
    finally:
        cgroups.kill(cgroups.root(settings) / "build")
        shutil.rmtree(part, ignore_errors=True)
    return at(settings, folder.name)


def at(settings: Settings, name: str) -> Image:
    """The built image of this folder name.

    Raises SandboxError when it is gone.
    """
    folder = settings.base / name
    if not folder.is_dir():
        raise SandboxError(
            f"The base image {name} is gone from {settings.base}: run `python -m sandbox down`, "
            "then `up`."
        )
    return Image(base=folder / "base", python=folder / "python")


def _prune(settings: Settings) -> None:
    """Delete images that no `up` asked for in a week; another lab may share the folder."""
    for folder in settings.base.iterdir() if settings.base.is_dir() else ():
        if folder.is_dir() and time.time() - folder.stat().st_mtime > KEEP_DAYS * 86400:
            shutil.rmtree(folder, ignore_errors=True)


def _contained(settings: Settings, command: list[str], what: str, timeout: float) -> None:
    """Run a build step in a cgroup and a mount namespace of its own, so that nothing stays."""
    group = cgroups.make(cgroups.root(settings) / "build")
    wrapped = ["unshare", "--mount", "--propagation", "private", *command]
    done = run(
        ["/bin/sh", "-c", ENTER, str(group), *wrapped], what=what, check=False, timeout=timeout
    )
    log = settings.run / "build.log"
    log.write_text(done.stdout + done.stderr)
    if done.returncode != 0:
        tail = [line for line in log.read_text().splitlines() if line.strip()][-3:]
        raise SandboxError(f"Could not {what}: {' / '.join(tail)} (all of it in {log}).")


def _build_base(settings: Settings, release: str, part: Path) -> None:
    base = part / "base"
    script = part / "setup.sh"
    script.write_text(SETUP)
    # a killed build must leave nothing outside the cache folder
    scratch = part / "tmp"
    scratch.mkdir()
    command = [
        "env",
        f"TMPDIR={scratch}",
        "mmdebstrap",
        "--variant=minbase",
        "--mode=root",
        f"--include={','.join(PACKAGES)}",
        f'--aptopt=Acquire::http::Proxy "{aptproxy.url(settings)}"',
        '--aptopt=APT::Install-Recommends "false"',
        f'--customize-hook=cp -r "{FILES}/." "$1/"',
        f'--customize-hook=chroot "$1" /bin/sh < "{script}"',
        '--customize-hook=rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap"',
        release,
        str(base),
    ]
    _contained(settings, command, f"build Debian {release}", timeout=900)
    script.unlink()
    shutil.rmtree(scratch)
    (base / "etc/resolv.conf").unlink(missing_ok=True)
    (base / "etc/resolv.conf").write_text("# the lab has no name server\n")


def _build_layer(settings: Settings, part: Path) -> None:
    for name in ("python", "work", "root"):
        (part / name).mkdir()
    proxy = f"Acquire::http::Proxy={aptproxy.url(settings)}"
    install = (
        f"apt-get -qq -o {proxy} update && DEBIAN_FRONTEND=noninteractive apt-get -qq -o {proxy} "
        f"install -y {' '.join(LAYER)} && apt-get clean && rm -rf /var/lib/apt/lists/*"
    )
    command = ["/bin/sh", "-c", IN_OVERLAY, str(part / "root"), str(part / "base")]
    command += [str(part / "python"), str(part / "work"), "/bin/sh", "-c", install]
    _contained(settings, command, "add python3 to the base", timeout=600)
    shutil.rmtree(part / "work")
    (part / "root").rmdir()
