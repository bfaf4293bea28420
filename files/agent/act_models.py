"""Actions of models.

``model.fetch`` name, root, revision, format, files (each path, url, size, sha256), token_file (or
null), required (GGUF metadata key to value), profile, others (profiles), full. Reads what was not
read yet (with `full` everything), fetches what is absent or bad, proves every file and the whole,
and puts it in place. Not a change when everything was sound.

``model.verify`` name, root, revision, files: reads everything and records the result, for the
weekly check; fails naming the bad files, which the next plan then fetches.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import download, gguf, models, sound
from .handler import Action, ActionError, Context, Handler, Outcome, argument, os_sentence

MARGIN = 256 << 20  # bytes that stay free on the disk


@dataclass
class Job:
    """One model on its way to be as wanted."""

    context: Context
    action: Action
    name: str
    root: Path
    revision: str
    files: dict[str, Mapping[str, Any]]  # path -> {"url", "size", "sha256"}
    record: models.Manifest  # as it was last read or saved
    told: float = field(default=0.0)
    read: dict[str, dict[str, Any]] = field(default_factory=dict)  # path -> what was found
    learned: dict[str, Any] = field(default_factory=dict)  # further entries of the record

    @property
    def place(self) -> Path:
        return self.root / self.revision

    @property
    def partial(self) -> Path:
        return self.root / f"{self.revision}.partial"

    def tell(self, message: str, percent: float | None) -> None:
        """Progress, at most once a second."""
        now = time.monotonic()
        if now - self.told >= 1:
            self.told = now
            self.context.progress(self.action, message, percent)

    def save(self) -> None:
        """Record what this job found of files that are still the same, beside what others did."""
        with models.updated(self.name, self.revision) as record:
            if "wanted" in record or "wanted" in self.learned:  # else it is another revision's now
                record.update(self.learned)
                for path, found in self.read.items():
                    if models.is_same(self.place / path, found):
                        record["files"][path] = found
        self.record = record

    def size(self, path: str) -> int:
        return int(self.files[path]["size"])

    def states(self) -> dict[str, models.State]:
        return {
            path: models.state(self.place / path, wanted, self.record["files"].get(path))
            for path, wanted in self.files.items()
        }


def job(context: Context, action: Action) -> Job:
    name, revision = argument(action, "name", str), argument(action, "revision", str)
    files = {}
    for item in argument(action, "files", list):
        parts = Path(item["path"]).parts
        if not parts or ".." in parts or parts[0] == "/":
            raise ActionError(f"model {name}: the path {item['path']!r} leaves the model's folder")
        files[item["path"]] = item
    root = Path(argument(action, "root", str))
    return Job(context, action, name, root, revision, files, models.manifest(name, revision))


def fetch(context: Context, action: Action) -> Outcome:
    """Bring a model to be sound and in place."""
    work = job(context, action)
    try:
        return _fetch(work, action)
    except OSError as error:
        raise ActionError(os_sentence(error, f"model {work.name}: {error.filename}")) from error
    except models.Changed as error:
        raise ActionError(f"model {work.name}: {error}") from error


def _fetch(work: Job, action: Action) -> Outcome:
    work.learned["root"] = str(work.root)
    work.learned["wanted"] = {
        path: {"size": item["size"], "sha256": item["sha256"]} for path, item in work.files.items()
    }
    verified = _verify(work, everything=bool(action.get("full")))
    states = work.states()
    wanted = [path for path in work.files if states[path]["state"] != "sound"]
    required = argument(action, "required", dict)
    if wanted:
        _make_room(work, wanted)
        fresh = _download(work, wanted, _token(work, action))
        _prove_whole(work, wanted, required)
        _put_in_place(work, wanted, fresh)
        total = sum(work.size(path) for path in wanted)
        return Outcome(True, f"fetched {', '.join(wanted)} ({_bytes(total)})")
    _prove_whole(work, [], required)
    work.save()
    count = len(verified)
    return Outcome(False, f"read {count} file{'s' * (count != 1)} whole, all sound")


def verify(context: Context, action: Action) -> Outcome:
    """Read a whole model again and record what was found."""
    work = job(context, action)
    try:
        _verify(work, everything=True)
    except OSError as error:
        raise ActionError(os_sentence(error, f"model {work.name}: {error.filename}")) from error
    except models.Changed as error:
        raise ActionError(f"model {work.name}: {error}") from error
    if "wanted" not in work.record:
        return Outcome(False, "was replaced by another revision meanwhile")
    bad = [f"{p} {s['reason']}" for p, s in work.states().items() if s["state"] != "sound"]
    if bad:
        raise ActionError(f"model {work.name}: {'; '.join(bad)}; the next run fetches it again")
    return Outcome(False, f"read {len(work.files)} files whole, all sound")


def _verify(work: Job, everything: bool) -> list[str]:
    """Read the files in place that need it, and record what was found."""
    states = work.states()
    due = [
        path
        for path, found in states.items()
        if found["state"] == "unchecked" or (everything and found["size"] == work.size(path))
    ]
    total, before = sum(work.size(path) for path in due) or 1, 0
    for path in due:

        def tell(done: int, path: str = path, before: int = before) -> None:
            work.tell(f"reads {path}", 100 * (before + done) / total)

        work.read[path] = models.read_whole(work.place / path, tell)
        before += work.size(path)
    if due:
        work.save()
    return due


def _make_room(work: Job, wanted: Sequence[str]) -> None:
    """Refuse a download that can't fit, with the numbers."""
    work.partial.mkdir(parents=True, exist_ok=True, mode=0o755)
    there = sum(download.present_bytes(work.partial / path) for path in wanted)
    needed = sum(work.size(path) for path in wanted) - there
    free = shutil.disk_usage(work.root).free
    if needed > 0 and needed + MARGIN > free:
        raise ActionError(
            f"model {work.name}: {_bytes(needed)} are still to come and {_bytes(MARGIN)} must stay "
            f"free, {work.root} has {_bytes(free)} free: make room or name another model_root"
        )


def _download(work: Job, wanted: Sequence[str], token: str | None) -> dict[str, dict[str, Any]]:
    """Fetch files into the partial folder and prove each; what came is kept whatever fails."""
    proved: dict[str, dict[str, Any]] = {}
    faults: dict[str, str] = {}
    total = sum(work.size(path) for path in wanted) or 1

    def tell(present: int, rate: float) -> None:
        percent = 100 * present / total
        work.tell(f"fetches {_bytes(present)} of {_bytes(total)}, {rate / 1e6:.1f} MB/s", percent)

    for _ in range(2):  # a file that came whole with wrong bytes is fetched once more
        left = [path for path in wanted if path not in proved]
        fetches = [
            download.Fetch(work.files[path]["url"], work.partial / path, work.size(path))
            for path in left
        ]
        failed = download.fetch(fetches, token, tell, lambda: work.context.gone)
        faults = {
            path: failed[work.partial / path] for path in left if work.partial / path in failed
        }
        spoilt = []
        for path in left:
            if path in faults:
                continue
            found = _proof(work, path)
            if isinstance(found, dict):
                proved[path] = found
            else:
                faults[path] = found
                (work.partial / path).unlink()
                spoilt.append(path)
        if not spoilt:
            break
    if faults:
        said = "; ".join(f"{path}: {clause}" for path, clause in faults.items())
        url = work.files[next(iter(faults))]["url"]
        raise ActionError(f"model {work.name}: {said} (from {url})")
    return proved


def _proof(work: Job, path: str) -> dict[str, Any] | str:
    """The record of a file that came whole, or what is wrong with it."""
    target, wanted = work.partial / path, work.files[path]
    size = target.stat().st_size
    if size != wanted["size"]:
        with target.open("rb") as stream:
            start = stream.read(64)
        what = gguf.foreign(start)
        return what or f"has {size} bytes on the server, expected {wanted['size']}"
    found = models.read_whole(target, lambda done: work.tell(f"reads {path}", 100 * done / size))
    if found["sha256"] != wanted["sha256"]:
        return f"has sha256 {found['sha256']} on the server, expected {wanted['sha256']}"
    return found


def _prove_whole(work: Job, fresh: Sequence[str], required: Mapping[str, Any]) -> None:
    """The GGUF structure of all parts and the required metadata, before anything is in place."""
    if work.action.get("format") != "gguf":
        return
    paths = [
        (work.partial if path in fresh else work.place) / path
        for path in work.files
        if path.endswith(".gguf")
    ]
    profile, others = str(work.action.get("profile") or ""), work.action.get("others", [])
    found, metadata = sound.problems(paths, required, profile, others)
    if found:
        more = f", and {len(found) - 3} more" if len(found) > 3 else ""
        raise ActionError(f"model {work.name}: {'; '.join(found[:3])}{more}")
    work.learned["metadata"] = models.kept_metadata(metadata, required)


def _put_in_place(work: Job, fresh: Sequence[str], records: Mapping[str, dict[str, Any]]) -> None:
    """Rename what was proved into place, and record it."""
    expected = {work.partial / path for path in fresh}
    for found in [*work.partial.rglob("*")]:
        if found not in expected and not found.is_dir():
            found.unlink()  # left by an earlier, other wish
    for path in fresh:
        (work.partial / path).chmod(0o644)
        with open(work.partial / path, "rb") as stream:
            os.fsync(stream.fileno())
    for folder in [work.partial, *(p for p in work.partial.rglob("*") if p.is_dir())]:
        folder.chmod(0o755)
    if work.place.exists():
        repaired = any((work.place / path).exists() for path in fresh)
        if repaired:
            work.learned["repaired_at"] = time.time()
            work.save()  # first: a run that dies here must not hide it
        for path in fresh:
            (work.place / path).parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            (work.partial / path).replace(work.place / path)
        if repaired:
            work.learned["repaired_at"] = time.time()  # a server started meanwhile has the old
        shutil.rmtree(work.partial)
    else:
        work.partial.rename(work.place)
    for path in fresh:
        now = models.identity((work.place / path).lstat())  # the rename changed ctime
        proved = records[path]
        if any(now[key] != proved[key] for key in ("size", "mtime_ns", "inode")):
            raise models.Changed(f"{path} changed while it was put in place; run again")
        work.read[path] = {**proved, **now}
    work.save()


def _token(work: Job, action: Action) -> str | None:
    if not (name := action.get("token_file")):
        return None
    token = Path(str(name)).read_text().strip()
    if not token or not token.isprintable() or " " in token:
        raise ActionError(f"model {work.name}: {name} holds no token, expected one word")
    work.context.secrets.add(token)
    return token


def _bytes(count: int) -> str:
    """A number of bytes for people: ``12.3 GB``."""
    units = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
    found = next((pair for pair in units if count >= pair[1]), None)
    return f"{count / found[1]:.1f} {found[0]}" if found else f"{count} B"


HANDLERS: dict[str, Handler] = {
    "model.fetch": Handler(one=fetch),
    "model.verify": Handler(one=verify),
}
