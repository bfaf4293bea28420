"""Which reboots are needed, allowed, and proved."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rules import reboot
from rules.desired_platform import Reboots
from tests.unit.platform_parts import CONVERGED, DRIVER, KERNEL, part


def driver_part(**changed: Any) -> dict[str, Any]:
    return {**copy.deepcopy(CONVERGED["driver"]), **changed}


def why(**changed: Any) -> list[str]:
    return reboot.reasons(DRIVER, part(**changed))


def test_no_reason() -> None:
    assert why() == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"on_disk": "580.126.09"}, "driver 580.95.05 is loaded, 580.126.09 is on disk"),
        ({"library": "580.126.09"}, "driver 580.95.05 is loaded, the library is 580.126.09"),
    ],
)
def test_c01_versions_differ(changed: dict[str, str], said: str) -> None:
    assert why(driver=driver_part(**changed)) == [said]


@pytest.mark.parametrize(
    "changed",
    [
        {"loaded": None, "on_disk": "580.126.09"},  # not loaded: nothing to reboot for
        {"on_disk": None},
        {"on_disk": {"unknown": "modinfo is not installed"}},
        {"library": None},
    ],
)
def test_what_is_not_known_is_no_reason(changed: dict[str, Any]) -> None:
    assert why(driver=driver_part(**changed)) == []


def test_c06_nouveau_has_the_cards() -> None:
    (sentence,) = why(
        nouveau={"bound": ["0000:1a:00.0"], "blacklisted_by": ["/x"], "initramfs": {}},
        modules={"loaded": ["nouveau"]},
    )
    assert sentence.startswith("nouveau has the cards 0000:1a:00.0")


def test_nouveau_is_no_matter_where_no_driver_is_wanted() -> None:
    changed = part(modules={"loaded": ["nouveau"]})
    assert reboot.reasons(None, changed) == []


def test_driver_built_for_the_newest_kernel_only() -> None:
    kernels = {"running": KERNEL, "newest": "6.8.0-90-generic", "headers": {}}
    modules = [
        {
            "module": "nvidia",
            "version": "580.95.05",
            "kernel": "6.8.0-90-generic",
            "state": "installed",
        }
    ]
    assert why(kernels=kernels, dkms={"modules": modules}) == [
        f"the driver is built for kernel 6.8.0-90-generic, and {KERNEL} is running"
    ]


def test_a_package_of_the_stack_asks() -> None:
    assert why(boot={"boot_id": "b", "required_by": ["linux-base", "nvidia-dkms-580"]}) == [
        "nvidia-dkms-580 asks for a reboot"
    ]
    assert why(boot={"boot_id": "b", "required_by": ["linux-base"]}) == []


def test_not_allowed_is_a_state_and_no_change() -> None:
    reasons = ["x differs"]
    found = reboot.state(reasons, Reboots(allowed=False))
    assert found is not None and found.word == "REBOOT_REQUIRED" and "x differs" in found.sentence
    assert reboot.change(reasons, Reboots(allowed=False), "b") is None


def test_allowed_is_a_change_and_no_state() -> None:
    planned = reboot.change(["x differs"], Reboots(allowed=True), "b0", ["driver"])
    assert planned is not None and planned.needs == ("driver",)
    assert planned.action == {"do": "host.reboot", "boot_id": "b0", "why": "x differs"}
    assert reboot.state(["x differs"], Reboots(allowed=True)) is None
    assert reboot.change([], Reboots(allowed=True), "b0") is None


def test_proof_is_another_boot_id() -> None:
    assert reboot.proved("a", "b", 60) is None
    assert "did not come back within 60 s" in str(reboot.proved("a", None, 60))
    assert "same boot id" in str(reboot.proved("a", "a", 60))
