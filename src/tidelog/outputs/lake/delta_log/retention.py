"""How long a table's properties say that something is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

REMOVED_FILES: Final = "delta.deletedFileRetentionDuration"
"""The property that says how long files are kept that a table has no more."""

_UNITS_MS: Final = {
    "week": 7 * 24 * 3_600_000.0,
    "day": 24 * 3_600_000.0,
    "hour": 3_600_000.0,
    "minute": 60_000.0,
    "second": 1_000.0,
    "millisecond": 1.0,
    "microsecond": 0.001,
}
_PART: Final = re.compile(r"(\d+)\s+([a-z]+?)s?(?:\s+|$)")


def removed_files_ms(configuration: Mapping[str, str]) -> int | None:
    """How long a table with these properties keeps them, in milliseconds; None: `duration_ms`."""
    return duration_ms(configuration.get(REMOVED_FILES, "interval 1 week"))


def duration_ms(text: str) -> int | None:
    """Milliseconds of an interval as Delta's properties have it (``interval 30 days``, ``2 weeks 12
    hours``); None: it is not understood, and nothing may be taken for expired.
    """
    rest = text.strip().lower().removeprefix("interval").strip()
    if not rest:
        return None
    total = 0.0
    while rest:
        found = _PART.match(rest)
        if found is None or found[2] not in _UNITS_MS:
            return None
        total += int(found[1]) * _UNITS_MS[found[2]]
        rest = rest[found.end() :]
    return int(total)
