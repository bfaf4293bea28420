"""The agent gets to a host whole, and a host that cannot run it says so."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts import bundle
from tests.unit import agent_host


def test_the_agent_travels_whole() -> None:
    files = bundle.agent_files()
    assert {"__init__.py", "__main__.py", "probe.py", "lease.py", "wire.py"} <= set(files)
    assert list(files) == sorted(files)
    modules = json.loads(
        zlib.decompress(base64.b64decode(bundle.program_line(files).removeprefix("agent:")))
    )
    assert modules["agent"] == [True, files["__init__.py"].decode()]
    assert modules["agent.wire"] == [False, files["wire.py"].decode()]


def test_a_verb_travels_with_what_it_imports() -> None:
    files = {
        "__init__.py": b"",
        "__main__.py": b"from . import actions",
        "wire.py": b"import json",
        "probe.py": b"from .a import x\nfrom . import b\ndef f():\n    from . import late\n",
        "a.py": b"from .deep.c import y",
        "deep/c.py": b"",
        "b.py": b"from . import probe",
        "late.py": b"",
        "actions.py": b"from . import other",
        "other.py": b"",
    }
    left_out = {"actions.py", "other.py"}
    assert set(bundle.needed_by("probe", files)) == set(files) - left_out
    assert set(bundle.needed_by("apply", files)) == set(files)
    assert bundle.payload({}, "probe") != bundle.payload({}, "apply") == bundle.payload({})


@given(st.dictionaries(st.sampled_from(["__init__.py", "a.py", "b/__init__.py"]), st.text()))
def test_any_source_survives_the_line(sources: dict[str, str]) -> None:
    line = bundle.program_line({name: text.encode() for name, text in sources.items()})
    assert "\n" not in line
    names = {"__init__.py": "agent", "a.py": "agent.a", "b/__init__.py": "agent.b"}
    assert json.loads(zlib.decompress(base64.b64decode(line.removeprefix("agent:")))) == {
        names[name]: ["__init__" in name, text] for name, text in sources.items()
    }


def test_the_payload_is_two_lines() -> None:
    assert bundle.payload({"a": "x\ny"}).count("\n") == 2
    assert json.loads(bundle.payload({"a": "x\ny"}).splitlines()[1]) == {"a": "x\ny"}


def test_the_command_is_small_and_valid_also_inside_other_commands() -> None:
    command = bundle.command("probe", 25)
    assert len(command) < 8192
    wrapped = f"true | {{ {command}; }}"
    subprocess.run(["/bin/sh", "-n", "-c", wrapped], check=True)


def test_a_verb_is_answered() -> None:
    first, end = agent_host.ask("probe", {"deadline_s": 20})
    python = first["state"]["system"]["python"]
    assert python == ".".join(map(str, sys.version_info[:3]))
    assert end == {"end": "probe", "ok": True}


@pytest.mark.parametrize(("verb", "ok"), [("probe", True), ("apply", False)])
@pytest.mark.parametrize(
    ("python", "reason"),
    [
        (None, "python3 is not installed"),
        ("import sys; sys.modules['json'] = None", "python3 lacks json"),
        ("import sys; sys.modules['_ctypes'] = None", "python3 lacks _ctypes"),
        ("import sys; sys.version_info = (3, 8, 10)", "python3 is 3.8, 3.10 or newer is needed"),
    ],
)
def test_a_host_that_needs_python_says_so(
    tmp_path: Path, verb: str, ok: bool, python: str | None, reason: str
) -> None:
    if python is not None:
        agent_host.fake_python(tmp_path, python)
    process = agent_host.start(verb, env={"PATH": str(tmp_path)})
    assert process.stdin is not None and process.stdout is not None
    # More than a pipe holds: whoever writes must not meet a closed pipe.
    process.stdin.write("A" * 300_000 + "\n" + "B" * 300_000 + "\n")
    process.stdin.close()
    lines = agent_host.lines_of(process.stdout.read())
    assert lines == [{"bootstrap": reason}, {"end": verb, "ok": ok, "message": reason}]
    assert process.wait() == 0


@pytest.mark.parametrize("status", [1, 126, 127])
def test_a_python_that_does_not_start_needs_a_bootstrap(tmp_path: Path, status: int) -> None:
    agent_host.fake_tool(tmp_path, "python3", f"exit {status}")
    lines = agent_host.ask("probe", {}, path=str(tmp_path))
    assert lines[0] == {"bootstrap": "python3 does not start"}
    assert lines[-1]["end"] == "probe"


def test_it_runs_where_there_is_no_timeout_command(tmp_path: Path) -> None:
    agent_host.fake_python(tmp_path, "pass")
    assert agent_host.ask("probe", {"deadline_s": 20}, env={"PATH": str(tmp_path)})[-1]["ok"]


def test_it_is_killed_when_its_time_is_up() -> None:
    process = agent_host.start("probe", timeout_s=1)
    assert process.stdout is not None
    assert process.stdout.read() == ""  # no end line; its input stayed open all the time
    assert process.wait() == 137


PROGRAM = bundle.program_line(bundle.agent_files())


@pytest.mark.parametrize(
    "arrived",
    [
        "",
        PROGRAM[:1000],
        PROGRAM,
        PROGRAM[:-8] + "\n{}\n",
        PROGRAM[:500] + "AAAA" + PROGRAM[504:] + "\n{}\n",
        "no base64 at all\n{}\n",
        f"{PROGRAM}\n",
        f'{PROGRAM}\n{{"deadline_s": 2',
        f"{PROGRAM}\n[]\n",
        f"{PROGRAM}\nnonsense\n",
    ],
)
def test_what_arrives_in_part_counts_for_nothing(arrived: str) -> None:
    lines = agent_host.ask("probe", None, given=arrived)
    assert [line["end"] for line in lines] == ["probe"]
    assert lines[0]["ok"] is False
    assert "expected" in lines[0]["message"] or "standard input" in lines[0]["message"]


def test_a_broken_agent_says_what_broke() -> None:
    files = {**bundle.agent_files(), "__main__.py": b'raise ValueError("a \\"b\\"")'}
    (end,) = agent_host.ask("probe", {}, files=files)
    assert end == {
        "end": "probe",
        "ok": False,
        "message": "the agent does not start: ValueError('a \"b\"')",
    }


def test_an_unknown_verb_is_one_sentence() -> None:
    for program in ("files.agent", "agent"):
        process = subprocess.run(
            [sys.executable, "-m", program, "prob"],
            capture_output=True,
            text=True,
            cwd=bundle.FILES if program == "agent" else bundle.FILES.parent,
        )
        assert process.returncode == 2
        assert process.stderr.startswith("unknown verb 'prob', expected one of probe, ")
        assert process.stderr.count("\n") == 1
