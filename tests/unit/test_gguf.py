"""Reading GGUF headers strictly: cases C16 and C17, requirement G11."""

from __future__ import annotations

import resource
import struct
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from files.agent import check, gguf, profiles, sound
from files.agent.gguf_reader import GgufError
from tests.unit import gguf_bytes as g

DATA = Path(__file__).parent / "data" / "gguf"
UPSTREAM = profiles.PROFILES["upstream"]
GUIDE = profiles.PROFILES["guide"]
SIGNATURE = (
    g.string("qwen.flash_kernel_version", "v3.2.1-v100"),
    g.boolean("qwen.nvlink_optimized", 1),
    g.f32("qwen.cuda_arch_requirement", 7.0),
)


def written(folder: Path, content: bytes, name: str = "m.gguf") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def fault(folder: Path, content: bytes) -> str:
    """What the reader says about a bad file."""
    with pytest.raises(GgufError) as caught:
        gguf.read_header(written(folder, content))
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "clause"),
    [
        ("bad-empty.gguf", "is empty"),
        ("bad-html.gguf", "is a web page"),
        ("bad-huge-nkv.gguf", "states 4611686018427387904 metadata keys"),
        ("bad-signature-keys-but-wrong-arch.gguf", "has general.architecture = 'llama'"),
        ("bad-truncated-tensor.gguf", "is cut: its tensors end at byte 4960, the file has 1864"),
        ("bad-version-1.gguf", "is GGUF version 1"),
    ],
)
def test_bad_files_of_the_field(name: str, clause: str, capsys: pytest.CaptureFixture[str]) -> None:
    for profile in ("upstream", "guide"):
        assert check.main([str(DATA / name), "--profile", profile]) == 1
        said = capsys.readouterr().out
        assert clause in said and said.count("\n") == 1 and "Traceback" not in said


def test_every_bad_file_of_the_field_is_tested() -> None:
    assert len(list(DATA.glob("bad-*.gguf"))) == 6


def test_file_without_the_guides_signature(capsys: pytest.CaptureFixture[str]) -> None:
    path = DATA / "ok-without-guide-signature.gguf"
    assert check.main([str(path)]) == 0
    assert "sound under profile upstream (qwen4exp)" in capsys.readouterr().out
    assert check.main([str(path), "--profile", "guide"]) == 1
    said = capsys.readouterr().out
    assert "lacks the metadata key qwen.flash_kernel_version" in said
    assert path.name in said and "other profiles: upstream" in said


def test_signature_under_profile_guide(tmp_path: Path) -> None:
    path = written(tmp_path, g.tiny("qwen4exp", *SIGNATURE))
    found, metadata = sound.problems([path], GUIDE, "guide")
    assert found == []
    assert metadata["qwen.cuda_arch_requirement"] == 7.0
    assert metadata["qwen.nvlink_optimized"] is True


def test_unreadable_and_wrong_command_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.main([str(tmp_path / "none.gguf")]) == 2
    assert "unreadable: No such file" in capsys.readouterr().out
    assert check.main([]) == 2
    assert check.main([str(tmp_path), "--models"]) == 2
    assert check.main(["x", "--profile", "nobody"]) == 2


def test_header_of_a_sound_file(tmp_path: Path) -> None:
    header = gguf.read_header(written(tmp_path, g.tiny("llama", g.i32("x", -3))))
    assert header.version == 3 and header.tensors == 1 and header.data_bytes == 16
    assert header.metadata == {"general.architecture": "llama", "x": -3}
    assert header.data_offset % 32 == 0 and header.data_offset + 16 == header.size


@pytest.mark.parametrize(
    ("content", "clause"),
    [
        (b"GGU", "does not begin with GGUF"),
        (b"GGUF\x03", "ends within the version"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (g.gguf(version=0x03000000), "big-endian"),
        (g.gguf(version=4), "version 4"),
        (g.gguf(tensors_stated=1 << 60), "tensors, which do not fit"),
        (g.gguf([g.u32("a", 1), g.u32("a", 2)]), "'a' twice"),
        (g.gguf([g.u32("", 1), g.u32("b", 2)]), "empty metadata key"),
        (g.gguf([g.pair("a", 99, b"\0" * 8)]), "unknown type 99"),
        (g.gguf([g.boolean("aaaaaa", 2)]), "the value 2"),
        (g.gguf([g.pair("a", 8, struct.pack("<Q", 1 << 50))]), "ends within the text 'a'"),
        (g.gguf([g.array("a", 9, 1, b"\0" * 12)]), "element type 9"),
        (g.gguf([g.array("a", 4, 1 << 61, b"")]), "ends within the array 'a'"),
        (g.gguf([g.array("a", 8, 1 << 40, b"")]), "ends within the array 'a'"),
        (g.gguf([g.array("a", 8, 1, struct.pack("<Q", 9))]), "ends within the array 'a'"),
        (g.gguf([g.u32("general.alignment", 24)]), "no power of two"),
        (g.gguf([g.u32("general.alignment", 0)]), "no power of two"),
        (g.gguf([g.string("general.alignment", "32")]), "no power of two"),
        (g.gguf([g.u16("split.no", 3), g.u16("split.count", 3)]), "part 3 (from 0) of 3"),
        (g.gguf([], [g.tensor("a" * 64, [1], 0, 0)], b"1234"), "of 64 bytes, at most 63"),
        (g.gguf([], [g.tensor("t", [1] * 5, 0, 0)], b"1234"), "5 dimensions"),
        (g.gguf([], [g.tensor("t", [1], 31, 0)], b"1234"), "unknown ggml type 31"),
        (g.gguf([], [g.tensor("t", [31], 2, 0)], b"1" * 32), "no multiple of 32"),
        (g.gguf([], [g.tensor("t", [1], 0, 4)], b"1" * 64), "at 4, expected 0"),
        (g.gguf([], [g.tensor("t", [1 << 62] * 4, 0, 0)], b"1234"), "is cut"),
        (g.gguf([], [g.tensor("t", [8], 0, 0)] * 2, b"1" * 64), "'t' twice"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, content: bytes, clause: str) -> None:
    assert clause in fault(tmp_path, content)


def test_tensors_need_the_space_that_their_type_takes(tmp_path: Path) -> None:
    """One block of Q4_0 is 32 elements in 18 bytes (ggml-common.h)."""
    tensors = [g.tensor("t", [32, 2], 2, 0)]
    whole = g.gguf([], tensors, b"x" * 36)
    assert gguf.read_header(written(tmp_path, whole)).data_bytes == 36
    assert "is cut" in fault(tmp_path, whole[:-1])


def test_sizes_are_those_of_the_gguf_package() -> None:
    constants = pytest.importorskip("gguf.constants")
    for kind, size in constants.GGML_QUANT_SIZES.items():
        if kind.name == "Q8_1":
            continue  # two halfs since 2024 (ggml-common.h), the package still has two floats
        assert gguf.TYPES[int(kind)] == tuple(size), kind


def test_long_values_are_passed_over(tmp_path: Path) -> None:
    texts = b"".join(g.text(f"token{n}") for n in range(300_000))
    pairs = [
        g.string("general.architecture", "llama"),
        g.array("tokenizer.ggml.tokens", 8, 300_000, texts),
        g.array("scores", 6, 5_000, b"\0" * 20_000),
        g.string("template", "x" * 100_000),
        g.array("short", 4, 2, struct.pack("<2I", 7, 8)),
    ]
    metadata = gguf.read_header(written(tmp_path, g.gguf(pairs))).metadata
    assert metadata["tokenizer.ggml.tokens"] == gguf.PassedOver("array of 300000 texts")
    assert metadata["scores"] == gguf.PassedOver("array of 5000")
    assert metadata["template"] == gguf.PassedOver("text of 100000 bytes")
    assert metadata["short"] == [7, 8]


def test_a_hostile_header_takes_little_memory(tmp_path: Path) -> None:
    """Many long texts: the reader keeps 8 MiB of them, not 200 MiB."""
    pairs = [g.string(f"key{n}", "x" * 65_000) for n in range(3_000)]
    path = written(tmp_path, g.gguf(pairs))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    header = gguf.read_header(path)
    kept = sum(sys.getsizeof(value) for value in header.metadata.values())
    assert kept < 10 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10  # KiB


def part(number: int, count: int, total: int, tensors: int, *more: bytes) -> bytes:
    return g.gguf(
        [
            *more,
            g.u16("split.no", number),
            g.u16("split.count", count),
            g.i32("split.tensors.count", total),
        ],
        [g.tensor(f"t{number}.{n}", [8], 0, 32 * n) for n in range(tensors)],
        b"\0" * 32 * tensors,
    )


def test_split_model(tmp_path: Path) -> None:
    """The first part of public splits holds no tensor at all, which is sound (F25)."""
    architecture = g.string("general.architecture", "qwen4exp")
    paths = [
        written(tmp_path, part(0, 3, 5, 0, architecture), "m-00001-of-00003.gguf"),
        written(tmp_path, part(1, 3, 5, 3), "m-00002-of-00003.gguf"),
        written(tmp_path, part(2, 3, 5, 2), "m-00003-of-00003.gguf"),
    ]
    assert sound.problems(paths, UPSTREAM)[0] == []
    assert check.parts(paths[0]) == paths
    assert "part 2 of 3 is missing" in sound.problems([paths[0], paths[2]], UPSTREAM)[0][0]
    assert "no first part" in sound.problems(paths[1:], UPSTREAM)[0][-1]
    written(tmp_path, part(2, 3, 5, 1), "m-00003-of-00003.gguf")
    assert "states 5 tensors, its 3 parts hold 4" in sound.problems(paths, UPSTREAM)[0][0]
    written(tmp_path, part(1, 3, 5, 1), "m-00003-of-00003.gguf")
    assert "both say to be part 2" in sound.problems(paths, UPSTREAM)[0][0]


@pytest.mark.parametrize(
    ("value", "required", "expected"),
    [
        (7.0, 7.0, True),
        (7, 7.0, True),
        ("7.0", 7.0, True),
        (7.0, "7.0", True),
        (struct.unpack("<f", struct.pack("<f", 0.1))[0], 0.1, True),
        (True, True, True),
        ("true", True, True),
        (1, True, False),
        (False, True, False),
        ([1, 2], (1, 2), True),
        ([1, 2], [1, 3], False),
        ("qwen4exp", "qwen4", False),
        (7.5, 7.0, False),
    ],
)
def test_matches(value: object, required: object, expected: bool) -> None:
    assert sound.matches(value, required) is expected


def test_the_command_line_and_the_data_have_the_same_profiles() -> None:
    """What `check` calls sound on a host is what a run would serve, and the other way round."""
    import runpy

    data = runpy.run_path(str(Path(__file__).parents[2] / "group_data" / "all.py"))
    assert data["model_profiles"] == {name: dict(keys) for name, keys in profiles.PROFILES.items()}


def test_a_files_own_architecture_goes_before_the_profiles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(g.tiny("llama"))
    assert check.main([str(path)]) == 1
    assert "requires 'qwen4exp'" in capsys.readouterr().out
    assert check.main([str(path), "--architecture", "llama"]) == 0
    path.write_bytes(g.tiny("qwen4exp"))
    assert check.main([str(path)]) == 0
    assert check.main([str(path), "--architecture", "llama"]) == 1


SOUND = g.tiny("qwen4exp", *SIGNATURE, g.array("a", 8, 2, g.text("x") + g.text("yy")))


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_one_sentence_or_sound(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever bytes change or go, the reader answers with a header or a `GgufError`."""
    content = bytearray(SOUND)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        new = data.draw(st.binary(min_size=1, max_size=9))
        content[at : at + len(new)] = new
    cut = data.draw(st.integers(0, len(content)))
    path = written(tmp_path, bytes(content[:cut]))
    found, _ = sound.problems([path], GUIDE, "guide")
    assert all("\n" not in sentence and path.name in sentence for sentence in found)
    if cut < len(SOUND):
        assert found


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400))
def test_any_bytes_after_the_magic(tmp_path: Path, rest: bytes) -> None:
    path = written(tmp_path, b"GGUF" + struct.pack("<I", 3) + rest)
    try:
        header = gguf.read_header(path)
    except GgufError as error:
        assert str(error)
    else:
        assert header.data_offset <= header.size
