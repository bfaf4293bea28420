"""Data against the schema: every problem as one sentence, all of them at once.

Used twice: on each data file by itself before anything connects (``glue.data_files``), and on
the merged data of a host before the first command on it (`validated`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from rules.combinations import clashes
from rules.describe import Path, dotted, keys_beside, locate, shown, words
from rules.foreign import PYINFRA_KEYS
from rules.schema import HostConfig
from rules.schema_platform import LocalRepoDeb
from rules.values import HUB_PLACEHOLDER

VARIABLES_DOC = "docs/variables.md"


@dataclass(frozen=True)
class Problem:
    """One thing wrong in data: where, and the rest of the sentence (value found, allowed)."""

    path: Path
    text: str

    def sentence(self, where: str = "") -> str:
        """``group_data/all.py:12: probe_timeout_s: found 'x', expected a whole number…``"""
        return f"{f'{where}: ' if where else ''}{dotted(self.path)}{self.text}"


class Invalid(ValueError):
    """Data that no host can be converged to; `problems` are sentences."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def shape_problems(data: Mapping[str, Any]) -> list[Problem]:
    """Unknown keys, wrong types and limits, in data that may be only a part of a host's."""
    try:
        HostConfig.model_validate(_ours(data))
    except ValidationError as error:
        return _problems_of(error)
    return []


def problems(host_data: Mapping[str, Any], where: str = "") -> list[str]:
    """Everything wrong in the merged data of one host; `where` (its name) begins each sentence.

    Combinations are looked at only when each value is right by itself.
    """
    try:
        config = HostConfig.model_validate(_ours(host_data))
    except ValidationError as error:
        return [problem.sentence(where) for problem in _problems_of(error)]
    return [
        Problem(clash.path, f": found {shown(clash.path, clash.value)}: {clash.why}").sentence(
            where
        )
        for clash in clashes(config, str(host_data.get("ssh_user") or ""))
    ]


def validated(host_data: Mapping[str, Any]) -> HostConfig:
    """The merged data of one host (``host.data.dict()``) as a `HostConfig`; raises `Invalid`."""
    found = problems(host_data)
    if found:
        raise Invalid(found)
    return _with_hub(HostConfig.model_validate(_ours(host_data)))


def _with_hub(config: HostConfig) -> HostConfig:
    """The same with ``{model_hub_url}`` in URLs replaced by the variable."""
    hub = config.model_hub_url.rstrip("/")
    source = config.llama_cpp_source
    if source is not None:
        source = source.model_copy(update={"url": source.url.replace(HUB_PLACEHOLDER, hub)})
    models = {
        name: model.model_copy(update={"url": model.url.replace(HUB_PLACEHOLDER, hub)})
        for name, model in config.models.items()
    }
    repositories = {}
    for name in ("cuda_source", "driver_source"):
        given = getattr(config, name)
        if isinstance(given, LocalRepoDeb):
            given = given.model_copy(update={"url": given.url.replace(HUB_PLACEHOLDER, hub)})
        repositories[name] = given
    return config.model_copy(update={"llama_cpp_source": source, "models": models, **repositories})


def _ours(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in PYINFRA_KEYS}


def _problems_of(error: ValidationError) -> list[Problem]:
    found: dict[Path, Problem] = {}  # a union gives an error for each of its branches
    for item in error.errors(include_url=False):
        problem = _problem(item["type"], item["loc"], item["input"], item.get("ctx") or {})
        found.setdefault(problem.path, problem)
    return list(found.values())


def _problem(
    kind: str, location: tuple[int | str, ...], value: Any, context: Mapping[str, Any]
) -> Problem:
    path, annotation, is_key = locate(location)
    if kind == "extra_forbidden":
        return _unknown_key(path, value)
    if kind == "union_tag_invalid":
        allowed = str(context["expected_tags"]).replace(", ", " or ")
        return Problem((*path, "kind"), f": found {context['tag']!r}, expected {allowed}")
    if kind == "missing":
        return Problem(path, f" is missing, expected {words(annotation)}")
    if is_key:
        return Problem(path, f": this key must be {words(annotation)}")
    return Problem(path, f": found {shown(path, value)}, expected {words(annotation)}")


def _unknown_key(path: Path, value: Any) -> Problem:
    known = keys_beside(path)
    candidates = [*known, *PYINFRA_KEYS] if len(path) == 1 else known
    near = get_close_matches(str(path[-1]), candidates, 1, cutoff=0.6)
    hint = f", did you mean {near[0]}?" if near else ""
    allowed = f"see {VARIABLES_DOC}" if len(path) == 1 else f"allowed: {', '.join(known)}"
    return Problem(path, f" = {shown(path, value)}: no such variable{hint} ({allowed})")
