"""What a dump is and how far it got. Values that go to the state store as JSON; no I/O."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Key = tuple[str | None, ...]

TableStatus = Literal["pending", "running", "done", "failed", "cancelled"]
DumpStatus = Literal["queued", "running", "paused", "completed", "aborted"]
FINISHED: frozenset[str] = frozenset({"done", "failed", "cancelled"})


@dataclass(slots=True)
class KeyRange:
    """A completed range ``(low, high]`` of a table's key; None where open."""

    low: Key | None
    high: Key | None


@dataclass(slots=True)
class TableProgress:
    """One table of a dump. Progress only grows: ranges are added, never removed."""

    table: str
    status: TableStatus = "pending"
    reason: str = ""
    first_offset: int | None = None
    ranges: list[KeyRange] = field(default_factory=list)
    keys: list[Key] | None = None
    keys_done: int = 0
    keys_absent: int = 0
    chunks: int = 0
    chunks_voided: int = 0
    rows_read: int = 0
    rows_superseded: int = 0
    estimated_rows: int = 0
    spared: list[Key] = field(default_factory=list)

    def add_range(self, low: Key | None, high: Key | None) -> None:
        """Mark ``(low, high]`` complete and join it with its neighbours."""
        for existing in self.ranges:
            if (existing.low, existing.high) == (low, high):
                return
        ranges = {r.low: r for r in self.ranges}
        ranges[low] = KeyRange(low, high)
        joined: list[KeyRange] = []
        ends = {r.high for r in ranges.values() if r.high is not None}
        for start in [r for r in ranges.values() if r.low is None or r.low not in ends]:
            current = KeyRange(start.low, start.high)
            while current.high is not None and current.high in ranges:
                current.high = ranges[current.high].high
            joined.append(current)
        joined.sort(key=lambda r: r.low is not None)
        self.ranges = joined

    @property
    def complete(self) -> bool:
        """Is the whole key space one completed range?"""
        if self.keys is not None:
            return self.keys_done >= len(self.keys)
        return len(self.ranges) == 1 and self.ranges[0] == KeyRange(None, None)

    def cursor(self) -> Key | None:
        """Where reading goes on: the end of the range that starts at the beginning."""
        for existing in self.ranges:
            if existing.low is None:
                return existing.high
        return None


@dataclass(slots=True)
class DumpState:
    """One dump, as stored."""

    dump_id: str
    number: int
    tables: list[TableProgress]
    status: DumpStatus = "queued"
    where: str | None = None
    reason: str = "requested"
    requested_ms: int = 0
    finished_ms: int | None = None

    @property
    def whole_tables(self) -> bool:
        """Does it read all rows, so that what it does not find is gone?"""
        return self.where is None and all(t.keys is None for t in self.tables)

    @property
    def finished(self) -> bool:
        return self.status in ("completed", "aborted")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DumpState:
        tables = []
        for entry in data["tables"]:
            values = dict(entry)
            values["ranges"] = [KeyRange(_key(r["low"]), _key(r["high"])) for r in values["ranges"]]
            if values["keys"] is not None:
                values["keys"] = [tuple(k) for k in values["keys"]]
            values["spared"] = [tuple(k) for k in values["spared"]]
            tables.append(TableProgress(**values))
        return cls(**{**data, "tables": tables})


def _key(value: list[str | None] | None) -> Key | None:
    return None if value is None else tuple(value)
