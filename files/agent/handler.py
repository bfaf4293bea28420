"""What the handler of an action is given, gives back and raises, and how it runs programs.

A handler module (``act_*.py``) exports ``HANDLERS: dict[str, Handler]``, action name to handler.
A handler brings the host to what the action says, reads back, and returns an `Outcome`, or raises
`ActionError` having left the host as good as it was.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from .probe_tools import environment

Action = Mapping[str, Any]
T = TypeVar("T")

# A program's own words may show a key: "api_key: abc", "Authorization: Bearer abc", "--token=abc"
SECRET_LIKE = re.compile(
    r"((?:api[-_ ]?key|token|secret|password|passwd|bearer|authorization: bearer)"
    r"(?:[\"']?\s*[:=]\s*[\"']?|\s+(?=\S{16,}\b)))[^\s\"',;]+",
    re.IGNORECASE,
)


class ActionError(Exception):
    """An action failed; the message is one sentence for people and holds no secret."""


@dataclass(frozen=True)
class Outcome:
    """An action succeeded. `changed` is False when the host was so already."""

    changed: bool
    message: str = ""


Results = Mapping[str, "Outcome | ActionError"]  # by change id


@dataclass(frozen=True)
class Former:
    """A file as it was before this run replaced it."""

    content: bytes = field(repr=False)
    mode: int
    uid: int
    gid: int


class Sink(Protocol):
    """Where events go, a line each; `gone` once nobody reads them any more. See ``wire.Wire``."""

    gone: bool

    def line(self, value: Mapping[str, Any]) -> None: ...


@dataclass
class Context:
    """One ``apply``: where its events go, and what later actions need to know of earlier ones."""

    run: str
    sink: Sink
    # what this run replaced, by path: a file, a link's target, None where nothing was
    former: dict[str, Former | str | None] = field(default_factory=dict)
    put_back: set[str] = field(default_factory=set)  # paths that are as they were again
    restarted: dict[str, int] = field(default_factory=dict)  # units, with their limits in seconds
    secrets: set[str] = field(default_factory=set, repr=False)  # never shown, see `masked`

    @property
    def gone(self) -> bool:
        """Nobody listens any more: finish the atomic step under way, begin nothing further."""
        return self.sink.gone

    def progress(self, action: Action, message: str, percent: float | None = None) -> None:
        """Tell that `action` is under way; `percent` is 0 to 100, None when it can't be told."""
        whole = None if percent is None else max(0, min(100, round(percent)))
        self.tell(action["id"], "progress", message=message, percent=whole)

    def tell(self, change_id: str, event: str, **more: Any) -> None:
        """Send an event line, its message masked."""
        if "message" in more:
            more["message"] = self.masked(str(more["message"]))
        self.sink.line({"id": change_id, "event": event, **more})

    def masked(self, text: str) -> str:
        """Text without the secrets this run handles and without what looks like one."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return SECRET_LIKE.sub(r"\1***", text)


@dataclass(frozen=True)
class Handler:
    """How to handle actions of one name: `one` at a time, or consecutive ones `together`."""

    one: Callable[[Context, Action], Outcome] | None = None
    together: Callable[[Context, Sequence[Action]], Results] | None = None


def argument(action: Action, key: str, kind: type[T]) -> T:
    """An argument of an action; `ActionError` when it is missing or of another type."""
    value = action.get(key)
    if not isinstance(value, kind):
        raise ActionError(
            f"action {action.get('do')} of {action.get('id')} needs {key} of type "
            f"{kind.__name__}, got {type(value).__name__}: controller and agent differ in version"
        )
    return value


def texts(action: Action, key: str) -> list[str]:
    """An argument that is a list of strings."""
    value = argument(action, key, list)
    if not all(isinstance(item, str) for item in value):
        raise ActionError(f"action {action.get('do')}: {key} must hold strings only")
    return value


@dataclass(frozen=True)
class Ended:
    """How a program ended; `rc` is None when it was stopped at its time limit."""

    rc: int | None
    out: str
    err: str

    @property
    def last_words(self) -> str:
        """Its last line of error output, or of output; for messages."""
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return lines[-1].strip() if lines else "no message"


def command(argv: Sequence[str], limit_s: float) -> Ended:
    """Run a program to its end, or to `limit_s` seconds, then it and its children are killed.

    It gets no standard input and its own session, so that neither the request nor a signal meant
    for the agent reaches it. `ActionError` when the program isn't there.
    """
    env = environment()
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise ActionError(f"{argv[0]} can't be run here: {error.strerror}") from error
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        kill_session(process)
        with suppress(subprocess.TimeoutExpired):
            out, err = process.communicate(timeout=5)
            return Ended(None, out, err)
        return Ended(None, "", "")
    return Ended(process.returncode, out, err)


def kill_session(process: subprocess.Popen[Any]) -> None:
    """Kill a program started with a session of its own, and what it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def must(argv: Sequence[str], limit_s: float) -> Ended:
    """`command`, but an end other than exit status 0 is an `ActionError`."""
    ended = command(argv, limit_s)
    name = " ".join(argv[:2])
    if ended.rc is None:
        raise ActionError(f"{name} did not end within {limit_s:g} s and was stopped")
    if ended.rc != 0:
        raise ActionError(f"{name} ended with status {ended.rc}: {ended.last_words}")
    return ended


def os_sentence(error: OSError, doing: str) -> str:
    """An operating system's error as a sentence: ``writing /x failed: No space left on device``."""
    return f"{doing} failed: {error.strerror or error}"
