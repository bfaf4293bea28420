"""The variables of the platform: CUDA toolkit, NVIDIA driver, reboots (G4, G5, G6).

`PlatformConfig` is a block of `rules.schema.HostConfig`, which inherits from it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from rules.schema_base import Strict, about
from rules.values import Architecture, CudaVersion, PackageName, PciDevice, Sha256

GenerationName = Literal[
    "kepler",
    "maxwell",
    "pascal",
    "volta",
    "turing",
    "ampere",
    "ada",
    "hopper",
    "blackwell",
    "rubin",
]


class LocalRepoDeb(Strict):
    """NVIDIA's local-repository .deb: a package that brings a whole repository under /var."""

    kind: Literal["local_repo_deb"] = Field(
        default="local_repo_deb", description="a .deb that brings a repository under /var"
    )
    url: str = Field(default="", description="where the .deb lies; or path")
    path: str = Field(
        default="", description="the .deb on the controller, for labs without internet; or url"
    )
    sha256: Sha256 = Field(description="of the .deb", json_schema_extra=about("", "G5"))


class DistributionSource(Strict):
    """The distribution's own packages."""

    kind: Literal["distribution"] = Field(description="the distribution's own packages")


class ToolkitRepository(Strict):
    """The repository that cuda_source brings."""

    kind: Literal["toolkit_repository"] = Field(description="the repository of cuda_source")


class VendorRepository(Strict):
    """A repository over the network, signed with a key that the controller has."""

    kind: Literal["repository"] = Field(description="a repository over the network")
    url: str = Field(description="its address, as in an apt source")
    suite: str = Field(default="/", description="its suite; '/' for a flat repository")
    keyring: str = Field(description="file on the controller: the key its Release is signed with")


def source_kind(value: object) -> str:
    """Which source a value means; one with a sha256 and no kind is a local-repository .deb."""
    if isinstance(value, dict):
        return str(value.get("kind", "local_repo_deb"))
    return str(getattr(value, "kind", "local_repo_deb"))


CudaSource = Annotated[
    Annotated[LocalRepoDeb, Tag("local_repo_deb")]
    | Annotated[DistributionSource, Tag("distribution")],
    Discriminator(source_kind),
]
DriverSource = Annotated[
    Annotated[LocalRepoDeb, Tag("local_repo_deb")]
    | Annotated[DistributionSource, Tag("distribution")]
    | Annotated[ToolkitRepository, Tag("toolkit_repository")]
    | Annotated[VendorRepository, Tag("repository")],
    Discriminator(source_kind),
]


class PlatformConfig(Strict):
    """CUDA, driver and reboots of one host."""

    # --- CUDA ----------------------------------------------------------------------------
    cuda_version: CudaVersion | None = Field(
        default=None,
        description="toolkit to have; None: this host's CUDA is left alone",
        json_schema_extra=about("", "G5"),
    )
    cuda_source: CudaSource | None = Field(
        default=None,
        description="where the toolkit comes from",
        json_schema_extra=about("", "G5"),
    )
    cuda_packages: list[PackageName] = Field(
        default_factory=list,
        description="packages that are the toolkit; empty: cuda-toolkit-<version> of a local "
        "repository, nvidia-cuda-toolkit of a distribution",
        json_schema_extra=about("", "G5"),
    )
    cuda_exclusive: bool = Field(
        default=False,
        description="this host is ours alone: other toolkits are removed; False: they stay",
        json_schema_extra=about("", "G4"),
    )
    cuda_keep_repository: bool = Field(
        default=True,
        description="keep the local repository after the installation; False: its disk space is "
        "freed, and the next installation fetches it again",
        json_schema_extra=about("", "G5"),
    )
    cuda_architectures: Annotated[list[Architecture], Field(min_length=1)] = Field(
        default_factory=lambda: ["sm_70"],
        description="GPU architectures that nvcc must compile for, as proof",
        json_schema_extra=about("", "G5", "G9"),
    )

    # --- driver --------------------------------------------------------------------------
    driver_source: DriverSource | None = Field(
        default=None,
        description="where the driver comes from; None: this host's driver is left alone",
        json_schema_extra=about("", "G6"),
    )
    driver_branch: Annotated[int, Field(ge=390, le=999)] = Field(
        default=580,
        description="driver branch; 580 is the last for Volta, supported until June 2028",
        json_schema_extra=about("", "G6"),
    )
    driver_flavour: Literal["proprietary", "open"] = Field(
        default="proprietary",
        description="kernel modules: open needs Turing or newer, Blackwell needs open",
        json_schema_extra=about("", "G6"),
    )
    driver_packages: list[PackageName] = Field(
        default_factory=list,
        description="packages that are the driver; empty: what the source calls this branch",
        json_schema_extra=about("", "G6"),
    )
    driver_hold: bool = Field(
        default=True,
        description="hold every installed package of the driver and keep unattended upgrades away",
        json_schema_extra=about("", "G6"),
    )
    nouveau_blacklist: bool = Field(
        default=True,
        description="keep the nouveau module from binding the cards",
        json_schema_extra=about("", "G6"),
    )
    gpu_persistence: bool = Field(
        default=True,
        description="run nvidia-persistenced, which keeps the driver's state between uses",
        json_schema_extra=about("", "G3", "G6"),
    )
    gpu_generations: dict[PciDevice, GenerationName] = Field(
        default_factory=dict,
        description="generation of cards newer than the built-in table, by PCI id",
        json_schema_extra=about("", "G6"),
    )

    # --- reboots -------------------------------------------------------------------------
    reboot_allowed: bool = Field(
        default=False,
        description="a run may reboot this host, once, when something needs it; False: the host "
        "ends as REBOOT_REQUIRED with the reasons",
        json_schema_extra=about("", "G6", "G7"),
    )
    reboot_parallel: Annotated[int, Field(ge=1)] = Field(
        default=1,
        description="how many hosts may reboot at once",
        json_schema_extra=about("hosts", "G6"),
    )
    reboot_timeout_s: Annotated[int, Field(ge=60)] = Field(
        default=1200,
        description="until the host must be back; old servers test their memory for minutes",
        json_schema_extra=about("seconds"),
    )


# Title of each section of the docs, by its first variable.
SECTIONS = {"cuda_version": "CUDA", "driver_source": "Driver", "reboot_allowed": "Reboots"}

Impossible = tuple[tuple[str | int, ...], Any, str]  # where, what lies there, why not and what then


def impossible(config: PlatformConfig) -> list[Impossible]:
    """Values that are each allowed and together impossible, in the order of the variables."""
    found: list[Impossible] = []
    if (config.cuda_version is None) != (config.cuda_source is None):
        key = "cuda_source" if config.cuda_source is None else "cuda_version"
        why = "cuda_version and cuda_source go together: set both or neither"
        found.append(((key,), None, why))
    for key, source in (
        ("cuda_source", config.cuda_source),
        ("driver_source", config.driver_source),
    ):
        if isinstance(source, LocalRepoDeb) and bool(source.url) == bool(source.path):
            found.append(((key,), source.url or source.path, "give either url or path of the .deb"))
    driver = config.driver_source
    if isinstance(driver, ToolkitRepository) and not isinstance(config.cuda_source, LocalRepoDeb):
        why = (
            "toolkit_repository needs a cuda_source of kind local_repo_deb: there is no repository"
        )
        found.append((("driver_source", "kind"), driver.kind, why))
    if isinstance(driver, ToolkitRepository) and not config.cuda_keep_repository:
        why = "the driver comes from the toolkit's repository, which would be removed: keep it"
        found.append((("cuda_keep_repository",), False, why))
    return found
