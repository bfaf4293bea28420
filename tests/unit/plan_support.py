"""Observations for the tests of the plan: made from a desired state, then spoilt on purpose."""

from __future__ import annotations

import copy
from typing import Any

from rules.desired import Desired, Directory, File
from rules.observed import Observed

# Seconds since 1970: first all was put in place, then the units were started.
CHANGED, STARTED = 1000.5, 2000.5


def attributes(thing: Directory | File) -> dict[str, str]:
    return {"mode": f"{thing.mode:04o}", "owner": thing.owner, "group": thing.group}


def as_desired(desired: Desired) -> dict[str, Any]:
    """The probe's document of a host that already is as desired (base system only)."""
    modules: dict[str, Any] = {}
    for option in desired.module_options:
        modules.setdefault(option.module, {"loaded": True, "options": {}})
        modules[option.module]["options"][option.option] = option.value
    return {
        "system": {"id": "debian", "version": "13", "name": "Debian GNU/Linux 13 (trixie)"},
        "packages": {
            p.name: {"version": p.version or "1.0-1", "status": "installed", "held": False}
            for p in desired.packages
        },
        "packages_state": {"interrupted": False, "manager": "apt"},
        "groups": {g.name: {"gid": 990} for g in desired.groups},
        "users": {
            u.name: {
                "uid": 990,
                "home": u.home,
                "shell": u.shell,
                "group": u.name,
                "groups": list(u.groups),
            }
            for u in desired.users
        },
        "directories": {
            d.path: {"kind": "directory", "changed_at": CHANGED, **attributes(d)}
            for d in desired.directories
        },
        "files": {
            f.path: {
                "kind": "file",
                "sha256": f.sha256,
                "size": len(f.content),
                "changed_at": CHANGED,
                **attributes(f),
            }
            for f in desired.files
        },
        "links": {
            link.path: {"kind": "link", "target": link.target, "changed_at": CHANGED}
            for link in desired.links
        },
        "sysctls": {s.key: {"value": s.value} for s in desired.sysctls},
        "modules": modules,
        "units": {
            u.name: {
                "load": "loaded",
                "active": "active" if u.active else "inactive",
                "sub": "running" if u.active else "dead",
                "enabled": "enabled" if u.enabled else "disabled",
                "need_reload": False,
                "pid": 7 if u.active else 0,
                "stamp": u.stamp if u.active else None,
                "exe_deleted": False,
                "started_at": STARTED if u.active else None,
            }
            for u in desired.units
        },
    }


def bare(desired: Desired) -> dict[str, Any]:
    """The document of a host that has nothing of it."""
    document = as_desired(desired)
    for part in ("packages", "groups", "users", "directories", "files", "links", "units"):
        document[part] = dict.fromkeys(document[part])
    return document


def spoilt(desired: Desired, part: str, key: str, **properties: Any) -> Observed:
    """As desired, but for some properties of one thing, changed after the units were started.

    ``absent=True`` takes it away.
    """
    document = copy.deepcopy(as_desired(desired))
    if properties.pop("absent", False):
        document[part][key] = None
    else:
        if "changed_at" in document[part][key]:
            document[part][key]["changed_at"] = STARTED + 1
        document[part][key].update(properties)
    return Observed(document)
