"""The desired state of a host's platform: CUDA toolkit, NVIDIA driver, what may be rebooted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Repository:
    """A signed package repository to register on the host.

    `kind` ``local_repo_deb``: NVIDIA's .deb that brings the repository under /var, fetched from
    `url` or uploaded from `path` on the controller, proved by `sha256`. `kind` ``repository``: one
    over the network at `url` with `suite`, signed by the key in the controller's file `keyring`.
    """

    kind: str
    url: str = ""
    path: str = ""
    sha256: str = ""
    suite: str = "/"
    keyring: str = ""

    @property
    def key(self) -> str:
        """What the host remembers it by."""
        return self.sha256 or self.url


@dataclass(frozen=True)
class CudaToolkit:
    """A toolkit installed from packages; `repository` None means the distribution's own."""

    version: str  # "12.4" or "12.4.1"
    packages: tuple[str, ...]
    repository: Repository | None
    exclusive: bool = False
    keep_repository: bool = True
    architectures: tuple[str, ...] = ("sm_70",)

    @property
    def series(self) -> str:
        """Major and minor: what NVIDIA names packages and folders after (``12.4``)."""
        return ".".join(self.version.split(".")[:2])

    @property
    def root(self) -> str | None:
        """The toolkit's folder; None for a distribution, which spreads it over /usr."""
        return None if self.repository is None else f"/usr/local/cuda-{self.series}"


@dataclass(frozen=True)
class Driver:
    """A driver branch installed from packages, held as a whole."""

    branch: int
    packages: tuple[str, ...]
    repository: Repository | None
    flavour: str = "proprietary"  # or "open"
    hold: bool = True
    blacklist_nouveau: bool = True
    persistence: bool = True
    generations: Mapping[str, str] = field(default_factory=dict)  # "10de:1db5" -> "volta"


@dataclass(frozen=True)
class Reboots:
    """Whether and how a host may be rebooted."""

    allowed: bool = False
    parallel: int = 1  # hosts
    timeout_s: int = 1200


@dataclass(frozen=True)
class Platform:
    """The platform of one host; None: left alone."""

    toolkit: CudaToolkit | None = None
    driver: Driver | None = None
    reboots: Reboots = field(default_factory=Reboots)
    lock_wait_s: int = 300

    @property
    def repositories(self) -> tuple[Repository, ...]:
        """The repositories to have, each once, the toolkit's first."""
        owners = (self.toolkit, self.driver)
        wanted = [owner.repository for owner in owners if owner and owner.repository]
        return tuple(dict.fromkeys(wanted))
