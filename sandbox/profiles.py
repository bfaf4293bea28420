"""Simulated chassis: what a profile file says, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from sandbox.errors import SandboxError

FOLDER = Path(__file__).parent / "profiles"
MIXED = "mixed"


class Gpu(BaseModel):
    """One card: NVML's product name, PCI bus id, PCI vendor:device."""

    model_config = ConfigDict(extra="forbid")
    model: str
    pci: str
    device: str


class Links(BaseModel):
    """NVLinks between two cards, by PCI bus id."""

    model_config = ConfigDict(extra="forbid")
    between: tuple[str, str]
    links: int


class Bmc(BaseModel):
    """Vendor and firmware that the simulated BMC reports."""

    model_config = ConfigDict(extra="forbid")
    vendor: str
    firmware: str


class Profile(BaseModel):
    """A chassis. Only dmi is simulated so far; gpus, nvlinks and bmc wait for their issues."""

    model_config = ConfigDict(extra="forbid")
    name: str
    prefix: str
    login: Literal["root", "ops"]
    dmi: dict[str, str]
    gpus: list[Gpu] = []
    nvlinks: list[Links] = []
    bmc: Bmc | None = None


def names() -> list[str]:
    """Known profiles in the order in which a mixed lab uses them."""
    known = sorted(file.stem for file in FOLDER.glob("*.yaml"))
    first = [name for name in ("r740", "supermicro", "dock") if name in known]
    return first + [name for name in known if name not in first]


def load(name: str) -> Profile:
    """Read one profile.

    Raises SandboxError for an unknown name or a file that does not fit.
    """
    file = FOLDER / f"{name}.yaml"
    if not file.is_file():
        raise SandboxError(f"There is no profile {name}: use {', '.join([*names(), MIXED])}.")
    data: dict[str, Any] = yaml.safe_load(file.read_text())
    try:
        return Profile(name=name, **data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SandboxError(f"{file}: {where}: {first['msg']}.") from error


def sequence(profile: str, count: int, have: list[str]) -> list[str]:
    """Profiles of the next hosts, given those that exist: all the same, or evenly mixed."""
    if profile != MIXED:
        load(profile)
        return [profile] * count
    so_far = list(have)
    chosen = []
    for _ in range(count):
        least = min(names()[:3], key=so_far.count)
        so_far.append(least)
        chosen.append(least)
    return chosen
