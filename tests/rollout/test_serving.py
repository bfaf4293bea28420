"""What every server must do: hold the checked model, listen, want its key, answer."""

from __future__ import annotations

import json

import pytest
from testinfra.host import Host

from rules.desired import Instance, Model
from tests.rollout.conftest import Target
from tests.rollout.test_host import again

PROMPT = "The capital of France is"
TOKENS = 8
LOOPBACK = "127.0.0.1"
EVERYWHERE = {"0.0.0.0": LOOPBACK, "::": "::1"}  # where a server bound to every address is asked
# Runs on the host. Arguments: URL, body, key file; the key itself never is one.
REQUEST = """
import sys, urllib.error, urllib.request
url, body, key = sys.argv[1:]
request = urllib.request.Request(url, data=body.encode() or None)
request.add_header("Content-Type", "application/json")
if key:
    request.add_header("Authorization", "Bearer " + open(key).read().strip())
try:
    answer = urllib.request.urlopen(request, timeout=120)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.read().decode("utf-8", "replace"))
"""
MANIFESTS = "/var/lib/voltfleet/models"


def test_model(host: Host, target: Target, model: Model, pytestconfig: pytest.Config) -> None:
    """[G11, T2] Every file of the model has its size; with --full its sha256 too."""
    manifest = json.loads(host.file(f"{MANIFESTS}/{model.name}.json").content_string)
    for item in model.files:
        path = f"{model.root}/{model.revision}/{item.path}"
        found = host.file(path)
        assert found.exists, f"model file {path} is not there; {again(target)}"
        assert found.size == item.size, (
            f"model file {path}: {found.size} bytes, expected {item.size}; {again(target)}"
        )
        record = manifest["files"].get(item.path) or {}
        assert record.get("sha256") == item.sha256, (
            f"model file {path}: the manifest has sha256 {record.get('sha256')}, expected "
            f"{item.sha256}: it was never checked whole; {again(target)}"
        )
        if pytestconfig.getoption("--full"):
            assert found.sha256sum == item.sha256, (
                f"model file {path}: other bytes than the data's sha256 says; run: pyinfra "
                f"INVENTORY --limit {target.name} deploy.py --data models_full_check=true"
            )


def test_port(host: Host, target: Target, instance: Instance) -> None:
    """[G13] The server listens where the data says, and nowhere else."""
    _needs_unit(host, instance)
    addresses = _listening(host, instance)
    expected = {LOOPBACK if instance.host == "localhost" else instance.host}
    assert addresses == expected, (
        f"port {instance.port} of {instance.name}: listening on {sorted(addresses)}, expected "
        f"{sorted(expected)}; {again(target)}"
    )


def _listening(host: Host, instance: Instance) -> set[str]:
    """Addresses that something listens on at the instance's port."""
    # "tcp://0.0.0.0:8080", "tcp://:::8080"
    return {
        text.removeprefix("tcp://").rpartition(":")[0]
        for text in host.socket.get_listening_sockets()
        if text.startswith("tcp://") and text.rpartition(":")[2] == str(instance.port)
    }


def _needs_unit(host: Host, instance: Instance) -> None:
    """One cause, one failure: without its unit nothing else of a server is worth a message."""
    if not host.service(instance.unit).is_running:
        pytest.skip(f"{instance.unit} is not running: see test_unit")


def _needs_port(host: Host, instance: Instance) -> None:
    _needs_unit(host, instance)
    if not _listening(host, instance):
        pytest.skip(f"nothing listens on port {instance.port}: see test_port")


def _ask(host: Host, instance: Instance, path: str, body: object, *, key: bool) -> tuple[int, str]:
    """Status and body of one request, made on the host, which reads its key itself."""
    address = EVERYWHERE.get(instance.host, instance.host)
    address = f"[{address}]" if ":" in address else address
    words = [f"http://{address}:{instance.port}{path}", json.dumps(body) if body else ""]
    words.append(instance.key_file if key and instance.key_file else "")
    done = host.run(f"python3 -c %s {' '.join(['%s'] * len(words))}", REQUEST, *words)
    assert done.rc == 0, f"{instance.name}: {path} could not be asked: {done.stderr.strip()[-300:]}"
    status, _, text = done.stdout.partition(" ")
    return int(status), text


def test_key_required(host: Host, target: Target, instance: Instance) -> None:
    """[G13] Without the key the server answers 401."""
    if instance.key_file is None:
        assert instance.host in ("127.0.0.1", "::1", "localhost"), (
            f"{instance.name} wants no key and listens on {instance.host}; {again(target)}"
        )
        return
    _needs_port(host, instance)
    status, _ = _ask(host, instance, "/v1/models", None, key=False)
    assert status == 401, (
        f"{instance.name}: a request without the key got status {status}, expected 401; "
        f"{again(target)}"
    )


def test_completion(host: Host, target: Target, instance: Instance) -> None:
    """[G15] A completion is answered, with timings."""
    _needs_port(host, instance)
    body = {"prompt": PROMPT, "n_predict": TOKENS, "temperature": 0}
    status, text = _ask(host, instance, "/completion", body, key=True)
    assert status == 200, (
        f"{instance.name}: /completion got status {status} ({text[:200]}), expected 200; see "
        f"`journalctl -u {instance.unit}`; {again(target)}"
    )
    answer = json.loads(text)
    assert answer["timings"]["predicted_n"] >= 1, f"{instance.name}: no token came: {text[:200]}"
    assert answer["timings"]["predicted_per_token_ms"] > 0, text[:200]
