"""The schema and the data files that come with it belong together."""

from __future__ import annotations

import ast
import hashlib
import re
from pathlib import Path

import pytest

from glue import data_files
from rules import values
from rules.describe import hints, models_within, words
from rules.schema import SECTIONS, HostConfig
from rules.values import PATTERN_WORDS

GROUP_DATA = Path(__file__).resolve().parents[2] / "group_data"
FILES = sorted(GROUP_DATA.glob("*.py"))

# Defaults of every host that are more than the schema's empty ones.
FILLED_IN_ALL = {"packages", "model_profiles"}


def all_py() -> dict[str, object]:
    return data_files.read(GROUP_DATA / "all.py")


def test_all_py_names_every_variable_in_the_order_of_the_schema() -> None:
    assert list(all_py()) == list(HostConfig.model_fields)


@pytest.mark.parametrize("name", sorted(set(HostConfig.model_fields) - FILLED_IN_ALL))
def test_all_py_has_the_default_of_the_schema(name: str) -> None:
    field = HostConfig.model_fields[name]
    assert all_py()[name] == field.get_default(call_default_factory=True)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_assignment_has_a_comment(path: Path) -> None:
    lines = path.read_text().splitlines()
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign):
            above = lines[node.lineno - 2]
            assert above.startswith("# "), f"{path.name}:{node.lineno}: say what it means, above it"


def test_every_number_in_a_comment_has_its_unit() -> None:
    lines = (GROUP_DATA / "all.py").read_text().splitlines()
    for name, field in HostConfig.model_fields.items():
        extra = field.json_schema_extra
        unit = extra.get("unit") if isinstance(extra, dict) else ""
        if unit:
            at = next(number for number, line in enumerate(lines) if line.startswith(f"{name} ="))
            assert str(unit) in lines[at - 1].lower(), f"{name}: its comment names no {unit}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_data_files_hold_no_code(path: Path) -> None:
    allowed = (ast.Assign, ast.Expr)
    for node in ast.parse(path.read_text()).body:
        assert isinstance(node, allowed), f"{path.name}:{node.lineno}: data only"


def test_data_files_are_sound() -> None:
    assert data_files.check([GROUP_DATA]) == []


def test_every_field_is_described() -> None:
    models = [HostConfig]
    for model in models:
        for name, annotation in hints(model).items():
            field = model.model_fields.get(name)
            if field is None:
                continue
            assert field.description, f"{model.__name__}.{name}: give it a description"
            assert words(annotation)
            models += [m for m in models_within(annotation) if m not in models]  # type: ignore[misc]
    assert len(models) > 5


def test_quantities_in_names_have_that_unit() -> None:
    units = {"_s": "seconds", "_bytes": "bytes"}
    models = [HostConfig, *models_within(hints(HostConfig)["instances"])]
    for model in models:
        for name, field in model.model_fields.items():
            for ending, unit in units.items():
                if name.endswith(ending):
                    extra = field.json_schema_extra
                    assert isinstance(extra, dict), name
                    assert extra["unit"] == unit, name


def test_sections_begin_with_variables() -> None:
    assert set(SECTIONS) <= set(HostConfig.model_fields)
    assert next(iter(SECTIONS)) == next(iter(HostConfig.model_fields))


@pytest.mark.parametrize("pattern", PATTERN_WORDS)
def test_patterns_are_whole_and_used(pattern: str) -> None:
    assert pattern.startswith("^")
    assert pattern.endswith("$")
    assert not re.match(pattern, "")
    assert pattern in vars(values).values()


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (
            values.ABSOLUTE_PATH,
            ["/srv", "/opt/llama.cpp", "/a/b-c_1"],
            ["/", "a", "/a/", "/a/../b"],
        ),
        (values.PACKAGE, ["curl", "g++-14", "libc6:amd64"], ["curl=1", "a b", "-y"]),
        (values.OPERATING_SYSTEM, ["debian 13", "ubuntu 22.04"], ["debian", "Debian 13"]),
        (values.SYSCTL_KEY, ["vm.swappiness", "net.ipv4.conf.eth0/1.rp_filter"], ["vm", "vm. x"]),
        (values.CMAKE_OPTION, ["GGML_CUDA"], ["-DGGML_CUDA", "ggml"]),
        (values.URL, ["http://h:1/x", "{model_hub_url}/x"], ["h/x", "http://u:p@h/"]),
        (values.USER, ["voltfleet", "_x"], ["0x", "A", "a" * 32]),
        (values.REVISION, ["v1", "7b719225242aacd3dbd3f9407468c2ee9a9d2594"], ["..", "a/b", ""]),
    ],
)
def test_patterns(pattern: str, good: list[str], bad: list[str]) -> None:
    assert all(re.match(pattern, text) for text in good)
    assert not any(re.match(pattern, text) for text in bad)


def test_sandbox_data_name_what_the_sandbox_serves(tmp_path: Path) -> None:
    sources = pytest.importorskip("sandbox.sources")
    tiny_model = pytest.importorskip("sandbox.tiny_model")
    data = data_files.read(GROUP_DATA / "sandbox.py")
    assert data["llama_cpp_source"]["sha256"] == sources.ARCHIVE_SHA256
    assert data["llama_cpp_source"]["url"] == f"{{model_hub_url}}/{sources.URL_PATH}"
    tiny_model.write(tmp_path / "tiny.gguf", seed=0, extra=tiny_model.parse([]))
    content = (tmp_path / "tiny.gguf").read_bytes()
    (file,) = data["models"]["tiny"]["files"]
    assert file["size"] == len(content)
    assert file["sha256"] == hashlib.sha256(content).hexdigest()


def test_both_roles_build_the_same_commit() -> None:
    commit = data_files.read(GROUP_DATA / "llama_cpp.py")["llama_cpp_source"]["commit"]
    sandbox = data_files.read(GROUP_DATA / "sandbox.py")["llama_cpp_source"]["url"]
    assert commit[:9] in sandbox
