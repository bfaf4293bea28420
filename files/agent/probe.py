"""The verb ``probe``: what a host is, in one answer within a time limit, changing nothing.

Every part of the answer is learned in threads of its own, so that the parts that hang cost the
others nothing: when time is up the answer goes out, what has not been learned is
``{"unknown": reason}``, and the process leaves its stuck threads behind.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import probe_paths, probe_serving, probe_system, probe_tools
from .wire import Wire, WireError

# Shares of the deadline: a tool is stopped early enough for its part to say so, a part early
# enough for the answer to be written.
TOOL_SHARE = 0.85
PART_SHARE = 0.95
# A thing that hangs (a file on a dead network mount) keeps its thread; after each of these shares
# of the time another thread goes on with the things behind it.
SPARE_SHARES = (0.1, 0.3, 0.5)


class Part:
    """One part of the answer: a set of things, each looked at by itself.

    `keys` None: the part is learned in one go, `look` gets an empty string.
    """

    def __init__(
        self, name: str, look: Callable[[str], Any], keys: Iterable[str] | None = None
    ) -> None:
        self.name = name
        self._look = look
        self._whole = keys is None
        self._keys = ("",) if keys is None else tuple(keys)
        self._todo = deque(self._keys)
        self._found: dict[str, Any] = {}
        self._seconds: float | None = None

    @property
    def complete(self) -> bool:
        return len(self._found) == len(self._keys)

    def work(self, changed: threading.Condition) -> None:
        """Look at things until none is left; run by one or more threads."""
        started = time.monotonic()
        while True:
            try:
                key = self._todo.popleft()
            except IndexError:
                break
            found = _learned(self._look, key)
            with changed:
                self._found[key] = found
                if self.complete:
                    self._seconds = time.monotonic() - started
                    changed.notify_all()

    def start(self, changed: threading.Condition) -> None:
        """Give the part one more thread, unless nothing is left to look at."""
        if self._todo:
            threading.Thread(target=self.work, args=(changed,), daemon=True).start()

    def answer(self, limit_s: float) -> Any:
        """What was learned until now; call with the lock held."""
        late = {"unknown": f"timed out after {limit_s:g} s"}
        if self._whole:
            return self._found.get("", late)
        return {key: self._found.get(key, late) for key in self._keys}

    def seconds(self, limit_s: float) -> float:
        if not self._keys:
            return 0.0
        return round(limit_s if self._seconds is None else self._seconds, 4)


def _learned(look: Callable[[str], Any], key: str) -> Any:
    """What `look` gives, or why nothing could be learned. Never raises."""
    try:
        return look(key)
    except probe_tools.Unlearned as error:
        return {"unknown": str(error)}
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return {"unknown": f"{where}{error.strerror or error}"}
    except Exception as error:  # a fault in one look must not cost the other parts
        return {"unknown": f"{type(error).__name__}: {error}"}


def _asked(request: Mapping[str, Any], name: str, shape: type) -> Any:
    value = request.get(name, shape())
    if not isinstance(value, shape):
        raise WireError(
            f"the request's {name} is a {type(value).__name__}, expected a {shape.__name__}"
        )
    return value


def parts(request: Mapping[str, Any], tool_limit_s: float) -> list[Part]:
    """The parts a request asks for. Raises `WireError` for a request of the wrong shape."""

    def keyed(
        name: str, shape: type, look: Callable[[str, Any], Any] | Callable[[str], Any]
    ) -> Part:
        asked = _asked(request, name, shape)
        if shape is list:
            return Part(name, look, [str(key) for key in asked])  # type: ignore[arg-type]
        return Part(name, lambda key: look(key, asked[key]), asked)  # type: ignore[call-arg]

    packages = [str(name) for name in _asked(request, "packages", list)]
    units = [str(name) for name in _asked(request, "units", list)]
    return [
        # the slow ones first: they run while the others are being looked at
        Part("units", lambda _: probe_tools.units(units, tool_limit_s)),
        Part("packages", lambda _: probe_tools.packages(packages, tool_limit_s)),
        *_platform(request, tool_limit_s),
        keyed("models", dict, probe_serving.model),
        keyed("releases", dict, probe_serving.release),
        keyed("instances", dict, probe_serving.instance),
        Part("packages_state", lambda _: probe_tools.packages_state()),
        Part("system", lambda _: probe_system.system()),
        Part("dmi", lambda _: probe_system.dmi()),
        keyed("files", dict, probe_paths.file),
        keyed("directories", list, probe_paths.entry),
        keyed("links", list, probe_paths.entry),
        keyed("groups", list, probe_system.group),
        keyed("users", list, probe_system.user),
        keyed("sysctls", list, probe_system.sysctl),
        keyed("modules", list, probe_system.module),
        keyed("free_space", list, probe_paths.free_space),
        Part("leases", lambda _: probe_serving.leases()),
    ]


def _platform(request: Mapping[str, Any], tool_limit_s: float) -> list[Part]:
    """The part ``platform``, a key for each look. Its modules are imported (and travel, see
    ``facts/bundle.py``) only with a request that asks for it."""
    asked = request.get("platform")
    if asked is None:
        return []
    if not isinstance(asked, Mapping):
        raise WireError(f"the request's platform is a {type(asked).__name__}, expected an object")
    platform: Any = importlib.import_module(".platform", __package__)
    given = {**asked, "limit_s": tool_limit_s}
    looks = Part("platform", lambda key: platform.learned(key, given), platform.LOOKS)
    return [looks]


def learn(asked: list[Part], deadline_s: float) -> dict[str, Any]:
    """The document: every part's answer, after `deadline_s` at the latest."""
    started = time.monotonic()
    limit_s = PART_SHARE * deadline_s
    changed = threading.Condition()
    for part in asked:
        part.start(changed)

    def done() -> bool:
        return all(part.complete for part in asked)

    with changed:
        for share in (*SPARE_SHARES, PART_SHARE):
            left = started + share * deadline_s - time.monotonic()
            if changed.wait_for(done, timeout=max(0.0, left)):
                break
            if share != PART_SHARE:
                for part in asked:
                    part.start(changed)
        document = {part.name: part.answer(limit_s) for part in asked}
        document["parts"] = {part.name: {"seconds": part.seconds(limit_s)} for part in asked}
    return document


def main(request: Mapping[str, Any], wire: Wire) -> None:
    """The verb; see the protocol. Raises `WireError` for a request of the wrong shape."""
    deadline_s = request.get("deadline_s")
    seconds = isinstance(deadline_s, (int, float)) and not isinstance(deadline_s, bool)
    if deadline_s is None or not seconds or not 0 < deadline_s < threading.TIMEOUT_MAX:
        raise WireError(f"the request's deadline_s is {deadline_s!r}, expected seconds above 0")
    document = learn(parts(request, TOOL_SHARE * deadline_s), deadline_s)
    probe_tools.stop_all()
    wire.line({"state": document})
