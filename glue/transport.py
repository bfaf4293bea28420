"""Habit: paramiko leaves Nagle's algorithm on.

Upstream: `paramiko.SSHClient` opens its socket without TCP_NODELAY, and pyinfra gives no way to
set it. A command is a few small packets each way; with Nagle and delayed acknowledgements it
takes 45 ms, without 3 ms (measured on a local network).
Here: each new transport switches it off on its socket, jump hosts included. A proxy command has
no socket and stays as it is.
Remove: when paramiko sets it itself (then the contract test's real socket says so).
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import paramiko

from glue.patch import wrap


def apply() -> None:
    """Switch Nagle's algorithm off for every ssh connection made from now on."""
    wrap(paramiko.Transport, "__init__", _without_delay)


def _without_delay(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, sock: Any, *args: Any, **kwargs: Any) -> None:
        original(self, sock, *args, **kwargs)
        if getattr(self.sock, "family", None) in (socket.AF_INET, socket.AF_INET6):
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    return __init__
