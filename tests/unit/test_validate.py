"""Every kind of wrong data, and the sentence it gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glue import data_files
from rules.combinations import is_loopback
from rules.describe import shown
from rules.schema import ArchiveSource
from rules.validate import Invalid, problems, shape_problems, validated

SHA = "0" * 64
FILE = {"path": "a.gguf", "size": 1, "sha256": SHA}
MODEL = {"repository": "o/n", "revision": "v1", "files": [FILE]}
SOURCE = {"url": "http://hub/x.tar.gz", "sha256": SHA}
GOOD: dict[str, Any] = {
    "llama_cpp_source": SOURCE,
    "models": {"m": MODEL},
    "model_profiles": {"upstream": {}},
    "instances": {"i": {"model": "m"}},
}


def good(**changes: Any) -> dict[str, Any]:
    return {**GOOD, **changes}


def instance(**changes: Any) -> dict[str, Any]:
    return good(instances={"i": {"model": "m", **changes}})


def model(**changes: Any) -> dict[str, Any]:
    return good(models={"m": {**MODEL, **changes}})


def test_good_data() -> None:
    assert problems(GOOD) == []
    assert validated(GOOD).instances["i"].port == 8080
    assert validated({}).probe_timeout_s == 20


def test_pyinfra_keys_are_let_through() -> None:
    data = {"ssh_user": "me", "_sudo": True, "_sudo_password": "x", "fake_delay": 0}
    assert problems({**GOOD, **data}) == []


def test_invalid_carries_every_problem() -> None:
    with pytest.raises(Invalid) as caught:
        validated({"lease_policy": "x", "probe_timeout_s": 1})
    assert len(caught.value.problems) == 2


SHAPES: list[tuple[dict[str, Any], str]] = [
    (
        {"probe_timout_s": 3},
        "h1: probe_timout_s = 3: no such variable, did you mean probe_timeout_s? "
        "(see docs/variables.md)",
    ),
    (
        {"ssh_usr": "me"},
        "h1: ssh_usr = 'me': no such variable, did you mean ssh_user? (see docs/variables.md)",
    ),
    ({"zzzzzz": 1}, "h1: zzzzzz = 1: no such variable (see docs/variables.md)"),
    (
        {"probe_timeout_s": "20"},
        "h1: probe_timeout_s: found '20', expected a whole number from 2 to 600",
    ),
    ({"probe_timeout_s": 1}, "h1: probe_timeout_s: found 1, expected a whole number from 2 to 600"),
    ({"lease_wait_s": True}, "h1: lease_wait_s: found True, expected a whole number of at least 0"),
    ({"lease_policy": "w"}, "h1: lease_policy: found 'w', expected 'refuse' or 'wait'"),
    (
        {"supported_os": []},
        "h1: supported_os: found a list of 0, expected a list, not empty, each item 'id version' "
        "as in /etc/os-release, like 'debian 13'",
    ),
    (
        {"packages": ["curl", "a b"]},
        "h1: packages[1]: found 'a b', expected a package name, without a version",
    ),
    ({"sysctl": {"vm.x": 1.5}}, "h1: sysctl.vm.x: found 1.5, expected text or a whole number"),
    (
        {"sysctl": {"swappiness": 1}},
        "h1: sysctl.swappiness: this key must be the name of one kernel parameter, like "
        "'vm.swappiness'",
    ),
    (
        {"sysctl": {"net.ipv4.conf.*.rp_filter": 1}},
        "h1: sysctl.net.ipv4.conf.*.rp_filter: this key must be the name of one kernel parameter, "
        "like 'vm.swappiness'",
    ),
    (
        {"llama_cpp_source": {"kind": "svn"}},
        "h1: llama_cpp_source.kind: found 'svn', expected 'archive' or 'git'",
    ),
    (
        {"llama_cpp_source": {"url": "http://x/", "commit": "main"}},
        "h1: llama_cpp_source.commit: found 'main', expected a full commit id (40 lower-case "
        "hexadecimal digits)",
    ),
    (
        {"llama_cpp_source": {"url": "http://x/"}},
        "h1: llama_cpp_source.sha256 is missing, expected 64 lower-case hexadecimal digits",
    ),
    (
        {"models": {"m": {**MODEL, "files": [{**FILE, "sha": 1}]}}},
        "h1: models.m.files[0].sha = 1: no such variable, did you mean sha256? "
        "(allowed: path, size, sha256)",
    ),
    (
        {"instances": {"i": {"model": "m", "gpu_layers": -1}}},
        "h1: instances.i.gpu_layers: found -1, expected a whole number of at least 0 or 'all' or "
        "'auto'",
    ),
    (
        {"instances": {"i": {"model": "m", "extra_flags": {"a": None}}}},
        "h1: instances.i.extra_flags.a: found None, expected text, a whole number, a number or "
        "True or False",
    ),
    ({"hf_token": "abc"}, "h1: hf_token = (hidden): no such variable (see docs/variables.md)"),
    (
        {"model_hub_url": "https://me:pw@hub/"},
        "h1: model_hub_url: found (hidden), expected a URL that starts with http:// or https:// "
        "(no user name or password in it)",
    ),
    (
        {"model_hub_url": "file:///srv/hub"},
        "h1: model_hub_url: found 'file:///srv/hub', expected a URL that starts with http:// or "
        "https:// (no user name or password in it)",
    ),
]


@pytest.mark.parametrize(("data", "sentence"), SHAPES, ids=[next(iter(data)) for data, _ in SHAPES])
def test_shapes(data: dict[str, Any], sentence: str) -> None:
    assert problems(data, "h1") == [sentence]


COMBINATIONS: list[tuple[dict[str, Any], str]] = [
    (good(service_user="root"), "service_user: found 'root': servers do not run as root"),
    (
        good(service_user="ops", ssh_user="ops"),
        "service_user: found 'ops': is also ssh_user, which would lose its shell and its home",
    ),
    (
        good(model_hub_token_file="hf_abcdefgh"),
        "model_hub_token_file: found (hidden): this is a token itself; put it in a file",
    ),
    (
        good(instances={"i": {"model": "n"}}),
        "instances.i.model: found 'n': no such model; models has m",
    ),
    (
        good(models={"tiny": MODEL}, instances={"i": {"model": "tiney"}}),
        "instances.i.model: found 'tiney': no such model; models has tiny; did you mean tiny?",
    ),
    (
        model(format="safetensors", files=[{**FILE, "path": "a.safetensors"}]),
        "instances.i.model: found 'm': llama.cpp serves gguf, this model is safetensors",
    ),
    (
        good(instances={"i": {"model": "m"}, "j": {"model": "m"}}),
        "instances.j.port: found 8080: instance i has the same port on 127.0.0.1; give each",
    ),
    (
        good(
            instances={
                "i": {"model": "m", "host": "0.0.0.0", "api_key_file": "k"},
                "j": {"model": "m"},
            }
        ),
        "instances.j.port: found 8080: instance i has the same port on 0.0.0.0",
    ),
    (
        instance(host="0.0.0.0"),
        "instances.i.host: found '0.0.0.0': others can reach that address, so api_key_file must",
    ),
    (
        instance(host="gpu7", api_key_file="k"),
        "instances.i.host: found 'gpu7': an IP address or 'localhost'",
    ),
    (
        instance(ctx_size=2, slots=4),
        "instances.i.ctx_size: found 2: is shared by 4 slots, less than a token for each",
    ),
    (
        instance(extra_flags={"port": 1}),
        "instances.i.extra_flags.port: found 1: this flag is the variable port; set that",
    ),
    (
        instance(extra_flags={"log-disable": True}),
        "instances.i.extra_flags.log-disable: found True: the log is what proves",
    ),
    (
        instance(extra_flags={"api-key": "s3cret"}),
        "instances.i.extra_flags.api-key: found (hidden): every user of the host could read",
    ),
    (
        instance(extra_flags={"--split_mode": "row"}),
        "instances.i.extra_flags.--split_mode: found 'row': flags are long names without dashes "
        "before, like 'split-mode'",
    ),
    (
        good(llama_cpp_source=None),
        "llama_cpp_source: found None: instances i need llama.cpp; give its pinned sources",
    ),
    (good(llama_cpp_targets=["llama-cli"]), "llama_cpp_targets: found a list of 1: instances need"),
    (
        model(profile="upstreem"),
        "models.m.profile: found 'upstreem': no such profile; model_profiles has upstream; did you",
    ),
    (model(repository=""), "models.m.repository: found '': source 'hub' needs a repository"),
    (model(url="http://x/"), "models.m.url: found 'http://x/': is for source 'url'"),
    (model(source="url", url="http://x/"), "models.m.repository: found 'o/n': is for source 'hub'"),
    (
        model(source="url", repository="", url="x"),
        "models.m.url: found 'x': source 'url' needs the folder's URL",
    ),
    (
        model(source="url", repository="", url="file:///srv/m"),
        "models.m.url: found 'file:///srv/m': source 'url' needs the folder's URL: a URL that "
        "starts with http://, https:// or {model_hub_url}/",
    ),
    (
        model(files=[FILE, FILE]),
        "models.m.files[1].path: found 'a.gguf': is also the path of files[0]; each file once",
    ),
    (
        model(files=[FILE, {**FILE, "path": "../b.gguf"}]),
        "models.m.files[1].path: found '../b.gguf': leaves the model's folder",
    ),
    (
        model(files=[{**FILE, "path": "a.bin"}]),
        "models.m.format: found 'gguf': none of its files ends in .gguf",
    ),
]


@pytest.mark.parametrize(
    ("data", "sentence"), COMBINATIONS, ids=[text.split(":")[0] for _, text in COMBINATIONS]
)
def test_combinations(data: dict[str, Any], sentence: str) -> None:
    (found,) = problems(data, "h1")
    assert found.startswith(f"h1: {sentence}")


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://git.example/a/b.git", True),
        ("http://git.example:8080/a/b@v2/c", False),
        ("https://[fd00::1]:3000/a/b", True),
        ("ssh://git@git.example:2222/a/b.git", True),
        ("ssh://git.example/a/b.git", True),
        ("file:///srv/llama.cpp", True),
        ("{model_hub_url}/llama.cpp.git", True),
        ("https://user:token@git.example/a/b.git", False),
        ("https://ghp_token@git.example/a/b.git", False),
        ("https://user:to/ken@git.example/a/b.git", False),
        ("https://git.example\\@evil.example/a", False),
        ("https://git.example/a/b.git?private_token=x", False),
        ("ssh://git:token@git.example/a/b.git", False),
        ("ssh://-oProxyCommand=x/a", False),
        ("ssh://git@-oProxyCommand=x/a", False),
        ("file://other/srv/llama.cpp", False),
        ("git.example:a/b.git", False),
    ],
)
def test_a_git_url_carries_no_secret(url: str, allowed: bool) -> None:
    found = problems({"llama_cpp_source": {"url": url, "commit": "0" * 40}}, "h1")
    assert (found == []) is allowed, found
    assert not any(secret in "".join(found) for secret in ("user:to", "ghp_", "git:to", "_token="))


def test_same_port_on_different_addresses_is_fine() -> None:
    instances = {
        "i": {"model": "m", "host": "127.0.0.1"},
        "j": {"model": "m", "host": "10.0.0.1", "api_key_file": "k"},
    }
    assert problems(good(instances=instances)) == []


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_hub_in_urls_is_replaced() -> None:
    config = validated(
        good(
            model_hub_url="http://hub:1/",
            llama_cpp_source={"url": "{model_hub_url}/src.tgz", "sha256": SHA},
        )
    )
    assert isinstance(config.llama_cpp_source, ArchiveSource)
    assert config.llama_cpp_source.url == "http://hub:1/src.tgz"


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("ssh_password",), "x", "(hidden)"),
        (("api_key_file",), "x", "(hidden)"),  # somebody puts the key itself there
        (("instances", "i", "extra_flags", "x"), "hf_abcdef", "(hidden)"),
        (("x",), "-----BEGIN OPENSSH PRIVATE KEY-----", "(hidden)"),
        (("x",), {"password": "p"}, "a dict of 1"),
        (("api_key_file",), "", "''"),
        (("x",), "y" * 100, f"'{'y' * 58}…"),
        (("keys",), 5, "5"),
    ],
)
def test_shown(path: tuple[str, ...], value: object, text: str) -> None:
    assert shown(path, value) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["models", "instances", "llama_cpp_source", "packages", "sysctl", "gpu", "model_profiles"]
)


@settings(deadline=None)
@given(st.dictionaries(NAMES, JSON, max_size=4))
def test_any_data_gives_sentences_and_no_exception(data: dict[str, Any]) -> None:
    for sentence in problems(data, "h1"):
        assert sentence.startswith("h1: ")
        assert "pydantic" not in sentence
        assert len(sentence.splitlines()) == 1
    assert bool(shape_problems(data)) <= bool(problems(data))


# --- data files ------------------------------------------------------------------------------


def check(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "x.py").write_text(text)
    return [line.removeprefix(f"{tmp_path}/") for line in data_files.check([tmp_path])]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("import os\nfrom pathlib import Path as P\nlease_wait_s = 1\n", []),
        (
            "lease_wait_s = 1\nlease_wait_s = 2\n",
            ["x.py:2: lease_wait_s: is set in line 1 already, expected once"],
        ),
        (
            'sysctl = {\n    "vm.x": 1,\n    "vm.x": 2,\n}\n',
            ["x.py:3: 'vm.x': is a key of line 2 already"],
        ),
        (
            'models = {\n  "m": {\n    "revision": "v1",\n    "files": [\n      {"path": "a",\n'
            f'       "size": -1,\n       "sha256": "{SHA}"}},\n    ],\n  }},\n}}\n',
            ["x.py:6: models.m.files[0].size: found -1, expected a whole number of at least 0"],
        ),
        (
            'instances = {\n  "i": {\n    "port": 1,\n  },\n}\n',
            [
                "x.py:2: instances.i.model is missing, expected a name of at most 63 lower-case "
                "letters, digits, '.', '_' and '-'"
            ],
        ),
        ("a = (\n", ["x.py:1: is no valid Python: '(' was never closed"]),
        ("\nlease_wait_s = 1 / 0\n", ["x.py:2: ZeroDivisionError: division by zero"]),
        ("def f():\n    pass\n", None),
        ("_helper = 1\n", None),
    ],
)
def test_data_files(tmp_path: Path, text: str, sentences: list[str] | None) -> None:
    found = check(tmp_path, text)
    if sentences is None:  # one problem, whose value is a matter of Python
        assert len(found) == 1
        assert "no such variable" in found[0]
    else:
        assert found == sentences


def test_data_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_bytes(b"\xff\xfe")
    (sentence,) = data_files.check([tmp_path])
    assert "x.py: cannot be read" in sentence


def test_no_data_folder_is_no_problem(tmp_path: Path) -> None:
    assert data_files.check([tmp_path / "none"]) == []
