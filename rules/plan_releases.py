"""Releases: what must be built (or shipped, which the operation decides)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rules.change import Change
from rules.desired import Desired, Release
from rules.observed import Observed, Unknown


def changes(desired: Desired, observed: Observed) -> list[Change]:
    """A change for every wanted release that is not there whole."""
    planned = [_release(release, desired, observed) for release in desired.releases]
    return [change for change in planned if change is not None]


def change_id(release: Release) -> str:
    """``release:llama_cpp:<fingerprint>``, by which other changes need it."""
    return f"release:{release.engine}:{release.fingerprint}"


def _release(release: Release, desired: Desired, observed: Observed) -> Change | None:
    found = observed.of("releases", release.root)
    if isinstance(found, Unknown):
        return _change(release, f"unknown: {found.reason}", None)
    present = (found or {}).get("present", {})
    there = present.get(release.fingerprint)
    if there is None:
        return _change(release, "absent", _action(release, desired))
    if there.get("sound"):
        return None
    return _change(release, f"not whole: {there.get('reason')}", _action(release, desired))


def _change(release: Release, before: str, action: Mapping[str, Any] | None) -> Change:
    source = release.source.commit or release.source.sha256 or ""
    return Change(
        id=change_id(release),
        area="llama_cpp",
        verb="build",
        thing=f"release {release.fingerprint or 'of this system'} of {release.engine}",
        before=before,
        after=f"from {release.source.kind} {source[:12]}, {', '.join(release.targets)}",
        reason=release.reason,
        action=action,
    )


def _action(release: Release, desired: Desired) -> dict[str, Any]:
    source = release.source
    proof = {"commit": source.commit} if source.kind == "git" else {"sha256": source.sha256}
    return {
        "do": "release.build",
        "engine": release.engine,
        "root": release.root,
        "fingerprint": release.fingerprint,
        "source": {"kind": source.kind, "url": source.url, **proof},
        "options": dict(release.options),
        "targets": list(release.targets),
        "build_packages": list(release.build_packages),
        "compiler": release.compiler,
        "jobs": release.jobs,
        "flags_used": list(release.flags_used),
        "architectures_used": list(release.architectures_used),
        "hints": dict(release.flag_hints),
        "lock_wait_s": desired.apt_lock_wait_s,
    }
