"""Actions of releases.

``release.build`` engine, root, fingerprint, source (kind, url, sha256 or commit), options, targets,
build_packages, compiler, jobs, flags_used, architectures_used, hints, lock_wait_s: fetches the
sources, builds, proves and puts in place.

``release.unpack`` the same, and archive, sha256: does so from an archive that lies on the host.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import act_packages, build, download, releases
from .handler import (
    Action,
    ActionError,
    Context,
    Handler,
    Outcome,
    Sink,
    argument,
    must,
    os_sentence,
    texts,
)
from .releases import CACHE

LOGS = Path("/var/log/voltfleet")
BUILD_BYTES = 4 << 30  # free space that a build may need
GIT_S = 1800


class Under:
    """A sink that tells what is done for an action under that action's id."""

    def __init__(self, sink: Sink, id: str) -> None:
        self.sink = sink
        self.id = id
        self.gone = sink.gone

    def line(self, value: Mapping[str, Any]) -> None:
        if value.get("event") == "progress":
            self.sink.line({**value, "id": self.id})
        self.gone = self.sink.gone


def make(context: Context, action: Action) -> Outcome:
    """Build a release from its sources."""
    root, fingerprint = argument(action, "root", str), argument(action, "fingerprint", str)
    place = releases.folder(root, fingerprint)
    with _alone(context, action, fingerprint) as lock, _sentences(fingerprint):
        if not releases.unsound(place):
            return Outcome(False, "is there already")
        free = shutil.disk_usage(_existing(CACHE)).free
        if free < BUILD_BYTES:
            raise ActionError(
                f"a build needs {BUILD_BYTES / 1e9:.1f} GB, {CACHE} has {free / 1e9:.1f} GB free"
            )
        _packages(context, action)
        folder = CACHE / "build" / fingerprint
        work = build.Build(
            sources=_sources(context, action, folder),
            folder=folder / "made",
            log=LOGS / f"build-{fingerprint}.log",
            options=argument(action, "options", dict),
            targets=texts(action, "targets"),
            compiler=argument(action, "compiler", str),
            commit=_identity(argument(action, "source", dict))[:9],
            jobs=argument(action, "jobs", int),
            tell=_telling(context, action),
            deserted=lambda: context.gone,
            lock=lock,
        )
        build.build(work)
        fresh = place.with_name(f"{fingerprint}.new")
        build.install(work, fresh)
        facts = {
            "engine": action.get("engine"),
            "fingerprint": fingerprint,
            "source": action["source"],
            "options": dict(work.options),
            "targets": list(work.targets),
            "compiler": build.compiler_version(work.compiler),
        }
        releases.seal(fresh, {**facts, **_prove(fresh, action)})
        _put_in_place(fresh, place)
        shutil.rmtree(folder, ignore_errors=True)
        version = (releases.sealed(place) or {}).get("version", "")
        return Outcome(True, f"built {version}")


def unpack(context: Context, action: Action) -> Outcome:
    """Install a release that was built elsewhere."""
    root, fingerprint = argument(action, "root", str), argument(action, "fingerprint", str)
    archive, sha256 = Path(argument(action, "archive", str)), argument(action, "sha256", str)
    place = releases.folder(root, fingerprint)
    with _alone(context, action, fingerprint), _sentences(fingerprint):
        if not releases.unsound(place):
            archive.unlink(missing_ok=True)
            return Outcome(False, "is there already")
        found = releases.sha256_of(archive)
        if found != sha256:
            raise ActionError(
                f"archive {archive} has sha256 {found}, expected {sha256}: send it again"
            )
        fresh = place.with_name(f"{fingerprint}.new")
        releases.extract(archive, fresh)
        reason = releases.unsound(fresh, whole=True)
        if reason:
            raise ActionError(f"release {fingerprint} in {archive} {reason}")
        if (releases.sealed(fresh) or {}).get("fingerprint") != fingerprint:
            raise ActionError(f"archive {archive} holds another release than {fingerprint}")
        proved = _prove(fresh, action)
        _put_in_place(fresh, place)
        archive.unlink()
        return Outcome(True, f"installed {proved['version']}")


def _prove(fresh: Path, action: Action) -> dict[str, Any]:
    return releases.prove(
        fresh,
        texts(action, "targets"),
        texts(action, "flags_used"),
        texts(action, "architectures_used"),
        argument(action, "hints", dict),
    )


def _put_in_place(fresh: Path, place: Path) -> None:
    """Rename a proved release into place; an unsound one of that name makes way."""
    old = place.with_name(f"{place.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    fresh.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def _packages(context: Context, action: Action) -> None:
    """Install what the build needs, told under the build's id."""
    wanted = [
        {
            "id": f"{action['id']}/{name}",
            "do": "package.install",
            "name": name,
            "version": None,
            "lock_wait_s": argument(action, "lock_wait_s", int),
        }
        for name in texts(action, "build_packages")
    ]
    under = replace(context, sink=Under(context.sink, action["id"]))
    failed = [
        str(r) for r in act_packages.install(under, wanted).values() if isinstance(r, ActionError)
    ]
    if failed:
        raise ActionError(f"the build's packages can't be installed: {failed[0]}")


def _identity(source: Mapping[str, Any]) -> str:
    return str(source.get("sha256") or source.get("commit"))


def _sources(context: Context, action: Action, folder: Path) -> Path:
    """The unpacked sources, which an interrupted build finds again."""
    source = argument(action, "source", dict)
    place, done = folder / "sources", folder / "sources.whole"
    if done.exists():
        return place
    if source.get("kind") == "git":
        _clone(source, place)
    else:
        archive = _archive(context, action, source)
        context.progress(action, "unpacks the sources")
        releases.extract(archive, place)
    done.touch()
    return place


def _archive(context: Context, action: Action, source: Mapping[str, Any]) -> Path:
    """The archive of the sources, fetched unless it is there, always proved."""
    url, sha256 = str(source["url"]), str(source["sha256"])
    if url.startswith("file://"):
        path = Path(url.removeprefix("file://"))
    else:
        path = CACHE / "sources" / sha256
        if not path.exists() or releases.sha256_of(path) != sha256:
            tell = _telling(context, action)
            coming = path.with_name(f"{sha256}.part")
            failed = download.fetch(
                [download.Fetch(url, coming, 0)],
                None,
                lambda present, rate: tell(f"fetches the sources, {present / 1e6:.0f} MB", None),
                lambda: context.gone,
            )
            if failed:
                raise ActionError(f"sources {url}: {failed[coming]}")
            coming.replace(path)
    found = releases.sha256_of(path)
    if found != sha256:
        if not url.startswith("file://"):
            path.unlink()
        raise ActionError(f"sources {url} have sha256 {found}, expected {sha256}")
    return path


def _clone(source: Mapping[str, Any], place: Path) -> None:
    url, commit = str(source["url"]), str(source["commit"])
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    os.environ["GIT_TERMINAL_PROMPT"] = "0"  # a repository that asks for a password must fail
    for words in (["init", "--quiet"], ["fetch", "--quiet", "--depth=1", "--", url, commit]):
        must(["git", "-C", str(place), *words], GIT_S)
    must(["git", "-C", str(place), "checkout", "--quiet", "--detach", commit], GIT_S)


def _telling(context: Context, action: Action) -> Any:
    """A teller of progress that speaks when the percentage or the doing changes, or a second has
    passed."""
    said: dict[str, Any] = {"what": None, "at": 0.0}

    def tell(message: str, percent: float | None) -> None:
        now = time.monotonic()
        if (message, percent) != said["what"] and now - said["at"] >= 1:
            said.update(what=(message, percent), at=now)
            context.progress(action, message, percent)

    return tell


@contextmanager
def _alone(context: Context, action: Action, fingerprint: str) -> Iterator[int]:
    """One process at a time makes a release; the others wait and then find it."""
    (CACHE / "build").mkdir(parents=True, exist_ok=True, mode=0o700)
    with (CACHE / "build" / f"{fingerprint}.lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                context.progress(action, "waits: another process makes this release")
                if context.gone:
                    raise ActionError("the connection was lost while waiting; run again") from None
                time.sleep(2)
        yield lock.fileno()


@contextmanager
def _sentences(fingerprint: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ActionError(os_sentence(error, f"release {fingerprint}: {error.filename}")) from error


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


HANDLERS: dict[str, Handler] = {
    "release.build": Handler(one=make),
    "release.unpack": Handler(one=unpack),
}
