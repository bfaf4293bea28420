"""What ``apt-get --simulate`` says it would do, and whether that is the driver that was asked for.

The lines are those that apt prints for a simulation (apt-get(8), --simulate): ``Inst name [old]
(new origin [arch])``, ``Conf …`` and ``Remv name [version]``; they are the same from apt 2.4 to 3.
A simulation takes no lock and changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from .nvidia_stack import bare, branch_of, in_stack, is_open, tied_to_driver

_INSTALL = re.compile(r"^Inst (\S+)(?: \[([^\]]+)\])? \((\S+)[^)]*\)")
_REMOVE = re.compile(r"^(?:Remv|Purg) (\S+)(?: \[([^\]]+)\])?")


@dataclass(frozen=True)
class Step:
    """A package to install (`old` None), to move from `old` to `new`, or to remove (`new` None)."""

    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True)
class Simulation:
    """Everything apt would do, in its order."""

    steps: tuple[Step, ...]

    @property
    def installs(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.new is not None)

    @property
    def removes(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.new is None)


def parse_simulation(out: str) -> Simulation:
    """The steps in the output of ``apt-get --simulate install``; other lines are passed over."""
    steps: list[Step] = []
    for line in out.splitlines():
        found = _INSTALL.match(line)
        if found:
            steps.append(Step(bare(found[1]), found[2], found[3]))
            continue
        found = _REMOVE.match(line)
        if found:
            steps.append(Step(bare(found[1]), found[2], None))
    return Simulation(tuple(steps))


def objections(
    simulation: Simulation, branch: int, flavour: str, held: Collection[str] = ()
) -> list[str]:
    """Why a simulated installation is not the driver that was asked for; empty when it is.

    `branch` is the branch asked, `flavour` is ``proprietary`` or ``open``. Judged are versions,
    not names: ``nvidia-driver-550-server`` became a transitional package to 570, and
    ``cuda-drivers-580`` of NVIDIA's repository for Debian depends on "nvidia-driver (>= 580…)"
    and so brings 590 (forums.developer.nvidia.com/t/353805). What is removed may be of the driver
    stack alone, and of the packages in `held` only those of the stack may be changed.
    """
    found: list[str] = []
    wrong: dict[int, list[str]] = {}
    for step in simulation.installs:
        given = branch_of(step.new or "")
        if tied_to_driver(step.name) and given is not None and given != branch:
            wrong.setdefault(given, []).append(f"{step.name} {step.new}")
    for given, steps in sorted(wrong.items()):
        more = f" and {len(steps) - 3} more" if len(steps) > 3 else ""
        found.append(f"{branch} asked, apt gives {given} ({', '.join(steps[:3])}{more})")
    opened = [step.name for step in simulation.installs if is_open(step.name)]
    if flavour == "proprietary" and opened:
        found.append(f"the proprietary modules asked, apt gives the open ones ({opened[0]})")
    others = [step.name for step in simulation.removes if not in_stack(step.name)]
    if others:
        found.append(f"apt would remove {', '.join(others)} for it")
    kept = {bare(name) for name in held if not in_stack(name)} - set(others)
    changed = [step.name for step in simulation.steps if step.name in kept]
    if changed:
        found.append(f"apt would change {', '.join(changed)}, which somebody holds")
    return found
