"""The whole plan: order, what is unknown, refusals, and that nothing is planned twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rules.change import AREAS, Change
from rules.desired import (
    Desired,
    Directory,
    File,
    Group,
    Link,
    ModuleOption,
    Package,
    Sysctl,
    Unit,
    User,
)
from rules.observed import Observed
from rules.plan import plan, refusals, unlearned
from tests.unit.plan_support import as_desired, bare, spoilt

SECRET = "k-7f3a9c55e1d04b"
DESIRED = Desired(
    packages=(Package("curl"), Package("jq", version="1.7.1-3")),
    groups=(Group("voltfleet"),),
    users=(User("voltfleet", home="/srv/voltfleet"),),
    directories=(Directory("/etc/voltfleet/keys", 0o750), Directory("/etc/voltfleet")),
    files=(
        File("/etc/voltfleet/agent.conf", b"interval = 60\n", owner="voltfleet"),
        File("/etc/voltfleet/keys/a", SECRET.encode(), mode=0o600, secret=True),
        File("/etc/systemd/system/watch.service", b"[Service]\nExecStart=/opt/w/run\n"),
    ),
    links=(Link("/opt/w", "/opt/w-1"),),
    sysctls=(Sysctl("vm.swappiness", "10"),),
    module_options=(ModuleOption("loop", "max_loop", "8"),),
    units=(Unit("watch.service", stamp="abc"),),
    supported_os=("debian 13",),
)
FRESH = [
    "package:curl",
    "package:jq",
    "group:voltfleet",
    "user:voltfleet",
    "directory:/etc/voltfleet",
    "directory:/etc/voltfleet/keys",
    "file:/etc/voltfleet/agent.conf",
    "file:/etc/voltfleet/keys/a",
    "file:/etc/systemd/system/watch.service",
    "link:/opt/w",
    "systemd",
    "unit:watch.service:enable",
    "unit:watch.service:start",
]


def ids(changes: list[Change]) -> list[str]:
    return [change.id for change in changes]


def test_a_bare_host_gets_everything_in_order() -> None:
    changes = plan(DESIRED, Observed(bare(DESIRED)))
    assert ids(changes) == FRESH
    by_id = {change.id: change for change in changes}
    assert by_id["user:voltfleet"].needs == ("group:voltfleet",)
    assert by_id["directory:/etc/voltfleet/keys"].needs == ("directory:/etc/voltfleet",)
    assert by_id["file:/etc/voltfleet/agent.conf"].needs == (
        "user:voltfleet",
        "directory:/etc/voltfleet",
    )
    assert by_id["unit:watch.service:start"].needs == (
        "file:/etc/systemd/system/watch.service",
        "link:/opt/w",
        "systemd",
    )


def test_without_python_everything_is_shown_after_the_bootstrap() -> None:
    changes = plan(DESIRED, Observed({}, nothing_known="python3 is not installed"))
    # what could be right already is shown as well: nothing is known
    assert ids(changes) == [
        "bootstrap:python3",
        *FRESH,
        "sysctl:vm.swappiness",
        "module:loop",
    ]
    assert all(change.action is None and change.diff is None for change in changes)
    assert {change.before for change in changes[1:]} == {"unknown until python3 is there"}
    assert all(change.needs[0] == "bootstrap:python3" for change in changes[1:])
    assert changes[0].before == "python3 is not installed"
    assert refusals(DESIRED, Observed({}, nothing_known="no python3")) == []


def test_a_host_as_desired_needs_nothing() -> None:
    observed = Observed(as_desired(DESIRED))
    assert plan(DESIRED, observed) == []
    assert refusals(DESIRED, observed) == []


@pytest.mark.parametrize(
    ("part", "key", "spoil", "expected"),
    [
        ("packages", "curl", {"absent": True}, ["package:curl"]),
        ("users", "voltfleet", {"shell": "/bin/bash"}, ["user:voltfleet"]),
        ("directories", "/etc/voltfleet", {"mode": "0777"}, ["directory:/etc/voltfleet"]),
        ("files", "/etc/voltfleet/keys/a", {"mode": "0644"}, ["file:/etc/voltfleet/keys/a"]),
        ("links", "/opt/w", {"target": "/opt/w-0"}, ["link:/opt/w"]),
        ("sysctls", "vm.swappiness", {"value": "60"}, ["sysctl:vm.swappiness"]),
        ("modules", "loop", {"options": {"max_loop": "0"}}, ["module:loop"]),
        ("units", "watch.service", {"active": "inactive"}, ["unit:watch.service:start"]),
        ("units", "watch.service", {"enabled": "disabled"}, ["unit:watch.service:enable"]),
        ("units", "watch.service", {"stamp": "old"}, ["unit:watch.service:restart"]),
    ],
)
def test_one_thing_broken_is_the_one_thing_planned(
    part: str, key: str, spoil: dict[str, Any], expected: list[str]
) -> None:
    assert ids(plan(DESIRED, spoilt(DESIRED, part, key, **spoil))) == expected


@pytest.mark.parametrize("part", ["packages", "users", "files", "links", "units", "sysctls"])
def test_an_unknown_part_is_never_taken_for_absent(part: str) -> None:
    document = as_desired(DESIRED)
    document[part] = {"unknown": "timed out after 20 s"}
    changes = plan(DESIRED, Observed(document))
    assert changes
    assert all(change.action is None for change in changes if change.id != "systemd")
    unknown = [change for change in changes if change.id != "systemd"]
    assert {change.before for change in unknown} == {"unknown: timed out after 20 s"}
    sentences = refusals(DESIRED, Observed(document))
    assert len(sentences) == 1
    assert part in sentences[0]
    assert "timed out after 20 s" in sentences[0]


def test_one_unknown_file_leaves_the_others_decided() -> None:
    document = as_desired(DESIRED)
    document["files"]["/etc/voltfleet/agent.conf"] = {"unknown": "Input/output error"}
    document["files"]["/etc/voltfleet/keys/a"] = None
    unknown, absent = plan(DESIRED, Observed(document))
    assert (unknown.id, unknown.action) == ("file:/etc/voltfleet/agent.conf", None)
    assert unknown.before == "unknown: Input/output error"
    assert absent.action is not None


def test_a_part_that_was_not_asked_about_is_no_refusal() -> None:
    document = as_desired(DESIRED)
    del document["modules"]
    assert unlearned(Observed(document), "kernel") == []


def test_unsupported_system_is_refused_with_both_names() -> None:
    document = as_desired(DESIRED)
    document["system"] = {"id": "fedora", "version": "41", "name": "Fedora Linux 41"}
    (sentence,) = refusals(DESIRED, Observed(document))
    assert "Fedora Linux 41 (fedora 41)" in sentence
    assert "debian 13" in sentence


def test_something_else_in_the_place_of_a_file_stops_the_host() -> None:
    observed = spoilt(DESIRED, "files", "/etc/voltfleet/agent.conf", kind="directory")
    (sentence,) = refusals(DESIRED, observed)
    assert sentence.startswith("/etc/voltfleet/agent.conf is a directory, expected a file")
    (change,) = plan(DESIRED, observed)
    assert change.action is None
    assert "by hand" in change.before


def test_no_secret_in_what_people_or_files_get_to_see() -> None:
    for observed in (
        Observed(bare(DESIRED)),
        spoilt(DESIRED, "files", "/etc/voltfleet/keys/a", sha256="0" * 64, text="old-" + SECRET),
    ):
        changes = plan(DESIRED, observed)
        assert "file:/etc/voltfleet/keys/a" in ids(changes)
        for change in changes:
            seen = json.dumps(change.public()) + change.sentence() + repr(change)
            assert SECRET not in seen + (change.diff or "")
            secret_file = next(f for f in DESIRED.files if f.secret)
            assert secret_file.sha256[:12] not in seen


# --- properties ------------------------------------------------------------------------------

names = st.from_regex(r"[a-z][a-z0-9]{0,7}", fullmatch=True)
paths = st.builds(lambda parts: "/" + "/".join(parts), st.lists(names, min_size=1, max_size=3))
modes = st.sampled_from([0o644, 0o600, 0o755, 0o4755, 0o440])
files = st.builds(
    File, path=paths, content=st.binary(max_size=40), mode=modes, owner=names, secret=st.booleans()
)
desireds = st.builds(
    Desired,
    packages=st.lists(
        st.builds(Package, names, st.none() | names), unique_by=lambda p: p.name, max_size=4
    ).map(tuple),
    groups=st.lists(st.builds(Group, names), unique_by=lambda g: g.name, max_size=3).map(tuple),
    users=st.lists(
        st.builds(User, names, home=paths, groups=st.lists(names, max_size=2).map(tuple)),
        unique_by=lambda u: u.name,
        max_size=3,
    ).map(tuple),
    directories=st.lists(
        st.builds(Directory, paths, modes), unique_by=lambda d: d.path, max_size=4
    ).map(tuple),
    files=st.lists(files, unique_by=lambda f: f.path, max_size=4).map(tuple),
    links=st.lists(st.builds(Link, paths, paths), unique_by=lambda x: x.path, max_size=3).map(
        tuple
    ),
    sysctls=st.lists(st.builds(Sysctl, names, names), unique_by=lambda s: s.key, max_size=3).map(
        tuple
    ),
    units=st.lists(
        st.builds(
            Unit,
            names.map(lambda n: f"{n}.service"),
            enabled=st.booleans(),
            active=st.booleans(),
            stamp=st.none() | names,
        ),
        unique_by=lambda u: u.name,
        max_size=3,
    ).map(tuple),
)


@settings(deadline=None)
@given(desireds)
def test_any_host_as_desired_needs_nothing(desired: Desired) -> None:
    assert plan(desired, Observed(as_desired(desired))) == []


@settings(deadline=None)
@given(desireds)
def test_plans_are_ordered_unique_and_need_only_what_comes_before(desired: Desired) -> None:
    for observed in (Observed(bare(desired)), Observed({}, nothing_known="no python3")):
        changes = plan(desired, observed)
        assert len(set(ids(changes))) == len(changes)
        areas = [AREAS.index(change.area) for change in changes]
        assert areas == sorted(areas)
        before: set[str] = set()
        for change in changes:
            assert set(change.needs) <= before, change
            before.add(change.id)
        assert plan(desired, observed) == changes
