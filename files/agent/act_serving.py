"""Actions of serving.

``serve.flags`` root, fingerprint, flags_used, architectures_used, hints: compares what will be
asked of a release with what it knows; never a change.

``serve.gate`` instance, unit, host, port, key_file (or null), model (path), timeout_s, put_back
(paths): waits until the server is healthy, then proves that the key is needed and that a
completion is answered with its timings. Never a change; its failure has the server's last words,
and what this run replaced of `put_back` becomes what it was, with the units it restarted.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import releases
from .act_units import as_before, refuse_after_put_back
from .handler import Action, ActionError, Context, Handler, Outcome, argument, command, must, texts
from .probe_serving import LOOPBACK

PROMPT = {
    "prompt": "The capital of France is",
    "n_predict": 8,
    "temperature": 0,
    "ignore_eos": True,
    "cache_prompt": False,
}
ANSWER_S = 120  # for a few tokens of the slowest machine
POLL_S = 0.5
LOG_LINES = 40
# Lines of llama-server's log that name a cause, the telling ones first.
CAUSES = (
    re.compile(r"unknown model architecture: '[^']+'"),
    re.compile(r"error: (?:invalid argument|unknown argument).*"),
    re.compile(r".*failed to initialize CUDA.*"),
    re.compile(r".*couldn't bind.*|.*address already in use.*", re.I),
    re.compile(r".*out of memory.*|.*failed to allocate.*", re.I),
    re.compile(r".*\berror\b.*|.*failed.*", re.I),
)


def check_flags(context: Context, action: Action) -> Outcome:
    """Compare an instance's flags and its model's architecture with a release."""
    fingerprint = argument(action, "fingerprint", str)
    place = releases.folder(argument(action, "root", str), fingerprint)
    seal = releases.sealed(place)
    if seal is None:
        raise ActionError(f"release {fingerprint} is not there whole: run again to build it")
    known = seal.get("flags", {}).get("llama-server", [])
    hints = argument(action, "hints", dict)
    releases.knows(fingerprint, known, texts(action, "flags_used"), hints)
    for name in texts(action, "architectures_used"):
        if not releases.knows_architecture(place, name):
            raise ActionError(
                f"release {fingerprint} ({seal.get('version')}) does not know the model "
                f"architecture {name!r}: pin newer llama.cpp sources"
            )
    return Outcome(False, f"all known to {seal.get('version')}")


@dataclass(frozen=True)
class Server:
    """A running server and how it is asked."""

    instance: str
    unit: str
    host: str
    port: int
    key: str | None

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, with_key: bool = True
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON of an answer; `OSError` or `http.client.HTTPException` without one."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=ANSWER_S)
        headers = {"Content-Type": "application/json"}
        if with_key and self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        try:
            value = json.loads(text)
        except ValueError:
            value = {}
        return answer.status, value if isinstance(value, dict) else {}


def gate(context: Context, action: Action) -> Outcome:
    """Prove that a server answers, or fail with its own last words and put back what was there."""
    paths = texts(action, "put_back")
    refuse_after_put_back(context, argument(action, "unit", str), paths)
    try:
        return _prove(context, action)
    except ActionError as error:
        raise ActionError(f"{error}{as_before(context, action, paths)}") from error


def _prove(context: Context, action: Action) -> Outcome:
    host = argument(action, "host", str)
    server = Server(
        argument(action, "instance", str),
        argument(action, "unit", str),
        LOOPBACK.get(host, host),
        argument(action, "port", int),
        _key(action),
    )
    took = _healthy(context, action, server)
    try:
        speed = _answers(action, server)
    except (OSError, http.client.HTTPException) as error:
        raise _failed(server, f"gave no answer: {error!r}") from error
    return Outcome(False, f"healthy after {took:.0f} s, {speed}")


def _key(action: Action) -> str | None:
    path = action.get("key_file")
    if path is None:
        return None
    try:
        return Path(str(path)).read_text().strip()
    except OSError as error:
        raise ActionError(f"key file {path} can't be read: {error.strerror}") from error


def _healthy(context: Context, action: Action, server: Server) -> float:
    """Wait for ``/health`` 200 while the unit stays up; the seconds it took."""
    began = time.monotonic()
    limit_s = argument(action, "timeout_s", int)
    restarts = _unit(server.unit)["NRestarts"]
    said = "nothing listens"
    while (passed := time.monotonic() - began) < limit_s:
        state = _unit(server.unit)
        if state["ActiveState"] == "failed" or state["NRestarts"] != restarts:
            raise _failed(server, "ended while it was starting")
        try:
            status, value = server.ask("GET", "/health", with_key=False)
            if status == 200:
                return passed
            said = str(value.get("error", {}).get("message") or f"health answers {status}")
        except (OSError, http.client.HTTPException):
            pass
        context.progress(action, f"{said}, {passed:.0f} s", min(99, 100 * passed / limit_s))
        if context.gone and not texts(action, "put_back"):  # else a switch is finished first
            raise ActionError(f"server {server.instance}: the connection was lost; run again")
        time.sleep(POLL_S)
    raise _failed(server, f"is not healthy after {limit_s} s ({said})")


def _answers(action: Action, server: Server) -> str:
    """The key is needed, the model is the wanted one, a completion comes with timings."""
    if server.key is not None:
        status, _ = server.ask("POST", "/completion", PROMPT, with_key=False)
        if status != 401:
            raise _failed(server, f"answers {status} without the key, expected 401")
    status, properties = server.ask("GET", "/props")
    loaded, wanted = properties.get("model_path"), action.get("model")
    if status == 200 and loaded and wanted and loaded != wanted:
        raise _failed(server, f"serves {loaded}, expected {wanted}: another server has this port")
    status, value = server.ask("POST", "/completion", PROMPT)
    if status != 200:
        message = value.get("error", {}).get("message") or "no message"
        raise _failed(server, f"answers a completion with {status}: {message}")
    timings = value.get("timings", {})
    per_token = timings.get("predicted_per_token_ms")
    if not isinstance(per_token, (int, float)) or not timings.get("predicted_n"):
        raise _failed(server, "answers a completion without timings")
    return f"{timings['predicted_n']} tokens at {per_token:.1f} ms"


def _unit(name: str) -> dict[str, str]:
    """MainPID, ActiveState and NRestarts of a unit."""
    said = must(
        ["systemctl", "show", "--property=MainPID,ActiveState,NRestarts", "--", name], 30
    ).out
    found = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    return {key: found.get(key, "") for key in ("MainPID", "ActiveState", "NRestarts")}


def _failed(server: Server, what: str) -> ActionError:
    words = last_words(_log(server.unit))
    return ActionError(
        f"server {server.instance} {what}; its log: {words or 'empty'} "
        f"(journalctl -u {server.unit})"
    )


def _log(unit: str) -> str:
    argv = ["journalctl", "--unit", unit, "--lines", str(LOG_LINES), "--output=cat", "--no-pager"]
    return command(argv, 30).out


def last_words(log: str) -> str:
    """The line of a server's log that names the cause, else its last one."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for cause in CAUSES:
        for line in reversed(lines):
            if cause.search(line):
                return line[:300]
    return lines[-1][:300] if lines else ""


HANDLERS: dict[str, Handler] = {
    "serve.flags": Handler(one=check_flags),
    "serve.gate": Handler(one=gate),
}
