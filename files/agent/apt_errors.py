"""What the output of a failed apt-get or dpkg means, in one sentence.

The texts recognised are those of apt 2.4 to 3.0 and dpkg 1.21 and newer, untranslated.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .handler import ActionError, command

SOURCES = Path("/etc/apt")


@dataclass(frozen=True)
class Problem:
    """Why apt or dpkg failed: a kind to act on, a sentence to tell, the packages at fault."""

    kind: str
    sentence: str
    names: tuple[str, ...] = ()


def locked(text: str) -> Problem | None:
    found = re.search(
        r"Could not get lock (\S+?)\.?(?:\s|$)(?:It is held by process (\d+)(?: \(([^)]*)\))?)?",
        text,
    )
    if found:
        path, pid, name = found.groups()
        who = f"process {pid}" + (f" ({name})" if name else "") if pid else "another process"
        return Problem("lock", f"{who} holds {path}")
    found = re.search(r"dpkg .*lock was locked by another process(?: with pid (\d+))?", text)
    if found:
        who = f"process {found[1]}" if found[1] else "another process"
        return Problem("lock", f"{who} holds the lock of dpkg")
    return None


def _interrupted(text: str) -> Problem | None:
    if "dpkg was interrupted" not in text:
        return None
    return Problem("interrupted", "an earlier dpkg was interrupted: run 'dpkg --configure -a'")


def _sources(text: str) -> Problem | None:
    found = re.search(r"Conflicting values set for option Signed-By regarding source (.+)", text)
    if found:
        source, _, keys = found[1].rpartition(": ")
        entries = ", ".join(_entries((source or keys).split()[0])) or "not found in /etc/apt"
        one, _, other = keys.partition(" != ")
        said = f" ({one} and {other})" if source and other else ""
        return Problem(
            "sources",
            f"two entries for the repository {source or keys} name different keyrings{said}: "
            f"keep one of its entries ({entries})",
        )
    found = re.search(r"E: (Malformed .*|Type .* is not known on line .*)", text)
    if found:
        return Problem("sources", f"apt can't read its sources: {found[1]}")
    found = re.search(r"E: (The repository '.*' (?:is not signed|is no longer signed)\.?)", text)
    key = re.search(r"NO_PUBKEY (\w+)", text)
    if found or key:
        what = found[1].rstrip(".") if found else "a repository's signature can't be checked"
        lacks = f", key {key[1]} is missing" if key else ""
        return Problem("sources", f"{what}{lacks}: install the keyring its entry should name")
    return None


def _entries(url: str) -> list[str]:
    """The files under /etc/apt that name a repository's address."""
    files = [SOURCES / "sources.list", *sorted((SOURCES / "sources.list.d").glob("*"))]
    named = []
    for file in files:
        with suppress(OSError):
            if url.rstrip("/") in file.read_text(errors="replace"):
                named.append(str(file))
    return named


def _unknown(text: str) -> Problem | None:
    missing = re.findall(
        r"E: (?:Unable to locate package (\S+)"
        r"|Package '?(\S+?)'? has no installation candidate"
        r"|Couldn't find any package by (?:glob|regex) '(\S+)')",
        text,
    )
    versions = re.findall(r"E: Version '(\S+)' for '(\S+)' was not found", text)
    if not missing and not versions:
        return None
    names = [next(name for name in match if name) for match in missing]
    words = [f"{name} is in no source of this host" for name in dict.fromkeys(names)]
    words += [f"no source has version {version} of {name}" for version, name in versions]
    names += [name for _, name in versions]
    return Problem(
        "unknown",
        f"{', '.join(words)}: correct the name, or add the source that has it",
        tuple(name.partition(":")[0] for name in dict.fromkeys(names)),
    )


def _dependencies(text: str) -> Problem | None:
    signs = ("held broken packages", "Unable to satisfy dependencies", "Held packages were changed")
    if not any(sign in text for sign in signs) and "unmet dependencies" not in text:
        return None
    unmet = re.findall(
        r"^\s*(\S+) ?: ((?:Pre)?Depends|Conflicts|Breaks): (.+?)(?: but (.+?))?$", text, re.M
    )
    words = [
        f"{package} {relation.lower()} on {what}"
        if "Depends" in relation
        else f"{package} {relation.lower()} {what}"
        for package, relation, what, _ in unmet
    ]
    assignments = re.findall(r"^\s*\d+\. (.+)$", text, re.M)  # apt 3
    held = [
        name for name in _held() if re.search(rf"(?<![\w.+-]){re.escape(name)}(?![\w.+-])", text)
    ]
    if held:
        words.append(
            f"the hold on {', '.join(held)} keeps apt from changing it (apt-mark showhold), "
            "and was left as it is"
        )
    said = "; ".join(words or assignments[:3]) or "the packages contradict each other"
    return Problem("dependencies", f"dependencies can't be satisfied: {said}", tuple(held))


def _held() -> list[str]:
    try:
        return command(["apt-mark", "showhold"], 30).out.split()
    except ActionError:
        return []


def _removal(text: str) -> Problem | None:
    if "remove is disabled" not in text:
        return None
    found = re.search(r"will be REMOVED:\n((?: +.+\n)+)", text)
    names = tuple(found[1].split()) if found else ()
    listed = ", ".join(names) or "other packages"
    return Problem("removal", f"apt would remove {listed} for it: remove them first if so wanted")


def _space(text: str) -> Problem | None:
    found = re.search(r"don't have enough free space in (\S+?)\.?$", text, re.M)
    if found:
        return Problem("space", f"not enough free space in {found[1]}: make room and run again")
    if "No space left on device" in text:
        return Problem("space", "the disk became full while packages were handled: make room")
    return None


def _fetching(text: str) -> Problem | None:
    found = re.search(r"(?:E: Failed to fetch|W: Failed to fetch|Err:\d+) (\S+)", text)
    address = f" ({found[1]})" if found else ""
    if re.search(r"\b404\b +Not Found|does not have a Release file", text):
        return Problem("stale", f"a repository does not have what its lists promise{address}: 404")
    if "Hash Sum mismatch" in text or "File has unexpected size" in text:
        return Problem("stale", f"a download is not what the lists promise{address}: wrong hash")
    network = re.search(
        r"(Temporary failure resolving '[^']*'|Could not resolve '[^']*'|Could not connect to \S+"
        r"|Unable to connect to \S+|Connection (?:timed out|failed|refused)"
        r"|Network is unreachable)",
        text,
    )
    if network:
        return Problem("network", f"a repository can't be reached{address}: {network[1]}")
    return None


def _script(text: str) -> Problem | None:
    found = re.search(r"dpkg: error processing (?:package|archive) (\S+) \([^)]*\):\n ?(.*)", text)
    if not found:
        return None
    name = Path(found[1]).name.partition("_")[0].partition(":")[0]
    return Problem("script", f"dpkg failed on {name}: {found[2].strip()}", (name,))


# The first that recognises the text wins; a cause goes before what it leads to.
_KINDS = (
    locked, _interrupted, _sources, _space, _removal, _dependencies, _unknown, _fetching, _script
)  # fmt: skip


def classify(text: str) -> Problem:
    """What the output of a failed apt-get or dpkg means."""
    for kind in _KINDS:
        problem = kind(text)
        if problem is not None:
            return problem
    errors = re.findall(r"^(?:E|dpkg: error): ?(.+)$", text, re.M)
    lines = text.strip().splitlines()
    return Problem("other", errors[0] if errors else lines[-1] if lines else "no message")
