"""Releases on a host: sealing, proving, packing, unpacking, building; requirement G9, case C15.

The programs are small shell scripts and the build is a real CMake project of one file; the real
llama.cpp is built in the sandbox.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from files.agent import act_packages, act_releases, build, releases
from files.agent.handler import ActionError, Context, Outcome
from tests.unit.act_support import Events

SERVER = """#!/bin/sh
case "$1" in
--version) echo "version: 1 (abc)" ;;
--help) printf -- '-m, --model FNAME\\n--port N, --host H\\n-lm, --load-mode MODE\\n' ;;
*) exit 1 ;;
esac
"""
HINTS = {"--no-mmap": "gone since b10884: use load-mode 'none'"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(act_releases, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(act_releases, "LOGS", tmp_path / "log")
    monkeypatch.setattr(act_releases, "BUILD_BYTES", 1 << 20)
    monkeypatch.setattr(act_packages, "install", lambda context, actions: {})
    return tmp_path / "opt"


def make(root: Path, fingerprint: str = "f1") -> Path:
    place = root / "releases" / fingerprint
    (place / "bin").mkdir(parents=True)
    (place / "lib").mkdir()
    (place / "bin" / "llama-server").write_text(SERVER)
    (place / "bin" / "llama-server").chmod(0o755)
    (place / "lib" / "libx.so.1").write_bytes(b"\0llama\0qwen3\0")
    (place / "lib" / "libx.so").symlink_to("libx.so.1")
    releases.seal(place, {"fingerprint": fingerprint, "flags": {"llama-server": ["--port"]}})
    return place


def test_observe(root: Path) -> None:
    assert releases.observe(str(root), ["f1"]) == {"current": None, "present": {}}
    place = make(root)
    make(root, "f0.new")
    (root / "current").symlink_to("releases/f1")
    seen = releases.observe(str(root), [""])
    assert seen == {"current": "f1", "present": {"f1": {"sound": True, "reason": ""}}}
    (place / "lib" / "libx.so.1").write_bytes(b"short")
    assert "5 bytes as lib/libx.so.1" in releases.observe(str(root), [])["present"]["f1"]["reason"]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda p: (p / "release.json").write_text("{"), "no readable release.json"),
        (lambda p: (p / "release.json").unlink(), "no readable release.json"),
        (lambda p: (p / "bin/llama-server").unlink(), "lacks bin/llama-server"),
        (lambda p: (p / "bin/llama-server").chmod(0o644), "can't be executed"),
        (lambda p: (p / "lib/libx.so").unlink(), "lacks lib/libx.so"),
        (
            lambda p: ((p / "lib/libx.so").unlink(), (p / "lib/libx.so").symlink_to("y")),
            "another link as lib/libx.so",
        ),
    ],
)
def test_what_makes_a_release_unsound(root: Path, spoil: Any, reason: str) -> None:
    place = make(root)
    assert releases.unsound(place) == ""
    spoil(place)
    assert reason in releases.unsound(place)


def test_changed_bytes_of_the_same_size_are_found_by_the_whole_check(root: Path) -> None:
    place = make(root)
    (place / "lib" / "libx.so.1").write_bytes(b"\0llama\0qwen4\0")
    assert releases.unsound(place) == ""
    assert "other bytes" in releases.unsound(place, whole=True)


def prove(place: Path, flags: list[str], architectures: list[str]) -> dict[str, Any]:
    return releases.prove(place, ["llama-server"], flags, architectures, HINTS)


def test_prove(root: Path) -> None:
    proved = prove(make(root), ["--model", "--port"], ["llama"])
    assert proved["version"] == "version: 1 (abc)"
    assert proved["flags"]["llama-server"] == ["--host", "--load-mode", "--model", "--port"]


@pytest.mark.parametrize(
    ("flags", "architectures", "clause"),
    [
        (["--no-mmap"], [], "does not know --no-mmap (gone since b10884: use load-mode 'none')"),
        (["--load-mod"], [], "does not know --load-mod (the nearest it knows is --load-mode)"),
        ([], ["qwen4exp"], "does not know the model architecture 'qwen4exp'"),
    ],
)
def test_prove_refuses(root: Path, flags: list[str], architectures: list[str], clause: str) -> None:
    with pytest.raises(ActionError) as caught:
        prove(make(root), flags, architectures)
    assert clause in str(caught.value)


def test_a_program_that_fails_or_is_missing(root: Path) -> None:
    place = make(root)
    (place / "bin" / "llama-server").write_text(
        "#!/bin/sh\necho cannot load libcuda.so.1\nexit 127\n"
    )
    with pytest.raises(ActionError, match="status 127: cannot load libcuda"):
        prove(place, [], [])
    (place / "bin" / "llama-server").unlink()
    with pytest.raises(ActionError, match="bin/llama-server was not made"):
        prove(place, [], [])


def action(root: Path, **more: Any) -> dict[str, Any]:
    return {
        "id": "release:llama_cpp:f1",
        "do": "release.build",
        "engine": "llama_cpp",
        "root": str(root),
        "fingerprint": "f1",
        "source": {"kind": "archive", "url": "file:///none", "sha256": "0" * 64},
        "options": {"CMAKE_BUILD_TYPE": "Release"},
        "targets": ["llama-server"],
        "build_packages": [],
        "compiler": "g++",
        "jobs": 1,
        "flags_used": ["--port"],
        "architectures_used": ["llama"],
        "hints": HINTS,
        "lock_wait_s": 1,
        **more,
    }


def run(handler: Any, wanted: dict[str, Any], events: Events | None = None) -> Outcome:
    outcome = handler(Context(run="test", sink=events or Events()), wanted)
    assert isinstance(outcome, Outcome)
    return outcome


def refused(handler: Any, wanted: dict[str, Any]) -> str:
    with pytest.raises(ActionError) as caught:
        run(handler, wanted)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_pack_and_unpack(root: Path, tmp_path: Path) -> None:
    make(root)
    first, second = tmp_path / "a" / "1.tar.gz", tmp_path / "2.tar.gz"
    sha256 = releases.pack(str(root), "f1", first)
    os.utime(root / "releases" / "f1" / "bin" / "llama-server")
    assert releases.pack(str(root), "f1", second) == sha256
    assert first.stat().st_mode & 0o777 == 0o600
    other = tmp_path / "elsewhere"
    unpack = action(other, archive=str(first), sha256=sha256)
    assert run(act_releases.unpack, unpack).changed
    assert releases.unsound(other / "releases" / "f1", whole=True) == ""
    assert not first.exists() and not (other / "releases" / "f1.new").exists()
    assert not run(act_releases.unpack, unpack).changed
    assert "sha256" in refused(
        act_releases.unpack, action(tmp_path / "x", archive=str(second), sha256="0" * 64)
    )


def test_an_unsound_release_is_not_packed(root: Path, tmp_path: Path) -> None:
    (make(root) / "lib" / "libx.so.1").write_bytes(b"")
    with pytest.raises(ActionError, match="so it is not packed"):
        releases.pack(str(root), "f1", tmp_path / "1.tar.gz")


def test_a_release_for_another_fingerprint(root: Path, tmp_path: Path) -> None:
    make(root, "f2")
    archive = tmp_path / "x.tar.gz"
    sha256 = releases.pack(str(root), "f2", archive)
    said = refused(act_releases.unpack, action(tmp_path / "y", archive=str(archive), sha256=sha256))
    assert "holds another release than f1" in said


def tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    ("name", "link"),
    [
        ("../x", ""),
        ("/etc/x", ""),
        ("a/../../x", ""),
        ("l", "../x"),
        ("l", "/etc"),
        ("a/l", "../../x"),
    ],
)
def test_archives_that_lead_out_are_refused(tmp_path: Path, name: str, link: str) -> None:
    info = tarfile.TarInfo(name)
    if link:
        info.type, info.linkname = tarfile.SYMTYPE, link
    with pytest.raises(ActionError, match="leads out of its folder"):
        releases.extract(tar(tmp_path / "x.tar.gz", (info, b"")), tmp_path / "out")


def test_a_cut_archive(tmp_path: Path) -> None:
    whole = tar(tmp_path / "x.tar.gz", (tarfile.TarInfo("a"), os.urandom(100_000))).read_bytes()
    (tmp_path / "x.tar.gz").write_bytes(whole[:50_000])
    with pytest.raises(ActionError, match="can't be unpacked"):
        releases.extract(tmp_path / "x.tar.gz", tmp_path / "out")


CMAKE = """cmake_minimum_required(VERSION 3.14)
project("llama.cpp" CXX)
option(GGML_NATIVE "x" ON)
option(GGML_CUDA "x" OFF)
set(GGML_CPU_ARM_ARCH "" CACHE STRING "x")
llama_option_depr_placeholder()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_library(llama SHARED llama.cpp)
add_executable(llama-server server.cpp)
target_link_libraries(llama-server llama)
"""
PROGRAM = r"""#include <cstdio>
#include <cstring>
extern "C" const char * arch();
int main(int argc, char ** argv) {
    if (argc > 1 && !strcmp(argv[1], "--version")) { puts("version: 7"); return 0; }
    if (argc > 1 && !strcmp(argv[1], "--help")) { puts("--port N"); return 0; }
    return arch() ? 1 : 2;
}
"""


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Any]:
    """An archive that holds a small project of llama.cpp's name at some depth."""
    if not (shutil.which("cmake") and shutil.which("g++") and shutil.which("make")):
        pytest.skip("cmake, make and g++ are not installed")
    top = tmp_path / "src" / "sdist-1.0" / "vendor" / "llama.cpp"
    top.mkdir(parents=True)
    text = CMAKE.replace("llama_option_depr_placeholder()\n", "")
    (top / "CMakeLists.txt").write_text(
        "function(llama_option_depr A B)\nendfunction()\n"
        + text
        + "llama_option_depr(WARNING LLAMA_CUDA GGML_CUDA)\n"
    )
    (top.parent.parent / "CMakeLists.txt").write_text("project(llama_cpp)\n")
    (top / "server.cpp").write_text(PROGRAM)
    (top / "llama.cpp").write_text('extern "C" const char * arch() { return "llama"; }\n')
    return {"folder": top, "archive": tmp_path / "src.tar.gz"}


def source_of(sources: dict[str, Any]) -> dict[str, str]:
    with tarfile.open(sources["archive"], "w:gz") as archive:
        archive.add(sources["folder"].parents[2], "x")
    url = f"file://{sources['archive']}"
    return {"kind": "archive", "url": url, "sha256": releases.sha256_of(sources["archive"])}


def test_build(root: Path, sources: dict[str, Any], tmp_path: Path) -> None:
    events = Events()
    wanted = action(root, source=source_of(sources))
    assert run(act_releases.make, wanted, events).changed
    place = root / "releases" / "f1"
    assert releases.unsound(place, whole=True) == ""
    seal = releases.sealed(place)
    assert seal is not None and seal["version"] == "version: 7"
    assert seal["flags"] == {"llama-server": ["--port"]}
    assert "g++" in seal["compiler"]
    assert not (tmp_path / "cache" / "build" / "f1").exists()
    assert {line["event"] for line in events.lines} == {"progress"}
    assert not run(act_releases.make, wanted).changed


def test_a_failed_build_is_one_sentence_and_goes_on_later(
    root: Path, sources: dict[str, Any], tmp_path: Path
) -> None:
    (sources["folder"] / "server.cpp").write_text("int main() { return nothing; }\n")
    wanted = action(root, source=source_of(sources))
    said = refused(act_releases.make, wanted)
    assert "error: 'nothing' was not declared" in said
    assert str(tmp_path / "log" / "build-f1.log") in said
    assert not (root / "releases" / "f1").exists()
    folder = tmp_path / "cache" / "build" / "f1"
    (kept,) = folder.rglob("libllama.so")
    before = kept.stat().st_mtime_ns
    (broken,) = folder.rglob("server.cpp")
    broken.write_text(PROGRAM)
    made: list[int] = []
    install = build.install

    def look(work: build.Build, place: Path) -> None:
        made.append(kept.stat().st_mtime_ns)
        install(work, place)

    build.install = look
    try:
        assert run(act_releases.make, wanted).changed
    finally:
        build.install = install
    assert made == [before]  # the library was not built again


@pytest.mark.parametrize(
    ("options", "clause"),
    [
        ({"LLAMA_CUDA": "ON"}, "LLAMA_CUDA (now GGML_CUDA)"),
        ({"GGML_CUDA_DMMV": "ON"}, "GGML_CUDA_DMMV (the nearest is GGML_CUDA)"),
        ({"GGML_CPU_ARM_ARCH": "x", "GGML_ZZZ": "1"}, "know: GGML_ZZZ (nothing like it exists)"),
        ({"FOO": "ON"}, "variables these sources do not use: FOO"),
    ],
)
def test_options_the_sources_do_not_know(
    root: Path, sources: dict[str, Any], options: dict[str, str], clause: str
) -> None:
    assert clause in refused(
        act_releases.make, action(root, source=source_of(sources), options=options)
    )


def test_sources_with_other_bytes_or_without_llama(
    root: Path, sources: dict[str, Any], tmp_path: Path
) -> None:
    source = {**source_of(sources), "sha256": "1" * 64}
    assert "expected 1111" in refused(act_releases.make, action(root, source=source))
    (sources["folder"] / "CMakeLists.txt").unlink()
    said = refused(act_releases.make, action(root, source=source_of(sources)))
    assert "hold no llama.cpp" in said


def test_nobody_listens_any_more(root: Path, sources: dict[str, Any]) -> None:
    events = Events(until=1)
    wanted = action(root, source=source_of(sources))
    with pytest.raises(ActionError, match="the connection was lost"):
        run(act_releases.make, wanted, events)
    assert run(act_releases.make, wanted).changed


def test_no_room_to_build(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(act_releases, "BUILD_BYTES", 1 << 60)
    assert "a build needs" in refused(act_releases.make, action(root))


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("nvcc fatal   : Unsupported gpu architecture 'compute_70'\nmake: *** x", "nvcc fatal"),
        ("a.cpp:1:2: error: bad\nmake[1]: *** Error 1\n", "a.cpp:1:2: error: bad"),
        ("CMake Error at x\n  Could not find compiler\n-- failed\n", "CMake Error at x"),
        ("hello\n\nlast\n", "last"),
        ("", "it said nothing"),
    ],
)
def test_the_cause_in_a_log(log: str, expected: str) -> None:
    assert build._last_error(log).startswith(expected)
