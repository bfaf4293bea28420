"""Models: which must be fetched, read again or compared with their profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from files.agent.sound import matches
from rules.change import Change
from rules.desired import Desired, Model
from rules.observed import Observed, Unknown


def changes(desired: Desired, observed: Observed) -> list[Change]:
    """A change for every model that is not known to be sound, or whose full check is asked."""
    planned = [_model(model, observed) for model in desired.models]
    return [change for change in planned if change is not None]


def change_id(model: Model) -> str:
    """``model:<name>``, by which other changes need it."""
    return f"model:{model.name}"


def unsound(model: Model, observed: Observed) -> str:
    """Why a model must not be served as it is, empty when it may."""
    found = observed.of("models", model.name)
    if isinstance(found, Unknown):
        return f"unknown: {found.reason}"
    states = (found or {}).get("files", {})
    faults = [
        f"{file.path} {_clause(states.get(file.path))}"
        for file in model.files
        if (states.get(file.path) or {}).get("state") != "sound"
    ]
    if len(faults) == len(model.files) > 1 and all(f.endswith(" absent") for f in faults):
        return f"all {len(faults)} files absent"
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        return ", ".join(faults[:3]) + more
    metadata = (found or {}).get("metadata")
    if model.format == "gguf" and metadata is None:
        return "its metadata was never read"
    lacking = [
        key
        for key, value in model.required_metadata.items()
        if key not in (metadata or {}) or not matches((metadata or {})[key], value)
    ]
    return f"its metadata is not as wanted: {', '.join(lacking)}" if lacking else ""


def _clause(state: Mapping[str, Any] | None) -> str:
    """``absent``, ``bad (has 1 bytes, expected 2)``…"""
    if state is None:
        return "unknown"
    name = str(state.get("state"))
    return name if name == "absent" else f"{name} ({state.get('reason')})"


def _model(model: Model, observed: Observed) -> Change | None:
    why = unsound(model, observed)
    size = sum(file.size for file in model.files)
    if why:
        after = f"sound under profile {model.profile}, {len(model.files)} files, {size} bytes"
        return _change(model, "fetch", change_id(model), why, after, _wait(why, model))
    if model.full_check:
        after = f"{size} bytes read again"
        return _change(model, "check", f"{change_id(model)}:check", "sound", after, _action(model))
    return None


def _wait(why: str, model: Model) -> dict[str, Any] | None:
    return None if why.startswith("unknown: ") else _action(model)


def _change(
    model: Model, verb: str, id: str, before: str, after: str, action: dict[str, Any] | None
) -> Change:
    return Change(
        id=id,
        area="models",
        verb=verb,
        thing=f"model {model.name} {model.revision}",
        before=before,
        after=after,
        reason=model.reason,
        action=action,
    )


def _action(model: Model) -> dict[str, Any]:
    return {
        "do": "model.fetch",
        "name": model.name,
        "root": model.root,
        "revision": model.revision,
        "format": model.format,
        "files": [
            {"path": file.path, "url": file.url, "size": file.size, "sha256": file.sha256}
            for file in model.files
        ],
        "token_file": model.token_file,
        "required": dict(model.required_metadata),
        "profile": model.profile,
        "others": list(model.other_profiles),
        "full": model.full_check,
    }
