"""The lease on a host: one run at a time changes it.

Taken before the first change of a run, never by a run that changes nothing, and held by a small
process on the host that ends with this run's connection.
"""

from __future__ import annotations

import getpass
import socket

import gevent
from pyinfra.api.host import Host

from facts import remote
from facts.host import config_of
from operations.report import REPORT

_HELD = "voltfleet_lease"
HEARTBEAT_S = 15
# A lease outlives no run: this only bounds the process if its host's clock and network go mad.
LONGEST_RUN_S = 7 * 24 * 3600


def take(host: Host) -> bool:
    """Take the lease if this run has not got it yet; True when it was taken just now.

    Raises `RemoteError` when another run holds the host and the data says to refuse, or the wait
    was in vain.
    """
    if _HELD in host.connector_data:
        return False
    config = config_of(host)
    request = {
        "run": REPORT.run_id,
        "who": f"{getpass.getuser()}@{socket.gethostname()}",
        "policy": config.lease_policy,
        "wait_s": config.lease_wait_s,
    }
    channel = remote.Channel(host, "lease", request, LONGEST_RUN_S)
    while (line := channel.read()) is not None:
        if line.get("lease") == "held":
            host.connector_data[_HELD] = (channel, gevent.spawn(_beat, channel))
            return True
        if line.get("lease") == "waiting":
            host.log(f"waiting for {_holder(line)}")
        if line.get("lease") == "busy":
            channel.close()
            raise remote.RemoteError(
                f'{_holder(line)} holds this host; wait for it to end, or set lease_policy = "wait"'
            )
        if "end" in line:
            break
    why = channel.why_it_ended()
    channel.close()
    raise remote.RemoteError(f"no lease: {why}")


def give_back(host: Host) -> None:
    """Give the lease back, if held."""
    held = host.connector_data.pop(_HELD, None)
    if held is not None:
        channel, beat = held
        beat.kill()
        channel.close()


def _beat(channel: remote.Channel) -> None:
    while True:
        gevent.sleep(HEARTBEAT_S)
        try:
            channel.write([b"\n"])
        except remote.RemoteError:
            return  # the connection is gone; whoever uses it next says so


def _holder(line: remote.Line) -> str:
    doing = f" ({line['doing']})" if line.get("doing") else ""
    return f"run {line.get('run')} of {line.get('who')} since {line.get('since')}{doing}"
