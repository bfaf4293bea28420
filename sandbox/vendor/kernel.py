"""The kernel side of a simulated host: PCI tree, driver state, module files.

What a host needs:

* ``layer_files()``: in the root file system (overlay), the same for all hosts.
* ``for_profile(host, profile)``: below a folder of the host's own that is mounted read-write at
  ``/run/voltfleet-sim`` and lives as long as the host (`gpus.state` is there, with pending modes
  that outlive a reboot).

At boot ``sandbox-kernel.service`` lays the tree over ``/sys/bus/pci``, ``/sys/module``,
``/proc/driver`` and, where the machine's kernel has it, ``/proc/modules``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sandbox.nvml import state
from sandbox.nvml.models import MODELS
from sandbox.nvml.state import Card, Pair
from sandbox.profiles import Profile
from sandbox.vendor.deb import File, Link, Package
from sandbox.vendor.drivers import FILES, module

MOUNT = "/run/voltfleet-sim"
CONTROLLER_3D = "0x030200"
BRIDGE = "0x060400"
SPEEDS = {1: "2.5 GT/s PCIe", 2: "5.0 GT/s PCIe", 3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe"}
SPEEDS[5] = "32.0 GT/s PCIe"


def layer_files() -> dict[str, File | Link]:
    """Files of every simulated host, by path: the kernel's stand-in, its unit, and the
    commands that would ask the machine's own kernel and firmware."""
    unit = "/etc/systemd/system/sandbox-kernel.service"
    return {
        "/usr/local/lib/sandbox/kernel": File(FILES / "kernel", 0o755),
        "/usr/local/sbin/lsmod": File(FILES / "lsmod", 0o755),
        "/usr/local/sbin/modprobe": File(FILES / "modprobe", 0o755),
        "/usr/local/sbin/mokutil": File(FILES / "mokutil", 0o755),
        unit: File(FILES / "sandbox-kernel.service"),
        "/etc/systemd/system/sysinit.target.wants/sandbox-kernel.service": Link(unit),
    }


def host_files(
    host: str,
    cards: Sequence[Card],
    pairs: Sequence[Pair] = (),
    secure_boot: str = "none",
) -> dict[str, bytes | Link]:
    """Contents of the folder mounted at /run/voltfleet-sim, by path below it.

    secure_boot is ``enabled``, ``disabled`` or ``none`` (no EFI). NVLinked cards are put below one
    PLX switch, as in a dock or on a baseboard; others have a root port each.
    Raises ValueError as `sandbox.nvml.state.compose` does.
    """
    keys = state.compose(host, cards, pairs)
    out: dict[str, bytes | Link] = {
        "gpus.state": "".join(f"{key} = {value}\n" for key, value in keys.items()).encode(),
        "machine": f"secureboot={secure_boot}\n".encode(),
    }
    out.update(_tree(cards, pairs))
    return out


def for_profile(host: str, profile: Profile, secure_boot: str = "none") -> dict[str, bytes | Link]:
    """`host_files` of a host with the cards and NVLinks of a sandbox profile."""
    cards = [Card(gpu.pci, gpu.device) for gpu in profile.gpus]
    pairs = [Pair(links.between, links.links) for links in profile.nvlinks]
    return host_files(host, cards, pairs, secure_boot)


def write(folder: Path, files: dict[str, bytes | Link]) -> None:
    """Write `host_files` below a folder; what is there is replaced."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if isinstance(content, Link):
            path.symlink_to(content.target)
        else:
            path.write_bytes(content)


def _tree(cards: Sequence[Card], pairs: Sequence[Pair]) -> dict[str, bytes | Link]:
    """/sys/bus/pci: devices are links into a tree by bridge, as sysfs has it."""
    out: dict[str, bytes | Link] = {"pci/drivers/pcieport/bind": b"", "pci/slots/.keep": b""}

    def add(parent: str, address: str, ids: str, kind: str, *more: object) -> str:
        path = f"{parent}/{address}"
        if f"pci/devices/{address}" not in out:
            out.update(_device(path, ids, kind, *more))  # type: ignore[arg-type]
            out[f"pci/devices/{address}"] = Link(f"../{path.removeprefix('pci/')}")
        return path

    for number, card in enumerate(cards):
        group = sorted({bus for pair in pairs if card.pci in pair.between for bus in pair.between})
        domain, bus, _ = (group or [card.pci])[0].split(":")
        below = [f"{domain}:{(int(bus, 16) - step) % 256:02x}" for step in range(4)]
        root = f"{below[3]}:02.0"
        path = add(f"pci/tree/pci{below[3]}", root, "8086:2030", BRIDGE, 3, number)
        if group:  # a dock: one switch, a port of it for each card
            path = add(path, f"{below[2]}:00.0", "10b5:8749", BRIDGE, 3, number)
            port = f"{below[1]}:{8 + group.index(card.pci):02x}.0"
            path = add(path, port, "10b5:8749", BRIDGE, 3, number)
        known = MODELS[card.device]
        add(path, card.pci, card.device, CONTROLLER_3D, known.pcie, number, known.subsystem)
    return out


def _device(
    path: str, ids: str, kind: str, generation: int, number: int, subsystem: str = "0000:0000"
) -> dict[str, bytes | Link]:
    vendor, device = ids.split(":")
    owner, board = subsystem.split(":")
    modalias = (
        f"pci:v0000{vendor.upper()}d0000{device.upper()}sv0000{owner.upper()}sd0000{board.upper()}"
        f"bc{kind[2:4]}sc{kind[4:6]}i{kind[6:8]}"
    )
    texts = {
        "vendor": f"0x{vendor}",
        "device": f"0x{device}",
        "subsystem_vendor": f"0x{owner}",
        "subsystem_device": f"0x{board}",
        "class": kind,
        "revision": "0xa1",
        "irq": str(32 + number),
        "enable": "1",
        "numa_node": "1" if int(path.split("/")[-1].split(":")[1], 16) >= 0x80 else "0",
        "local_cpulist": "0-15",
        "current_link_speed": SPEEDS[1 if kind == CONTROLLER_3D else generation],
        "max_link_speed": SPEEDS[generation],
        "current_link_width": "16",
        "max_link_width": "16",
        "modalias": modalias,
        "resource": "\n".join(["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * 7),
    }
    out: dict[str, bytes | Link] = {
        f"{path}/{key}": f"{value}\n".encode() for key, value in texts.items()
    }
    out[f"{path}/config"] = _config(ids, kind, subsystem)
    return out


def _config(ids: str, kind: str, subsystem: str) -> bytes:
    """PCI configuration space, as far as lspci reads it for names and class."""
    space = bytearray(256)
    for offset, text in ((0, ids.split(":")[0]), (2, ids.split(":")[1])):
        space[offset : offset + 2] = int(text, 16).to_bytes(2, "little")
    space[8] = 0xA1
    space[9:12] = int(kind, 16).to_bytes(3, "little")
    space[4:6] = (0x0006).to_bytes(2, "little")  # memory access and bus mastering on
    if kind == BRIDGE:
        space[14] = 1
    else:
        for offset, text in ((0x2C, subsystem.split(":")[0]), (0x2E, subsystem.split(":")[1])):
            space[offset : offset + 2] = int(text, 16).to_bytes(2, "little")
    return bytes(space)


def running() -> str:
    """Release of the kernel that containers on this machine run on."""
    return os.uname().release


def packages(work: Path, release: str) -> list[Package]:
    """linux-image-… and linux-headers-… of a kernel release, with nouveau and IPMI modules."""
    mark = release.lower().replace("_", "-")
    home = f"/usr/lib/modules/{release}"
    source = f"/usr/src/linux-headers-{release}"
    drivers = {
        "nouveau": "kernel/drivers/gpu/drm/nouveau",
        "ipmi_msghandler": "kernel/drivers/char/ipmi",
        "ipmi_si": "kernel/drivers/char/ipmi",
        "ipmi_devintf": "kernel/drivers/char/ipmi",
    }
    modules: dict[str, File | Link] = {
        f"{home}/{place}/{name}.ko": File(module(work, name, release))
        for name, place in drivers.items()
    }
    # The image's own names in /boot; a boot loader never sees them.
    modules |= {
        f"/boot/vmlinuz-{release}": File(b"simulated kernel\n"),
        f"/boot/config-{release}": File(b"CONFIG_MODULES=y\nCONFIG_MODULE_SIG=y\n"),
        f"{home}/modules.order": File(b""),
        f"{home}/modules.builtin": File(b""),
        f"{home}/modules.builtin.modinfo": File(b""),
    }
    depmod = f"#!/bin/sh\nset -e\ndepmod {release}\n"
    headers: dict[str, File | Link] = {
        f"{source}/Makefile": File(b"all:\n\t@true\nmodules:\n\t@true\n"),
        f"{source}/.config": File(b"CONFIG_MODULES=y\n"),
        f"{source}/include/generated/utsrelease.h": File(
            f'#define UTS_RELEASE "{release}"\n'.encode()
        ),
        f"{home}/build": Link(source),
    }
    autoinstall = (
        "#!/bin/sh\nset -e\n"
        f'[ "$1" != configure ] || ! command -v dkms >/dev/null || dkms autoinstall -k {release}\n'
    )
    return [
        Package(f"linux-image-{mark}", "1.0-1", {}, modules, {"postinst": depmod}),
        Package(f"linux-headers-{mark}", "1.0-1", {}, headers, {"postinst": autoinstall}),
    ]
