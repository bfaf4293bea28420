"""The plan of the platform: what is planned, in which order, and when nothing is (G4, G5, G6)."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from rules import plan_platform
from rules.change import Change
from rules.desired_platform import Platform, Reboots, Repository
from rules.observed import Observed
from rules.plan_platform import changes, refusals, states
from rules.schema_platform import LocalRepoDeb, PlatformConfig, ToolkitRepository, impossible
from tests.unit.platform_parts import (
    CONVERGED,
    DRIVER,
    KERNEL,
    REPOSITORY,
    SERVER_580,
    SHA,
    TOOLKIT,
    observed,
    package,
    stack,
    wanted,
)

FRESH: dict[str, Any] = {
    "packages": {},
    "toolkits": {},
    "alternative": {"value": None, "status": None, "choices": []},
    "nvcc": None,
    "cuda_proof": None,
    "driver": {
        "loaded": None,
        "flavour": None,
        "on_disk": None,
        "signer": None,
        "library": None,
        "nodes": [],
        "log": [],
    },
    "modules": {"loaded": []},
}
REPO_ID = f"repository:{SHA[:12]}"


def ids(platform: Platform, **changed: Any) -> list[str]:
    return [change.id for change in changes(platform, observed(**changed))]


def by_id(platform: Platform, **changed: Any) -> dict[str, Change]:
    return {change.id: change for change in changes(platform, observed(**changed))}


def test_a_converged_host_has_nothing_to_do() -> None:
    assert ids(wanted()) == []
    assert refusals(wanted(), observed()) == []
    assert states(wanted(), observed()) == []


def test_a_host_whose_platform_is_left_alone() -> None:
    nothing = Platform()
    assert plan_platform.question(nothing) is None
    assert changes(nothing, Observed({})) == []
    assert refusals(nothing, Observed({})) == []
    assert states(nothing, Observed({})) == []


def test_a_fresh_host_in_order() -> None:
    found = by_id(wanted(), **FRESH)
    assert list(found) == [REPO_ID, "cuda", "cuda:proof", "driver"]
    assert found["cuda"].needs == (REPO_ID,)
    assert found["cuda:proof"].needs == ("cuda",)
    assert found["driver"].needs == ()
    assert all(change.action is not None and change.reason for change in found.values())


def test_the_driver_waits_for_the_toolkits_repository() -> None:
    driver = replace(DRIVER, packages=("cuda-drivers-580",), repository=REPOSITORY)
    found = by_id(wanted(driver=driver), **FRESH)
    assert list(found) == [REPO_ID, "cuda", "cuda:proof", "driver"]
    assert found["driver"].needs == (REPO_ID,)
    alone = by_id(wanted(toolkit=None, driver=driver), **FRESH)
    assert list(alone) == [REPO_ID, "driver"]


def test_a_registered_repository_is_not_registered_again() -> None:
    whole = {SHA: {"sound": True, "reason": ""}}
    assert ids(wanted(driver=None), **FRESH, repositories=whole) == ["cuda", "cuda:proof"]
    broken = {SHA: {"sound": False, "reason": "/var/cuda-repo has 2 keyrings, expected one"}}
    found = by_id(wanted(driver=None), **FRESH, repositories=broken)
    assert found[REPO_ID].before == "/var/cuda-repo has 2 keyrings, expected one"


def test_an_uploaded_deb_and_a_network_repository() -> None:
    offline = Repository("local_repo_deb", path="debs/cuda.deb", sha256=SHA)
    action = by_id(wanted(replace(TOOLKIT, repository=offline), None), **FRESH)[REPO_ID].action
    assert action is not None
    assert (action["upload"], action["url"]) == ("debs/cuda.deb", "")
    assert action["file"] == f"/var/cache/voltfleet/{SHA}.deb"
    network = Repository("repository", url="http://hub/repo", keyring="keys/vendor.gpg")
    driver = replace(DRIVER, repository=network)
    registered = by_id(wanted(None, driver), **FRESH)["repository:http://hub/repo"].action
    assert registered is not None
    assert (registered["do"], registered["upload"]) == ("driver.repo", "keys/vendor.gpg")


def test_a_run_that_died_before_the_proof_is_finished() -> None:
    assert ids(wanted(), cuda_proof=None) == ["cuda:proof"]


def test_disk_space_is_freed_where_asked_after_the_proof() -> None:
    toolkit = replace(TOOLKIT, keep_repository=False)
    registered = {SHA: {"sound": True, "reason": ""}}
    assert ids(wanted(toolkit, None)) == []
    assert ids(wanted(toolkit, None), repositories=registered) == [f"{REPO_ID}:space"]
    found = by_id(wanted(toolkit, None), **FRESH)
    assert list(found)[-1] == f"{REPO_ID}:space"
    assert found[f"{REPO_ID}:space"].needs == ("cuda:proof",)


CROWDED: dict[str, Any] = {
    "packages": {
        **CONVERGED["packages"],
        "cuda-nvcc-11-8": package("11.8.89-1"),
        "cuda-nvcc-13-0": package("13.0.88-1"),
    },
    "toolkits": {
        **CONVERGED["toolkits"],
        "/usr/local/cuda-12.2": {
            "link": None,
            "owners": [],
            "version": "12.2",
            "is_toolkit": True,
        },
    },
    "alternative": {
        "value": "/usr/local/cuda-13.0",
        "status": "auto",
        "choices": ["/usr/local/cuda-12.4", "/usr/local/cuda-13.0"],
    },
}


def test_other_toolkits_are_cleaned_up_only_where_the_host_is_ours_alone() -> None:
    """CUDA 11.8 and 13.0 by packages, 12.2 by a .run installer."""
    assert ids(wanted(), **CROWDED) == []
    words = [state.word for state in states(wanted(), observed(**CROWDED))]
    assert words == ["COEXISTS", "COEXISTS", "COEXISTS"]
    exclusive = wanted(replace(TOOLKIT, exclusive=True))
    assert ids(exclusive, **CROWDED) == [
        "cuda-conflict:packages:11.8",
        "cuda-conflict:packages:13.0",
        "cuda-conflict:/usr/local/cuda-12.2",
        "cuda:alternative",
    ]
    assert states(exclusive, observed(**CROWDED)) == []
    assert ids(exclusive) == []


def test_clean_up_waits_for_the_proof_of_the_new_toolkit() -> None:
    crowded = {**FRESH, "packages": {"cuda-nvcc-11-8": package("11.8.89-1")}}
    found = by_id(wanted(replace(TOOLKIT, exclusive=True), None), **crowded)
    assert list(found) == [REPO_ID, "cuda", "cuda:proof", "cuda-conflict:packages:11.8"]
    assert found["cuda-conflict:packages:11.8"].needs == ("cuda:proof",)


def test_a_run_installation_in_the_toolkits_place_goes_before() -> None:
    toolkits: dict[str, Any] = {
        "/usr/local/cuda-12.4": {"link": None, "owners": [], "version": "12.4", "is_toolkit": True}
    }
    found = by_id(wanted(replace(TOOLKIT, exclusive=True), None), **{**FRESH, "toolkits": toolkits})
    in_place = "cuda-conflict:/usr/local/cuda-12.4"
    assert list(found) == [REPO_ID, in_place, "cuda", "cuda:proof"]
    assert in_place in found["cuda"].needs


def test_c01_incomplete_hold_and_a_mismatch() -> None:
    """The libraries are not held, unattended upgrades have moved them: the holds are completed,
    a reboot is required, no package is installed again."""
    packages = {
        **CONVERGED["packages"],
        **stack("580.126.09-0ubuntu1", True, *SERVER_580[:2]),
        **stack("580.126.09-0ubuntu1", False, SERVER_580[2]),
    }
    driver = {**CONVERGED["driver"], "on_disk": "580.126.09", "library": "580.126.09"}
    (hold,) = changes(wanted(), observed(packages=packages, driver=driver))
    assert hold.before == "hold incomplete: libnvidia-compute-580-server"
    assert hold.action == {"do": "driver.hold"}
    (state,) = states(wanted(), observed(packages=packages, driver=driver))
    assert state.word == "REBOOT_REQUIRED"
    assert "driver 580.95.05 is loaded, 580.126.09 is on disk" in state.sentence


@pytest.mark.parametrize("modules", [True, False])
def test_c01_with_and_without_prebuilt_modules(modules: bool) -> None:
    name = f"linux-modules-nvidia-580-server-{KERNEL}"
    packages = copy.deepcopy(CONVERGED["packages"])
    if modules:
        packages[name] = package("6.8.0-60.63+1", held=False)
    found = changes(wanted(), observed(packages=packages))
    assert [change.before for change in found] == ([f"hold incomplete: {name}"] if modules else [])


def test_no_holds_where_the_data_asks_for_none() -> None:
    packages = {**CONVERGED["packages"], **stack("580.95.05-0ubuntu1", False, *SERVER_580)}
    assert ids(wanted(driver=replace(DRIVER, hold=False)), packages=packages) == []
    assert ids(wanted(), packages=packages) == ["driver:hold"]


def test_a_move_from_550_to_580() -> None:
    packages = {
        **stack("550.163.01-0ubuntu1", True, "nvidia-driver-550", "libnvidia-compute-550"),
        "cuda-toolkit-12-4": package("12.4.1-1"),
    }
    driver = {**CONVERGED["driver"], "loaded": "550.163.01", "on_disk": "550.163.01"}
    simulation = {
        "asked": ["nvidia-driver-580-server"],
        "rc": 0,
        "out": "Remv nvidia-driver-550 [550.163.01-0ubuntu1]\n"
        "Inst nvidia-driver-580-server (580.95.05-0ubuntu1 x [amd64])",
        "err": "",
        "offers": "",
    }
    seen = observed(packages=packages, driver=driver, simulation=simulation)
    (move,) = changes(wanted(), seen)
    assert (move.id, move.verb) == ("driver", "move")
    assert move.before == "branch 550 (2 packages)"
    assert "apt installs 1 packages and removes 1" in move.after
    assert refusals(wanted(), seen) == []
    allowed = wanted(reboots=Reboots(allowed=True))
    assert [change.id for change in changes(allowed, seen)] == ["driver", "reboot"]


def test_a_half_installed_package_of_another_branch_is_seen() -> None:
    packages = {
        **CONVERGED["packages"],
        "nvidia-dkms-595": package("595.71.05-1", status="half-configured"),
        "nvidia-utils-550": package("550.163.01-1", status="config-files"),
    }
    found = by_id(wanted(), packages=packages)
    assert found["driver"].before == "branch 595 (1 packages)"


def test_c04_stops_the_host_before_anything_is_changed() -> None:
    driver = replace(DRIVER, branch=550, packages=("nvidia-driver-550-server",))
    simulation = {
        "asked": ["nvidia-driver-550-server"],
        "rc": 0,
        "out": "Inst nvidia-driver-570-server (570.172.08-0ubuntu1 x [amd64])",
        "err": "",
        "offers": "",
    }
    seen = observed(packages={}, simulation=simulation)
    (sentence,) = refusals(wanted(None, driver), seen)
    assert sentence.startswith("550 asked, apt gives 570")


def test_apts_answer_does_not_count_before_the_repository_is_there() -> None:
    driver = replace(DRIVER, packages=("cuda-drivers-580",), repository=REPOSITORY)
    simulation = {
        "asked": ["cuda-drivers-580"],
        "rc": 100,
        "out": "",
        "err": "E: Unable to locate package cuda-drivers-580",
        "offers": "",
    }
    fresh = {**FRESH, "simulation": simulation}
    assert refusals(wanted(None, driver), observed(**fresh)) == []
    whole = {SHA: {"sound": True, "reason": ""}}
    (sentence,) = refusals(wanted(None, driver), observed(**fresh, repositories=whole))
    assert "cuda-drivers-580 is in no source" in sentence


def test_c05_a_loaded_driver_that_ignores_the_card() -> None:
    log = [
        "NVRM: The NVIDIA Tesla V100-SXM2-32GB GPU installed in this system is",
        "NVRM:  supported through the NVIDIA 580.xx Legacy drivers. Please",
        "NVRM:  visit http://www.nvidia.com/object/unix.html for more",
        "NVRM:  information.  The 595.71.05 NVIDIA driver will ignore",
        "NVRM:  this GPU.  Continuing probe...",
        "NVRM: No NVIDIA GPU found.",
    ]
    driver = {**CONVERGED["driver"], "loaded": "595.71.05", "on_disk": "595.71.05", "log": log}
    packages = {"cuda-drivers": package("595.71.05-1"), "libcuda1": package("595.71.05-1")}
    seen = observed(packages=packages, driver=driver)
    found = {state.word: state.sentence for state in states(wanted(None), seen)}
    assert "driver 595.71.05 ignores a card" in found["DRIVER_TOO_NEW"]
    assert "highest is 580" in found["DRIVER_TOO_NEW"]
    (move,) = changes(wanted(None), seen)
    assert (move.verb, move.before) == ("move", "branch 595 (2 packages)")


def test_c06_the_file_is_right_but_not_in_effect() -> None:
    """Blacklist file present, nouveau has the cards, the initramfs holds nouveau.ko."""
    nouveau = {
        "bound": ["0000:1a:00.0"],
        "blacklisted_by": ["/etc/modprobe.d/voltfleet-nouveau.conf"],
        "initramfs": {KERNEL: {"nouveau": True, "blacklist": False, "stale": False}},
    }
    driver = {**CONVERGED["driver"], "loaded": None}
    changed = {"nouveau": nouveau, "driver": driver, "modules": {"loaded": ["nouveau"]}}
    assert ids(wanted(), **changed) == ["initramfs"]
    (state,) = states(wanted(), observed(**changed))
    assert state.word == "REBOOT_REQUIRED" and "nouveau has the cards" in state.sentence
    allowed = by_id(wanted(reboots=Reboots(allowed=True)), **changed)
    assert list(allowed) == ["initramfs", "reboot"]
    assert allowed["reboot"].needs == ("initramfs",)


@pytest.mark.parametrize(
    ("image", "rebuilt"),
    [
        ({"nouveau": True, "blacklist": False, "stale": False}, True),
        ({"nouveau": True, "blacklist": True, "stale": True}, True),
        # an image may hold the module as long as the file that forbids it is in it too
        ({"nouveau": True, "blacklist": True, "stale": False}, False),
        ({"nouveau": False, "blacklist": False, "stale": True}, False),
        ({"nouveau": None, "blacklist": None, "stale": False}, False),
    ],
)
def test_c06_which_images_are_rebuilt(image: dict[str, Any], rebuilt: bool) -> None:
    nouveau = {**CONVERGED["nouveau"], "initramfs": {KERNEL: image}}
    assert ids(wanted(), nouveau=nouveau) == (["initramfs"] if rebuilt else [])


def test_c07_secure_boot_is_a_refusal_of_a_change_only() -> None:
    boot = {"state": "enabled", "enrolled": False}
    assert refusals(wanted(), observed(secure_boot=boot)) == []
    (sentence,) = refusals(wanted(None), observed(**FRESH, secure_boot=boot))
    assert "Secure Boot is on" in sentence


def source(file: str, key: str | None, trusted: bool = False) -> dict[str, Any]:
    uri = "file:///var/cuda-repo-ubuntu2204-12-4-local"
    return {
        "file": file,
        "line": 1,
        "uri": uri,
        "suite": "/",
        "signed_by": key,
        "trusted": trusted,
    }


def test_c03_two_entries_with_different_keyrings() -> None:
    entries = [source("/etc/apt/a.list", "/k/A.gpg"), source("/etc/apt/b.list", "/k/B.gpg")]
    (sentence,) = refusals(wanted(), observed(apt_sources={"entries": entries}))
    assert "/etc/apt/a.list (/k/A.gpg), /etc/apt/b.list (/k/B.gpg)" in sentence
    same = [source("/etc/apt/a.list", "/k/A.gpg"), source("/etc/apt/b.list", "/k/A.gpg")]
    assert refusals(wanted(), observed(apt_sources={"entries": same})) == []


def test_c03_trusted_yes_is_never_accepted() -> None:
    entries = [source("/etc/apt/a.list", "/k/A.gpg", trusted=True)]
    (sentence,) = refusals(wanted(), observed(apt_sources={"entries": entries}))
    assert "trusted=yes" in sentence and "/etc/apt/a.list" in sentence


@pytest.mark.parametrize("key", plan_platform.FOR_DRIVER)
def test_unknown_is_never_taken_for_absent(key: str) -> None:
    seen = observed(**{key: {"unknown": "timed out after 8 s"}})
    planned = changes(wanted(None), seen)
    assert [(change.id, change.action) for change in planned] == [("driver", None)]
    assert planned[0].before == "unknown: timed out after 8 s"
    (sentence,) = refusals(wanted(None), seen)
    assert "timed out after 8 s" in sentence


def test_nothing_known_about_a_host() -> None:
    seen = Observed({}, nothing_known="no python3")
    assert [change.id for change in changes(wanted(), seen)] == ["cuda", "driver"]
    assert refusals(wanted(), seen) == []


def test_the_modules_are_loaded_where_only_that_is_missing() -> None:
    driver = {**CONVERGED["driver"], "loaded": None}
    assert ids(wanted(), driver=driver, modules={"loaded": []}) == ["driver:load"]
    assert ids(wanted(), modules={"loaded": ["nvidia"]}) == ["driver:load"]
    no_node = {**CONVERGED["driver"], "nodes": ["/dev/nvidia0"]}
    assert by_id(wanted(), driver=no_node)["driver:load"].before == "/dev/nvidia-uvm is missing"
    assert ids(wanted(), driver=driver, modules={"loaded": []}, gpus={"devices": []}) == []


def test_headers_for_the_running_and_the_newest_kernel() -> None:
    kernels = {"running": KERNEL, "newest": "6.8.0-90-generic", "headers": {KERNEL: True}}
    kernels["headers"]["6.8.0-90-generic"] = False  # type: ignore[index]
    found = by_id(wanted(None), **FRESH, kernels=kernels)
    assert list(found) == ["headers:6.8.0-90-generic", "driver"]
    assert found["driver"].needs == ("headers:6.8.0-90-generic",)
    prebuilt = replace(DRIVER, packages=("linux-modules-nvidia-580-server-generic",))
    assert ids(wanted(None, prebuilt), **FRESH, kernels=kernels) == ["driver"]
    container = {"running": KERNEL, "newest": None, "headers": {KERNEL: False}}
    assert ids(wanted(None), **FRESH, kernels=container) == ["driver"]


def test_a_kernel_that_dkms_has_not_built_for() -> None:
    packages = {**CONVERGED["packages"], "nvidia-dkms-580-server": package("580.95.05-1", True)}
    row = {"module": "nvidia", "version": "580.95.05", "kernel": KERNEL, "state": "built"}
    assert ids(wanted(), packages=packages, dkms={"modules": [row]}) == [f"dkms:{KERNEL}"]
    done = {**row, "state": "installed"}
    assert ids(wanted(), packages=packages, dkms={"modules": [done]}) == []


def test_prebuilt_modules_for_the_newest_kernel() -> None:
    """The meta package that would bring them is held, so a new kernel comes without them."""
    name = f"linux-modules-nvidia-580-server-{KERNEL}"
    packages = {**CONVERGED["packages"], name: package("6.8.0-60.63+1", True)}
    newest = "6.8.0-90-generic"
    kernels = {"running": KERNEL, "newest": newest, "headers": {}}
    found = by_id(wanted(), packages=packages, kernels=kernels)
    wanted_name = f"linux-modules-nvidia-580-server-{newest}"
    assert list(found) == [f"modules:{newest}"]
    action = found[f"modules:{newest}"].action
    assert action is not None and action["name"] == wanted_name
    there = {**packages, wanted_name: package("6.8.0-90.91+1", True)}
    assert ids(wanted(), packages=there, kernels=kernels) == []


def test_from_data_to_platform() -> None:
    config = PlatformConfig(
        cuda_version="12.4.1",
        cuda_source=LocalRepoDeb(url="http://hub/cuda.deb", sha256=SHA),
        driver_source=ToolkitRepository(kind="toolkit_repository"),
        reboot_allowed=True,
    )
    platform = plan_platform.platform(config, None, 300)
    assert platform.toolkit is not None and platform.driver is not None
    assert platform.toolkit.packages == ("cuda-toolkit-12-4",)
    assert platform.toolkit.root == "/usr/local/cuda-12.4"
    assert platform.driver.packages == ("cuda-drivers-580",)
    assert platform.driver.repository == platform.toolkit.repository
    assert platform.reboots.allowed
    paths = [file.path for file in plan_platform.files(platform)]
    assert paths[:3] == [
        "/etc/profile.d/cuda.sh",
        "/etc/apt/preferences.d/voltfleet-nvidia",
        "/etc/apt/apt.conf.d/52voltfleet-nvidia",
    ]
    assert impossible(config) == []


@pytest.mark.parametrize(
    ("system", "branch", "flavour", "names"),
    [
        ({"id": "ubuntu"}, 580, "proprietary", "nvidia-headless-580-server"),
        ({"id": "ubuntu"}, 580, "open", "nvidia-headless-580-server-open"),
        ({"id": "debian"}, 550, "proprietary", "nvidia-kernel-dkms"),
        ({"id": "debian"}, 550, "open", "nvidia-open-kernel-dkms"),
    ],
)
def test_names_of_a_distribution(
    system: dict[str, str], branch: int, flavour: str, names: str
) -> None:
    config = PlatformConfig.model_validate(
        {
            "driver_source": {"kind": "distribution"},
            "driver_branch": branch,
            "driver_flavour": flavour,
        }
    )
    driver = plan_platform.platform(config, system, 300).driver
    assert driver is not None and driver.packages[0] == names


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"cuda_version": "12.4"}, "cuda_source"),
        ({"cuda_source": {"kind": "distribution"}}, "cuda_version"),
        ({"cuda_version": "12.4", "cuda_source": {"sha256": SHA}}, "cuda_source"),
        (
            {"cuda_version": "12.4", "cuda_source": {"sha256": SHA, "url": "u", "path": "p"}},
            "cuda_source",
        ),
        ({"driver_source": {"kind": "toolkit_repository"}}, "driver_source"),
        (
            {
                "cuda_version": "12.4",
                "cuda_source": {"sha256": SHA, "url": "u"},
                "driver_source": {"kind": "toolkit_repository"},
                "cuda_keep_repository": False,
            },
            "cuda_keep_repository",
        ),
    ],
)
def test_impossible_data(data: dict[str, Any], key: str) -> None:
    ((where, _, why),) = impossible(PlatformConfig.model_validate(data))
    assert where[0] == key and why
