"""Fault switches of the hub: a small file that the server reads at every request."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

# kind -> what a client sees; VALUE is the switch's number
KINDS = {
    "cut-at": "break the connection after VALUE bytes of each answer",
    "wrong-bytes": "one byte in the middle of the file is different, size and headers are right",
    "wrong-size": "the file ends VALUE bytes early (default 100), and the headers agree with that",
    "html": "200 with a login page instead of the file",
    "lfs-pointer": "200 with a Git LFS pointer instead of the file",
    "404": "not found",
    "416": "range not satisfiable",
    "503": "busy, with Retry-After: 1",
    "slow": "VALUE kilobytes per second",
    "no-range": "ranges are ignored: always 200 with the whole file",
    "redirect-loop": "302 to itself, for ever",
    "hang": "the headers come, the content does not (for VALUE seconds, default 60)",
}
NEEDS_VALUE = ("cut-at", "slow")
BODY_ONLY = ("cut-at", "wrong-bytes", "slow", "hang")


@dataclass
class Fault:
    """A switch that is on. times: answers it still spoils (None: until cleared);
    match: only paths that contain this text."""

    kind: str
    value: int = 0
    times: int | None = None
    match: str = ""


class Switches:
    """The switches of one hub, shared between processes through a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @contextmanager
    def _locked(self) -> Iterator[list[Fault]]:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a+") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            handle.seek(0)
            faults = [Fault(**item) for item in json.loads(handle.read() or "[]")]
            before = [asdict(fault) for fault in faults]
            yield faults
            after = [asdict(fault) for fault in faults]
            if after != before:
                handle.seek(0)
                handle.truncate()
                handle.write(json.dumps(after))

    def on(self, fault: Fault) -> None:
        """Switch a fault on, in place of one of the same kind."""
        with self._locked() as faults:
            faults[:] = [old for old in faults if old.kind != fault.kind]
            faults.append(fault)

    def clear(self) -> None:
        """Switch all faults off."""
        with self._locked() as faults:
            faults.clear()

    def listing(self) -> list[Fault]:
        """The switches that are on."""
        with self._locked() as faults:
            return list(faults)

    def take(self, path: str, body: bool) -> dict[str, Fault]:
        """Faults for one answer, by kind; their remaining times go down by one.

        body: False for a HEAD request, which must not use up a fault of the content.
        """
        taken = {}
        with self._locked() as faults:
            for fault in list(faults):
                if fault.match not in path or (fault.kind in BODY_ONLY and not body):
                    continue
                taken[fault.kind] = Fault(**asdict(fault))
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times <= 0:
                        faults.remove(fault)
        return taken
