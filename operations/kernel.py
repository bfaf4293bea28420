"""Kernel parameters and module options."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from pyinfra.api.operation import operation

from operations.converge import converge


@operation()
def tuned() -> Generator[Any, None, None]:
    """Make the area `kernel` of the plan so."""
    yield from converge("kernel")
