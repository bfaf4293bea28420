"""What the simulated vendor's packages are made of: real programs from Debian 13 and PyPI.

Fetched once with the ordinary clients (apt with a configuration of its own, pip), checked by
them, and kept unpacked in the cache.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandbox import aptproxy
from sandbox.errors import SandboxError
from sandbox.shell import say
from sandbox.vendor import deb

RELEASE = "trixie"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# Debian package -> version; the private table of sandbox/nvml/internal.c is nvidia-smi's of
# exactly this version
DEBIAN = {
    "nvidia-smi": "550.163.01-2",
    "nvidia-cuda-toolkit": "12.4.131~12.4.1-2",
}

# headers, ptxas, libnvvm and the runtime library, which Debian has in packages of a gigabyte
WHEELS = {
    "nvidia-cuda-nvcc-cu12==12.4.131": (
        "e4c9a35435c3b0e36c6397c5696334c9ea6650e524736cbd1c5d345ea099bb04"
    ),
    "nvidia-cuda-runtime-cu12==12.4.127": (
        "64403288fa2136ee8e467cdc9c9427e0434110899d07c779f25b5c068934faa5"
    ),
}

APT = """\
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{folder}/sources";
Dir::State "{folder}";
Dir::State::status "{folder}/status";
Dir::State::lists "{folder}/lists";
Dir::Cache "{folder}/cache";
APT::Architecture "amd64";
APT::Architectures {{"amd64";}};
APT::Sandbox::User "";
"""


def fetch(cache: Path) -> Path:
    """Folder with ``nvidia-smi/``, ``nvidia-cuda-toolkit/`` and ``wheels/``, unpacked.

    Raises SandboxError when a client cannot get something.
    """
    names = [f"{name}={version}" for name, version in DEBIAN.items()]
    done = cache / f"inputs-{deb.digest(*names, *WHEELS, *WHEELS.values())}"
    if done.is_dir():
        return done
    part = done.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    say("fetching nvcc 12.4 and nvidia-smi of Debian 13 (120 MB, first time only)")
    with _apt(part / "apt") as environment:
        deb.run(["apt-get", "-q", "update"], env=environment, cwd=part)
        deb.run(["apt-get", "-q", "download", *names], env=environment, cwd=part)
    for name in DEBIAN:
        package = next(part.glob(f"{name}_*.deb"))
        deb.run(["dpkg-deb", "-x", package, part / name])
        package.unlink()
    say("fetching headers, ptxas and the runtime library of CUDA 12.4 (23 MB)")
    _wheels(part)
    shutil.rmtree(part / "apt")
    part.rename(done)
    return done


@contextmanager
def _apt(folder: Path) -> Iterator[dict[str, str]]:
    """An apt that knows Debian 13 alone, from this machine's own mirror."""
    if not KEYRING.is_file():
        raise SandboxError(f"{KEYRING} is missing: apt-get install debian-archive-keyring.")
    for name in ("sources", "lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources/debian.sources").write_text(
        f"Types: deb\nURIs: {aptproxy._mirror()}\nSuites: {RELEASE}\n"
        f"Components: main non-free\nSigned-By: {KEYRING}\n"
    )
    (folder / "apt.conf").write_text(APT.format(folder=folder))
    yield {"APT_CONFIG": str(folder / "apt.conf")}


def _wheels(part: Path) -> None:
    wanted = part / "wheels.txt"
    wanted.write_text("".join(f"{name} --hash=sha256:{sha}\n" for name, sha in WHEELS.items()))
    with tempfile.TemporaryDirectory() as work:
        options = ["-q", "--no-deps", "--only-binary=:all:", "--require-hashes", "-d", work]
        options += ["--platform", "manylinux2014_x86_64", "-r", str(wanted)]
        deb.run([*_pip(Path(work)), "download", *options])
        for wheel in Path(work).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(part / "wheels")


def _pip(work: Path) -> list[str]:
    """A pip: this Python's, the system's, or one in a throw-away environment (uv makes none)."""
    for python in (sys.executable, "/usr/bin/python3"):
        command = [python, "-m", "pip"]
        try:
            known = subprocess.run([*command, "--version"], capture_output=True, check=False)
        except FileNotFoundError:
            continue
        if known.returncode == 0:
            return command
    deb.run([sys.executable, "-m", "venv", work / "venv"])
    return [str(work / "venv/bin/python"), "-m", "pip"]
