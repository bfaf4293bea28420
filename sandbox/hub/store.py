"""The hub's files on disk: ``models/<org>/<model>/<revision>/<file>`` and ``files/<path>``."""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.errors import SandboxError

_RESOLVE = re.compile(r"^(?P<org>[^/]+)/(?P<model>[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)$")


@dataclass(frozen=True)
class Entry:
    """One file: the path of its URL, where it lies, and its revision (empty for files/)."""

    url_path: str
    file: Path
    revision: str


class Store:
    """Files below a folder, with their digests computed once per content."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._digests: dict[tuple[str, int, int], str] = {}
        self._lock = threading.Lock()

    def locate(self, url_path: str) -> Entry:
        """Where a URL path lies; the file need not exist.

        Raises SandboxError when the path has not the hub's shape or leaves the folder.
        """
        path = url_path.strip("/")
        if ".." in path.split("/"):
            raise SandboxError(f"The hub's path {url_path} must not contain '..'.")
        if path.startswith("files/") and len(path) > len("files/"):
            return Entry(path, self.folder / path, "")
        match = _RESOLVE.match(path)
        if not match:
            raise SandboxError(
                f"The hub has no path {url_path}: use ORG/MODEL/resolve/REVISION/FILE "
                "or files/PATH."
            )
        part = match.groupdict()
        file = self.folder / "models" / part["org"] / part["model"] / part["revision"]
        return Entry(path, file / part["file"], part["revision"])

    def add(self, source: Path, url_path: str) -> Entry:
        """Copy a file onto the hub; readers see the old or the new one, never half of it."""
        if not source.is_file():
            raise SandboxError(f"There is no file {source} to put on the hub.")
        entry = self.locate(url_path)
        entry.file.parent.mkdir(parents=True, exist_ok=True)
        part = entry.file.with_name(f".{entry.file.name}.part")
        shutil.copyfile(source, part)
        part.replace(entry.file)
        return entry

    def digest(self, file: Path) -> str:
        """sha256 of a file, remembered while its size and times stay."""
        info = file.stat()
        # ctime as well: a test may change bytes and put the modification time back
        key = (str(file), info.st_size, info.st_ctime_ns)
        with self._lock:
            if key not in self._digests:
                self._digests[key] = sha256(file)
            return self._digests[key]

    def listing(self, org: str = "", model: str = "", revision: str = "") -> list[dict[str, Any]]:
        """Path, size and sha256 of every file of one model's revision, or of all there is."""
        top = self.folder / "models" / org / model / revision if org else self.folder
        found = []
        for file in sorted(path for path in top.rglob("*") if path.is_file()):
            if file.name.startswith("."):
                continue
            path = str(file.relative_to(top)) if org else self._url_path(file)
            found.append({"path": path, "size": file.stat().st_size, "sha256": self.digest(file)})
        return found

    def _url_path(self, file: Path) -> str:
        parts = file.relative_to(self.folder).parts
        if parts[0] == "files" or len(parts) < 5:
            return "/".join(parts)
        return "/".join([parts[1], parts[2], "resolve", *parts[3:]])


def sha256(file: Path) -> str:
    """sha256 of a file's content, in hex."""
    digest = hashlib.sha256()
    with file.open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
