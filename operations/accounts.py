"""Users and groups the servers run as."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from pyinfra.api.operation import operation

from operations.converge import converge


@operation()
def present() -> Generator[Any, None, None]:
    """Make the area `accounts` of the plan so."""
    yield from converge("accounts")
