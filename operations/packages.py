"""Distribution packages."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from pyinfra.api.operation import operation

from operations.converge import converge


@operation()
def installed() -> Generator[Any, None, None]:
    """Make the area `packages` of the plan so."""
    yield from converge("packages")
