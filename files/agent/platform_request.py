"""What the looks at the platform are given: see ``platform.observe``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Request = Mapping[str, Any]


def limit(request: Request) -> float:
    """Seconds that one tool may take."""
    return float(request.get("limit_s", 10))
