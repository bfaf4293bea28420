"""Whether the files of a model are a sound GGUF with the metadata that the host's data names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .gguf import Header, PassedOver, read_header
from .gguf_reader import GgufError


def matches(value: Any, required: Any) -> bool:
    """Whether a metadata value is the required one.

    Numbers are compared as numbers (a 32 bit float equals its decimal), booleans as booleans, and
    else as written: the guide (G11) shows a listing of ``7.0``, which does not tell its type.
    """
    if isinstance(value, bool) or isinstance(required, bool):
        return value is required or str(value).lower() == str(required).lower()
    if isinstance(value, (int, float)) and isinstance(required, (int, float)):
        return abs(value - required) <= 1e-6 * max(abs(value), abs(required))
    if isinstance(value, list) and isinstance(required, (list, tuple)):
        return len(value) == len(required) and all(map(matches, value, required))
    return str(value) == str(required)


def metadata_problems(
    metadata: Mapping[str, Any],
    required: Mapping[str, Any],
    profile: str = "",
    others: Sequence[str] = (),
) -> list[str]:
    """What `metadata` lacks of `required`, one clause each.

    `profile` is named as the reason, `others` as those that a file without a key may be under.
    """
    rest = f" (other profiles: {', '.join(others)})" if others else ""
    by = f"profile {profile}" if profile else "the host's data"
    problems = []
    for key, wanted in required.items():
        if key not in metadata:
            problems.append(f"lacks the metadata key {key}, {by} requires {wanted!r}{rest}")
        elif isinstance(metadata[key], PassedOver):
            problems.append(f"has an {metadata[key].what} as {key}, {by} requires {wanted!r}")
        elif not matches(metadata[key], wanted):
            problems.append(f"has {key} = {metadata[key]!r}, {by} requires {wanted!r}")
    return problems


def problems(
    paths: list[Path],
    required: Mapping[str, Any],
    profile: str = "",
    others: Sequence[str] = (),
) -> tuple[list[str], dict[str, Any]]:
    """What is wrong with a model of one or several parts, one sentence each, and its metadata.

    `required` metadata must be in the first part. Splits must be whole: every part once, and
    together as many tensors as the first one states. `OSError` when a file can't be read.
    """
    found: list[str] = []
    headers: dict[str, Header] = {}
    for path in paths:
        try:
            headers[path.name] = read_header(path)
        except GgufError as error:
            found.append(f"{path.name} {error}")
    if found:
        return found, {}
    groups: dict[int, dict[int, str]] = {}
    for name, header in headers.items():
        number, count = header.split or (0, 1)
        if count == 1:
            continue
        if number in groups.setdefault(count, {}):
            found.append(f"{name} and {groups[count][number]} both say to be part {number + 1}")
        groups[count][number] = name
    for count, parts in groups.items():
        missing = [str(n + 1) for n in range(min(count, 65_536)) if n not in parts]
        if missing:
            found.append(
                f"part {', '.join(missing[:5])} of {count} is missing beside {parts[min(parts)]}"
            )
            continue
        stated = headers[parts[0]].metadata.get("split.tensors.count")
        total = sum(headers[name].tensors for name in parts.values())
        if stated is not None and stated != total:
            found.append(f"{parts[0]} states {stated} tensors, its {count} parts hold {total}")
    first = next((n for n, h in headers.items() if h.split is None or h.split[0] == 0), None)
    if first is None:
        return [*found, "no first part is among the files"], {}
    metadata = dict(headers[first].metadata)
    found += [
        f"{first} {clause}" for clause in metadata_problems(metadata, required, profile, others)
    ]
    return found, metadata
