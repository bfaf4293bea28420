"""Packages: what must be installed that is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rules.change import Change
from rules.desired import Desired, Package
from rules.observed import Observed, Unknown

REPAIR = "packages:repair"


def changes(desired: Desired, observed: Observed) -> list[Change]:
    """One change per package that is missing, half removed or at another version than asked.

    An interrupted dpkg is repaired first, also when nothing is to be installed: until then apt
    refuses everything, security updates included.
    """
    if not desired.packages:
        return []
    repair = _repair(desired, observed)
    needs = tuple(change.id for change in repair)
    planned = [_install(package, desired, observed, needs) for package in desired.packages]
    return repair + [change for change in planned if change is not None]


def _repair(desired: Desired, observed: Observed) -> list[Change]:
    state = observed.part("packages_state")
    if isinstance(state, Unknown) or not state.get("interrupted"):
        return []
    return [
        Change(
            id=REPAIR,
            area="packages",
            verb="repair",
            thing="package database",
            before="an earlier dpkg was interrupted",
            after="dpkg --configure -a done",
            action={"do": "package.repair", "lock_wait_s": desired.apt_lock_wait_s},
        )
    ]


def _install(
    package: Package, desired: Desired, observed: Observed, needs: tuple[str, ...]
) -> Change | None:
    found = observed.of("packages", package.name)
    after = f"version {package.version}" if package.version else "installed"
    action = {
        "do": "package.install",
        "name": package.name,
        "version": package.version,
        "lock_wait_s": desired.apt_lock_wait_s,
    }
    if isinstance(found, Unknown):
        before, known = f"unknown: {found.reason}", False
    else:
        before, known = _difference(package, found), True
    if not before:
        return None
    return Change(
        id=f"package:{package.name}",
        area="packages",
        verb="install",
        thing=f"package {package.name}",
        before=before,
        after=after,
        reason=package.reason,
        needs=needs,
        action=action if known else None,
    )


def _difference(package: Package, found: Mapping[str, Any] | None) -> str:
    """What is there instead of the package; empty when it is as it must be."""
    if found is None:
        return "not installed"
    if found.get("status") == "config-files":
        return "removed, its configuration left"
    if found.get("status") != "installed":
        return f"{found.get('status')} only"
    if package.version is not None and found.get("version") != package.version:
        held = ", held" if found.get("held") else ""
        return f"version {found.get('version')}{held}"
    return ""
