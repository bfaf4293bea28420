"""A small model hub on 127.0.0.1 that can misbehave, for tests of downloads."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Hub:
    """What the hub holds (path to bytes) and how it fails (path to fault)."""

    files: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    token: str | None = None
    cut_at: int = 0
    requests: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)
    url: str = ""


@contextmanager
def hub() -> Iterator[Hub]:
    """A hub, up for the time of the block."""
    state = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def plain(self, status: int, text: bytes, kind: str = "text/plain", **more: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            for key, value in more.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(text)

        def answer(self, body: bool) -> None:
            auth, span = self.headers.get("Authorization"), self.headers.get("Range")
            state.requests.append((self.command, self.path, span, auth))
            fault = state.faults.get(self.path, "")
            if state.token is not None and auth != f"Bearer {state.token}":
                return self.plain(401, b"who are you")
            if fault == "loop":
                return self.plain(302, b"", Location=self.path)
            if fault.startswith("to "):
                return self.plain(302, b"", Location=fault[3:])
            if fault == "html":
                return self.plain(200, b"<!DOCTYPE html>\n<html>sign in</html>\n", "text/html")
            if fault == "pointer":
                return self.plain(200, b"version https://git-lfs.github.com/spec/v1\noid x\n")
            if fault.isdigit():
                return self.plain(int(fault), b"no")
            data = state.files.get(self.path)
            if data is None:
                return self.plain(404, b"no such file")
            if fault == "wrong":
                data = data[:-1] + bytes([data[-1] ^ 1])
            if fault == "wrong once":
                data = data[:-1] + bytes([data[-1] ^ 1])
                if body:
                    del state.faults[self.path]
            start = 0
            if span and (match := re.fullmatch(r"bytes=(\d+)-(\d*)", span)):
                start = int(match[1])
                end = int(match[2]) + 1 if match[2] else len(data)
                if start >= len(data):
                    return self.plain(416, b"")
                piece = data[start:end]
                self.send_response(206)
                last = start + len(piece) - 1
                self.send_header("Content-Range", f"bytes {start}-{last}/{len(data)}")
            else:
                piece = data
                self.send_response(200)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(piece)))
            self.end_headers()
            if not body:
                return None
            if fault == "cut":
                room = max(0, state.cut_at - start)
                self.wfile.write(piece[:room])
                self.close_connection = True
                return None
            self.wfile.write(piece)
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
