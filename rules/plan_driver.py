"""What must change for the driver: headers, installation, holds, boot image, loading (G6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from files.agent.apt_answers import parse_simulation
from files.agent.nvidia_stack import branch_of
from rules.change import Change
from rules.desired_platform import Driver
from rules.driver import NOUVEAU, as_asked, ignored_by, other_branches, pins, stack, unheld
from rules.driver_guard import last_branch
from rules.reboot import State

INSTALL = "driver"
HOLD = "driver:hold"
LOAD = "driver:load"
INITRAMFS = "initramfs"

Part = Mapping[str, Any]


def changes(driver: Driver, part: Part, lock_wait_s: int, needs: tuple[str, ...]) -> list[Change]:
    """The changes for the driver, in order. `needs`: the registration of its repository."""
    changing = not as_asked(driver, part["packages"])
    planned = _headers(driver, part, lock_wait_s, changing=changing)
    if changing:
        before = (*needs, *(change.id for change in planned))
        planned.append(_install(driver, part, lock_wait_s, before))
    else:
        planned += _dkms(part, tuple(change.id for change in planned))
        planned += [*_prebuilt(part, lock_wait_s), *_hold(driver, part)]
    planned += _initramfs(driver, part, (INSTALL,) if changing else ())
    if not changing:
        planned += _load(part)
    return planned


def states(driver: Driver | None, part: Part) -> list[State]:
    """DRIVER_TOO_NEW where the driver that is loaded ignores a card (C05)."""
    loaded = part["driver"]["loaded"]
    declared = driver.generations if driver else {}
    last = last_branch(part["gpus"]["devices"], declared)
    said = ignored_by(part["driver"]["log"])
    version = said[0] if said else loaded
    last = said[1] if said else last
    branch = branch_of(version or "")
    if branch is None or last is None or branch <= last:
        return []
    return [
        State(
            "DRIVER_TOO_NEW",
            f"DRIVER_TOO_NEW: driver {version} ignores a card of this host, highest is {last}: "
            f"set driver_source and driver_branch {last}",
        )
    ]


def _install(driver: Driver, part: Part, lock_wait_s: int, needs: tuple[str, ...]) -> Change:
    packages = part["packages"]
    others = other_branches(packages, driver.branch)
    return Change(
        id=INSTALL,
        area="platform",
        verb="move" if others else "install",
        thing="NVIDIA driver",
        before=_before(driver, part, others),
        after=f"branch {driver.branch}, {driver.flavour} modules"
        + (", held" if driver.hold else "")
        + _given(part),
        reason=("G6",),
        needs=needs,
        action={
            "do": "driver.install",
            "packages": list(driver.packages),
            "branch": driver.branch,
            "flavour": driver.flavour,
            "hold": driver.hold,
            "pins": pins(driver),
            "lock_wait_s": lock_wait_s,
        },
    )


def _before(driver: Driver, part: Part, others: Mapping[int, list[str]]) -> str:
    if others:
        return "; ".join(
            f"branch {branch} ({len(names)} packages)" for branch, names in sorted(others.items())
        )
    missing = [
        name
        for name in driver.packages
        if part["packages"].get(name, {}).get("status") != "installed"
    ]
    return f"not installed: {', '.join(missing)}" if missing else "not installed"


def _given(part: Part) -> str:
    """What apt would do, for a dry run, where it can say already."""
    answer = part.get("simulation")
    if not answer or answer.get("rc") != 0:
        return ""
    simulation = parse_simulation(answer["out"])
    count = len(simulation.installs)
    removes = f" and removes {len(simulation.removes)}" if simulation.removes else ""
    return f" (apt installs {count} packages{removes})"


def _hold(driver: Driver, part: Part) -> list[Change]:
    """Holds alone: no package is installed again for them (C01)."""
    names = unheld(part["packages"])
    if not driver.hold or not names:
        return []
    count = len(stack(part["packages"]))
    return [
        Change(
            id=HOLD,
            area="platform",
            verb="hold",
            thing="NVIDIA driver packages",
            before=f"hold incomplete: {', '.join(names)}",
            after=f"all {count} held",
            reason=("G6",),
            action={"do": "driver.hold"},
        )
    ]


def _headers(driver: Driver, part: Part, lock_wait_s: int, *, changing: bool) -> list[Change]:
    """Headers of the running and the newest kernel, where modules are built on the host.

    Without them DKMS skips a kernel without an error, and the next boot has no driver. A host
    whose kernel is no package of its own (a container) has nothing to build for.
    """
    kernels = part["kernels"]
    if kernels["newest"] is None or not _builds(driver, part, changing=changing):
        return []
    return [
        Change(
            id=f"headers:{kernel}",
            area="platform",
            verb="install",
            thing=f"headers of kernel {kernel}",
            before="absent, so no driver is built for it",
            after="installed",
            reason=("G6",),
            action={
                "do": "package.install",
                "name": f"linux-headers-{kernel}",
                "version": None,
                "lock_wait_s": lock_wait_s,
            },
        )
        for kernel, present in kernels["headers"].items()
        if not present
    ]


def _builds(driver: Driver, part: Part, *, changing: bool) -> bool:
    names = [*stack(part["packages"]), *(driver.packages if changing else ())]
    prebuilt = any(name.startswith("linux-modules-nvidia-") for name in driver.packages)
    return not prebuilt if changing else any("dkms" in name for name in names)


def _dkms(part: Part, needs: tuple[str, ...]) -> list[Change]:
    """Kernels that DKMS should have built the driver for and has not."""
    if part["kernels"]["newest"] is None or not any("dkms" in n for n in stack(part["packages"])):
        return []
    rows = part["dkms"]["modules"]
    built = {row["kernel"] for row in rows if row["state"] == "installed"}
    return [
        Change(
            id=f"dkms:{kernel}",
            area="platform",
            verb="build",
            thing=f"NVIDIA modules for kernel {kernel}",
            before=", ".join(row["state"] for row in rows if row["kernel"] == kernel)
            or "not built",
            after="installed by DKMS",
            reason=("G6",),
            needs=needs,
            action={"do": "driver.dkms", "kernel": kernel},
        )
        for kernel in part["kernels"]["headers"]
        if kernel not in built
    ]


def _prebuilt(part: Part, lock_wait_s: int) -> list[Change]:
    """Ubuntu's prebuilt modules for the newest kernel. The meta package that would bring them with
    a kernel is held, and without them the next boot has no driver."""
    running, newest = part["kernels"]["running"], part["kernels"]["newest"]
    installed = stack(part["packages"])
    ending = f"-{running}"
    names = [
        name.removesuffix(ending) + f"-{newest}"
        for name in installed
        if name.startswith("linux-modules-nvidia-") and name.endswith(ending)
    ]
    return [
        Change(
            id=f"modules:{newest}",
            area="platform",
            verb="install",
            thing=f"NVIDIA modules for kernel {newest}",
            before=f"package {name} is not installed",
            after="installed",
            reason=("G6",),
            action={
                "do": "package.install",
                "name": name,
                "version": None,
                "lock_wait_s": lock_wait_s,
            },
        )
        for name in names
        if newest is not None and name not in installed
    ]


def _initramfs(driver: Driver, part: Part, needs: tuple[str, ...]) -> list[Change]:
    """Images from which nouveau is loaded before the file that forbids it is read (C06)."""
    if not driver.blacklist_nouveau:
        return []
    wrong = [
        kernel
        for kernel, image in part["nouveau"]["initramfs"].items()
        if image["nouveau"] and (image["stale"] or not image["blacklist"])
    ]
    if not wrong:
        return []
    return [
        Change(
            id=INITRAMFS,
            area="platform",
            verb="rebuild",
            thing="initramfs",
            before=f"loads nouveau for kernel {', '.join(wrong)}, {NOUVEAU} is not in it",
            after="keeps nouveau away",
            reason=("G6",),
            needs=needs,
            action={"do": "initramfs.rebuild", "kernels": wrong},
        )
    ]


def _load(part: Part) -> list[Change]:
    """The modules and the device nodes, where nothing but the loading is missing."""
    found, loaded = part["driver"], part["modules"]["loaded"]
    if not part["gpus"]["devices"] or "nouveau" in loaded or not found["on_disk"]:
        return []
    if found["loaded"] is None:
        before = "not loaded"
    elif "nvidia_uvm" not in loaded:
        before = "nvidia-uvm is not loaded"
    elif "/dev/nvidia-uvm" not in found["nodes"]:
        before = "/dev/nvidia-uvm is missing"
    else:
        return []
    return [
        Change(
            id=LOAD,
            area="platform",
            verb="load",
            thing="NVIDIA kernel modules",
            before=before,
            after="nvidia and nvidia-uvm loaded, device nodes there",
            reason=("G6",),
            action={"do": "driver.load"},
        )
    ]
