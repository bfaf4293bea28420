"""Directories, files and links that no running server reads."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from pyinfra.api.operation import operation

from operations.converge import converge


@operation()
def managed() -> Generator[Any, None, None]:
    """Make the area `files` of the plan so."""
    yield from converge("files")
