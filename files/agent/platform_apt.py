"""NVIDIA's packages on a host, where they come from, and what apt would do about the driver.

Keys of the answer::

    "packages": {name: {"version": "…", "status": "installed", "held": false}}
    "dkms": {"modules": [{"module": "nvidia", "version": "…", "kernel": "…"|null, "state": "…"}]}
    "apt_sources": {"entries": [{"file", "line", "uri", "suite", "signed_by"|null, "trusted"}]}
    "repositories": {key: {"package", "folder", "source", "keyring", "sound", "reason"}}
    "simulation": {"asked": [names], "held": [names], "rc": 0, "out": "…", "err": "…",
                   "offers": "…"}|null
"""

# Paths are handled with os.path: pathlib would double what the agent imports at start.
# ruff: noqa: PTH110, PTH112, PTH119, PTH207
from __future__ import annotations

import glob
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from .nvidia_stack import branch_of, is_nvidia, tied_to_driver
from .platform_request import Request, limit
from .probe_tools import ARCHITECTURES, Unlearned, run_tool

STAMPS = "/var/lib/voltfleet/repositories"  # one file per repository a run has registered
SOURCES = "/etc/apt"
PATTERNS = (
    *("*nvidia*", "cuda*", "libcuda*", "libcu*", "libnp*", "libnv*", "gds-tools*"),
    *("libxnvctrl*", "nsight-*"),
)
SIMULATE = (
    *("apt-get", "--simulate", "--ignore-hold", "--allow-change-held-packages"),
    *("--allow-downgrades", "--no-install-recommends", "--yes"),
)
LONGEST = 200_000  # characters of apt's answer that are passed on


def packages(request: Request) -> dict[str, Any]:
    """Every package of NVIDIA's that dpkg knows, by name; of several architectures the native one.

    A removed package with its configuration left has the status ``config-files``.
    """
    form = "${Package}\\t${Architecture}\\t${Version}\\t${Status}\\n"
    status, out, err = run_tool(["dpkg-query", "-W", f"-f={form}", *PATTERNS], limit(request))
    faults = [line for line in err.splitlines() if "no packages found matching" not in line]
    if status not in (0, 1) or (status and faults):
        raise Unlearned(f"dpkg-query failed with {status}: {' '.join(faults)[:200]}")
    return parse_packages(out, ARCHITECTURES.get(os.uname().machine, ""))


def parse_packages(out: str, native: str) -> dict[str, Any]:
    """dpkg-query's lines as packages by name."""
    found: dict[str, Any] = {}
    ranks: dict[str, tuple[bool, bool]] = {}
    for line in out.splitlines():
        name, architecture, version, words = line.split("\t")
        want, _, state = words.split()
        if state == "not-installed" or not is_nvidia(name):
            continue
        rank = (state == "installed", architecture in (native, "all"))
        if name not in found or rank > ranks[name]:
            found[name] = {"version": version, "status": state, "held": want == "hold"}
            ranks[name] = rank
    return found


def dkms(request: Request) -> dict[str, Any]:
    """What DKMS has built of NVIDIA's modules; empty where there is no DKMS."""
    try:
        status, out, err = run_tool(["dkms", "status"], limit(request))
    except Unlearned as error:
        if str(error).endswith("is not installed"):
            return {"modules": []}
        raise
    if status != 0:
        raise Unlearned(f"dkms status failed with {status}: {err.strip()[:200]}")
    return {"modules": parse_dkms(out)}


def parse_dkms(out: str) -> list[dict[str, Any]]:
    """NVIDIA's lines of ``dkms status``; before DKMS 3 module and version are apart by a comma.

    A module that is built for no kernel is ``added``, its kernel null.
    """
    rows = []
    for line in out.splitlines():
        found = re.match(
            r"^(nvidia[^/,\s]*)(?:/|, )([^,:\s]+)(?:, ([^,\s]+), [^:\s]+)?: (\w+)", line.strip()
        )
        if found:
            module, version, kernel, state = found.groups()
            rows.append({"module": module, "version": version, "kernel": kernel, "state": state})
    return rows


def apt_sources(request: Request) -> dict[str, Any]:
    """Every apt entry that names an NVIDIA repository, by address or by the file's name."""
    entries = []
    for path in (
        f"{SOURCES}/sources.list",
        *sorted(glob.glob(f"{SOURCES}/sources.list.d/*.list")),
        *sorted(glob.glob(f"{SOURCES}/sources.list.d/*.sources")),
    ):
        if not os.path.exists(path):
            continue
        with open(path, encoding="utf-8", errors="replace") as file:
            entries += parse_sources(path, file.read())
    wanted = tuple(str(url) for url in request.get("urls", ()))
    return {
        "entries": [
            entry
            for entry in entries
            if re.search("cuda|nvidia", entry["uri"] + os.path.basename(entry["file"]))
            or entry["uri"].startswith(wanted or ("\0",))
        ]
    }


def parse_sources(path: str, text: str) -> list[dict[str, Any]]:
    """The entries of an apt source file, one-line (``.list``) or deb822 (``.sources``) style."""
    return _deb822(path, text) if path.endswith(".sources") else _one_line(path, text)


def _one_line(path: str, text: str) -> list[dict[str, Any]]:
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(r"^\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)", line)
        if not found:
            continue
        options = dict(word.partition("=")[::2] for word in (found[1] or "").split() if "=" in word)
        entries.append(_entry(path, number, found[2], found[3], options))
    return entries


def _deb822(path: str, text: str) -> list[dict[str, Any]]:
    entries = []
    line = 1
    for block in re.split(r"\n[ \t]*\n", text):
        fields = {
            key.lower(): value.strip()
            for key, value in re.findall(r"^([A-Za-z-]+):(.*(?:\n[ \t].*)*)", block, re.M)
        }
        binary = "deb" in fields.get("types", "").split()
        if binary and fields.get("enabled", "yes").lower() not in ("no", "false", "0"):
            for uri in fields.get("uris", "").split():
                for suite in fields.get("suites", "").split():
                    entries.append(_entry(path, line, uri, suite, fields))
        line += block.count("\n") + 2
    return entries


def _entry(
    path: str, line: int, uri: str, suite: str, options: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "file": path,
        "line": line,
        "uri": uri.rstrip("/"),
        "suite": suite,
        "signed_by": options.get("signed-by") or None,
        "trusted": options.get("trusted", "no").lower() in ("yes", "true", "1"),
    }


def repositories(request: Request) -> dict[str, Any]:
    """The repositories that runs have registered here, and whether each is still whole."""
    found: dict[str, Any] = {}
    for path in sorted(glob.glob(f"{STAMPS}/*.json")):
        with open(path, encoding="utf-8") as file:
            stamp = json.load(file)
        reason = _fault(stamp)
        found[stamp["key"]] = {**stamp, "sound": reason is None, "reason": reason or ""}
    return found


def _fault(stamp: Mapping[str, Any]) -> str | None:
    folder, source = stamp.get("folder"), stamp["source"]
    if folder:
        keyrings = sorted(glob.glob(f"{folder}/*-keyring.gpg"))
        if not os.path.isdir(folder):
            return f"{folder} is gone"
        if len(keyrings) != 1:
            return f"{folder} has {len(keyrings)} keyrings, expected one"
    for part in (source, stamp["keyring"]):
        if not os.path.exists(part):
            return f"{part} is gone"
    return None


def simulation(request: Request) -> dict[str, Any] | None:
    """What apt would do for the driver asked; None where nothing is asked or all is there already.

    The pins that a run is about to write count already. Holds are passed over, since ours are
    lifted for a planned move; which there are is told, so that somebody else's are respected. A
    simulation takes no lock.
    """
    asked = request.get("driver") or {}
    names = [str(name) for name in asked.get("packages", ())]
    if not names or _as_asked(names, int(asked["branch"]), packages(request)):
        return None
    with tempfile.NamedTemporaryFile("w", prefix="voltfleet-pins-") as pins:
        os.fchmod(pins.fileno(), 0o644)  # apt may read it as another user
        pins.write(f"{_preferences()}\n\n{asked.get('pins', '')}")
        pins.flush()
        option = f"Dir::Etc::Preferences={pins.name}"
        status, out, err = run_tool(
            [*SIMULATE, "-o", option, "install", "--", *names], limit(request)
        )
        shown, offers, _ = run_tool(
            ["apt-cache", "-o", option, "show", "--no-all-versions", "--", *names], limit(request)
        )
    held, holds, err_holds = run_tool(["apt-mark", "showhold"], limit(request))
    if held != 0:
        raise Unlearned(f"apt-mark failed with {held}: {err_holds.strip()[:200]}")
    return {
        "asked": names,
        "held": holds.split(),
        "rc": status,
        "out": out[:LONGEST],
        "err": err[:LONGEST],
        "offers": offers[:LONGEST] if shown == 0 else "",
    }


def _preferences() -> str:
    try:
        with open(f"{SOURCES}/preferences", encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _as_asked(names: list[str], branch: int, found: Mapping[str, Any]) -> bool:
    installed = {name for name, package in found.items() if package["status"] == "installed"}
    present = [name for name, package in found.items() if package["status"] != "config-files"]
    branches = {branch_of(found[name]["version"]) for name in present if tied_to_driver(name)}
    return installed.issuperset(names) and branches <= {branch, None}


LOOKS: dict[str, Callable[[Request], Any]] = {
    "packages": packages,
    "dkms": dkms,
    "apt_sources": apt_sources,
    "repositories": repositories,
    "simulation": simulation,
}
