"""The hub's HTTP server: ``python -m sandbox.hub.server``, started by ``sandbox up``."""

from __future__ import annotations

import argparse
import json
import re
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from sandbox.errors import SandboxError
from sandbox.hub.faults import Fault, Switches
from sandbox.hub.store import Entry, Store

BLOCK = 64 * 1024
HTML = (
    b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>Please sign in.</body></html>\n"
)
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:{sha}\nsize {size}\n"
_RANGE = re.compile(r"^bytes=(\d*)-(\d*)$")
_LISTING = re.compile(r"^/([^/]+)/([^/]+)/sha256$")


class Hub(ThreadingHTTPServer):
    """The server with its files, switches and access log."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], store: Store, run: Path) -> None:
        self.store = store
        self.switches = Switches(run / "hub-faults.json")
        self._log = run / "hub-access.jsonl"
        self._log_lock = threading.Lock()
        super().__init__(address, Handler)

    def record(self, line: dict[str, Any]) -> None:
        """Append one finished request to the access log."""
        with self._log_lock, self._log.open("a") as handle:
            handle.write(json.dumps(line) + "\n")


class Handler(BaseHTTPRequestHandler):
    """One request. Every answer is logged when it ended, however it ended."""

    protocol_version = "HTTP/1.1"
    server_version = "sandbox-hub"
    server: Hub

    status = 0
    sent = 0

    def do_GET(self) -> None:
        """Answer with content."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """Answer with headers only."""
        self._answer(body=False)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on stderr: the access log has it."""

    def _answer(self, body: bool) -> None:
        began = time.time()
        self.status = self.sent = 0
        whole = True
        faults: dict[str, Fault] = {}
        path = unquote(urlsplit(self.path).path)
        try:
            listing = self._listing(path)
            if listing is not None:
                self._plain(HTTPStatus.OK, json.dumps(listing).encode() + b"\n", body)
            else:
                entry = self.server.store.locate(path)
                faults = self.server.switches.take(path, body)
                whole = self._file(entry, faults, body)
        except SandboxError as error:
            self._plain(HTTPStatus.NOT_FOUND, f"{error}\n".encode(), body)
        except (ConnectionError, TimeoutError):
            whole = False
            self.close_connection = True
        finally:
            self.server.record(
                {
                    "time": round(began, 3),
                    "seconds": round(time.time() - began, 3),
                    "client": self.client_address[0],
                    "method": self.command,
                    "path": path,
                    "range": self.headers.get("Range"),
                    "status": self.status,
                    "bytes": self.sent,
                    "whole": whole,
                    "faults": sorted(faults),
                }
            )

    def _listing(self, path: str) -> list[dict[str, Any]] | None:
        if path in ("/", "/sha256"):
            return self.server.store.listing()
        match = _LISTING.match(path)
        if not match:
            return None
        query = parse_qs(urlsplit(self.path).query)
        revision = query.get("revision", ["main"])[0]
        found = self.server.store.listing(match[1], match[2], revision)
        if not found:
            raise SandboxError(f"{match[1]}/{match[2]} has no revision {revision} here.")
        return found

    def _plain(
        self,
        status: HTTPStatus,
        content: bytes,
        body: bool,
        kind: str = "application/json",
        **headers: str,
    ) -> None:
        self._head(status, len(content), {"Content-Type": kind, **headers})
        if body:
            self.wfile.write(content)
            self.sent += len(content)

    def _head(self, status: HTTPStatus, length: int, headers: dict[str, str]) -> None:
        self.status = int(status)
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.flush()

    def _file(self, entry: Entry, faults: dict[str, Fault], body: bool) -> bool:
        """Send a file or what the faults make of it; False when the answer broke off."""
        if "redirect-loop" in faults:
            self._plain(HTTPStatus.FOUND, b"", body, Location=self.path)
            return True
        if "404" in faults or not entry.file.is_file():
            self._plain(HTTPStatus.NOT_FOUND, b"Entry not found\n", body, "text/plain")
            return True
        if "503" in faults:
            text = b"busy\n"
            self._plain(HTTPStatus.SERVICE_UNAVAILABLE, text, body, "text/plain", Retry_After="1")
            return True
        size = entry.file.stat().st_size
        digest = self.server.store.digest(entry.file)
        if "html" in faults:
            self._plain(HTTPStatus.OK, HTML, body, "text/html")
            return True
        if "lfs-pointer" in faults:
            text = LFS.format(sha=digest, size=size).encode()
            self._plain(HTTPStatus.OK, text, body, "text/plain")
            return True
        if "wrong-size" in faults:
            size = max(0, size - (faults["wrong-size"].value or 100))
        span = self._span(size, digest, ignore="no-range" in faults)
        if "416" in faults or span is None:
            status = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
            self._plain(status, b"", body, "text/plain", Content_Range=f"bytes */{size}")
            return True
        start, end = span
        headers = {
            "Content-Type": "application/octet-stream",
            "Accept-Ranges": "bytes",
            "ETag": f'"{digest}"',
            # Hugging Face's names for the same facts
            "X-Linked-Etag": f'"{digest}"',
            "X-Linked-Size": str(size),
            "X-Repo-Commit": entry.revision,
        }
        partial = (start, end) != (0, size)
        if partial:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        status = HTTPStatus.PARTIAL_CONTENT if partial else HTTPStatus.OK
        self._head(status, end - start, headers)
        return self._body(entry.file, start, end, faults) if body else True

    def _span(self, size: int, digest: str, ignore: bool) -> tuple[int, int] | None:
        """The asked bytes as [start, end); the whole file without a usable range; None for 416."""
        asked = self.headers.get("Range")
        unchanged = self.headers.get("If-Range", f'"{digest}"') == f'"{digest}"'
        match = _RANGE.match(asked) if asked and unchanged and not ignore else None
        if not match or not (match[1] or match[2]):
            return (0, size)
        if not match[1]:  # the last N bytes
            return (max(0, size - int(match[2])), size) if int(match[2]) and size else None
        start = int(match[1])
        end = min(size, int(match[2]) + 1) if match[2] else size
        return (start, end) if start < end else None

    def _body(self, file: Path, start: int, end: int, faults: dict[str, Fault]) -> bool:
        flip = file.stat().st_size // 2 if "wrong-bytes" in faults else -1
        cut = faults["cut-at"].value if "cut-at" in faults else end - start
        rate = faults["slow"].value * 1000 if "slow" in faults else 0
        # a slow answer goes out in ten pieces a second
        block = max(1, min(BLOCK, rate // 10)) if rate else BLOCK
        if "hang" in faults:
            time.sleep(faults["hang"].value or 60)
        with file.open("rb") as handle:
            handle.seek(start)
            at = start
            while at < end and self.sent < cut:
                piece = bytearray(handle.read(min(block, end - at, cut - self.sent)))
                if not piece:
                    break
                if at <= flip < at + len(piece):
                    piece[flip - at] ^= 0xFF
                self.wfile.write(piece)
                self.sent += len(piece)
                at += len(piece)
                if rate:
                    time.sleep(len(piece) / rate)
        if at < end:
            # An orderly close after exactly the bytes promised to the switch: a reset would
            # throw away what the client has not read yet, and no test could name the offset.
            self.close_connection = True
            return False
        return True


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="the hub's files")
    parser.add_argument("--run", type=Path, required=True, help="where switches and log lie")
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    Hub((options.address, options.port), Store(options.folder), options.run).serve_forever()


if __name__ == "__main__":
    main()
