"""llama.cpp's sources for the hub, from the one registry package that carries them whole.

The sdist of llama-cpp-python vendors llama.cpp. It is fetched by pip, checked by its digest, and
``vendor/llama.cpp`` is packed again so that the same sdist always gives the same archive:
sorted names, no times, no owners.
"""

from __future__ import annotations

import re
import shutil
import struct
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import IO, BinaryIO, cast

from sandbox.errors import SandboxError
from sandbox.hub.store import Store, sha256
from sandbox.settings import Settings
from sandbox.shell import environment, run, say

PACKAGE = "llama-cpp-python"
VERSION = "0.3.36"
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
# ggml-org/llama.cpp at this commit, which calls itself 0.5.0-dev: the sdist's CHANGELOG.md and
# vendor/llama.cpp/CMakeLists.txt say so.
LLAMA_COMMIT = "0c1e57098"
# What comes out of pack(), on every machine.
ARCHIVE_SHA256 = "867e329a096a15879053003bb02f4e8de406ff70ce9b57b4e18e9b7eedbf1334"
REPOSITORY = Path(__file__).resolve().parents[1]
URL_PATH = f"files/llama.cpp-{LLAMA_COMMIT}.tar.gz"

_PREFIX = f"llama_cpp_python-{VERSION}/vendor/llama.cpp/"
_FOLDER = f"llama.cpp-{LLAMA_COMMIT}"
# Nothing of this takes part in a build of the tools, and it is most of the size.
_SKIP = re.compile(r"^(\.|docs/|media/|models/|benches/|skills/|tools/ui/tests/|[A-Z]+\.md$)")


def ensure(settings: Settings) -> Path:
    """The archive on the hub, made when it is not there. Downloads 77 MB the first time.

    Raises SandboxError when the registry does not give the file, or another one than recorded.
    """
    store = Store(settings.hub)
    target = store.locate(URL_PATH).file
    if target.is_file():
        return target
    with tempfile.TemporaryDirectory(dir=_scratch(settings)) as scratch:
        sdist = _download(Path(scratch))
        say("packing llama.cpp's sources for the hub")
        packed = Path(scratch) / target.name
        pack(sdist, packed)
        if sha256(packed) != ARCHIVE_SHA256:
            raise SandboxError(
                f"The packed sources have sha256 {sha256(packed)}, but {ARCHIVE_SHA256} is "
                "recorded in sandbox/sources.py."
            )
        store.add(packed, URL_PATH)
    return target


def _scratch(settings: Settings) -> Path:
    settings.run.mkdir(parents=True, exist_ok=True)
    return settings.run


def _download(folder: Path) -> Path:
    say(f"fetching the sources of {PACKAGE} {VERSION} (77 MB, first time only)")
    python = _python_with_pip(folder)
    # pip prepares the metadata of an sdist even for a download; the build backend must be there
    command = [*python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--no-binary", PACKAGE, "--dest", str(folder), f"{PACKAGE}=={VERSION}"]
    run(command, what=f"download {PACKAGE} {VERSION}", timeout=600)
    found = next(folder.glob("llama_cpp_python-*.tar.gz"), None)
    if found is None:
        raise SandboxError(f"pip downloaded no source archive of {PACKAGE} {VERSION}.")
    digest = sha256(found)
    if digest != SDIST_SHA256:
        raise SandboxError(
            f"The source archive of {PACKAGE} {VERSION} has sha256 {digest}, but {SDIST_SHA256} "
            "is recorded in sandbox/sources.py."
        )
    return found


def _python_with_pip(folder: Path) -> list[str]:
    """A Python with pip and the build backend, thrown away with the folder.

    The project's own environment has neither; uv brings them, else venv does.
    """
    extra = ["pip", "scikit-build-core"]
    # `make setup` keeps a uv of its own where the system has none
    path = f"{environment()['PATH']}:{REPOSITORY / '.voltfleet/tools/bin'}"
    uv = shutil.which("uv", path=path)
    if uv and run([uv, "--version"], what="ask uv", check=False).returncode == 0:
        wanted = [word for name in extra for word in ("--with", name)]
        return [uv, "run", "--quiet", "--no-project", *wanted, "python"]
    place = folder / "venv"
    run([sys.executable, "-m", "venv", place], what="make a Python environment with pip")
    python = str(place / "bin/python")
    run([python, "-m", "pip", "install", "--quiet", *extra], what="install pip's build backend")
    return [python]


def pack(sdist: Path, target: Path) -> None:
    """Repack vendor/llama.cpp of an sdist as .tar.gz: names sorted, no times, no owners.

    The gzip stream is written uncompressed, because what a compressor makes of the same content
    differs between zlib's versions and would give another sha256 on another machine.
    """
    with tarfile.open(sdist) as source, target.open("wb") as raw:
        members = sorted(
            (member for member in source.getmembers() if _wanted(member)), key=lambda m: m.name
        )
        plain = _StoredGzip(raw)
        # "|": written as a stream, so a plain file-like object will do
        with tarfile.open(
            name=None, mode="w|", fileobj=cast(IO[bytes], plain), format=tarfile.GNU_FORMAT
        ) as packed:
            for member in members:
                clean = tarfile.TarInfo(f"{_FOLDER}/{member.name[len(_PREFIX) :]}")
                clean.size = member.size
                clean.mode = 0o755 if member.mode & 0o100 else 0o644
                packed.addfile(clean, source.extractfile(member))
        plain.finish()


class _StoredGzip:
    """A write-only gzip file (RFC 1952) of stored deflate blocks (RFC 1951, 3.2.4)."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._crc = 0
        self._size = 0
        # magic, deflate, no flags, no time, no extra flags, Unix
        raw.write(b"\x1f\x8b\x08\x00" + bytes(4) + b"\x00\x03")

    def write(self, data: bytes) -> int:
        """Append content."""
        for start in range(0, len(data), 0xFFFF):
            self._block(data[start : start + 0xFFFF], last=False)
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        return len(data)

    def finish(self) -> None:
        """Write the last block and the trailer."""
        self._block(b"", last=True)
        self._raw.write(struct.pack("<II", self._crc, self._size & 0xFFFFFFFF))

    def _block(self, data: bytes, last: bool) -> None:
        header = struct.pack("<BHH", int(last), len(data), len(data) ^ 0xFFFF)
        self._raw.write(header + data)


def _wanted(member: tarfile.TarInfo) -> bool:
    name = member.name
    if not member.isfile() or not name.startswith(_PREFIX):
        return False
    return not _SKIP.match(name[len(_PREFIX) :])
