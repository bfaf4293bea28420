"""Habit: an exception on one host ends the run for all of them.

Upstream: an exception while a host is prepared (deploy.py, an operation's generator, a fact on
the command line) or while an operation's generator runs in the execute stage is raised in the
main greenlet: every host stops. `State.fail_hosts` raises "No hosts remaining!" when the last host
fails, which skips the results and prints no JSON.
Here: it fails that host with one sentence, and the others go on. Code that cannot go on with a
host raises `HostFailure`. Other exceptions are our bugs: they fail the host too and name the
place; ``--debug`` shows the traceback. When no host is left the remaining steps are skipped and
the run ends as usual, with results and exit code 1. Too many failures for ``--fail-percent``
still end the run.
Remove: when upstream isolates hosts in both stages.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
from pyinfra import logger
from pyinfra.api import facts, operations
from pyinfra.api.command import FunctionCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.connectors.util import CommandOutput
from pyinfra.context import ctx_host

from glue import callbacks
from glue.patch import wrap


class HostFailure(PyinfraError):
    """This host cannot go on. The message is one sentence without the host's name."""


class TooManyFailed(PyinfraError):
    """More hosts failed than ``--fail-percent`` allows: the run ends for all."""


def fail(host: Host, sentence: str) -> None:
    """Fail one host: show the sentence in red, and do nothing more on it.

    Returns also when no host is left. Within deploy.py or an operation raise `HostFailure`
    instead, which does this and leaves the code.
    """
    host.log_styled(sentence, fg="red", log_func=logger.error)
    state: Any = host.state
    state.fail_hosts({host})


def sentence_of(error: BaseException) -> str:
    """An exception in one sentence; one that we did not expect with the place it comes from."""
    # pyinfra_cli's wrapper around an exception from one of our files
    if type(error).__name__ == "UnexpectedExternalError":
        error = getattr(error, "exception", error)
    if isinstance(error, HostFailure):
        return str(error)
    logger.debug("".join(traceback.format_exception(error)))
    if isinstance(error, PyinfraError):
        return f"{error}{_place(error)}"
    return f"unexpected {type(error).__name__}: {error}{_place(error)}; --debug shows the traceback"


def apply() -> None:
    """Isolate hosts in the prepare and execute stages."""
    # Not at the top: importing pyinfra_cli has gevent patch the whole process, which a test that
    # only wants `fail` must not do to its runner.
    import pyinfra_cli.cli as cli
    import pyinfra_cli.util as cli_util

    wrap(cli_util, "_parallel_load_hosts", _prepare)
    wrap(facts, "get_fact", _get_fact)
    wrap(cli, "get_facts", _get_facts)
    wrap(operations, "_run_host_op", _execute)
    wrap(operations, "_run_single_op", _unless_nobody)
    wrap(FunctionCommand, "execute", _call)
    wrap(State, "fail_hosts", _fail_hosts)


def _place(error: BaseException) -> str:
    """`` (operations/files.py line 12)``: the last line of ours in the traceback."""
    here = Path.cwd()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        path = path if path.is_absolute() else here / path
        if path.is_relative_to(here) and not {".venv", "glue"} & set(path.relative_to(here).parts):
            return f" ({path.relative_to(here)} line {frame.lineno})"
    return ""


def _fail_hosts(original: Callable[..., Any]) -> Callable[..., Any]:
    def fail_hosts(self: Any, hosts_to_fail: set[Host], activated_count: int | None = None) -> None:
        try:
            original(self, hosts_to_fail, activated_count)
        except PyinfraError as error:
            if self.active_hosts:
                raise TooManyFailed(str(error)) from error
            logger.error("No host is left: the remaining steps are skipped")

    return fail_hosts


def _prepare(original: Callable[..., Any]) -> Callable[..., Any]:
    def _parallel_load_hosts(state: State, callback: Callable[[], Any], name: str) -> None:
        def one_host() -> None:
            contexts: Any = ctx_host
            host = contexts.get()
            try:
                callback()
            except TooManyFailed:
                raise
            except Exception as error:
                fail(host, sentence_of(error))
            if host in state.failed_hosts:
                raise gevent.GreenletExit  # past pyinfra's green "Ready", and no error to it

        original(state, one_host, name)

    return _parallel_load_hosts


def _get_fact(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_fact(state: State, host: Host, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(state, host, *args, **kwargs)
        except TooManyFailed:
            raise
        except Exception as error:
            fail(host, sentence_of(error))
            return None

    return get_fact


def _get_facts(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_facts(*args: Any, **kwargs: Any) -> Any:
        # The command line asks for False, so that a fact that failed ends with exit code 0.
        return original(*args, **{**kwargs, "apply_failed_hosts": True})

    return get_facts


def _execute(original: Callable[..., Any]) -> Callable[..., Any]:
    def _run_host_op(state: State, host: Host, op_hash: str) -> bool:
        data = state.get_op_data_for_host(host, op_hash)
        try:
            succeeded = bool(original(state, host, op_hash))
        except TooManyFailed:
            raise
        except Exception as error:
            host.log_styled(sentence_of(error), fg="red", log_func=logger.error)
            state.get_results_for_host(host).error_ops += 1
            if not data.operation_meta.is_complete():
                data.operation_meta.set_complete(False, [], CommandOutput([]))
            state.trigger_callbacks("operation_host_error", host, op_hash, 0, 0)
            succeeded = bool(data.global_arguments["_ignore_errors"])
        if data.operation_meta._commands:
            callbacks.changed(host)
        return succeeded

    return _run_host_op


def _unless_nobody(original: Callable[..., Any]) -> Callable[..., Any]:
    def _run_single_op(state: State, op_hash: str) -> None:
        if state.active_hosts:
            original(state, op_hash)

    return _run_single_op


def _call(original: Callable[..., Any]) -> Callable[..., Any]:
    def execute(self: Any, state: State, host: Host, arguments: Any) -> Any:
        try:
            return original(self, state, host, arguments)
        except HostFailure as error:
            host.log_styled(str(error), fg="red", log_func=logger.error)
            return False

    return execute
