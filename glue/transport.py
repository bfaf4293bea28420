"""Habit: paramiko leaves Nagle's algorithm on.

Upstream: `paramiko.SSHClient` opens its socket without TCP_NODELAY, and pyinfra gives no way to
set it. A command is a few small packets each way; with Nagle and delayed acknowledgements it
takes 45 ms, without 3 ms (measured on a local network).
Here: each new transport switches it off on its socket, jump hosts included. A connection through a
jump host or a proxy command has no socket of its own and stays as it is.

Habit: a host that loses power holds its connection for as long as TCP allows, a quarter of an hour.
Here: paramiko sends a sign of life every 10 s, and the kernel gives up when bytes stay
unacknowledged for 30 s.
Remove: when paramiko sets it itself (then the contract test's real socket says so).
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import paramiko

from glue.patch import wrap

DEAD_AFTER_S = 30
KEEPALIVE_S = 10


def apply() -> None:
    """Set the options on every ssh connection made from now on."""
    wrap(paramiko.Transport, "__init__", _with_options)


def _with_options(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, sock: Any, *args: Any, **kwargs: Any) -> None:
        original(self, sock, *args, **kwargs)
        if getattr(self.sock, "family", None) in (socket.AF_INET, socket.AF_INET6):
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_S * 1000)
            self.set_keepalive(KEEPALIVE_S)

    return __init__
