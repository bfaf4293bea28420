"""The plan of releases, models and serving: what is planned, in which order, needing what."""

from __future__ import annotations

import copy
from typing import Any

from rules import plan_models, plan_releases, plan_serving
from rules.change import Change
from rules.observed import Observed
from tests.unit.plan_support import STARTED, as_desired
from tests.unit.serving_support import SERVER, TINY, config, desired

HERE = desired()
RELEASE = f"release:llama_cpp:{HERE.releases[0].fingerprint}"
UNIT = "llama-server@tiny.service"


def good() -> dict[str, Any]:
    """The probe's document of a host that serves as desired."""
    document = as_desired(HERE)
    document["releases"] = {
        "/opt/llama.cpp": {
            "current": HERE.releases[0].fingerprint,
            "present": {HERE.releases[0].fingerprint: {"sound": True, "reason": ""}},
        }
    }
    document["models"] = {
        "tiny": {
            "current": "v1",
            "files": {"tiny.gguf": {"state": "sound", "size": 501_760, "reason": ""}},
            "metadata": {"general.architecture": "llama"},
            "repaired_at": None,
        }
    }
    document["instances"] = {"tiny": {"listening": True, "health": 200}}
    document["units"][UNIT] = {
        **document["units"].get(UNIT, {}),
        "load": "loaded",
        "active": "active",
        "sub": "running",
        "enabled": "enabled",
        "need_reload": False,
        "pid": 7,
        "stamp": HERE.units[0].stamp,
        "exe_deleted": False,
        "started_at": STARTED,
    }
    return document


def planned(document: dict[str, Any]) -> list[Change]:
    seen = Observed(document)
    return [
        *plan_releases.changes(HERE, seen),
        *plan_models.changes(HERE, seen),
        *plan_serving.changes(HERE, seen),
    ]


def ids(changes: list[Change]) -> list[str]:
    return [change.id for change in changes]


def only(changes: list[Change], id: str) -> Change:
    (found,) = [change for change in changes if change.id == id]
    return found


def test_nothing_to_do() -> None:
    assert planned(good()) == []


def test_a_fresh_host() -> None:
    document = good()
    document["releases"]["/opt/llama.cpp"] = {"current": None, "present": {}}
    document["models"]["tiny"] = {
        "current": None,
        "files": {"tiny.gguf": {"state": "absent", "size": None, "reason": "…"}},
        "metadata": None,
    }
    document["files"] = dict.fromkeys(document["files"])
    document["links"] = dict.fromkeys(document["links"])
    document["units"][UNIT] = None
    document["instances"]["tiny"] = {"listening": False, "health": None}
    changes = planned(document)
    order = ids(changes)
    expected = [
        RELEASE,
        "model:tiny",
        "serve:flags",
        "file:/etc/voltfleet/instances/tiny.env",
        "link:/opt/llama.cpp/current",
        "systemd:serving",
        f"unit:{UNIT}:start",
        "serve:tiny:gate",
    ]
    assert [change_id for change_id in order if change_id in expected] == expected
    env = only(changes, "file:/etc/voltfleet/instances/tiny.env")
    assert {RELEASE, "model:tiny", "serve:flags"} <= set(env.needs)
    assert RELEASE in only(changes, "link:/opt/llama.cpp/current").needs
    assert only(changes, "link:/srv/voltfleet/models/tiny/current").needs == ("model:tiny",)
    start = only(changes, f"unit:{UNIT}:start")
    assert {RELEASE, "model:tiny", "link:/opt/llama.cpp/current"} <= set(start.needs)
    assert only(changes, "serve:tiny:gate").needs == (f"unit:{UNIT}:start",)
    build = only(changes, RELEASE).action
    assert build is not None and build["do"] == "release.build"
    assert build["source"] == {
        "kind": "archive",
        "url": "http://hub/sources/llama.cpp.tar.gz",
        "sha256": "b" * 64,
    }
    assert "--api-key-file" in build["flags_used"] and "--no-mmap" in build["hints"]


def test_no_secret_is_shown() -> None:
    document = good()
    document["files"] = dict.fromkeys(document["files"])
    shown = repr([change.public() for change in planned(document)]) + repr(planned(document))
    assert "secret-key" not in shown
    assert only(planned(document), "file:/etc/voltfleet/instances/tiny.key").diff is None


def test_a_release_that_is_not_whole_is_built_again() -> None:
    document = good()
    present = document["releases"]["/opt/llama.cpp"]["present"]
    present[HERE.releases[0].fingerprint] = {"sound": False, "reason": "lacks lib/libllama.so"}
    (change,) = planned(document)
    assert change.id == RELEASE and "lacks lib/libllama.so" in change.before


def test_a_bad_file_is_fetched_and_the_server_refreshed() -> None:
    document = good()
    document["models"]["tiny"]["files"]["tiny.gguf"] = {
        "state": "bad",
        "size": 9,
        "reason": "has 9 bytes, expected 501760",
    }
    changes = planned(document)
    assert ids(changes) == ["model:tiny", "serve:tiny:refresh", "serve:tiny:gate"]
    assert changes[0].before == "tiny.gguf bad (has 9 bytes, expected 501760)"
    assert changes[1].needs == ("model:tiny",)
    assert changes[2].needs == ("serve:tiny:refresh",)


def test_after_a_repair_the_server_is_refreshed_without_more_need() -> None:
    document = good()
    document["models"]["tiny"]["repaired_at"] = STARTED - 1  # it was started since
    assert planned(document) == []
    document["models"]["tiny"]["repaired_at"] = STARTED + 1
    changes = planned(document)
    assert ids(changes) == ["serve:tiny:refresh", "serve:tiny:gate"]
    assert changes[0].needs == ()
    document["units"][UNIT]["stamp"] = "old"  # restarted anyway
    assert "serve:tiny:refresh" not in ids(planned(document))


def test_metadata_that_is_not_as_the_profile_requires() -> None:
    document = good()
    document["models"]["tiny"]["metadata"] = {"general.architecture": "qwen4exp"}
    change = planned(document)[0]
    assert change.id == "model:tiny"
    assert change.before == "its metadata is not as wanted: general.architecture"
    document["models"]["tiny"]["metadata"] = None
    assert planned(document)[0].before == "its metadata was never read"


def test_full_check_only_when_asked_and_nothing_waits_for_it() -> None:
    here = desired(config(models_full_check=True))
    seen = Observed(good())
    (change,) = plan_models.changes(here, seen)
    assert change.id == "model:tiny:check" and change.verb == "check"
    assert change.action is not None and change.action["full"] is True
    assert plan_serving.changes(here, seen) == []


def test_moved_link_is_all_that_is_set() -> None:
    document = good()
    document["links"]["/srv/voltfleet/models/tiny/current"] = {"kind": "link", "target": "v0"}
    (change,) = planned(document)
    assert change.id == "link:/srv/voltfleet/models/tiny/current" and change.verb == "set"


def test_stopped_server_is_started_and_proved() -> None:
    document = good()
    document["units"][UNIT]["active"] = "inactive"
    document["instances"]["tiny"] = {"listening": False, "health": None}
    assert ids(planned(document)) == [f"unit:{UNIT}:start", "serve:tiny:gate"]


def test_server_that_does_not_answer_is_asked() -> None:
    document = good()
    document["instances"]["tiny"] = {"listening": True, "health": 503}
    (change,) = planned(document)
    assert change.id == "serve:tiny:gate" and change.before == "health answers 503"
    assert change.action == {
        "do": "serve.gate",
        "instance": "tiny",
        "unit": UNIT,
        "host": "0.0.0.0",
        "port": 8080,
        "key_file": "/etc/voltfleet/instances/tiny.key",
        "model": "/srv/voltfleet/models/tiny/current/tiny.gguf",
        "timeout_s": 300,
        "put_back": [],
    }


def test_a_server_that_nobody_could_look_at_is_asked_longer() -> None:
    """A busy server takes no connection for a while: that is no reason to fail a run."""
    document = good()
    document["instances"]["tiny"] = {"unknown": "0.0.0.0:8080 neither accepted nor refused"}
    (change,) = planned(document)
    assert change.id == "serve:tiny:gate"
    assert change.before == "not seen to answer: 0.0.0.0:8080 neither accepted nor refused"
    assert change.action is not None and change.action["do"] == "serve.gate"


def test_a_switch_puts_back_all_of_the_host() -> None:
    document = good()
    env, key = (f"/etc/voltfleet/instances/tiny.{end}" for end in ("env", "key"))
    links = ["/opt/llama.cpp/current", "/srv/voltfleet/models/tiny/current"]
    document["units"][UNIT]["stamp"] = "old"
    for path in (env, key):
        document["files"][path]["sha256"] = "0" * 64
    for path in links:
        document["links"][path]["target"] = "old"
    changes = planned(document)
    for change_id in (f"unit:{UNIT}:restart", "serve:tiny:gate"):
        action = only(changes, change_id).action
        assert action is not None and action["put_back"] == sorted([env, key, *links])


def test_a_start_has_nothing_to_go_back_to() -> None:
    document = good()
    document["units"][UNIT]["active"] = "inactive"
    document["files"]["/etc/voltfleet/instances/tiny.env"] = None
    action = only(planned(document), "serve:tiny:gate").action
    assert action is not None and action["put_back"] == []


def test_every_server_of_a_repaired_model_is_refreshed() -> None:
    host = config(instances={"tiny": SERVER, "twin": {**SERVER, "port": 8081}})
    here = desired(host)
    document = as_desired(here)
    document.update({key: copy.deepcopy(good()[key]) for key in ("releases", "models")})
    document["instances"] = {name: {"listening": True, "health": 200} for name in ("tiny", "twin")}
    document["models"]["tiny"]["repaired_at"] = STARTED + 1
    both = ids(plan_serving.changes(here, Observed(document)))
    assert [item for item in both if "refresh" in item] == [
        "serve:tiny:refresh",
        "serve:twin:refresh",
    ]
    # one is done, the run died: the other is still to be
    document["units"]["llama-server@tiny.service"]["started_at"] = STARTED + 2
    assert ids(plan_serving.changes(here, Observed(document))) == [
        "serve:twin:refresh",
        "serve:twin:gate",
    ]


def test_what_is_unknown_is_not_acted_on() -> None:
    document = good()
    document["releases"] = {"unknown": "timed out after 20 s"}
    document["models"]["tiny"] = {"unknown": "no permission"}
    changes = planned(document)
    for change_id in (RELEASE, "model:tiny"):
        change = only(changes, change_id)
        assert change.action is None and change.before.startswith("unknown: ")


def test_one_of_two_instances_changes() -> None:
    other = {**SERVER, "port": 8081, "model": "other"}
    host = config(
        models={"tiny": TINY, "other": {**TINY, "revision": "v9"}},
        instances={"tiny": SERVER, "other": other},
    )
    here = desired(host)
    document = as_desired(here)
    document.update({key: copy.deepcopy(good()[key]) for key in ("releases", "models")})
    document["models"]["other"] = copy.deepcopy(document["models"]["tiny"])
    document["instances"] = {name: {"listening": True, "health": 200} for name in ("tiny", "other")}
    for unit in here.units:
        document["units"][unit.name] = {**good()["units"][UNIT], "stamp": unit.stamp}
    assert plan_serving.changes(here, Observed(document)) == []
    document["units"]["llama-server@other.service"]["stamp"] = "old"
    assert ids(plan_serving.changes(here, Observed(document))) == [
        "unit:llama-server@other.service:restart",
        "serve:other:gate",
    ]
