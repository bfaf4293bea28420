"""Which packages are the driver, which a toolkit, and of which branch."""

from __future__ import annotations

import re

import pytest

from files.agent.nvidia_stack import (
    branch_of,
    driver_version,
    in_stack,
    is_nvidia,
    is_open,
    is_unsuffixed,
    named_branch,
    tied_to_driver,
    toolkit_series,
)
from rules.driver import KEPT_AWAY

STACK_WORDS = (
    "cuda-drivers cuda-drivers-580 cuda-drivers-fabricmanager-580 nvidia-driver-580-server "
    "nvidia-headless-580-server nvidia-utils-580-server nvidia-compute-utils-580-server "
    "nvidia-dkms-580-server nvidia-kernel-common-580-server nvidia-kernel-source-580-server "
    "nvidia-firmware-580-server-580.95.05 libnvidia-compute-580-server libnvidia-cfg1-580-server "
    "libnvidia-encode-580 nvidia-fabricmanager-580 libnvidia-nscq-580 "
    "linux-modules-nvidia-580-server-6.8.0-60-generic linux-modules-nvidia-580-server-generic "
    "linux-objects-nvidia-580-server-6.8.0-60-generic linux-signatures-nvidia-6.8.0-60-generic "
    "xserver-xorg-video-nvidia-580 nvidia-driver nvidia-driver-libs nvidia-kernel-dkms "
    "nvidia-kernel-support nvidia-smi nvidia-persistenced nvidia-modprobe libcuda1 libnvidia-ml1 "
    "libnvidia-ptxjitcompiler1 nvidia-open-kernel-dkms firmware-nvidia-gsp nvidia-settings "
    "libxnvctrl0 nvidia-xconfig nvidia-alternative nvidia-vulkan-icd libegl-nvidia0"
)
OTHERS_WORDS = (
    "nvidia-cuda-toolkit nvidia-cuda-dev nvidia-profiler nvidia-container-toolkit "
    "libnvidia-container1 libnvidia-container-tools libnvidia-ml-dev libnvidia-egl-wayland1 "
    "cuda-toolkit-12-4 cuda-compat-12-4 libcudart12 libcublas-12-4 cuda-keyring nvidia-docker2 "
    "libcurl4 libnpth0 nvidia-driver-pinning-580 linux-image-6.8.0-60-generic"
)
STACK, OTHERS = STACK_WORDS.split(), OTHERS_WORDS.split()


@pytest.mark.parametrize("name", STACK)
def test_stack(name: str) -> None:
    assert in_stack(name)
    assert in_stack(f"{name}:amd64")


@pytest.mark.parametrize("name", OTHERS)
def test_not_stack(name: str) -> None:
    assert not in_stack(name)


@pytest.mark.parametrize("name", STACK)
def test_unattended_upgrades_are_kept_from_the_whole_stack(name: str) -> None:
    assert any(re.match(pattern, name) for pattern in KEPT_AWAY)


@pytest.mark.parametrize(
    "name", ["nvidia-container-toolkit", "libnvidia-container1", "libcurl4", "linux-image-generic"]
)
def test_unattended_upgrades_go_on_elsewhere(name: str) -> None:
    assert not any(re.match(pattern, name) for pattern in KEPT_AWAY)


@pytest.mark.parametrize(
    ("version", "branch"),
    [
        ("580.95.05-0ubuntu1", 580),
        ("1:580.95.05-1", 580),
        ("550.163.01-2", 550),
        ("580.95.05", 580),
        ("6.8.0-60.63+1", None),  # modules named after a kernel
        ("12.4.1-1", None),
        ("20240101", None),
        ("", None),
    ],
)
def test_branch(version: str, branch: int | None) -> None:
    assert branch_of(version) == branch
    assert (driver_version(version) is None) == (branch is None)


@pytest.mark.parametrize(
    ("name", "branch"),
    [
        ("nvidia-driver-550-server", 550),
        ("cuda-drivers-580", 580),
        ("nvidia-firmware-580-server-580.95.05", 580),
        ("cuda-drivers", None),
        ("nvidia-kernel-dkms", None),
        ("linux-image-580", None),
    ],
)
def test_branch_in_a_name(name: str, branch: int | None) -> None:
    assert named_branch(name) == branch


@pytest.mark.parametrize(
    ("name", "opened"),
    [
        ("nvidia-open-580", True),
        ("nvidia-driver-580-server-open", True),
        ("nvidia-kernel-source-580-open", True),
        ("linux-modules-nvidia-580-open-generic", True),
        ("nvidia-open-kernel-dkms", True),
        ("nvidia-driver-580-server", False),
        ("nvidia-opencl-icd", False),
    ],
)
def test_open_flavour(name: str, opened: bool) -> None:
    assert is_open(name) is opened


def test_unsuffixed() -> None:
    assert is_unsuffixed("cuda-drivers") and is_unsuffixed("nvidia-open")
    assert not is_unsuffixed("cuda-drivers-580")


@pytest.mark.parametrize(
    ("name", "series"),
    [
        ("cuda-toolkit-12-4", "12.4"),
        ("cuda-nvcc-11-8", "11.8"),
        ("libcublas-dev-13-0", "13.0"),
        ("cuda-toolkit-13-0-config-common", "13.0"),
        ("cuda-compat-12-4", "12.4"),
        ("gds-tools-12-4", "12.4"),
        ("cuda-toolkit-config-common", None),
        ("cuda-toolkit-13-config-common", None),
        ("cuda-toolkit", None),
        ("cuda-repo-ubuntu2204-12-4-local", None),
        ("libcudnn9-cuda-12", None),
        ("nvidia-cuda-toolkit", None),
        ("libcudart12", None),
        ("nvidia-driver-580", None),
    ],
)
def test_toolkit_series(name: str, series: str | None) -> None:
    assert toolkit_series(name) == series


def test_accessories_have_versions_of_their_own() -> None:
    assert not tied_to_driver("libxnvctrl0") and not tied_to_driver("nvidia-settings")
    assert tied_to_driver("libnvidia-compute-580") and not tied_to_driver("curl")


def test_what_the_probe_passes_on() -> None:
    assert is_nvidia("cuda-keyring") and is_nvidia("libcublas-12-4") and is_nvidia("libcuda1")
    assert not is_nvidia("libcurl4") and not is_nvidia("libnpth0") and not is_nvidia("libcups2")
