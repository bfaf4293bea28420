"""The command line as people type it, on real hosts: none of its endings hides a failure."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sandbox import cgroups
from sandbox.client import REPOSITORY
from tests.sandbox.conftest import BARE, BIN, HOSTS, ROOT_LOGIN, SUDO_LOGIN, Fleet, Run
from tests.sandbox.support import (
    SYSCTL_CHANGE,
    SYSCTL_FILE,
    converges,
    edit,
    failure,
    no_traceback,
)

HOST = ROOT_LOGIN
KEY_FILE = "/etc/voltfleet/instances/tiny.key"
EDITED = f"grep -c 'edited by hand' {SYSCTL_FILE} || true"


def as_typed(fleet: Fleet, how: str, *words: str) -> Run:
    """The literal command, answered with Enter, with standard input closed, or told not to ask."""
    if how == "enter":
        return fleet.deploy(*words, yes=False, answer="\n")
    if how == "closed":
        return fleet.deploy(*words, yes=False, preexec_fn=lambda: os.close(0))
    return fleet.deploy(*words)


@pytest.mark.parametrize("how", ["enter", "closed"])
def test_the_question(converged: Fleet, how: str) -> None:
    edit(converged, HOST)
    run = as_typed(converged, how)
    no_traceback(run)
    if how == "enter":
        assert run.code == 0, run.err[-3000:]
        assert run.states == {name: "changed" if name == HOST else "no change" for name in HOSTS}
    else:
        assert run.code == 1
        assert "nothing was changed: nobody answered the question; run with -y" in run.err
        assert run.states[HOST] == "planned"
        assert converged.lab.sh(HOST, EDITED) == "1"
        converges(converged)


def test_nothing_to_change_asks_nothing(converged: Fleet) -> None:
    run = as_typed(converged, "closed")
    no_traceback(run)
    assert run.code == 0, run.err[-3000:]
    assert "Nothing to change" in run.err
    assert set(run.states.values()) == {"no change"}


@pytest.fixture
def dead(converged: Fleet) -> Iterator[str]:
    """A host that refuses connections: at once, unlike one without power (see test_faults)."""
    converged.lab.sh(SUDO_LOGIN, "systemctl stop ssh.socket ssh.service")
    yield SUDO_LOGIN
    converged.lab.sh(SUDO_LOGIN, "systemctl start ssh.service")


def test_one_of_three_hosts_is_dead(converged: Fleet, dead: str) -> None:
    for how in ("enter", "closed", "-y"):
        edit(converged, HOST)
        run = as_typed(converged, how)
        assert "can't be reached" in failure(run, dead)
        assert run.states[BARE] == "no change"
        assert "continue?" not in run.err
        if how == "closed":
            assert run.states[HOST] == "planned"
        else:
            assert run.changed(HOST) == {SYSCTL_CHANGE}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--limit", "nowhere"], "--limit nowhere: matches no host and no group"),
        (
            ["--data", "model_rot=/srv"],
            "--data model_rot = '/srv': no such variable, did you mean model_root?",
        ),
        (["--data", "lease_policy=maybe"], "lease_policy: found 'maybe', expected"),
    ],
)
def test_mistakes_stop_before_any_connection(
    converged: Fleet, words: list[str], sentence: str
) -> None:
    marks = {name: converged.lab.journal_mark(name) for name in HOSTS}
    run = converged.deploy(*words)
    no_traceback(run)
    assert run.code == 2, (run.code, run.err)
    assert sentence in run.err
    for name in HOSTS:
        assert converged.lab.traffic(name, marks[name]).connections == 0


def test_missing_inventory(fleet: Fleet) -> None:
    run = subprocess.run(
        [BIN / "pyinfra", "-y", "inventory/sanbox.py", "deploy.py"],
        cwd=REPOSITORY, env=fleet.lab.environment, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    assert run.returncode == 2
    assert "Traceback" not in run.stdout + run.stderr
    assert "inventory/sanbox.py: no such file; did you mean inventory/sandbox.py?" in run.stderr


# --- what is shown, and what never ---------------------------------------------------------------


@contextmanager
def process_lists(fleet: Fleet, host: str) -> Iterator[set[str]]:
    """The command lines of all processes of a host, as `ps` there shows them, while it lasts."""
    seen: set[str] = set()
    over = threading.Event()
    group = cgroups.host(fleet.lab.settings, host)

    def look() -> None:
        while not over.wait(0.01):
            for pid in cgroups.processes(group):
                with suppress(OSError):
                    seen.add(Path(f"/proc/{pid}/cmdline").read_text(errors="replace"))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def test_difference_is_shown_and_the_key_never(converged: Fleet) -> None:
    key = (converged.lab.settings.keys / "api_key").read_text().strip()
    forms = [key, base64.b64encode(key.encode()).decode().rstrip("=")[:-1]]
    edit(converged, HOST)
    converged.lab.sh(HOST, f"rm {KEY_FILE}")
    only = ("--limit", HOST)

    dry = converged.deploy("--dry", "--diff", *only, yes=False)
    assert dry.code == 0, dry.err[-3000:]
    assert "-# edited by hand" in dry.err
    assert f"write file {KEY_FILE}: absent -> the secret" in dry.err
    assert converged.lab.sh(HOST, EDITED) == "1"

    with process_lists(converged, HOST) as seen:
        run = converged.deploy("-vvv", "--debug", "--diff", *only)
    assert run.code == 0, run.err[-3000:]
    assert run.changed(HOST) == {SYSCTL_CHANGE, f"file:{KEY_FILE}"}
    assert any("apply" in words for words in seen), "the agent was not seen at work"

    readable = converged.lab.sh(
        HOST,
        "find / -xdev -type f -perm -o=r -size -2M -print0 | "
        f"xargs -0 grep -lF -f {KEY_FILE} || true",
    )
    assert readable == ""
    assert converged.lab.sh(HOST, f"stat -c '%a %U:%G' {KEY_FILE}") == "640 root:voltfleet"
    for form in forms:
        for text in (dry.out, dry.err, run.out, run.err, *seen):
            assert form not in text
    journal = converged.lab.sh(HOST, "journalctl --quiet --no-pager -o cat -b")
    assert key not in journal
