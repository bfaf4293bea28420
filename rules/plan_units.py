"""systemd units: daemon-reload once, then unmask, enable, start, restart or stop."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rules import restarts
from rules.change import Change
from rules.desired import Desired, File, Unit
from rules.observed import Observed, Unknown
from rules.plan_files import SYSTEMD

ENABLED = ("enabled", "static", "alias", "indirect", "generated")
RUNNING = ("active", "reloading", "activating")
START_LIMIT_S = 90  # systemd's own default, DefaultTimeoutStartSec


def unit_changes(
    desired: Desired, observed: Observed, area: str, changed_paths: Mapping[str, str]
) -> list[Change]:
    """Changes of an area's units.

    `changed_paths` are the paths that this plan changes before, with the ids of those changes
    (`plan_files.changed_paths`): a unit waits for its own unit file, for every path that this
    file mentions, and for those mentioned there.
    """
    units = [unit for unit in desired.units if unit.area == area]
    reload = _reload(units, observed, area, changed_paths)
    changes = list(reload)
    for unit in units:
        changes += _unit(unit, desired, observed, changed_paths, tuple(c.id for c in reload))
    return changes


def _reload(
    units: list[Unit], observed: Observed, area: str, changed_paths: Mapping[str, str]
) -> list[Change]:
    files = sorted(path for path in changed_paths if path.startswith(SYSTEMD))
    stale = []
    for unit in units:
        found = observed.of("units", unit.name)
        if isinstance(found, Mapping) and found.get("need_reload"):
            stale.append(unit.name)
    if not files and not stale:
        return []
    return [
        Change(
            id="systemd" if area == "files" else f"systemd:{area}",
            area=area,
            verb="reload",
            thing="systemd",
            before=f"has not read {', '.join(files or stale)}",
            after="has read its unit files",
            action={"do": "unit.reload"},
        )
    ]


def unit_files(unit: str) -> tuple[str, str]:
    """Beginnings of the paths that make a unit up: its file or template's, and its drop-ins."""
    stem, dot, kind = unit.rpartition(".")
    template = f"{stem.partition('@')[0]}@{dot}{kind}" if "@" in stem else unit
    return f"{SYSTEMD}{template}", f"{SYSTEMD}{unit}"


def _depends_on(unit: Unit, desired: Desired, changed_paths: Mapping[str, str]) -> dict[str, str]:
    """The changed paths that a unit reads, as far as its own files tell, and those they name."""
    own = [file for file in desired.files if _is_own(file.path, unit.name)]
    text = _text(own, unit)
    named = [file for file in desired.files if file not in own and _mentions(text, file.path)]
    text += _text(named, unit)  # an environment file names a key file, a model's link
    return {
        path: change_id
        for path, change_id in changed_paths.items()
        if _is_own(path, unit.name) or _mentions(text, path)
    }


def _is_own(path: str, unit: str) -> bool:
    return any(path == start or path.startswith(f"{start}.d/") for start in unit_files(unit))


def _text(files: list[File], unit: Unit) -> str:
    """The lines of files that hold no secret, with the specifiers for a template's instance."""
    instance = unit.name.rpartition(".")[0].partition("@")[2]
    text = "".join(f.content.decode(errors="replace") + "\n" for f in files if not f.secret)
    return text.replace("%i", instance).replace("%I", instance)


def _mentions(text: str, path: str) -> bool:
    return re.search(rf"(?<![\w./-]){re.escape(path)}(?![\w.@-])", text) is not None


def _unit(
    unit: Unit,
    desired: Desired,
    observed: Observed,
    changed_paths: Mapping[str, str],
    reload: tuple[str, ...],
) -> list[Change]:
    depends = _depends_on(unit, desired, changed_paths)
    needs = tuple(dict.fromkeys(depends.values()))
    found = observed.of("units", unit.name)
    changes: list[Change] = []

    def add(verb: str, before: str, after: str, more: tuple[str, ...], **arguments: Any) -> None:
        unmasked = tuple(change.id for change in changes if change.verb == "unmask")
        action = {"do": f"unit.{verb}", "name": unit.name, **arguments}
        changes.append(
            Change(
                id=f"unit:{unit.name}:{verb}",
                area=unit.area,
                verb=verb,
                thing=f"unit {unit.name}",
                before=before,
                after=after,
                reason=unit.reason,
                needs=(*needs, *unmasked, *more),
                action=None if before.startswith("unknown: ") else action,
            )
        )

    if isinstance(found, Unknown):
        unknown = f"unknown: {found.reason}"
        add(
            *(("enable", unknown, "enabled") if unit.enabled else ("disable", unknown, "disabled")),
            (),
        )
        add(
            *(("start", unknown, "active") if unit.active else ("stop", unknown, "inactive")),
            reload,
        )
        return changes
    state = found or {"load": "absent", "active": "inactive", "enabled": "", "sub": "dead"}
    limit_s = _limit_s(unit, desired)
    wanted = unit.enabled or unit.active
    # a mask that stands in the place of the unit's own file is gone once that is written
    if wanted and _masked(state) and f"{SYSTEMD}{unit.name}" not in changed_paths:
        add("unmask", "masked", "unmasked", ())
    enabled = str(state["enabled"])
    if unit.enabled and enabled not in ENABLED:
        add("enable", enabled or "not enabled", "enabled", ())
    if not unit.enabled and enabled.startswith("enabled"):
        add("disable", enabled, "disabled", ())
    if not unit.active:
        if state["active"] not in ("inactive", "failed"):
            add("stop", str(state["active"]), "inactive", (), limit_s=limit_s)
        return changes
    retrying = state.get("sub") == "auto-restart"
    if state["active"] not in RUNNING or retrying:
        before = "failing again and again" if retrying else str(state["active"])
        add("start", before, "active", reload, limit_s=limit_s)
        return changes
    why = restarts.reason(unit, state, depends, desired, observed)
    if why:
        back = sorted(
            path for path, change_id in depends.items() if change_id.startswith(("file:", "link:"))
        )
        after = "running as wanted" if unit.stamp is None else f"running as {unit.stamp[:12]}"
        add("restart", why, after, reload, limit_s=limit_s, put_back=back)
    return changes


def _masked(state: Mapping[str, Any]) -> bool:
    return state["load"] == "masked" or str(state["enabled"]).startswith("masked")


def _limit_s(unit: Unit, desired: Desired) -> int:
    """Seconds that a start may take: as the instance says whose unit it is."""
    limits = [i.start_timeout_s for i in desired.instances if i.unit == unit.name]
    return limits[0] if limits else START_LIMIT_S
