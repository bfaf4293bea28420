"""Package repositories of the vendor: NVIDIA's local-repository .deb, or one over the network.

Each is registered as exactly one source entry signed with exactly one keyring; never with
``apt-key``, never with ``trusted=yes``. What is registered is remembered in a stamp, so that the
probe can tell whether it is still whole.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import act_files, apt, apt_errors, download, platform_apt
from .act_packages import APT_GET
from .apt_install import progress
from .handler import (
    Action,
    ActionError,
    Context,
    Handler,
    Outcome,
    argument,
    command,
    must,
    os_sentence,
)
from .releases import sha256_of

KEYRINGS = Path("/usr/share/keyrings")
CHUNK = 1 << 20


def register_deb(context: Context, action: Action) -> Outcome:
    """Install a local-repository .deb and let apt read it; what it needs is fetched or uploaded.

    When anything about it is not as it must be, the package is taken off again, so that apt goes
    on working, and the .deb stays for the next run.
    """
    deb = _deb(context, action)
    package = must(["dpkg-deb", "--field", str(deb), "Package"], 60).out.strip()
    was_there = _status(package) == "installed"
    ended = apt.run(
        ["dpkg", "--install", str(deb)],
        argument(action, "lock_wait_s", int),
        progress(context, action),
    )
    keyring = None
    try:
        if ended.rc != 0:
            raise ActionError(f"package {package}: {apt_errors.classify(ended.out).sentence}")
        folder = _folder(package)
        found = one_keyring(folder)
        keyring = KEYRINGS / found.name
        _write(context, keyring, found.read_bytes())
        source = _one_entry(folder, keyring)
        _update(context, action, source)
    except (ActionError, OSError) as error:
        if not was_there:
            command(["dpkg", "--purge", package], 600)
            if keyring is not None:
                keyring.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ActionError(os_sentence(error, f"registering {package}")) from error
        raise
    _stamp(context, action, package=package, folder=str(folder), source=source, keyring=keyring)
    return Outcome(True)


def register_network(context: Context, action: Action) -> Outcome:
    """Write the source entry of a repository over the network, with its own keyring."""
    url, suite = argument(action, "url", str), argument(action, "suite", str)
    name = f"voltfleet-{hashlib.sha256(url.encode()).hexdigest()[:8]}"
    uploaded = Path(argument(action, "file", str))
    keyring = KEYRINGS / f"{name}-keyring.gpg"
    source = Path(platform_apt.SOURCES) / "sources.list.d" / f"{name}.sources"
    try:
        _write(context, keyring, uploaded.read_bytes())
    except OSError as error:
        raise ActionError(os_sentence(error, f"reading {uploaded}")) from error
    text = f"Types: deb\nURIs: {url}\nSuites: {suite}\nSigned-By: {keyring}\n"
    if suite != "/":
        text += "Components: main\n"
    was_there = source.exists()
    _write(context, source, text.encode())
    try:
        _update(context, action, str(source))
    except ActionError:
        if not was_there:
            source.unlink(missing_ok=True)
            keyring.unlink(missing_ok=True)
        raise
    _stamp(context, action, package=None, folder=None, source=str(source), keyring=keyring)
    return Outcome(True)


def remove(context: Context, action: Action) -> Outcome:
    """Take a local repository off the host, its package, keyring and downloaded .deb."""
    key = argument(action, "key", str)
    path = _stamp_path(key)
    try:
        stamp = json.loads(path.read_text())
    except FileNotFoundError:
        return Outcome(False)
    if stamp.get("package"):
        must(["dpkg", "--purge", stamp["package"]], 600)
    for left in (stamp["keyring"], stamp["source"], stamp.get("file") or stamp["keyring"]):
        Path(left).unlink(missing_ok=True)
    path.unlink()
    return Outcome(True)


def one_keyring(folder: Path) -> Path:
    """The keyring of a local repository: NVIDIA names it ``cuda-<8 hex>-keyring.gpg``, other digits
    in every .deb. Raises `ActionError` unless there is exactly one (C03)."""
    found = sorted(folder.glob("*-keyring.gpg"))
    if not found:
        raise ActionError(
            f"{folder} holds no keyring (*-keyring.gpg), expected exactly one: the .deb is no "
            "signed local repository"
        )
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ActionError(
            f"{folder} holds {len(found)} keyrings ({names}), expected exactly one: remove the one "
            "that does not belong to it"
        )
    return found[0]


def _deb(context: Context, action: Action) -> Path:
    """The .deb on this host, whole: already there, fetched, or uploaded before."""
    deb, url = Path(argument(action, "file", str)), argument(action, "url", str)
    wanted = argument(action, "sha256", str)
    if deb.exists() and sha256_of(deb) == wanted:
        return deb
    deb.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    part = deb.with_suffix(".part")
    if url.startswith("file://"):
        try:
            shutil.copyfile(url.removeprefix("file://"), part)
        except OSError as error:
            raise ActionError(os_sentence(error, f"copying {url}")) from error
    elif url:

        def tell(present: int, rate: float) -> None:
            done = f"{present / 1e6:.0f} MB, {rate / 1e6:.1f} MB/s"
            context.progress(action, f"fetches {deb.name}: {done}", None)

        fault = download.fetch([download.Fetch(url, part, 0)], None, tell).get(part)
        if fault:
            raise ActionError(f"{url}: {fault}; what came stays for the next run")
    else:
        raise ActionError(f"{deb} was not uploaded from the controller: run again")
    found = sha256_of(part)
    if found != wanted:
        part.unlink()
        raise ActionError(f"{url} has sha256 {found}, expected {wanted}: correct one of them")
    part.replace(deb)
    return deb


def _status(package: str) -> str:
    form = "--showformat=${db:Status-Status}"
    return command(["dpkg-query", "--show", form, package], 60).out.strip()


def _folder(package: str) -> Path:
    """The folder under /var that a local-repository package brings."""
    listed = must(["dpkg-query", "--listfiles", package], 60).out.splitlines()
    found = [
        Path(path)
        for path in listed
        if path.startswith("/var/") and any(f"{path}/{name}" in listed for name in RELEASES)
    ]
    if len(found) != 1:
        raise ActionError(
            f"package {package} brings {len(found)} repositories under /var, expected one"
        )
    return found[0]


RELEASES = ("Release", "InRelease", "Packages", "Packages.gz")


def _one_entry(folder: Path, keyring: Path) -> str:
    """The file of the one source entry for a folder, which must name that keyring."""
    entries = [
        entry
        for entry in platform_apt.apt_sources({"urls": [f"file://{folder}"]})["entries"]
        if entry["uri"] in (f"file://{folder}", f"file:{folder}")
    ]
    files = ", ".join(f"{entry['file']} line {entry['line']}" for entry in entries)
    if len(entries) != 1:
        raise ActionError(
            f"{len(entries)} source entries name {folder} ({files or 'none'}), expected exactly "
            "one: remove the others"
        )
    entry = entries[0]
    if entry["trusted"] or entry["signed_by"] != str(keyring):
        raise ActionError(
            f"the entry for {folder} in {files} is signed by {entry['signed_by'] or 'nothing'}"
            f"{' and says trusted=yes' if entry['trusted'] else ''}, expected {keyring}"
        )
    return str(entry["file"])


def _update(context: Context, action: Action, source: str) -> None:
    """Have apt read one source alone: a host without any network can do that."""
    alone = ["-o", f"Dir::Etc::SourceList={source}", "-o", "Dir::Etc::SourceParts=-"]
    words = [*APT_GET, *alone, "-o", "APT::Get::List-Cleanup=0", "update"]
    ended = apt.run(words, argument(action, "lock_wait_s", int), progress(context, action))
    failed = ("Some index files failed", "GPG error", "is not signed")
    if ended.rc != 0 or any(sign in ended.out for sign in failed):
        raise ActionError(f"{source}: {apt_errors.classify(ended.out).sentence}")


def _write(context: Context, path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    act_files.file_write(
        context,
        {
            "do": "file.write",
            "id": str(path),
            "path": str(path),
            "content": base64.b64encode(content).decode("ascii"),
            **{"mode": "0644", "owner": "root", "group": "root", "secret": False},
        },
    )


def _stamp_path(key: str) -> Path:
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    return Path(platform_apt.STAMPS) / f"{name}.json"


def _stamp(context: Context, action: Action, **about: Any) -> None:
    values: Mapping[str, Any] = {
        "key": argument(action, "key", str),
        "file": action.get("file"),
        **{name: str(value) if isinstance(value, Path) else value for name, value in about.items()},
    }
    _write(context, _stamp_path(values["key"]), (json.dumps(values, indent=1) + "\n").encode())
    with suppress(KeyError):
        context.former.pop(str(_stamp_path(values["key"])))


HANDLERS = {
    "cuda.repo": Handler(one=register_deb),
    "driver.repo": Handler(one=register_network),
    "cuda.repo_remove": Handler(one=remove),
}
