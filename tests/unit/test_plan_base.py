"""Packages, accounts and kernel: what is planned for each way in which they can be wrong."""

from __future__ import annotations

from typing import Any

import pytest

from rules import plan_accounts, plan_kernel, plan_packages
from rules.desired import Desired, Group, ModuleOption, Package, Sysctl, User
from rules.observed import Observed
from rules.plan import refusals
from tests.unit.plan_support import as_desired, spoilt

PACKAGES = Desired(packages=(Package("curl"), Package("jq", "1.7.1-3")), apt_lock_wait_s=42)


@pytest.mark.parametrize(
    ("name", "spoil", "before", "after"),
    [
        ("curl", {"absent": True}, "not installed", "installed"),
        ("curl", {"status": "config-files"}, "removed, its configuration left", "installed"),
        ("curl", {"status": "half-installed"}, "half-installed only", "installed"),
        ("jq", {"version": "1.6-2"}, "version 1.6-2", "version 1.7.1-3"),
        ("jq", {"version": "1.6-2", "held": True}, "version 1.6-2, held", "version 1.7.1-3"),
    ],
)
def test_packages(name: str, spoil: dict[str, Any], before: str, after: str) -> None:
    (change,) = plan_packages.changes(PACKAGES, spoilt(PACKAGES, "packages", name, **spoil))
    assert (change.id, change.before, change.after) == (f"package:{name}", before, after)
    assert change.action == {
        "do": "package.install",
        "name": name,
        "version": "1.7.1-3" if name == "jq" else None,
        "lock_wait_s": 42,
    }


def test_another_version_is_right_where_none_is_asked() -> None:
    assert plan_packages.changes(PACKAGES, spoilt(PACKAGES, "packages", "curl", version="9")) == []


def test_an_interrupted_dpkg_is_repaired_first() -> None:
    document = as_desired(PACKAGES)
    document["packages_state"]["interrupted"] = True
    document["packages"]["curl"] = None
    repair, install = plan_packages.changes(PACKAGES, Observed(document))
    assert repair.id == "packages:repair"
    assert repair.action == {"do": "package.repair", "lock_wait_s": 42}
    assert install.needs == ("packages:repair",)


USERS = Desired(
    groups=(Group("serve"),), users=(User("serve", home="/srv/s", groups=("video", "render")),)
)


def test_accounts_are_made() -> None:
    document = as_desired(USERS)
    document["groups"]["serve"] = document["users"]["serve"] = None
    group, user = plan_accounts.changes(USERS, Observed(document))
    assert group.sentence() == "create group serve: absent -> a system group"
    assert group.action == {"do": "group.make", "name": "serve"}
    assert user.needs == ("group:serve",)
    assert user.after == "home /srv/s; shell /usr/sbin/nologin; groups video, render"
    assert user.action == {
        "do": "user.make",
        "name": "serve",
        "home": "/srv/s",
        "shell": "/usr/sbin/nologin",
        "groups": ["video", "render"],
    }


def test_accounts_are_set_right_naming_only_what_differs() -> None:
    observed = spoilt(USERS, "users", "serve", shell="/bin/sh", groups=["video", "adm"])
    (user,) = plan_accounts.changes(USERS, observed)
    assert (user.verb, user.action and user.action["do"]) == ("set", "user.set")
    assert user.before == "shell /bin/sh; groups video, adm"
    assert user.after == "shell /usr/sbin/nologin; groups video, render"
    more = spoilt(USERS, "users", "serve", groups=["video", "render", "adm"])
    assert plan_accounts.changes(USERS, more) == []
    primary = spoilt(USERS, "users", "serve", group="video", groups=["render"])
    assert plan_accounts.changes(USERS, primary) == []


KERNEL = Desired(
    sysctls=(Sysctl("net.ipv4.tcp_rmem", "4096 131072 6291456"),),
    module_options=(
        ModuleOption("nvidia", "NVreg_NvLinkDisable", "0", reason=("G3",)),
        ModuleOption("nvidia", "NVreg_Persistence", "1"),
    ),
)
GOOD = {"NVreg_NvLinkDisable": "N", "NVreg_Persistence": "1"}


def test_sysctls() -> None:
    key = "net.ipv4.tcp_rmem"
    tabs = spoilt(KERNEL, "sysctls", key, value="4096\t131072\t6291456")
    assert plan_kernel.changes(KERNEL, tabs) == []
    (change,) = plan_kernel.changes(KERNEL, spoilt(KERNEL, "sysctls", key, value="4096 1 2"))
    assert (change.before, change.after) == ("4096 1 2", "4096 131072 6291456")
    (change,) = plan_kernel.changes(KERNEL, spoilt(KERNEL, "sysctls", key, absent=True))
    assert change.before == "this kernel has no such parameter"
    assert change.action is not None


@pytest.mark.parametrize(
    ("spoil", "before"),
    [
        ({"options": GOOD}, None),
        ({"loaded": False, "options": {}}, None),
        ({"options": {**GOOD, "NVreg_NvLinkDisable": "1"}}, "NVreg_NvLinkDisable=1"),
        ({"options": {"NVreg_Persistence": "1"}}, "unknown: module nvidia shows no option"),
        (
            {"options": {**GOOD, "NVreg_Persistence": {"unknown": "Permission denied"}}},
            "unknown: option NVreg_Persistence of nvidia: Permission denied",
        ),
    ],
)
def test_module_options(spoil: dict[str, Any], before: str | None) -> None:
    changes = plan_kernel.changes(KERNEL, spoilt(KERNEL, "modules", "nvidia", **spoil))
    if before is None:
        assert changes == []
        return
    (change,) = changes
    assert (change.id, change.verb, change.reason) == ("module:nvidia", "reload", ("G3",))
    assert change.before.startswith(before)
    assert (change.action is None) == before.startswith("unknown")


@pytest.mark.parametrize(
    ("spoil", "refused"),
    [
        ({}, False),
        ({"uid": 1000}, False),  # as wanted already: nothing is taken away
        ({"uid": 1000, "home": "/home/serve"}, True),
        ({"uid": 1000, "shell": "/bin/bash"}, True),
        ({"uid": 65534, "home": "/nonexistent"}, True),
        ({"uid": 0, "home": "/root", "shell": "/usr/sbin/nologin"}, True),
        ({"home": "/var/lib/x", "shell": "/bin/bash"}, True),
        ({"home": "/var/lib/x", "shell": "/usr/bin/zsh"}, True),
        ({"home": "/var/lib/x", "shell": ""}, True),  # passwd(5): empty is /bin/sh
        ({"home": "/var/lib/x", "shell": "/bin/false"}, False),
        ({"home": "/var/lib/x"}, False),  # of an earlier model_root
        ({"shell": "/bin/bash"}, False),  # ours, spoilt by hand: set right again
        ({"absent": True}, False),
    ],
)
def test_an_account_of_somebody_elses_is_not_taken_over(
    spoil: dict[str, Any], refused: bool
) -> None:
    observed = spoilt(USERS, "users", "serve", groups=["render", "video"], **spoil)
    found = plan_accounts.refusals(USERS, observed)
    assert bool(found) is refused, found
    assert all("name another service_user" in sentence for sentence in found)
    assert all(sentence in refusals(USERS, observed) for sentence in found)
