"""A running server: its unit, environment file, key file, links, and the stamp over all of it.

One template unit ``llama-server@.service`` serves all instances of a host. What differs is in
``/etc/voltfleet/instances/<name>.env`` (arguments), in a key file beside it and in a drop-in (the
memory bound). The server reads program and model through the links ``current``, which are switched
together with the restart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jinja2 import Environment, StrictUndefined

from rules import flags, models
from rules.desired import Directory, File, Instance, Link, Model, Release, Unit
from rules.schema import HostConfig, InstanceSpec

AREA = "serving"
FOLDER = "/etc/voltfleet/instances"
SYSTEMD = "/etc/systemd/system"
REASON = ("G13", "G17")
SLOT_TOKENS = 512  # below, the guide's own prompts of 50 to 500 tokens do not fit with an answer
# Memory of a server beside the weights: program, prompt cache (8 GiB by default), buffers.
BASE_BYTES = 10 << 30


@dataclass(frozen=True)
class Built:
    """Everything that makes up one instance."""

    instance: Instance
    directories: tuple[Directory, ...]
    files: tuple[File, ...]
    links: tuple[Link, ...]
    units: tuple[Unit, ...]


def instance(
    config: HostConfig,
    name: str,
    release: Release | None,
    model: Model,
    key: bytes | None,
    templates: Mapping[str, str],
) -> Built:
    """One instance of a host's data.

    `key` is the content of the controller's key file, `templates` the texts by file name. Without
    a known release the stamp and the link to it are open; see `rules.releases.release`.
    """
    spec = config.instances[name]
    unit = f"llama-server@{name}.service"
    key_file = f"{FOLDER}/{name}.key" if key is not None else None
    group = config.service_user
    words = flags.words(spec, f"{model.root}/current/{models.first_part(model)}", key_file)
    values = {
        "root": config.llama_cpp_root,
        "user": config.service_user,
        "folder": FOLDER,
        "name": name,
        "start_timeout_s": spec.start_timeout_s,
        "memory_max_bytes": memory_max_bytes(spec, model),
        "arguments": " ".join(words),
        "home": "read-only" if _in_home(config) else "yes",
        "context": describe(config, name),
    }
    unit_text = _render(templates, "llama-server@.service.j2", values)
    dropin_text = _render(templates, "llama-server-instance.conf.j2", values)
    stamp = stamp_of(unit_text, dropin_text, " ".join(words), key, release, model)
    env_text = _render(templates, "llama-server.env.j2", {**values, "stamp": stamp})
    files = [
        _file(f"{SYSTEMD}/llama-server@.service", unit_text.encode()),
        _file(f"{SYSTEMD}/{unit}.d/50-voltfleet.conf", dropin_text.encode()),
        _file(f"{FOLDER}/{name}.env", env_text.encode(), mode=0o640, group=group),
    ]
    if key_file is not None and key is not None:
        # read by the server itself, so its group may read it and nobody else
        files.append(
            File(
                key_file,
                key_lines(key),
                0o640,
                "root",
                group,
                secret=True,
                area=AREA,
                reason=REASON,
            )
        )
    links = [Link(f"{model.root}/current", model.revision, AREA, ("G11",))]
    if release is not None:
        target = f"releases/{release.fingerprint}"
        links.append(Link(f"{config.llama_cpp_root}/current", target, AREA, ("G9",)))
    return Built(
        instance=Instance(
            name=name,
            engine=spec.engine,
            unit=unit,
            model=spec.model,
            host=spec.host,
            port=spec.port,
            key_file=key_file,
            start_timeout_s=spec.start_timeout_s,
            reason=REASON,
        ),
        directories=(
            Directory(config.llama_cpp_root),
            Directory(FOLDER, 0o750, "root", group, AREA),
            Directory(f"{SYSTEMD}/{unit}.d", area=AREA),
        ),
        files=tuple(files),
        links=tuple(links),
        units=(Unit(unit, stamp=stamp, area=AREA, reason=REASON),),
    )


def stamp_of(
    unit_text: str,
    dropin_text: str,
    arguments: str,
    key: bytes | None,
    release: Release | None,
    model: Model,
) -> str:
    """16 hex digits over everything a server is started from; see `rules.desired.Unit`."""
    parts = [
        unit_text,
        dropin_text,
        arguments,
        None if key is None else hashlib.sha256(key_lines(key)).hexdigest(),
        "" if release is None else release.fingerprint,
        model.revision,
        sorted((file.path, file.sha256) for file in model.files),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def key_lines(key: bytes) -> bytes:
    """The key file as llama-server reads it: one key a line; an editor's last newline is no key."""
    return key.strip() + b"\n"


def memory_max_bytes(spec: InstanceSpec, model: Model) -> int:
    """The bound on a server's host memory.

    The guide's 30 GB (G17) is below what the server needs when layers stay on the CPU. Layers on
    the GPUs leave their share of the file in the page cache only, which the kernel takes back; with
    a number or with 'auto' nobody can say before loading how much stays on the CPU, so it counts
    whole, and a quarter for the cache of the context.
    """
    if spec.memory_max_bytes is not None:
        return spec.memory_max_bytes
    weights = models.size_bytes(model)
    return BASE_BYTES + (weights // 8 if spec.gpu_layers == "all" else weights * 5 // 4)


def describe(config: HostConfig, name: str) -> str:
    """The context of an instance in words: llama-server divides it among the slots (G13)."""
    spec = config.instances[name]
    slots = "1 slot" if spec.slots == 1 else f"{spec.slots} slots"
    if spec.ctx_size == 0:
        return f"context as the model says, {slots}"
    if spec.slots == 1 or spec.extra_flags.get("kv-unified") is True:
        return f"context {spec.ctx_size} tokens, {slots}"
    return f"context {spec.ctx_size} tokens, {spec.ctx_size // spec.slots} for each of {slots}"


def refusals(config: HostConfig, keys: Mapping[str, bytes]) -> list[str]:
    """What the data of a host's instances makes impossible, beyond `rules.combinations`.

    `keys` are the contents of the key files by the path that the data names.
    """
    found = []
    for name, spec in config.instances.items():
        thing = f"instance {name}"
        key = keys.get(spec.api_key_file)
        if spec.api_key_file and (key is None or not key.strip()):
            found.append(f"{thing}: {spec.api_key_file} holds no key, expected one word in a line")
        elif key is not None and (len(key.split()) != 1 or not key.strip().isascii()):
            found.append(f"{thing}: {spec.api_key_file} must hold one key, one ASCII word")
        elif key is not None and key.strip().startswith(b"#"):
            found.append(f"{thing}: the key in {spec.api_key_file} begins with #, a comment there")
        if spec.model in config.models:
            model = models.model(config, spec.model)
            words = flags.words(spec, f"{model.root}/current/{models.first_part(model)}", None)
            for word in flags.unsafe(words):
                found.append(
                    f"{thing}: {word!r} has characters that an environment file can't carry, "
                    "allowed are letters, digits and _ . / : , @ % + = ~ -"
                )
    return found


def warnings(config: HostConfig) -> list[str]:
    """What is allowed but worth a word."""
    return [
        f"instance {name}: {describe(config, name)}; prompt and answer together must fit in one "
        f"slot, below {SLOT_TOKENS} tokens they hardly do: give more ctx_size or fewer slots"
        for name, spec in config.instances.items()
        if spec.ctx_size and spec.ctx_size // spec.slots <= SLOT_TOKENS
    ]


def check_timer_files(templates: Mapping[str, str], names: Iterable[str]) -> list[File]:
    """The weekly check that reads every model of the data whole, at idle priority."""
    values = {"models": " ".join(sorted(names))}
    return [
        File(
            f"{SYSTEMD}/{name}",
            _render(templates, f"{name}.j2", values).encode(),
            reason=("G11",),
        )
        for name in ("voltfleet-model-check.service", "voltfleet-model-check.timer")
    ]


def _in_home(config: HostConfig) -> bool:
    """Whether the server must read below the folders that systemd can hide."""
    roots = (config.model_root, config.llama_cpp_root)
    return any(f"{root}/".startswith(("/home/", "/root/")) for root in roots)


def _file(path: str, content: bytes, mode: int = 0o644, group: str = "root") -> File:
    return File(path, content, mode, "root", group, area=AREA, reason=REASON)


def _render(templates: Mapping[str, str], name: str, values: Mapping[str, object]) -> str:
    # units and environment files are no markup: nothing to escape
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)  # noqa: S701
    return environment.from_string(templates[name]).render(values)
