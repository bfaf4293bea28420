"""Habit: any name is a variable in a data file, whatever it says.

Upstream: each file of group_data/ is executed and every name in it becomes data; a typo is a
variable that nobody reads. Errors in a file are tracebacks.
Here: every file is executed and held against the schema before anything connects. All problems
are listed at once, each with file and line. The data in an inventory and ``--data`` likewise.
This uses nothing of pyinfra, so the docs are made with it too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rules.describe import Path as KeyPath
from rules.validate import shape_problems


class DataFileError(Exception):
    """A data file that cannot be read; the message is one sentence with file and line."""


def check(folders: Iterable[Path | str]) -> list[str]:
    """One sentence for each problem in the data files of these folders; [] when all is well."""
    sentences: list[str] = []
    for folder in dict.fromkeys(Path(folder) for folder in folders):
        for path in sorted([folder] if folder.is_file() else folder.glob("*.py")):
            sentences += _check_file(path)
    return sentences


def read(path: Path) -> dict[str, Any]:
    """The variables that a data file sets, as pyinfra will see them. Raises `DataFileError`."""
    values, _ = _executed(path)
    return values


def check_inventory(inventory: Any, path: Path | None) -> list[str]:
    """One sentence for each problem in the data that an inventory itself carries.

    `inventory` is pyinfra's; `path` the file it comes from, if any, to tell lines.
    """
    sentences = [
        f"--data {problem.sentence()}" for problem in shape_problems(inventory.override_data)
    ]
    tree = _parsed(path) if path is not None else None
    for host in inventory:
        for problem in shape_problems(inventory.get_host_data(host.name)):
            where = f"{path}:{_line_of_key(tree, problem.path)}" if path and tree else "inventory"
            sentences.append(f"{where}: host {host.name}: {problem.sentence()}")
    for group, data in inventory.group_data.items():
        for problem in shape_problems(data):
            where = f"{path}:{_line_of_key(tree, problem.path)}" if path and tree else "inventory"
            sentences.append(f"{where}: group {group}: {problem.sentence()}")
    return list(dict.fromkeys(sentences))


def count(sentences: list[str]) -> str:
    """The last line under a list of problems."""
    problems = "1 problem" if len(sentences) == 1 else f"{len(sentences)} problems"
    return f"{problems} in the data: nothing was connected to"


def sentence_of(error: BaseException, file: str) -> str:
    """An exception from executing `file`, in one sentence with the line of that file."""
    if isinstance(error, SyntaxError):
        return f"{error.filename or file}:{error.lineno}: is no valid Python: {error.msg}"
    line = ""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = f":{trace.tb_lineno}"
        trace = trace.tb_next
    kind = type(error).__name__
    known = kind in ("PyinfraError", "CliError", "SystemExit")
    return f"{file}{line}: {error}" if known else f"{file}{line}: {kind}: {error}"


def _check_file(path: Path) -> list[str]:
    try:
        values, tree = _executed(path)
    except DataFileError as error:
        return [str(error)]
    found = [
        f"{path}:{_line(tree, problem.path)}: {problem.sentence()}"
        for problem in shape_problems(values)
    ]
    return [*found, *(f"{path}:{line}: {text}" for line, text in _said_twice(tree))]


def _executed(path: Path) -> tuple[dict[str, Any], ast.Module]:
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source, filename=str(path))
        names: dict[str, Any] = {"__file__": str(path)}
        exec(compile(source, str(path), "exec"), names)  # noqa: S102  (as pyinfra does)
    except (OSError, UnicodeDecodeError) as error:
        raise DataFileError(f"{path}: cannot be read: {error}") from error
    except Exception as error:
        raise DataFileError(sentence_of(error, str(path))) from error
    imported = set(_imported(tree))
    exported = names.get("__all__")
    return {
        key: value
        for key, value in names.items()
        if not key.startswith("__")
        and (key in exported if exported is not None else key not in imported)
    }, tree


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield alias.asname or alias.name.split(".")[0]


def _assignments(tree: ast.Module) -> Iterator[tuple[str, int, ast.expr | None]]:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(node, (ast.Assign, ast.AnnAssign)):
                yield target.id, node.lineno, node.value


def _line(tree: ast.Module, path: KeyPath) -> int:
    """The line in a data file where the value of this path stands, as near as can be told."""
    line, value = 1, None
    for name, number, expression in _assignments(tree):
        if name == path[0]:
            line, value = number, expression
    return _line_within(value, path[1:], line)


def _line_within(value: ast.expr | None, path: KeyPath, line: int) -> int:
    for part in path:
        if isinstance(value, ast.Dict):
            entries = [
                (key, item)
                for key, item in zip(value.keys, value.values, strict=True)
                if isinstance(key, ast.Constant) and key.value == part
            ]
            if not entries:
                return line
            line, value = entries[-1][0].lineno, entries[-1][1]
        elif isinstance(value, (ast.List, ast.Tuple)) and isinstance(part, int):
            if part >= len(value.elts):
                return line
            value = value.elts[part]
            line = value.lineno
        else:
            return line
    return line


def _line_of_key(tree: ast.Module | None, path: KeyPath) -> int:
    """The line of the first dictionary key of this name in an inventory."""
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Dict):
            for key, item in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == path[0]:
                    return _line_within(item, path[1:], key.lineno)
    return 1


def _said_twice(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Variables and dictionary keys given twice: Python keeps the last and says nothing."""
    first: dict[str, int] = {}
    for name, line, _ in _assignments(tree):
        if name in first:
            yield line, f"{name}: is set in line {first[name]} already, expected once"
        first.setdefault(name, line)
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            keys: dict[Mapping[str, Any] | Any, int] = {}
            for key in node.keys:
                if not isinstance(key, ast.Constant):
                    continue
                if key.value in keys:
                    yield key.lineno, f"{key.value!r}: is a key of line {keys[key.value]} already"
                keys.setdefault(key.value, key.lineno)
