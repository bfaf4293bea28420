"""The plan of the platform: CUDA, driver, boot. Pure; one list for dry run and execution alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rules import cuda, driver, driver_guard, plan_cuda, plan_driver, reboot
from rules.change import Change
from rules.desired import File, Unit
from rules.desired_platform import Platform, Reboots, Repository
from rules.observed import Observed, Unknown
from rules.reboot import State
from rules.schema_platform import PlatformConfig

# What each part of the plan is made from, as keys of the probe's part "platform".
FOR_TOOLKIT = (
    *("packages", "toolkits", "alternative", "nvcc", "cuda_proof", "path_lines"),
    *("repositories", "apt_sources"),
)
FOR_DRIVER = (
    *("gpus", "driver", "modules", "nouveau", "secure_boot", "kernels", "dkms", "boot"),
    *("packages", "simulation", "repositories", "apt_sources"),
)
MAY_BE_ABSENT = ("nvcc", "cuda_proof", "simulation")  # null is an answer

Part = Mapping[str, Any]


def platform(
    config: PlatformConfig, system: Mapping[str, Any] | None, lock_wait_s: int
) -> Platform:
    """The desired platform of a host; `system` is the probe's part of that name, if known."""
    return Platform(
        toolkit=cuda.toolkit(config),
        driver=driver.driver(config, system),
        reboots=Reboots(config.reboot_allowed, config.reboot_parallel, config.reboot_timeout_s),
        lock_wait_s=lock_wait_s,
    )


def files(wanted: Platform) -> list[File]:
    """The managed files of the platform; they are written before its packages are touched."""
    return [
        *(cuda.files(wanted.toolkit) if wanted.toolkit else []),
        *(driver.files(wanted.driver) if wanted.driver else []),
    ]


def units(wanted: Platform) -> list[Unit]:
    """The units of the platform."""
    return driver.units(wanted.driver) if wanted.driver else []


def question(wanted: Platform) -> dict[str, Any] | None:
    """What the probe is asked (``files/agent/platform.py``); None: nothing."""
    if wanted.toolkit is None and wanted.driver is None:
        return None
    asked: dict[str, Any] = {"toolkit": None, "driver": None}
    if wanted.toolkit:
        asked["toolkit"] = {"nvcc": cuda.nvcc_path(wanted.toolkit)}
    if wanted.driver:
        asked["driver"] = {
            "branch": wanted.driver.branch,
            "packages": list(wanted.driver.packages),
            "pins": driver.pins(wanted.driver),
        }
    asked["urls"] = [
        repository.url for repository in wanted.repositories if repository.suite != "/"
    ]
    return asked


def changes(wanted: Platform, observed: Observed) -> list[Change]:
    """Every change of the platform, in order; empty when it is as desired.

    While something it is made from is not known, toolkit and driver are each one change without
    an action that says ``unknown: <reason>``.
    """
    part, unknown = _learned(wanted, observed)
    if unknown:
        return _undecided(wanted, next(iter(unknown.values())))
    planned: list[Change] = []
    changing = wanted.driver is not None and not driver.as_asked(wanted.driver, part["packages"])
    own = wanted.driver.repository if wanted.driver else None
    if wanted.toolkit:
        shared = changing and own is not None and own == wanted.toolkit.repository
        planned += plan_cuda.changes(wanted.toolkit, part, wanted.lock_wait_s, driver_needs=shared)
    if wanted.driver:
        needs = _repository(own, part, planned, wanted.lock_wait_s) if changing else ()
        planned += plan_driver.changes(wanted.driver, part, wanted.lock_wait_s, needs)
        why = reboot.reasons(wanted.driver, part) or _coming(part, changing=changing)
        booted = reboot.change(
            why, wanted.reboots, part["boot"]["boot_id"], [change.id for change in planned]
        )
        planned += [booted] if booted else []
    return planned


def refusals(wanted: Platform, observed: Observed) -> list[str]:
    """Sentences that stop the host before anything is changed; empty when it may be converged."""
    if observed.nothing_known is not None or question(wanted) is None:
        return []
    part, unknown = _learned(wanted, observed)
    if unknown:
        return [
            f"the probe could not learn the host's {key.replace('_', ' ')} ({reason}): nothing of "
            "CUDA and the driver is changed"
            for key, reason in unknown.items()
        ]
    found = _sources(part["apt_sources"]["entries"])
    if wanted.driver:
        changing = not driver.as_asked(wanted.driver, part["packages"])
        pending = changing and _pending(wanted.driver.repository, part)
        judged = {**part, "simulation": None} if pending else part
        found += driver_guard.refusals(wanted.driver, judged, changing=changing)
    return found


def states(wanted: Platform, observed: Observed) -> list[State]:
    """What the host is in beside its plan: REBOOT_REQUIRED and the like, with the reasons."""
    part, unknown = _learned(wanted, observed)
    if unknown or question(wanted) is None:
        return []
    found = plan_cuda.states(wanted.toolkit, part) if wanted.toolkit else []
    if wanted.driver:
        found += plan_driver.states(wanted.driver, part)
        required = reboot.state(reboot.reasons(wanted.driver, part), wanted.reboots)
        found += [required] if required else []
    return found


def out_of_service(wanted: Platform, observed: Observed) -> bool:
    """Whether the driver serves no program on this host, and no change of this run makes it:
    there is no card, or only a reboot helps and none is allowed."""
    part, unknown = _learned(wanted, observed)
    if unknown or wanted.driver is None:
        return False
    if not part["gpus"]["devices"]:
        return True
    return bool(reboot.reasons(wanted.driver, part)) and not wanted.reboots.allowed


def faults(wanted: Platform, observed: Observed) -> list[str]:
    """What is wrong with a driver that was just moved, one clause each; empty when it is of one
    piece, held and, unless it waits for a boot that this run may not make, has every card."""
    part, unknown = _learned(wanted, observed)
    if wanted.driver is None or unknown:
        return [f"{key.replace('_', ' ')} unknown ({why})" for key, why in unknown.items()]
    found = []
    if not driver.as_asked(wanted.driver, part["packages"]):
        found.append(f"its packages are not all of branch {wanted.driver.branch}")
    open_holds = driver.unheld(part["packages"]) if wanted.driver.hold else []
    if open_holds:
        found.append(f"{', '.join(open_holds)} not held")
    found += [state.sentence for state in plan_driver.states(wanted.driver, part)]
    waits = reboot.reasons(wanted.driver, part)
    if waits and wanted.reboots.allowed:
        found += waits
    if not waits:
        found += [
            f"card {card['address']} is driven by {card['driver'] or 'nothing'}, expected nvidia"
            for card in part["gpus"]["devices"]
            if card["driver"] != "nvidia"
        ]
    return found


def _learned(wanted: Platform, observed: Observed) -> tuple[dict[str, Any], dict[str, str]]:
    """What the probe learned, and what it did not, with the reasons."""
    keys: dict[str, None] = {}
    keys.update(dict.fromkeys(FOR_TOOLKIT) if wanted.toolkit else {})
    keys.update(dict.fromkeys(FOR_DRIVER) if wanted.driver else {})
    part: dict[str, Any] = {}
    unknown: dict[str, str] = {}
    for key in keys:
        found = observed.of("platform", key)
        if isinstance(found, Unknown):
            unknown[key] = found.reason
        elif found is None and key not in MAY_BE_ABSENT:
            unknown[key] = "the probe gave no answer"
        else:
            part[key] = found
    return part, unknown


def _undecided(wanted: Platform, reason: str) -> list[Change]:
    named = {
        plan_cuda.INSTALL: wanted.toolkit and f"CUDA toolkit {wanted.toolkit.version}",
        plan_driver.INSTALL: wanted.driver and "NVIDIA driver",
    }
    after = {
        plan_cuda.INSTALL: "installed and proved",
        plan_driver.INSTALL: f"branch {wanted.driver.branch}" if wanted.driver else "",
    }
    return [
        Change(
            id=key,
            area="platform",
            verb="install",
            thing=thing,
            before=f"unknown: {reason}",
            after=after[key],
            reason=("G5",) if key == plan_cuda.INSTALL else ("G6",),
        )
        for key, thing in named.items()
        if thing
    ]


def _pending(repository: Repository | None, part: Part) -> bool:
    """Whether apt can't answer yet, because the repository asked is still to be registered."""
    if repository is None:
        return False
    found = part["repositories"].get(repository.key)
    return found is None or not found["sound"]


def _repository(
    own: Repository | None, part: Part, planned: list[Change], lock_wait_s: int
) -> tuple[str, ...]:
    """The changes the driver's installation waits for; its repository is added where missing."""
    if own is None or not _pending(own, part):
        return ()
    if plan_cuda.repository_id(own) not in {change.id for change in planned}:
        registration = plan_cuda.registration(own, part, lock_wait_s)
        planned += [registration] if registration else []
    return (plan_cuda.repository_id(own),)


def _coming(part: Part, *, changing: bool) -> list[str]:
    """The reboot that a planned move of a loaded driver will need."""
    loaded = part["driver"]["loaded"]
    return [f"driver {loaded} stays loaded until then"] if changing and loaded else []


def _sources(entries: list[Mapping[str, Any]]) -> list[str]:
    """Entries that make apt refuse all its sources, or trust what is not signed (C03)."""
    found = []
    by_address: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in entries:
        by_address.setdefault((entry["uri"], entry["suite"]), []).append(entry)
    for (uri, _), same in by_address.items():
        if len({entry["signed_by"] for entry in same}) > 1:
            said = ", ".join(f"{one['file']} ({one['signed_by'] or 'no key'})" for one in same)
            found.append(
                f"two entries for the repository {uri} name different keyrings, so that apt "
                f"reads no source at all: {said}; keep one of them"
            )
        unsigned = [entry["file"] for entry in same if entry["trusted"]]
        if unsigned:
            found.append(
                f"the entry for {uri} in {unsigned[0]} says trusted=yes, so that anybody could "
                "replace the driver: remove it, or give it signed-by"
            )
    return found
