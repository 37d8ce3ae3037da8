"""What a dump is and how far it got. Values that go to the state store as JSON; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from typing import Any, Literal

from tidelog.capture.dumps.state_machine import (
    DUMPS,
    TABLE_RUNS,
    TABLES,
    DumpInput,
    DumpStatus,
    TableInput,
    TableRunInput,
    TableRunStatus,
    TableStatus,
)
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest

Key = tuple[str | None, ...]

Mode = Literal["incremental", "blocking"]
Missing = Literal["delete", "list"]


TABLE_GONE = "the table does not exist (any more)"
NO_KEY = "the table has no primary key: add one, or name a unique key in source.keys"
HIDDEN = frozenset({
    "ranges", "failed", "keys_done", "where", "where_names", "may_pass", "begun_offset",
    "key_spelling",
})  # fmt: skip
"""Fields that hold cell values, are long (status counts them) or are capture's own affair."""


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
        begun_offset: of the record of its beginning: chunks before are of another reading.
        finalized_until: the version up to which an output must have come to hold the whole table;
            None until the table is done.
        ranges: completed key ranges.
        failed: ranges that could not be read.
        key_set: names the keys that were asked for; ``key_count`` of them.
        keys_done: completed index ranges ``[first, end)`` of the key set.
        key_columns: what keys, or the bounds of ranges, are of.
        key_spelling: the `tidelog.ports.TableShape.key_spelling` that bounds of ranges have.
        missing: whether keys that the table lacks become delete events or are listed.
        estimated_rows: by the source's statistics, when the table began.
        due: why capture itself needs the table dumped, and joins this dump for it; empty: it
            does not. If this one is cancelled, another is asked for.
        may_pass: False if it failed for what the catalogue would show to be mended, such as no
            key: it is dumped then, and not asked for again before.
    """

    table: str
    status: TableStatus = TableStatus.PENDING
    reason: str = ""
    where: str | None = None
    where_names: tuple[str, ...] | None = None
    first_offset: int | None = None
    begun_offset: int = 0
    finalized_until: int | None = None
    ranges: list[KeyRange] = field(default_factory=list)
    failed: list[KeyRange] = field(default_factory=list)
    key_set: str | None = None
    key_count: int = 0
    keys_done: list[list[int]] = field(default_factory=list)
    keys_absent: int = 0
    key_columns: tuple[str, ...] | None = None
    key_spelling: str = ""
    missing: Missing = "delete"
    chunks: int = 0
    chunks_voided: int = 0
    chunks_failed: int = 0
    rows_read: int = 0
    rows_superseded: int = 0
    estimated_rows: int = 0
    due: str = ""
    may_pass: bool = True
    started_ms: int | None = None
    finished_ms: int | None = None

    def __post_init__(self) -> None:
        self.status = TableStatus(self.status)  # stored, it is a text

    def meet(self, news: TableInput) -> None:
        self.status = TABLES.after(self.status, news)

    def request(
        self, limit_rows: int, after: Key | None = None, upto: Key | None = None
    ) -> ChunkRequest:
        """For a chunk of the table's rows, by key."""
        return ChunkRequest(
            TableName.parse(self.table),
            after=after,
            upto=upto,
            limit_rows=limit_rows,
            where=self.where,
            where_names=self.where_names,
            key_columns=self.key_columns,
        )

    def begin(self, offset: int, first_offset: int) -> None:
        """The record of the beginning stands at ``offset``."""
        begun = self.status is TableStatus.RUNNING
        self.meet(TableInput.BEGIN_ANEW if begun else TableInput.BEGIN)
        self.begun_offset, self.first_offset = offset, first_offset

    def spell_keys(self, spelling: str) -> None:
        """Bounds are spelled so from now on; what was read up to others is to be read again: it is
        of another version of Tidelog, and the bounds may mean other rows now.
        """
        if self.key_set is not None or self.key_spelling == spelling:
            return
        self.key_spelling, self.first_offset = spelling, None
        self.forget_reading()

    def forget_reading(self) -> None:
        """All its rows are to be read again."""
        self.ranges, self.failed = [], []
        self.chunks = self.chunks_voided = self.chunks_failed = 0
        self.rows_read = self.rows_superseded = 0

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
    def known_ranges(self) -> list[KeyRange]:
        """Those that were read or can't be, by their order; none where keys were given."""
        known = [] if self.key_set is not None else [*self.ranges, *self.failed]
        return sorted(known, key=lambda done: done.order)

    def gaps(self) -> Iterator[tuple[Key | None, Key | None, float, float]]:
        """What lies between the known ranges: after which key, up to which one, its order and the
        room that it has there.
        """
        known, low = self.known_ranges, None
        order = known[0].order - 1 if known else 0.0
        for done in known:
            if done.low != low:
                span = (done.order - order) / 2
                yield low, done.low, order + span, span
            low, order = done.high, done.last_order

    def keys_left(self, first: int, most: int) -> tuple[int, int]:
        """From the key ``first`` on: the first one that is not done, and how many there are behind
        it, at most ``most``, before the next that is.
        """
        for start, end in self.keys_done:
            if start <= first < end:
                first = end
        ahead = [start - first for start, _end in self.keys_done if start > first]
        return first, min([most, *ahead])

    @property
    def keys_read(self) -> int:
        return sum(end - start for start, end in self.keys_done)

    @property
    def complete(self) -> bool:
        """Was the whole key space read, or reported as failed?"""
        if self.key_set is not None:
            return self.keys_read >= self.key_count
        every = self.known_ranges
        if not every or every[0].low is not None or every[-1].high is not None:
            return False
        return all(a.high == b.low for a, b in pairwise(every))

    @property
    def lost(self) -> str:
        """Why nothing is left to read, though it is not complete."""
        if self.key_set is not None:
            missing = self.key_count - self.keys_read
            return (
                f"{missing} of its keys are not stored any more: give them again, to another dump"
            )
        return (
            "it was cut into so many chunks that they could not be kept in order: dump it again, "
            "with other chunk_rows"
        )


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
    status: DumpStatus = DumpStatus.QUEUED
    mode: Mode = "incremental"
    reason: str = "requested"
    requested_ms: int = 0
    finished_ms: int | None = None
    rejected: list[Rejected] = field(default_factory=list)
    priority: int = 0  # those of a higher one are read first
    paused_by: str = ""  # as the command said it; empty: it is not paused, or nobody said it
    paused_ms: int | None = None  # since when; None: it is not paused, or that is not known
    rests_on: int = 0  # where the event log ended when this was stored: it holds all that is done

    def __post_init__(self) -> None:
        self.status = DumpStatus(self.status)  # stored, it is a text

    def meet(self, news: DumpInput) -> None:
        self.status = DUMPS.after(self.status, news)

    @property
    def finished(self) -> bool:
        return self.status in (DumpStatus.COMPLETED, DumpStatus.ABORTED)

    @property
    def active(self) -> bool:
        """May chunks of it be begun?"""
        return self.status in (DumpStatus.QUEUED, DumpStatus.RUNNING)

    def take_back(self, holds: Callable[[int], bool]) -> None:
        """What is done counts no more, for the event log lost some of it: the chunks that it holds
        are added again.
        """
        for table in self.tables:
            if table.status is TableStatus.RUNNING:
                table.forget_reading()
                table.keys_done = []
                if not holds(table.begun_offset):
                    table.first_offset = None  # it begins anew

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
        names = [f.name for f in fields(self) if f.name not in ("tables", "rejected", "rests_on")]
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


_NO_KEYS_YET = frozenset({TableRunStatus.WAITING, TableRunStatus.LOOKING_UP, TableRunStatus.ENDED})


@dataclass(slots=True)
class TableRun:
    """What capture does with a table of an incremental dump: `TABLE_RUNS`.

    Attributes:
        read_at: when it was read to its end, and the newest request for keys by then.
        asked_before: the newest request for keys when it began, which its rows answer; None: it
            began before a restart.
    """

    dump: DumpState
    progress: TableProgress
    status: TableRunStatus = TABLE_RUNS.start
    read_at: tuple[float, int] | None = None
    asked_before: int | None = None

    def meet(self, news: TableRunInput) -> None:
        self.status = TABLE_RUNS.after(self.status, news)

    @property
    def ended(self) -> bool:
        return self.status is TableRunStatus.ENDED

    @property
    def holds_keys(self) -> bool:
        """Are the keys of the table's records held for it?"""
        return self.status not in _NO_KEYS_YET


def asks_for_all(progress: TableProgress) -> bool:
    """Are all rows of the table asked for, read or not?"""
    return progress.where is None and progress.key_set is None


def whole_table(progress: TableProgress) -> bool:
    """Are all of its rows read, so that what the dump does not find is gone?"""
    return asks_for_all(progress) and not progress.failed


def completed_record(dump: DumpState, progress: TableProgress) -> dict[str, object]:
    """The control record that marks the table complete."""
    return {
        "type": "dump-completed",
        "dump_id": dump.dump_id,
        "table": progress.table,
        "first_offset": progress.first_offset,
        "delete_absent": whole_table(progress),
    }


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
