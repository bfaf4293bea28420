"""Replacing a function of pyinfra's by one that is built on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyinfra.version import __version__

CONTRACT = "tests/unit/test_pyinfra_contract.py"


def wrap(owner: Any, name: str, build: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace ``owner.name`` by ``build(original)``, once however often this is called.

    Raises SystemExit with one sentence when this pyinfra has no such function.
    """
    original = getattr(owner, name, None)
    if original is None:
        raise SystemExit(
            f"pyinfra {__version__} has no {owner.__name__}.{name}, expected that of "
            f"3.10.0: install the pinned version, or follow {CONTRACT} to move to a new one"
        )
    if getattr(original, "voltfleet_original", None) is not None:
        return
    replacement = build(original)
    replacement.voltfleet_original = original  # type: ignore[attr-defined]
    setattr(owner, name, replacement)
