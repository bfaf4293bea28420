"""What stops a host before its driver is touched: a driver that its cards, its firmware or its
package sources would not carry (G6, C04, C05, C07).

Each refusal is one sentence; one that begins with ``DRIVER_TOO_NEW`` has that verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from files.agent.nvidia_stack import is_open, is_unsuffixed, named_branch
from rules.apt_answers import judge
from rules.desired_platform import Driver
from rules.driver import stack
from rules.gpu_generations import GENERATIONS, Generation, generation_of

Part = Mapping[str, Any]


def refusals(driver: Driver, part: Part, *, changing: bool) -> list[str]:
    """Why this driver must not be on this host, or can't get there; empty when nothing speaks
    against it.

    `part` is the probe's answer about the platform, whole (nothing in it unknown). What concerns
    the cards is said always, what concerns the way there only when the driver is `changing`.
    """
    found = [*_cards(driver, part["gpus"]["devices"]), *_names(driver)]
    if changing:
        found += _secure_boot(driver, part)
        if not found and part.get("simulation"):
            entries = part["apt_sources"]["entries"]
            found += judge(part["simulation"], driver.branch, driver.flavour, entries)
    return found


def generations(
    devices: list[Mapping[str, Any]], declared: Mapping[str, str]
) -> tuple[dict[str, Generation], dict[str, list[str]]]:
    """Generation by device id, and the addresses of cards that no table knows, by device id."""
    known: dict[str, Generation] = {}
    unknown: dict[str, list[str]] = {}
    for device in devices:
        name = str(device["device"])
        said = declared.get(f"10de:{name}")
        generation = GENERATIONS[said] if said else generation_of(name)
        if generation is None:
            unknown.setdefault(name, []).append(device["address"])
        else:
            known[name] = generation
    return known, unknown


def last_branch(devices: list[Mapping[str, Any]], declared: Mapping[str, str]) -> int | None:
    """The highest driver branch that drives every card here; None: no card sets a limit."""
    known, _ = generations(devices, declared)
    return min((g.last_branch for g in known.values() if g.last_branch), default=None)


def _cards(driver: Driver, devices: list[Mapping[str, Any]]) -> list[str]:
    known, unknown = generations(devices, driver.generations)
    found = [
        f"the card 10de:{name} at {', '.join(addresses)} is of no generation known here: say which "
        f"in gpu_generations ('10de:{name}': one of {', '.join(GENERATIONS)})"
        for name, addresses in unknown.items()
    ]
    opened = driver.flavour == "open" or any(is_open(name) for name in driver.packages)
    for name, generation in known.items():
        where = ", ".join(d["address"] for d in devices if d["device"] == name)
        card = f"the {generation.name.capitalize()} card 10de:{name} at {where}"
        last = generation.last_branch
        if last is not None and driver.branch > last:
            found.append(
                f"DRIVER_TOO_NEW: driver branch {driver.branch} asked, it ignores {card} (highest "
                f"is {last}): set driver_branch to {last} or lower"
            )
        unsuffixed = [package for package in driver.packages if is_unsuffixed(package)]
        if last is not None and unsuffixed:
            found.append(
                f"DRIVER_TOO_NEW: package {unsuffixed[0]} means the newest driver there is, which "
                f"ignores {card} (highest is {last}): name a package of branch {last}"
            )
        if generation.open_modules == "never" and opened:
            found.append(
                f"the open kernel modules do not drive {card}, they need Turing or newer: set "
                "driver_flavour to 'proprietary' and ask for no '-open' package"
            )
        if generation.open_modules == "only" and not opened:
            found.append(
                f"the proprietary kernel modules do not drive {card}, Blackwell and later need the "
                "open ones: set driver_flavour to 'open'"
            )
    return found


def _names(driver: Driver) -> list[str]:
    return [
        f"package {name} of driver_packages is of branch {named_branch(name)}, driver_branch is "
        f"{driver.branch}: make them agree"
        for name in driver.packages
        if named_branch(name) not in (driver.branch, None)
    ]


def _secure_boot(driver: Driver, part: Part) -> list[str]:
    """Modules built on the host are signed with a key that the firmware must have been told of;
    those of Ubuntu's ``linux-modules-nvidia-*`` are signed by Canonical."""
    boot = part["secure_boot"]
    signed = any(
        name.startswith("linux-modules-nvidia-")
        for name in (*driver.packages, *stack(part["packages"]))
    )
    if boot["state"] != "enabled" or boot["enrolled"] or signed:
        return []
    return [
        "Secure Boot is on and the key for modules built here is not enrolled, so the kernel would "
        "refuse the driver (Key was rejected by service): run 'mokutil --import' with that key and "
        "confirm it at the console on the next boot, or turn Secure Boot off in the firmware, or "
        "ask for signed packages (linux-modules-nvidia-*)"
    ]
