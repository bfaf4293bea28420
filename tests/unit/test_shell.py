"""A script on a host: its status and lines, its bound, and sudo's password on sudo's input."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyinfra.api import Config, Inventory, State
from pyinfra.context import ctx_state

from facts import remote, shell
from tests.unit.act_support import calls, program

# A sudo that wants a password on its standard input, as with -S, and then does as it is told.
SUDO = """
case "$*" in *" -S "*) ;; *) echo 'sudo: a password is required' >&2; exit 1;; esac
read -r word
[ "$word" = correct-horse ] || { echo 'sudo: 1 incorrect password attempt' >&2; exit 1; }
while [ "$1" != sh ]; do shift; done
exec "$@"
"""


@pytest.fixture
def host() -> Iterator[Any]:
    inventory = Inventory((["@local"], {}))
    state = State(inventory, Config())
    ctx_state.set(state)
    yield inventory.get_host("@local")
    ctx_state.reset()


def test_its_status_and_lines(host: Any) -> None:
    seen: list[str] = []
    script = "echo one; echo; echo two >&2; printf 'three'; exit 7"
    answer = shell.shell(host, "a script", script, timeout_s=60, on_line=seen.append)
    assert answer == (7, ["one", "two", "three"])
    assert seen == ["one", "two", "three"]


def test_its_input_is_empty_and_quotes_survive(host: Any) -> None:
    script = "cat; printf '%s ' \"it's\" '$HOME' 'a\\b' \"`echo x`\""
    assert shell.shell(host, "a script", script, timeout_s=60) == (0, ["it's $HOME a\\b x "])


def test_it_is_ended_when_its_time_is_up(host: Any) -> None:
    script = "echo begun; exec sleep 1000"
    assert shell.shell(host, "a script", script, timeout_s=1) == (124, ["begun"])


def test_it_runs_where_there_is_no_timeout_command(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", shell.command("echo x; exit 3", 5)],
        env={"PATH": str(program(tmp_path, "sh", 'exec /bin/sh "$@"').parent)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = [line for line in done.stdout.splitlines() if line]
    assert lines == ["x", f"{shell.END}3"]


def test_without_its_end_nothing_counts(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "command", lambda script, timeout_s: script)
    with pytest.raises(remote.RemoteError, match="the connection was lost during a script"):
        shell.shell(host, "a script", "echo one", timeout_s=60)


@pytest.mark.parametrize(
    ("password", "sentence"),
    [("correct-horse", ""), ("wrong", "refused the password"), (None, "asked for a password")],
)
def test_the_password_of_sudo_is_in_no_argument(
    host: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, password: str | None, sentence: str
) -> None:
    program(tmp_path, "sudo", SUDO)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    given = {"_sudo": True, **({"_sudo_password": password} if password else {})}
    host.current_op_global_arguments = given
    if sentence:
        with pytest.raises(remote.RemoteError, match=sentence):
            shell.shell(host, "a script", "echo root", timeout_s=60)
    else:
        assert shell.shell(host, "a script", "echo root", timeout_s=60) == (0, ["root"])
    said = "\n".join(calls(tmp_path, "sudo"))
    assert "echo root" in said
    assert str(password) not in said
