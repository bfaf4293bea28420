"""Runs actions as the agent does, and keeps the events; programs on the PATH are stand-ins."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from files.agent.actions import perform
from files.agent.handler import Context

ME = pwd.getpwuid(os.getuid()).pw_name
MY_GROUP = grp.getgrgid(os.getgid()).gr_name


class Events:
    """A sink that keeps what it is sent, and can lose its reader after some events."""

    def __init__(self, until: int | None = None) -> None:
        self.lines: list[dict[str, Any]] = []
        self.gone = False
        self._until = until

    def line(self, value: Mapping[str, Any]) -> None:
        if self.gone:
            return
        self.lines.append(dict(value))
        self.gone = self._until is not None and len(self.lines) >= self._until

    def of(self, event: str) -> dict[str, dict[str, Any]]:
        """The last event of that kind, by change id."""
        return {line["id"]: line for line in self.lines if line["event"] == event}

    def failure(self, change_id: str) -> str:
        return str(self.of("failed")[change_id]["message"])


def act(*actions: Mapping[str, Any], events: Events | None = None) -> Events:
    """Perform actions; ids are made of their position where they have none."""
    events = events or Events()
    numbered = [{"id": str(at), "needs": [], **action} for at, action in enumerate(actions)]
    context = Context(run="test", sink=events)
    all_done = perform(context, numbered, lambda doing: None)
    assert all_done == (len(events.of("done")) == len(actions))
    return events


def program(folder: Path, name: str, body: str) -> Path:
    """Put a stand-in shell program on the PATH folder; every call is appended to NAME.calls."""
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "$*" >> "{folder}/{name}.calls"\n{body}\n')
    path.chmod(0o755)
    return path


def calls(folder: Path, name: str) -> list[str]:
    """The argument lines with which a stand-in was called."""
    path = folder / f"{name}.calls"
    return path.read_text().splitlines() if path.exists() else []
