"""A host's platform as the probe answers about it, to be varied by tests."""

from __future__ import annotations

import copy
from typing import Any

from rules.desired_platform import CudaToolkit, Driver, Platform, Reboots, Repository
from rules.observed import Observed

SHA = "ab" * 32
KERNEL = "6.8.0-60-generic"
REPOSITORY = Repository("local_repo_deb", url="http://hub/cuda-repo.deb", sha256=SHA)
TOOLKIT = CudaToolkit("12.4", ("cuda-toolkit-12-4",), REPOSITORY)
DRIVER = Driver(580, ("nvidia-driver-580-server",), None)


def package(version: str, held: bool = False, status: str = "installed") -> dict[str, Any]:
    return {"version": version, "status": status, "held": held}


def stack(version: str, held: bool, *names: str) -> dict[str, Any]:
    return {name: package(version, held) for name in names}


SERVER_580 = ("nvidia-driver-580-server", "nvidia-utils-580-server", "libnvidia-compute-580-server")
FOUR_V100 = [
    {"address": f"0000:{bus}:00.0", "device": "1db5", "driver": "nvidia"}
    for bus in ("1a", "1c", "1d", "1e")
]

# Four V100, driver 580 loaded and held, toolkit 12.4 installed and proved: nothing to do.
CONVERGED: dict[str, Any] = {
    "gpus": {"devices": FOUR_V100},
    "driver": {
        "loaded": "580.95.05",
        "flavour": "proprietary",
        "on_disk": "580.95.05",
        "signer": None,
        "library": "580.95.05",
        "nodes": ["/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl"],
        "log": [],
    },
    "modules": {"loaded": ["nvidia", "nvidia_uvm"]},
    "nouveau": {
        "bound": [],
        "blacklisted_by": ["/etc/modprobe.d/voltfleet-nouveau.conf"],
        "initramfs": {KERNEL: {"nouveau": None, "blacklist": None, "stale": False}},
    },
    "secure_boot": {"state": "not applicable", "enrolled": None},
    "kernels": {"running": KERNEL, "newest": KERNEL, "headers": {KERNEL: True}},
    "dkms": {"modules": []},
    "boot": {"boot_id": "b0", "required_by": []},
    "packages": {
        **stack("580.95.05-0ubuntu1", True, *SERVER_580),
        "cuda-toolkit-12-4": package("12.4.1-1"),
    },
    "apt_sources": {"entries": []},
    "repositories": {},
    "simulation": None,
    "toolkits": {
        "/usr/local/cuda": {
            "link": "/etc/alternatives/cuda",
            "owners": [],
            "version": "12.4",
            "is_toolkit": True,
        },
        "/usr/local/cuda-12.4": {
            "link": None,
            "owners": ["cuda-nvcc-12-4"],
            "version": "12.4",
            "is_toolkit": True,
        },
    },
    "alternative": {
        "value": "/usr/local/cuda-12.4",
        "status": "auto",
        "choices": ["/usr/local/cuda-12.4"],
    },
    "nvcc": {"path": "/usr/local/cuda-12.4/bin/nvcc", "release": "12.4", "build": "12.4.131"},
    "cuda_proof": {
        "nvcc": "/usr/local/cuda-12.4/bin/nvcc",
        "build": "12.4.131",
        "architectures": ["sm_70"],
    },
    "path_lines": {"lines": []},
}


def part(**changed: Any) -> dict[str, Any]:
    """The converged host with whole keys replaced."""
    return {**copy.deepcopy(CONVERGED), **changed}


def observed(**changed: Any) -> Observed:
    return Observed({"platform": part(**changed)})


def wanted(
    toolkit: CudaToolkit | None = TOOLKIT,
    driver: Driver | None = DRIVER,
    reboots: Reboots | None = None,
) -> Platform:
    return Platform(toolkit, driver, reboots or Reboots())
