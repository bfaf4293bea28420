"""Signed flat repositories, and the vendor's .deb that carries one."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox.vendor import deb
from sandbox.vendor.deb import File, Package

USER = "cudatools (voltfleet sandbox) <root@localhost>"


@dataclass(frozen=True)
class Key:
    """A signing key: gpg home, short id (8 hex digits) and exported public key."""

    home: Path
    short: str
    public: bytes


def make_key(home: Path) -> Key:
    """The key of a gpg home, made when there is none. The agent that gpg starts is ended."""
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    # gpg's agent wants a socket with a short path, so the work is done beside a short name
    with tempfile.TemporaryDirectory(prefix="vfgpg") as short:
        link = Path(short) / "h"
        link.symlink_to(home)
        listed = _gpg(link, "--list-keys", "--with-colons")
        if "pub:" not in listed:
            _gpg(link, "--pinentry-mode", "loopback", "--passphrase", "", "--quick-generate-key",
                 USER, "ed25519", "sign", "never")  # fmt: skip
            listed = _gpg(link, "--list-keys", "--with-colons")
        finger = next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))
        public = Path(short) / "key.gpg"
        _gpg(link, "--output", str(public), "--export", finger)
        key = Key(home=home, short=finger[-8:], public=public.read_bytes())
        deb.run(["gpgconf", "--homedir", link, "--kill", "all"])
    return key


def _gpg(home: Path, *words: str) -> str:
    return deb.run(["gpg", "--homedir", home, "--batch", "--yes", *words]).stdout


def index(folder: Path, key: Key, label: str) -> None:
    """Write Packages, Packages.gz, Release, Release.gpg and InRelease of a folder of .debs."""
    for name in ("Packages", "Packages.gz", "Release", "Release.gpg", "InRelease"):
        (folder / name).unlink(missing_ok=True)
    packages = deb.run(["apt-ftparchive", "packages", "."], cwd=folder).stdout
    (folder / "Packages").write_text(packages)
    deb.run(["gzip", "-n", "-k", folder / "Packages"])
    options = [f"-oAPT::FTPArchive::Release::{field}={label}" for field in ("Label", "Origin")]
    options += ["-oAPT::FTPArchive::Release::Architectures=amd64"]
    release = deb.run(["apt-ftparchive", *options, "release", "."], cwd=folder).stdout
    (folder / "Release").write_text(release)
    with tempfile.TemporaryDirectory(prefix="vfgpg") as short:
        link = Path(short) / "h"
        link.symlink_to(key.home)
        source = str(folder / "Release")
        _gpg(link, "--output", str(folder / "InRelease"), "--clearsign", source)
        _gpg(link, "--output", str(folder / "Release.gpg"), "--armor", "--detach-sign", source)
        deb.run(["gpgconf", "--homedir", link, "--kill", "all"])


def local_deb(system: str, series: str, release: str, folder: Path, key: Key, target: Path) -> Path:
    """The vendor's local-repository package of an indexed folder.

    system ``debian13``, series ``12-4``, release ``12.4.1-550.54.15-1``. Its shape is NVIDIA's
    (claims.md B6): packages below /var, the keyring beside them under a name with 8 hex digits,
    and a source line that names the keyring's place in /usr/share/keyrings, where the
    administrator copies it.
    """
    name = f"cuda-repo-{system}-{series}-local"
    home = f"/var/{name}"
    keyring = f"cuda-{key.short}-keyring.gpg"
    line = f"deb [signed-by=/usr/share/keyrings/{keyring}] file://{home} /\n"
    files: dict[str, deb.File | deb.Link] = {
        f"{home}/{path.name}": File(path) for path in sorted(folder.iterdir()) if path.is_file()
    }
    files[f"{home}/{keyring}"] = File(key.public)
    files[f"/etc/apt/sources.list.d/cuda-{system}-{series}-local.list"] = File(line.encode())
    said = "The public CUDA GPG key does not appear to be installed."
    postinst = (
        "#!/bin/sh\nset -e\n"
        f'[ "$1" != configure ] || [ -e /usr/share/keyrings/{keyring} ] || '
        f"printf '%s\\n' '' '{said}' 'To install the key, run this command:' "
        f"'sudo cp {home}/{keyring} /usr/share/keyrings/' ''\n"
    )
    package = Package(
        name=name,
        version=release,
        files=files,
        scripts={"postinst": postinst},
        summary="cuda repository configuration files (simulated)",
    )
    return deb.build(package, target, compress="none")


def fill(folder: Path, packages: Sequence[Package]) -> None:
    """Build packages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in packages:
        deb.build(package, folder)
