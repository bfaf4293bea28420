"""What the platform of a host is: cards, driver, kernel modules, boot; and the way in for the rest.

`observe` answers about CUDA, driver and boot, changing nothing. Packages and apt are looked at in
``platform_apt.py``, toolkits in ``platform_cuda.py``. The shape of the answer::

    {"gpus": {"devices": [{"address": "0000:1a:00.0", "device": "1db5", "driver": "nvidia"}]},
     "driver": {"loaded": "580.95.05"|null, "flavour": "proprietary"|"open"|null,
                "on_disk": "580.126.09"|null|unknown, "signer": "…"|null, "library": "…"|null,
                "nodes": ["/dev/nvidia0"], "log": ["NVRM: …"]},
     "modules": {"loaded": ["nvidia", "nouveau"]},
     "nouveau": {"bound": ["0000:1a:00.0"], "blacklisted_by": ["/etc/modprobe.d/x.conf"],
                 "initramfs": {kernel: {"nouveau": true, "blacklist": false, "stale": true}}},
     "secure_boot": {"state": "enabled"|"disabled"|"setup"|"not applicable", "enrolled": false},
     "kernels": {"running": "…", "newest": "…"|null, "headers": {kernel: true}},
     "dkms": {"modules": [{"module", "version", "kernel"|null, "state"}]},
     "boot": {"boot_id": "…", "required_by": ["linux-image-…"]},
     …the keys of platform_apt and platform_cuda…}

Each value is what is said here or ``{"unknown": reason}``.
"""

# Paths are handled with os.path: pathlib would double what the agent imports at start.
# ruff: noqa: PTH110, PTH112, PTH114, PTH115, PTH116, PTH119, PTH207, PTH208
from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable
from typing import Any

from . import platform_apt, platform_cuda
from .platform_request import Request, limit
from .probe_tools import Unlearned, run_tool

NVIDIA = "0x10de"
GPU_CLASSES = ("0x0300", "0x0302")  # VGA compatible, 3D controller (PCI class codes)
LOG_LINES = 60
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# Where shim-signed (Ubuntu) and dkms (Debian) keep the key that modules built here are signed with.
MODULE_KEYS = ("/var/lib/shim-signed/mok/MOK.der", "/var/lib/dkms/mok.pub")
MODPROBE = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")


def observe(request: Request) -> dict[str, Any]:
    """The platform part of the answer.

    `request`: ``limit_s`` seconds for each tool; ``toolkit`` {nvcc} or null; ``driver`` {branch,
    packages, pins} or null; ``urls`` of repositories. Never raises; what can't be
    learned is ``{"unknown": reason}``.
    """
    return {key: learned(key, request) for key in LOOKS}


def learned(key: str, request: Request) -> Any:
    """One key of the answer, or why nothing could be learned."""
    try:
        return LOOKS[key](request)
    except Unlearned as error:
        return {"unknown": str(error)}
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return {"unknown": f"{where}{error.strerror or error}"}
    except Exception as error:  # a fault in one look must not cost the others
        return {"unknown": f"{type(error).__name__}: {error}"}


def read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read().decode("utf-8", "replace")


def gpus(request: Request, root: str = "/sys/bus/pci/devices") -> dict[str, Any]:
    """NVIDIA's display controllers on the PCI bus, with the kernel driver that has them."""
    devices = []
    for address in sorted(os.listdir(root)) if os.path.isdir(root) else []:
        folder = f"{root}/{address}"
        if read(f"{folder}/vendor").strip() != NVIDIA:
            continue
        if not read(f"{folder}/class").strip().startswith(GPU_CLASSES):
            continue
        link = f"{folder}/driver"
        driver = os.path.basename(os.readlink(link)) if os.path.islink(link) else None
        device = read(f"{folder}/device").strip().removeprefix("0x").lower()
        devices.append({"address": address, "device": device, "driver": driver})
    return {"devices": devices}


def parse_version(text: str) -> tuple[str | None, str | None]:
    """Version and flavour in ``/proc/driver/nvidia/version``; (None, None) if it is none of both.

    The proprietary module writes ``NVIDIA UNIX x86_64 Kernel Module  580.95.05``, the open one
    ``NVIDIA UNIX Open Kernel Module for x86_64  580.95.05``.
    """
    found = re.search(r"^NVRM version:.*?Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text, re.M)
    if not found:
        return None, None
    return found[1], "open" if "Open Kernel Module" in found[0] else "proprietary"


def driver(request: Request) -> dict[str, Any]:
    """The driver loaded, on disk for the next load, and of the library."""
    try:
        loaded, flavour = parse_version(read("/proc/driver/nvidia/version"))
    except FileNotFoundError:
        loaded, flavour = None, None
    return {
        "loaded": loaded,
        "flavour": flavour,
        "on_disk": _modinfo("version", request),
        "signer": _modinfo("signer", request),
        "library": _library(),
        "nodes": sorted(node for node in glob.glob("/dev/nvidia*") if not os.path.isdir(node)),
        "log": _kernel_log(request),
    }


def _modinfo(field: str, request: Request) -> str | dict[str, str] | None:
    """A field of the module that is loaded next; unknown by itself, as kmod may be missing."""
    try:
        status, out, err = run_tool(["modinfo", "-F", field, "nvidia"], limit(request))
    except Unlearned as error:
        return {"unknown": str(error)}
    if status != 0 and "not found" not in err:
        return {"unknown": f"modinfo failed with {status}: {err.strip() or 'no message'}"}
    return " ".join(out.split()) or None if status == 0 else None


def _library(pattern: str = "/usr/lib/*/libnvidia-ml.so.1") -> str | None:
    """Version of the library that programs load, from the name of the file the link ends at."""
    for path in sorted(glob.glob(pattern)):
        found = re.search(r"\.so\.(\d{3,}\.\d+(?:\.\d+)?)$", os.path.realpath(path))
        if found:
            return found[1]
    return None


def _kernel_log(request: Request) -> list[str]:
    """The driver's last lines in the kernel log; none where it may not be read."""
    try:
        status, out, _ = run_tool(["dmesg", "--notime"], limit(request))
    except Unlearned:
        return []
    lines = [line.strip() for line in out.splitlines() if "NVRM:" in line or "nvidia:" in line]
    return lines[-LOG_LINES:] if status == 0 else []


def modules(request: Request, path: str = "/proc/modules") -> dict[str, Any]:
    """Loaded kernel modules that have to do with the cards; lsmod is asked where a kernel without
    loadable modules has no such file."""
    try:
        out = read(path)
    except FileNotFoundError:
        out = run_tool(["lsmod"], limit(request))[1]
    names = sorted(line.split(" ", 1)[0] for line in out.splitlines())
    return {"loaded": [name for name in names if name.startswith(("nvidia", "nouveau"))]}


def blacklists(folders: tuple[str, ...] = MODPROBE) -> list[str]:
    """Files of modprobe.d that keep nouveau from being loaded."""
    pattern = re.compile(
        r"^\s*(blacklist\s+nouveau\s*(#.*)?|(install|alias)\s+nouveau\s+(/bin/(false|true)|off).*)$",
        re.M,
    )
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted(glob.glob(f"{folder}/*.conf")):
            if pattern.search(read(path)):
                found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def nouveau(request: Request) -> dict[str, Any]:
    """Whether nouveau has cards, is kept away by a file, and lies in the initramfs all the same.

    An initramfs is looked into only where it matters: nouveau is loaded, or the image is older
    than the file that should keep it away, or there is no such file (to unpack one takes a second).
    """
    bound = [gpu["address"] for gpu in gpus(request)["devices"] if gpu["driver"] == "nouveau"]
    by = blacklists()
    newest_file = max((os.stat(path).st_mtime for path in by), default=0.0)
    images = {}
    for kernel in _kernels_that_matter():
        image = f"/boot/initrd.img-{kernel}"
        if not os.path.exists(image):
            continue
        stale = os.stat(image).st_mtime < newest_file
        loaded = "nouveau" in modules(request)["loaded"]
        look = bool(bound) or loaded or stale or not by
        images[kernel] = {
            **(_in_initramfs(image, by, request) if look else {"nouveau": None, "blacklist": None}),
            "stale": stale,
        }
    return {"bound": bound, "blacklisted_by": by, "initramfs": images}


def _in_initramfs(image: str, files: list[str], request: Request) -> dict[str, bool]:
    status, out, err = run_tool(["lsinitramfs", image], limit(request))
    if status != 0:
        raise Unlearned(f"lsinitramfs {image} failed with {status}: {err.strip()[:200]}")
    return parse_initramfs(out, files)


def parse_initramfs(out: str, files: list[str]) -> dict[str, bool]:
    """From a listing: whether it holds nouveau's module, and one of the files that blacklist it."""
    names = out.splitlines()
    wanted = {path.lstrip("/") for path in files}
    return {
        "nouveau": any(re.search(r"/nouveau\.ko(\.\w+)?$", name) for name in names),
        "blacklist": any(name.strip().lstrip("./") in wanted for name in names),
    }


def parse_secure_boot(said: str) -> str | None:
    """The state in what ``mokutil --sb-state`` says; None when it says something else."""
    if "EFI variables are not supported" in said:
        return "not applicable"
    if "Setup Mode" in said:
        return "setup"
    found = re.search(r"SecureBoot (enabled|disabled)", said)
    return found[1] if found else None


def secure_boot(request: Request) -> dict[str, Any]:
    """Secure Boot, and whether the key that modules built here are signed with is enrolled."""
    try:
        _, out, err = run_tool(["mokutil", "--sb-state"], limit(request))
        state = parse_secure_boot(out + err)
    except Unlearned as error:
        if not str(error).endswith("is not installed"):
            raise
        return {"state": _by_firmware(), "enrolled": None}
    if state is None:
        raise Unlearned(f"mokutil --sb-state says: {(out + err).strip()[:200] or 'nothing'}")
    enrolled: bool | None = None
    for key in MODULE_KEYS if state == "enabled" else ():
        if os.path.exists(key):
            _, out, err = run_tool(["mokutil", "--test-key", key], limit(request))
            enrolled = bool(enrolled) or "is already enrolled" in out + err
    return {"state": state, "enrolled": enrolled}


def _by_firmware() -> str:
    """Secure Boot without mokutil: the firmware's variable, four bytes of attributes, then 1 or 0
    (UEFI specification, "Globally Defined Variables")."""
    if not os.path.isdir("/sys/firmware/efi"):
        return "not applicable"
    try:
        with open(SECURE_BOOT, "rb") as file:
            return "enabled" if file.read()[4:5] == b"\1" else "disabled"
    except FileNotFoundError:
        return "disabled"


def version_key(kernel: str) -> list[int]:
    """To sort kernels: their numbers in order."""
    return [int(number) for number in re.findall(r"\d+", kernel)]


def kernels(request: Request) -> dict[str, Any]:
    """The running and the newest installed kernel, and which of them have their headers."""
    matter = _kernels_that_matter()
    headers = {kernel: os.path.isdir(f"/lib/modules/{kernel}/build") for kernel in matter}
    return {"running": os.uname().release, "newest": _newest_kernel(), "headers": headers}


def _newest_kernel() -> str | None:
    installed = [
        path.removeprefix("/boot/vmlinuz-")
        for path in glob.glob("/boot/vmlinuz-*")
        if os.path.isdir(f"/lib/modules/{path.removeprefix('/boot/vmlinuz-')}")
    ]
    return max(installed, key=version_key, default=None)


def _kernels_that_matter() -> list[str]:
    running, newest = os.uname().release, _newest_kernel()
    return [running] if newest in (None, running) else [running, str(newest)]


def boot(request: Request, required: str = "/run/reboot-required.pkgs") -> dict[str, Any]:
    """This boot's id, and the packages that asked for a reboot (update-notifier's file)."""
    packages = sorted(set(read(required).split())) if os.path.exists(required) else []
    boot_id = read("/proc/sys/kernel/random/boot_id").strip()
    return {"boot_id": boot_id, "required_by": packages}


LOOKS: dict[str, Callable[[Request], Any]] = {
    "gpus": gpus,
    "driver": driver,
    "modules": modules,
    "nouveau": nouveau,
    "secure_boot": secure_boot,
    "kernels": kernels,
    "boot": boot,
    **platform_apt.LOOKS,
    **platform_cuda.LOOKS,
}
