"""The hub's token: from a file of the controller to one of the host, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from facts.controller import ControllerError, inputs
from rules import models
from rules.compose import Inputs, desired_state
from rules.desired import Desired
from rules.observed import Observed
from rules.plan import plan
from tests.unit.plan_support import bare
from tests.unit.serving_support import SYSTEM, TEMPLATES, TINY, config

TOKEN = b"hf_correcthorse"
ELSEWHERE = {
    **{key: value for key, value in TINY.items() if key != "repository"},
    "source": "url",
    "url": "https://mirror.example/tiny",
}


def wanted(token: bytes | None = TOKEN, **more: object) -> Desired:
    data = {"instances": {}, "model_hub_token_file": "hub-token" if token else "", **more}
    secrets = {"hub-token": token} if token else {}
    return desired_state(config(**data), Inputs(TEMPLATES, {}, secrets), SYSTEM)


def test_it_lies_on_the_host_for_root_alone() -> None:
    (file,) = (file for file in wanted().files if file.path == "/etc/voltfleet/hub-token")
    assert (file.content, file.mode, file.owner, file.group) == (
        TOKEN + b"\n",
        0o600,
        "root",
        "root",
    )
    assert file.secret
    (model,) = wanted().models
    assert model.token_file == file.path


def test_it_is_shown_nowhere() -> None:
    desired = wanted()
    document = {**bare(desired), "models": {"tiny": None}, "releases": {"/opt/llama.cpp": None}}
    changes = plan(desired, Observed(document))
    assert any(change.id == "file:/etc/voltfleet/hub-token" for change in changes)
    for change in changes:
        seen = json.dumps(change.public()) + change.sentence() + repr(change) + (change.diff or "")
        assert TOKEN.decode() not in seen
    (fetch,) = (change for change in changes if change.id == "model:tiny")
    assert TOKEN.decode() not in json.dumps(fetch.action)
    assert (fetch.action or {})["token_file"] == "/etc/voltfleet/hub-token"


@pytest.mark.parametrize(
    ("token", "more"),
    [(None, {}), (TOKEN, {"models": {"tiny": ELSEWHERE}}), (TOKEN, {"models": {}})],
)
def test_only_models_of_the_hub_get_it(token: bytes | None, more: dict[str, object]) -> None:
    desired = wanted(token, **more)
    assert not [file for file in desired.files if "token" in file.path]
    assert {model.token_file for model in desired.models} <= {None}


@pytest.mark.parametrize(
    ("token", "fine"), [(b"hf_x", True), (b"two words", False), ("é".encode(), False)]
)
def test_it_is_one_word(token: bytes, fine: bool) -> None:
    found = models.refusals(config(model_hub_token_file="t"), {"t": token})
    assert (found == []) is fine
    assert token.decode() not in "".join(found)


def test_its_file_must_be_there_and_private(tmp_path: Path) -> None:
    host = config(instances={}, secrets_folder=str(tmp_path), model_hub_token_file="t")
    with pytest.raises(ControllerError, match="put the secret there with mode 0600"):
        inputs(host)
    (tmp_path / "t").write_bytes(TOKEN)
    (tmp_path / "t").chmod(0o640)
    with pytest.raises(ControllerError, match="lets others read it"):
        inputs(host)
    (tmp_path / "t").chmod(0o600)
    assert inputs(host).secrets == {"t": TOKEN}
