"""The question is what the desired state mentions; its answer is never read for more."""

from __future__ import annotations

import json
import random
from dataclasses import fields, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rules.desired import (
    Desired,
    Directory,
    File,
    Group,
    Instance,
    Link,
    Model,
    ModelFile,
    ModuleOption,
    Package,
    Release,
    Source,
    Sysctl,
    Unit,
    User,
)
from rules.observed import Observed, Unknown
from rules.question import question

DESIRED = Desired(
    packages=(Package("curl"), Package("bash"), Package("curl", "1")),
    groups=(Group("g"),),
    users=(User("u", "/home/u"),),
    directories=(Directory("/opt/b"), Directory("/opt/a")),
    files=(File("/etc/x", b"abc"), File("/etc/key", b"k", secret=True)),
    links=(Link("/opt/current", "r"),),
    sysctls=(Sysctl("vm.swappiness", "1"),),
    module_options=(ModuleOption("nvidia", "a", "1"), ModuleOption("nvidia", "b", "1")),
    units=(Unit("b.service"), Unit("a.service")),
    releases=(
        Release("llama_cpp", "/opt/l", "f2", Source("git", "u"), {}, (), (), "g++-14"),
        Release("llama_cpp", "/opt/l", "f1", Source("git", "u"), {}, (), (), "g++-14"),
    ),
    models=(
        Model(
            "tiny",
            "/srv/tiny",
            "r1",
            "gguf",
            (ModelFile("b", "http://h/b", 2, "bb"), ModelFile("a", "http://h/a", 1, "aa")),
            required_metadata={"x.y": 1, "a.b": 2},
        ),
    ),
    instances=(Instance("t", "llama_cpp", "s@t.service", "tiny", "127.0.0.1", 80, None, 9),),
    probe_timeout_s=7,
)


def test_it_asks_about_everything_desired() -> None:
    sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    asked = question(DESIRED)
    assert asked["files"]["/etc/x"] == {"sha256": sha256, "secret": False}
    assert asked["files"]["/etc/key"]["secret"] is True
    del asked["files"]
    assert asked == {
        "deadline_s": 7,
        "directories": ["/opt/a", "/opt/b"],
        "links": ["/opt/current"],
        "packages": ["bash", "curl"],
        "groups": ["g"],
        "users": ["u"],
        "units": ["a.service", "b.service", "s@t.service"],
        "sysctls": ["vm.swappiness"],
        "modules": ["nvidia"],
        "releases": {"/opt/l": ["f1", "f2"]},
        "models": {
            "tiny": {
                "root": "/srv/tiny",
                "revision": "r1",
                "format": "gguf",
                "full_check": False,
                "metadata": ["a.b", "x.y"],
                "files": {"a": {"size": 1, "sha256": "aa"}, "b": {"size": 2, "sha256": "bb"}},
            }
        },
        "instances": {"t": {"unit": "s@t.service", "host": "127.0.0.1", "port": 80}},
        "free_space": ["/opt/l", "/srv/tiny"],
    }


def test_no_content_leaves_with_it() -> None:
    text = json.dumps(question(replace(DESIRED, files=(File("/k", b"hush", secret=True),))))
    assert "hush" not in text


@given(st.integers())
def test_the_order_of_the_data_does_not_matter(seed: int) -> None:
    mixed: dict[str, Any] = {}
    for field in fields(DESIRED):
        value = getattr(DESIRED, field.name)
        if isinstance(value, tuple):
            mixed[field.name] = tuple(random.Random(seed).sample(value, len(value)))
    assert json.dumps(question(replace(DESIRED, **mixed))) == json.dumps(question(DESIRED))


KEYS = st.sampled_from(["files", "/etc/x", "unknown", "y"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, JSON))
def test_only_null_is_absent_whatever_the_probe_answers(document: dict[str, Any]) -> None:
    found = Observed(json.loads(json.dumps(document))).of("files", "/etc/x")
    part = document.get("files")
    told_absent = (
        isinstance(part, dict)
        and set(part) != {"unknown"}
        and "/etc/x" in part
        and part["/etc/x"] is None
    )
    assert (found is None) == told_absent
    assert found is None or isinstance(found, (dict, Unknown))


@given(st.dictionaries(KEYS, JSON))
def test_without_an_answer_everything_is_unknown(document: dict[str, Any]) -> None:
    observed = Observed(document, nothing_known="python3 is not installed")
    assert observed.of("files", "/etc/x") == Unknown("python3 is not installed")
