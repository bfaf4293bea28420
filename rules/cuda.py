"""The CUDA toolkit of a host: what it should be, and what there is in its way (G4, G5).

NVIDIA's packages put a toolkit into /usr/local/cuda-<series> and let update-alternatives manage
/usr/local/cuda (CUDA installation guide for Linux); a distribution's put it over /usr. A .run
installer puts it into the same folders, owned by no package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from files.agent.nvidia_stack import toolkit_series
from rules.desired import File
from rules.desired_platform import CudaToolkit
from rules.driver import MANAGED, repository
from rules.schema_platform import PlatformConfig

PROFILE = "/etc/profile.d/cuda.sh"
LINK = "/usr/local/cuda"
# Debian's and Ubuntu's own toolkit: programs in /usr/bin and headers in /usr/include.
DISTRIBUTION = (
    *("nvidia-cuda-toolkit", "nvidia-cuda-toolkit-gcc", "nvidia-cuda-toolkit-doc"),
    *("nvidia-cuda-dev", "nvidia-cuda-gdb", "nvidia-profiler", "nvidia-visual-profiler"),
)

Part = Mapping[str, Any]


@dataclass(frozen=True)
class Conflict:
    """One thing in the way of the toolkit: what it is, why it is in the way, how it is removed."""

    key: str  # stable: "packages:11.8", "/usr/local/cuda-11.8", "/etc/profile.d/x.sh"
    thing: str
    why: str
    removal: Mapping[str, Any] = field(repr=False)  # arguments of the action cuda.cleanup
    before_install: bool = False  # lies where the toolkit will be


def toolkit(config: PlatformConfig) -> CudaToolkit | None:
    """The toolkit that a host's data wants; None when CUDA is left alone."""
    if config.cuda_version is None or config.cuda_source is None:
        return None
    series = "-".join(config.cuda_version.split(".")[:2])
    own = repository(config.cuda_source)
    named = f"cuda-toolkit-{series}" if own else "nvidia-cuda-toolkit"
    return CudaToolkit(
        version=config.cuda_version,
        packages=tuple(config.cuda_packages) or (named,),
        repository=own,
        exclusive=config.cuda_exclusive,
        keep_repository=config.cuda_keep_repository,
        architectures=tuple(config.cuda_architectures),
    )


def nvcc_path(wanted: CudaToolkit) -> str:
    """The compiler that the toolkit brings."""
    return f"{wanted.root}/bin/nvcc" if wanted.root else "/usr/bin/nvcc"


def files(wanted: CudaToolkit) -> list[File]:
    """The profile file with the toolkit's paths; a distribution's needs none."""
    if wanted.root is None:
        return []
    text = (
        f"# {MANAGED}\n"
        f"export PATH={wanted.root}/bin${{PATH:+:${{PATH}}}}\n"
        f"export LD_LIBRARY_PATH={wanted.root}/lib64${{LD_LIBRARY_PATH:+:${{LD_LIBRARY_PATH}}}}\n"
    )
    return [File(PROFILE, text.encode(), reason=("G5",))]


def lacking(wanted: CudaToolkit, part: Part) -> list[str]:
    """What is missing of the toolkit, one clause each; empty when its packages are as asked."""
    found = []
    for name in wanted.packages:
        package = part["packages"].get(name)
        if package is None or package["status"] != "installed":
            found.append(f"package {name} is not installed")
        elif (
            wanted.repository and wanted.version.count(".") == 2 and toolkit_series(name)
        ) and not package["version"].startswith((f"{wanted.version}-", f"{wanted.version}.")):
            found.append(f"package {name} is {package['version']}, not {wanted.version}")
    nvcc = part["nvcc"]
    if not found and nvcc is None:
        found.append(f"{nvcc_path(wanted)} is missing though its package is installed")
    elif not found and nvcc["release"] != wanted.series:
        found.append(f"{nvcc['path']} is of {nvcc['release']}, not {wanted.series}")
    return found


def proved(wanted: CudaToolkit, part: Part) -> bool:
    """Whether the compiler that is there now has been proved for every architecture asked."""
    nvcc, proof = part["nvcc"], part["cuda_proof"]
    return (
        nvcc is not None
        and proof is not None
        and proof.get("nvcc") == nvcc["path"]
        and proof.get("build") == nvcc["build"]
        and set(wanted.architectures) <= set(proof.get("architectures", ()))
    )


def conflicts(wanted: CudaToolkit, part: Part) -> list[Conflict]:
    """Everything in the toolkit's way, whether or not it may be removed; never a user's data."""
    in_way, _ = _packages(wanted, part["packages"])
    folders = _folders(wanted, part["toolkits"])
    gone = {folder.key for folder in folders}
    removed = {conflict.key.removeprefix("packages:") for conflict in in_way}
    rest = {
        path
        for path, folder in part["toolkits"].items()
        if path not in gone and folder["version"] not in removed
    }
    kept = rest | ({str(wanted.root), LINK} if wanted.root else set())
    return [*in_way, *folders, *_lines(kept, part["path_lines"]["lines"])]


def kept_by_hold(wanted: CudaToolkit, packages: Part) -> dict[str, list[str]]:
    """Packages of other toolkits that somebody holds, by series: those series are left alone."""
    return _packages(wanted, packages)[1]


def _packages(wanted: CudaToolkit, packages: Part) -> tuple[list[Conflict], dict[str, list[str]]]:
    others: dict[str, list[str]] = {}
    for name, package in sorted(packages.items()):
        if package["status"] != "installed" or name in wanted.packages:
            continue
        series = toolkit_series(name)
        if series is not None and series != wanted.series:
            others.setdefault(series, []).append(name)
        elif wanted.repository and name in DISTRIBUTION:
            others.setdefault("distribution", []).append(name)
    found, held = [], {}
    for series, names in others.items():
        holding = [name for name in names if packages[name]["held"]]
        if holding:
            held[series] = holding
            continue
        own = series == "distribution"
        found.append(
            Conflict(
                f"packages:{series}",
                "the distribution's CUDA packages" if own else f"packages of CUDA {series}",
                f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}: "
                + (
                    "their nvcc in /usr/bin is another one"
                    if own
                    else f"of another toolkit than {wanted.series}"
                ),
                {"packages": names},
            )
        )
    return found, held


def _folders(wanted: CudaToolkit, toolkits: Part) -> list[Conflict]:
    found = []
    for path, folder in sorted(toolkits.items()):
        if folder["owners"] or not (folder["is_toolkit"] or folder["link"]):
            continue
        link = folder["link"]
        if link is not None:
            target = link if link.startswith("/") else f"/usr/local/{link}"
            if target.startswith("/etc/alternatives/") or target == wanted.root:
                continue
            why = f"it leads to {target} and no package manages it"
            found.append(Conflict(path, f"link {path}", why, {"link": path}))
            continue
        why = f"CUDA {folder['version'] or 'of unknown version'} of a .run installer, of no package"
        in_place = path in (wanted.root, LINK)
        found.append(Conflict(path, f"folder {path}", why, {"folder": path}, in_place))
    return found


def _lines(kept: set[str], lines: list[Mapping[str, Any]]) -> list[Conflict]:
    by_file: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        if line["root"] not in kept and line["file"] != PROFILE:
            by_file.setdefault(line["file"], []).append(line)
    return [
        Conflict(
            path,
            f"{'line' if len(stale) == 1 else 'lines'} "
            f"{', '.join(str(line['line']) for line in stale)} of {path}",
            f"set a path into {', '.join(sorted({line['root'] for line in stale}))}",
            {"file": path, "lines": [line["text"] for line in stale]},
        )
        for path, stale in sorted(by_file.items())
    ]
