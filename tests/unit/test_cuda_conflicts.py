"""What is in a toolkit's way, and what is left alone (G4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rules.cuda import conflicts, files, kept_by_hold, lacking, nvcc_path, proved
from tests.unit.platform_parts import CONVERGED, TOOLKIT, package, part

DISTRIBUTION = replace(TOOLKIT, packages=("nvidia-cuda-toolkit",), repository=None)


def folder(**changed: Any) -> dict[str, Any]:
    return {"link": None, "owners": [], "version": "11.8", "is_toolkit": True, **changed}


def keys(toolkit: Any = TOOLKIT, **changed: Any) -> list[str]:
    return [conflict.key for conflict in conflicts(toolkit, part(**changed))]


def with_packages(**more: dict[str, Any]) -> dict[str, Any]:
    return {**CONVERGED["packages"], **{name.replace("_", "-"): p for name, p in more.items()}}


def test_a_converged_host_has_none() -> None:
    assert keys() == []


def test_packages_of_other_series_one_conflict_each() -> None:
    packages = with_packages(
        cuda_nvcc_11_8=package("11.8.89-1"),
        cuda_toolkit_11_8=package("11.8.0-1"),
        cuda_nvcc_13_0=package("13.0.88-1"),
        cuda_nvcc_12_4=package("12.4.131-1"),
        libcudnn9_cuda_12=package("9.1.0-1"),
        cuda_nvcc_10_2=package("10.2-1", status="config-files"),
    )
    assert keys(packages=packages) == ["packages:11.8", "packages:13.0"]


def test_the_driver_is_never_a_conflict() -> None:
    packages = with_packages(cuda_drivers=package("550.54.15-1"), libcuda1=package("550.54.15-1"))
    assert keys(packages=packages) == []


def test_the_distributions_toolkit_is_in_the_vendors_way_and_not_the_reverse() -> None:
    packages = with_packages(
        nvidia_cuda_toolkit=package("11.5.1-1ubuntu1"), nvidia_cuda_dev=package("11.5.1-1ubuntu1")
    )
    assert keys(packages=packages) == ["packages:distribution"]
    assert keys(DISTRIBUTION, packages=packages) == []


def test_somebodys_hold_keeps_a_series() -> None:
    packages = with_packages(
        cuda_nvcc_11_8=package("11.8.89-1"), libcublas_11_8=package("11.8-1", held=True)
    )
    assert keys(packages=packages) == []
    assert kept_by_hold(TOOLKIT, packages) == {"11.8": ["libcublas-11-8"]}


@pytest.mark.parametrize(
    ("path", "found", "is_conflict"),
    [
        ("/usr/local/cuda-11.8", folder(), True),
        ("/usr/local/cuda-11.8", folder(owners=["cuda-nvcc-11-8"]), False),
        ("/usr/local/cuda-samples", folder(is_toolkit=False), False),  # a user's
        ("/usr/local/cuda", folder(link="/usr/local/cuda-11.8"), True),
        ("/usr/local/cuda", folder(link="cuda-11.8"), True),
        ("/usr/local/cuda", folder(link="/usr/local/cuda-12.4"), False),
        ("/usr/local/cuda", folder(link="/etc/alternatives/cuda"), False),
        ("/usr/local/cuda-13", folder(link="/etc/alternatives/cuda-13"), False),
        ("/usr/local/cuda", folder(), True),
    ],
)
def test_folders_and_links(path: str, found: dict[str, Any], is_conflict: bool) -> None:
    toolkits = {**CONVERGED["toolkits"], path: found}
    assert keys(toolkits=toolkits) == ([path] if is_conflict else [])


def test_what_lies_in_the_toolkits_place_goes_first() -> None:
    toolkits = {"/usr/local/cuda-12.4": folder(version="12.4"), "/usr/local/cuda-11.8": folder()}
    found = {c.key: c.before_install for c in conflicts(TOOLKIT, part(toolkits=toolkits))}
    assert found == {"/usr/local/cuda-12.4": True, "/usr/local/cuda-11.8": False}


def line(file: str, root: str, number: int = 1) -> dict[str, Any]:
    return {"file": file, "line": number, "text": f"export PATH={root}/bin", "root": root}


@pytest.mark.parametrize(
    ("file", "root", "is_conflict"),
    [
        ("/etc/profile.d/old.sh", "/usr/local/cuda-11.8", True),
        ("/etc/ld.so.conf.d/zz.conf", "/usr/local/cuda-13.0", True),
        ("/etc/profile.d/mine.sh", "/usr/local/cuda-12.4", False),
        ("/etc/profile.d/mine.sh", "/usr/local/cuda", False),
        ("/etc/profile.d/cuda.sh", "/usr/local/cuda-11.8", False),  # ours: written anew
    ],
)
def test_lines(file: str, root: str, is_conflict: bool) -> None:
    assert keys(path_lines={"lines": [line(file, root)]}) == ([file] if is_conflict else [])


def test_a_line_of_a_toolkit_that_stays_is_no_conflict() -> None:
    """A held toolkit stays, and so do the lines that lead to it."""
    toolkits = {
        **CONVERGED["toolkits"],
        "/usr/local/cuda-11.8": folder(owners=["libcublas-11-8"]),
    }
    packages = with_packages(libcublas_11_8=package("11.8-1", held=True))
    lines = {"lines": [line("/etc/profile.d/old.sh", "/usr/local/cuda-11.8")]}
    assert keys(toolkits=toolkits, packages=packages, path_lines=lines) == []
    packages = with_packages(libcublas_11_8=package("11.8-1"))
    assert keys(toolkits=toolkits, packages=packages, path_lines=lines) == [
        "packages:11.8",
        "/etc/profile.d/old.sh",
    ]


def test_lines_of_one_file_are_one_conflict() -> None:
    lines = [line("/etc/environment", "/usr/local/cuda-11.8", number) for number in (2, 5)]
    (found,) = conflicts(TOOLKIT, part(path_lines={"lines": lines}))
    assert found.thing == "lines 2, 5 of /etc/environment"


def test_a_distribution_needs_no_profile_file() -> None:
    assert files(DISTRIBUTION) == [] and nvcc_path(DISTRIBUTION) == "/usr/bin/nvcc"
    (profile,) = files(TOOLKIT)
    assert b"/usr/local/cuda-12.4/bin" in profile.content and b"lib64" in profile.content


@pytest.mark.parametrize(
    ("version", "changed", "said"),
    [
        ("12.4", {}, None),
        ("12.4.1", {}, None),
        ("12.4.0", {}, "package cuda-toolkit-12-4 is 12.4.1-1, not 12.4.0"),
        ("12.4", {"packages": {}}, "package cuda-toolkit-12-4 is not installed"),
        ("12.4", {"nvcc": None}, "/usr/local/cuda-12.4/bin/nvcc is missing"),
        (
            "12.4",
            {"nvcc": {"path": "/usr/local/cuda-12.4/bin/nvcc", "release": "11.8", "build": "1"}},
            "is of 11.8, not 12.4",
        ),
    ],
)
def test_lacking(version: str, changed: dict[str, Any], said: str | None) -> None:
    found = lacking(replace(TOOLKIT, version=version), part(**changed))
    assert found == [] if said is None else said in found[0]


def test_a_proof_is_of_one_compiler_and_its_architectures() -> None:
    assert proved(TOOLKIT, part())
    assert not proved(TOOLKIT, part(cuda_proof=None))
    assert not proved(replace(TOOLKIT, architectures=("sm_70", "sm_80")), part())
    other = {**CONVERGED["cuda_proof"], "build": "12.4.99"}
    assert not proved(TOOLKIT, part(cuda_proof=other))
