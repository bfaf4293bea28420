"""The variables of ``group_data/``: names, types, units, limits, defaults.

`HostConfig` is the merged data of one host after validation. It is the only place that names a
variable; ``docs/variables.md`` is generated from it, and the sentences of `rules.validate` about
what is allowed are made from it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    Discriminator,
    Field,
    Tag,
)

from rules.schema_base import Strict, about
from rules.schema_platform import SECTIONS as PLATFORM_SECTIONS
from rules.schema_platform import PlatformConfig
from rules.values import (
    AbsolutePath,
    CmakeOption,
    Commit,
    GitUrl,
    Name,
    OperatingSystem,
    PackageName,
    PlainUrl,
    Port,
    Revision,
    Sha256,
    SysctlKey,
    Text,
    Url,
    UserName,
)


class ArchiveSource(Strict):
    """Sources as one archive, proved by its sha256."""

    kind: Literal["archive"] = Field(default="archive", description="an archive, proved by sha256")
    url: Url = Field(description="where the .tar.gz lies")
    sha256: Sha256 = Field(description="of the archive")


class GitSource(Strict):
    """Sources as a git commit, which proves itself."""

    kind: Literal["git"] = Field(default="git", description="a git commit, which proves itself")
    url: GitUrl = Field(description="the repository")
    commit: Commit = Field(description="full commit id; a branch or tag may move")


def source_kind(value: object) -> str:
    """Which source a value means; without `kind`, the one whose proof (commit, sha256) it has."""
    if isinstance(value, dict):
        return str(value.get("kind", "git" if "commit" in value else "archive"))
    return str(getattr(value, "kind", "archive"))


AnySource = Annotated[
    Annotated[ArchiveSource, Tag("archive")] | Annotated[GitSource, Tag("git")],
    Discriminator(source_kind),
]


class ModelFileSpec(Strict):
    """One file of a model."""

    path: Text = Field(description="inside the revision, as on the hub")
    size: Annotated[int, Field(ge=0)] = Field(
        description="exact size", json_schema_extra=about("bytes")
    )
    sha256: Sha256 = Field(description="of the whole file", json_schema_extra=about("", "G11"))


class ModelSpec(Strict):
    """A model and where its files come from."""

    source: Literal["hub", "url"] = Field(
        default="hub", description="hub: <model_hub_url>/<repository>/resolve/<revision>/<path>"
    )
    repository: str = Field(default="", description="hub only: owner/name")
    url: str = Field(default="", description="url only: folder that the paths are relative to")
    revision: Revision = Field(
        description="pinned revision: a commit id or a name that never moves",
        json_schema_extra=about("", "T2"),
    )
    format: Literal["gguf", "safetensors"] = Field(default="gguf", description="of the files")
    files: Annotated[list[ModelFileSpec], Field(min_length=1)] = Field(
        description="every file, in the order of its parts",
        json_schema_extra=about("", "G11", "T2"),
    )
    profile: str = Field(
        default="upstream",
        description="which set of required metadata applies (a key of model_profiles)",
        json_schema_extra=about("", "G11"),
    )
    architecture: str = Field(
        default="",
        description="general.architecture the file must have; empty: as the profile says",
        json_schema_extra=about("", "G11"),
    )


class InstanceSpec(Strict):
    """One running server."""

    engine: Literal["llama_cpp"] = Field(default="llama_cpp", description="what serves it")
    model: Name = Field(description="a key of models")
    host: Text = Field(
        default="127.0.0.1",
        description="IP address to bind to; other than loopback needs api_key_file",
        json_schema_extra=about("", "G13"),
    )
    port: Port = Field(default=8080, description="TCP port", json_schema_extra=about("", "G13"))
    ctx_size: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="context, shared by all slots; 0: as the model says",
        json_schema_extra=about("tokens", "G13"),
    )
    slots: Annotated[int, Field(ge=1)] = Field(
        default=1,
        description="parallel requests; each has ctx_size / slots tokens of context",
        json_schema_extra=about("", "G13"),
    )
    gpu_layers: Annotated[int, Field(ge=0)] | Literal["all", "auto"] = Field(
        default="auto",
        description="layers kept on the GPUs",
        json_schema_extra=about("layers", "G13", "G10"),
    )
    threads: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="CPU threads; 0: as many as cores",
        json_schema_extra=about("threads", "G13"),
    )
    batch_size: Annotated[int, Field(ge=1)] = Field(
        default=2048, description="logical batch", json_schema_extra=about("tokens", "G13")
    )
    extra_flags: dict[str, str | int | float | bool] = Field(
        default_factory=dict,
        description="further llama-server flags, long names without --",
        json_schema_extra=about("", "G13"),
    )
    api_key_file: str = Field(
        default="",
        description="file on the controller (mode 0600) that holds the key, from "
        "secrets_folder; empty: no key, allowed only when bound to loopback",
        json_schema_extra=about("", "G13"),
    )
    start_timeout_s: Annotated[int, Field(ge=1)] = Field(
        default=300,
        description="until the model must be loaded",
        json_schema_extra=about("seconds"),
    )
    memory_max_bytes: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="host memory bound of the unit; None: from the model",
        json_schema_extra=about("bytes", "G17"),
    )


class BaseConfig(Strict):
    """The run and the base system of one host: a block of `HostConfig`."""

    # --- the run -------------------------------------------------------------------------
    probe_timeout_s: Annotated[int, Field(ge=2, le=600)] = Field(
        default=20,
        description="time the probe may take, whatever hangs on the host",
        json_schema_extra=about("seconds"),
    )
    lease_policy: Literal["refuse", "wait"] = Field(
        default="refuse", description="what a run does when another one holds the host"
    )
    lease_wait_s: Annotated[int, Field(ge=0)] = Field(
        default=600,
        description="how long lease_policy 'wait' waits",
        json_schema_extra=about("seconds"),
    )
    apt_lock_wait_s: Annotated[int, Field(ge=0)] = Field(
        default=300,
        description="how long to wait for another apt or dpkg",
        json_schema_extra=about("seconds"),
    )
    secrets_folder: Text = Field(
        default=".voltfleet/secrets",
        description="folder on the controller that paths of secrets start from; relative: in "
        "this repository, where git ignores it",
    )
    supported_os: Annotated[list[OperatingSystem], Field(min_length=1)] = Field(
        default_factory=lambda: ["debian 13", "debian 12", "ubuntu 22.04", "ubuntu 24.04"],
        description="operating systems a run may change, 'id version' as in /etc/os-release",
        json_schema_extra=about("", "G1"),
    )

    # --- the base system -----------------------------------------------------------------
    packages: list[PackageName] = Field(
        default_factory=list, description="distribution packages that must be installed"
    )
    sysctl: dict[SysctlKey, str | int] = Field(
        default_factory=dict, description="kernel parameters, now and after a reboot"
    )
    kernel_module_options: dict[Name, dict[str, str | int]] = Field(
        default_factory=dict,
        description="kernel module -> option -> value",
        json_schema_extra=about("", "G3"),
    )
    service_user: UserName = Field(
        default="voltfleet", description="system user the servers run as; made by the run"
    )


class HostConfig(PlatformConfig, BaseConfig):
    """Everything that may be said about a host in ``group_data/`` or its inventory entry.

    The order of its variables is that of the docs: base first, platform, then what stands here.
    """

    # --- llama.cpp -----------------------------------------------------------------------
    llama_cpp_source: AnySource | None = Field(
        default=None,
        description="pinned sources; None: this host builds none",
        json_schema_extra=about("", "G9"),
    )
    llama_cpp_options: dict[CmakeOption, str] = Field(
        default_factory=dict,
        description="CMake options without -D; one the sources do not know stops the build",
        json_schema_extra=about("", "G9"),
    )
    llama_cpp_targets: Annotated[list[Text], Field(min_length=1)] = Field(
        default_factory=lambda: ["llama-server"],
        description="programs to build and install",
        json_schema_extra=about("", "G9"),
    )
    llama_cpp_root: AbsolutePath = Field(
        default="/opt/llama.cpp", description="releases and the link to the one in use"
    )
    llama_cpp_build_jobs: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="parallel compiler jobs; 0: as many as cores",
        json_schema_extra=about("jobs"),
    )

    # --- models --------------------------------------------------------------------------
    model_hub_url: PlainUrl = Field(
        default="https://huggingface.co", description="the model hub, or a mirror of it"
    )
    model_hub_token_file: str = Field(
        default="",
        description="file on the controller (mode 0600) that holds the hub's token, from "
        "secrets_folder; empty: only models that need none",
        json_schema_extra=about("", "G11"),
    )
    model_root: AbsolutePath = Field(
        default="/srv/voltfleet/models", description="a folder per model and revision"
    )
    models: dict[Name, ModelSpec] = Field(
        default_factory=dict,
        description="models this host keeps",
        json_schema_extra=about("", "G11", "T2"),
    )
    model_profiles: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="profile -> GGUF metadata key -> required value",
        json_schema_extra=about("", "G11"),
    )
    models_full_check: bool = Field(
        default=False,
        description="hash every byte again on this run, not only size and times",
        json_schema_extra=about("", "G11"),
    )

    # --- serving -------------------------------------------------------------------------
    instances: dict[Name, InstanceSpec] = Field(
        default_factory=dict,
        description="running servers by name; each has a unit of its own",
        json_schema_extra=about("", "G13", "T10"),
    )
    serving_switch_at_once: Annotated[int, Field(ge=1)] = Field(
        default=1,
        description="hosts whose running servers are switched at a time, in the order of the "
        "inventory; the first that fails stops the rest",
        json_schema_extra=about("hosts"),
    )


# Title of each section of the docs, by its first variable.
SECTIONS = {
    "probe_timeout_s": "The run",
    "packages": "The base system",
    **PLATFORM_SECTIONS,
    "llama_cpp_source": "llama.cpp",
    "model_hub_url": "Models",
    "instances": "Serving",
}
