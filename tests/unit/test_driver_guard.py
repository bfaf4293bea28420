"""What stops a host before its driver is touched (G6: C04, C05, C07, and their kind)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rules.desired_platform import Driver
from rules.driver_guard import last_branch, refusals
from tests.unit.platform_parts import DRIVER, FOUR_V100, part, stack


def devices(*ids: str) -> dict[str, Any]:
    return {
        "devices": [
            {"address": f"0000:0{number}:00.0", "device": device, "driver": None}
            for number, device in enumerate(ids)
        ]
    }


def refused(driver: Driver, **changed: Any) -> list[str]:
    return refusals(driver, part(**changed), changing=True)


def test_the_default_is_right_for_volta() -> None:
    assert refused(DRIVER) == []


@pytest.mark.parametrize("branch", [590, 595, 620])
@pytest.mark.parametrize("device", ["1db1", "1db4", "1db5", "1db6", "1db8", "1df6", "15f8"])
def test_c05_too_new_for_volta_and_pascal(branch: int, device: str) -> None:
    driver = replace(DRIVER, branch=branch, packages=(f"x-{branch}",))
    (sentence,) = refused(driver, gpus=devices(device))
    assert sentence.startswith(f"DRIVER_TOO_NEW: driver branch {branch} asked")
    assert "highest is 580" in sentence and f"10de:{device}" in sentence


def test_c05_kepler_ends_earlier() -> None:
    (sentence,) = refused(DRIVER, gpus=devices("102d"))
    assert "highest is 470" in sentence


@pytest.mark.parametrize("device", ["1eb8", "20b2", "2684", "2335"])
def test_newer_cards_take_newer_drivers(device: str) -> None:
    driver = replace(DRIVER, branch=595, packages=("cuda-drivers",))
    assert refused(driver, gpus=devices(device)) == []


def test_c05_unsuffixed_package_is_refused_before_install() -> None:
    (sentence,) = refused(replace(DRIVER, packages=("cuda-drivers",)))
    assert sentence.startswith("DRIVER_TOO_NEW: package cuda-drivers means the newest")


def test_c05_is_said_also_when_nothing_would_change() -> None:
    driver = replace(DRIVER, branch=595, packages=("x-595",))
    assert refusals(driver, part(), changing=False)


@pytest.mark.parametrize(
    "driver",
    [
        replace(DRIVER, flavour="open", packages=("nvidia-open-580",)),
        replace(DRIVER, packages=("nvidia-driver-580-server-open",)),
    ],
)
def test_open_modules_on_volta(driver: Driver) -> None:
    (sentence,) = refused(driver)
    assert "need Turing or newer" in sentence and "0000:1a:00.0" in sentence


def test_proprietary_modules_on_blackwell() -> None:
    """DGX Spark (C19's host) takes the open modules alone."""
    (sentence,) = refused(DRIVER, gpus=devices("2e12"))
    assert "Blackwell card 10de:2e12" in sentence and "'open'" in sentence
    opened = replace(DRIVER, flavour="open", packages=("nvidia-driver-580-open",))
    assert refused(opened, gpus=devices("2e12")) == []


def test_unknown_card_is_not_guessed_and_may_be_declared() -> None:
    (sentence,) = refused(DRIVER, gpus=devices("fffe"))
    assert "10de:fffe" in sentence and "gpu_generations" in sentence
    assert refused(replace(DRIVER, generations={"10de:fffe": "volta"}), gpus=devices("fffe")) == []
    too_new = replace(DRIVER, branch=595, packages=("x",), generations={"10de:fffe": "volta"})
    assert refused(too_new, gpus=devices("fffe"))[0].startswith("DRIVER_TOO_NEW")


def test_one_old_card_among_new_ones_counts() -> None:
    assert last_branch(devices("2335", "1db5", "20b2")["devices"], {}) == 580
    assert last_branch(devices("2335", "20b2")["devices"], {}) is None


def test_four_same_cards_are_one_sentence_with_all_addresses() -> None:
    (sentence,) = refused(replace(DRIVER, branch=595, packages=("x",)))
    assert all(device["address"] in sentence for device in FOUR_V100)


def test_package_of_another_branch_than_asked() -> None:
    (sentence,) = refused(replace(DRIVER, packages=("nvidia-driver-550-server",)))
    assert "branch 550, driver_branch is 580" in sentence


def test_c07_secure_boot_stops_before_the_driver_is_touched() -> None:
    (sentence,) = refused(DRIVER, secure_boot={"state": "enabled", "enrolled": None})
    assert "mokutil --import" in sentence and "console" in sentence


@pytest.mark.parametrize(
    "boot",
    [
        {"state": "enabled", "enrolled": True},
        {"state": "disabled", "enrolled": None},
        {"state": "setup", "enrolled": None},
        {"state": "not applicable", "enrolled": None},
    ],
)
def test_c07_not_applicable_or_enrolled(boot: dict[str, Any]) -> None:
    assert refused(DRIVER, secure_boot=boot) == []


def test_c07_signed_modules_need_no_enrolment() -> None:
    driver = replace(DRIVER, packages=("linux-modules-nvidia-580-server-generic",))
    assert refused(driver, secure_boot={"state": "enabled", "enrolled": False}) == []


def test_c07_a_driver_that_is_right_already_is_left_in_peace() -> None:
    boot = {"state": "enabled", "enrolled": False}
    assert refusals(DRIVER, part(secure_boot=boot), changing=False) == []


def test_c04_transitional_package_is_stopped_in_the_plan() -> None:
    driver = replace(DRIVER, branch=550, packages=("nvidia-driver-550-server",))
    simulation = {
        "asked": ["nvidia-driver-550-server"],
        "rc": 0,
        "out": "Inst nvidia-driver-570-server (570.172.08-0ubuntu1 Ubuntu [amd64])",
        "err": "",
        "offers": "Package: nvidia-driver-550-server\nVersion: 570.172.08-0ubuntu1\n"
        "Depends: nvidia-driver-570-server\n"
        "Description: Transitional package for nvidia-driver-570-server\n",
    }
    (sentence,) = refused(driver, packages={}, simulation=simulation)
    assert sentence.startswith("550 asked, apt gives 570")


def test_c02_own_hold_in_apts_answer() -> None:
    simulation = {
        "asked": ["cuda-drivers-580"],
        "held": ["nvidia-driver-440"],
        "rc": 100,
        "out": " cuda-drivers : Depends: nvidia-driver-440 (>= 440.33.01) but it is not going to "
        "be installed\n",
        "err": "E: Unable to correct problems, you have held broken packages.\n",
        "offers": "",
    }
    packages = stack("440.33.01-0ubuntu1", True, "nvidia-driver-440")
    driver = replace(DRIVER, packages=("cuda-drivers-580",))
    (sentence,) = refused(driver, packages=packages, simulation=simulation)
    assert "nvidia-driver-440 is held" in sentence and "the hold is ours" in sentence
