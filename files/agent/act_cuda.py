"""The CUDA toolkit: installed, proved by compiling with it, freed of what is in its way."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from pathlib import Path

from . import act_files, apt, apt_errors, apt_install, platform_cuda
from .act_packages import APT_GET
from .apt_answers import parse_simulation
from .handler import (
    Action,
    ActionError,
    Context,
    Former,
    Handler,
    Outcome,
    argument,
    command,
    must,
    os_sentence,
    texts,
)
from .nvidia_stack import in_stack, toolkit_series

COMPILE_LIMIT_S = 300
# Five lines that need the compiler, its headers and the host compiler.
KERNEL = """\
__global__ void axpy(int n, float a, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
int main() { axpy<<<1, 1>>>(0, 0.f, nullptr, nullptr); return 0; }
"""
# Packages that only pull others in, the driver's aside; they go with what they pull in.
META = re.compile(r"^cuda(-toolkit(-\d+)?|-\d+)?$")


def install(context: Context, action: Action) -> Outcome:
    """Install the toolkit's packages and ask its compiler for its version."""
    note = apt_install.install(context, action, texts(action, "packages"), ["--no-remove"])
    _version(argument(action, "nvcc", str), argument(action, "series", str))
    return Outcome(True, note)


def _version(nvcc: str, series: str) -> str:
    """The build of a compiler; `ActionError` unless it is of the series asked."""
    said = platform_cuda.parse_nvcc(must([nvcc, "--version"], 60).out)
    if said is None or said["release"] != series:
        found = said["release"] if said else "an unknown version"
        raise ActionError(
            f"{nvcc} is of {found}, expected {series}: another toolkit is in its place"
        )
    return said["build"]


def prove(context: Context, action: Action) -> Outcome:
    """Compile a kernel for each architecture; the object must hold its machine code alone."""
    nvcc, series = argument(action, "nvcc", str), argument(action, "series", str)
    architectures = texts(action, "architectures")
    build = _version(nvcc, series)
    with tempfile.TemporaryDirectory(prefix="voltfleet-cuda-") as folder:
        source, target = Path(folder) / "axpy.cu", Path(folder) / "axpy.o"
        source.write_text(KERNEL)
        for name in architectures:
            number = name.removeprefix("sm_")
            code = f"arch=compute_{number},code={name}"
            ended = command(
                [nvcc, "-gencode", code, "-c", str(source), "-o", str(target)], COMPILE_LIMIT_S
            )
            if ended.rc != 0:
                raise ActionError(f"{nvcc} can't compile for {name}: {_why(ended.out + ended.err)}")
            _only(nvcc, target, name)
    proof = {"nvcc": nvcc, "build": build, "architectures": architectures}
    path = Path(platform_cuda.PROOF)
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(proof) + "\n")
    beside.replace(path)
    return Outcome(True, f"nvcc {build} compiles for {', '.join(architectures)}")


def _only(nvcc: str, target: Path, name: str) -> None:
    listed = must([f"{Path(nvcc).parent}/cuobjdump", "--list-elf", str(target)], 60).out
    held = set(re.findall(r"\.(sm_\w+)\.cubin", listed))
    if held != {name}:
        raise ActionError(
            f"the kernel compiled by {nvcc} for {name} holds code for "
            f"{', '.join(sorted(held)) or 'no architecture'}"
        )


def _why(text: str) -> str:
    """What nvcc said; with its own word for an architecture that a toolkit has dropped."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"fatal|error", line)]
    return (errors or lines or ["no message"])[0][:300]


def cleanup(context: Context, action: Action) -> Outcome:
    """Remove one thing that is in the toolkit's way; looked at once more before it goes."""
    if "packages" in action:
        return _purge(context, action, texts(action, "packages"))
    if "folder" in action:
        return _folder(Path(argument(action, "folder", str)))
    if "link" in action:
        return _link(Path(argument(action, "link", str)))
    return _lines(context, Path(argument(action, "file", str)), set(texts(action, "lines")))


def _purge(context: Context, action: Action, names: list[str]) -> Outcome:
    """Purge packages of other toolkits; refused where apt would take anything else with them."""
    ended = must(["apt-get", "--simulate", "--yes", "purge", "--", *names], 300)
    series = {toolkit_series(name) for name in names} - {None}
    others = [
        step.name
        for step in parse_simulation(ended.out).removes
        if in_stack(step.name)
        or not (step.name in names or toolkit_series(step.name) in series or META.match(step.name))
    ]
    if others:
        raise ActionError(
            f"with {names[0]} apt would remove {', '.join(others)} too: remove or keep them by hand"
        )
    words = [*APT_GET, "purge", "--", *names]
    wait = argument(action, "lock_wait_s", int)
    done = apt.run(words, wait, apt_install.progress(context, action))
    if done.rc != 0:
        raise ActionError(apt_install.told(apt_errors.classify(done.out)))
    return Outcome(True)


def _folder(path: Path) -> Outcome:
    """Remove a toolkit that a .run installer left in /usr/local."""
    if path.parent != Path("/usr/local") or not path.name.startswith("cuda"):
        raise ActionError(f"{path} is no toolkit's folder in /usr/local: it is left alone")
    if not path.exists():
        return Outcome(False)
    owners = platform_cuda.owners_of([str(path)], 60)[str(path)]
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    within = [m for m in mounts if m == str(path) or m.startswith(f"{path}/")]
    if path.is_symlink() or owners or within or not platform_cuda.is_toolkit(str(path)):
        found = owners[:1] or within or ["no toolkit, or a link"]
        raise ActionError(f"{path} is not what a .run installer left ({found[0]}): left alone")
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise ActionError(os_sentence(error, f"removing {path}")) from error
    return Outcome(True)


def _link(path: Path) -> Outcome:
    """Remove an installer's link, and let update-alternatives put its own there if it has one."""
    if not path.is_symlink():
        return Outcome(False)
    if os.readlink(path).startswith("/etc/alternatives/"):  # noqa: PTH115, pathlib would normalise
        raise ActionError(f"{path} belongs to update-alternatives by now: it is left alone")
    path.unlink()
    command(["update-alternatives", "--auto", path.name], 60)
    return Outcome(True)


def _lines(context: Context, path: Path, stale: set[str]) -> Outcome:
    """Take lines out of a file; one that held nothing else is removed, if it lies in a ``.d``."""
    try:
        found = path.stat()
        lines = path.read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return Outcome(False)
    except (OSError, ValueError) as error:
        raise ActionError(f"{path} can't be read: {error}") from error
    kept = [line for line in lines if line.rstrip("\n") not in stale]
    if kept == lines:
        return Outcome(False)
    rest = [line for line in kept if line.strip() and not line.lstrip().startswith("#")]
    if not rest and path.parent.name.endswith(".d"):
        path.unlink()
    else:
        folder = os.open(path.parent, os.O_DIRECTORY | os.O_RDONLY)
        try:
            content = Former(
                "".join(kept).encode(), found.st_mode & 0o7777, found.st_uid, found.st_gid
            )
            act_files.write_beside(path, folder, content)
        finally:
            os.close(folder)
    if "ld.so.conf" in str(path):
        must(["ldconfig"], 120)
    return Outcome(True)


def alternative(context: Context, action: Action) -> Outcome:
    """Let /usr/local/cuda lead to our toolkit: by itself where it can, else set by hand."""
    root = argument(action, "root", str)
    command(["update-alternatives", "--auto", "cuda"], 60)
    value = platform_cuda.alternative({"limit_s": 60})["value"]
    if value != root:
        must(["update-alternatives", "--set", "cuda", root], 60)
    return Outcome(True)


HANDLERS = {
    "cuda.install": Handler(one=install),
    "cuda.prove": Handler(one=prove),
    "cuda.cleanup": Handler(one=cleanup),
    "cuda.alternative": Handler(one=alternative),
}
