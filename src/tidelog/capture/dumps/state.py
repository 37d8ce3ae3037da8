"""What a dump is and how far it got. Values that go to the state store as JSON; no I/O."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from typing import Any, Literal

Key = tuple[str | None, ...]

TableStatus = Literal["pending", "running", "done", "failed", "cancelled"]
DumpStatus = Literal["queued", "running", "paused", "completed", "aborted"]
Mode = Literal["incremental", "blocking"]
Missing = Literal["delete", "list"]
FINISHED: frozenset[str] = frozenset({"done", "failed", "cancelled"})
HIDDEN = frozenset({"ranges", "failed", "keys_done", "where", "where_names"})
"""Fields that hold cell values, or are long: status counts them."""


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
    """One table of a dump. Progress only grows: ranges are added, never removed.

    Attributes:
        table: its name.
        where: SQL condition on its rows; ``where_names``: see `tidelog.ports.ChunkRequest`.
        first_offset: of the dump's first record of the table; replay from there gives the table.
        finalized_until: the version up to which an output must have come to hold the whole table;
            None until the table is done.
        ranges: completed key ranges.
        failed: ranges that could not be read.
        key_set: names the keys that were asked for; ``key_count`` of them.
        keys_done: completed index ranges ``[first, end)`` of the key set.
        key_columns: what keys, or the bounds of ranges, are of.
        missing: whether keys that the table lacks become delete events or are listed.
        estimated_rows: by the source's statistics, when the table began.
        due: why capture itself needs the table dumped, and joins this dump for it; empty: it
            does not. If this one is cancelled, another is asked for.
    """

    table: str
    status: TableStatus = "pending"
    reason: str = ""
    where: str | None = None
    where_names: tuple[str, ...] | None = None
    first_offset: int | None = None
    finalized_until: int | None = None
    ranges: list[KeyRange] = field(default_factory=list)
    failed: list[KeyRange] = field(default_factory=list)
    key_set: str | None = None
    key_count: int = 0
    keys_done: list[list[int]] = field(default_factory=list)
    keys_absent: int = 0
    key_columns: tuple[str, ...] | None = None
    missing: Missing = "delete"
    chunks: int = 0
    chunks_voided: int = 0
    chunks_failed: int = 0
    rows_read: int = 0
    rows_superseded: int = 0
    estimated_rows: int = 0
    due: str = ""
    started_ms: int | None = None
    finished_ms: int | None = None

    def add_range(self, low: Key | None, high: Key | None, order: float) -> bool:
        """Mark ``(low, high]`` complete, joined with its neighbours; False if it was already."""
        added = _join(self.ranges, KeyRange(low, high, order, order))
        if added:
            self._forget_failed(order)
        return added

    def add_failed(self, low: Key | None, high: Key | None, order: float) -> bool:
        """Note that ``(low, high]`` could not be read."""
        return _join(self.failed, KeyRange(low, high, order, order))

    def _forget_failed(self, order: float) -> None:
        self.failed = [f for f in self.failed if not f.order <= order <= f.last_order]

    def add_keys(self, first: int, count: int) -> bool:
        """Mark keys ``first`` to ``first + count`` of the set done; False if they were already."""
        if any(start <= first and first + count <= end for start, end in self.keys_done):
            return False
        merged: list[list[int]] = []
        for start, end in sorted([*self.keys_done, [first, first + count]]):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        self.keys_done = merged
        return True

    @property
    def keys_read(self) -> int:
        return sum(end - start for start, end in self.keys_done)

    @property
    def complete(self) -> bool:
        """Was the whole key space read, or reported as failed?"""
        if self.key_set is not None:
            return self.keys_read >= self.key_count
        every = sorted([*self.ranges, *self.failed], key=lambda known: known.order)
        if not every or every[0].low is not None or every[-1].high is not None:
            return False
        return all(a.high == b.low for a, b in pairwise(every))


@dataclass(frozen=True, slots=True)
class Rejected:
    """What a signal names that can't be dumped; told, as Debezium tells it, when the dump starts.

    Attributes:
        table: its name, or the pattern that names no table.
        reason: why, for who looks at the dump.
        status: how its scan ended, a `tidelog.capture.notifications.TableScanStatus`.
    """

    table: str
    reason: str
    status: str


@dataclass(slots=True)
class DumpState:
    """One dump, as stored."""

    dump_id: str
    number: int
    tables: list[TableProgress]
    status: DumpStatus = "queued"
    mode: Mode = "incremental"
    reason: str = "requested"
    requested_ms: int = 0
    finished_ms: int | None = None
    rejected: list[Rejected] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return self.status in ("completed", "aborted")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def summary(self) -> dict[str, Any]:
        """For status: without keys, ranges and conditions, which hold cell values."""
        tables = []
        for table in self.tables:
            shown = {f.name: getattr(table, f.name) for f in fields(table) if f.name not in HIDDEN}
            shown["ranges"] = len(table.ranges)
            shown["failed_ranges"] = len(table.failed)
            shown["keys_read"] = table.keys_read
            shown["where"] = None if table.where is None else "(condition)"
            tables.append(shown)
        names = [f.name for f in fields(self) if f.name not in ("tables", "rejected")]
        return {
            **{name: getattr(self, name) for name in names},
            "tables": tables,
            "rejected": [asdict(rejected) for rejected in self.rejected],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DumpState:
        tables = []
        for entry in data["tables"]:
            values = dict(entry)
            for name in ("ranges", "failed"):
                values[name] = [
                    KeyRange(**{**r, "low": _key(r["low"]), "high": _key(r["high"])})
                    for r in values[name]
                ]
            for name in ("key_columns", "where_names"):
                if values.get(name) is not None:
                    values[name] = tuple(values[name])
            tables.append(TableProgress(**values))
        rejected = [Rejected(**entry) for entry in data.get("rejected", ())]
        return cls(**{**data, "tables": tables, "rejected": rejected})


def whole_table(progress: TableProgress) -> bool:
    """Are all of its rows read, so that what the dump does not find is gone?"""
    return progress.where is None and progress.key_set is None and not progress.failed


def _join(ranges: list[KeyRange], fresh: KeyRange) -> bool:
    """Add to ``ranges``, sorted by order, joined with its neighbours; False if it is in there."""
    if any(known.order <= fresh.order <= known.last_order for known in ranges):
        return False
    ranges.append(fresh)
    ranges.sort(key=lambda known: known.order)
    joined = [ranges[0]]
    for following in ranges[1:]:
        last = joined[-1]
        if last.high is not None and last.high == following.low:
            joined[-1] = KeyRange(last.low, following.high, last.order, following.last_order)
        else:
            joined.append(following)
    ranges[:] = joined
    return True


def _key(value: list[str | None] | None) -> Key | None:
    return None if value is None else tuple(value)
