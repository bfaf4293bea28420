"""The gate of a server, the check of its flags, what is put back when it fails: G13, C14 to C16."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from files.agent import act_serving, act_units, releases
from files.agent.actions import perform
from files.agent.handler import ActionError, Context, Outcome
from tests.unit.act_support import Events, act, calls, program

UNIT = "llama-server@tiny.service"
MODEL = "/srv/models/tiny/current/tiny.gguf"
KEY = "secret-key"


class Fake:
    """How a stand-in for llama-server behaves."""

    def __init__(self) -> None:
        self.loading = 0  # answers of /health before it is ready
        self.key: str | None = KEY
        self.model = MODEL
        self.status = 200
        self.timings: dict[str, Any] = {"predicted_n": 8, "predicted_per_token_ms": 1.5}
        self.port = 0


@pytest.fixture
def fake() -> Iterator[Fake]:
    state = Fake()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def say(self, status: int, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if self.path == "/health" and state.loading:
                state.loading -= 1
                return self.say(503, {"error": {"message": "Loading model"}})
            if self.path == "/health":
                return self.say(200, {"status": "ok"})
            return self.answer({"model_path": state.model})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer({"content": "x", "timings": state.timings}, state.status)

        def answer(self, value: dict[str, Any], status: int = 200) -> None:
            if state.key is not None and self.headers["Authorization"] != f"Bearer {state.key}":
                return self.say(401, {"error": {"message": "Invalid API Key"}})
            if status != 200:
                return self.say(status, {"error": {"message": "broken"}})
            return self.say(200, value)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield state
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(act_serving, "POLL_S", 0.01)
    unit(folder)
    program(folder, "journalctl", 'echo starting; echo "error: it broke"; echo bye')
    return folder


def unit(folder: Path, active: str = "active", pid: int = 0, restarts: int = 0) -> None:
    said = f"MainPID={pid}\\nActiveState={active}\\nNRestarts={restarts}\\nSubState=running\\n"
    program(folder, "systemctl", f"printf '{said}'")


def gate(fake: Fake, tmp_path: Path, events: Events | None = None, **more: Any) -> Outcome:
    action = {**gate_action(fake, tmp_path), **more}
    return act_serving.gate(Context(run="test", sink=events or Events()), action)


def gate_action(fake: Fake, tmp_path: Path) -> dict[str, Any]:
    key_file = tmp_path / "key"
    key_file.write_text(KEY + "\n")
    return {
        "id": "serve:tiny:gate",
        "do": "serve.gate",
        "instance": "tiny",
        "unit": UNIT,
        "host": "0.0.0.0",
        "port": fake.port,
        "key_file": str(key_file),
        "model": MODEL,
        "timeout_s": 5,
        "put_back": [],
    }


def refused(fake: Fake, tmp_path: Path, **more: Any) -> str:
    with pytest.raises(ActionError) as caught:
        gate(fake, tmp_path, **more)
    said = str(caught.value)
    assert "\n" not in said and KEY not in said
    return said


def test_a_good_server(fake: Fake, tmp_path: Path) -> None:
    fake.loading = 3
    events = Events()
    outcome = gate(fake, tmp_path, events)
    assert not outcome.changed and "8 tokens at 1.5 ms" in outcome.message
    assert [line["message"] for line in events.lines] == ["Loading model, 0 s"] * 3


def test_a_server_without_a_key(fake: Fake, tmp_path: Path) -> None:
    fake.key = None
    assert not gate(fake, tmp_path, key_file=None, host="127.0.0.1").changed
    assert "answers 200 without the key, expected 401" in refused(fake, tmp_path)


def test_another_server_on_the_port(fake: Fake, tmp_path: Path) -> None:
    fake.model = "/somewhere/else.gguf"
    assert "serves /somewhere/else.gguf, expected" in refused(fake, tmp_path)


def test_answers_that_are_none(fake: Fake, tmp_path: Path) -> None:
    fake.timings = {}
    assert "without timings" in refused(fake, tmp_path)
    fake.status = 500
    said = refused(fake, tmp_path)
    assert "answers a completion with 500: broken" in said
    assert "its log: error: it broke" in said and f"journalctl -u {UNIT}" in said


def test_a_wrong_key(fake: Fake, tmp_path: Path) -> None:
    fake.key = "another"
    assert "answers a completion with 401: Invalid API Key" in refused(fake, tmp_path)


def test_never_healthy(fake: Fake, tmp_path: Path) -> None:
    fake.loading = 10**9
    assert "is not healthy after 1 s (Loading model)" in refused(fake, tmp_path, timeout_s=1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert "(nothing listens)" in refused(fake, tmp_path, port=port, timeout_s=1)


def test_a_server_that_dies_is_not_waited_for(fake: Fake, tmp_path: Path, tools: Path) -> None:
    fake.loading = 10**9
    unit(tools, active="failed")
    assert "ended while it was starting" in refused(fake, tmp_path, timeout_s=600)
    body = 'n=$(wc -l < "$0.calls"); printf "MainPID=1\\nActiveState=active\\nNRestarts=$n\\n"'
    program(tools, "systemctl", body)  # restarted between one look and the next
    assert "ended while it was starting" in refused(fake, tmp_path, timeout_s=600)


def test_nobody_listens_to_the_gate(fake: Fake, tmp_path: Path) -> None:
    fake.loading = 10**9
    with pytest.raises(ActionError, match="the connection was lost"):
        gate(fake, tmp_path, Events(until=1), timeout_s=600)


def test_a_key_file_that_is_not_there(fake: Fake, tmp_path: Path) -> None:
    assert "can't be read" in refused(fake, tmp_path, key_file=str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            "load: error loading model: unknown model architecture: 'qwen4exp'\nexiting: error",
            "load: error loading model: unknown model architecture: 'qwen4exp'",
        ),
        ("error: invalid argument: --no-mmap\n\n", "error: invalid argument: --no-mmap"),
        (
            "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected\nok\n",
            "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected",
        ),
        ("couldn't bind HTTP server socket\nexiting\n", "couldn't bind HTTP server socket"),
        ("one\ntwo\n", "two"),
        ("", ""),
    ],
)
def test_last_words(log: str, words: str) -> None:
    assert act_serving.last_words(log) == words


def flags(root: Path, *names: str, architecture: str = "llama") -> Outcome:
    action = {
        "id": "serve:flags",
        "do": "serve.flags",
        "root": str(root),
        "fingerprint": "f1",
        "flags_used": list(names),
        "architectures_used": [architecture],
        "hints": {"--no-mmap": "use load-mode 'none'"},
    }
    return act_serving.check_flags(Context(run="test", sink=Events()), action)


def test_flags_of_a_release(tmp_path: Path) -> None:
    with pytest.raises(ActionError, match="is not there whole"):
        flags(tmp_path, "--port")
    place = releases.folder(str(tmp_path), "f1")
    (place / "lib").mkdir(parents=True)
    (place / "lib" / "libllama.so").write_bytes(b"\0llama\0")
    releases.seal(place, {"version": "version: 1", "flags": {"llama-server": ["--port"]}})
    assert flags(tmp_path, "--port") == Outcome(False, "all known to version: 1")
    with pytest.raises(ActionError, match=r"does not know --no-mmap \(use load-mode 'none'\)"):
        flags(tmp_path, "--port", "--no-mmap")
    with pytest.raises(ActionError, match="does not know the model architecture 'qwen4exp'"):
        flags(tmp_path, "--port", architecture="qwen4exp")


def link_and_restart(tmp_path: Path) -> list[dict[str, Any]]:
    link = tmp_path / "current"
    link.symlink_to("old")
    return [
        {"id": "link", "do": "link.set", "path": str(link), "target": "new", "needs": []},
        {
            "id": "restart",
            "do": "unit.restart",
            "name": UNIT,
            "limit_s": 5,
            "put_back": [str(link)],
            "needs": ["link"],
        },
    ]


def proved(fake: Fake, tmp_path: Path, name: str, needs: list[str]) -> dict[str, Any]:
    back = [str(tmp_path / "current")]
    return {**gate_action(fake, tmp_path), "id": name, "needs": needs, "put_back": back}


def test_a_failed_gate_puts_the_host_back(
    fake: Fake, tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(act_units, "SETTLE_S", 0.0)
    fake.status = 500
    first = proved(fake, tmp_path, "gate", ["restart"])
    second = proved(fake, tmp_path, "second", ["restart"])
    events = act(*link_and_restart(tmp_path), first, second)
    link = tmp_path / "current"
    assert events.failure("gate") == (
        "server tiny answers a completion with 500: broken; its log: error: it broke "
        f"(journalctl -u {UNIT}); put back as before: {link}; {UNIT} runs again with that"
    )
    assert link.readlink() == Path("old")
    asked = [line for line in calls(tools, "systemctl") if not line.startswith("show")]
    restart = f"--no-block restart -- {UNIT}"
    assert asked == [restart, "daemon-reload", f"reset-failed -- {UNIT}", restart]
    # the gate of another server of that host would prove what is not to be
    assert "all was put back as before" in events.failure("second")


def test_a_gate_that_passes_puts_nothing_back(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(act_units, "SETTLE_S", 0.0)
    act(*link_and_restart(tmp_path), proved(fake, tmp_path, "gate", ["restart"]))
    assert (tmp_path / "current").readlink() == Path("new")


def test_a_switch_is_finished_though_nobody_listens(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(act_units, "SETTLE_S", 0.0)
    fake.loading, fake.status = 3, 500
    events = Events(until=7)  # lost at the first progress of the gate
    actions = [*link_and_restart(tmp_path), proved(fake, tmp_path, "gate", ["restart"])]
    perform(Context(run="test", sink=events), actions, lambda doing: None)
    assert events.gone and events.lines[-1]["message"].startswith("Loading model")
    assert (tmp_path / "current").readlink() == Path("old")
