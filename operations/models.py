"""Models, checked, staged beside the ones in use."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from pyinfra.api.operation import operation

from operations.converge import converge


@operation()
def present() -> Generator[Any, None, None]:
    """Make the area `models` of the plan so."""
    yield from converge("models")
