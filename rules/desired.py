"""The desired state of one host: what its data means, before looking at the host.

Everything here is a value: files with their bytes, packages, units, models. `operations` never
builds one of these itself; `rules.compose.desired_state` does, from the host's validated data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rules.desired_platform import Platform

# On hosts: archives on their way and what builds keep; root's alone.
CACHE = "/var/cache/voltfleet"


@dataclass(frozen=True)
class Package:
    """A distribution package that must be installed, at any version unless `version` is given."""

    name: str
    version: str | None = None
    reason: tuple[str, ...] = ()


@dataclass(frozen=True)
class Group:
    """A system group."""

    name: str
    reason: tuple[str, ...] = ()


@dataclass(frozen=True)
class User:
    """A system user without a login; its primary group has its name."""

    name: str
    home: str
    shell: str = "/usr/sbin/nologin"
    groups: tuple[str, ...] = ()  # supplementary
    reason: tuple[str, ...] = ()


@dataclass(frozen=True)
class Directory:
    """A directory; `mode` as an octal integer (0o755)."""

    path: str
    mode: int = 0o755
    owner: str = "root"
    group: str = "root"
    area: str = "files"
    reason: tuple[str, ...] = ()


@dataclass(frozen=True)
class File:
    """A regular file, whole.

    `secret` content never appears in a difference, a log, a report or an argument.
    """

    path: str
    content: bytes = field(repr=False)
    mode: int = 0o644
    owner: str = "root"
    group: str = "root"
    secret: bool = False
    area: str = "files"
    reason: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True)
class Link:
    """A symbolic link, switched atomically."""

    path: str
    target: str
    area: str = "files"
    reason: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sysctl:
    """A kernel parameter, now; that it survives a reboot is the job of a managed file."""

    key: str
    value: str
    reason: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModuleOption:
    """An option of a kernel module that must be in effect once the module is loaded.

    That it is set at the next load is the job of a managed file in ``/etc/modprobe.d``.
    """

    module: str
    option: str
    value: str
    reason: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unit:
    """A systemd unit's wanted state.

    `stamp` identifies everything that the running main process was started from (unit file,
    environment, key, release, model). It is put in the process's environment as
    ``VOLTFLEET_STAMP``; a running process with another stamp is restarted, so that a run that
    died between the change and the restart is finished by the next one. None: never restarted.
    """

    name: str
    enabled: bool = True
    active: bool = True
    stamp: str | None = None
    area: str = "files"
    reason: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """Where sources come from: an archive by sha256, or a git repository at a full commit."""

    kind: str  # "archive" | "git"
    url: str
    sha256: str | None = None  # archive
    commit: str | None = None  # git


@dataclass(frozen=True)
class Release:
    """A built release of an engine under ``<root>/releases/<fingerprint>``.

    `root/current` is a link to the release in use; it is a `Link` of area ``serving``.
    """

    engine: str  # "llama_cpp"
    root: str  # /opt/llama.cpp
    fingerprint: str  # key of commit, options, compiler, operating system, CPU architecture
    source: Source
    options: Mapping[str, str]  # CMake options without -D
    targets: tuple[str, ...]  # programs to build and install
    build_packages: tuple[str, ...]  # needed on the host that builds, only there
    compiler: str  # "g++-14"
    flags_used: tuple[str, ...] = ()  # flags of the units; each must be in the program's --help
    architectures_used: tuple[str, ...] = ()  # general.architecture of the models to be served
    flag_hints: Mapping[str, str] = field(default_factory=dict)  # vanished flag -> what to use now
    jobs: int = 0  # parallel compilers; 0: as many as cores and memory allow
    reason: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelFile:
    """One file of a model; `path` is relative to the model's revision folder."""

    path: str
    url: str
    size: int  # bytes
    sha256: str


@dataclass(frozen=True)
class Model:
    """A checked model under ``<root>/<revision>``; ``<root>/current`` is a `Link` (serving)."""

    name: str
    root: str  # /srv/voltfleet/models/<name>
    revision: str
    format: str  # "gguf" | "safetensors"
    files: tuple[ModelFile, ...]
    required_metadata: Mapping[str, Any] = field(default_factory=dict)  # GGUF key -> value
    profile: str = ""  # where `required_metadata` comes from, for messages
    other_profiles: tuple[str, ...] = ()  # that a file which lacks a key may be served under
    token_file: str | None = None  # on the host, mode 0600
    full_check: bool = False  # hash every byte again on this run
    reason: tuple[str, ...] = ()


@dataclass(frozen=True)
class Instance:
    """One running server: a unit, a port, a model; several may run on a host."""

    name: str
    engine: str  # "llama_cpp" | "vllm"
    unit: str  # llama-server@tiny.service
    model: str
    host: str  # address it binds to
    port: int
    key_file: str | None  # on the host; None only when bound to loopback
    start_timeout_s: int
    reason: tuple[str, ...] = ()


@dataclass(frozen=True)
class Desired:
    """Everything a host should be. Order within a tuple is the order of the plan."""

    packages: tuple[Package, ...] = ()
    groups: tuple[Group, ...] = ()
    users: tuple[User, ...] = ()
    directories: tuple[Directory, ...] = ()
    files: tuple[File, ...] = ()
    links: tuple[Link, ...] = ()
    sysctls: tuple[Sysctl, ...] = ()
    module_options: tuple[ModuleOption, ...] = ()
    units: tuple[Unit, ...] = ()
    releases: tuple[Release, ...] = ()
    models: tuple[Model, ...] = ()
    instances: tuple[Instance, ...] = ()
    platform: Platform | None = None  # CUDA, driver, boot; None: left alone
    supported_os: tuple[str, ...] = ()  # "debian 13"
    probe_timeout_s: int = 20
    apt_lock_wait_s: int = 300  # how long to wait for another apt or dpkg
