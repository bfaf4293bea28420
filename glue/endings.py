"""Habit: endings that hide a failure.

Upstream: Ctrl-C prints "Exiting upon user request!" and exits with 0, after waiting for the
commands that still run when all places of its pool are taken. Under ``--no-wait`` a failed
operation is a gevent traceback and the exit code is 0. (``--json`` without a host left, and facts
that fail, are in `glue.hosts`.)
Here: Ctrl-C ends with 130 and does not wait: what runs on hosts is bounded there, and a lease
ends with its connection; a second Ctrl-C also skips disconnecting. Under ``--no-wait`` a failed
host is a failed host.
Remove: when upstream's exit codes are right.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from pyinfra import logger
from pyinfra.api import operations
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host

from glue.patch import wrap
from glue.run import INTERRUPTED, the_state


def apply() -> None:
    """Give Ctrl-C and ``--no-wait`` the exit codes that they deserve."""
    signal.signal(signal.SIGINT, _interrupted)
    wrap(operations, "_run_host_ops", _failing)


def _interrupted(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    state = the_state()
    if state is not None and state.initialised:
        state.pool.kill(block=False)  # else disconnecting waits for a place in it
    if state is not None and state.is_executing:
        logger.error("Interrupted: what was under way may be half done; run again to finish it")
    else:
        logger.error("Interrupted: nothing was changed")
    raise SystemExit(INTERRUPTED)


def _failing(original: Callable[..., Any]) -> Callable[..., Any]:
    def _run_host_ops(state: Any, host: Host, progress: Any = None) -> None:
        try:
            original(state, host, progress)
        except PyinfraError:
            state.fail_hosts({host})

    return _run_host_ops
