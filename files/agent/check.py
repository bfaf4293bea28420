"""Verb ``check``: look at model files and say in one line each whether they can be served.

``check FILE [--profile NAME] [--architecture NAME]`` looks at the structure and metadata of one
GGUF file (give the first part of a split one; its siblings are found). As in a host's data, an
architecture goes before the profile's. Exit status 0 sound, 1 not sound, 2 unreadable or a wrong
command line.

``check --models [NAME…]`` reads models that are recorded on this host whole, all or those named
(the weekly check names those in the host's data). Exit status 1 when one is not what it was. A
record of a model that nobody named and whose files are gone is removed.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import act_models, models, profiles, sound
from .handler import ActionError, Context

PART = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.gguf$")


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit status."""
    parser = argparse.ArgumentParser(prog="check", description="check model files")
    parser.add_argument("file", nargs="?", type=Path, help="a GGUF file")
    parser.add_argument("--profile", choices=sorted(profiles.PROFILES), default=profiles.DEFAULT)
    parser.add_argument("--architecture", help="general.architecture the file must have")
    parser.add_argument("--models", nargs="*", metavar="NAME", help="read recorded models whole")
    try:
        asked = parser.parse_args(list(argv))
    except SystemExit as leaving:  # argparse has said why
        return int(leaving.code or 0)
    if (asked.models is None) == (asked.file is None):
        print("check needs a FILE, or --models")
        return 2
    if asked.models is not None:
        return check_recorded(asked.models)
    return check_file(asked.file, asked.profile, asked.architecture)


def check_file(path: Path, profile: str, architecture: str | None = None) -> int:
    """Check one file (and its sibling parts) against a profile and its architecture; one line."""
    try:
        others = [name for name in profiles.PROFILES if name != profile]
        required = dict(profiles.PROFILES[profile])
        if architecture is not None:
            required["general.architecture"] = architecture
        found, metadata = sound.problems(parts(path), required, profile, others)
    except OSError as error:
        print(f"{error.filename or path}: unreadable: {error.strerror}")
        return 2
    if not found:
        found_as = metadata.get("general.architecture", "no architecture")
        print(f"{path}: sound under profile {profile} ({found_as})")
        return 0
    print(f"{path}: not sound: {'; '.join(found)}")
    return 1


def parts(path: Path) -> list[Path]:
    """A file, or all the parts that its name says there are and that exist."""
    match = PART.match(path.name)
    if match is None or match[2] != "00001" or not path.exists():
        return [path]
    names = [f"{match[1]}-{n:05}-of-{match[3]}.gguf" for n in range(1, int(match[3]) + 1)]
    return [path.with_name(name) for name in names if path.with_name(name).exists()]


def check_recorded(names: Sequence[str] = ()) -> int:
    """Read recorded models whole, all or those of these names; a line each."""
    worst = 0
    for file in sorted(models.MANIFESTS.glob("*.json")):
        wanted = file.stem in names
        try:
            if not wanted and (place := models.forget_gone(file.stem)) is not None:
                print(f"model {file.stem}: {place} is gone, its record was removed")
            elif wanted or not names:
                action = _action(json.loads(file.read_bytes()))
                outcome = act_models.verify(Context(run="check", sink=_Nowhere()), action)
                print(f"model {action['name']}: {outcome.message}")
        except ActionError as error:
            print(error)
            worst = 1
        except FileNotFoundError:
            continue  # removed by another check just now
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"{file}: is no record of a model: {error!r}")
            worst = 1 if wanted or not names else worst
    return worst


class _Nowhere:
    """Where the progress of a check that nobody follows goes."""

    gone = False

    def line(self, value: Mapping[str, Any]) -> None:
        """Drop an event."""


def _action(record: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"model:{record['name']}",
        "do": "model.verify",
        "name": record["name"],
        "root": record["root"],
        "revision": record["revision"],
        "files": [{"path": path, **wanted} for path, wanted in record["wanted"].items()],
    }
