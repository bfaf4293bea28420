"""Lines, bytes after lines, silence and a reader that has gone."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts import bundle
from files.agent.wire import Idle, Wire, WireError
from tests.unit import agent_host


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue  # the test closed it


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)), st.binary())
def test_lines_then_bytes_wherever_they_were_cut(lines: list[bytes], tail: bytes) -> None:
    sent = b"".join(line + b"\n" for line in lines) + tail
    cut = len(sent) // 2
    source, sink = os.pipe()
    os.write(sink, sent[cut:])
    os.close(sink)
    wire = Wire(sent[:cut], source=source)
    assert [wire.read_line() for _ in lines] == lines
    read = b""
    while part := wire.read(7):
        read += part
    os.close(source)
    assert read == tail


def test_silence_is_not_the_end(pipe: tuple[int, int]) -> None:
    wire = Wire(source=pipe[0])
    os.write(pipe[1], b"half a li")
    with pytest.raises(Idle):
        wire.read_line(0.01)
    os.write(pipe[1], b"ne\n")
    assert wire.read_line(10) == b"half a line"
    os.write(pipe[1], b"half")
    os.close(pipe[1])
    assert wire.read_line(10) is None


@pytest.mark.parametrize("line", [b"", b"nonsense", b"[]", b"null", b"\xff"])
def test_a_request_is_an_object(line: bytes, pipe: tuple[int, int]) -> None:
    with pytest.raises(WireError, match="expected"):
        Wire(line + b"\n", source=pipe[0]).request()


def test_what_is_written_is_ascii_lines(pipe: tuple[int, int]) -> None:
    wire = Wire(sink=pipe[1])
    wire.line({"a": "é\n\udcff"})
    wire.end("apply", False, "no")
    os.close(pipe[1])
    raw = os.read(pipe[0], 4096)
    assert raw.isascii()
    assert [json.loads(line) for line in raw.splitlines()] == [
        {"a": "é\n\udcff"},
        {"end": "apply", "ok": False, "message": "no"},
    ]


def test_nobody_listening_is_noted_not_raised(pipe: tuple[int, int]) -> None:
    wire = Wire(sink=pipe[1])
    assert not wire.gone
    os.close(pipe[0])
    wire.line({"a": 1})
    assert wire.gone
    wire.end("apply", True)


@pytest.mark.parametrize("size", [0, 1, 500_000])
def test_a_file_follows_its_request(tmp_path: Path, size: int) -> None:
    content = "a\n" * size
    path = tmp_path / "there" / "file"
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    request = {"path": str(path), "sha256": sha256, "size": len(content)}
    given = bundle.payload(request) + content
    assert agent_host.ask("receive", None, given=given) == [{"end": "receive", "ok": True}]
    assert path.read_text() == content
    if size:
        (end,) = agent_host.ask("receive", None, given=given[:-1])
        assert end["ok"] is False and "did not arrive" in end["message"]
