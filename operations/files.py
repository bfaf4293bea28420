"""Directories, files and links that no running server reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyinfra.api import operation

from operations.converge import converge


@operation()
def managed() -> Iterator[Any]:
    """Make the area `files` of the plan so."""
    yield from converge("files")
