"""What an output's query reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """What a finished batch brought over to ``output``."""

    batch_id: int
    start: int
    end: int
    rows: int
    rows_by_table: dict[str, int]
    seconds: float
    output: str = ""
    rejected: int = 0  # by the destination, ever
    refused: Mapping[str, str] = field(default_factory=dict)  # tables left out, and why


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A batch that is being written."""

    begun: float  # monotonic
    begun_ms: int
    records: int
