"""The beginning of every run on a host: its data is validated before any command."""

from __future__ import annotations

import atexit

from pyinfra import logger
from pyinfra.api.host import Host
from pyinfra.api.state import StateStage

from facts.controller import ControllerError, inputs
from facts.host import config_of, forget
from glue import callbacks, hosts
from glue.connections import why_not
from glue.run import the_state, this_host
from operations import lease
from operations.report import REPORT
from rules import models, serving
from rules.validate import Invalid

_BEGUN = "voltfleet_begun"
_arranged = False


def begin(host: Host | None = None) -> None:
    """Validate the data of a host (the present one); one whose data is wrong fails alone.

    Called first in deploy.py and by every operation, so that one run alone as a fix is held to the
    same. Once per run it also arranges that leases end with their connections and that the report
    is written.
    """
    host = host or this_host()
    if host.connector_data.get(_BEGUN):
        return
    host.connector_data[_BEGUN] = True
    _arrange()
    REPORT.touch(host.name)
    try:
        config = config_of(host)
        secrets = inputs(config).secrets
        problems = [*serving.refusals(config, secrets), *models.refusals(config, secrets)]
    except Invalid as error:
        problems = error.problems
    except ControllerError as error:
        problems = [str(error)]
    if problems:
        for problem in problems:
            logger.error(f"{host.print_prefix}{problem}")
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        fail(host, f"{count} in its data, nothing was done on it: {problems[0]}")
        return
    for warning in serving.warnings(config):
        host.log_styled(warning, fg="yellow", log_func=logger.warning)


def fail(host: Host, sentence: str) -> None:
    """Fail one host with one sentence; the others go on."""
    REPORT.touch(host.name).failed.append(sentence)
    hosts.fail(host, sentence)


def _arrange() -> None:
    global _arranged
    if not _arranged:
        _arranged = True
        callbacks.on_change(forget)
        callbacks.on_disconnect(lease.give_back)
        atexit.register(_finish)


def _finish() -> None:
    state = the_state()
    if state is None or not state.initialised:
        return
    for host in state.failed_hosts:
        # Hosts that could not even be connected belong in the report.
        if not REPORT.of(host.name).failed:
            REPORT.of(host.name).failed.append(why_not(host) or "see the messages above")
    if state.current_stage == StateStage.Execute:  # pyinfra goes on to Disconnect after its last
        for entry in REPORT.hosts.values():
            entry.interrupted = True
    if REPORT.hosts:
        REPORT.write()
        logger.info("\n".join(["--> Hosts:", *(f"    {line}" for line in REPORT.lines())]))
