"""Habit: a question at the first failed host, and a traceback when nobody can answer.

Upstream: without -y, `pyinfra_cli.cli._set_fail_prompts` sets FAIL_PERCENT to 0 after config.py
and asks "One of more hosts failed, continue?" at each failure. `_do_confirm` calls `input()`,
which dies with EOFError when standard input is closed. Whatever is typed instead of Enter ends
the run with exit code 0, changes pending. And it asks even when there is nothing to do.
Here: a failed host is left out and never asked about (``--fail-percent`` still works). The one
question left is "Press enter to execute"; when it is declined or nobody is there, nothing is
changed and the exit code is 1, for a run with pending changes that were not made is no success.
When no change is pending, or no host is left, nothing is asked and nothing executed.
Remove: when upstream has a setting for the first, and handles EOF in the second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import pyinfra_cli.cli as cli
from pyinfra import logger

from glue.patch import wrap
from glue.run import FAILED, end, the_state

WITHOUT_QUESTION = "run with -y to execute without asking"


def apply() -> None:
    """Never ask about failed hosts; decline well."""
    wrap(cli, "_set_fail_prompts", lambda _original: _no_fail_prompts)
    wrap(cli, "_do_confirm", _confirm)


def _no_fail_prompts(state: Any, config: Any) -> None:
    """Keep what config.py and --fail-percent say."""


def _confirm(original: Callable[..., Any]) -> Callable[..., Any]:
    def _do_confirm(message: str) -> bool:
        state = the_state()
        if not state.active_hosts:
            return False  # what failed was said; pyinfra's own exit code is 1
        if not _pending(state):
            logger.info("--> Nothing to change")
            return False
        try:
            confirmed = bool(original(message))
        except (EOFError, RuntimeError, OSError):  # end of input; no standard input at all
            click.echo(err=True)  # ends the line of the question
            end(FAILED, f"nothing was changed: nobody answered the question; {WITHOUT_QUESTION}")
        if not confirmed:
            end(
                FAILED,
                "nothing was changed: the run was declined; press Enter alone to execute, or "
                + WITHOUT_QUESTION,
            )
        return True

    return _do_confirm


def _pending(state: Any) -> bool:
    return any(
        operation.operation_meta._maybe_is_change
        for host in state.active_hosts
        for operation in state.ops[host].values()
    )
