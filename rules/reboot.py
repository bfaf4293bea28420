"""Which reboots a host needs, and whether it may have one (G6, G7).

A reboot is planned only where the data allows it, at most once in a run, and proved by another
boot id; a host that may not reboot ends as REBOOT_REQUIRED with the reasons, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from files.agent.nvidia_stack import in_stack
from rules.change import Change
from rules.desired_platform import Driver, Reboots
from rules.driver import stack

ID = "reboot"
REQUIRED = "REBOOT_REQUIRED"

Part = Mapping[str, Any]


@dataclass(frozen=True)
class State:
    """What a host is in beside its plan: a word from a short list and one sentence."""

    word: str  # REBOOT_REQUIRED, DRIVER_TOO_NEW, COEXISTS, HELD
    sentence: str


def reasons(driver: Driver | None, part: Part) -> list[str]:
    """What of the platform is only made so by a reboot, one clause each.

    `part` is the probe's answer about the platform. Loaded, on-disk and library versions that
    differ are the "Driver/library version mismatch" of C01: no package is the remedy.
    """
    found = [*_versions(part["driver"])]
    loaded = part["modules"]["loaded"]
    bound = part["nouveau"]["bound"]
    if driver is not None and (bound or "nouveau" in loaded):
        what = f"has the cards {', '.join(bound)}" if bound else "is loaded"
        found.append(f"nouveau {what} and gives way to the driver only at a boot")
    kernels = part["kernels"]
    running, newest = kernels["running"], kernels["newest"]
    built = {row["kernel"] for row in part["dkms"]["modules"] if row["state"] == "installed"}
    if driver and stack(part["packages"]) and newest in built and running not in built:
        found.append(f"the driver is built for kernel {newest}, and {running} is running")
    asking = [name for name in part["boot"]["required_by"] if in_stack(name)]
    if asking and not found:
        found.append(f"{', '.join(asking)} asks for a reboot")
    return found


def _versions(driver: Part) -> list[str]:
    loaded, on_disk, library = driver["loaded"], driver["on_disk"], driver["library"]
    if loaded is None:
        return []
    if isinstance(on_disk, str) and on_disk != loaded:
        return [f"driver {loaded} is loaded, {on_disk} is on disk"]
    if library is not None and library != loaded:
        return [f"driver {loaded} is loaded, the library is {library}"]
    return []


def change(
    why: Sequence[str], policy: Reboots, boot_id: str, needs: Sequence[str] = ()
) -> Change | None:
    """The reboot as the last change of a plan; None where there is no reason or no permission.

    Its action must not be sent together with others: `operations` sends it alone, when the host's
    turn has come, and waits for another boot id (`proved`).
    """
    if not why or not policy.allowed:
        return None
    return Change(
        id=ID,
        area="platform",
        verb="reboot",
        thing="host",
        before="; ".join(why),
        after="booted again",
        reason=("G6",),
        needs=tuple(needs),
        action={"do": "host.reboot", "boot_id": boot_id, "why": "; ".join(why)},
    )


def state(why: Sequence[str], policy: Reboots) -> State | None:
    """REBOOT_REQUIRED with its reasons, where no run may reboot the host."""
    if not why or policy.allowed:
        return None
    return State(REQUIRED, f"{REQUIRED}: {'; '.join(why)}; reboot it, or set reboot_allowed")


def proved(before: str, after: str | None, timeout_s: int) -> str | None:
    """None when a host has really booted again, by its boot ids; else one sentence."""
    if after is None:
        return f"it did not come back within {timeout_s} s after the reboot: look at its console"
    if after == before:
        return "it answers with the same boot id: it did not reboot, see 'journalctl -u systemd-*'"
    return None
