"""Habit: a host that cannot be reached is told in paramiko's words, and with its tracebacks.

Upstream: "SSH error (No existing session)" for a host that hangs, "Could not connect (timed out)"
for one without power. paramiko also logs what it raises, and a logger nobody configured prints it:
a traceback of 30 lines on standard error, for a single slow host. A private key that one host's
data names and that is not there ends the run for all.
Here: one sentence each, with what was found and what to do; it stays in the host's connector data
(`why_not`) for the report. paramiko's log is for ``--debug`` only.
Remove: when upstream's sentences can be acted on.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any

from paramiko import AuthenticationException, BadHostKeyException, SSHException
from pyinfra.api.exceptions import ConnectError
from pyinfra.api.host import Host
from pyinfra.connectors.ssh import SSHConnector

from glue.hosts import sentence_of
from glue.patch import wrap

_WHY = "voltfleet_why_not_connected"


def apply() -> None:
    """Tell of a failed connection in one sentence."""
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    wrap(SSHConnector, "connect", _connect)


def why_not(host: Host) -> str | None:
    """The sentence on why a host could not be connected, None when nothing failed."""
    return host.connector_data.get(_WHY)


def _connect(original: Callable[..., Any]) -> Callable[..., Any]:
    def connect(self: Any) -> None:
        try:
            original(self)
        except Exception as error:
            sentence = _sentence(self, error)
            self.host.connector_data[_WHY] = sentence
            raise ConnectError(sentence) from error
        self.host.connector_data.pop(_WHY, None)  # a host that was rebooted took some tries

    return connect


def _sentence(connector: Any, error: Exception) -> str:
    """What became of a connection."""
    if not isinstance(error, ConnectError):
        return f"Could not connect ({sentence_of(error)})"
    cause = error.__context__  # pyinfra raises its own error while it handles the real one
    address = connector.data["ssh_hostname"] or connector.host.name
    limit_s = connector.state.config.CONNECT_TIMEOUT
    if isinstance(cause, BadHostKeyException):
        file = connector.data["ssh_known_hosts_file"] or "~/.ssh/known_hosts"
        return (
            f"{address} shows another ssh host key than {file} has: it was installed anew, or "
            "another machine answers in its place; find out which, and only then run "
            f"`ssh-keygen -f {file} -R {address}`"
        )
    if isinstance(cause, AuthenticationException):
        user, key = connector.data["ssh_user"], connector.data["ssh_key"]
        return (
            f"{address} refuses the login{f' of {user}' if user else ''}"
            f"{f' with the key {key}' if key else ''}: put the public key into that user's "
            "authorized_keys, or name another user or key"
        )
    if isinstance(cause, socket.gaierror):
        return f"Could not resolve hostname {address} ({cause.strerror}): give its ssh_hostname"
    if isinstance(cause, TimeoutError):
        return (
            f"{address} did not answer within {limit_s} s: see that it has power and a network, "
            "and that no firewall is in between"
        )
    if isinstance(cause, SSHException) and _silent(cause):
        return (
            f"{address} takes connections, but its ssh server said nothing within {limit_s} s: "
            "the host hangs or is overloaded"
        )
    if isinstance(cause, OSError):
        return f"{address} can't be reached ({cause.strerror or cause}): see that it is up"
    return str(error)


def _silent(error: SSHException) -> bool:
    """paramiko's two ways to say that the other side did not speak in time."""
    return "No existing session" in str(error) or "Error reading SSH protocol banner" in str(error)
