"""Since when the source gives no answer to what is asked of it beside its log, and why."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class UnansweredRequests:
    """``error`` is of the last try; ``since_ms`` of the first of those that failed in a row; None:
    the last one did not fail. No cell values.
    """

    error: str = ""
    since_ms: int | None = None

    def failed(self, error: object) -> None:
        self.error = str(error)
        if self.since_ms is None:
            self.since_ms = time.time_ns() // 1_000_000

    def answered(self) -> None:
        self.since_ms = None

    def summary(self) -> dict[str, Any] | None:
        """For status."""
        return None if self.since_ms is None else asdict(self)
