"""CUDA toolkits on a host: what lies in /usr/local, who owns it, which nvcc answers.

Keys of the answer::

    "toolkits": {path: {"link": target|null, "owners": [packages], "version": "12.4"|null,
                         "is_toolkit": true}}
    "alternative": {"value": path|null, "status": "auto"|"manual"|null, "choices": [paths]}
    "nvcc": {"path": "…", "release": "12.4", "build": "12.4.131"}|null
    "cuda_proof": {"nvcc": "…", "build": "…", "architectures": ["sm_70"]}|null
    "path_lines": {"lines": [{"file", "line", "text", "root"}]}
"""

# Paths are handled with os.path: pathlib would double what the agent imports at start.
# ruff: noqa: PTH110, PTH112, PTH114, PTH115, PTH119, PTH207
from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable
from typing import Any

from .platform_request import Request, limit
from .probe_tools import Unlearned, run_tool

PROOF = "/var/lib/voltfleet/proofs/cuda.json"
# Where the system, not a user, sets paths; home folders are never looked at.
PATH_FILES = (
    *("/etc/environment", "/etc/profile", "/etc/bash.bashrc", "/etc/zsh/zprofile"),
    *("/etc/profile.d/*.sh", "/etc/ld.so.conf", "/etc/ld.so.conf.d/*.conf"),
)
ROOT = re.compile(r"(?<![\w./-])/usr/local/cuda(?:-\d+(?:\.\d+)*)?(?![\w.-])")


def toolkits(request: Request, pattern: str = "/usr/local/cuda*") -> dict[str, Any]:
    """Everything in /usr/local that is named like a toolkit, with the packages that own it.

    A folder without an owner comes from NVIDIA's .run installer, or by hand.
    """
    paths = [path for path in sorted(glob.glob(pattern)) if os.path.isdir(path)]
    owners = owners_of(paths, limit(request))
    found: dict[str, Any] = {}
    for path in paths:
        link = os.readlink(path) if os.path.islink(path) else None
        found[path] = {
            "link": link,
            "owners": owners[path],
            "version": version_of(path),
            "is_toolkit": is_toolkit(path),
        }
    return found


def is_toolkit(path: str) -> bool:
    """Whether a folder is a toolkit, and not something of a user's that is named like one."""
    marks = ("bin/nvcc", "version.json", "version.txt", "bin/cuda-uninstaller")
    return any(os.path.exists(f"{path}/{mark}") for mark in marks)


def owners_of(paths: list[str], limit_s: float) -> dict[str, list[str]]:
    """The packages that own each path, by dpkg."""
    if not paths:
        return {}
    status, out, err = run_tool(["dpkg-query", "--search", *paths], limit_s)
    faults = [line for line in err.splitlines() if "no path found matching" not in line]
    if status not in (0, 1) or (status and faults):
        raise Unlearned(f"dpkg-query --search failed with {status}: {' '.join(faults)[:200]}")
    return parse_owners(paths, out)


def parse_owners(paths: list[str], out: str) -> dict[str, list[str]]:
    """The lines ``pkg, other: /path`` of dpkg-query; a diversion's line is nobody's."""
    owners: dict[str, list[str]] = {path: [] for path in paths}
    for line in out.splitlines():
        names, colon, path = line.partition(": ")
        if colon and path in owners and not line.startswith("diversion "):
            owners[path] += [name.partition(":")[0] for name in names.split(", ")]
    return owners


def version_of(root: str) -> str | None:
    """A toolkit's series by its own file: version.json since 11.1, version.txt before."""
    try:
        with open(f"{root}/version.json", encoding="utf-8") as file:
            version = json.load(file)["cuda"]["version"]
    except (OSError, ValueError, KeyError, TypeError):
        try:
            with open(f"{root}/version.txt", encoding="utf-8", errors="replace") as file:
                version = file.read()
        except OSError:
            version = os.path.basename(os.path.realpath(root))
    found = re.search(r"(\d+\.\d+)", str(version))
    return found[1] if found else None


def alternative(request: Request) -> dict[str, Any]:
    """Where update-alternatives lets /usr/local/cuda point; no value where it manages none."""
    status, out, err = run_tool(["update-alternatives", "--query", "cuda"], limit(request))
    if status != 0 and "no alternatives" not in err:
        raise Unlearned(f"update-alternatives failed with {status}: {err.strip()[:200]}")
    return parse_alternative(out)


def parse_alternative(out: str) -> dict[str, Any]:
    """The answer of ``update-alternatives --query``; empty output: no such group."""
    values = dict(re.findall(r"^(Status|Value): (.*)$", out, re.M))
    return {
        "value": values.get("Value"),
        "status": values.get("Status"),
        "choices": re.findall(r"^Alternative: (.*)$", out, re.M),
    }


def nvcc(request: Request) -> dict[str, Any] | None:
    """Version of the compiler asked about; null where there is none, or it does not answer."""
    path = str((request.get("toolkit") or {}).get("nvcc", ""))
    if not path or not os.access(path, os.X_OK):
        return None
    status, out, err = run_tool([path, "--version"], limit(request))
    version = parse_nvcc(out) if status == 0 else None
    if version is None:
        raise Unlearned(f"{path} --version failed with {status}: {(err or out).strip()[:200]}")
    return {"path": path, **version}


def parse_nvcc(out: str) -> dict[str, str] | None:
    """Release and build in ``Cuda compilation tools, release 12.4, V12.4.131``."""
    found = re.search(r"release (\d+\.\d+), V(\d+(?:\.\d+)+)", out)
    return {"release": found[1], "build": found[2]} if found else None


def cuda_proof(request: Request, path: str = PROOF) -> dict[str, Any] | None:
    """The compiler that was last proved here (see act_cuda.py)."""
    try:
        with open(path, encoding="utf-8") as file:
            return dict(json.load(file))
    except FileNotFoundError:
        return None


def path_lines(request: Request) -> dict[str, Any]:
    """Lines that set a path into a toolkit, in files of the system that belong to no package."""
    lines = []
    files = [path for pattern in PATH_FILES for path in sorted(glob.glob(pattern))]
    for path in files:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines += parse_path_lines(path, file.read())
    named = sorted({line["file"] for line in lines})
    owners = owners_of(named, limit(request))
    return {"lines": [line for line in lines if not owners[line["file"]]]}


def parse_path_lines(path: str, text: str) -> list[dict[str, Any]]:
    """The lines of a file that name a toolkit's folder and are no comment."""
    return [
        {"file": path, "line": number, "text": line, "root": found[0]}
        for number, line in enumerate(text.splitlines(), 1)
        if not line.lstrip().startswith("#") and (found := ROOT.search(line))
    ]


LOOKS: dict[str, Callable[[Request], Any]] = {
    "toolkits": toolkits,
    "alternative": alternative,
    "nvcc": nvcc,
    "cuda_proof": cuda_proof,
    "path_lines": path_lines,
}
