"""Kernel parameters and module options that must be in effect now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rules.change import Change
from rules.desired import Desired, ModuleOption, Sysctl
from rules.observed import Observed, Unknown

FLAGS = {"Y": "1", "y": "1", "N": "0", "n": "0"}


def changes(desired: Desired, observed: Observed) -> list[Change]:
    """Parameters to set, then modules to reload because an option in effect differs."""
    planned = [_sysctl(sysctl, observed) for sysctl in desired.sysctls]
    by_module: dict[str, list[ModuleOption]] = {}
    for option in desired.module_options:
        by_module.setdefault(option.module, []).append(option)
    planned += [_module(module, options, observed) for module, options in by_module.items()]
    return [change for change in planned if change is not None]


def same_value(a: str, b: str) -> bool:
    """Whether the kernel means the same by both: blanks don't count, Y is 1 and N is 0."""
    return [FLAGS.get(w, w) for w in a.split()] == [FLAGS.get(w, w) for w in b.split()]


def _sysctl(sysctl: Sysctl, observed: Observed) -> Change | None:
    found = observed.of("sysctls", sysctl.key)
    action: dict[str, Any] | None = {
        "do": "sysctl.set",
        "key": sysctl.key,
        "value": sysctl.value,
    }
    if isinstance(found, Unknown):
        before, action = f"unknown: {found.reason}", None
    elif found is None:
        before = "this kernel has no such parameter"
    elif same_value(str(found.get("value")), sysctl.value):
        return None
    else:
        before = str(found.get("value"))
    return Change(
        id=f"sysctl:{sysctl.key}",
        area="kernel",
        verb="set",
        thing=f"kernel parameter {sysctl.key}",
        before=before,
        after=sysctl.value,
        reason=sysctl.reason,
        action=action,
    )


def _module(module: str, options: list[ModuleOption], observed: Observed) -> Change | None:
    """A reload, where the module is loaded with other values. A module that is not loaded takes
    its options from its file at the next load. An option that a loaded module does not show is
    unknown: whether it is in effect, or does not exist, can't be told."""
    found = observed.of("modules", module)
    if isinstance(found, Unknown):
        before = f"unknown: {found.reason}"
    elif found is None or not found.get("loaded"):
        return None
    else:
        before = _difference(module, options, found.get("options", {}))
        if not before:
            return None
    wanted = {option.option: option.value for option in options}
    reload = {"do": "module.reload", "module": module, "options": wanted}
    return Change(
        id=f"module:{module}",
        area="kernel",
        verb="reload",
        thing=f"kernel module {module}",
        before=before,
        after=", ".join(f"{name}={value}" for name, value in wanted.items()),
        reason=tuple(dict.fromkeys(reason for option in options for reason in option.reason)),
        action=None if before.startswith("unknown: ") else reload,
    )


def _difference(module: str, options: list[ModuleOption], found: Mapping[str, Any]) -> str:
    """The values in effect that differ; ``unknown: …`` when one can't be seen; or nothing."""
    wrong = []
    for option in options:
        value = found.get(option.option)
        if value is None:
            return f"unknown: module {module} shows no option {option.option}"
        if isinstance(value, Mapping):
            return f"unknown: option {option.option} of {module}: {value.get('unknown')}"
        if not same_value(str(value), option.value):
            wrong.append(f"{option.option}={value}")
    return ", ".join(wrong)
