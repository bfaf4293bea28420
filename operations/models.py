"""Models, checked, staged beside the ones in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyinfra.api import operation

from operations.converge import converge


@operation()
def present() -> Iterator[Any]:
    """Make the area `models` of the plan so."""
    yield from converge("models")
