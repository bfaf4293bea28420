"""Combinations of values that are each allowed and together impossible."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from rules.describe import Path, looks_secret
from rules.schema import HostConfig, InstanceSpec, ModelSpec
from rules.schema_platform import impossible
from rules.values import MODEL_URL, PATTERN_WORDS

# llama-server flags with a variable of their own: given twice, nobody knows which one counts.
OWN_VARIABLE = {
    "model": "model",
    "host": "host",
    "port": "port",
    "ctx-size": "ctx_size",
    "parallel": "slots",
    "gpu-layers": "gpu_layers",
    "n-gpu-layers": "gpu_layers",
    "threads": "threads",
    "batch-size": "batch_size",
    "api-key-file": "api_key_file",
}
# Flags that may not be given at all, with the reason.
REFUSED_FLAGS = {
    "api-key": "every user of the host could read the key in the process list; use api_key_file",
    "log-disable": "the log is what proves that layers are on the GPUs (G10)",
}
ENDING = {"gguf": ".gguf", "safetensors": ".safetensors"}


@dataclass(frozen=True)
class Clash:
    """Something impossible: at `path` lies `value`, `why` says what is wrong and what to do."""

    path: Path
    value: Any
    why: str


def clashes(config: HostConfig, login: str = "") -> list[Clash]:
    """Everything impossible in one host's data, in the order of the variables.

    `login` is the user that pyinfra logs in as, as far as the data names it (``ssh_user``).
    """
    checks: tuple[Callable[[HostConfig], Iterator[Clash]], ...] = (_platform, _models, _instances)
    return [*_accounts(config, login), *(clash for check in checks for clash in check(config))]


def is_loopback(host: str) -> bool:
    """Whether an address to bind to is reachable from the host alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _accounts(config: HostConfig, login: str) -> Iterator[Clash]:
    if config.service_user == "root":
        # The user is made a system user without a login: that would lock root out.
        yield Clash(
            ("service_user",),
            "root",
            "servers do not run as root; name a user of their own, like 'voltfleet'",
        )
    elif config.service_user == login:
        yield Clash(
            ("service_user",),
            login,
            "is also ssh_user, which would lose its shell and its home; name a user of the "
            "servers' own, like 'voltfleet'",
        )


def _platform(config: HostConfig) -> Iterator[Clash]:
    for path, value, why in impossible(config):
        yield Clash(path, value, why)


def _models(config: HostConfig) -> Iterator[Clash]:
    if looks_secret(config.model_hub_token_file):
        yield Clash(
            ("model_hub_token_file",),
            config.model_hub_token_file,
            "this is a token itself; put it in a file of mode 0600 in secrets_folder and name that",
        )
    for name, model in config.models.items():
        at: Path = ("models", name)
        yield from _source(at, model)
        yield from _files(at, model)
        if model.profile not in config.model_profiles:
            yield Clash(
                (*at, "profile"),
                model.profile,
                "no such profile; model_profiles has "
                + _known(model.profile, config.model_profiles),
            )


def _source(at: Path, model: ModelSpec) -> Iterator[Clash]:
    if model.source == "hub" and model.repository.count("/") != 1:
        yield Clash(
            (*at, "repository"), model.repository, "source 'hub' needs a repository, owner/name"
        )
    if model.source == "hub" and model.url:
        yield Clash((*at, "url"), model.url, "is for source 'url'; source is 'hub'")
    if model.source == "url" and not re.fullmatch(MODEL_URL, model.url):
        yield Clash(
            (*at, "url"),
            model.url,
            f"source 'url' needs the folder's URL: {PATTERN_WORDS[MODEL_URL]}",
        )
    if model.source == "url" and model.repository:
        yield Clash((*at, "repository"), model.repository, "is for source 'hub'; source is 'url'")


def _files(at: Path, model: ModelSpec) -> Iterator[Clash]:
    seen: dict[str, int] = {}
    for number, file in enumerate(model.files):
        where: Path = (*at, "files", number, "path")
        if file.path in seen:
            yield Clash(
                where, file.path, f"is also the path of files[{seen[file.path]}]; each file once"
            )
        seen.setdefault(file.path, number)
        if file.path.startswith("/") or {"", ".", ".."} & set(file.path.split("/")):
            yield Clash(where, file.path, "leaves the model's folder; a relative path without '..'")
    if not any(file.path.endswith(ENDING[model.format]) for file in model.files):
        yield Clash(
            (*at, "format"), model.format, f"none of its files ends in {ENDING[model.format]}"
        )


def _instances(config: HostConfig) -> Iterator[Clash]:
    for name, spec in config.instances.items():
        at: Path = ("instances", name)
        yield from _served(config, at, spec)
        yield from _bound(at, spec)
        yield from _flags(at, spec)
        if spec.ctx_size and spec.ctx_size < spec.slots:
            yield Clash(
                (*at, "ctx_size"),
                spec.ctx_size,
                f"is shared by {spec.slots} slots, less than a token for each; give more",
            )
    yield from _ports(config)
    if config.instances and config.llama_cpp_source is None:
        yield Clash(
            ("llama_cpp_source",),
            None,
            f"instances {', '.join(config.instances)} need llama.cpp; give its pinned sources",
        )
    if config.instances and "llama-server" not in config.llama_cpp_targets:
        yield Clash(
            ("llama_cpp_targets",),
            config.llama_cpp_targets,
            "instances need 'llama-server' among the programs to build",
        )


def _served(config: HostConfig, at: Path, spec: InstanceSpec) -> Iterator[Clash]:
    model = config.models.get(spec.model)
    if model is None:
        yield Clash(
            (*at, "model"),
            spec.model,
            f"no such model; models has {_known(spec.model, config.models)}",
        )
    elif model.format != "gguf":
        yield Clash(
            (*at, "model"), spec.model, f"llama.cpp serves gguf, this model is {model.format}"
        )


def _bound(at: Path, spec: InstanceSpec) -> Iterator[Clash]:
    if spec.host != "localhost":
        try:
            ipaddress.ip_address(spec.host)
        except ValueError:
            yield Clash((*at, "host"), spec.host, "an IP address or 'localhost'")
            return
    if not is_loopback(spec.host) and not spec.api_key_file:
        yield Clash(
            (*at, "host"),
            spec.host,
            "others can reach that address, so api_key_file must name a key; or bind to 127.0.0.1",
        )


def _flags(at: Path, spec: InstanceSpec) -> Iterator[Clash]:
    for flag, value in spec.extra_flags.items():
        where: Path = (*at, "extra_flags", flag)
        if flag in OWN_VARIABLE:
            yield Clash(where, value, f"this flag is the variable {OWN_VARIABLE[flag]}; set that")
        elif flag in REFUSED_FLAGS:
            yield Clash(where, value, REFUSED_FLAGS[flag])
        elif flag.startswith("-") or "_" in flag or len(flag) < 2:
            long = flag.strip("-").replace("_", "-")
            yield Clash(where, value, f"flags are long names without dashes before, like {long!r}")


def _ports(config: HostConfig) -> Iterator[Clash]:
    named = list(config.instances.items())
    for number, (name, spec) in enumerate(named):
        for other_name, other in named[:number]:
            if spec.port == other.port and _overlap(spec.host, other.host):
                yield Clash(
                    ("instances", name, "port"),
                    spec.port,
                    f"instance {other_name} has the same port on {other.host}; give each its own",
                )


def _overlap(one: str, other: str) -> bool:
    everywhere = {"0.0.0.0", "::"}  # noqa: S104  (compared, not bound to)
    return (
        one == other
        or bool({one, other} & everywhere)
        or {one, other}
        == {
            "localhost",
            "127.0.0.1",
        }
    )


def _known(name: str, known: dict[str, Any]) -> str:
    """``tiny, big; did you mean tiny?``"""
    near = get_close_matches(name, known, 1)
    names = ", ".join(known) or "none"
    return f"{names}; did you mean {near[0]}?" if near else names
