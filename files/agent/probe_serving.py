"""What serves and what it serves: releases, models, running servers, and who holds the host."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import lease
from .probe_tools import Unlearned

if TYPE_CHECKING:
    import socket

CONNECT_S = 1.0
TRIES = 2
HEALTH_S = 2.0
# Where a server that binds to every address is asked.
LOOPBACK = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1", "localhost": "127.0.0.1"}  # noqa: S104


def release(root: str, fingerprints: list[str]) -> Any:
    """The releases below a root; see ``releases.py``."""
    from . import releases

    return releases.observe(root, fingerprints)


def model(name: str, asked: dict[str, Any]) -> Any:
    """A model's files; see ``models.py``."""
    from . import models

    return models.observe(name, asked)


def leases() -> dict[str, Any]:
    """Who holds the host now; ``run`` is null when nobody does."""
    return {"run": lease.busy()}


def instance(name: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Whether a server listens, and the status code of its ``/health``.

    ``health`` is null when it listens but does not answer in time or answers no HTTP.
    """
    host, port = str(asked["host"]), int(asked["port"])
    try:
        connection = _connected((LOOPBACK.get(host, host), port))
    except ConnectionRefusedError:
        return {"listening": False, "health": None}
    except TimeoutError:
        raise Unlearned(
            f"{host}:{port} neither accepted nor refused {TRIES} times within {CONNECT_S:g} s"
        ) from None
    # Spoken directly: http.client alone costs more time than the rest of this part's imports.
    question = f"GET /health HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
    answer = b""
    ends = time.monotonic() + HEALTH_S
    with connection:
        try:
            connection.sendall(question.encode())
            while b"\r\n" not in answer and len(answer) < 4096:
                connection.settimeout(max(0.01, ends - time.monotonic()))
                part = connection.recv(4096)
                if not part:
                    break
                answer += part
        except OSError:
            return {"listening": True, "health": None}
    return {"listening": True, "health": parse_status(answer)}


def _connected(address: tuple[str, int]) -> socket.socket:
    """A connection; a server whose queue is full for a moment gets another try."""
    import socket

    for _ in range(TRIES - 1):
        with contextlib.suppress(TimeoutError):
            return socket.create_connection(address, timeout=CONNECT_S)
    return socket.create_connection(address, timeout=CONNECT_S)


def parse_status(answer: bytes) -> int | None:
    """The status code of an HTTP/1 answer's first line, None when it is not one."""
    words = answer.split(b"\r\n", 1)[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
        return None
    return int(words[1]) if len(words[1]) == 3 and words[1].isdigit() else None
