"""What a run did, host by host: kept on the controller and shown at the end.

``.voltfleet/last-run.json`` holds, per host, the ids of the changes that were made, the sentence
of a failure, what the host is left in (REBOOT_REQUIRED and the like, with the reasons), and the
seconds from its first to its last step. It is what ``make demo`` shows as a table and what tests
compare with what they broke.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from glue.run import LAST_RUN
from rules.reboot import REQUIRED, State


@dataclass
class HostReport:
    """One host's part of a run; `planned` is filled by a dry run too."""

    planned: list[dict[str, object]] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    states: list[State] = field(default_factory=list)  # REBOOT_REQUIRED and the like, no failures
    started: float = field(default_factory=time.time)
    ended: float = field(default_factory=time.time)
    begun: bool = False  # a change was tried: not a dry run, not declined
    interrupted: bool = False  # the run ended before its last operation

    @property
    def count(self) -> int:
        return len(self.planned if self.state == "planned" else self.changed)

    @property
    def sentences(self) -> list[str]:
        """What a person must know of this host beside its state, the gravest first."""
        return [*self.failed[:1], *(state.sentence for state in self.states)]

    @property
    def state(self) -> str:
        if self.failed:
            return "failed"
        if self.planned and not self.begun:
            return "planned"
        if self.interrupted:
            return "interrupted"
        if any(state.word == REQUIRED for state in self.states):
            return REQUIRED
        return "changed" if self.changed else "no change"


class RunReport:
    """The report of this process's run."""

    def __init__(self) -> None:
        self.hosts: dict[str, HostReport] = {}
        self.run_id = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"

    def of(self, name: str) -> HostReport:
        return self.hosts.setdefault(name, HostReport())

    def touch(self, name: str) -> HostReport:
        entry = self.of(name)
        entry.ended = time.time()
        return entry

    def write(self, path: Path = LAST_RUN) -> None:
        """Write the report beside and rename it, so that a reader never sees half of one."""
        path.parent.mkdir(mode=0o755, exist_ok=True)
        hosts = {
            name: {
                **asdict(entry),
                "state": entry.state,
                "seconds": round(entry.ended - entry.started, 1),
            }
            for name, entry in sorted(self.hosts.items())
        }
        beside = path.with_suffix(f".{os.getpid()}.new")
        beside.write_text(json.dumps({"run": self.run_id, "hosts": hosts}, indent=1) + "\n")
        beside.rename(path)

    def lines(self) -> list[str]:
        """One line per host for people."""
        width = max((len(name) for name in self.hosts), default=0)
        wide = max([11, *(len(entry.state) for entry in self.hosts.values())])
        return [
            f"{name:<{width}}  {entry.state:<{wide}}  {entry.count:>3} changes  "
            f"{entry.ended - entry.started:6.1f} s"
            + "".join(f"  {sentence}" for sentence in entry.sentences)
            for name, entry in sorted(self.hosts.items())
        ]


REPORT = RunReport()
