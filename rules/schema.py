"""The variables of ``group_data/``: names, types, units, limits, defaults.

`HostConfig` is the merged data of one host after validation. It is the only place that names a
variable; ``docs/variables.md`` is generated from it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/.*$")]
Port = Annotated[int, Field(ge=1, le=65535)]


class Strict(BaseModel):
    """Unknown keys are errors; values are not converted (``"8080"`` is no port)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ArchiveSource(Strict):
    """Sources as one archive, proved by its sha256."""

    kind: Literal["archive"] = "archive"
    url: str = Field(description="where the .tar.gz lies (http, https or file)")
    sha256: Sha256 = Field(description="of the archive")


class GitSource(Strict):
    """Sources as a git commit, which proves itself."""

    kind: Literal["git"] = "git"
    url: str = Field(description="the repository")
    commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")] = Field(
        description="full commit id"
    )


class ModelFileSpec(Strict):
    """One file of a model."""

    path: str = Field(description="inside the revision, as on the hub")
    size: Annotated[int, Field(ge=0)] = Field(description="bytes")
    sha256: Sha256


class ModelSpec(Strict):
    """A model and where its files come from."""

    source: Literal["hub", "url"] = Field(
        default="hub", description="hub: <model_hub_url>/<repository>/resolve/<revision>/<path>"
    )
    repository: str = Field(default="", description="hub only: owner/name")
    url: str = Field(default="", description="url only: folder that the paths are relative to")
    revision: str = Field(description="pinned revision: a commit id or a name that never moves")
    format: Literal["gguf", "safetensors"] = "gguf"
    files: list[ModelFileSpec]
    profile: str = Field(
        default="upstream",
        description="which set of required metadata applies (a key of model_profiles)",
    )
    architecture: str = Field(default="", description="general.architecture the file must have")


class InstanceSpec(Strict):
    """One running server."""

    engine: Literal["llama_cpp"] = "llama_cpp"
    model: Name = Field(description="a key of `models`")
    host: str = Field(default="127.0.0.1", description="address to bind to")
    port: Port = 8080
    ctx_size: Annotated[int, Field(ge=0)] = Field(
        default=0, description="tokens, shared by all slots; 0: as the model says"
    )
    slots: Annotated[int, Field(ge=1)] = Field(default=1, description="parallel requests")
    gpu_layers: int | Literal["all", "auto"] = "auto"
    threads: Annotated[int, Field(ge=0)] = Field(default=0, description="0: as many as cores")
    batch_size: Annotated[int, Field(ge=1)] = Field(default=2048, description="tokens")
    extra_flags: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="further llama-server flags, long names without --"
    )
    api_key_file: str = Field(
        default="",
        description="file on the controller (mode 0600) that holds the key; empty: no key, "
        "allowed only when bound to loopback",
    )
    start_timeout_s: Annotated[int, Field(ge=1)] = Field(default=300, description="seconds")
    memory_max_bytes: int | None = Field(
        default=None, description="host memory bound of the unit, bytes; None: from the model"
    )


class HostConfig(Strict):
    """Everything that may be said about a host in ``group_data/`` or its inventory entry."""

    # --- the run -------------------------------------------------------------------------
    probe_timeout_s: Annotated[int, Field(ge=2, le=600)] = Field(
        default=20, description="seconds the probe may take, whatever hangs on the host"
    )
    lease_policy: Literal["refuse", "wait"] = Field(
        default="refuse", description="what a run does when another one holds the host"
    )
    lease_wait_s: Annotated[int, Field(ge=0)] = Field(default=600, description="seconds")
    apt_lock_wait_s: Annotated[int, Field(ge=0)] = Field(
        default=300, description="seconds to wait for another apt or dpkg"
    )
    supported_os: list[str] = Field(
        default_factory=lambda: ["debian 13", "debian 12", "ubuntu 22.04", "ubuntu 24.04"],
        description="'id version' as in /etc/os-release",
    )

    # --- the base system -----------------------------------------------------------------
    packages: list[str] = Field(default_factory=list, description="distribution packages")
    sysctl: dict[str, str | int] = Field(default_factory=dict, description="kernel parameters")
    kernel_module_options: dict[str, dict[str, str | int]] = Field(
        default_factory=dict, description="module -> option -> value"
    )
    service_user: Name = Field(default="voltfleet", description="user the servers run as")

    # --- llama.cpp -----------------------------------------------------------------------
    llama_cpp_source: ArchiveSource | GitSource | None = None
    llama_cpp_options: dict[str, str] = Field(
        default_factory=dict, description="CMake options without -D"
    )
    llama_cpp_targets: list[str] = Field(default_factory=lambda: ["llama-server"])
    llama_cpp_root: AbsolutePath = "/opt/llama.cpp"
    llama_cpp_build_jobs: Annotated[int, Field(ge=0)] = Field(
        default=0, description="parallel compiler jobs; 0: as many as cores"
    )

    # --- models --------------------------------------------------------------------------
    model_hub_url: str = Field(default="https://huggingface.co", description="or a mirror of it")
    model_root: AbsolutePath = "/srv/voltfleet/models"
    models: dict[Name, ModelSpec] = Field(default_factory=dict)
    model_profiles: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="profile -> GGUF metadata key -> required value"
    )
    models_full_check: bool = Field(
        default=False, description="hash every byte again on this run, not only size and times"
    )

    # --- serving -------------------------------------------------------------------------
    instances: dict[Name, InstanceSpec] = Field(default_factory=dict)
