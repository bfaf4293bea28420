"""Which release of llama.cpp a host needs, and the key under which it is kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from rules import flags, models
from rules.desired import Release, Source
from rules.schema import ArchiveSource, HostConfig

ENGINE = "llama_cpp"
# The C++ compiler that a distribution's own `g++` package brings, by its major version.
COMPILERS = {
    "debian 12": "g++-12",
    "debian 13": "g++-14",
    "ubuntu 22.04": "g++-11",
    "ubuntu 24.04": "g++-13",
}
REASON = ("G9",)


def release(config: HostConfig, system: Mapping[str, Any] | None) -> Release | None:
    """The release a host needs, None when its data names no sources.

    `system` is the part of that name of the probe's answer. Without it the fingerprint and the
    compiler are empty: they depend on the operating system.
    """
    source = config.llama_cpp_source
    if source is None:
        return None
    # A build for the CPU it happens on would die with SIGILL on an older one that gets it shipped.
    options = {"GGML_NATIVE": "OFF", **config.llama_cpp_options}
    compiler = compiler_for(system) if system is not None else ""
    fetching = ("git",) if source.kind == "git" else ("aria2",)
    return Release(
        engine=ENGINE,
        root=config.llama_cpp_root,
        fingerprint=fingerprint(config, options, compiler, system) if system is not None else "",
        source=_source(config),
        options=options,
        targets=tuple(config.llama_cpp_targets),
        build_packages=("cmake", "make", compiler, "ca-certificates", *fetching),
        compiler=compiler,
        flags_used=tuple(sorted(flags.used_by(config))),
        architectures_used=architectures(config),
        flag_hints=flags.TODAY,
        jobs=config.llama_cpp_build_jobs,
        reason=REASON,
    )


def compiler_for(system: Mapping[str, Any]) -> str:
    """The compiler's command and package: the distribution's own, by its full name."""
    return COMPILERS.get(f"{system.get('id')} {system.get('version')}", "g++")


def fingerprint(
    config: HostConfig,
    options: Mapping[str, str],
    compiler: str,
    system: Mapping[str, Any],
) -> str:
    """16 hex digits: the same sources, options, compiler, system and CPU architecture.

    Hosts with the same fingerprint can run the same release; where sources come from is no part
    of it, what they are is.
    """
    source = _source(config)
    parts = {
        "engine": ENGINE,
        "source": source.sha256 or source.commit,
        "options": dict(options),
        "targets": sorted(config.llama_cpp_targets),
        "compiler": compiler,
        "system": f"{system.get('id')} {system.get('version')}",
        "machine": system.get("machine"),
    }
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def architectures(config: HostConfig) -> tuple[str, ...]:
    """general.architecture of every model that an instance serves, as far as the data tells."""
    served = {spec.model for spec in config.instances.values()}
    named = {
        str(models.required_metadata(config, name).get(models.ARCHITECTURE, ""))
        for name in served & set(config.models)
    }
    return tuple(sorted(named - {""}))


def _source(config: HostConfig) -> Source:
    source = config.llama_cpp_source
    if source is None:
        raise ValueError("a host without llama_cpp_source has no release")
    if isinstance(source, ArchiveSource):
        return Source("archive", source.url, sha256=source.sha256)
    return Source("git", source.url, commit=source.commit)
