"""Files of the controller sent to a host, through the agent and with its privileges."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import gevent
from pyinfra.api.host import Host

from facts import remote

# Seconds for a file: NVIDIA's local repository has 3 GB, and a lab's line may be 10 Mbit/s.
TIMEOUT_S = 2 * 3600


def send(host: Host, path: Path, there: str, sha256: str, what: str) -> None:
    """Put a file at `there` on the host, proved by its sha256; raises `remote.RemoteError`.

    It is written beside with mode 0600 and renamed, so a broken transfer leaves what was there.
    """
    size = path.stat().st_size
    host.log(f"  {what}: sending {size / 1e6:.0f} MB")
    remote.call(
        host,
        "receive",
        {"path": there, "sha256": sha256, "size": size},
        timeout_s=TIMEOUT_S,
        tail=_chunks(path),
    )


def sha256_of(path: Path) -> str:
    """The sha256 of a file, as hex; other hosts go on while it is read."""
    digest = hashlib.sha256()
    for chunk in _chunks(path):
        digest.update(chunk)
        gevent.sleep(0)
    return digest.hexdigest()


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while chunk := stream.read(remote.CHUNK):
            yield chunk
