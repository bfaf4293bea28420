"""Units: what is planned for each state in which systemd may have them."""

from __future__ import annotations

from typing import Any

import pytest

from rules.change import Change
from rules.desired import Desired, Directory, File, Instance, Link, Unit
from rules.observed import Observed
from rules.plan_units import unit_changes
from tests.unit.plan_support import STARTED, as_desired, spoilt

NAME = "llama@tiny.service"
TEXT = b"[Service]\nEnvironmentFile=/etc/v/%i.env\nExecStart=/opt/c/bin/serve\n"
HERE = Desired(
    units=(Unit(NAME, stamp="new-stamp-of-it", reason=("G17",)),),
    files=(File("/etc/systemd/system/llama@.service", TEXT),),
    instances=(Instance("tiny", "llama_cpp", NAME, "tiny", "127.0.0.1", 8080, None, 300),),
)


def planned(changed: dict[str, str] | None = None, **spoil: Any) -> list[Change]:
    return unit_changes(HERE, spoilt(HERE, "units", NAME, **spoil), "files", changed or {})


def verbs(changes: list[Change]) -> list[str]:
    return [change.verb for change in changes]


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        ({}, []),
        ({"active": "inactive", "sub": "dead"}, ["start"]),
        ({"active": "failed", "sub": "failed"}, ["start"]),
        ({"active": "deactivating", "sub": "stop"}, ["start"]),
        ({"active": "activating", "sub": "auto-restart"}, ["start"]),
        ({"active": "activating", "sub": "start"}, []),
        ({"active": "reloading", "sub": "reload"}, []),
        ({"enabled": "disabled"}, ["enable"]),
        ({"enabled": "enabled-runtime"}, ["enable"]),
        ({"enabled": "static"}, []),
        ({"load": "masked", "enabled": "masked"}, ["unmask", "enable"]),
        ({"enabled": "masked-runtime", "active": "inactive"}, ["unmask", "enable", "start"]),
        ({"stamp": "old"}, ["restart"]),
        ({"stamp": None}, ["restart"]),
        ({"exe_deleted": True}, ["restart"]),
        ({"need_reload": True}, ["reload"]),
        ({"need_reload": True, "stamp": "old"}, ["reload", "restart"]),
        ({"absent": True}, ["enable", "start"]),
    ],
)
def test_states(spoil: dict[str, Any], expected: list[str]) -> None:
    assert verbs(planned(**spoil)) == expected


def test_a_running_unit_without_a_stamp_is_never_restarted() -> None:
    here = Desired(units=(Unit("ssh.service"),))
    observed = spoilt(here, "units", "ssh.service", stamp=None, exe_deleted=True)
    assert unit_changes(here, observed, "files", {}) == []


def test_unwanted_units_are_stopped_and_disabled() -> None:
    here = Desired(units=(Unit("old.service", enabled=False, active=False),))
    observed = spoilt(here, "units", "old.service", active="active", enabled="enabled")
    assert verbs(unit_changes(here, observed, "files", {})) == ["disable", "stop"]
    gone = spoilt(here, "units", "old.service", absent=True)
    assert unit_changes(here, gone, "files", {}) == []
    masked = spoilt(here, "units", "old.service", load="masked", enabled="masked")
    assert unit_changes(here, masked, "files", {}) == []


def test_words_limits_and_files_to_put_back() -> None:
    changed = {
        "/etc/systemd/system/llama@.service": "file:/etc/systemd/system/llama@.service",
        "/etc/systemd/system/llama@tiny.service.d/x.conf": "file:drop-in",
        "/etc/v/tiny.env": "file:/etc/v/tiny.env",
        "/etc/v/other.env": "file:/etc/v/other.env",
        "/opt/c": "link:/opt/c",
        "/opt": "directory:/opt",
        "/bin": "directory:/bin",
    }
    reload, restart = planned(changed, stamp="old-stamp-of-it")
    assert reload.id == "systemd"
    assert reload.action == {"do": "unit.reload"}
    assert restart.id == f"unit:{NAME}:restart"
    assert restart.reason == ("G17",)
    assert restart.before == "running as old-stamp-of"
    assert set(restart.needs) == {
        "file:/etc/systemd/system/llama@.service",
        "file:drop-in",
        "file:/etc/v/tiny.env",
        "link:/opt/c",
        "directory:/opt",
        "systemd",
    }
    assert restart.action == {
        "do": "unit.restart",
        "name": NAME,
        "limit_s": 300,
        "put_back": [
            "/etc/systemd/system/llama@.service",
            "/etc/systemd/system/llama@tiny.service.d/x.conf",
            "/etc/v/tiny.env",
            "/opt/c",
        ],
    }


def test_unmask_comes_first_unless_the_unit_file_is_written_over_the_mask() -> None:
    changes = planned(load="masked", enabled="masked", active="inactive")
    assert verbs(changes) == ["unmask", "enable", "start"]
    assert all(f"unit:{NAME}:unmask" in change.needs for change in changes[1:])
    path = f"/etc/systemd/system/{NAME}"
    changes = planned({path: f"file:{path}"}, load="masked", enabled="masked", active="inactive")
    assert verbs(changes) == ["reload", "enable", "start"]


def test_unknown_units_and_stamps_are_not_decided() -> None:
    document = as_desired(HERE)
    document["units"][NAME] = {"unknown": "systemctl timed out after 5 s"}
    changes = unit_changes(HERE, Observed(document), "files", {})
    assert verbs(changes) == ["enable", "start"]
    assert {change.action for change in changes} == {None}
    (restart,) = planned(stamp={"unknown": "permission denied"})
    assert restart.action is None
    assert restart.before == "unknown: what it was started from: permission denied"


def test_each_area_reloads_for_itself() -> None:
    here = Desired(units=(Unit("a.service", area="serving"), Unit("b.service")))
    document = as_desired(here)
    document["units"]["a.service"]["need_reload"] = True
    assert unit_changes(here, Observed(document), "files", {}) == []
    (reload,) = unit_changes(here, Observed(document), "serving", {})
    assert (reload.id, reload.area) == ("systemd:serving", "serving")


UNIT_FILE = "/etc/systemd/system/llama@.service"
DROP_IN_FOLDER = f"/etc/systemd/system/{NAME}.d"
DROP_IN = f"{DROP_IN_FOLDER}/50-x.conf"
ENV = "/etc/v/tiny.env"
KEY = "/etc/v/tiny.key"
LINK = "/srv/m/current"
FULL = Desired(
    units=(Unit(NAME, stamp="new-stamp-of-it"), Unit("other.service", stamp="s")),
    directories=(Directory(DROP_IN_FOLDER),),
    files=(
        File(UNIT_FILE, TEXT),
        File(DROP_IN, b"[Service]\nMemoryMax=1\n"),
        File(ENV, f"A=--model {LINK}/x.gguf --api-key-file {KEY}\n".encode()),
        File(KEY, b"key", secret=True),
    ),
    links=(Link("/opt/c", "releases/1"), Link(LINK, "v1")),
)
EDITED = {"sha256": "0" * 64}
MOVED = {"target": "elsewhere"}


def restarts(part: str, path: str, **spoil: Any) -> list[str]:
    """Why units are restarted when something is found spoilt, and all right again by this plan."""
    observed = spoilt(FULL, part, path, **spoil)
    kind = {"files": "file", "links": "link"}[part]
    planned = unit_changes(FULL, observed, "files", {path: f"{kind}:{path}"})
    return [f"{c.thing}: {c.before}" for c in planned if c.verb == "restart"]


@pytest.mark.parametrize(
    ("part", "path", "edit"),
    [
        ("files", UNIT_FILE, EDITED),
        ("files", DROP_IN, EDITED),
        ("files", ENV, EDITED),
        ("files", KEY, EDITED),
        ("links", "/opt/c", MOVED),
        ("links", LINK, MOVED),
    ],
)
def test_a_process_that_was_started_with_an_edit_is_restarted(
    part: str, path: str, edit: dict[str, Any]
) -> None:
    """It crashed or the host was rebooted meanwhile: the stamp is right, what it read was not."""
    found = restarts(part, path, **edit, changed_at=STARTED - 1)
    assert found == [f"unit {NAME}: started with {path} as found"]
    # edited after the start: the process has not read it, so repairing the path is enough
    assert restarts(part, path, **edit, changed_at=STARTED + 1) == []


def test_mode_and_owner_are_not_what_a_process_reads() -> None:
    assert restarts("files", ENV, mode="0666", changed_at=STARTED - 1) == []


def test_a_drop_in_that_was_lacking_at_the_start() -> None:
    """Nothing starts without the other files; without a drop-in it does."""
    assert restarts("files", ENV, absent=True) == []
    document = as_desired(FULL)
    document["files"][DROP_IN] = None

    def verbs_now() -> list[str]:
        changed = {DROP_IN: f"file:{DROP_IN}"}
        changes = unit_changes(FULL, Observed(document), "files", changed)
        return [c.verb for c in changes if c.verb != "reload"]

    document["directories"][DROP_IN_FOLDER]["changed_at"] = STARTED + 1
    assert verbs_now() == []
    document["directories"][DROP_IN_FOLDER]["changed_at"] = STARTED - 1
    assert verbs_now() == ["restart"]
    document["directories"][DROP_IN_FOLDER] = None
    assert verbs_now() == ["restart"]


def test_what_the_environment_file_names_is_put_back_too() -> None:
    observed = spoilt(FULL, "units", NAME, stamp="old")
    changed = {path: f"file:{path}" for path in (ENV, KEY)} | {LINK: f"link:{LINK}"}
    (restart,) = unit_changes(FULL, observed, "files", changed)
    assert restart.action is not None and restart.action["put_back"] == [ENV, KEY, LINK]
