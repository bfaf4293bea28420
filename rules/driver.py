"""The NVIDIA driver of a host: what it should be, and how far from it the host is (G6).

The branch is pinned by version with apt preferences, because names do not pin: from 590 on
NVIDIA's packages for Ubuntu carry no branch (driver installation guide, "Recent Updates"), those
for Debian never did, so that ``cuda-drivers-580`` there brings 590 without a pin
(forums.developer.nvidia.com/t/353805), and the CUDA repository's own pin (600) would let it win
over the distribution.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from files.agent.nvidia_stack import branch_of, in_stack, tied_to_driver
from rules.desired import File, Unit
from rules.desired_platform import Driver, Repository
from rules.schema_platform import (
    DistributionSource,
    LocalRepoDeb,
    PlatformConfig,
    VendorRepository,
)

MANAGED = "Managed by voltfleet: the next run overwrites changes made here."
PINS = "/etc/apt/preferences.d/voltfleet-nvidia"
UNATTENDED = "/etc/apt/apt.conf.d/52voltfleet-nvidia"
NOUVEAU = "/etc/modprobe.d/voltfleet-nouveau.conf"
MODULES = "/etc/modules-load.d/voltfleet-nvidia.conf"
NODES_UNIT = "voltfleet-nvidia-nodes.service"
FIRST_UNSUFFIXED = 590  # from here on NVIDIA's package names carry no branch
# apt_preferences(5): names by glob; a version that does not match is not touched by the pin.
PINNED = (
    *("cuda-drivers*", "nvidia-*", "libnvidia-*", "libcuda1", "libcudadebugger1", "libnvcuvid1"),
    *("libegl-nvidia*", "libgl*-nvidia*", "xserver-xorg-video-nvidia*", "firmware-nvidia-*"),
)
# Python regular expressions, matched from the start of a name (unattended-upgrades(8)).
KEPT_AWAY = (
    *("cuda-drivers", "nvidia-(?!container|docker|cuda-)", "libnvidia-(?!container)"),
    *("libcuda1$", "libcudadebugger1$", "libxnvctrl", "lib(e?gl|gles|glx)[0-9]*-nvidia"),
    *(
        "xserver-xorg-video-nvidia",
        "firmware-nvidia-",
        "linux-(modules|objects|signatures)-nvidia-",
    ),
)
_NODES = f"""\
# {MANAGED}
[Unit]
Description=Device nodes of the NVIDIA driver, which a confined service can't make
After=systemd-modules-load.service
ConditionPathExists=/proc/driver/nvidia/version

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/nvidia-modprobe -c 0 -u

[Install]
WantedBy=multi-user.target
"""

Part = Mapping[str, Any]


def repository(source: object) -> Repository | None:
    """The repository that a source of the data means; None for the distribution's own."""
    if isinstance(source, LocalRepoDeb):
        return Repository("local_repo_deb", source.url, source.path, source.sha256)
    if isinstance(source, VendorRepository):
        return Repository("repository", source.url, suite=source.suite, keyring=source.keyring)
    return None


def driver(config: PlatformConfig, system: Mapping[str, Any] | None) -> Driver | None:
    """The driver that a host's data wants; None when it is left alone.

    `system` is the probe's part of that name; without it Debian's names are not known yet.
    """
    source = config.driver_source
    if source is None:
        return None
    own = isinstance(source, DistributionSource)
    names = tuple(config.driver_packages) or package_names(
        str((system or {}).get("id", "")) if own else "",
        config.driver_branch,
        config.driver_flavour,
    )
    return Driver(
        branch=config.driver_branch,
        packages=names,
        repository=repository(
            config.cuda_source if source.kind == "toolkit_repository" else source
        ),
        flavour=config.driver_flavour,
        hold=config.driver_hold,
        blacklist_nouveau=config.nouveau_blacklist,
        persistence=config.gpu_persistence,
        generations=dict(config.gpu_generations),
    )


def package_names(distribution: str, branch: int, flavour: str) -> tuple[str, ...]:
    """What a branch is called by ``debian``, by ``ubuntu``, or (empty) by NVIDIA's repositories."""
    is_open = flavour == "open"
    if distribution == "debian":
        kernel = "nvidia-open-kernel-dkms" if is_open else "nvidia-kernel-dkms"
        return (kernel, "nvidia-smi", "nvidia-persistenced", "nvidia-modprobe")
    if distribution:
        suffix = "-open" if is_open else ""
        return (f"nvidia-headless-{branch}-server{suffix}", f"nvidia-utils-{branch}-server")
    name = "nvidia-open" if is_open else "cuda-drivers"
    if branch < FIRST_UNSUFFIXED:
        return (f"{name}-{branch}",)
    return (f"nvidia-driver-pinning-{branch}", name)


def pins(driver: Driver) -> str:
    """apt preferences that let no other branch in; above 1000, so that a move may go down."""
    return (
        f"Explanation: {MANAGED}\n"
        f"Package: {' '.join(PINNED)}\n"
        f"Pin: version /^([0-9]+:)?{driver.branch}\\./\n"
        "Pin-Priority: 1001\n"
    )


def files(driver: Driver) -> list[File]:
    """The files that keep the driver as it is: pins, unattended upgrades, nouveau, modules."""
    found = [File(PINS, pins(driver).encode(), reason=("G6",))]
    if driver.hold:
        listed = "".join(f'  "{pattern}";\n' for pattern in KEPT_AWAY)
        text = f"// {MANAGED}\nUnattended-Upgrade::Package-Blacklist {{\n{listed}}};\n"
        found.append(File(UNATTENDED, text.encode(), reason=("G6",)))
    if driver.blacklist_nouveau:
        text = f"# {MANAGED}\nblacklist nouveau\noptions nouveau modeset=0\n"
        found.append(File(NOUVEAU, text.encode(), reason=("G6",)))
    found.append(File(MODULES, f"# {MANAGED}\nnvidia\nnvidia-uvm\n".encode(), reason=("G6",)))
    unit = f"/etc/systemd/system/{NODES_UNIT}"
    found.append(File(unit, _NODES.encode(), reason=("G6",)))
    return found


def units(driver: Driver) -> list[Unit]:
    """Units of the driver; of an area after the platform, since they need the driver's programs."""
    names = [NODES_UNIT, *(["nvidia-persistenced.service"] if driver.persistence else [])]
    return [Unit(name, area="kernel", reason=("G6",)) for name in names]


def stack(packages: Part) -> dict[str, Mapping[str, Any]]:
    """The installed packages of the driver stack, by name."""
    return {
        name: package
        for name, package in sorted(packages.items())
        if package["status"] == "installed" and in_stack(name)
    }


def unheld(packages: Part) -> list[str]:
    """Packages of the stack that an upgrade could take away from the others (C01)."""
    return [name for name, package in stack(packages).items() if not package["held"]]


def other_branches(packages: Part, branch: int) -> dict[int, list[str]]:
    """Packages of the stack that are of another branch, by that branch; also half installed ones,
    which a move that failed has left."""
    found: dict[int, list[str]] = {}
    for name, package in sorted(packages.items()):
        given = branch_of(package["version"])
        if package["status"] == "config-files":
            continue
        if tied_to_driver(name) and given not in (branch, None):
            found.setdefault(int(given or 0), []).append(name)
    return found


def as_asked(driver: Driver, packages: Part) -> bool:
    """Whether the packages asked are installed and nothing of the stack is of another branch."""
    installed = stack(packages)
    wanted = all(packages.get(name, {}).get("status") == "installed" for name in driver.packages)
    return wanted and bool(installed) and not other_branches(packages, driver.branch)


def ignored_by(log: list[str]) -> tuple[str, int] | None:
    """The driver version that ignores a card, and the last branch for that card (C05).

    From the kernel log, where the driver's message is folded over several lines.
    """
    text = " ".join(re.sub(r"^.*?NVRM:", "", line).strip() for line in log)
    last = re.search(r"supported through the NVIDIA (\d+)\.xx Legacy drivers", text)
    version = re.search(r"The (\d+\.\d+(?:\.\d+)?) NVIDIA driver will ignore", text)
    return (version[1], int(last[1])) if last and version else None
