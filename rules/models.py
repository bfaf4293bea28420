"""What a model of a host's data means: addresses, folders, required metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from rules.desired import File, Model, ModelFile
from rules.schema import HostConfig, ModelFileSpec, ModelSpec

ARCHITECTURE = "general.architecture"
TOKEN_FILE = "/etc/voltfleet/hub-token"  # on the host, root's alone  # noqa: S105
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
        # only the hub may see it: a URL of another place gets none
        token_file=TOKEN_FILE if config.model_hub_token_file and spec.source == "hub" else None,
        full_check=config.models_full_check,
        reason=REASON,
    )


def token_files(config: HostConfig, secrets: Mapping[str, bytes]) -> list[File]:
    """The hub's token as a file of the host, where one of its models comes from the hub.

    `secrets` are the contents of the controller's secrets by the path that the data names.
    """
    token = secrets.get(config.model_hub_token_file)
    if token is None or not any(spec.source == "hub" for spec in config.models.values()):
        return []
    return [File(TOKEN_FILE, token.strip() + b"\n", mode=0o600, secret=True, reason=REASON)]


def refusals(config: HostConfig, secrets: Mapping[str, bytes]) -> list[str]:
    """What the hub's token makes impossible; `secrets` as for `token_files`."""
    token = secrets.get(config.model_hub_token_file)
    if token is None or (token.isascii() and len(token.split()) == 1):
        return []
    return [f"model_hub_token_file: {config.model_hub_token_file} must hold one token, one word"]


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
