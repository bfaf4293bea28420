"""llama.cpp releases: built once, shipped to every host with the same fingerprint."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Generator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyinfra import logger
from pyinfra.api.host import Host
from pyinfra.api.operation import operation

from facts import remote
from facts.host import desired_of, observe
from operations import release_cache, sending
from operations.converge import Stopped, apply, converge
from rules.change import Change
from rules.desired import CACHE, Release

# Seconds that a release of 100 MB may take over a bad line.
PACK_TIMEOUT_S = 3600


@operation()
def released() -> Generator[Any, None, None]:
    """Have the wanted release on the host, proved, beside the one in use."""
    yield from converge("llama_cpp", execute=_release)


def _release(host: Host, changes: list[Change]) -> None:
    releases = {item.fingerprint: item for item in desired_of(host, observe(host)).releases}
    for change in changes:
        action = change.action or {}
        release = releases.get(str(action.get("fingerprint")))
        if action.get("do") != "release.build" or release is None:
            apply(host, [change])
            continue
        try:
            with release_cache.building(release.fingerprint):
                sha256 = release_cache.known_sha256(release.fingerprint)
                if sha256 is None:
                    apply(host, [change])
                    _collect(host, release)
                    continue
        except release_cache.CacheError as error:
            raise Stopped(str(error)) from error
        _ship(host, change, release, sha256)


def _ship(host: Host, change: Change, release: Release, sha256: str) -> None:
    """Send the kept archive and have the host unpack and prove it."""
    path = release_cache.archive(release.fingerprint)
    # root's alone, so that nobody can change the archive between receipt and unpacking
    there = f"{CACHE}/{path.name}"
    sending.send(host, path, there, sha256, f"release {release.fingerprint}")
    unpack = {
        **(change.action or {}),
        "do": "release.unpack",
        "archive": there,
        "sha256": sha256,
    }
    apply(host, [replace(change, verb="install", action=unpack)])


def _collect(host: Host, release: Release) -> None:
    """Bring a release that was just built and proved to the controller.

    The host has what it needs, so whatever goes wrong here is a warning.
    """
    received = release_cache.part(release.fingerprint, host.name)
    try:
        _receive(host, release, received)
    except (OSError, remote.RemoteError, Stopped) as error:
        why = str(error)
        if isinstance(error, OSError):
            why = f"{error.filename or received}: {error.strerror}"
        host.log_styled(
            f"release {release.fingerprint} is in place but could not be kept on this controller "
            f"({why}): the next host that needs it builds it again",
            fg="yellow",
            log_func=logger.warning,
        )
    finally:
        with suppress(OSError):
            received.unlink(missing_ok=True)


def _receive(host: Host, release: Release, received: Path) -> None:
    request = {"root": release.root, "fingerprint": release.fingerprint}
    digest = hashlib.sha256()
    with received.open("wb") as stream:

        def on_line(line: remote.Line) -> None:
            chunk = base64.b64decode(line["data"])
            digest.update(chunk)
            stream.write(chunk)

        remote.call(host, "pack", request, timeout_s=PACK_TIMEOUT_S, on_line=on_line, keep=False)
    if received.stat().st_size == 0:
        raise Stopped(f"release {release.fingerprint}: the host sent an empty archive")
    release_cache.keep(release.fingerprint, received, digest.hexdigest())
