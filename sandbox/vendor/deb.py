"""Binary packages with dpkg-deb, the same bytes for the same input."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.errors import SandboxError

EPOCH = "1711929600"  # 2024-04-01, when CUDA 12.4.1 came out: every file carries this time


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


@dataclass(frozen=True)
class File:
    """A file of a package: its bytes, or a file to copy."""

    content: bytes | Path
    mode: int = 0o644


@dataclass(frozen=True)
class Package:
    """A binary package: control fields, files by path, maintainer scripts by name."""

    name: str
    version: str
    fields: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, File | Link] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    architecture: str = "amd64"
    summary: str = "simulated package of the voltfleet sandbox"

    @property
    def filename(self) -> str:
        """Name of the .deb; an epoch is left out, as apt does."""
        return (
            f"{self.name}_{self.version.partition(':')[2] or self.version}_{self.architecture}.deb"
        )


def run(
    command: Sequence[str | Path], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a tool; SandboxError with the end of its complaint when it fails."""
    full = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH, "LC_ALL": "C.UTF-8", **(env or {})}
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, cwd=cwd, env=full, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SandboxError(
            f"{words[0]} is missing: apt-get install {_package(words[0])}."
        ) from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise SandboxError(f"{' '.join(words[:3])} failed ({done.returncode}): {' / '.join(said)}")
    return done


def digest(*parts: str | bytes | Path) -> str:
    """Short key of texts, bytes and files, for names in the cache."""
    total = hashlib.sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else part
        content = content.encode() if isinstance(content, str) else content
        total.update(len(content).to_bytes(8, "big") + content)
    return total.hexdigest()[:16]


def _package(tool: str) -> str:
    packages = {"apt-ftparchive": "apt-utils", "gpg": "gnupg", "dpkg-deb": "dpkg", "gcc": "gcc"}
    return packages.get(tool, tool)


def build(package: Package, folder: Path, compress: str = "gzip") -> Path:
    """Build the .deb in a folder; returns its path.

    compress is ``gzip`` (fast, any dpkg reads it) or ``none`` (for packages full of packages).
    """
    root = folder / f".{package.name}.root"
    shutil.rmtree(root, ignore_errors=True)
    control = root / "DEBIAN"
    control.mkdir(parents=True)
    for path, item in package.files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(item, Link):
            target.symlink_to(item.target)
        elif isinstance(item.content, Path):
            # linked, not copied: the toolkit is big, and dpkg-deb only reads
            _place(item.content, target, item.mode)
        else:
            target.write_bytes(item.content)
            target.chmod(item.mode)
    fields = {
        "Package": package.name,
        "Version": package.version,
        "Architecture": package.architecture,
        "Maintainer": "voltfleet sandbox <root@localhost>",
        "Section": "non-free/devel",
        "Priority": "optional",
        **package.fields,
        "Description": package.summary,
    }
    text = "".join(f"{key}: {value}\n" for key, value in fields.items() if value)
    (control / "control").write_text(text)
    configuration = [path for path in package.files if path.startswith("/etc/")]
    if configuration:
        (control / "conffiles").write_text("".join(f"{path}\n" for path in configuration))
    for name, script in package.scripts.items():
        (control / name).write_text(script)
        (control / name).chmod(0o755)
    target = folder / package.filename
    options = [f"-Z{compress}", *(["-z1"] if compress == "gzip" else [])]
    run(["dpkg-deb", "--root-owner-group", *options, "--build", root, target])
    shutil.rmtree(root)
    return target


def _place(source: Path, target: Path, mode: int) -> None:
    if source.stat().st_mode & 0o777 == mode:
        try:
            os.link(source, target)
            return
        except OSError:  # another file system
            pass
    shutil.copyfile(source, target)
    target.chmod(mode)
