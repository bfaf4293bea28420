"""Bringing a built release to the controller: the host keeps it, whatever goes wrong here."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from operations import release_cache
from tests.unit.mini_project import ROOT

# In a process of its own: operations patch the standard library for gevent.
SCENE = """
import base64, errno, json, os, sys
from types import SimpleNamespace
from facts import remote
from operations import llama_cpp, release_cache
from operations.converge import Stopped
from rules.change import Change

name, what = sys.argv[1:]
said, applied = [], []
release = SimpleNamespace(root="/opt/x", fingerprint="f00")
host = SimpleNamespace(name=name, log=said.append, log_styled=lambda text, **_: said.append(text))
llama_cpp.observe = lambda host: None
llama_cpp.desired_of = lambda host, observed: SimpleNamespace(releases=[release])
llama_cpp.apply = lambda host, changes: applied.extend(change.id for change in changes)


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def call(host, verb, request, *, on_line, **_):
    if what == "cut":
        on_line({"data": base64.b64encode(b"half").decode()})
        raise remote.RemoteError("the connection was lost")
    for part in (b"one", b"two") if what != "empty" else ():
        on_line({"data": base64.b64encode(part).decode()})
        if what == "full":
            full()


remote.call = call
if what == "full at the end":
    release_cache.Path.write_text = full
action = {"do": "release.build", "fingerprint": "f00"}
change = Change("release", "llama_cpp", "build", "a release", "absent", "present", action=action)
try:
    llama_cpp._release(host, [change])
    stopped = ""
except Stopped as stop:
    stopped = str(stop)
json.dump({"said": said, "applied": applied, "stopped": stopped}, sys.stdout)
"""


def collected(cache: Path, host: str, what: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", SCENE, host, what],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "VOLTFLEET_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("host", ["gpu1", "@ssh/gpu1", "../../gpu1"])
def test_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    assert collected(tmp_path, host, "all") == {"said": [], "applied": ["release"], "stopped": ""}
    monkeypatch.setenv("VOLTFLEET_CACHE", str(tmp_path))
    assert release_cache.archive("f00").read_bytes() == b"onetwo"
    assert release_cache.known_sha256("f00") == hashlib.sha256(b"onetwo").hexdigest()
    assert release_cache.part("f00", host).parent == release_cache.folder()


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("full", "No space left on device"),
        ("full at the end", "No space left on device"),
        ("cut", "the connection was lost"),
        ("empty", "the host sent an empty archive"),
    ],
)
def test_what_goes_wrong_here_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, why: str
) -> None:
    found = collected(tmp_path, "gpu1", what)
    assert (found["applied"], found["stopped"]) == (["release"], "")
    (sentence,) = found["said"]
    assert why in sentence and "in place but could not be kept on this controller" in sentence
    left = {path.suffix for path in (tmp_path / "releases").iterdir()}
    assert not left & {".part", ".new"}
    monkeypatch.setenv("VOLTFLEET_CACHE", str(tmp_path))
    assert release_cache.known_sha256("f00") is None


def test_a_cache_that_cannot_be_is_said_before_anything_is_built(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = collected(tmp_path / "file", "gpu1", "all")
    assert found["applied"] == []
    assert "name another folder in VOLTFLEET_CACHE" in found["stopped"]
