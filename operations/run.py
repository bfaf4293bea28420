"""The beginning of every run on a host: its data is validated before any command."""

from __future__ import annotations

import atexit

from pyinfra import logger

from facts.controller import ControllerError, inputs
from facts.host import config_of, forget
from glue import callbacks
from glue.run import the_state, this_host
from operations import lease
from operations.converge import fail
from operations.report import REPORT
from rules import serving
from rules.validate import Invalid

_started = False


def begin() -> None:
    """Validate the data of this host; one whose data is wrong fails alone.

    Called first in deploy.py and in every one-off fix. Once per run it also arranges that leases
    end with their connections and that the report is written.
    """
    global _started
    if not _started:
        _started = True
        callbacks.on_change(forget)
        callbacks.on_disconnect(lease.give_back)
        atexit.register(_finish)
    host = this_host()
    REPORT.touch(host.name)
    try:
        config = config_of(host)
        problems = serving.refusals(config, inputs(config).secrets)
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


def _finish() -> None:
    state = the_state()
    for host in state.failed_hosts if state is not None and state.initialised else ():
        # Hosts that could not even be connected belong in the report.
        if not REPORT.of(host.name).failed:
            REPORT.of(host.name).failed.append("see the messages above")
    if REPORT.hosts:
        REPORT.write()
        logger.info("\n".join(["--> Hosts:", *(f"    {line}" for line in REPORT.lines())]))
