"""From a host's validated data to its desired state."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rules import models, plan_platform, releases, serving
from rules.desired import (
    Desired,
    Directory,
    File,
    Group,
    Link,
    ModuleOption,
    Package,
    Sysctl,
    Unit,
    User,
)
from rules.schema import HostConfig

AGENT = "/opt/voltfleet/agent.pyz"  # what timers and people run on the host
AGENT_MAIN = b"import sys\nfrom agent.__main__ import leave, main\n\nleave(main(sys.argv[1:]))\n"
SYSCTL_FILE = "/etc/sysctl.d/90-voltfleet.conf"
MANAGED = "# Managed by voltfleet: the next run overwrites changes made here.\n"


@dataclass(frozen=True)
class Inputs:
    """What the desired state needs from the controller's disk, already read."""

    templates: Mapping[str, str]  # file name -> jinja2 text
    agent: Mapping[str, bytes]  # path inside the agent's folder -> content
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)  # data path -> content


def desired_state(
    config: HostConfig, inputs: Inputs, system: Mapping[str, Any] | None = None
) -> Desired:
    """The desired state of a host.

    `system` is the part of that name of the probe's answer; without it (before the first probe)
    what depends on the operating system, the fingerprint of a release and the stamps made from
    it, is left open, and everything else is already right: the question to ask the host, say.
    """
    release = releases.release(config, system)
    platform = plan_platform.platform(config, system, config.apt_lock_wait_s)
    wanted_models = tuple(models.model(config, name) for name in sorted(config.models))
    directories = [*_agent_directories(), *_model_directories(config)]
    files = [
        File(AGENT, agent_archive(inputs.agent)),
        *_sysctl_files(config),
        *_module_files(config),
        *plan_platform.files(platform),
        *models.token_files(config, inputs.secrets),
    ]
    links: list[Link] = []
    units: list[Unit] = [*plan_platform.units(platform)]
    instances = []
    if wanted_models:
        files += serving.check_timer_files(inputs.templates, config.models)
    # without a model a timer of earlier data would check for ever what nobody wants
    due = bool(wanted_models)
    units.append(Unit("voltfleet-model-check.timer", enabled=due, active=due, reason=("G11",)))
    for name in sorted(config.instances):
        spec = config.instances[name]
        built = serving.instance(
            config,
            name,
            release,
            next(model for model in wanted_models if model.name == spec.model),
            inputs.secrets.get(spec.api_key_file) if spec.api_key_file else None,
            inputs.templates,
        )
        instances.append(built.instance)
        directories += built.directories
        files += built.files
        links += built.links
        units += built.units
    return Desired(
        packages=_packages(config),
        groups=(Group(config.service_user),) if config.instances else (),
        users=(User(config.service_user, home=config.model_root),) if config.instances else (),
        directories=_once(directories),
        files=_once(files),
        links=_once(links),
        sysctls=tuple(Sysctl(key, str(value)) for key, value in config.sysctl.items()),
        module_options=tuple(
            ModuleOption(module, option, str(value))
            for module, options in config.kernel_module_options.items()
            for option, value in options.items()
        ),
        units=tuple(units),
        releases=(release,) if release is not None else (),
        models=wanted_models,
        instances=tuple(instances),
        platform=platform if platform.toolkit or platform.driver else None,
        supported_os=tuple(config.supported_os),
        probe_timeout_s=config.probe_timeout_s,
        apt_lock_wait_s=config.apt_lock_wait_s,
    )


def _packages(config: HostConfig) -> tuple[Package, ...]:
    # aria2 downloads the models
    names = [*config.packages, *(["aria2"] if config.models else [])]
    return tuple(Package(name) for name in dict.fromkeys(names))


def _once(things: list[Any]) -> tuple[Any, ...]:
    """Several instances share a template, a folder, a link: each path once, first one wins."""
    return tuple({thing.path: thing for thing in reversed(things)}.values())[::-1]


def _agent_directories() -> list[Directory]:
    return [
        Directory("/opt/voltfleet"),
        Directory("/etc/voltfleet"),
        Directory("/var/lib/voltfleet"),
        Directory("/var/log/voltfleet", mode=0o750),
    ]


def agent_archive(agent: Mapping[str, bytes]) -> bytes:
    """The agent as one file that python3 runs: the same bytes for the same sources."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        entries = {f"agent/{path}": content for path, content in agent.items()}
        entries["__main__.py"] = AGENT_MAIN
        for path, content in sorted(entries.items()):
            # fixed time, nothing compressed: its sha256 must not depend on this controller's zlib
            archive.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), content)
    return buffer.getvalue()


def _model_directories(config: HostConfig) -> list[Directory]:
    # Not the folders above: they may be a home, /tmp, or a disk's mount point. What is missing of
    # them is made on the way.
    return [Directory(f"{config.model_root}/{name}") for name in sorted(config.models)]


def _sysctl_files(config: HostConfig) -> list[File]:
    if not config.sysctl:
        return []
    lines = "".join(f"{key} = {value}\n" for key, value in sorted(config.sysctl.items()))
    return [File(SYSCTL_FILE, (MANAGED + lines).encode())]


def _module_files(config: HostConfig) -> list[File]:
    files = []
    for module, options in sorted(config.kernel_module_options.items()):
        words = " ".join(f"{option}={value}" for option, value in sorted(options.items()))
        text = f"{MANAGED}options {module} {words}\n"
        files.append(File(f"/etc/modprobe.d/voltfleet-{module}.conf", text.encode()))
    return files
