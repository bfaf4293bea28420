"""Read numbers and texts of a GGUF file in order, never past its end."""

from __future__ import annotations

import struct
from typing import Any, BinaryIO

MAX_HEADER = 256 << 20  # bytes
BLOCK = 1 << 20


class GgufError(ValueError):
    """The file is no sound GGUF; the message is a clause that follows the file's name."""


class Reader:
    """Bytes of a file in order, with the file's size as the limit."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self.stream = stream
        self.size = size
        self.buffer = b""
        self.start = 0  # offset in the file of buffer[0]
        self.at = 0  # position in buffer

    @property
    def position(self) -> int:
        return self.start + self.at

    @property
    def left(self) -> int:
        return self.size - self.position

    def need(self, count: int, what: str) -> None:
        if count > self.left:
            raise GgufError(
                f"ends within {what}: {count} bytes from offset {self.position} on, the file has "
                f"{self.size}"
            )
        if self.position + count > MAX_HEADER:
            raise GgufError(f"has a header of more than {MAX_HEADER} bytes, within {what}")

    def take(self, count: int, what: str) -> bytes:
        self.need(count, what)
        end = self.at + count
        if end > len(self.buffer):
            self._fill(count)
            end = count
        piece = self.buffer[self.at : end]
        if len(piece) != count:
            raise GgufError(f"became shorter while it was read, within {what}")
        self.at = end
        return piece

    def _fill(self, count: int) -> None:
        self.start = self.position
        self.at = 0
        self.stream.seek(self.start)
        self.buffer = self.stream.read(max(BLOCK, count))

    def skip(self, count: int, what: str) -> None:
        self.need(count, what)
        if self.at + count <= len(self.buffer):
            self.at += count
        else:
            self.start, self.at, self.buffer = self.position + count, 0, b""

    def number(self, code: str, what: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))[0]

    def text(self, what: str, limit: int) -> str:
        length = self.number("Q", f"the length of {what}")
        if length > limit:
            raise GgufError(f"has {what} of {length} bytes, at most {limit} are allowed")
        raw = self.take(length, what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise GgufError(f"has {what} that is not UTF-8") from error
