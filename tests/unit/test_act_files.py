"""Directories, files and links, really made in a folder of the test."""

from __future__ import annotations

import base64
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from files.agent import act_files
from files.agent.handler import Context
from tests.unit.act_support import ME, MY_GROUP, Events, act

as_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to give files away")
MINE = {"owner": ME, "group": MY_GROUP}


def write(path: Path, content: bytes, mode: str = "0644", **more: Any) -> dict[str, Any]:
    return {
        "do": "file.write",
        "path": str(path),
        "content": base64.b64encode(content).decode(),
        "mode": mode,
        "secret": False,
        "over_mask": False,
        **MINE,
        **more,
    }


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def changed(events: Events) -> list[bool]:
    return [line["changed"] for line in events.lines if line["event"] == "done"]


def test_a_file_is_written_then_nothing_is_left_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    action = write(path, b"one\n", "0640")
    assert changed(act(action)) == [True]
    assert (path.read_bytes(), mode_of(path)) == (b"one\n", 0o640)
    assert changed(act(action)) == [False]
    path.chmod(0o666)
    assert changed(act(action)) == [True]
    assert mode_of(path) == 0o640
    path.write_bytes(b"edited")
    assert changed(act(action)) == [True]
    assert path.read_bytes() == b"one\n"
    assert names_in(tmp_path) == ["a.conf"]


def test_readers_of_the_old_file_keep_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old content")
    with open(path) as reader:
        act(write(path, b"new"))
        assert reader.read() == "old content"
    assert path.read_text() == "new"


@as_root
def test_owner_and_special_modes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    act(write(path, b"x", "4750", owner="nobody", group="daemon"))
    found = path.stat()
    assert stat.S_IMODE(found.st_mode) == 0o4750
    assert (path.owner(), path.group()) == ("nobody", "daemon")
    attributes = {"do": "file.attributes", "path": str(path), "mode": "0600", **MINE}
    assert changed(act(attributes)) == [True]
    assert (path.owner(), path.group(), mode_of(path)) == (ME, MY_GROUP, 0o600)
    assert changed(act(attributes)) == [False]


def test_a_secret_has_its_mode_before_it_has_content_and_is_never_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = os.fchmod

    def fchmod(handle: int, mode: int) -> None:
        seen.append((os.fstat(handle).st_size, stat.S_IMODE(os.fstat(handle).st_mode)))
        real(handle, mode)

    monkeypatch.setattr(os, "fchmod", fchmod)
    path = tmp_path / "key"
    events = act(
        write(path, b"s3cret-s3cret", "0640", secret=True),
        {"do": "file.attributes", "path": "/nowhere/s3cret-s3cret", "mode": "0600", **MINE},
    )
    assert seen == [(0, 0o600)]
    assert (path.read_bytes(), mode_of(path)) == (b"s3cret-s3cret", 0o640)
    assert "s3cret" not in json.dumps(events.lines)
    assert "***" in events.failure("1")


def test_a_full_disk_leaves_the_old_file_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    events = act(write(path, b"new"))
    assert events.failure("0") == f"writing {path} failed: No space left on device"
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["a"]


def test_the_rest_of_a_killed_run_is_cleared(tmp_path: Path) -> None:
    (tmp_path / ".key.voltfleet-0123456789abcdef").write_text("half a sec")
    (tmp_path / ".other.voltfleet-0123456789abcdef").write_text("not ours to clear here")
    act(write(tmp_path / "key", b"new"))
    assert names_in(tmp_path) == [".other.voltfleet-0123456789abcdef", "key"]


def test_links_and_directories_in_the_way_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("keep")
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "folder").mkdir()
    events = act(
        write(tmp_path / "link", b"x", over_mask=True),
        write(tmp_path / "folder", b"x"),
        {"do": "file.attributes", "path": str(tmp_path / "link"), "mode": "0777", **MINE},
    )
    assert "is a link, not a file" in events.failure("0")
    assert "is a directory, not a file" in events.failure("1")
    assert "2" in events.of("failed")
    assert (target.read_text(), (tmp_path / "link").is_symlink()) == ("keep", True)


def test_a_mask_is_written_over_only_when_told(tmp_path: Path) -> None:
    path = tmp_path / "a.service"
    path.symlink_to("/dev/null")
    assert "is a link" in act(write(path, b"x")).failure("0")
    assert changed(act(write(path, b"[Service]\n", over_mask=True))) == [True]
    assert path.read_bytes() == b"[Service]\n"
    assert not path.is_symlink()


def test_parents_must_be_real_folders(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real")
    events = act(
        write(tmp_path / "missing" / "a", b"x"),
        write(tmp_path / "alias" / "a", b"x"),
        {**write(tmp_path / "a", b"x"), "path": "etc/passwd"},
        {**write(tmp_path / "a", b"x"), "path": "/tmp/../etc/x"},
    )
    assert "No such file or directory" in events.failure("0")
    assert f"{tmp_path}/alias is a link" in events.failure("1")
    assert "no absolute path" in events.failure("2")
    assert "no absolute path" in events.failure("3")
    assert names_in(tmp_path / "real") == []


def test_unknown_owner_and_bad_arguments(tmp_path: Path) -> None:
    events = act(
        write(tmp_path / "a", b"x", owner="no-such-user"),
        write(tmp_path / "a", b"x", group="no-such-group"),
        write(tmp_path / "a", b"x", mode="rwx"),
        {**write(tmp_path / "a", b"x"), "content": "%%%"},
        {"do": "directory.make", "path": str(tmp_path / "d"), "mode": "0755"}
        | {"owner": "no-such-user", "group": MY_GROUP},
    )
    assert "user no-such-user" in events.failure("0")
    assert "group no-such-group" in events.failure("1")
    assert "four octal digits" in events.failure("2")
    assert "base64" in events.failure("3")
    assert "user no-such-user" in events.failure("4")
    assert names_in(tmp_path) == []


def test_directories(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    action = {"do": "directory.make", "path": str(path), "mode": "0750", **MINE}
    assert changed(act(action)) == [True]
    assert mode_of(path) == 0o750
    assert changed(act(action)) == [False]
    path.chmod(0o777)
    assert changed(act(action)) == [True]
    assert mode_of(path) == 0o750
    (tmp_path / "file").write_text("keep")
    events = act({**action, "path": str(tmp_path / "file")})
    assert "is a file, not a directory" in events.failure("0")


def test_links(tmp_path: Path) -> None:
    path = tmp_path / "current"
    assert changed(act({"do": "link.set", "path": str(path), "target": "releases/1"})) == [True]
    action = {"do": "link.set", "path": str(path), "target": "releases/2"}
    assert changed(act(action)) == [True]
    assert path.readlink() == Path("releases/2")
    assert changed(act(action)) == [False]
    (tmp_path / "real").mkdir()
    (tmp_path / "file").write_text("keep")
    events = act(
        {**action, "path": str(tmp_path / "real")}, {**action, "path": str(tmp_path / "file")}
    )
    assert "is a directory, not a link" in events.failure("0")
    assert "is a file, not a link" in events.failure("1")
    assert names_in(tmp_path) == ["current", "file", "real"]


def test_former_content_mode_target_and_absence_can_be_put_back(tmp_path: Path) -> None:
    old, new, other = tmp_path / "old", tmp_path / "new", tmp_path / "other"
    old.write_text("old")
    old.chmod(0o604)
    context = Context(run="test", sink=Events())
    for action in (write(old, b"1"), write(old, b"2"), write(new, b"n")):
        act_files.file_write(context, {"id": "x", **action})
    link = tmp_path / "current"
    link.symlink_to("releases/1")
    switch = {"id": "x", "do": "link.set", "path": str(link), "target": "releases/2"}
    act_files.link_set(context, switch)
    replaced = [str(old), str(new), str(link)]
    assert act_files.put_back(context, [*replaced, str(other)]) == replaced
    assert link.readlink() == Path("releases/1")
    assert (old.read_text(), mode_of(old)) == ("old", 0o604)
    assert not new.exists()
    assert act_files.put_back(context, [str(old)]) == []
