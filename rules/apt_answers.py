"""What apt and dpkg answered on a host, judged on the controller: pure, no command is run.

The agent judges what it runs itself with ``files/agent/apt_errors.py``; here is what the plan needs
of the probe's simulation, with what else the probe learned (holds, source entries).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from files.agent.apt_answers import Simulation, Step, objections, parse_simulation
from files.agent.apt_errors import locked
from files.agent.nvidia_stack import branch_of, in_stack, named_branch

__all__ = ["Offer", "Refusal", "Simulation", "Step", "classify", "judge", "parse_show"]
__all__ += ["objections", "parse_simulation"]


@dataclass(frozen=True)
class Offer:
    """A package as ``apt-cache show`` gives it: what apt would take for the name."""

    package: str
    version: str
    depends: str
    description: str

    @property
    def transitional_to(self) -> str | None:
        """The package that this one only stands for, by its description; else None."""
        found = re.search(r"[Tt]ransitional (?:dummy )?package(?: for (\S+))?", self.description)
        if not found:
            return None
        return found[1] or self.depends.split(",")[0].split(" ")[0] or "another package"


@dataclass(frozen=True)
class Refusal:
    """Why apt would not or could not: a kind to act on and a sentence to tell."""

    kind: str
    sentence: str


def parse_show(text: str) -> dict[str, Offer]:
    """``apt-cache show`` as offers by name; of several versions the first, the candidate."""
    offers: dict[str, Offer] = {}
    for block in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"^(\w[\w-]*): (.*)$", block, re.M))
        if "Package" in fields:
            described = fields.get("Description") or fields.get("Description-en", "")
            offer = Offer(
                fields["Package"], fields.get("Version", ""), fields.get("Depends", ""), described
            )
            offers.setdefault(offer.package, offer)
    return offers


def classify(
    text: str, held: Collection[str] = (), entries: Sequence[Mapping[str, Any]] = ()
) -> Refusal:
    """What a failed apt-get or dpkg said (C02, C03, C18), in one sentence.

    `held`: packages on hold on that host; `entries`: its source entries as the probe gives them.
    """
    lock = locked(text)
    if lock is not None:
        return Refusal("lock", f"{lock.sentence}: wait for it to end and run again")
    if "dpkg was interrupted" in text:
        return Refusal("interrupted", "an earlier dpkg was interrupted: it is finished first")
    found = re.search(r"Conflicting values set for option Signed-By regarding source (\S+)", text)
    if found:
        uri = found[1].rstrip("/")
        files = sorted({entry["file"] for entry in entries if entry["uri"] == uri})
        return Refusal(
            "sources",
            f"two entries for the repository {found[1]} name different keyrings "
            f"({', '.join(files) or 'in /etc/apt/sources.list.d'}): keep one of them",
        )
    if "list of sources could not be read" in text:
        return Refusal("sources", f"apt can't read its sources: {_first_error(text)}")
    if "held broken packages" in text or "Held packages were changed" in text:
        return _held(text, held)
    missing = re.findall(
        r"E: (?:Unable to locate package (\S+)|Package '?(\S+?)'? has no installation candidate)",
        text,
    )
    if missing:
        names = ", ".join(dict.fromkeys(name for pair in missing for name in pair if name))
        return Refusal(
            "unknown", f"{names} is in no source of this host: add the source that has it"
        )
    return Refusal("other", _first_error(text))


def _held(text: str, held: Collection[str]) -> Refusal:
    unmet = re.findall(r"^\s*(\S+) ?: ((?:Pre)?Depends: .+?)(?: but (.+?))?$", text, re.M)
    said = "; ".join(f"{name} {relation.lower()}" for name, relation, _ in unmet)
    named = [name for name in held if re.search(rf"(?<![\w.+-]){re.escape(name)}(?![\w.+-])", text)]
    because = f" ({said})" if said else ""
    if not named:
        return Refusal("dependencies", f"dependencies can't be satisfied{because}")
    ours = [name for name in named if in_stack(name)]
    whose = "the hold is ours (driver_hold)" if ours else "the hold is not ours"
    return Refusal("held", f"{', '.join(named)} is held{because}: {whose}, and stays as it is")


def _first_error(text: str) -> str:
    errors = re.findall(r"^(?:E|dpkg: error): ?(.+)$", text, re.M)
    lines = text.strip().splitlines()
    return str(errors[0]) if errors else lines[-1].strip() if lines else "no message"


def judge(
    answer: Mapping[str, Any],
    branch: int,
    flavour: str,
    entries: Sequence[Mapping[str, Any]] = (),
) -> list[str]:
    """Why apt's simulated answer is not the driver that was asked for; empty when it is.

    `answer` is the probe's ``simulation``, `entries` its source entries. A transitional package is
    named as one (C04: ``nvidia-driver-550-server`` of version 570 stands for
    ``nvidia-driver-570-server``).
    """
    offers = parse_show(str(answer.get("offers", "")))
    transitional = []
    for name in answer.get("asked", ()):
        offer = offers.get(name)
        if offer is None or offer.transitional_to is None:
            continue
        given = branch_of(offer.version) or named_branch(offer.transitional_to)
        if given != branch:
            transitional.append(
                f"{branch} asked, apt gives {given or 'another'}: {name} {offer.version} is a "
                f"transitional package for {offer.transitional_to}; ask for branch {given} or take "
                "another driver_source"
            )
    if transitional:
        return transitional
    if answer.get("rc") != 0:
        text = f"{answer.get('out', '')}\n{answer.get('err', '')}"
        said = classify(text, answer.get("held", ()), entries).sentence
        return [f"apt can't install the driver: {said}"]
    simulation = parse_simulation(str(answer.get("out", "")))
    against = objections(simulation, branch, flavour, answer.get("held", ()))
    return [f"{sentence}: nothing is installed, take another driver_source" for sentence in against]
