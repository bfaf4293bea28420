"""Models on a host: states by stat, fetching with faults, repair; requirement G11."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from files.agent import act_models, check, download, models
from files.agent.handler import ActionError, Context, Outcome
from tests.unit import gguf_bytes as g
from tests.unit.act_support import Events
from tests.unit.faulty_hub import Hub, hub

pytestmark = pytest.mark.skipif(
    os.system("command -v aria2c >/dev/null") != 0, reason="aria2 is not installed"
)

MODEL = g.tiny("llama", g.string("general.name", "tiny")) + b"\0" * 300_000
PATH = "/owner/tiny/resolve/v1/tiny.gguf"


@pytest.fixture(autouse=True)
def manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "manifests"
    monkeypatch.setattr(models, "MANIFESTS", place)
    monkeypatch.setattr(act_models, "MARGIN", 0)
    return place


@pytest.fixture
def server() -> Iterator[Hub]:
    with hub() as state:
        state.files[PATH] = MODEL
        yield state


def entry(server: Hub | None, content: bytes = MODEL, path: str = "tiny.gguf") -> dict[str, Any]:
    url = f"{server.url}/owner/tiny/resolve/v1/{path}" if server else "http://127.0.0.1:9/x"
    digest = hashlib.sha256(content).hexdigest()
    return {"path": path, "url": url, "size": len(content), "sha256": digest}


def action(root: Path, *files: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "model:tiny",
        "do": "model.fetch",
        "name": "tiny",
        "root": str(root),
        "revision": "v1",
        "format": "gguf",
        "files": list(files),
        "token_file": None,
        "required": {"general.architecture": "llama"},
        "profile": "upstream",
        "others": ["guide"],
        "full": False,
        **more,
    }


def fetch(wanted: dict[str, Any]) -> Outcome:
    return act_models.fetch(Context(run="test", sink=Events()), wanted)


def refused(wanted: dict[str, Any]) -> str:
    with pytest.raises(ActionError) as caught:
        fetch(wanted)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def states(root: Path, *files: dict[str, Any]) -> dict[str, str]:
    spec = {"root": str(root), "revision": "v1", "files": {item["path"]: item for item in files}}
    seen = models.observe("tiny", spec)["files"]
    return {path: found["state"] for path, found in seen.items()}


def test_fetch_then_nothing_to_do(tmp_path: Path, server: Hub, manifests: Path) -> None:
    root, item = tmp_path / "tiny", entry(server)
    assert states(root, item) == {"tiny.gguf": "absent"}
    assert fetch(action(root, item)).changed
    assert (root / "v1" / "tiny.gguf").read_bytes() == MODEL
    assert (root / "v1" / "tiny.gguf").stat().st_mode & 0o777 == 0o644
    assert not (root / "v1.partial").exists()
    assert states(root, item) == {"tiny.gguf": "sound"}
    asked = len(server.requests)
    assert not fetch(action(root, item)).changed
    assert len(server.requests) == asked
    spec = {"root": str(root), "revision": "v1", "files": {}, "metadata": ["general.name"]}
    assert models.observe("tiny", spec)["metadata"] == {"general.name": "tiny"}
    assert oct((manifests / "tiny.json").stat().st_mode & 0o777) == "0o644"


def test_states_by_stat(tmp_path: Path, server: Hub) -> None:
    root, item = tmp_path / "tiny", entry(server)
    fetch(action(root, item))
    file = root / "v1" / "tiny.gguf"
    os.utime(file)
    assert states(root, item) == {"tiny.gguf": "unchecked"}
    assert fetch(action(root, item)).changed is False  # read, found sound, recorded
    assert states(root, item) == {"tiny.gguf": "sound"}
    assert states(root, {**item, "sha256": "0" * 64}) == {"tiny.gguf": "bad"}
    file.write_bytes(MODEL[:100])
    assert states(root, item) == {"tiny.gguf": "bad"}
    file.unlink()
    file.mkdir()
    assert states(root, item) == {"tiny.gguf": "bad"}
    file.rmdir()
    assert states(root, item) == {"tiny.gguf": "absent"}


def spoil(file: Path, keep_times: bool = True) -> None:
    """One byte changed, size and mtime kept; ctime changes whatever one does."""
    before = file.stat()
    content = bytearray(file.read_bytes())
    content[-7] ^= 1
    file.write_bytes(content)
    if keep_times:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_changed_byte_is_found_and_only_that_file_fetched(tmp_path: Path, server: Hub) -> None:
    second = g.gguf([g.string("general.architecture", "llama")])
    server.files["/owner/tiny/resolve/v1/b.gguf"] = second
    root, files = tmp_path / "tiny", [entry(server), entry(server, second, "b.gguf")]
    fetch(action(root, *files))
    spoil(root / "v1" / "tiny.gguf")
    assert states(root, *files) == {"tiny.gguf": "unchecked", "b.gguf": "sound"}
    server.requests.clear()
    outcome = fetch(action(root, *files))
    assert outcome.changed and "tiny.gguf" in outcome.message and "b.gguf" not in outcome.message
    assert {path for _, path, _, _ in server.requests} == {PATH}
    assert (root / "v1" / "tiny.gguf").read_bytes() == MODEL
    assert set(states(root, *files).values()) == {"sound"}


def test_repair_under_a_running_server_is_remembered(tmp_path: Path, server: Hub) -> None:
    root, item = tmp_path / "tiny", entry(server)
    spec = {"root": str(root), "revision": "v1", "files": {}}
    fetch(action(root, item))
    assert models.observe("tiny", spec)["repaired_at"] is None
    (root / "v1" / "tiny.gguf").write_bytes(b"GGUF")
    fetch(action(root, item))
    assert models.observe("tiny", spec)["repaired_at"] > 0
    assert states(root, item) == {"tiny.gguf": "sound"}
    assert not fetch(action(root, item)).changed
    assert models.observe("tiny", spec)["repaired_at"] > 0  # each of its servers is yet to know


def test_full_check_finds_what_a_stat_does_not(
    tmp_path: Path, server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, item = tmp_path / "tiny", entry(server)
    fetch(action(root, item))
    spoil(root / "v1" / "tiny.gguf")
    with models.updated("tiny", "v1") as record:  # as if even the ctime had been kept
        record["files"]["tiny.gguf"].update(models.identity((root / "v1/tiny.gguf").stat()))
    assert states(root, item) == {"tiny.gguf": "sound"}
    assert fetch(action(root, item, full=True)).changed
    assert (root / "v1" / "tiny.gguf").read_bytes() == MODEL
    assert not fetch(action(root, item, full=True)).changed


def test_weekly_check_records_what_it_finds(
    tmp_path: Path, server: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    root, item = tmp_path / "tiny", entry(server)
    fetch(action(root, item))
    assert check.main(["--models"]) == 0
    spoil(root / "v1" / "tiny.gguf")
    assert check.main(["--models"]) == 1
    assert "tiny.gguf has sha256" in capsys.readouterr().out
    assert states(root, item) == {"tiny.gguf": "bad"}


def test_weekly_check_of_a_broken_record(
    manifests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifests.mkdir()
    (manifests / "x.json").write_text("{}")
    assert check.main(["--models"]) == 1
    assert "is no record of a model" in capsys.readouterr().out
    assert check.main(["--models", "x"]) == 1
    assert check.main(["--models", "y"]) == 0


def test_a_repair_during_the_weekly_check_is_not_undone(
    tmp_path: Path, server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = g.gguf([g.string("general.architecture", "llama")])
    server.files["/owner/tiny/resolve/v1/b.gguf"] = second
    root, files = tmp_path / "tiny", [entry(server), entry(server, second, "b.gguf")]
    fetch(action(root, *files))
    spoil(root / "v1" / "tiny.gguf")
    read_whole = models.read_whole
    runs: list[Outcome] = []

    def meanwhile(path: Path, tell: Any = None) -> dict[str, Any]:
        found = read_whole(path, tell)
        if path.name == "b.gguf" and not runs:  # the spoilt one has been read by then
            runs.append(fetch(action(root, *files)))
        return found

    monkeypatch.setattr(models, "read_whole", meanwhile)
    assert check.main(["--models", "tiny"]) == 0
    assert runs[0].changed
    assert set(states(root, *files).values()) == {"sound"}
    spec = {"root": str(root), "revision": "v1", "files": {}}
    assert models.observe("tiny", spec)["repaired_at"] is not None


def test_another_revision_during_the_weekly_check_stays_recorded(
    tmp_path: Path, server: Hub, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    root, item = tmp_path / "tiny", entry(server)
    fetch(action(root, item))
    read_whole = models.read_whole
    runs: list[Outcome] = []

    def meanwhile(path: Path, tell: Any = None) -> dict[str, Any]:
        found = read_whole(path, tell)
        if not runs:
            monkeypatch.setattr(models, "read_whole", read_whole)
            runs.append(fetch(action(root, item, revision="v2")))
        return found

    monkeypatch.setattr(models, "read_whole", meanwhile)
    assert check.main(["--models"]) == 0
    assert "was replaced by another revision meanwhile" in capsys.readouterr().out
    assert models.manifest("tiny", "v2")["files"] and not models.manifest("tiny", "v1")["files"]


def test_the_weekly_check_forgets_models_that_are_gone(
    tmp_path: Path, server: Hub, manifests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, item = tmp_path / "tiny", entry(server)
    fetch(action(root, item))
    spoil(root / "v1" / "tiny.gguf")
    assert check.main(["--models", "other"]) == 0  # dropped from the data: nobody's any more
    assert (manifests / "tiny.json").exists()
    assert check.main(["--models", "tiny"]) == 1
    shutil.rmtree(root)
    assert check.main(["--models", "tiny"]) == 1  # wanted, and not there
    assert "no such file" in capsys.readouterr().out
    assert check.main(["--models", "other"]) == 0
    assert f"{root / 'v1'} is gone, its record was removed" in capsys.readouterr().out
    assert not (manifests / "tiny.json").exists()


def test_a_manifest_that_another_process_does_not_let_go(
    tmp_path: Path, server: Hub, manifests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "LOCK_S", 0)
    manifests.mkdir()
    held = os.open(manifests, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert "another process has held it for 0 s" in refused(
        action(tmp_path / "tiny", entry(server))
    )
    os.close(held)
    assert not fetch(action(tmp_path / "tiny", entry(server))).changed  # it was in place already


def test_required_metadata_is_kept_whatever_it_is(tmp_path: Path, server: Hub) -> None:
    """The plan compares what the manifest keeps: without it the model is fetched for ever."""
    long = "x" * 1000
    numbers = g.array("sections", 5, 2, struct.pack("<ii", 11, 24))
    model = g.gguf([g.string("general.architecture", "llama"), g.string("long", long), numbers])
    server.files[PATH] = model
    root, item = tmp_path / "tiny", entry(server, model)
    required = {"general.architecture": "llama", "long": long, "sections": [11, 24]}
    assert fetch(action(root, item, required=required)).changed
    spec = {"root": str(root), "revision": "v1", "files": {}, "metadata": list(required)}
    assert models.observe("tiny", spec)["metadata"] == required
    del required["long"]
    fetch(action(root, item, required=required))
    spec["metadata"] = ["long"]
    assert models.observe("tiny", spec)["metadata"] == {}


@pytest.mark.parametrize(
    ("fault", "clause"),
    [
        ("html", "is a web page"),
        ("pointer", "Git LFS pointer"),
        ("404", "does not have it (404)"),
        ("401", "asks for a token or refuses the one given (401)"),
        ("403", "forbids it (403)"),
        ("416", "fewer bytes than were expected (416)"),
        ("500", "answers 500"),
        ("loop", "redirects without an end"),
        ("wrong", "has sha256"),
    ],
)
def test_faults_of_the_hub_are_one_sentence(
    tmp_path: Path, server: Hub, fault: str, clause: str
) -> None:
    server.faults[PATH] = fault
    root, item = tmp_path / "tiny", entry(server)
    said = refused(action(root, item))
    assert clause in said and said.startswith("model tiny: tiny.gguf: ") and server.url in said
    assert not (root / "v1").exists()
    del server.faults[PATH]
    assert fetch(action(root, item)).changed


def test_wrong_size_on_the_server(tmp_path: Path, server: Hub) -> None:
    item = {**entry(server), "size": len(MODEL) + 1}
    assert f"has {len(MODEL)} bytes on the server" in refused(action(tmp_path / "tiny", item))


def test_wrong_bytes_are_fetched_once_more(tmp_path: Path, server: Hub) -> None:
    server.faults[PATH] = "wrong once"
    assert fetch(action(tmp_path / "tiny", entry(server))).changed


def test_cut_connection_resumes(tmp_path: Path, server: Hub) -> None:
    server.faults[PATH], server.cut_at = "cut", 120_000
    root, item = tmp_path / "tiny", entry(server)
    assert "was cut at 120000 of" in refused(action(root, item))
    assert (root / "v1.partial" / "tiny.gguf").exists() and not (root / "v1").exists()
    del server.faults[PATH]
    server.requests.clear()
    assert fetch(action(root, item)).changed
    spans = [span for method, _, span, _ in server.requests if method == "GET"]
    # aria2 asks for the length first; what it then reads begins at its last whole piece
    assert f"bytes=114688-{len(MODEL) - 1}" in spans


def test_nobody_answers(tmp_path: Path) -> None:
    assert "can't be reached" in refused(action(tmp_path / "tiny", entry(None)))


def test_no_room(tmp_path: Path, server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(act_models, "MARGIN", 1 << 60)
    said = refused(action(tmp_path / "tiny", entry(server)))
    assert "300.2 kB are still to come" in said and "free: make room" in said
    assert server.requests == []


def test_model_that_lacks_what_the_profile_requires(tmp_path: Path, server: Hub) -> None:
    root, item = tmp_path / "tiny", entry(server)
    required = {"general.architecture": "llama", "qwen.nvlink_optimized": True}
    said = refused(action(root, item, required=required, profile="guide", others=["upstream"]))
    assert "tiny.gguf lacks the metadata key qwen.nvlink_optimized" in said
    assert "profile guide" in said and "other profiles: upstream" in said
    assert not (root / "v1").exists()
    server.requests.clear()
    assert fetch(action(root, item)).changed  # what came was kept: nothing comes again
    assert {span for _, _, span, _ in server.requests} == {None}


def test_broken_model_with_the_right_hash(tmp_path: Path, server: Hub) -> None:
    broken = g.tiny()[:-1]
    server.files[PATH] = broken
    said = refused(action(tmp_path / "tiny", entry(server, broken)))
    assert "tiny.gguf is cut" in said


def test_token_goes_to_the_hub_only(tmp_path: Path, server: Hub) -> None:
    """The bytes lie on another host, as with the hub's own storage."""
    token_file = tmp_path / "token"
    token_file.write_text("hf_secret\n")
    with hub() as storage:
        storage.files["/blob"] = MODEL
        server.token = "hf_secret"
        server.faults[PATH] = f"to {storage.url}/blob"
        assert "(401)" in refused(action(tmp_path / "tiny", entry(server)))
        wanted = action(tmp_path / "tiny", entry(server), token_file=str(token_file))
        assert fetch(wanted).changed
        assert {auth for *_, auth in storage.requests} == {None}


def test_token_is_in_no_argument(
    tmp_path: Path, server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    popen = subprocess.Popen

    def spy(argv: list[str], **more: Any) -> Any:
        seen.append(argv)
        return popen(argv, **more)

    monkeypatch.setattr(subprocess, "Popen", spy)
    token_file = tmp_path / "token"
    token_file.write_text("hf_secret")
    server.token = "hf_secret"
    assert fetch(action(tmp_path / "tiny", entry(server), token_file=str(token_file))).changed
    assert seen and not any("hf_secret" in word for argv in seen for word in argv)


def test_bad_token_file_and_bad_path(tmp_path: Path, server: Hub) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("two words\n")
    wanted = action(tmp_path / "tiny", entry(server), token_file=str(token_file))
    assert "holds no token" in refused(wanted)
    assert "leaves the model's folder" in refused(
        action(tmp_path / "tiny", {**entry(server), "path": "../x.gguf"})
    )


def test_full_disk_leaves_no_trap(tmp_path: Path) -> None:
    """An empty control file, as a full disk leaves it, does not stop the next run."""
    target = tmp_path / "x"
    target.write_bytes(b"")
    (tmp_path / "x.aria2").write_bytes(b"")
    with hub() as server:
        server.files["/x"] = b"content"
        failed = download.fetch(
            [download.Fetch(f"{server.url}/x", target, 7)], None, lambda *_: None
        )
    assert failed == {} and target.read_bytes() == b"content"


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"a" * 100)

    def meddle(done: int) -> None:
        with path.open("ab") as stream:
            stream.write(b"b")

    with pytest.raises(models.Changed, match="changed while it was read"):
        models.read_whole(path, meddle)
