"""Build llama.cpp from unpacked sources with CMake, resuming an interrupted build.

Everything the build prints goes to a log file; a failure is one sentence with the log's last error
line and the log's path. The build runs in a session of its own at low priority, is stopped when
nobody listens any more, and what it made stays for the next run.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from .handler import ActionError, kill_session
from .releases import CLEAN

NICE = 10
PR_SET_PDEATHSIG = 1  # prctl(2)
JOB_BYTES = 1_500_000_000  # memory that one compiler may take
PROJECT = re.compile(r"""project\(\s*["']?llama\.cpp["'\s)]""")
OPTION = re.compile(r"\boption\(\s*([A-Za-z0-9_]+)")
CACHED = re.compile(r"\bset\(\s*([A-Za-z0-9_]+)\s[^)]*\bCACHE\b")
DEPRECATED = re.compile(r"\bllama_option_depr\(\s*\w+\s+(\w+)(?:\s+(\w+))?\s*\)")
PERCENT = re.compile(r"^\[\s*(\d+)%\]", re.M)
ERROR = re.compile(r"\berror\b:|CMake Error|\bfatal\b|undefined reference|No space left|Killed")
HINT = re.compile(r"\berror\b|not found|\*\*\*", re.I)
# What the error means for those who run V100s.
MEANINGS = {
    "Unsupported gpu architecture 'compute_70'": "CUDA 13 no longer builds for the V100, use 12.x",
    "terminated program cc1plus": "memory ran out, lower llama_cpp_build_jobs",
    "No space left": "the disk is full",
}

_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Build:
    """What is built, where, and whom to tell."""

    sources: Path  # any folder that holds llama.cpp at some depth
    folder: Path
    log: Path
    options: Mapping[str, str]
    targets: Sequence[str]
    compiler: str  # "g++-14"
    commit: str  # shown by --version
    jobs: int  # 0: as many as cores
    tell: Callable[[str, float | None], None]
    deserted: Callable[[], bool]  # nobody listens any more
    lock: int  # descriptor of the build's lock, which every process of the build holds


def build(work: Build) -> None:
    """Configure and compile; the programs and libraries are then in ``<folder>/bin``."""
    top = top_of(work.sources)
    refuse_unknown(work.options, top)
    work.folder.mkdir(parents=True, exist_ok=True)
    work.log.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    start = work.log.stat().st_size if work.log.exists() else 0
    _configure(work, top)
    _refuse_unused(work, start)
    _compile(work)


def top_of(sources: Path) -> Path:
    """The folder of llama.cpp in an unpacked archive, which may hold it as a part."""
    found = []
    for folder, folders, files in os.walk(sources):
        if "CMakeLists.txt" in files:
            text = (Path(folder) / "CMakeLists.txt").read_text(errors="replace")
            if PROJECT.search(text):
                found.append(Path(folder))
                folders.clear()
    if not found:
        raise ActionError(
            f"the sources in {sources} hold no llama.cpp: no CMake project of that name"
        )
    return min(found, key=lambda path: (len(path.parts), path))


def known_options(top: Path) -> tuple[set[str], dict[str, str]]:
    """The options that the sources declare, and the deprecated ones with their successors."""
    known: set[str] = set()
    deprecated: dict[str, str] = {}
    files = [*top.rglob("CMakeLists.txt"), *top.rglob("*.cmake")]
    for file in files:
        text = file.read_text(errors="replace")
        known.update(OPTION.findall(text), CACHED.findall(text))
        deprecated.update(DEPRECATED.findall(text))
    return known, deprecated


def refuse_unknown(options: Mapping[str, str], top: Path) -> None:
    """Refuse options that llama.cpp does not declare; CMake accepts such GGML_ ones silently."""
    known, deprecated = known_options(top)
    said = []
    for name in options:
        if name in known or not name.startswith(("GGML_", "LLAMA_")):
            continue
        if name in deprecated:
            successor = deprecated[name]
            said.append(f"{name} ({f'now {successor}' if successor else 'gone without successor'})")
            continue
        near = get_close_matches(name, known, 1, 0.75)
        said.append(f"{name} ({f'the nearest is {near[0]}' if near else 'nothing like it exists'})")
    if said:
        raise ActionError(
            f"llama_cpp_options has options these sources do not know: {', '.join(said)}"
        )


def _configure(work: Build, top: Path) -> None:
    fixed = {
        "CMAKE_C_COMPILER": work.compiler.replace("g++", "gcc"),
        "CMAKE_CXX_COMPILER": work.compiler,
        # found beside the programs wherever the release lies
        "CMAKE_INSTALL_RPATH": "$ORIGIN/../lib",
        "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
        "LLAMA_BUILD_COMMIT": work.commit,
    }
    words = [f"-D{name}={value}" for name, value in {**work.options, **fixed}.items()]
    argv = ["cmake", "-S", str(top), "-B", str(work.folder), "-G", "Unix Makefiles", *words]
    work.tell("configures", 0)
    _logged(work, argv, "configuring")


def _refuse_unused(work: Build, start: int) -> None:
    """CMake's list of variables that no CMakeLists.txt looked at is an error here."""
    text = _since(work.log, start)
    _, found, rest = text.partition("Manually-specified variables were not used by the project:")
    if not found:
        return
    unused = []
    for line in rest.lstrip("\n ").splitlines():
        if not line.strip():
            break
        unused.append(line.strip())
    ours = [name for name in unused if name in work.options]  # the fixed ones may be unused
    if ours:
        names = ", ".join(ours)
        raise ActionError(f"llama_cpp_options has variables these sources do not use: {names}")


def _compile(work: Build) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    jobs = work.jobs or max(1, min(os.cpu_count() or 1, memory // JOB_BYTES))
    argv = ["make", "-C", str(work.folder), "-j", str(jobs), *work.targets]
    _logged(work, argv, "compiling")


def _logged(work: Build, argv: Sequence[str], doing: str) -> None:
    """Run a step with its output in the log; progress from the percentages make prints."""
    with work.log.open("ab") as log:
        log.write(f"\n$ {' '.join(argv)}\n".encode())
        log.flush()
        start = log.tell()
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**CLEAN, "HOME": "/root", "TERM": "dumb"},
                start_new_session=True,
                pass_fds=(work.lock,),
                preexec_fn=_lower,
            )
        except OSError as error:
            raise ActionError(f"{argv[0]} can't be run here: {error.strerror}") from error
    try:
        while process.poll() is None:
            if work.deserted():
                raise ActionError(f"{doing} was stopped: the connection was lost; run again")
            found = PERCENT.findall(_since(work.log, max(start, _size(work.log) - 8192)))
            work.tell(f"{doing}", float(found[-1]) if found else None)
            time.sleep(0.5)
    finally:
        _stop(process)
    if process.returncode != 0:
        line = _last_error(_since(work.log, start))
        meaning = next((f" ({m})" for sign, m in MEANINGS.items() if sign in line), "")
        raise ActionError(f"{doing} llama.cpp failed: {line}{meaning}; see {work.log}")


def _lower() -> None:
    """In the new process: low priority, and an end with the agent's.

    A compiler under way still finishes its file; it holds the lock until then.
    """
    os.nice(NICE)
    _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a step and what it started; make removes the file it was writing when told to end."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        kill_session(process)
        process.wait()


def _size(path: Path) -> int:
    return path.stat().st_size


def _since(log: Path, offset: int) -> str:
    with log.open("rb") as stream:
        stream.seek(offset)
        return stream.read().decode(errors="replace")


def _last_error(text: str) -> str:
    """The first line that names an error is the cause; make's own lines come after it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for sign in (ERROR, HINT):
        errors = [line for line in lines if sign.search(line) and not line.startswith("make")]
        if errors:
            return errors[0][:300]
    return lines[-1][:300] if lines else "it said nothing"


def install(work: Build, place: Path) -> None:
    """Copy what was built into a fresh release folder."""
    shutil.rmtree(place, ignore_errors=True)
    (place / "bin").mkdir(parents=True)
    (place / "lib").mkdir()
    made = work.folder / "bin"
    for target in work.targets:
        shutil.copy(made / target, place / "bin" / target)
    for library in sorted(made.glob("*.so*")):
        shutil.copy(library, place / "lib" / library.name, follow_symlinks=False)
    for path in place.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755)


def compiler_version(compiler: str) -> str:
    """The first line of a compiler's --version."""
    try:
        said = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ActionError(f"compiler {compiler} can't be run: {error}") from error
    return said.stdout.splitlines()[0]
