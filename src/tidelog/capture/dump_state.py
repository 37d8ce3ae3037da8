"""What a dump is and how far it got. Values that go to the state store as JSON; no I/O."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

Key = tuple[str | None, ...]

TableStatus = Literal["pending", "running", "done", "failed", "cancelled"]
DumpStatus = Literal["queued", "running", "paused", "completed", "aborted"]
FINISHED: frozenset[str] = frozenset({"done", "failed", "cancelled"})


@dataclass(slots=True)
class KeyRange:
    """A completed range ``(low, high]`` of a table's key; None where open.

    Ranges sort by key as they sort by ``order``, which each chunk was given when it was cut; only
    the source can compare keys. ``last_order`` is that of the last chunk joined into the range.
    """

    low: Key | None
    high: Key | None
    order: float
    last_order: float


@dataclass(slots=True)
class TableProgress:
    """One table of a dump. Progress only grows: ranges are added, never removed."""

    table: str
    status: TableStatus = "pending"
    reason: str = ""
    first_offset: int | None = None
    ranges: list[KeyRange] = field(default_factory=list)
    keys: list[Key] | None = None
    key_columns: tuple[str, ...] | None = None
    keys_done: int = 0
    keys_absent: int = 0
    chunks: int = 0
    chunks_voided: int = 0
    rows_read: int = 0
    rows_superseded: int = 0
    estimated_rows: int = 0

    def add_range(self, low: Key | None, high: Key | None, order: float) -> bool:
        """Mark ``(low, high]`` complete, joined with its neighbours; False if it was already."""
        if any(known.order <= order <= known.last_order for known in self.ranges):
            return False
        self.ranges.append(KeyRange(low, high, order, order))
        self.ranges.sort(key=lambda known: known.order)
        joined = [self.ranges[0]]
        for following in self.ranges[1:]:
            last = joined[-1]
            if last.high is not None and last.high == following.low:
                joined[-1] = KeyRange(last.low, following.high, last.order, following.last_order)
            else:
                joined.append(following)
        self.ranges = joined
        return True

    @property
    def complete(self) -> bool:
        """Is the whole key space one completed range?"""
        if self.keys is not None:
            return self.keys_done >= len(self.keys)
        return len(self.ranges) == 1 and self.ranges[0].low is self.ranges[0].high is None


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

    def summary(self) -> dict[str, Any]:
        """For status: without keys, ranges and the condition, which hold cell values."""
        tables = []
        for table in self.tables:
            names = [f.name for f in fields(table) if f.name not in ("ranges", "keys")]
            shown = {name: getattr(table, name) for name in names}
            tables.append({**shown, "ranges": len(table.ranges)})
        names = [f.name for f in fields(self) if f.name not in ("tables", "where")]
        return {
            **{name: getattr(self, name) for name in names},
            "tables": tables,
            "where": None if self.where is None else "(condition)",
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DumpState:
        tables = []
        for entry in data["tables"]:
            values = dict(entry)
            values["ranges"] = [
                KeyRange(**{**r, "low": _key(r["low"]), "high": _key(r["high"])})
                for r in values["ranges"]
            ]
            if values["keys"] is not None:
                values["keys"] = [tuple(k) for k in values["keys"]]
            if values.get("key_columns") is not None:
                values["key_columns"] = tuple(values["key_columns"])
            tables.append(TableProgress(**values))
        return cls(**{**data, "tables": tables})


def _key(value: list[str | None] | None) -> Key | None:
    return None if value is None else tuple(value)
