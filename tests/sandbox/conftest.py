"""A lab of its own for the deploy tests, beside any other that is up, and how runs are made.

What is expensive to make (base image, releases, sources) is shared with the usual cache; hosts,
addresses, keys and the hub are the tests' own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandbox import settings
from sandbox.client import REPOSITORY, Lab

NAME = os.environ.get("VOLTFLEET_TESTS_NAME", "vfd")
SUBNET = os.environ.get("VOLTFLEET_TESTS_SUBNET", "198.18.79.0/24")
SHARED = ("base", "apt", "releases")
REPORT = REPOSITORY / ".voltfleet" / "last-run.json"
BIN = Path(sys.executable).parent

BARE, ROOT_LOGIN, SUDO_LOGIN = "dock-01", "r740-01", "smc-01"
HOSTS = (BARE, ROOT_LOGIN, SUDO_LOGIN)


@dataclass(frozen=True)
class Run:
    """One run of pyinfra: exit code, what it printed, what its report says."""

    code: int
    out: str
    err: str
    hosts: dict[str, dict[str, Any]]

    def changed(self, host: str) -> set[str]:
        """Ids of the changes that were made on a host."""
        return set(self.hosts[host]["changed"])

    @property
    def states(self) -> dict[str, str]:
        """State of every host at the end of the run."""
        return {name: entry["state"] for name, entry in self.hosts.items()}


class Fleet:
    """The lab and the product's command line on it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def start(self, *words: str, yes: bool = True, **more: Any) -> subprocess.Popen[str]:
        """Start ``pyinfra inventory/sandbox.py deploy.py`` with further words."""
        REPORT.unlink(missing_ok=True)
        command = [str(BIN / "pyinfra"), *(["-y"] if yes else []), *words]
        return subprocess.Popen(
            [*command, "inventory/sandbox.py", "deploy.py"],
            cwd=REPOSITORY, env=self.lab.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            **{"stdin": subprocess.DEVNULL, **more},
        )  # fmt: skip

    def deploy(self, *words: str, yes: bool = True, timeout: float = 1800, **more: Any) -> Run:
        """Run it to its end."""
        answer = more.pop("answer", None)
        if answer is not None:
            more["stdin"] = subprocess.PIPE
        process = self.start(*words, yes=yes, **more)
        try:
            out, err = process.communicate(input=answer, timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        hosts = json.loads(REPORT.read_text())["hosts"] if REPORT.exists() else {}
        return Run(process.returncode, out, err, hosts)

    def rollout(self, *words: str) -> dict[str, str]:
        """Run the rollout checks; outcome by check (``test_x[host:thing]``)."""
        report = REPOSITORY / ".voltfleet" / "rollout.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "tests/rollout", "-p", "no:cacheprovider"]
        command += ["--inventory", "inventory/sandbox.py", f"--junitxml={report}", *words]
        done = subprocess.run(
            command, cwd=REPOSITORY, env=self.lab.environment, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=900,
        )  # fmt: skip
        assert report.exists(), f"no rollout report: {done.stdout[-2000:]} {done.stderr[-2000:]}"
        from xml.etree import ElementTree

        cases = ElementTree.parse(report).getroot().iter("testcase")
        found = {}
        for case in cases:
            tags = {child.tag: child.get("message", "") for child in case}
            bad = tags.get("failure", tags.get("error", tags.get("skipped")))
            found[str(case.get("name"))] = "passed" if bad is None else bad
            if "skipped" in tags:
                found[str(case.get("name"))] = "skipped"
        return found

    def rollout_failures(self, *words: str) -> set[str]:
        """The rollout checks that fail; those that wait for another's cause are not among them."""
        found = self.rollout(*words)
        return {name for name, result in found.items() if result not in ("passed", "skipped")}


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """Three hosts up, the hub filled: one with root login, one with sudo, one without python3."""
    if os.geteuid() != 0:
        pytest.fail("these tests boot hosts and need root; `make check` does not")
    usual = settings.load()
    cache = usual.cache / "tests"
    cache.mkdir(parents=True, exist_ok=True)
    for name in SHARED:
        (usual.cache / name).mkdir(exist_ok=True)
        if not (cache / name).is_symlink():
            (cache / name).symlink_to(usual.cache / name)
    lab = Lab(
        {
            "VOLTFLEET_CACHE": str(cache),
            "VOLTFLEET_SANDBOX_NAME": NAME,
            "VOLTFLEET_SANDBOX_SUBNET": SUBNET,
        }
    )
    lab.command("down")
    lab.command("up", "--hosts", "3", "--bare", "1")
    lab.command("hub", "tiny")
    lab.command("hub", "sources")
    yield Fleet(lab)
    if not os.environ.get("VOLTFLEET_KEEP_LAB"):
        lab.command("down")


@pytest.fixture(scope="session")
def converged(fleet: Fleet) -> Fleet:
    """The fleet after a deploy that went well."""
    run = fleet.deploy()
    assert run.code == 0, run.err[-4000:]
    return fleet
