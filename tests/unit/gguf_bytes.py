"""Write GGUF files by hand, sound or not, for tests of the reader."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: int, raw: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + raw


def string(key: str, value: str) -> bytes:
    return pair(key, 8, text(value))


def u16(key: str, value: int) -> bytes:
    return pair(key, 2, struct.pack("<H", value))


def u32(key: str, value: int) -> bytes:
    return pair(key, 4, struct.pack("<I", value))


def i32(key: str, value: int) -> bytes:
    return pair(key, 5, struct.pack("<i", value))


def f32(key: str, value: float) -> bytes:
    return pair(key, 6, struct.pack("<f", value))


def boolean(key: str, value: int) -> bytes:
    return pair(key, 7, struct.pack("<B", value))


def array(key: str, kind: int, count: int, raw: bytes) -> bytes:
    return pair(key, 9, struct.pack("<IQ", kind, count) + raw)


def tensor(name: str, shape: Sequence[int], kind: int, offset: int) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def gguf(
    pairs: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    version: int = 3,
    **counts: Any,
) -> bytes:
    """A file; `counts` (pairs_stated, tensors_stated) lie about what follows."""
    head = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        counts.get("tensors_stated", len(tensors)),
        counts.get("pairs_stated", len(pairs)),
    )
    body = head + b"".join(pairs) + b"".join(tensors)
    return body + b"\0" * (-len(body) % 32) + data if tensors else body


def tiny(architecture: str = "llama", *more: bytes) -> bytes:
    """A small sound file with one tensor of four floats."""
    return gguf(
        [string("general.architecture", architecture), *more],
        [tensor("t", [4], 0, 0)],
        struct.pack("<4f", 1, 2, 3, 4),
    )
