"""Read the header of a GGUF file strictly, without loading it.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; what is refused here is what
llama.cpp's own reader refuses (ggml/src/gguf.cpp of 2026), plus limits that keep a hostile header
from costing time or memory: nothing is allocated by a number the file states before that number
is compared with the bytes there are.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .gguf_reader import GgufError, Reader

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_NAME = 63  # GGML_MAX_NAME - 1
MAX_DIMENSIONS = 4
# Limits of this reader. Real files have some 60 keys, 2000 tensors, 270000 tokens and 520000
# merges; each limit leaves room and bounds the work to well under a second.
MAX_KEYS = 16_384
MAX_TENSORS = 65_536
MAX_STRINGS = 2_000_000  # in all arrays of a file together
KEPT_ARRAY = 4_096  # longer arrays are passed over
KEPT_TEXT = 65_536  # longer texts (chat templates) are passed over
KEPT_IN_ALL = 8 << 20  # bytes of texts and arrays kept per file

STRING, ARRAY, BOOL = 8, 9, 7
SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "B",
    10: "Q",
    11: "q",
    12: "d",
}

# ggml type -> (elements per block, bytes per block), ggml/src/ggml.c and ggml-common.h
TYPES = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    9: (32, 36), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4),
    27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66),
    39: (32, 17), 40: (64, 36), 41: (128, 18), 42: (64, 18),
}  # fmt: skip


@dataclass(frozen=True)
class PassedOver:
    """A value that was read over, not kept: a long text or array."""

    what: str


@dataclass(frozen=True)
class Header:
    """What the header says; sizes and offsets in bytes."""

    version: int
    metadata: Mapping[str, Any]  # bool, int, float, str, list of these, or PassedOver
    tensors: int
    data_offset: int
    data_bytes: int  # that the tensors need from data_offset on
    size: int  # of the file

    @property
    def split(self) -> tuple[int, int] | None:
        """(number from 0, count of parts) of a split file."""
        if "split.count" not in self.metadata:
            return None
        return int(self.metadata.get("split.no", 0)), int(self.metadata["split.count"])


class _Values:
    """Reads metadata values, keeping an account of what they cost."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.kept = 0
        self.strings = 0

    def value(self, key: str) -> Any:
        kind = self.reader.number("I", f"the type of {key!r}")
        if kind == ARRAY:
            return self._array(key)
        if kind == STRING:
            return self._string(key)
        if kind not in SCALARS:
            raise GgufError(f"gives {key!r} the unknown type {kind}")
        return self._scalar(kind, key)

    def _scalar(self, kind: int, key: str) -> Any:
        number = self.reader.number(SCALARS[kind], f"the value of {key!r}")
        if kind != BOOL:
            return number
        if number > 1:
            raise GgufError(f"gives the boolean {key!r} the value {number}")
        return bool(number)

    def _string(self, key: str) -> Any:
        length = self.reader.number("Q", f"the length of {key!r}")
        if length > KEPT_TEXT or self.kept + length > KEPT_IN_ALL:
            self.reader.skip(length, f"the text {key!r}")
            return PassedOver(f"text of {length} bytes")
        self.kept += length
        return self.reader.take(length, f"the text {key!r}").decode(errors="replace")

    def _array(self, key: str) -> Any:
        kind = self.reader.number("I", f"the element type of {key!r}")
        count = self.reader.number("Q", f"the length of {key!r}")
        if kind == STRING:
            return self._strings(key, count)
        if kind not in SCALARS:
            raise GgufError(
                f"gives the array {key!r} the element type {kind}, which is not allowed"
            )
        code = SCALARS[kind]
        size = count * struct.calcsize("<" + code)
        if count > KEPT_ARRAY or self.kept + 32 * count > KEPT_IN_ALL:
            self.reader.skip(size, f"the array {key!r}")
            return PassedOver(f"array of {count}")
        self.kept += 32 * count  # a number of Python's
        values = struct.unpack(f"<{count}{code}", self.reader.take(size, f"the array {key!r}"))
        return [bool(v) for v in values] if kind == BOOL else list(values)

    def _strings(self, key: str, count: int) -> Any:
        what = f"the array {key!r}"
        reader = self.reader
        reader.need(8 * count, what)
        self.strings += count
        if self.strings > MAX_STRINGS:
            raise GgufError(
                f"states {self.strings} texts in arrays, at most {MAX_STRINGS} are read"
            )
        unpack = struct.Struct("<Q").unpack_from
        done = 0
        while done < count:  # in the buffer as far as it goes, this is the hot loop
            buffer, at, end = reader.buffer, reader.at, len(reader.buffer)
            while done < count and at + 8 <= end:
                length = unpack(buffer, at)[0]
                if at + 8 + length > end:
                    break
                at += 8 + length
                done += 1
            reader.at = at
            if done < count:
                reader.skip(reader.number("Q", what), what)
                done += 1
        return PassedOver(f"array of {count} texts")


def read_header(path: Path | str) -> Header:
    """The header of the file at `path`, every tensor within the file.

    Raises `GgufError` with what is wrong, `OSError` when the file can't be read. Reads the header
    only: time and memory do not depend on the size of the model.
    """
    with open(path, "rb", buffering=0) as stream:
        return _read(Reader(stream, os.fstat(stream.fileno()).st_size))


def _read(reader: Reader) -> Header:
    if reader.size == 0:
        raise GgufError("is empty")
    start = reader.take(min(64, reader.size), "the magic")
    if start[:4] != MAGIC:
        raise GgufError(foreign(start) or f"does not begin with GGUF but with {start[:4]!r}")
    reader.at = 4
    version = reader.number("I", "the version")
    if version and version & 0xFFFF == 0:
        raise GgufError("is a big-endian GGUF file, which this CPU can't serve")
    if version not in (2, 3):
        raise GgufError(f"is GGUF version {version}, llama.cpp reads 2 and 3")
    tensors = reader.number("Q", "the number of tensors")
    keys = reader.number("Q", "the number of metadata keys")
    # a key is at least its length, one letter, a type and one byte; a tensor 8 + 4 + 4 + 8 bytes
    if keys > min(MAX_KEYS, reader.left // 14):
        raise GgufError(f"states {keys} metadata keys, which do not fit in {reader.size} bytes")
    if tensors > min(MAX_TENSORS, reader.left // 24):
        raise GgufError(f"states {tensors} tensors, which do not fit in {reader.size} bytes")
    metadata = _metadata(reader, keys)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise GgufError(f"has general.alignment {alignment!r}, which is no power of two")
    needed = _tensors(reader, tensors, alignment)
    offset = reader.position
    if tensors:
        offset += -offset % alignment
        if offset + needed > reader.size:
            raise GgufError(
                f"is cut: its tensors end at byte {offset + needed}, the file has {reader.size}"
            )
    header = Header(version, metadata, tensors, offset, needed, reader.size)
    _check_split(header)
    return header


def foreign(start: bytes) -> str | None:
    """What a file is that begins like this and was answered in place of a model, if known."""
    text = start.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "is a web page, not a model: the download was answered with a login or error page"
    if text.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the model itself"
    return None


def _metadata(reader: Reader, keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    values = _Values(reader)
    for number in range(keys):
        key = reader.text(f"metadata key {number}", 65_535)
        if not key:
            raise GgufError(f"has an empty metadata key, number {number}")
        if key in metadata:
            raise GgufError(f"has the metadata key {key!r} twice")
        values.kept += len(key)
        if values.kept > 2 * KEPT_IN_ALL:
            raise GgufError(f"has more than {2 * KEPT_IN_ALL} bytes of metadata keys and texts")
        metadata[key] = values.value(key)
    return metadata


def _tensors(reader: Reader, count: int, alignment: int) -> int:
    """Read `count` tensor descriptions; the bytes of data they need."""
    names = set()
    expected = 0  # where the next tensor must begin, as llama.cpp demands
    needed = 0
    for number in range(count):
        name = reader.text(f"the name of tensor {number}", MAX_NAME)
        if name in names:
            raise GgufError(f"has the tensor {name!r} twice")
        names.add(name)
        dimensions = reader.number("I", f"the shape of tensor {name!r}")
        if dimensions > MAX_DIMENSIONS:
            raise GgufError(f"gives tensor {name!r} {dimensions} dimensions, at most 4 exist")
        raw = reader.take(8 * dimensions + 12, f"the description of tensor {name!r}")
        *shape, kind, offset = struct.unpack(f"<{dimensions}QIQ", raw)
        if kind not in TYPES:
            raise GgufError(f"gives tensor {name!r} the unknown ggml type {kind}")
        per_block, block_bytes = TYPES[kind]
        row = shape[0] if shape else 1
        if row % per_block:
            raise GgufError(f"has {row} elements in a row of {name!r}, no multiple of {per_block}")
        size = row // per_block * block_bytes
        for length in shape[1:]:
            size *= length
        if offset != expected:
            raise GgufError(f"puts tensor {name!r} at {offset}, expected {expected}")
        needed = offset + size
        expected = needed + -needed % alignment
    return needed


def _check_split(header: Header) -> None:
    for key in ("split.no", "split.count", "split.tensors.count"):
        value = header.metadata.get(key, 0)
        if type(value) is not int or value < 0:
            raise GgufError(f"has {key} {value!r}, which is no count")
    if header.split is not None and not header.split[0] < header.split[1]:
        raise GgufError(f"says that it is part {header.split[0]} (from 0) of {header.split[1]}")
