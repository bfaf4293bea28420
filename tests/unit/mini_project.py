"""A small project with this repository's glue, rules and config.py, for running the real pyinfra.

Hosts are pyinfra's ``@fake`` ones, this machine (``@local``, which only writes below the project)
and ssh to a port where nothing listens.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYINFRA = str(Path(sys.executable).with_name("pyinfra"))
LIMIT_S = 120  # no run here takes seconds; a hung one must not hang the tests

FAKE = '{"fake_delay": 0, "fake_delay_jitter": 0}'
FILES = {
    "inventory/three.py": (
        f'hosts = [("@fake/one", {FAKE}), ("@fake/two", {{**{FAKE}, "fake_responses": '
        f'{{"false": {{"success": False}}}}}}), ("@fake/three", {FAKE})]\n'
    ),
    "inventory/dead.py": (
        'hosts = [("dead", {"ssh_hostname": "127.0.0.1", "ssh_port": 1, "ssh_user": "x"})]\n'
    ),
    "inventory/mixed.py": (
        'hosts = [("dead", {"ssh_hostname": "127.0.0.1", "ssh_port": 1, "ssh_user": "x"}),\n'
        '         ("keyless", {"ssh_hostname": "127.0.0.1", "ssh_port": 1, "ssh_key": "/none"}),\n'
        '         "@local"]\n'
    ),
    "inventory/here.py": 'hosts = ["@local"]\n',
    "operations/__init__.py": "",
    "operations/things.py": '''\
"""Operations that fail on the host named @fake/two in the way and the stage asked for."""

import pyinfra
from glue.hosts import HostFailure
from pyinfra.api import FunctionCommand, operation
from pyinfra.api.exceptions import OperationError


def _in_function(state, host):
    raise HostFailure("two broke inside a function")


@operation()
def run(how: str = "", stage: str = "both", command: str = "echo hello"):
    now = "execute" if pyinfra.state.is_executing else "prepare"
    if pyinfra.host.name.endswith("two") and stage in ("both", now):
        if how == "failure":
            raise HostFailure("two is broken, expected whole; repair it")
        if how == "operation":
            raise OperationError("two had an operation error")
        if how == "bug":
            raise ValueError("two met a bug")
        if how == "function":
            yield FunctionCommand(_in_function, (), {})
            return
        if how == "command":
            yield "false"
            return
    if how == "show":
        yield f"echo timeout={pyinfra.host.data.probe_timeout_s} > shown"
        return
    yield command


@operation()
def nothing():
    pyinfra.host.noop("as desired")
    return
    yield
''',
    "facts/__init__.py": "",
    "facts/broken.py": """\
import pyinfra
from pyinfra.api import FactBase


class Broken(FactBase):
    def command(self):
        if pyinfra.host.name.endswith("two"):
            raise ValueError("no command for two")
        return "echo fine"
""",
    "deploy.py": """\
import os

import pyinfra
from glue import callbacks
from glue.hosts import HostFailure
from operations import things
from rules.validate import Invalid, validated


try:
    validated(pyinfra.host.data.dict())
except Invalid as error:
    raise HostFailure("; ".join(error.problems)) from error


def changed(host):
    print(f"changed {host.name}")


def ended(host):
    print(f"ended {host.name}")


if pyinfra.host.name == "@fake/one":
    callbacks.on_change(changed)
    callbacks.on_disconnect(ended)
if os.environ.get("RAISE") and pyinfra.host.name.endswith("two"):
    raise {"failure": HostFailure, "bug": KeyError}[os.environ["RAISE"]]("two stops in deploy.py")
things.run(
    name="Things",
    how=os.environ.get("HOW", ""),
    stage=os.environ.get("STAGE", "both"),
    command=os.environ.get("COMMAND", "echo hello"),
)
things.nothing(name="Nothing")
""",
    "quiet.py": """\
from operations import things

things.nothing(name="Nothing")
""",
}


@dataclass(frozen=True)
class Result:
    """What a run left behind."""

    code: int
    out: str
    err: str

    @property
    def all(self) -> str:
        return self.out + self.err


class Project:
    """A project folder in which pyinfra can be run."""

    def __init__(self, folder: Path, *, glued: bool = True) -> None:
        self.folder = folder
        for name, text in FILES.items():
            self.write(name, text)
        for name in ("glue", "rules"):
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        (folder / "group_data").mkdir()
        shutil.copy(ROOT / "group_data" / "all.py", folder / "group_data" / "all.py")
        if glued:
            shutil.copy(ROOT / "config.py", folder / "config.py")

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def environment(self, extra: dict[str, str]) -> dict[str, str]:
        kept = {key: os.environ[key] for key in ("PATH", "LANG", "LC_ALL") if key in os.environ}
        return {**kept, "HOME": str(self.folder), **extra}

    def run(self, *arguments: str, stdin: str | None = "", **environment: str) -> Result:
        """Run pyinfra; `stdin` None closes standard input altogether."""
        command = [PYINFRA, *arguments]
        if stdin is None:
            command = ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *command]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(environment),
            input=stdin or "",
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def interrupted(self, marker: str, *arguments: str, **environment: str) -> Result:
        """Run pyinfra and send it SIGINT once the file `marker` is there."""
        process = subprocess.Popen(
            [PYINFRA, *arguments],
            cwd=self.folder,
            env=self.environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + LIMIT_S
            while not (self.folder / marker).exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=LIMIT_S)
        finally:
            if process.poll() is None:
                process.kill()
        return Result(process.returncode, out, err)
