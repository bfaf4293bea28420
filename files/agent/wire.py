"""JSON lines in both directions, with an end marker.

A request is one JSON object on one line; an answer is any number of JSON objects, one a line,
the last being ``{"end": VERB, "ok": true|false}``, with ``"message"`` (one sentence) where it is
not ok. Everything written is ASCII, so no host's locale can spoil it.
"""

from __future__ import annotations

import json
import os
import select
import threading
import time
from collections.abc import Mapping
from typing import Any


class WireError(Exception):
    """What arrived cannot be used, or did not arrive. The message is one sentence."""


class Idle(Exception):
    """Nothing arrived in the given time."""


class Wire:
    """Standard input and output of a verb.

    Reads with a buffer of its own, so that waiting with a time limit never misses bytes that were
    read ahead; `ahead` is what the caller had already read. Writing is safe from several threads
    and never raises: when the other side is gone, `gone` turns True, and a change in progress is
    finished rather than cut off.
    """

    def __init__(self, ahead: bytes = b"", source: int = 0, sink: int = 1) -> None:
        self._buffer = ahead
        self._source = source
        self._sink = sink
        self._lock = threading.Lock()
        self.gone = False

    def _more(self, timeout_s: float | None) -> bool:
        """Read once into the buffer; False at the end of the input. Raises `Idle`."""
        ready, _, _ = select.select([self._source], [], [], timeout_s)
        if not ready:
            raise Idle
        part = os.read(self._source, 1 << 16)
        self._buffer += part
        return bool(part)

    def read_line(self, timeout_s: float | None = None) -> bytes | None:
        """The next line without its newline; None when the input ended before a whole line.

        Raises `Idle` when no whole line came within `timeout_s` seconds.
        """
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            if not self._more(None if ends is None else max(0.0, ends - time.monotonic())):
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def read(self, size: int) -> bytes:
        """At most `size` bytes that follow the lines read so far; empty at the end."""
        if not self._buffer and not self._more(None):
            return b""
        part, self._buffer = self._buffer[:size], self._buffer[size:]
        return part

    def request(self) -> dict[str, Any]:
        """The request: the next line, which must be a JSON object. Raises `WireError`."""
        line = self.read_line()
        if line is None:
            raise WireError("the request on standard input is incomplete, expected one JSON line")
        try:
            value = json.loads(line)
        except ValueError as error:
            raise WireError(f"the request is no JSON ({error}), expected one object") from error
        if not isinstance(value, dict):
            raise WireError(f"the request is a {type(value).__name__}, expected a JSON object")
        return value

    def line(self, value: Mapping[str, Any]) -> None:
        """Write one line at once."""
        data = json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"
        with self._lock:
            while data and not self.gone:
                try:
                    data = data[os.write(self._sink, data) :]
                except OSError:
                    self.gone = True

    def end(self, verb: str, ok: bool, message: str = "") -> None:
        """Write the end marker."""
        last: dict[str, Any] = {"end": verb, "ok": ok}
        if message:
            last["message"] = message
        self.line(last)
