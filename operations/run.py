"""The beginning of every run on a host: its data is validated before any command."""

from __future__ import annotations

import atexit

import pyinfra
from pyinfra import logger

from facts.controller import ControllerError
from facts.host import desired_of, forget
from glue import callbacks
from operations import lease
from operations.converge import fail
from operations.report import REPORT
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
    host = pyinfra.host._get_module()
    REPORT.touch(host.name)
    try:
        desired_of(host)
    except Invalid as error:
        for problem in error.problems:
            logger.error(f"{host.print_prefix}{problem}")
        fail(host, f"{len(error.problems)} problems in its data; nothing was done on it")
    except ControllerError as error:
        fail(host, str(error))


def _finish() -> None:
    for host in pyinfra.state.inventory if pyinfra.state.initialised else ():
        # Hosts that could not even be connected belong in the report.
        if host in pyinfra.state.failed_hosts and not REPORT.of(host.name).failed:
            REPORT.of(host.name).failed.append("see the messages above")
    if REPORT.hosts:
        REPORT.write()
        logger.info("\n".join(["--> Hosts:", *(f"    {line}" for line in REPORT.lines())]))
