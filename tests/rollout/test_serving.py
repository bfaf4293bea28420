"""What every server must do: hold the checked model, listen, want its key, answer."""

from __future__ import annotations

import json
import shlex

import pytest
from testinfra.host import Host

from rules.desired import Instance, Model
from tests.rollout.conftest import Target
from tests.rollout.test_host import again

PROMPT = "The capital of France is"
TOKENS = 8


def test_model(host: Host, target: Target, model: Model, pytestconfig: pytest.Config) -> None:
    """[G11, T2] Every file of the model has its size; with --full its sha256 too."""
    for item in model.files:
        path = f"{model.root}/{model.revision}/{item.path}"
        found = host.file(path)
        assert found.exists, f"model file {path} is not there; {again(target)}"
        assert found.size == item.size, (
            f"model file {path}: {found.size} bytes, expected {item.size}; {again(target)}"
        )
        if pytestconfig.getoption("--full"):
            assert found.sha256sum == item.sha256, (
                f"model file {path}: other bytes than the data's sha256 says; run: pyinfra "
                f"INVENTORY --limit {target.name} deploy.py --data models_full_check=true"
            )


def test_port(host: Host, target: Target, instance: Instance) -> None:
    """[G13] The server listens where the data says, and nowhere else."""
    sockets = {
        (text.rsplit(":", 2)[1], int(text.rsplit(":", 1)[1]))
        for text in host.socket.get_listening_sockets()
        if text.startswith("tcp://") and text.rsplit(":", 1)[1] == str(instance.port)
    }
    expected = {(f"//{instance.host}", instance.port)}
    assert sockets == expected, (
        f"port {instance.port} of {instance.name}: listening on {sorted(sockets)}, expected "
        f"{sorted(expected)}; {again(target)}"
    )


def _curl(host: Host, instance: Instance, path: str, body: object, *, key: bool) -> tuple[int, str]:
    """Status and body of one request, made on the host. The key never is an argument."""
    address = "127.0.0.1" if instance.host in ("0.0.0.0", "") else instance.host
    url = shlex.quote(f"http://{address}:{instance.port}{path}")
    curl = f"curl -s -m 120 -w '\\n%{{http_code}}' -H 'Content-Type: application/json' {url}"
    if body is not None:
        curl += f" -d {shlex.quote(json.dumps(body))}"
    if key and instance.key_file:
        # printf is a builtin of sh: the key goes through a pipe, not a process list.
        curl = (
            f"printf 'Authorization: Bearer %s' \"$(cat {shlex.quote(instance.key_file)})\" "
            f"| {curl} -H @-"
        )
    done = host.run("sh -c %s", curl)
    text, _, status = done.stdout.rpartition("\n")
    return int(status or 0), text


def test_key_required(host: Host, target: Target, instance: Instance) -> None:
    """[G13] Without the key the server answers 401."""
    if instance.key_file is None:
        assert instance.host in ("127.0.0.1", "::1", "localhost"), (
            f"{instance.name} wants no key and listens on {instance.host}; {again(target)}"
        )
        return
    status, _ = _curl(host, instance, "/v1/models", None, key=False)
    assert status == 401, (
        f"{instance.name}: a request without the key got status {status}, expected 401; "
        f"{again(target)}"
    )


def test_completion(host: Host, target: Target, instance: Instance) -> None:
    """[G15] A completion is answered, with timings."""
    body = {"prompt": PROMPT, "n_predict": TOKENS, "temperature": 0}
    status, text = _curl(host, instance, "/completion", body, key=True)
    assert status == 200, (
        f"{instance.name}: /completion got status {status} ({text[:200]}), expected 200; see "
        f"`journalctl -u {instance.unit}`; {again(target)}"
    )
    answer = json.loads(text)
    assert answer["timings"]["predicted_n"] >= 1, f"{instance.name}: no token came: {text[:200]}"
    assert answer["timings"]["predicted_per_token_ms"] > 0, text[:200]
