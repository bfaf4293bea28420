"""What the probe is asked about: whatever the desired state mentions, and nothing else.

Pure and deterministic, so that the question is the same whichever operation asks first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rules import plan_platform
from rules.desired import Desired, Model


def question(desired: Desired) -> dict[str, Any]:
    """The request of the agent's verb ``probe`` (see ``files/agent/__init__.py``).

    Beyond the protocol's keys a model carries ``format``, ``full_check`` (hash every byte) and
    ``metadata`` (names of the GGUF keys to give back). ``platform`` is there only where CUDA or the
    driver is asked about, since the probe then takes longer.
    """
    releases: dict[str, set[str]] = {}
    for release in desired.releases:
        releases.setdefault(release.root, set()).add(release.fingerprint)
    platform = plan_platform.question(desired.platform) if desired.platform else None
    return {
        "deadline_s": desired.probe_timeout_s,
        "files": {
            file.path: {"sha256": file.sha256, "secret": file.secret}
            for file in sorted(desired.files, key=lambda file: file.path)
        },
        "directories": _names(directory.path for directory in desired.directories),
        "links": _names(link.path for link in desired.links),
        "packages": _names(package.name for package in desired.packages),
        "groups": _names(group.name for group in desired.groups),
        "users": _names(user.name for user in desired.users),
        "units": _names(
            [unit.name for unit in desired.units]
            + [instance.unit for instance in desired.instances]
        ),
        "sysctls": _names(sysctl.key for sysctl in desired.sysctls),
        "modules": _names(option.module for option in desired.module_options),
        "releases": {root: sorted(releases[root]) for root in sorted(releases)},
        "models": {
            model.name: _model(model) for model in sorted(desired.models, key=lambda m: m.name)
        },
        "instances": {
            instance.name: {
                "unit": instance.unit,
                "host": instance.host,
                "port": instance.port,
            }
            for instance in sorted(desired.instances, key=lambda instance: instance.name)
        },
        "free_space": _names(
            [model.root for model in desired.models]
            + [release.root for release in desired.releases]
        ),
        **({"platform": platform} if platform else {}),
    }


def _names(names: Iterable[str]) -> list[str]:
    return sorted(set(names))


def _model(model: Model) -> dict[str, Any]:
    return {
        "root": model.root,
        "revision": model.revision,
        "format": model.format,
        "full_check": model.full_check,
        "metadata": sorted(model.required_metadata),
        "files": {
            file.path: {"size": file.size, "sha256": file.sha256}
            for file in sorted(model.files, key=lambda file: file.path)
        },
    }
