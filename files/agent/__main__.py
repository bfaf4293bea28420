"""The agent's command line: ``python3 -m agent VERB``; see the package for the protocol."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import BinaryIO, cast

from .wire import Wire

VERBS = ("probe", "apply", "lease", "receive", "pack", "check")
ALIVE_S = 10  # seconds between signs of life; the controller waits for several


def main(argv: Sequence[str], ahead: bytes = b"") -> int:
    """Run a verb and return the exit status: 0, 2 for a wrong command line, 3 for a failure.

    `ahead` is what was already read from standard input. Every verb but ``check``, which is for
    people and timers and has exit statuses of its own, ends with an end line. The status 1 is
    left to Python: to the controller it means that the agent did not even start.
    """
    verb = argv[0] if argv else ""
    if verb not in VERBS:
        sys.stderr.write(f"unknown verb {verb!r}, expected one of {', '.join(VERBS)}\n")
        return 2
    if verb == "check":
        from . import check

        return check.main(argv[1:])
    wire = Wire(ahead)
    threading.Thread(target=_live, args=(wire,), daemon=True).start()
    try:
        ok = _run(verb, wire)
    except Exception as error:
        wire.end(verb, False, _sentence(error))
        return 3
    wire.end(verb, ok)
    return 0 if ok else 3


def _live(wire: Wire) -> None:
    """Send a sign of life, so that a host that stands still can be told from long work."""
    while not wire.gone:
        time.sleep(ALIVE_S)
        wire.line({"alive": True})


def _run(verb: str, wire: Wire) -> bool:
    request = wire.request()
    if verb == "probe":
        from . import probe

        probe.main(request, wire)
        return True
    if verb == "lease":
        from . import lease

        lease.main(request, wire)
        return True
    if verb == "receive":
        from . import transfer

        transfer.receive(request, cast(BinaryIO, wire))  # all it uses of a stream is read()
        return True
    if verb == "pack":
        return _pack(str(request["root"]), str(request["fingerprint"]), wire)
    from . import actions

    return actions.main(request, wire)


def _pack(root: str, fingerprint: str, wire: Wire) -> bool:
    """Verb ``pack``: a release as a .tar.gz, sent in lines ``{"data": base64}``."""
    from . import releases, transfer

    path = releases.CACHE / f"{fingerprint}.{os.getpid()}.tar.gz"
    try:
        releases.pack(root, fingerprint, path)
        transfer.send(path, wire.line)
    finally:
        path.unlink(missing_ok=True)
    return not wire.gone


def _sentence(error: Exception) -> str:
    """The agent's own exceptions are sentences already; of others the kind helps."""
    ours = type(error).__module__.startswith(f"{__package__}.")
    return str(error) if ours or isinstance(error, OSError) else f"{type(error).__name__}: {error}"


def leave(status: int) -> None:
    """End the process at once: threads that hang are not waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
