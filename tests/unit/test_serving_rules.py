"""Releases, models and servers as the data means them: G9, G11, G13, G17."""

from __future__ import annotations

import dataclasses

import pytest

from rules import flags, models, releases, serving
from rules.compose import Inputs, desired_state
from rules.desired import File, Unit
from rules.schema import HostConfig
from tests.unit.serving_support import KEY, SERVER, SYSTEM, TEMPLATES, TINY, built, config


def file_of(parts: serving.Built, ending: str) -> File:
    return next(file for file in parts.files if file.path.endswith(ending))


def fingerprint(system: dict[str, str] = SYSTEM, **more: object) -> str:
    release = releases.release(config(**more), system)
    assert release is not None
    return release.fingerprint


def test_the_same_wish_has_the_same_fingerprint() -> None:
    assert fingerprint() == fingerprint()
    assert len(fingerprint()) == 16
    moved = {"kind": "archive", "url": "http://mirror/x.tar.gz", "sha256": "b" * 64}
    assert fingerprint(llama_cpp_source=moved) == fingerprint()
    assert fingerprint(llama_cpp_build_jobs=7) == fingerprint()


@pytest.mark.parametrize(
    "more",
    [
        {"llama_cpp_source": {"url": "http://hub/x", "sha256": "c" * 64}},
        {"llama_cpp_source": {"kind": "git", "url": "https://x/y", "commit": "d" * 40}},
        {"llama_cpp_options": {"CMAKE_BUILD_TYPE": "Release", "GGML_CUDA": "ON"}},
        {"llama_cpp_targets": ["llama-server", "llama-cli"]},
        {"system": {**SYSTEM, "version": "12"}},
        {"system": {**SYSTEM, "machine": "aarch64"}},
    ],
)
def test_another_wish_has_another_fingerprint(more: dict[str, object]) -> None:
    assert fingerprint(**more) != fingerprint()  # type: ignore[arg-type]


def test_compilers_are_named_in_full() -> None:
    assert releases.compiler_for({"id": "debian", "version": "13"}) == "g++-14"
    assert releases.compiler_for({"id": "ubuntu", "version": "22.04"}) == "g++-11"
    assert releases.compiler_for({"id": "plan9", "version": "4"}) == "g++"


def test_a_release_runs_on_other_cpus_unless_the_data_says_otherwise() -> None:
    release = releases.release(config(), SYSTEM)
    assert release is not None and release.options["GGML_NATIVE"] == "OFF"
    native = releases.release(config(llama_cpp_options={"GGML_NATIVE": "ON"}), SYSTEM)
    assert native is not None and native.options["GGML_NATIVE"] == "ON"


def test_what_a_release_must_know() -> None:
    release = releases.release(config(), SYSTEM)
    assert release is not None
    assert release.architectures_used == ("llama",)
    assert release.flags_used == (
        "--api-key-file",
        "--batch-size",
        "--ctx-size",
        "--gpu-layers",
        "--host",
        "--model",
        "--parallel",
        "--port",
    )
    assert release.build_packages == ("cmake", "make", "g++-14", "ca-certificates", "aria2")


def test_before_the_probe_the_fingerprint_is_open() -> None:
    release = releases.release(config(), None)
    assert release is not None and release.fingerprint == "" and release.compiler == ""
    assert releases.release(config(llama_cpp_source=None, instances={}), SYSTEM) is None


def test_addresses_of_model_files() -> None:
    assert models.model(config(), "tiny").files[0].url == (
        "http://hub/voltfleet/tiny/resolve/v1/tiny.gguf"
    )
    odd = {**TINY, "files": [{"path": "UD/a b#1.gguf", "size": 1, "sha256": "a" * 64}]}
    assert models.model(config(models={"tiny": odd}), "tiny").files[0].url == (
        "http://hub/voltfleet/tiny/resolve/v1/UD/a%20b%231.gguf"
    )
    plain = {**TINY, "source": "url", "repository": "", "url": "http://nas/models/"}
    assert models.model(config(models={"tiny": plain}), "tiny").files[0].url == (
        "http://nas/models/tiny.gguf"
    )


def test_required_metadata_is_the_profiles_and_the_own_architecture() -> None:
    assert models.model(config(), "tiny").required_metadata == {"general.architecture": "llama"}
    guide = config(models={"tiny": {**TINY, "profile": "guide", "architecture": ""}})
    wanted = models.model(guide, "tiny")
    assert wanted.required_metadata == {"qwen.nvlink_optimized": True}
    assert wanted.other_profiles == ("upstream",)
    other = config(models={"tiny": {**TINY, "format": "safetensors"}}, instances={})
    assert models.model(other, "tiny").required_metadata == {}


def test_the_first_part_is_served() -> None:
    names = ["mmproj-F16.gguf", "m-00002-of-00002.gguf", "m-00001-of-00002.gguf", "README.md"]
    files = [{"path": name, "size": 1, "sha256": "a" * 64} for name in names]
    split = models.model(config(models={"tiny": {**TINY, "files": files}}), "tiny")
    assert models.first_part(split) == "m-00001-of-00002.gguf"
    assert models.first_part(models.model(config(), "tiny")) == "tiny.gguf"


def test_environment_file() -> None:
    env = file_of(built(config()), ".env")
    assert (env.mode, env.owner, env.group, env.area) == (0o640, "root", "voltfleet", "serving")
    lines = env.content.decode().splitlines()
    assert lines[2] == (
        "VOLTFLEET_ARGS=--model /srv/voltfleet/models/tiny/current/tiny.gguf --host 0.0.0.0 "
        "--port 8080 --ctx-size 2048 --parallel 4 --gpu-layers auto --batch-size 2048 "
        "--api-key-file /etc/voltfleet/instances/tiny.key"
    )
    assert "512 for each of 4 slots" in lines[1]
    assert lines[-1] == f"VOLTFLEET_STAMP={built(config()).units[0].stamp}"


def test_further_flags() -> None:
    extra = {"threads-batch": 8, "metrics": True, "slots": False, "split-mode": "layer"}
    spec = config(instances={"tiny": {**SERVER, "threads": 16, "extra_flags": extra}})
    words = flags.words(spec.instances["tiny"], "m", None)
    assert words[14:] == [
        *("--threads", "16", "--metrics", "--split-mode", "layer", "--threads-batch", "8")
    ]


def test_the_key_is_in_its_file_only() -> None:
    parts = built(config())
    key = file_of(parts, ".key")
    assert key.secret and key.mode == 0o640 and key.content == b"secret-key\n"
    others = b"".join(file.content for file in parts.files if file is not key)
    assert b"secret-key" not in others
    assert b"secret-key" not in repr(parts).encode()


def test_without_a_key_there_is_no_key_file() -> None:
    local = {**SERVER, "host": "127.0.0.1", "api_key_file": ""}
    parts = built(config(instances={"tiny": local}), key=None)
    assert parts.instance.key_file is None
    assert b"api-key" not in file_of(parts, ".env").content


def test_the_unit() -> None:
    text = file_of(built(config()), "@.service").content.decode()
    for line in (
        "ExecStart=/opt/llama.cpp/current/bin/llama-server $VOLTFLEET_ARGS",
        "EnvironmentFile=/etc/voltfleet/instances/%i.env",
        "User=voltfleet",
        "Restart=always",
        "RestartSec=10",
        "OOMScoreAdjust=-100",
        "LimitMEMLOCK=infinity",
        "ProtectHome=yes",
    ):
        assert line in text.splitlines()
    assert "MemoryLimit" not in text and "--log-disable" not in text
    at_home = built(config(model_root="/home/models"))
    assert "ProtectHome=read-only" in file_of(at_home, "@.service").content.decode()


def test_links_to_what_is_served() -> None:
    links = {link.path: link.target for link in built(config()).links}
    assert links == {
        "/srv/voltfleet/models/tiny/current": "v1",
        "/opt/llama.cpp/current": f"releases/{fingerprint()}",
    }


def stamp(key: bytes = KEY, **more: object) -> str | None:
    return built(config(**more), key=key).units[0].stamp


def test_the_stamp_follows_everything_a_server_is_started_from() -> None:
    other_file = {**TINY, "files": [{"path": "tiny.gguf", "size": 501_760, "sha256": "c" * 64}]}
    stamps = [
        stamp(),
        stamp(b"other"),
        stamp(instances={"tiny": {**SERVER, "port": 8081}}),
        stamp(instances={"tiny": {**SERVER, "memory_max_bytes": 1 << 30}}),
        stamp(models={"tiny": other_file}),
        stamp(models={"tiny": {**TINY, "revision": "v2"}}),
        stamp(llama_cpp_options={"GGML_CUDA": "ON"}),
        stamp(service_user="llama"),
    ]
    assert len(set(stamps)) == len(stamps)
    assert stamp() == stamp(b"secret-key")  # an editor's last newline is no other key
    assert stamp(model_hub_url="http://mirror") == stamp()
    assert stamp(probe_timeout_s=30) == stamp()


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"memory_max_bytes": 123}, 123),
        ({"gpu_layers": "all"}, (10 << 30) + 100 * 10**9 // 8),
        ({"gpu_layers": "auto"}, (10 << 30) + 125 * 10**9),
        ({"gpu_layers": 40}, (10 << 30) + 125 * 10**9),
    ],
)
def test_memory_bound(spec: dict[str, object], expected: int) -> None:
    host = config(instances={"tiny": {**SERVER, **spec}})
    model = models.model(host, "tiny")
    big = dataclasses.replace(model, files=(dataclasses.replace(model.files[0], size=10**11),))
    assert serving.memory_max_bytes(host.instances["tiny"], big) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"ctx_size": 2048, "slots": 4}, "context 2048 tokens, 512 for each of 4 slots"),
        ({"ctx_size": 0, "slots": 4}, "context as the model says, 4 slots"),
        ({"ctx_size": 4096, "slots": 1}, "context 4096 tokens, 1 slot"),
        (
            {"ctx_size": 4096, "slots": 2, "extra_flags": {"kv-unified": True}},
            "context 4096 tokens, 2 slots",
        ),
    ],
)
def test_context_in_words(spec: dict[str, object], expected: str) -> None:
    assert serving.describe(config(instances={"tiny": {**SERVER, **spec}}), "tiny") == expected


def test_small_slots_are_worth_a_word() -> None:
    assert "512 for each of 4 slots" in serving.warnings(config())[0]
    enough = config(instances={"tiny": {**SERVER, "ctx_size": 16_384}})
    assert serving.warnings(enough) == []


@pytest.mark.parametrize(
    ("keys", "clause"),
    [
        ({}, "holds no key"),
        ({"secrets/tiny.key": b"\n"}, "holds no key"),
        ({"secrets/tiny.key": b"two keys"}, "must hold one key"),
        ({"secrets/tiny.key": b"#key"}, "begins with #"),
    ],
)
def test_keys_that_are_none(keys: dict[str, bytes], clause: str) -> None:
    (said,) = serving.refusals(config(), keys)
    assert clause in said and "instance tiny" in said
    assert serving.refusals(config(), {"secrets/tiny.key": KEY}) == []


def test_words_that_no_environment_file_carries() -> None:
    extra = {"chat-template": "a b", "alias": 'x"y'}
    host = config(instances={"tiny": {**SERVER, "extra_flags": extra}})
    said = serving.refusals(host, {"secrets/tiny.key": KEY})
    assert len(said) == 2 and "'a b'" in said[1] and "environment file" in said[0]


def test_weekly_check_units() -> None:
    service, timer = serving.check_timer_files(TEMPLATES, ["tiny", "other"])
    assert "IOSchedulingClass=idle" in service.content.decode()
    assert "agent.pyz check --models other tiny\n" in service.content.decode()
    assert "OnCalendar=weekly" in timer.content.decode()
    assert timer.path == "/etc/systemd/system/voltfleet-model-check.timer"


def test_the_weekly_check_ends_with_the_last_model() -> None:
    """Else its timer would fail for ever on what nobody wants any more."""

    def timer(host: HostConfig) -> Unit:
        wanted = desired_state(host, Inputs(TEMPLATES, {}, {"secrets/tiny.key": KEY}), SYSTEM)
        return next(unit for unit in wanted.units if unit.name.endswith("check.timer"))

    assert timer(config()) == Unit("voltfleet-model-check.timer", reason=("G11",))
    none = timer(config(models={}, instances={}))
    assert (none.enabled, none.active) == (False, False)


def test_vanished_flags_have_an_equivalent() -> None:
    """C15."""
    assert "load-mode" in flags.TODAY["--no-mmap"]
    assert "never existed" in flags.TODAY["--no-mlock"]
