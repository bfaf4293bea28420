"""What the command line asked for, and how a run ends early: one sentence and an exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import click
import pyinfra
from pyinfra import logger
from pyinfra.api.host import Host

FAILED = 1  # a host failed, or there was nothing to work on, or the run was declined
BAD_DATA = 2  # nothing was connected to: the data or the inventory is wrong
LAST_RUN = Path(".voltfleet") / "last-run.json"  # what the last run did, see operations/report.py
INTERRUPTED = 130  # 128 + SIGINT, as shells count


def asked(name: str) -> Any:
    """A parameter of pyinfra's command line (``json_output``, ``inventory``); None outside one."""
    context = click.get_current_context(silent=True)
    return context.params.get(name) if context is not None else None


def end(code: int, *sentences: str) -> NoReturn:
    """End the run with these sentences, each on a line of its own, in red.

    SystemExit passes pyinfra's own handlers, so connections are closed and no traceback is shown.
    """
    for sentence in sentences:
        logger.error(sentence)
    sys.exit(code)


def the_state() -> Any:
    """pyinfra's state object itself, not the proxy that stands for it."""
    return pyinfra.state._get_module()  # type: ignore[attr-defined]


def this_host() -> Host:
    """The host that deploy.py or an operation is working on: itself, not pyinfra's proxy."""
    host: Host = pyinfra.host._get_module()  # type: ignore[attr-defined]
    return host
