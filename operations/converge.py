"""How an operation executes its area of the plan.

`converge(area)` is the body of an operation: a generator that yields nothing when the host is as
desired, else one command. What that command does is decided again when it runs, from a fresh
look at the host: other areas have changed it since the plan was shown, and the lease may have
been waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

from pyinfra import logger
from pyinfra.api.command import FunctionCommand
from pyinfra.api.host import Host
from pyinfra.api.output import format_text
from pyinfra.api.state import State, StateStage

from facts import remote
from facts.controller import ControllerError
from facts.host import desired_of, forget, observe
from glue.run import this_host
from operations import lease
from operations.report import REPORT
from operations.run import begin, fail
from rules.change import Change, of_area
from rules.plan import plan, refusals, states
from rules.reboot import State as HostState
from rules.validate import Invalid

# Seconds that one area may take on a host: a build of llama.cpp with CUDA on four old cores, or
# a model of 100 GiB over a slow line. The agent's own steps have tighter bounds.
AREA_TIMEOUT_S = 24 * 3600

_PLAN = "voltfleet_plan"  # the plan of the kept observation: eight areas ask for it, twice each

Execute = Callable[[Host, list[Change]], None]


class Stopped(Exception):
    """This host cannot go on. The message is one sentence without the host's name."""


def current_plan(host: Host) -> list[Change]:
    """The plan of a host from what is known of it now. Raises `Stopped`."""
    try:
        observed = observe(host)
        kept = host.connector_data.get(_PLAN)
        if kept is not None and kept[0] is observed:
            return kept[1]  # type: ignore[no-any-return]
        desired = desired_of(host, observed)
    except Invalid as error:
        raise Stopped("; ".join(error.problems)) from error
    except (remote.RemoteError, ControllerError) as error:
        raise Stopped(str(error)) from error
    refused = refusals(desired, observed)
    if refused:
        raise Stopped("; ".join(refused))
    changes = plan(desired, observed)
    _tell_states(host, states(desired, observed))
    host.connector_data[_PLAN] = (observed, changes)
    return changes


def converge(area: str, execute: Execute | None = None) -> Generator[Any, None, None]:
    """The body of the operation of one area. `execute` replaces how its changes are executed."""
    host = this_host()
    state = host.state
    begin(host)
    if host in state.failed_hosts:
        return
    preparing = state.current_stage < StateStage.Execute
    try:
        changes = current_plan(host)
    except Stopped as stop:
        if preparing:
            fail(host, str(stop))
        else:
            yield FunctionCommand(_stop, (str(stop),), {})
        return
    entry = REPORT.touch(host.name)
    if preparing and not entry.planned:
        entry.planned = [change.public() for change in changes]
        _announce(host, changes, show_diff=state.config.DIFF)
    if of_area(changes, area):
        yield FunctionCommand(_execute, (area, execute or apply), {})
    else:
        host.noop(f"{area}: as desired")


class Progress:
    """Progress of one host's changes for people: not every file that apt touches."""

    EVERY_S = 5.0
    EVERY_PERCENT = 10.0

    def __init__(self, host: Host) -> None:
        self._host = host
        self._last: dict[str, tuple[float, float]] = {}  # change id -> when, percent

    def show(self, change: Change, percent: float | None, message: str) -> None:
        """Show a line unless one of the same change was shown just now and little has moved."""
        now, share = time.monotonic(), percent if percent is not None else -1.0
        when, before = self._last.get(change.id, (float("-inf"), float("-inf")))
        if now - when < self.EVERY_S and abs(share - before) < self.EVERY_PERCENT:
            return
        self._last[change.id] = (now, share)
        shown = "" if percent is None else f"{percent:3.0f} % "
        self._host.log(f"  {change.verb} {change.thing}: {shown}{message}")


def apply(host: Host, changes: list[Change]) -> None:
    """Have the agent make the changes; raises `Stopped` when one of them failed.

    Raises `RemoteError`, before anything is done, when the lease was lost meanwhile.
    """
    lease.must_hold(host)
    undecided = [change for change in changes if change.action is None]
    if undecided:
        raise Stopped(
            "; ".join(f"{item.thing} cannot be converged: {item.before}" for item in undecided)
        )
    actions = [
        {**(change.action or {}), "id": change.id, "needs": list(change.needs)}
        for change in changes
    ]
    by_id = {change.id: change for change in changes}
    progress = Progress(host)
    failures: list[str] = []
    ended: set[str] = set()

    def on_line(line: remote.Line) -> None:
        change = by_id.get(str(line.get("id")))
        if change is None:
            return
        event, message = line.get("event"), str(line.get("message") or "")
        if event == "progress":
            progress.show(change, line.get("percent"), message)
        elif event == "done":
            ended.add(change.id)
            if line.get("changed", True):
                REPORT.touch(host.name).changed.append(change.id)
                done = f"{change.sentence()}{f' ({message})' if message else ''}"
                host.log_styled(done, fg="green")
        elif event in ("failed", "skipped"):
            ended.add(change.id)
            failures.append(f"{change.verb} {change.thing}: {message}")

    try:
        remote.call(
            host,
            "apply",
            {"run": REPORT.run_id, "doing": changes[0].area, "actions": actions},
            timeout_s=AREA_TIMEOUT_S,
            on_line=on_line,
        )
    except remote.RemoteError as error:
        # with failures told the agent ends with "failed", which adds nothing
        raise Stopped("; ".join(failures) or str(error)) from error
    silent = [change.id for change in changes if change.id not in ended]
    if silent:
        raise Stopped(f"the agent said nothing about {', '.join(silent)}")


def _execute(state: State, host: Host, area: str, execute: Execute) -> bool:
    REPORT.touch(host.name).begun = True
    try:
        try:
            # without python3 there is nothing to hold a lease with; apt's own lock has to do
            if area != "bootstrap" and lease.take(host):
                forget(host)  # whoever had it before may have changed the host
            changes = of_area(current_plan(host), area)
            if changes:
                execute(host, changes)
        except remote.RemoteError as error:
            raise Stopped(str(error)) from error
    except Stopped as stop:
        return _stop(state, host, str(stop))
    finally:
        forget(host)
        REPORT.touch(host.name)
    return True


def _stop(state: State, host: Host, sentence: str) -> bool:
    """Fail this host from within an operation's execution; pyinfra goes on with the others."""
    REPORT.touch(host.name).failed.append(sentence)
    host.log_styled(sentence, fg="red", log_func=logger.error)
    return False


def _tell_states(host: Host, found: list[HostState]) -> None:
    """Put what the host is in into the report, and show what was not so before."""
    entry = REPORT.touch(host.name)
    for state in found:
        if state not in entry.states:
            host.log_styled(state.sentence, fg="yellow", log_func=logger.warning)
    entry.states = found


def _announce(host: Host, changes: list[Change], *, show_diff: bool) -> None:
    """Show a host's plan once, in order, before anything is done."""
    lines = []
    for change in changes:
        reason = f"  [{', '.join(change.reason)}]" if change.reason else ""
        lines.append(f"{host.print_prefix}  {change.sentence()}{reason}")
        if show_diff and change.diff:
            lines += [f"{host.print_prefix}    {text}" for text in change.diff.splitlines()]
    if lines:
        count = "1 change" if len(changes) == 1 else f"{len(changes)} changes"
        title = format_text(f"{count} planned, in this order:", bold=True)
        logger.info("\n".join([f"{host.print_prefix}{title}", *lines]))
