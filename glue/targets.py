"""Habit: a run that reaches no host is a success.

Upstream (all with exit code 0): an inventory file that does not exist is taken for a host name;
a host name that does not resolve gives an empty inventory and a warning; an inventory without
hosts is run; a ``--limit`` that matches nothing is a warning. An ``--exclude`` that matches
nothing is a warning too, and the run includes the host that was to be left out. An exception in
an inventory or a data file is a traceback.
Here: each of these is one sentence and exit code 2, before anything connects. The data of the
inventory (of its hosts and groups) is checked like a data file, as is ``--data``.
Remove: what upstream turns into errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pyinfra_cli.cli as cli
from pyinfra_cli.exceptions import UnexpectedExternalError

from glue import data_files
from glue.patch import wrap
from glue.run import BAD_DATA, end


def apply() -> None:
    """Make sure that a run has the hosts that were meant."""
    wrap(cli, "make_inventory", _inventory)
    wrap(cli, "_get_inventory_pattern_matches", _matches)
    wrap(cli, "_apply_inventory_exclude", _remaining)


def _inventory(original: Callable[..., Any]) -> Callable[..., Any]:
    def make_inventory(inventory: str, *args: Any, **kwargs: Any) -> Any:
        path = Path(inventory)
        if path.is_dir():
            end(
                BAD_DATA,
                f"inventory {inventory}: is a folder, expected a file like inventory/lab.py",
            )
        means_a_file = path.suffix == ".py" or ("/" in inventory and "@" not in inventory)
        if means_a_file and not path.exists():
            end(BAD_DATA, f"inventory {inventory}: no such file; {_inventories(path)}")
        try:
            made = original(inventory, *args, **kwargs)
        except Exception as error:
            cause = error.exception if isinstance(error, UnexpectedExternalError) else error
            end(BAD_DATA, data_files.sentence_of(cause, inventory))
        if len(made) == 0:
            end(BAD_DATA, f"inventory {inventory}: {_why_empty(path)}")
        problems = data_files.check_inventory(made, path if path.exists() else None)
        if problems:
            end(BAD_DATA, *problems, data_files.count(problems))
        return made

    return make_inventory


def _inventories(missing: Path) -> str:
    known = sorted(str(path) for path in Path("inventory").glob("*.py"))
    near = get_close_matches(str(missing), known, 1, cutoff=0.8)
    if near:
        return f"did you mean {near[0]}?"
    return f"there are {', '.join(known)}" if known else "give the path of an inventory file"


def _why_empty(path: Path) -> str:
    if path.exists():
        return "names no host; add one to a group"
    return "is neither an inventory file nor a host name that resolves"


def _matches(original: Callable[..., Any]) -> Callable[..., Any]:
    def _get_inventory_pattern_matches(
        inventory: Any, patterns: Iterable[str], option_name: str
    ) -> list[Any]:
        patterns = list(patterns)
        names = sorted({host.name for host in inventory})
        groups = sorted(group for group, hosts in inventory.groups.items() if hosts)
        for pattern in patterns:
            if pattern in groups or any(fnmatch(name, pattern) for name in names):
                continue
            near = get_close_matches(pattern, [*names, *groups], 1)
            hint = f"did you mean {near[0]}? " if near else ""
            end(
                BAD_DATA,
                f"{option_name} {pattern}: matches no host and no group of the inventory; {hint}"
                f"(groups: {', '.join(groups) or 'none'}; {len(names)} hosts)",
            )
        found: list[Any] = original(inventory, patterns, option_name)
        return found

    return _get_inventory_pattern_matches


def _remaining(original: Callable[..., Any]) -> Callable[..., Any]:
    def _apply_inventory_exclude(inventory: Any, initial_limit: Any, exclude: Any) -> Any:
        remaining = original(inventory, initial_limit, exclude)
        if remaining is not None and not remaining:
            end(BAD_DATA, "--limit and --exclude leave no host; take one of them away")
        return remaining

    return _apply_inventory_exclude
