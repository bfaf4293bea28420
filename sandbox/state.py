"""What is up, in ``run/state.json``, and the lock that makes one command change it at a time.

The file is for readers (inventory, tests, status). Cleaning up never depends on it: cgroups and
the bridge are found by name.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sandbox.errors import SandboxError
from sandbox.settings import Settings
from sandbox.shell import say

VERSION = 1


@dataclass(frozen=True)
class Host:
    """One simulated server.

    profile: name of the file in sandbox/profiles; release: Debian's code name;
    bare: made without python3; user: the login of inventory/sandbox.py (root or ops);
    image: folder of the base that its overlay was made over; gpus: made with simulated GPUs.
    """

    name: str
    profile: str
    release: str
    address: str
    user: str
    image: str
    bare: bool = False
    gpus: bool = False


@dataclass
class State:
    """The lab as a whole.

    services: name -> address and port; sysctl: file -> value before and ours; loops: numbers of
    the loop devices that were there before.
    """

    name: str
    subnet: str
    bridge: str
    gateway: str
    cgroup: str
    hosts: dict[str, Host] = field(default_factory=dict)
    services: dict[str, dict[str, Any]] = field(default_factory=dict)
    sysctl: dict[str, list[int]] = field(default_factory=dict)
    loops: list[int] = field(default_factory=list)


def path(settings: Settings) -> Path:
    """The state file."""
    return settings.run / "state.json"


def fresh(settings: Settings) -> State:
    """State of an empty lab."""
    return State(
        name=settings.name,
        subnet=str(settings.subnet),
        bridge=settings.bridge,
        gateway=settings.gateway,
        cgroup=settings.cgroup,
    )


def load(settings: Settings) -> State | None:
    """The recorded state, or None when nothing is up.

    Raises SandboxError when the file belongs to a lab with another name or is unreadable.
    """
    file = path(settings)
    try:
        data = json.loads(file.read_text())
        if data.pop("version") != VERSION:
            raise ValueError("another version")
        hosts = {name: Host(**host) for name, host in data.pop("hosts").items()}
        state = State(hosts=hosts, **data)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise SandboxError(
            f"{file} cannot be read ({error}): run `python -m sandbox down`, then `up`."
        ) from error
    if state.name != settings.name or state.subnet != str(settings.subnet):
        raise SandboxError(
            f"{settings.cache} holds the lab {state.name} on {state.subnet}, but the environment "
            f"says {settings.name} on {settings.subnet}: use the same VOLTFLEET_SANDBOX_NAME and "
            "VOLTFLEET_SANDBOX_SUBNET, or another VOLTFLEET_CACHE."
        )
    return state


def save(settings: Settings, state: State) -> None:
    """Write the state; readers see the old or the new file, never half of one."""
    file = path(settings)
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps({"version": VERSION, **asdict(state)}, indent=1) + "\n")
    part.replace(file)


def require_host(settings: Settings, name: str) -> tuple[State, Host]:
    """State and one host of it; SandboxError with the known names otherwise."""
    state = load(settings)
    if state is None or not state.hosts:
        raise SandboxError("No sandbox is up: run `python -m sandbox up`.")
    if name not in state.hosts:
        raise SandboxError(f"There is no host {name}: the lab has {', '.join(state.hosts)}.")
    return state, state.hosts[name]


@contextmanager
def lock(settings: Settings) -> Iterator[None]:
    """Hold the lab's lock; a second command waits and says for whom."""
    settings.run.mkdir(parents=True, exist_ok=True)
    file = settings.run / "lock"
    with file.open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            holder = handle.read().strip() or "another process"
            say(f"waiting for another sandbox command ({holder})")
            fcntl.flock(handle, fcntl.LOCK_EX)
        handle.seek(0)
        handle.truncate()
        handle.write(f"pid {os.getpid()}")
        handle.flush()
        yield
