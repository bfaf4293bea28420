"""Breaking one thing and mending it; runs that something happens to while they are under way."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from glue import data_files
from sandbox import faults
from sandbox.client import REPOSITORY
from sandbox.hub.store import Store
from tests.sandbox.conftest import REPORT, Fleet, Run

UNIT = "llama-server@tiny.service"
SYSCTL_FILE = "/etc/sysctl.d/90-voltfleet.conf"
SYSCTL_CHANGE = f"file:{SYSCTL_FILE}"
PATIENCE_S = 60  # for something that a test waits for; only a broken product needs it


@contextmanager
def broken(fleet: Fleet, host: str, what: str, *arguments: str) -> Iterator[None]:
    """Break a thing that `sandbox break` can also mend, and mend it whatever happens."""
    fleet.lab.break_(host, what, *arguments)
    try:
        yield
    finally:
        fleet.lab.break_(host, faults.known()[what].undo)


@contextmanager
def hub_fault(fleet: Fleet, kind: str, value: int = 0, **more: Any) -> Iterator[None]:
    """Switch a fault of the hub on, and all of them off at the end."""
    fleet.lab.hub_fault(kind, value, **more)
    try:
        yield
    finally:
        fleet.lab.hub_clear()


@contextmanager
def replaced(fleet: Fleet, host: str, path: str, script: str) -> Iterator[None]:
    """Put a script in the place of a program of a host, the program beside it as PATH.real."""
    fleet.lab.sh(host, f"mv {path} {path}.real")
    write = f"cat > {path} <<'END'\n{script}\nEND\nchmod 755 {path}"
    try:
        fleet.lab.sh(host, write)
        yield
    finally:
        fleet.lab.sh(host, f"mv {path}.real {path}")


def edit(fleet: Fleet, *hosts: str) -> None:
    """Edit a managed file by hand: something for the next run to repair."""
    for host in hosts:
        fleet.lab.break_(host, "edit-file", SYSCTL_FILE)


def no_traceback(run: Run) -> None:
    """Bad input and broken hosts give sentences."""
    for text in (run.out, run.err):
        assert "Traceback" not in text, text[-4000:]
        assert "unexpected " not in text, text[-4000:]


def failure(run: Run, host: str) -> str:
    """The one sentence about a host that failed."""
    no_traceback(run)
    assert run.code == 1, (run.code, run.err[-4000:])
    assert run.states[host] == "failed", run.states
    (sentence,) = run.hosts[host]["failed"]
    assert "\n" not in sentence
    assert sentence in run.err
    print(f"{host}: {sentence}")
    return str(sentence)


def converges(fleet: Fleet, *words: str) -> Run:
    """A run that ends well; what it changed is in its report."""
    run = fleet.deploy(*words)
    no_traceback(run)
    assert run.code == 0, run.err[-4000:]
    return run


def settled(fleet: Fleet, *words: str) -> None:
    """A run finds nothing to change."""
    run = converges(fleet, *words)
    assert set(run.states.values()) == {"no change"}, run.hosts


class Under:
    """A run under way."""

    def __init__(self, fleet: Fleet, *words: str) -> None:
        self.process = fleet.start(*words)
        self._texts: dict[str, list[str]] = {"out": [], "err": []}
        self._readers = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("out", self.process.stdout), ("err", self.process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str, stream: Any) -> None:
        for line in stream:
            self._texts[name].append(line)

    def text(self, name: str = "err") -> str:
        """What it printed until now."""
        return "".join(self._texts[name])

    def until(self, pattern: str) -> None:
        """Wait until it has printed what a regular expression finds."""
        eventually(lambda: self.process.poll() is not None or bool(re.search(pattern, self.text())))
        assert re.search(pattern, self.text()), self.text()[-4000:]

    def kill(self) -> None:
        """End the controller's process as nothing can prepare for."""
        self.process.kill()
        self.process.wait()

    def end(self) -> Run:
        """Wait for its end."""
        try:
            code = self.process.wait(timeout=300)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        for reader in self._readers:
            reader.join()
        hosts = json.loads(REPORT.read_text())["hosts"] if REPORT.exists() else {}
        return Run(code, self.text("out"), self.text("err"), hosts)


def eventually(so: Callable[[], bool]) -> None:
    """Wait until something is so."""
    ends = time.monotonic() + PATIENCE_S
    while not so():
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.05)


def big_model(fleet: Fleet, name: str, megabytes: int, seed: int = 0) -> dict[str, Any]:
    """Put a sound GGUF that nobody serves on the hub; its entry for the data's `models`."""
    folder = fleet.lab.settings.run
    file = folder / f"{name}.gguf"
    writer = gguf.GGUFWriter(str(file), "llama")
    values = np.random.RandomState(seed).standard_normal((megabytes, 1 << 18)).astype(np.float32)
    writer.add_tensor("padding", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    store = Store(fleet.lab.settings.hub)
    entry = store.add(file, f"voltfleet/{name}/resolve/main/{name}.gguf")
    file.unlink()
    found = {
        "path": f"{name}.gguf",
        "size": entry.file.stat().st_size,
        "sha256": store.digest(entry.file),
    }
    return {
        "repository": f"voltfleet/{name}",
        "revision": "main",
        "files": [found],
        "architecture": "llama",
    }


def with_models(more: dict[str, Any]) -> tuple[str, str]:
    """The option that gives the lab's hosts further models."""
    return "--data", f"models={json.dumps({**lab_data()['models'], **more})}"


def lab_data() -> dict[str, Any]:
    """The variables of group_data/sandbox.py."""
    return data_files.read(Path(REPOSITORY) / "group_data" / "sandbox.py")


def forget_models(fleet: Fleet, host: str, *names: str) -> None:
    """Remove from a host what a test let it fetch."""
    for name in names:
        paths = f"/srv/models/{name} /var/lib/voltfleet/models/{name}.json"
        fleet.lab.sh(host, f"rm -rf {paths}")


def requests(fleet: Fleet, path: str) -> list[dict[str, Any]]:
    """Finished downloads of a path from the hub, oldest first."""
    log = fleet.lab.hub_log()
    return [item for item in log if item["method"] == "GET" and path in item["path"]]
