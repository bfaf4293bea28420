"""Builds the vendor's repositories into a folder of the cache, once per state of their inputs."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import sandbox.nvml
from sandbox.errors import SandboxError
from sandbox.shell import say
from sandbox.vendor import deb, drivers, inputs, kernel, repo, toolkit

SERIES = "12.4"
SYSTEMS = ("debian13", "ubuntu2204")
HERE = Path(__file__).parent
NEWER = "99.0.1-9-amd64"  # a kernel that is installed and not running


@dataclass(frozen=True)
class Vendor:
    """What was built. Folders are flat, signed repositories; ``keyring`` is beside Packages."""

    folder: Path

    def local(self, system: str) -> Path:
        """The local-repository .deb for ``debian13`` or ``ubuntu2204``."""
        return next(self.folder.glob(f"cuda-repo-{system}-12-4-local_*.deb"))

    @property
    def network(self) -> Path:
        """Driver-only repository of branch 580, for serving over HTTP (network style)."""
        return self.folder / "driver-580"

    @property
    def distribution(self) -> Path:
        """What a distribution has: -server drivers, transitional packages, kernels, headers."""
        return self.folder / "distribution"

    @property
    def others(self) -> Path:
        """Stand-ins for the toolkits 11.8 and 13.0."""
        return self.folder / "other-toolkits"

    @property
    def image(self) -> Path:
        """The simulated linux-image package, to be installed in the hosts' image."""
        mark = kernel.running().lower().replace("_", "-")
        return next(self.distribution.glob(f"linux-image-{mark}_*.deb"))


def sha256(deb_file: Path) -> str:
    """The sha256 of a built .deb, noted beside it: it has hundreds of megabytes."""
    beside = deb_file.with_suffix(".sha256")
    if not beside.is_file():
        digest = hashlib.sha256()
        with deb_file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
        part = beside.with_suffix(f".{os.getpid()}")
        part.write_text(digest.hexdigest())
        part.replace(beside)
    return beside.read_text()


def key() -> str:
    """Digest of everything that goes into the build."""
    own = [
        path
        for path in sorted(HERE.rglob("*"))
        if path.is_file() and "__pycache__" not in str(path)
    ]
    return deb.digest(
        kernel.running(), *own, *sandbox.nvml.sources(), HERE.parent / "nvml/__init__.py"
    )


def ensure(cache: Path) -> Vendor:
    """The built vendor below ``cache/vendor``; builds when there is none for today's inputs.

    Raises SandboxError when a tool is missing or a step fails.
    """
    home = cache / "vendor"
    done = home / f"built-{key()}"
    if done.is_dir():
        return Vendor(done)
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # another command or test may be building it
        return Vendor(done) if done.is_dir() else _make(home, done)


def _make(home: Path, done: Path) -> Vendor:
    source = inputs.fetch(home)
    part = done.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        _build(source, home / "keys", part)
    except sandbox.nvml.BuildError as error:
        raise SandboxError(str(error)) from error
    shutil.rmtree(part / "work")
    part.rename(done)
    for old in home.glob("built-*"):
        if old != done:
            shutil.rmtree(old)
    return Vendor(done)


def _build(source: Path, keys: Path, part: Path) -> None:
    work = part / "work"
    running = kernel.running()
    local, network = part / "local", part / "driver-580"
    distribution, others = part / "distribution", part / "other-toolkits"
    say("vendor: packages of CUDA 12.4")
    repo.fill(local, toolkit.packages(source))
    repo.fill(others, toolkit.others())
    for driver in drivers.LOCAL:
        say(f"vendor: packages of driver {driver.version}")
        made = drivers.packages(source, work / driver.version, driver)
        repo.fill(local, made)
        if driver.branch == "580":
            repo.fill(network, made)
    repo.fill(local, drivers.metas(drivers.LOCAL))
    repo.fill(network, drivers.metas(tuple(d for d in drivers.LOCAL if d.branch == "580")))
    say("vendor: packages of the distribution (-server, transitional, kernels)")
    for driver in drivers.LOCAL:
        if driver.branch != "580":
            continue
        folder = work / f"{driver.version}-server"
        repo.fill(distribution, drivers.packages(source, folder, driver, True, (running,)))
    repo.fill(distribution, drivers.transitional())
    repo.fill(
        distribution, [p for p in drivers.metas(drivers.LOCAL[:3]) if p.name == "nvidia-modprobe"]
    )
    for release in dict.fromkeys((running, NEWER)):
        (work / release).mkdir()
        repo.fill(distribution, kernel.packages(work / release, release))
    say("vendor: indexes, signatures and the local-repository packages")
    for folder, label in (
        (network, "NVIDIA CUDA"),
        (distribution, "Simulated distribution"),
        (others, "NVIDIA CUDA"),
    ):
        made_key = repo.make_key(keys / folder.name)
        repo.index(folder, made_key, label)
        (folder / f"cuda-{made_key.short}-keyring.gpg").write_bytes(made_key.public)
    for system in SYSTEMS:
        made_key = repo.make_key(keys / system)
        repo.index(local, made_key, "NVIDIA CUDA")
        repo.local_deb(system, "12-4", "12.4.1-550.54.15-1", local, made_key, part)
    shutil.rmtree(local)
