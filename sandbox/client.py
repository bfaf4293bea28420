"""The lab for tests: look at hosts and break them, by other means than the code under test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox import faults, lab, machine, state
from sandbox.errors import SandboxError
from sandbox.hub import cli as hub
from sandbox.hub.faults import Fault
from sandbox.settings import Settings, load
from sandbox.shell import environment

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Traffic:
    """What sshd of a host logged in a while: logins, and commands or subsystems started."""

    connections: int
    sessions: list[str]


@dataclass
class Lab:
    """A lab as the environment names it, with ``extra`` variables on top.

    Commands run as processes of their own (``python -m sandbox``); looking happens here.
    """

    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a process that works with this lab (pyinfra, pytest)."""
        return {**os.environ, **self.extra, "PYTHONPATH": str(REPOSITORY)}

    @property
    def settings(self) -> Settings:
        """Settings of this lab."""
        return load(self.environment)

    def command(
        self, *words: str, check: bool = True, timeout: float = 900
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python -m sandbox WORDS``. Raises SandboxError with its stderr on failure."""
        done = subprocess.run(
            [sys.executable, "-m", "sandbox", *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=self.environment,
            cwd=REPOSITORY,
            timeout=timeout,
        )
        if check and done.returncode != 0:
            raise SandboxError(f"`sandbox {' '.join(words)}` failed: {done.stderr.strip()}")
        return done

    def status(self) -> dict[str, Any]:
        """What ``status --json`` prints."""
        return lab.status(self.settings)

    def host(self, name: str) -> state.Host:
        """One host's record."""
        return state.require_host(self.settings, name)[1]

    def run(
        self, name: str, *command: str, check: bool = True, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root in a host, without ssh and without the network."""
        done = subprocess.run(
            machine.inside(self.settings, name, command),
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            env=environment(),
            timeout=timeout,
        )
        if check and done.returncode != 0:
            raise SandboxError(f"{name}: {' '.join(command)}: {done.stderr.strip()}")
        return done

    def sh(self, name: str, script: str, check: bool = True) -> str:
        """Run a shell script as root in a host; its output without the last newline."""
        return self.run(name, "sh", "-c", script, check=check).stdout.rstrip("\n")

    def ssh_command(self, name: str, *command: str) -> list[str]:
        """Command line that reaches a host as inventory/sandbox.py does."""
        host = self.host(name)
        options = [
            f"UserKnownHostsFile={self.settings.known_hosts}",
            "GlobalKnownHostsFile=/dev/null",
            "StrictHostKeyChecking=yes",
            "IdentitiesOnly=yes",
            "BatchMode=yes",
            "ConnectTimeout=5",
            "LogLevel=ERROR",
        ]
        words = ["ssh", "-F", "none", "-i", str(self.settings.login_key)]
        words += [word for option in options for word in ("-o", option)]
        return [*words, f"{host.user}@{host.address}", *command]

    def ssh(
        self, name: str, *command: str, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command through ssh; exit code 255 is ssh's own failure."""
        return subprocess.run(
            self.ssh_command(name, *command),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
        )

    def break_(self, name: str, what: str, *arguments: str) -> None:
        """Break one thing (or mend it), as ``python -m sandbox break`` does."""
        faults.apply(self.settings, self.host(name), what, list(arguments))

    def journal_mark(self, name: str) -> str:
        """The present end of a host's journal, for ``traffic``."""
        output = self.run(name, "journalctl", "-n", "0", "--show-cursor", "--quiet").stdout
        return output.partition("-- cursor: ")[2].strip()

    def traffic(self, name: str, since: str) -> Traffic:
        """Logins and commands that sshd logged after a mark.

        The lines come from processes in the ssh unit and in user sessions, so they are chosen by
        program name (sshd-session from OpenSSH 9.8 on).
        """
        names = ["-t", "sshd", "-t", "sshd-session"]
        words = ["journalctl", "--quiet", "-o", "cat", "--after-cursor", since, *names]
        lines = self.run(name, *words).stdout.splitlines()
        return Traffic(
            connections=sum(line.startswith("Accepted publickey ") for line in lines),
            sessions=[line for line in lines if line.startswith("Starting session: ")],
        )

    @property
    def hub_url(self) -> str:
        """Address of the model hub."""
        return hub.url(self.settings)

    def hub_fault(
        self, kind: str, value: int = 0, times: int | None = None, match: str = ""
    ) -> None:
        """Switch a fault of the hub on."""
        hub.switches(self.settings).on(Fault(kind, value, times, match))

    def hub_clear(self) -> None:
        """Switch all faults of the hub off."""
        hub.switches(self.settings).clear()

    def hub_log(self) -> list[dict[str, Any]]:
        """Finished requests of the hub, oldest first."""
        return hub.access_log(self.settings)
