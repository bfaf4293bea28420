"""Files between controller and host, through the same channel and privileges as everything else.

Verb ``receive``. Request ``{"path", "sha256", "size"}``, followed by the file's bytes on standard
input. The file is written beside with mode 0600, proved, and renamed.

Verb ``pack``. Request ``{"root", "fingerprint"}``; answers with lines ``{"data": base64}`` that
make the release's deterministic .tar.gz.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

CHUNK = 256 * 1024
MARGIN_BYTES = 64 * 1024 * 1024


class TransferError(Exception):
    """The file did not come or go as it should. The message is one sentence."""


def receive(request: Mapping[str, Any], stream: BinaryIO) -> None:
    """Write `size` bytes of `stream` to `path`; the file that was there stays until proved."""
    path = Path(request["path"])
    size = int(request["size"])
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if free < size + MARGIN_BYTES:
        raise TransferError(
            f"file {path}: {size / 1e6:.0f} MB do not fit, {free / 1e6:.0f} MB are free in "
            f"{path.parent}; make room"
        )
    digest = hashlib.sha256()
    handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    try:
        left = size
        with os.fdopen(handle, "wb") as out:
            while left and (chunk := stream.read(min(CHUNK, left))):
                digest.update(chunk)
                out.write(chunk)
                left -= len(chunk)
            out.flush()
            os.fsync(out.fileno())
        if left:
            raise TransferError(f"file {path}: {left} of {size} bytes did not arrive; run again")
        if digest.hexdigest() != request["sha256"]:
            raise TransferError(
                f"file {path}: arrived with sha256 {digest.hexdigest()}, expected "
                f"{request['sha256']}; run again"
            )
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def send(path: Path, emit: Callable[[dict[str, Any]], None]) -> None:
    """Emit a file's bytes as lines."""
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            emit({"data": base64.b64encode(chunk).decode()})
