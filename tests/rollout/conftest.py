"""Rollout checks: prove a fleet from outside, with the inventory and data that deployed it.

    pytest tests/rollout --inventory inventory/lab.py [--limit r740-01] [--full]

The hosts and their data come from ``pyinfra debug-inventory``, the desired state from `rules`;
what is there is read by testinfra over ssh, never through the agent that made it so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import testinfra
from testinfra.host import Host

from facts.controller import inputs
from rules.compose import desired_state
from rules.desired import Desired
from rules.schema import HostConfig
from rules.validate import validated

ROOT = Path(__file__).resolve().parent.parent.parent
HANDED_DOWN = "VOLTFLEET_ROLLOUT_HOSTS"  # the inventory, for the workers of this run
MOST_WORKERS = 8
_desired: dict[tuple[str, str], Desired] = {}  # by host and system: every check asks


@dataclass(frozen=True)
class Target:
    """One host of the inventory with its data and desired state (before knowing its system)."""

    name: str
    groups: tuple[str, ...]
    data: dict[str, Any] = field(repr=False)

    @property
    def config(self) -> HostConfig:
        return validated(self.data)

    def desired(self, system: dict[str, Any] | None = None) -> Desired:
        key = (self.name, json.dumps(system))
        if key not in _desired:
            config = self.config
            _desired[key] = desired_state(config, inputs(config), system)
        return _desired[key]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--inventory", required=False, help="a pyinfra inventory file")
    parser.addoption("--limit", default="*", help="only hosts whose name or group matches")
    parser.addoption(
        "--full", action="store_true", help="hash every byte of the models, not only their sizes"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Learn the hosts, and check them beside each other: a worker each, at most eight."""
    if hasattr(config, "workerinput"):
        return
    inventory = config.getoption("--inventory")
    if not inventory:
        raise pytest.UsageError(
            "say which hosts: pytest tests/rollout --inventory inventory/lab.py"
        )
    pyinfra = Path(sys.executable).with_name("pyinfra")
    done = subprocess.run(
        [str(pyinfra), "--json", inventory, "debug-inventory"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line and not line.startswith("-->")]
        raise pytest.UsageError("; ".join(said) or f"inventory {inventory} cannot be read")
    # A file, not the variable itself: an environment of more than 128 KiB starts no process.
    handle, path = tempfile.mkstemp(prefix="voltfleet-rollout-", suffix=".json")  # mode 0600
    with os.fdopen(handle, "w") as stream:
        stream.write(done.stdout)
    os.environ[HANDED_DOWN] = path
    hosts = len(_targets(config.getoption("--limit")))
    if config.option.numprocesses is None and hosts > 1:
        config.option.numprocesses = min(MOST_WORKERS, hosts)
        config.option.dist = "loadgroup"


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and HANDED_DOWN in os.environ:
        Path(os.environ.pop(HANDED_DOWN)).unlink(missing_ok=True)


@lru_cache(maxsize=4)
def _targets(limit: str) -> tuple[Target, ...]:
    found = [
        Target(entry["name"], tuple(entry["groups"]), entry["data"])
        for entry in json.loads(Path(os.environ[HANDED_DOWN]).read_text())
        if fnmatch(entry["name"], limit) or limit in entry["groups"]
    ]
    if not found:
        raise pytest.UsageError(f"--limit {limit}: no host of the inventory matches")
    return tuple(found)


# A check takes `host` and at most one of these; it runs once per thing of each host.
THINGS = {
    "package": lambda desired: [(item.name, item) for item in desired.packages],
    "managed_file": lambda desired: [(item.path, item.path) for item in desired.files],
    "directory": lambda desired: [(item.path, item) for item in desired.directories],
    "link": lambda desired: [(item.path, item.path) for item in desired.links],
    "sysctl": lambda desired: [(item.key, item) for item in desired.sysctls],
    "user": lambda desired: [(item.name, item) for item in desired.users],
    "unit": lambda desired: [(item.name, item) for item in desired.units],
    "model": lambda desired: [(item.name, item) for item in desired.models],
    "instance": lambda desired: [(item.name, item) for item in desired.instances],
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" not in metafunc.fixturenames:
        return
    kind = next((kind for kind in THINGS if kind in metafunc.fixturenames), None)
    cases = []
    for target in _targets(metafunc.config.getoption("--limit")):
        group = pytest.mark.xdist_group(target.name)
        if kind is None:
            cases.append(pytest.param(target, id=target.name, marks=group))
            continue
        for name, thing in THINGS[kind](target.desired()):
            cases.append(pytest.param(target, thing, id=f"{target.name}:{name}", marks=group))
    metafunc.parametrize(["target"] if kind is None else ["target", kind], cases)


@pytest.fixture(scope="session")
def connections(ssh_folder: Path) -> Iterator[dict[str, Host]]:
    """Open connections by host name: one ssh login per host and worker, shared by its checks."""
    opened: dict[str, Host] = {}
    yield opened
    for name, host in opened.items():
        if name != "@local":
            command = ["ssh", "-F", host.backend.ssh_config, "-O", "exit", name]
            subprocess.run(command, capture_output=True, check=False)


@pytest.fixture(scope="session")
def ssh_folder() -> Iterator[Path]:
    """A folder with a short name, for sockets: their paths are limited to 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="vfr-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def host(target: Target, ssh_folder: Path, connections: dict[str, Host]) -> Host:
    """testinfra's host over ssh, as the inventory says it is reached."""
    if target.name not in connections:
        settings = ssh_folder / f"{target.name.replace('/', '_')}.config"
        settings.write_text(_ssh_config(target, ssh_folder))
        sudo = "?sudo=true" if target.data.get("_sudo") else ""
        if target.name == "@local":
            connections[target.name] = testinfra.get_host("local://")
        else:
            connections[target.name] = testinfra.get_host(
                f"ssh://{target.name}{sudo}", ssh_config=str(settings), controlpersist=60
            )
    return connections[target.name]


def _ssh_config(target: Target, folder: Path) -> str:
    data = target.data
    options = {
        "HostName": data.get("ssh_hostname", target.name),
        "Port": data.get("ssh_port"),
        "User": data.get("ssh_user"),
        "IdentityFile": data.get("ssh_key"),
        "UserKnownHostsFile": data.get("ssh_known_hosts_file"),
        "StrictHostKeyChecking": data.get("ssh_strict_host_key_checking", "yes"),
        "ControlPath": folder / "%C",
        "BatchMode": "yes",
        "ConnectTimeout": 10,
    }
    lines = [f"  {key} {value}" for key, value in options.items() if value]
    own = Path(data.get("ssh_config_file") or "~/.ssh/config").expanduser()
    # the first value of an option counts: the inventory's, then the person's own configuration
    return "\n".join([f"Host {target.name}", *lines, "Host *", f"Include {own}", ""])


@pytest.fixture
def desired(target: Target, host: Host) -> Desired:
    """The host's desired state, with its operating system read from the host itself."""
    return target.desired(_system(target.name, host))


@lru_cache(maxsize=MOST_WORKERS)
def _system(name: str, host: Host) -> dict[str, Any]:
    release = dict(
        line.split("=", 1)
        for line in host.file("/etc/os-release").content_string.splitlines()
        if "=" in line
    )
    return {
        "id": release["ID"].strip('"'),
        "version": release.get("VERSION_ID", "").strip('"'),
        "machine": host.check_output("uname -m"),
    }
