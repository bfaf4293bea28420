"""Serving: what a running server reads, the server itself, and the proof that it answers.

In this order: the release's flags are compared with what the unit will pass, files and links are
put in place, units are reloaded and (re)started, and every server that was touched or does not
answer must pass its gate. A restart or its gate that fails puts back all that was put in place: the
servers of a host share links and unit file, so they are switched together. Nothing of an instance
is touched while its release or model is not sound: the changes of those areas are needed first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rules import models, plan_models, plan_releases, restarts
from rules.change import Change
from rules.desired import Desired, Instance, Model, Release
from rules.observed import Observed, Unknown
from rules.plan_files import changed_paths, directory_changes, file_changes, link_changes
from rules.plan_units import unit_changes

AREA = "serving"
HEALTHY = 200


def changes(desired: Desired, observed: Observed) -> list[Change]:
    """The changes of area serving, in the order in which they are carried out."""
    release = next(iter(desired.releases), None)
    staged = _staged(release, desired, observed)
    paths = [
        *directory_changes(desired, observed, AREA),
        *file_changes(desired, observed, AREA),
        *link_changes(desired, observed, AREA),
    ]
    checks = _flag_checks(release, desired, observed, paths, staged)
    guards = _guards(desired, staged, checks)
    paths = [_guarded(change, guards) for change in paths]
    units = unit_changes(desired, observed, AREA, changed_paths(paths))
    units = [_unit_guarded(change, desired, guards, paths) for change in units]
    planned = [*checks, *paths, *units]
    for instance in desired.instances:
        planned += _instance(instance, desired, observed, planned, staged)
    replaced = sorted(p for p, id in changed_paths(paths).items() if not id.startswith("directory"))
    return [_puts_back(change, planned, replaced) for change in planned]


def _puts_back(change: Change, planned: list[Change], replaced: list[str]) -> Change:
    """A restart, or the gate of a restarted server, puts back what was replaced when it fails."""
    restarted = {other.id for other in planned if other.verb == "restart"}
    if change.action is None or not restarted & {change.id, *change.needs}:
        return change
    return replace(change, action={**change.action, "put_back": replaced})


def _staged(release: Release | None, desired: Desired, observed: Observed) -> dict[str, str]:
    """Ids of the changes of earlier areas that are still open, by ``release`` or model name."""
    open_: dict[str, str] = {}
    for change in plan_releases.changes(desired, observed):
        if release is not None and change.id == plan_releases.change_id(release):
            open_["release"] = change.id
    for model in desired.models:
        if plan_models.unsound(model, observed):
            open_[f"model {model.name}"] = plan_models.change_id(model)
    return open_


def _of(instance: Instance, staged: Mapping[str, str]) -> tuple[str, ...]:
    """What an instance waits for of the earlier areas."""
    keys = ("release", f"model {instance.model}")
    return tuple(staged[key] for key in keys if key in staged)


def _flag_checks(
    release: Release | None,
    desired: Desired,
    observed: Observed,
    paths: list[Change],
    staged: Mapping[str, str],
) -> list[Change]:
    """One check before any environment file is written, if one is going to be.

    A fresh release proves its flags itself; this is for one that was there when the data changed.
    """
    written = any(change.id.endswith(".env") and change.verb == "write" for change in paths)
    if release is None or not written or not release.flags_used:
        return []
    return [
        Change(
            id="serve:flags",
            area=AREA,
            verb="check",
            thing=f"flags of release {release.fingerprint}",
            before="not compared with the new arguments",
            after="all known to llama-server",
            reason=("G13",),
            needs=tuple(staged[key] for key in ("release",) if key in staged),
            action={
                "do": "serve.flags",
                "root": release.root,
                "fingerprint": release.fingerprint,
                "flags_used": list(release.flags_used),
                "architectures_used": list(release.architectures_used),
                "hints": dict(release.flag_hints),
            },
        )
    ]


def _guards(
    desired: Desired, staged: Mapping[str, str], checks: list[Change]
) -> dict[str, tuple[str, ...]]:
    """Path -> what must be done before it changes."""
    flags = tuple(change.id for change in checks)
    release = tuple(staged[key] for key in ("release",) if key in staged)
    guards: dict[str, tuple[str, ...]] = {}
    for file in desired.files:
        if file.area == AREA:
            guards[file.path] = (*release, *flags)
    for instance in desired.instances:
        for file in desired.files:
            if file.area == AREA and f"/{instance.name}.env" in file.path:
                guards[file.path] = (*_of(instance, staged), *flags)
    links = {item.root: release for item in desired.releases}
    links |= {
        model.root: tuple(staged[key] for key in (f"model {model.name}",) if key in staged)
        for model in desired.models
    }
    for root, needs in links.items():
        guards[f"{root}/current"] = needs
    return guards


def _guarded(change: Change, guards: Mapping[str, tuple[str, ...]]) -> Change:
    return _with_needs(change, guards.get(change.id.partition(":")[2], ()))


def _with_needs(change: Change, needs: tuple[str, ...]) -> Change:
    return replace(change, needs=tuple(dict.fromkeys((*needs, *change.needs))))


def _unit_guarded(
    change: Change,
    desired: Desired,
    guards: Mapping[str, tuple[str, ...]],
    paths: list[Change],
) -> Change:
    """A start or restart waits for release and model, and for the links it reads through."""
    if change.verb not in ("start", "restart"):
        return change
    instance = next(
        (i for i in desired.instances if change.id == f"unit:{i.unit}:{change.verb}"), None
    )
    if instance is None:
        return change
    model = _model(instance, desired)
    links = [f"{item.root}/current" for item in desired.releases]
    links += [f"{model.root}/current"] if model is not None else []
    planned = tuple(c.id for c in paths if c.id.partition(":")[2] in links)
    needs = tuple(need for link in links for need in guards.get(link, ()))
    return _with_needs(change, (*needs, *planned))


def _model(instance: Instance, desired: Desired) -> Model | None:
    return next((model for model in desired.models if model.name == instance.model), None)


def _instance(
    instance: Instance,
    desired: Desired,
    observed: Observed,
    planned: list[Change],
    staged: Mapping[str, str],
) -> list[Change]:
    """The refresh of a server whose model is repaired under it, and the gate."""
    mine = [
        change
        for change in planned
        if change.id.startswith(f"unit:{instance.unit}:") and change.verb in ("start", "restart")
    ]
    refresh = [] if mine else _refresh(instance, desired, observed, staged)
    why = _unhealthy(instance, observed)
    if not (mine or refresh or why):
        return []
    started = [*mine, *refresh]
    action = {
        "do": "serve.gate",
        "instance": instance.name,
        "unit": instance.unit,
        "host": instance.host,
        "port": instance.port,
        "key_file": instance.key_file,
        "model": _model_path(instance, desired),
        "timeout_s": instance.start_timeout_s,
        "put_back": [],
    }
    gate = Change(
        id=f"serve:{instance.name}:gate",
        area=AREA,
        verb="prove",
        thing=f"server {instance.name} on {instance.host}:{instance.port}",
        before=why or "answers, but will be restarted",
        after="answers a completion" + (", refuses without the key" if instance.key_file else ""),
        reason=instance.reason,
        needs=tuple(change.id for change in started) or _of(instance, staged),
        action=action,
    )
    return [*refresh, gate]


def _unhealthy(instance: Instance, observed: Observed) -> str:
    """What a look at the port said, empty when the server answers.

    A look that told nothing decides nothing either: a busy server may not have taken the
    connection. The gate, which waits longer, does.
    """
    found = observed.of("instances", instance.name)
    if isinstance(found, Unknown):
        return f"not seen to answer: {found.reason}"
    if found is None or not found.get("listening"):
        return "nothing listens"
    health = found.get("health")
    if health == HEALTHY:
        return ""
    return "does not answer" if health is None else f"health answers {health}"


def _refresh(
    instance: Instance, desired: Desired, observed: Observed, staged: Mapping[str, str]
) -> list[Change]:
    """A server that runs while its model is repaired has read the bad bytes."""
    model = _model(instance, desired)
    unit = observed.of("units", instance.unit)
    if model is None or not isinstance(unit, Mapping) or unit.get("active") != "active":
        return []
    key = f"model {model.name}"
    found = observed.of("models", model.name)
    repaired = found.get("repaired_at") if isinstance(found, Mapping) else None
    stale = isinstance(repaired, (int, float)) and restarts.started_before(unit, repaired)
    if not stale and key not in staged:
        return []
    return [
        Change(
            id=f"serve:{instance.name}:refresh",
            area=AREA,
            verb="restart",
            thing=f"unit {instance.unit}",
            before="was started before its model was repaired",
            after="has loaded the sound model",
            reason=("G11",),
            needs=tuple(staged[key] for key in (key,) if key in staged),
            action={
                "do": "unit.restart",
                "name": instance.unit,
                "limit_s": instance.start_timeout_s,
                "put_back": [],
            },
        )
    ]


def _model_path(instance: Instance, desired: Desired) -> str | None:
    model = _model(instance, desired)
    return f"{model.root}/current/{models.first_part(model)}" if model is not None else None
