"""The system itself: release, memory, DMI, accounts, kernel parameters, kernel modules."""

# Paths are handled with os.path: pathlib would double what the agent imports at start.
# ruff: noqa: PTH112, PTH208
from __future__ import annotations

import grp
import os
import pwd
import sys
from typing import Any

from .probe_tools import Unlearned


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read().decode("utf-8", "replace")


def parse_os_release(text: str) -> dict[str, str]:
    """The assignments of ``/etc/os-release`` (os-release(5): shell syntax, one per line)."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if not equals or key.startswith("#"):
            continue
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        for escaped in '"$`\\':
            value = value.replace(f"\\{escaped}", escaped)
        values[key] = value
    return values


def parse_meminfo(text: str) -> dict[str, int]:
    """``/proc/meminfo`` in bytes (the kernel counts in units of 1024 bytes)."""
    values: dict[str, int] = {}
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            values[key] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    return values


def _glibc() -> str | None:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")[2] or None
    except (ValueError, OSError):
        return None  # another C library


def system() -> dict[str, Any]:
    """Operating system, kernel, machine and memory."""
    try:
        release = parse_os_release(_read("/etc/os-release"))
    except FileNotFoundError:
        release = parse_os_release(_read("/usr/lib/os-release"))
    memory = parse_meminfo(_read("/proc/meminfo"))
    kernel = os.uname()
    return {
        "id": release.get("ID", "linux"),
        "version": release.get("VERSION_ID"),  # Debian's unstable release has none
        "name": release.get("PRETTY_NAME", release.get("NAME", "")),
        "kernel": kernel.release,
        "machine": kernel.machine,
        "glibc": _glibc(),
        "hostname": kernel.nodename,
        "boot_id": _read("/proc/sys/kernel/random/boot_id").strip(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": memory["MemTotal"],
        "memory_available_bytes": memory["MemAvailable"],
        "python": ".".join(str(number) for number in sys.version_info[:3]),
        "uid": os.getuid(),
    }


def dmi(folder: str = "/sys/class/dmi/id") -> dict[str, str | None]:
    """Vendor and product as the firmware tells; null on machines without DMI."""
    values: dict[str, str | None] = {}
    for name in ("sys_vendor", "product_name"):
        try:
            values[name] = _read(f"{folder}/{name}").strip()
        except FileNotFoundError:
            values[name] = None
    return values


def group(name: str) -> dict[str, Any] | None:
    """A group's number, from wherever the host keeps accounts."""
    try:
        return {"gid": grp.getgrnam(name).gr_gid}
    except KeyError:
        return None


def user(name: str) -> dict[str, Any] | None:
    """A user; ``group`` is the primary group, ``groups`` the supplementary ones, sorted."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    names: list[str] = []
    for gid in os.getgrouplist(name, entry.pw_gid):
        try:
            names.append(grp.getgrgid(gid).gr_name)
        except KeyError:
            names.append(str(gid))
    return {
        "uid": entry.pw_uid,
        "home": entry.pw_dir,
        "shell": entry.pw_shell,
        "group": names[0] if names else str(entry.pw_gid),
        "groups": sorted(names[1:]),
    }


def sysctl_path(key: str) -> str:
    """The file of a kernel parameter.

    As sysctl(8): where the first separator is a dot, dots separate and a slash stands for a dot
    in a name (``net.ipv4.conf.eth0/1.forwarding``); otherwise slashes separate.
    """
    first = next((letter for letter in key if letter in "./"), "/")
    if first == ".":
        key = key.translate(str.maketrans("./", "/."))
    if ".." in key.split("/"):
        raise Unlearned("is not the name of a kernel parameter")
    return f"/proc/sys/{key}"


def sysctl(key: str) -> dict[str, str] | None:
    """A kernel parameter's value, its words separated by single spaces."""
    try:
        return {"value": " ".join(_read(sysctl_path(key)).split())}
    except (FileNotFoundError, NotADirectoryError):
        return None


def module(
    name: str, modules: str = "/sys/module", nvidia: str = "/proc/driver/nvidia/params"
) -> dict[str, Any]:
    """Whether a kernel module is loaded, and its options in effect as the kernel prints them.

    An option that may not be read is ``{"unknown": reason}``.
    """
    folder = f"{modules}/{name.replace('-', '_')}"
    if not os.path.isdir(folder):
        return {"loaded": False, "options": {}}
    options: dict[str, Any] = {}
    try:
        present = sorted(os.listdir(f"{folder}/parameters"))
    except FileNotFoundError:
        present = []
    for option in present:
        try:
            options[option] = _read(f"{folder}/parameters/{option}").strip()
        except OSError as error:
            options[option] = {"unknown": error.strerror}
    if name == "nvidia":
        # The driver keeps its options out of sysfs; this file gives them without their prefix.
        try:
            lines = _read(nvidia).splitlines()
        except FileNotFoundError:
            lines = []
        for line in lines:
            option, colon, value = line.partition(":")
            if colon:
                options[f"NVreg_{option.strip()}"] = value.strip().strip('"')
    return {"loaded": True, "options": options}
