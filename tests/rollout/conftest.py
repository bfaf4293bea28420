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
        config = self.config
        return desired_state(config, inputs(config), system)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--inventory", required=False, help="a pyinfra inventory file")
    parser.addoption("--limit", default="*", help="only hosts whose name or group matches")
    parser.addoption(
        "--full", action="store_true", help="hash every byte of the models, not only their sizes"
    )


def pytest_configure(config: pytest.Config) -> None:
    if HANDED_DOWN in os.environ:
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
        raise pytest.UsageError(f"inventory {inventory}: {done.stderr.strip().splitlines()[-1]}")
    os.environ[HANDED_DOWN] = done.stdout


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        os.environ.pop(HANDED_DOWN, None)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return min(MOST_WORKERS, len(_targets(config.getoption("--limit"))))


@lru_cache(maxsize=4)
def _targets(limit: str) -> tuple[Target, ...]:
    found = [
        Target(entry["name"], tuple(entry["groups"]), entry["data"])
        for entry in json.loads(os.environ[HANDED_DOWN])
        if fnmatch(entry["name"], limit) or limit in entry["groups"]
    ]
    if not found:
        raise pytest.UsageError(f"--limit {limit}: no host of the inventory matches")
    return tuple(found)


# A check takes `host` and at most one of these; it runs once per thing of each host.
THINGS = {
    "package": lambda desired: [(item.name, item) for item in desired.packages],
    "managed_file": lambda desired: [(item.path, item.path) for item in desired.files],
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
def connections(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Host]]:
    """Open connections by host name: one per host and worker, kept for the run."""
    yield {}


@pytest.fixture
def host(
    target: Target, connections: dict[str, Host], tmp_path_factory: pytest.TempPathFactory
) -> Host:
    """testinfra's host over ssh, as the inventory says it is reached."""
    if target.name not in connections:
        settings = tmp_path_factory.mktemp("ssh") / "config"
        settings.write_text(_ssh_config(target))
        sudo = "?sudo=true" if target.data.get("_sudo") else ""
        if target.name == "@local":
            connections[target.name] = testinfra.get_host("local://")
        else:
            connections[target.name] = testinfra.get_host(
                f"ssh://{target.name}{sudo}", ssh_config=str(settings), controlpersist=60
            )
    return connections[target.name]


def _ssh_config(target: Target) -> str:
    data = target.data
    options = {
        "HostName": data.get("ssh_hostname", target.name),
        "Port": data.get("ssh_port"),
        "User": data.get("ssh_user"),
        "IdentityFile": data.get("ssh_key"),
        "UserKnownHostsFile": data.get("ssh_known_hosts_file"),
        "StrictHostKeyChecking": data.get("ssh_strict_host_key_checking", "yes"),
        "BatchMode": "yes",
        "ConnectTimeout": 10,
    }
    lines = [f"  {key} {value}" for key, value in options.items() if value]
    return "\n".join([f"Host {target.name}", *lines, ""])


@pytest.fixture
def desired(target: Target, host: Host) -> Desired:
    """The host's desired state, with its operating system read from the host itself."""
    release = dict(
        line.split("=", 1)
        for line in host.file("/etc/os-release").content_string.splitlines()
        if "=" in line
    )
    system = {
        "id": release["ID"].strip('"'),
        "version": release.get("VERSION_ID", "").strip('"'),
        "machine": host.check_output("uname -m"),
    }
    return target.desired(system)
