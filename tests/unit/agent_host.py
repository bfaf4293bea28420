"""Runs the agent as a host would: the real command in a shell, everything else on its input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from facts import bundle


def fake_tool(folder: Path, name: str, script: str) -> None:
    """Put a shell script in front of a tool of that name."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def fake_python(folder: Path, before: str) -> None:
    """A python3 that runs one more line before what it is given with -c."""
    fake_tool(folder, "python3", f'exec {sys.executable} "$1" "{before}\n$2" "$3"')


def altered(name: str, old: str, new: str) -> dict[str, bytes]:
    """The agent's sources with a piece of one file replaced."""
    files = bundle.agent_files()
    source = files[name].decode()
    assert old in source, f"{name} no longer has {old!r}"
    return {**files, name: source.replace(old, new).encode()}


def start(
    verb: str,
    *,
    path: str | None = None,
    timeout_s: int = 60,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.Popen[str]:
    """The agent, waiting for its input; `path` goes before PATH."""
    found = os.environ["PATH"]
    return subprocess.Popen(
        ["/bin/sh", "-c", bundle.command(verb, timeout_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"HOME": "/nonexistent", "PATH": f"{path}:{found}" if path else found, **(env or {})},
        **options,
    )


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def ask(
    verb: str,
    request: Any,
    *,
    files: Mapping[str, bytes] | None = None,
    given: str | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """All lines of an answer; `given` replaces the whole standard input, `files` the agent."""
    if given is None:
        given = bundle.payload(request, verb)
        if files is not None:
            given = f"{bundle.program_line(files)}\n{json.dumps(request)}\n"
    process = start(verb, **options)
    out, err = process.communicate(given, timeout=120)
    assert "Traceback" not in err, err
    return lines_of(out)


def probe(request: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """The document a probe answers with."""
    lines = ask("probe", {"deadline_s": 20, **request}, **options)
    assert lines[-1] == {"end": "probe", "ok": True}
    return dict(lines[0]["state"])
