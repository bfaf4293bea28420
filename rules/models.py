"""What a model of a host's data means: addresses, folders, required metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from rules.desired import Model, ModelFile
from rules.schema import HostConfig, ModelFileSpec, ModelSpec

ARCHITECTURE = "general.architecture"
REASON = ("G11",)


def model(config: HostConfig, name: str) -> Model:
    """The model `name` of a host's data."""
    spec = config.models[name]
    return Model(
        name=name,
        root=f"{config.model_root}/{name}",
        revision=spec.revision,
        format=spec.format,
        files=tuple(
            ModelFile(file.path, address(config, spec, file), file.size, file.sha256)
            for file in spec.files
        ),
        required_metadata=required_metadata(config, name),
        profile=spec.profile,
        other_profiles=tuple(sorted(set(config.model_profiles) - {spec.profile})),
        full_check=config.models_full_check,
        reason=REASON,
    )


def address(config: HostConfig, spec: ModelSpec, file: ModelFileSpec) -> str:
    """Where a file lies: the hub's own layout, or below the folder that the data names."""
    path = quote(file.path)
    if spec.source == "url":
        return f"{spec.url.rstrip('/')}/{path}"
    revision = quote(spec.revision, safe="")
    return f"{config.model_hub_url.rstrip('/')}/{spec.repository}/resolve/{revision}/{path}"


def required_metadata(config: HostConfig, name: str) -> Mapping[str, Any]:
    """GGUF keys and values that the model must have: its profile's, and its own architecture."""
    spec = config.models[name]
    required = dict(config.model_profiles.get(spec.profile, {}))
    if spec.architecture:
        required[ARCHITECTURE] = spec.architecture
    return required if spec.format == "gguf" else {}


def size_bytes(wanted: Model) -> int:
    """Bytes of all files of a model."""
    return sum(file.size for file in wanted.files)


def first_part(wanted: Model) -> str:
    """The path of the file that llama-server is given: it finds further parts by their names."""
    paths = [file.path for file in wanted.files if file.path.endswith(".gguf")]
    projectors = [path for path in paths if path.rpartition("/")[2].startswith("mmproj")]
    weights = [path for path in paths if path not in projectors]
    parts = sorted(path for path in weights if "-00001-of-" in path)
    return (parts or weights or paths)[0]
