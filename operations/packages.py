"""Distribution packages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyinfra.api import operation

from operations.converge import converge


@operation()
def installed() -> Iterator[Any]:
    """Make the area `packages` of the plan so."""
    yield from converge("packages")
