"""The plan: what must change on a host, in order. Pure; the same for dry run and execution."""

from __future__ import annotations

from dataclasses import replace

from rules import (
    plan_accounts,
    plan_kernel,
    plan_models,
    plan_packages,
    plan_platform,
    plan_releases,
    plan_serving,
)
from rules.change import AREAS, Change
from rules.desired import Desired
from rules.observed import Observed, Unknown
from rules.plan_files import (
    changed_paths,
    directory_changes,
    file_changes,
    link_changes,
    wrong_kinds,
)
from rules.plan_units import unit_changes
from rules.reboot import State

BOOTSTRAP = "bootstrap:python3"

# The probe's parts that an area is planned from.
PARTS = {
    "packages": ("packages", "packages_state"),
    "accounts": ("groups", "users"),
    "files": ("directories", "files", "links", "units"),
    "kernel": ("sysctls", "modules", "units"),
    "llama_cpp": ("releases",),
    "models": ("models",),
    "serving": ("directories", "files", "links", "units"),
}


def plan(desired: Desired, observed: Observed) -> list[Change]:
    """Every change of a host in the order of AREAS; empty when it is as desired.

    Ids are unique. A change whose subject could not be learned has no action and says
    ``unknown: <reason>`` as before; on a host without python3 that is every change but the first.
    """
    changes = [
        *plan_packages.changes(desired, observed),
        *plan_accounts.changes(desired, observed),
        *_files(desired, observed),
        *(plan_platform.changes(desired.platform, observed) if desired.platform else []),
        *plan_kernel.changes(desired, observed),
        *_kernel_units(desired, observed),
        *plan_releases.changes(desired, observed),
        *plan_models.changes(desired, observed),
        *plan_serving.changes(desired, observed),
    ]
    changes.sort(key=lambda change: AREAS.index(change.area))  # stable: keeps an area's order
    if observed.nothing_known is not None:
        return [_bootstrap(observed.nothing_known), *(_later(change) for change in changes)]
    return changes


def refusals(desired: Desired, observed: Observed) -> list[str]:
    """Sentences that stop this host before any change; empty when it may be converged.

    On a host without python3 nothing can be said yet: the bootstrap asks the system itself.
    """
    if observed.nothing_known is not None:
        return []
    unlearned_parts = [sentence for area in PARTS for sentence in unlearned(observed, area)]
    return [
        *_unsupported(desired, observed),
        *dict.fromkeys(unlearned_parts),
        *plan_accounts.refusals(desired, observed),
        *wrong_kinds(desired, observed),
        *(plan_platform.refusals(desired.platform, observed) if desired.platform else []),
    ]


def states(desired: Desired, observed: Observed) -> list[State]:
    """What a host is in beside its plan (REBOOT_REQUIRED, HELD…), each with a sentence."""
    return plan_platform.states(desired.platform, observed) if desired.platform else []


def unlearned(observed: Observed, area: str) -> list[str]:
    """Sentences on what an area is planned from and the probe was asked and could not learn.

    Parts that the answer does not have were not asked about; whatever is planned from them all
    the same has no action and says so.
    """
    if observed.nothing_known is not None:
        return [f"nothing is known about this host: {observed.nothing_known}"]
    sentences = []
    for part in PARTS.get(area, ()):
        found = observed.part(part)
        if isinstance(found, Unknown) and part in observed.document:
            sentences.append(
                f"the probe could not learn the host's {part.replace('_', ' ')} ({found.reason}): "
                "nothing is changed that depends on it"
            )
    return sentences


def _files(desired: Desired, observed: Observed) -> list[Change]:
    paths = [
        *directory_changes(desired, observed, "files"),
        *file_changes(desired, observed, "files"),
        *link_changes(desired, observed, "files"),
    ]
    return paths + unit_changes(desired, observed, "files", changed_paths(paths))


def _kernel_units(desired: Desired, observed: Observed) -> list[Change]:
    """Units that need the driver; those that it can't serve before the next boot wait for it."""
    changes = unit_changes(desired, observed, "kernel", {})
    if desired.platform is None or not plan_platform.out_of_service(desired.platform, observed):
        return changes
    return [change for change in changes if change.verb not in ("start", "restart")]


def _bootstrap(reason: str) -> Change:
    return Change(
        id=BOOTSTRAP,
        area="bootstrap",
        verb="install",
        thing="python3",
        before=reason,
        after="installed",
    )


def _later(change: Change) -> Change:
    """A change as it is shown while nothing is known about the host."""
    return replace(
        change,
        before="unknown until python3 is there",
        needs=(BOOTSTRAP, *change.needs),
        action=None,
        diff=None,
    )


def _unsupported(desired: Desired, observed: Observed) -> list[str]:
    system = observed.part("system")
    if isinstance(system, Unknown):
        return [f"the operating system could not be learned: {system.reason}"]
    found = f"{system.get('id')} {system.get('version')}"
    if found in desired.supported_os:
        return []
    name = system.get("name") or found
    return [
        f"this host runs {name} ({found}), supported are {', '.join(desired.supported_os)}: "
        "install one of those, or add it to supported_os"
    ]
