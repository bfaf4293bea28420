"""Why a running unit must be restarted although nothing about it is to be changed.

The stamp in a process's environment tells which wanted state it was started with. What it does
not tell is whether somebody edited a file by hand before the process was started: it then runs
with the edit, under the right stamp, also after the file is put right. Times tell: of the edit,
and of the start. A file that was edited after the start is put right and nothing else happens,
since the process has never read the edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rules.desired import Desired, File, Link, Unit
from rules.observed import Observed


def reason(
    unit: Unit,
    state: Mapping[str, Any],
    paths: Iterable[str],
    desired: Desired,
    observed: Observed,
) -> str:
    """Why a running unit must be restarted; empty when it need not. See `Unit.stamp`.

    `paths` are those of the unit that this plan puts right before.
    """
    if unit.stamp is None:
        return ""
    stamp = state.get("stamp")
    if isinstance(stamp, Mapping):
        return f"unknown: what it was started from: {stamp.get('unknown')}"
    if stamp != unit.stamp:
        return f"running as {stamp[:12]}" if stamp else "running from before it was managed"
    if state.get("exe_deleted"):
        return "running a program that was replaced on disk"
    read = [path for path in sorted(paths) if _read_edited(path, state, desired, observed)]
    return f"started with {', '.join(read)} as found" if read else ""


def started_before(state: Mapping[str, Any], moment: float) -> bool:
    """Whether a unit's main process was started before a moment (seconds since 1970)."""
    started = state.get("started_at")
    return isinstance(started, (int, float)) and started < moment


def _read_edited(path: str, state: Mapping[str, Any], desired: Desired, observed: Observed) -> bool:
    """Whether the process was started when a path already was as it is found now: not right."""
    started = state.get("started_at")
    if not isinstance(started, (int, float)):
        return False
    things: list[File | Link] = [*desired.files, *desired.links]
    thing = next((item for item in things if item.path == path), None)
    if thing is None:
        return False
    found = observed.of("files" if isinstance(thing, File) else "links", path)
    if found is None:
        return _lacked(path, started, observed)
    if not isinstance(found, Mapping) or _is_right(thing, found):
        return False
    changed = found.get("changed_at")
    return isinstance(changed, (int, float)) and changed < started


def _is_right(thing: File | Link, found: Mapping[str, Any]) -> bool:
    """Whether what a process reads there is as wanted; mode and owner it does not read."""
    if isinstance(thing, File):
        return found.get("kind") == "file" and found.get("sha256") == thing.sha256
    return found.get("kind") == "link" and found.get("target") == thing.target


def _lacked(path: str, started: float, observed: Observed) -> bool:
    """Whether a process was started without a file that is absent now.

    Only a drop-in can be lacked, nothing starts without the others. It was removed no later than
    its folder was last changed; a folder that is gone as well tells nothing.
    """
    folder = path.rpartition("/")[0]
    if not folder.endswith(".d"):
        return False
    found = observed.of("directories", folder)
    changed = found.get("changed_at") if isinstance(found, Mapping) else None
    return not isinstance(changed, (int, float)) or changed < started
