"""What every part of the schema is made of."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


def about(unit: str = "", *requirements: str) -> dict[str, Any]:
    """What a variable's line in the docs says besides its meaning: unit, requirement ids."""
    return {"unit": unit, "requirements": list(requirements)}


class Strict(BaseModel):
    """Unknown keys are errors; values are not converted (``"8080"`` is no port)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
