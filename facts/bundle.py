"""The agent as it travels: a small command and everything else on standard input.

The command is the same for every host and holds nothing secret; one argument is limited to
128 KiB on Linux (MAX_ARG_STRLEN), so the program goes as the first line of standard input, the
request as the second, and whatever a verb reads further after that.
"""

from __future__ import annotations

import ast
import base64
import json
import shlex
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

FILES = Path(__file__).resolve().parent.parent / "files"

# Exit status of a shell or of Python itself when the interpreter cannot start at all; the agent
# never ends with one of these.
_NO_START = "1|126|127"


@cache
def _agent_files() -> tuple[tuple[str, bytes], ...]:
    folder = FILES / "agent"
    return tuple(
        (path.relative_to(folder).as_posix(), path.read_bytes())
        for path in sorted(folder.rglob("*.py"))
    )


def agent_files() -> dict[str, bytes]:
    """The agent's sources by path inside its package (``probe.py``), sorted."""
    return dict(_agent_files())


def program_line(files: Mapping[str, bytes]) -> str:
    """Sources as one line: ``agent:`` and JSON {module: [is a package, source]}, deflated, base64.

    By its beginning it is told from a line that came before it: a password that sudo, on this
    host, did not ask for.
    """
    modules: dict[str, tuple[bool, str]] = {}
    for name, content in sorted(files.items()):
        parts = ["agent", *name.removesuffix(".py").split("/")]
        package = parts[-1] == "__init__"
        modules[".".join(parts[:-1] if package else parts)] = (package, content.decode())
    packed = zlib.compress(json.dumps(modules).encode(), 9)
    return f"agent:{base64.b64encode(packed).decode('ascii')}"


def needed_by(
    verb: str, files: Mapping[str, bytes], further: tuple[str, ...] = ()
) -> dict[str, bytes]:
    """The sources that a verb can come to import, read off their import statements.

    `further` are modules that the verb finds by name for this request.
    Only for the verbs that run on every host in every run: the rest of the agent is several times
    as large. The others get everything (``apply`` finds its modules by name).
    """
    if verb not in ("probe", "lease"):
        return dict(files)
    needed = {"__init__.py", "__main__.py"}
    reached = [f"{verb}.py", "wire.py", *further]
    while reached:
        name = reached.pop()
        if name in needed or name not in files:
            continue
        needed.add(name)
        for node in ast.walk(ast.parse(files[name])):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                modules = [node.module] if node.module else [alias.name for alias in node.names]
                reached += [f"{module.replace('.', '/')}.py" for module in modules]
    return {name: content for name, content in files.items() if name in needed}


@cache
def _program(verb: str, further: tuple[str, ...]) -> str:
    return program_line(needed_by(verb, agent_files(), further))


def payload(request: Mapping[str, Any], verb: str = "") -> str:
    """What goes on standard input: the program's line and the request's, newline at the end.

    With a `verb` the program is only what that verb needs; without one it runs any verb.
    """
    # the larger half of a probe, for hosts whose data names CUDA or a driver
    further = ("platform.py",) if verb == "probe" and "platform" in request else ()
    return f"{_program(verb, further)}\n{json.dumps(request, separators=(',', ':'))}\n"


def command(verb: str, timeout_s: int) -> str:
    """The shell command (POSIX sh) that runs a verb of the agent on a host.

    It ends by SIGKILL after `timeout_s` seconds where ``timeout`` exists (0: never). On a host
    without a python3 that can run the agent it answers ``{"bootstrap": reason}`` and an end line,
    after reading as much of its input as the agent would, so that writing to it does not fail.
    """
    return _command(verb, int(timeout_s))


@cache
def _command(verb: str, timeout_s: int) -> str:
    boot = shlex.quote(_squeezed((FILES / "boot.py").read_text()))
    # -I: nothing of the user's environment; -S: no site-packages; -B: no __pycache__ written
    # Only a probe can do without python3: what it learned is that a bootstrap is needed.
    ok = json.dumps(verb == "probe")
    return "\n".join(
        (
            "lacks() {",
            "read -r line",
            "read -r line",
            """printf '{"bootstrap": "%s"}\\n' "$1\"""",
            f"""printf '{{"end": "{verb}", "ok": {ok}, "message": "%s"}}\\n' "$1\"""",
            "exit 0",
            "}",
            "command -v python3 >/dev/null 2>&1 || lacks 'python3 is not installed'",
            f"set -- python3 -ISBc {boot} {verb}",
            f"bound='timeout -s KILL {timeout_s}'",
            '$bound true 2>/dev/null && set -- $bound "$@"',
            '"$@"',
            "status=$?",
            f"case $status in {_NO_START}) lacks 'python3 does not start';; esac",
            "exit $status",
        )
    )


def _squeezed(source: str) -> str:
    """Python source without its docstring, comments and empty lines."""
    body = source.split('"""', 2)[2]
    lines = (line.split("  # noqa")[0] for line in body.splitlines())
    return "\n".join(line for line in lines if line.strip() and not line.startswith("#"))
