"""The lease on a host: one run at a time changes it.

Taken before the first change of a run, never by a run that changes nothing, and held by a small
process on the host that ends with this run's connection.
"""

from __future__ import annotations

import getpass
import socket
from dataclasses import dataclass, field

import gevent
from pyinfra.api.host import Host

from facts import remote
from facts.host import config_of
from operations.report import REPORT

_HELD = "voltfleet_lease"
HEARTBEAT_S = 15
# A lease outlives no run: this only bounds the process if its host's clock and network go mad.
LONGEST_RUN_S = 7 * 24 * 3600


@dataclass
class _Lease:
    """A lease that was taken, and why it is lost, empty while it is held."""

    channel: remote.Channel
    lost: str = ""
    greenlets: list[gevent.Greenlet] = field(default_factory=list)


def take(host: Host) -> bool:
    """Take the lease if this run has not got it yet; True when it was taken just now.

    Raises `RemoteError` when another run holds the host and the data says to refuse, or the wait
    was in vain, or the host does not answer, or the lease that this run had was lost.
    """
    if _HELD in host.connector_data:
        must_hold(host)
        return False
    config = config_of(host)
    request = {
        "run": REPORT.run_id,
        "who": f"{getpass.getuser()}@{socket.gethostname()}",
        "policy": config.lease_policy,
        "wait_s": config.lease_wait_s,
    }
    limit_s = (config.lease_wait_s if config.lease_policy == "wait" else 0) + remote.GRACE_S
    slow = remote.RemoteError(
        f"did not answer within {limit_s} s whether another run holds it; the host or its disk "
        "hangs"
    )
    channel = remote.agent(host, "lease", request, LONGEST_RUN_S)
    try:
        with gevent.Timeout(limit_s, exception=slow):
            _wait(host, channel)
    except remote.RemoteError:
        channel.close()
        raise
    held = _Lease(channel)
    held.greenlets = [gevent.spawn(_beat, held), gevent.spawn(_watch, held)]
    host.connector_data[_HELD] = held
    return True


def must_hold(host: Host) -> None:
    """Raise `RemoteError` when this run had the lease of a host and has it no more."""
    held: _Lease | None = host.connector_data.get(_HELD)
    if held is not None and held.lost:
        raise remote.RemoteError(
            f"the lease was lost ({held.lost}), so another run may be changing this host: nothing "
            "more is changed, run again"
        )


def give_back(host: Host) -> None:
    """Give the lease back, if held."""
    held: _Lease | None = host.connector_data.pop(_HELD, None)
    if held is not None:
        gevent.killall(held.greenlets)
        held.channel.close()


def _wait(host: Host, channel: remote.Channel) -> None:
    """Return when the lease is held; raise `RemoteError` when it will not be."""
    while (line := channel.read()) is not None:
        if line.get("lease") == "held":
            return
        if line.get("lease") == "waiting":
            host.log(f"waiting for {_holder(line)}")
        if line.get("lease") == "busy":
            raise remote.RemoteError(
                f'{_holder(line)} holds this host; wait for it to end, or set lease_policy = "wait"'
            )
        if "end" in line:
            raise remote.RemoteError(f"no lease: {line.get('message') or 'no reason was given'}")
    raise remote.RemoteError(f"no lease: {channel.why_it_ended()}")


def _beat(held: _Lease) -> None:
    while True:
        gevent.sleep(HEARTBEAT_S)
        try:
            held.channel.write([b"\n"])
        except remote.RemoteError:
            return  # the reader learns it as well, and better


def _watch(held: _Lease) -> None:
    """Read on while the lease is held: all that can come, but signs of life, is its end."""
    try:
        while (line := held.channel.read()) is not None:
            if line.get("lease") == "lost":
                held.lost = f"the host saw {line.get('reason')} from this run"
                return
            if "end" in line:
                held.lost = str(line.get("message") or "the host gave it up")
                return
        held.lost = held.channel.why_it_ended()
    except remote.RemoteError as error:
        held.lost = str(error)


def _holder(line: remote.Line) -> str:
    doing = f" ({line['doing']})" if line.get("doing") else ""
    return f"run {line.get('run')} of {line.get('who')} since {line.get('since')}{doing}"
