"""Simulated NVML: a libnvidia-ml.so.1 of our own, driven by a state file.

`build` compiles it with gcc for one driver version; `sandbox.nvml.state` writes the file.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCES = Path(__file__).parent
UNITS = ("state", "core", "pci", "readings", "processes", "links", "control", "internal")
FLAGS = [
    *("-std=c11", "-D_DEFAULT_SOURCE", "-O1", "-Wall", "-Wextra", "-Wno-override-init", "-Werror"),
    *("-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1"),
    "-Wl,--build-id=none",
]


class BuildError(Exception):
    """The library could not be compiled."""


def sources() -> list[Path]:
    """Every file that goes into the library, for cache keys."""
    return [SOURCES / "sim.h", SOURCES / "unsupported.txt", *(SOURCES / f"{u}.c" for u in UNITS)]


def _stubs() -> str:
    lines = (SOURCES / "unsupported.txt").read_text().split("\n")
    names = [line for line in lines if line.startswith("nvml")]
    return '#include "sim.h"\n' + "\n".join(
        f"API ret_t {name}(void);\nAPI ret_t {name}(void) {{ CALL(); return NOT_SUPPORTED; }}"
        for name in names
    )


def build(target: Path, version: str, cuda: int) -> Path:
    """Compile libnvidia-ml.so.1 of a driver version (550.54.15) and its CUDA version (12040).

    Raises BuildError with the compiler's first complaint.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", *FLAGS, f'-DSIM_VERSION="{version}"', f"-DSIM_CUDA={cuda}"]
    command += [f"-I{SOURCES}", "-o", str(target), *(str(SOURCES / f"{u}.c") for u in UNITS)]
    command += ["-x", "c", "-"]
    try:
        done = subprocess.run(command, input=_stubs(), text=True, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise BuildError("gcc is missing: apt-get install gcc libc6-dev.") from error
    if done.returncode != 0:
        raise BuildError(f"{target.name} does not compile: {done.stderr.splitlines()[:3]}.")
    return target
