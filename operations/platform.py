"""CUDA toolkit, NVIDIA driver and reboots.

A first installation goes on all hosts at once. A move of a driver from one branch to another goes
host by host in the order of the inventory, each with a gate, and a failure stops the hosts not
begun; reboots go a bounded number at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyinfra.api.host import Host
from pyinfra.api.operation import operation

from facts.controller import ROOT
from facts.host import config_of, desired_of, forget, observe
from glue.run import this_host
from operations import reboots, sending
from operations.converge import Stopped, apply, converge, current_plan
from operations.turns import Turns
from rules import plan_driver, plan_platform, reboot
from rules.change import Change, of_area

# Installing a driver lets others be planned (what DKMS did not build, what is not loaded), and a
# boot again: each is made once.
ROUNDS = 6
MOVE = (plan_driver.INSTALL, "move")  # id and verb of a change from another branch

MOVES = Turns()
REBOOTS = Turns()


@operation()
def installed() -> Generator[Any, None, None]:
    """Make the area `platform` of the plan so."""
    host = this_host()
    MOVES.come(host.name)
    try:
        yield from converge("platform", execute=_platform)
    finally:
        MOVES.leave(host.name)


def _platform(host: Host, changes: list[Change]) -> None:
    if not any((change.id, change.verb) == MOVE for change in changes):
        MOVES.leave(host.name)
        _converge(host, changes)
        return
    with _turn(host, MOVES, 1, "driver move"):
        forget(host)  # the turn may have been waited for
        _converge(host, of_area(current_plan(host), "platform"))
        _gate(host)


@contextmanager
def _turn(host: Host, turns: Turns, at_once: int, what: str) -> Iterator[None]:
    """Hold this host's turn at a step; a failure inside stops the hosts that have not begun."""
    order = [other.name for other in host.state.inventory]

    def waits(ahead: str) -> None:
        host.log(f"  waits for its turn: {what}, after {ahead}")

    with turns.turn(host.name, order, at_once, waits) as begins:
        if not begins:
            raise Stopped(
                f"no {what} here: it failed on {turns.failed}, so that the hosts after it are left "
                "as they were; repair that one and run again"
            )
        try:
            yield
        except Exception:
            turns.stop(host.name)
            raise


def _converge(host: Host, changes: list[Change]) -> None:
    """Make the changes, look again, make what has become possible, until nothing is left."""
    made: set[str] = set()
    for _ in range(ROUNDS):
        unbooted = [change for change in changes if change.id != reboot.ID]
        now = unbooted or changes
        if not now:
            return
        again = made & {change.id for change in now}
        if again:
            raise Stopped(
                f"{', '.join(sorted(again))} was made and is to be made again: "
                f"{'; '.join(change.before for change in now if change.id in again)}"
            )
        made |= {change.id for change in now}
        if unbooted:
            _send(host, now)
            apply(host, now)
        else:
            REBOOTS.come(host.name)
            with _turn(host, REBOOTS, config_of(host).reboot_parallel, "reboot"):
                reboots.reboot(host, now[0])
        forget(host)
        changes = of_area(current_plan(host), "platform")


def _send(host: Host, changes: list[Change]) -> None:
    """Send the files of the controller that changes need there: a .deb, a keyring."""
    for change in changes:
        action = change.action or {}
        if not action.get("upload"):
            continue
        path = Path(str(action["upload"])).expanduser()
        path = path if path.is_absolute() else ROOT / path
        try:
            sha256 = sending.sha256_of(path)
        except OSError as error:
            raise Stopped(f"{path} on the controller cannot be read: {error.strerror}") from error
        if action["sha256"] not in ("", sha256):
            raise Stopped(
                f"{path} on the controller has sha256 {sha256}, expected {action['sha256']}: "
                "correct one of them"
            )
        sending.send(host, path, str(action["file"]), sha256, change.thing)


def _gate(host: Host) -> None:
    """Whether the next host may go: the driver here is of one piece and has its cards."""
    observed = observe(host)
    wanted = desired_of(host, observed).platform
    faults = plan_platform.faults(wanted, observed) if wanted else []
    if faults:
        raise Stopped(f"the driver was moved and is not right: {'; '.join(faults)}")
