"""Hosts with GPUs: the simulated kernel side of their profile's cards, and the vendor's packages.

A host that is made with GPUs has what a fresh server has: the cards on the PCI bus, the
distribution's kernel as a package, and nouveau bound to the cards. The vendor's repositories lie
below `VENDOR` in the host, the distribution's part of them is an apt source.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from sandbox import machine
from sandbox.nvml.state import Card, Pair
from sandbox.profiles import Profile
from sandbox.settings import Settings
from sandbox.state import Host
from sandbox.vendor import build, kernel
from sandbox.vendor.deb import File, Link

VENDOR = "/run/vendor"
SOURCE = "etc/apt/sources.list.d/distribution.list"


def vendor(settings: Settings) -> build.Vendor:
    """The vendor's packages, built when the cache has none for today's inputs (a minute)."""
    return build.ensure(settings.cache)


def prepare(settings: Settings, host: Host, profile: Profile) -> None:
    """Add cards, the kernel's stand-in and the distribution's repository to a host's folder."""
    folder = machine.folder(settings, host.name)
    for path, content in kernel.layer_files().items():
        _write(folder / "upper" / path.lstrip("/"), content)
    cards = [Card(gpu.pci, gpu.device) for gpu in profile.gpus]
    pairs = [Pair(pair.between, pair.links) for pair in profile.nvlinks]
    kernel.write(folder / "sim", kernel.host_files(host.name, cards, pairs))
    # links of its own: a later build of the vendor must not take the repository from the host
    own = _own(settings, host)
    shutil.copytree(vendor(settings).folder, own.folder, copy_function=os.link)
    keyring = next(own.distribution.glob("*-keyring.gpg")).name
    home = f"{VENDOR}/distribution"
    line = f"deb [signed-by={home}/{keyring}] file:{home} /\n"
    _write(folder / "upper" / SOURCE, File(line.encode()))


def mounts(settings: Settings, host: Host) -> list[str]:
    """What systemd-nspawn mounts into a host with GPUs."""
    folder = machine.folder(settings, host.name)
    return [
        f"--bind={folder / 'sim'}:{kernel.MOUNT}",
        f"--bind-ro={_own(settings, host).folder}:{VENDOR}",
    ]


def furnish(settings: Settings, host: Host) -> None:
    """Install the kernel's package on a new host and let nouveau have the cards."""
    image = f"{VENDOR}/distribution/{_own(settings, host).image.name}"
    machine.call(settings, host.name, "dpkg", "--install", image, what="install the kernel")
    machine.call(settings, host.name, "modprobe", "nouveau", what="load nouveau")


def data(settings: Settings, host: Host) -> dict[str, Any]:
    """Host data of a host with GPUs: the vendor's .deb, which only the lab knows."""
    deb = _own(settings, host).local("debian13")
    return {
        "cuda_source": {
            "kind": "local_repo_deb",
            "path": str(deb),
            "sha256": build.sha256(deb),
        }
    }


def _own(settings: Settings, host: Host) -> build.Vendor:
    return build.Vendor(machine.folder(settings, host.name) / "vendor")


def _write(path: Path, content: File | Link) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if isinstance(content, Link):
        path.symlink_to(content.target)
        return
    source = content.content
    path.write_bytes(source if isinstance(source, bytes) else source.read_bytes())
    os.chmod(path, content.mode)  # noqa: PTH101
