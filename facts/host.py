"""The state of a host, asked once.

`observe` runs the agent's probe in one command and keeps the answer until something changes on
the host (`forget`), or until it is too old to act on. `HostState` is the same probe as a pyinfra
fact, for people: ``pyinfra inventory/lab.py fact facts.host.HostState``.
"""

from __future__ import annotations

import json
import shlex
import time
from typing import Any

from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase
from pyinfra.api.host import Host

from facts import bundle, remote
from facts.controller import inputs
from glue.run import this_host
from rules.compose import desired_state
from rules.desired import Desired
from rules.observed import Observed
from rules.question import question
from rules.schema import HostConfig
from rules.validate import validated

# An answer is kept while nobody changed anything, but a person may look at the plan for an hour
# before confirming it: after this many seconds the host is asked again.
KEPT_FOR_S = 300
_KEPT = "voltfleet_observed"


def config_of(host: Host) -> HostConfig:
    """The validated data of a host; raises `rules.validate.Invalid` with every problem."""
    return validated(host.data.dict())  # type: ignore[no-untyped-call]


def desired_of(host: Host, observed: Observed | None = None) -> Desired:
    """The desired state of a host; what depends on its operating system needs `observed`."""
    config = config_of(host)
    system = observed.part("system") if observed is not None else None
    return desired_state(config, inputs(config), system if isinstance(system, dict) else None)


def observe(host: Host) -> Observed:
    """The observed state of a host: the kept answer, or one probe. Raises `RemoteError`."""
    kept = host.connector_data.get(_KEPT)
    if kept is not None and time.monotonic() - kept[0] < KEPT_FOR_S:
        return kept[1]  # type: ignore[no-any-return]
    desired = desired_of(host)
    request = question(desired)
    lines = remote.call(host, "probe", request, timeout_s=desired.probe_timeout_s + 5)
    observed = read_answer(lines)
    host.connector_data[_KEPT] = (time.monotonic(), observed)
    return observed


def forget(host: Host) -> None:
    """Drop what is known of a host: something changed on it."""
    host.connector_data.pop(_KEPT, None)


def read_answer(lines: list[Any]) -> Observed:
    """The observed state from the lines of a probe's answer."""
    for line in lines:
        if "bootstrap" in line:
            return Observed({}, nothing_known=str(line["bootstrap"]))
        if "state" in line:
            return Observed(line["state"])
    raise remote.RemoteError("the probe answered without a state; run again with -vv to see it")


class HostState(FactBase[dict[str, Any]]):
    """Everything the probe knows of a host, as one document (see ``files/agent/__init__.py``).

    For the command line. Operations use `observe`, which keeps the answer.
    """

    def command(self) -> str:
        desired = desired_of(this_host())
        payload = bundle.payload(question(desired), "probe").rstrip("\n")
        # pyinfra gives a fact no way to standard input, so the payload goes with the command.
        probe = bundle.command("probe", desired.probe_timeout_s + 5)
        return f"printf '%s\\n' {shlex.quote(payload)} | {{ {probe}; }}"

    def process(self, output: list[str]) -> dict[str, Any]:
        try:
            lines = [json.loads(line) for line in output]
        except ValueError as error:
            raise FactProcessError(f"the probe's answer is no JSON: {error}") from error
        if not lines or not lines[-1].get("ok"):
            raise FactProcessError("the probe's answer is incomplete")
        observed = read_answer(lines)
        return dict(observed.document) or {"unknown": observed.nothing_known}
