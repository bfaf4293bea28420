"""Kernel parameters and module options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyinfra.api import operation

from operations.converge import converge


@operation()
def tuned() -> Iterator[Any]:
    """Make the area `kernel` of the plan so."""
    yield from converge("kernel")
