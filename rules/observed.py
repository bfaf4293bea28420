"""The observed state of one host: the probe's answer, read with care.

The probe answers with one JSON document whose parts are each a value or ``{"unknown": reason}``.
`Observed` never turns "not learned" into "absent": asking an unknown part gives `Unknown`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Unknown:
    """Something that could not be learned, and why (one clause, for people)."""

    reason: str


@dataclass(frozen=True)
class Observed:
    """One answer of the probe.

    `document` has one key per part (``files``, ``packages``, ``units``…), as described in
    ``files/agent/__init__.py``. `nothing_known` is the reason when there is no answer at all
    (no python3 on the host, say); then every part is unknown.
    """

    document: Mapping[str, Any]
    nothing_known: str | None = None

    def part(self, name: str) -> Mapping[str, Any] | Unknown:
        """A part of the answer, or why it is unknown."""
        if self.nothing_known is not None:
            return Unknown(self.nothing_known)
        value = self.document.get(name)
        if value is None:
            return Unknown(f"the probe gave no answer about {name}")
        if isinstance(value, Mapping) and set(value) == {"unknown"}:
            return Unknown(str(value["unknown"]))
        if not isinstance(value, Mapping):
            return Unknown(f"the probe's answer about {name} is no object")
        return value

    def of(self, part: str, key: str) -> Mapping[str, Any] | Unknown | None:
        """One thing of a part: its properties, None when it is absent, or why it is unknown."""
        things = self.part(part)
        if isinstance(things, Unknown):
            return things
        if key not in things:
            return Unknown(f"the probe was not asked about {key}")
        value = things[key]
        if value is None:
            return None
        if isinstance(value, Mapping):
            if set(value) == {"unknown"}:
                return Unknown(str(value["unknown"]))
            return value
        return Unknown(f"the probe's answer about {key} is no object")
