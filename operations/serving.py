"""Serving units: everything a running server reads, and the server itself."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from pyinfra.api.operation import operation

from operations.converge import converge


@operation()
def switched() -> Generator[Any, None, None]:
    """Switch the servers to what was staged, restart those that changed, prove that they answer."""
    yield from converge("serving")
