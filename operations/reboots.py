"""The reboot of a host in the middle of a run: asked for, waited for, proved."""

from __future__ import annotations

import time

import gevent
from pyinfra.api.exceptions import ConnectError
from pyinfra.api.host import Host
from pyinfra.connectors.ssh import SSHConnector

from facts import remote
from facts.host import config_of, forget
from operations import lease
from operations.converge import Stopped, apply
from rules.change import Change
from rules.reboot import proved

TRY_EVERY_S = 2
ANSWER_S = 10


def reboot(host: Host, change: Change) -> None:
    """Reboot a host and come back connected to its next boot; raises `Stopped`.

    Its lease is taken again: the process that held it has gone with the boot.
    """
    if not isinstance(host.connector, SSHConnector):
        raise Stopped(
            f"this run runs on this host, which needs a reboot ({change.before}): reboot it "
            "yourself and run again"
        )
    timeout_s = config_of(host).reboot_timeout_s
    before = str((change.action or {})["boot_id"])
    apply(host, [change])
    forget(host)
    host.log(f"  reboot host: waits for it, at most {timeout_s} s")
    after = _next_boot(host, before, time.monotonic() + timeout_s)
    failure = proved(before, after, timeout_s)
    if failure:
        raise Stopped(failure)
    lease.take(host)
    host.log_styled(f"booted again, boot {after}", fg="green")


def _next_boot(host: Host, before: str, deadline: float) -> str | None:
    """The id of the boot that answers: another one than `before` if there is any by then."""
    while remote.connected(host) and time.monotonic() < deadline:
        gevent.sleep(TRY_EVERY_S)
    lease.give_back(host)
    found = None
    while time.monotonic() < deadline:
        gevent.sleep(TRY_EVERY_S)
        try:
            remote.reconnect(host)
            found = _boot_id(host)
        except (ConnectError, remote.RemoteError):
            found = None
            continue
        if found not in (None, before):
            return found
    return found


def _boot_id(host: Host) -> str | None:
    lines = remote.call(host, "probe", {"deadline_s": ANSWER_S}, timeout_s=ANSWER_S + 5)
    for line in lines:
        found = line.get("state", {}).get("system", {}).get("boot_id")
        if found:
            return str(found)
    return None
