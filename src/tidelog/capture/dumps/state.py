"""A dump's state and progress: values that are stored as JSON, and their transitions. No I/O.

`DUMPS`, `TABLES`, `TABLE_RUNS` and `CHUNKS` are applied by the objects whose states they describe;
`docs/reference/dump-states.md` prints the first two. The states of windows are in
`tidelog.capture.windows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from enum import Enum, StrEnum, auto
from itertools import pairwise
from typing import Any, Literal

from tidelog.model.dump_options import DumpMode
from tidelog.model.schema import TableName
from tidelog.model.state_machine import Transition, Transitions
from tidelog.ports import ChunkRequest

# The states of dumps, their tables and their chunks, and the transitions between them.


class DumpStatus(StrEnum):
    """The state of a dump. The values are stored."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    ABORTED = "aborted"


class DumpInput(Enum):
    """An event in the life of a dump."""

    BEGIN = "its turn comes"
    PAUSE = "it is paused"
    RESUME = "it is resumed"
    RESUME_UNBEGUN = "it is resumed, and none of its tables has begun"
    TABLES_ENDED = "all its tables have ended, one at least is done"
    NONE_DONE = "all its tables have ended, none is done"


_Dump = Transition[DumpStatus, DumpInput]
_IN, _TO = DumpInput, DumpStatus
DUMPS = Transitions(
    "dump",
    "As `tidelog status` shows it, and as it is stored.",
    DumpStatus.QUEUED,
    (
        _Dump(_TO.QUEUED, _IN.BEGIN, _TO.RUNNING, "report it, and the rejected tables"),
        _Dump(_TO.QUEUED, _IN.PAUSE, _TO.PAUSED, "no chunk is begun"),
        _Dump(_TO.RUNNING, _IN.PAUSE, _TO.PAUSED, "no chunk is begun; those being read end"),
        _Dump(_TO.PAUSED, _IN.RESUME, _TO.RUNNING),
        _Dump(_TO.PAUSED, _IN.RESUME_UNBEGUN, _TO.QUEUED),
        *(
            _Dump(status, ended, to, "delete its key sets")
            for status in (_TO.QUEUED, _TO.RUNNING, _TO.PAUSED)
            for ended, to in (
                (_IN.TABLES_ENDED, _TO.COMPLETED),
                (_IN.NONE_DONE, _TO.ABORTED),
            )
        ),
    ),
)


UNFINISHED_DUMPS = frozenset({DumpStatus.QUEUED, DumpStatus.RUNNING, DumpStatus.PAUSED})


class TableStatus(StrEnum):
    """The state of a table of a dump. The values are stored."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TableInput(Enum):
    """An event in the life of a table of a dump."""

    BEGIN = "reading its rows begins"
    RESTART = "all its rows are to be read again"
    COMPLETE = "its last record is durable"
    FAIL = "it can't be read"
    CANCEL = "it is cancelled"


_Table = Transition[TableStatus, TableInput]
TABLES = Transitions(
    "table of a dump",
    "As `tidelog status` shows it, and as it is stored.",
    TableStatus.PENDING,
    (
        _Table(TableStatus.PENDING, TableInput.BEGIN, TableStatus.RUNNING),
        _Table(TableStatus.PENDING, TableInput.FAIL, TableStatus.FAILED, "other tables continue"),
        _Table(TableStatus.PENDING, TableInput.CANCEL, TableStatus.CANCELLED),
        _Table(TableStatus.RUNNING, TableInput.RESTART, TableStatus.RUNNING),
        _Table(TableStatus.RUNNING, TableInput.COMPLETE, TableStatus.DONE),
        _Table(TableStatus.RUNNING, TableInput.FAIL, TableStatus.FAILED, "other tables continue"),
        _Table(TableStatus.RUNNING, TableInput.CANCEL, TableStatus.CANCELLED),
        _Table(TableStatus.DONE, TableInput.RESTART, TableStatus.RUNNING),
    ),
    stays=(
        (TableStatus.CANCELLED, (TableInput.COMPLETE, TableInput.FAIL)),
        (TableStatus.FAILED, (TableInput.COMPLETE, TableInput.FAIL)),
        (TableStatus.DONE, (TableInput.COMPLETE, TableInput.FAIL)),
    ),
)
FINISHED_TABLES = frozenset({TableStatus.DONE, TableStatus.FAILED, TableStatus.CANCELLED})


class TableRunStatus(Enum):
    """The step of capture's work on a table of an incremental dump; in memory only."""

    WAITING = auto()
    LOOKING_UP = auto()
    BEGINNING = auto()
    TAKING_SNAPSHOT = auto()
    READING = auto()
    READING_KEYLESS = auto()
    COMPLETING = auto()
    ENDED = auto()


class TableRunInput(Enum):
    """An event during capture's work on a table."""

    NEXT = "a reader is free for it"
    AWAY = "the source does not answer"
    PAUSED = "its dump was paused in the meantime"
    FOUND = "the source has it, and it can be dumped"
    FOUND_BEGUN = "the same, and it had begun before a restart"
    FOUND_KEYLESS = "the source has it, and it has no key"
    ALTERED = "it was altered while it was read"
    APPENDED = "the record is durable"
    UNSEEN_KNOWN = "the transactions that the snapshot can't see are known"
    ALL_READ = "nothing of it is left to read, or to read again"
    END = "it failed, was cancelled or is done"


_Run = Transition[TableRunStatus, TableRunInput]
_DOES, _MEETS = TableRunStatus, TableRunInput
TABLE_RUNS = Transitions(
    "table being dumped",
    "Capture's work on a table of an incremental dump. It is not stored: a restart begins at "
    "the top, and reads no completed range again.",
    TableRunStatus.WAITING,
    (
        _Run(_DOES.WAITING, _MEETS.NEXT, _DOES.LOOKING_UP, "query the catalogue for it"),
        _Run(_DOES.LOOKING_UP, _MEETS.AWAY, _DOES.LOOKING_UP, "query again later"),
        _Run(_DOES.LOOKING_UP, _MEETS.PAUSED, _DOES.WAITING),
        _Run(
            _DOES.LOOKING_UP,
            _MEETS.FOUND,
            _DOES.BEGINNING,
            "retain its keys, append its first record",
        ),
        _Run(_DOES.LOOKING_UP, _MEETS.FOUND_BEGUN, _DOES.READING, "cut the rest into chunks"),
        _Run(
            _DOES.LOOKING_UP,
            _MEETS.FOUND_KEYLESS,
            _DOES.READING_KEYLESS,
            "read it whole under one snapshot, then append its last record",
        ),
        _Run(_DOES.READING_KEYLESS, _MEETS.ALTERED, _DOES.WAITING),
        _Run(
            _DOES.BEGINNING,
            _MEETS.APPENDED,
            _DOES.TAKING_SNAPSHOT,
            "take a snapshot, search the event log for what it can't see",
        ),
        _Run(_DOES.TAKING_SNAPSHOT, _MEETS.AWAY, _DOES.TAKING_SNAPSHOT, "try again later"),
        _Run(_DOES.TAKING_SNAPSHOT, _MEETS.UNSEEN_KNOWN, _DOES.READING, "cut it into chunks"),
        _Run(_DOES.READING, _MEETS.ALL_READ, _DOES.COMPLETING, "append its last record"),
        *(
            _Run(status, _MEETS.END, _DOES.ENDED, "release its keys")
            for status in TableRunStatus
            if status is not TableRunStatus.ENDED
        ),
    ),
    stays=(
        (
            _DOES.ENDED,
            (
                _MEETS.AWAY,
                _MEETS.PAUSED,
                _MEETS.FOUND,
                _MEETS.FOUND_BEGUN,
                _MEETS.FOUND_KEYLESS,
                _MEETS.ALTERED,
                _MEETS.APPENDED,
                _MEETS.UNSEEN_KNOWN,
            ),
        ),
    ),
)


class ChunkStatus(StrEnum):
    """The state of a chunk. Status shows those of chunks being read; none is stored."""

    WAITING = "waiting"
    GIVEN = "given"
    READING = "reading"
    READ = "read"
    CLOSING = "closing"
    DOUBTFUL = "doubtful"
    STUCK = "stuck"
    DURABLE = "durable"
    LEFT_OUT = "left out"
    DROPPED = "dropped"


class ChunkInput(Enum):
    """An event in the life of a chunk."""

    GIVE = "a reader takes it"
    BEGIN = "the reader registers its window"
    ROWS = "its SELECT has ended"
    CLOSE = "its window closes"
    APPENDED = "its rows are durable"
    VOID = "its window is void"
    FAIL = "it could not be read"
    FAIL_OFTEN = "it could not be read several times, or may never be"
    AGAIN = "its table has not changed, or can't be looked up now"
    ONE_ROW = "it is one row, whose key is not known"
    BEHIND_KNOWN = "the key of that row is known"
    ANSWERED = "it is not needed: its key is given up, or its keys have changed"
    DROP = "its table was cancelled, or has failed"


_Chunk = Transition[ChunkStatus, ChunkInput]
_AT, _SEES = ChunkStatus, ChunkInput
CHUNKS = Transitions(
    "chunk",
    "In memory only: a chunk that is not durable is read again after a restart. Status shows "
    "those that are `reading`, `read` and `closing`.",
    ChunkStatus.WAITING,
    (
        _Chunk(_AT.WAITING, _SEES.GIVE, _AT.GIVEN),
        _Chunk(_AT.GIVEN, _SEES.BEGIN, _AT.READING, "low watermark, SELECT"),
        _Chunk(_AT.READING, _SEES.ROWS, _AT.READ, "high watermark"),
        _Chunk(_AT.READ, _SEES.CLOSE, _AT.CLOSING, "append its rows except superseded ones"),
        _Chunk(_AT.CLOSING, _SEES.APPENDED, _AT.DURABLE, "store the progress"),
        _Chunk(_AT.READING, _SEES.VOID, _AT.WAITING, "read again, with a growing delay"),
        _Chunk(_AT.READ, _SEES.VOID, _AT.WAITING, "read again, with a growing delay"),
        _Chunk(_AT.READING, _SEES.FAIL, _AT.WAITING, "read again, with a growing delay"),
        _Chunk(_AT.READ, _SEES.FAIL, _AT.WAITING, "read again, with a growing delay"),
        _Chunk(_AT.READING, _SEES.FAIL_OFTEN, _AT.DOUBTFUL, "look up its table"),
        _Chunk(_AT.READ, _SEES.FAIL_OFTEN, _AT.DOUBTFUL, "look up its table"),
        _Chunk(_AT.DOUBTFUL, _SEES.AGAIN, _AT.WAITING, "read again, half of it"),
        _Chunk(_AT.DOUBTFUL, _SEES.ONE_ROW, _AT.STUCK, "the planner finds its key"),
        _Chunk(_AT.DOUBTFUL, _SEES.ANSWERED, _AT.LEFT_OUT),
        _Chunk(_AT.STUCK, _SEES.BEHIND_KNOWN, _AT.LEFT_OUT, "report it; read the rows after it"),
        *(
            _Chunk(status, _SEES.DROP, _AT.DROPPED)
            for status in (
                _AT.WAITING,
                _AT.GIVEN,
                _AT.READING,
                _AT.READ,
                _AT.DOUBTFUL,
                _AT.STUCK,
            )
        ),
    ),
    stays=((_AT.DROPPED, (_SEES.DROP,)),),
)

# The values that are stored.

Key = tuple[str | None, ...]

Missing = Literal["delete", "list"]


TABLE_GONE = "the table does not exist (any more)"
NO_KEY = "it has no primary key: add one, or name a unique key of it in source.keys"
"""Of a table of which a dump should read given keys."""
HIDDEN_FIELDS = frozenset({
    "ranges", "failed", "keys_done", "where", "where_names", "may_pass", "begun_offset",
    "key_spelling",
})  # fmt: skip
"""Fields that hold cell values, are long (status has their counts) or are internal."""


@dataclass(slots=True)
class KeyRange:
    """A completed range ``(low, high]`` of a table's key; None where open.

    Ranges have the same order by key and by ``order``, which each chunk gets when it is cut; only
    the source can compare keys. ``last_order``: the order of the last chunk merged into the range.
    """

    low: Key | None
    high: Key | None
    order: float
    last_order: float


@dataclass(slots=True)
class TableProgress:
    """One table of a dump. Progress only grows: ranges are added, never removed.

    Attributes:
        table: name of the table.
        where: SQL condition on its rows; ``where_names``: see `tidelog.ports.ChunkRequest`.
        first_offset: offset of the dump's first record of the table; a replay from there gives the
            table.
        begun_offset: offset of its dump-started record: chunks before it are of an earlier reading.
        finalized_until: the version up to which an output must have applied changes to have the
            whole table; None until the table is done.
        ranges: completed key ranges.
        failed: ranges that could not be read.
        key_set: name of the requested keys; ``key_count``: their number.
        keys_done: completed index ranges ``[first, end)`` of the key set.
        key_columns: columns of the keys or of the ranges' bounds.
        key_spelling: `tidelog.ports.TableShape.key_spelling` of the ranges' bounds.
        missing: whether keys that the table does not have become delete events or are listed.
        estimated_rows: by the source's statistics, when the table began.
        due: why capture itself needs the table dumped and joined this dump; empty: it does not. If
            this dump is cancelled, another is requested.
        may_pass: False if it failed for a cause whose end the catalogue would show, such as a
            missing key: only then is it dumped again.
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
        self.status = TableStatus(self.status)  # a string when loaded

    def transition(self, event: TableInput) -> None:
        self.status = TABLES.after(self.status, event)

    def request(
        self, limit_rows: int, after: Key | None = None, upto: Key | None = None
    ) -> ChunkRequest:
        """The request for a chunk of the table's rows, by key."""
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
        """Begin the table; its dump-started record has this ``offset``."""
        begun = self.status is TableStatus.RUNNING
        self.transition(TableInput.RESTART if begun else TableInput.BEGIN)
        self.begun_offset, self.first_offset = offset, first_offset

    def spell_keys(self, spelling: str) -> None:
        """Set the spelling of bounds. If it was another one, by another version of Tidelog, all is
        read again: the bounds may mean other rows now.
        """
        if self.key_set is not None or self.key_spelling == spelling:
            return
        self.key_spelling, self.first_offset = spelling, None
        self.forget_reading()

    def forget_reading(self) -> None:
        """Reset the progress: all rows are to be read again."""
        self.ranges, self.failed = [], []
        self.chunks = self.chunks_voided = self.chunks_failed = 0
        self.rows_read = self.rows_superseded = 0

    def add_range(self, low: Key | None, high: Key | None, order: float) -> bool:
        """Add the complete range ``(low, high]``, merged with neighbours; False if it was there."""
        added = _join(self.ranges, KeyRange(low, high, order, order))
        if added:
            self._forget_failed(order)
        return added

    def add_failed(self, low: Key | None, high: Key | None, order: float) -> bool:
        """Add the range ``(low, high]`` to those that could not be read."""
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
        """Ranges that were read or can't be, in order; none for a dump of given keys."""
        known = [] if self.key_set is not None else [*self.ranges, *self.failed]
        return sorted(known, key=lambda done: done.order)

    def gaps(self) -> Iterator[tuple[Key | None, Key | None, float, float]]:
        """The gaps between the known ranges: the key before, the last key, the order and the room
        in it.
        """
        known, low = self.known_ranges, None
        order = known[0].order - 1 if known else 0.0
        for done in known:
            if done.low != low:
                span = (done.order - order) / 2
                yield low, done.low, order + span, span
            low, order = done.high, done.last_order

    def keys_left(self, first: int, most: int) -> tuple[int, int]:
        """From index ``first`` on, the first key that is not done, and how many follow before the
        next that is, at most ``most``.
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
        """Is the whole key space read, or reported as failed?"""
        if self.key_set is not None:
            return self.keys_read >= self.key_count
        every = self.known_ranges
        if not every or every[0].low is not None or every[-1].high is not None:
            return False
        return all(a.high == b.low for a, b in pairwise(every))

    @property
    def lost(self) -> str:
        """Why the table is incomplete although nothing is left to read."""
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
    """A name in a signal that can't be dumped; reported when the dump starts, as Debezium does.

    Attributes:
        table: name of the table, or the pattern that matches no table.
        reason: the reason, for people.
        status: status of its scan, a `tidelog.capture.notifications.TableScanStatus`.
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
    mode: DumpMode = "incremental"
    reason: str = "requested"
    requested_ms: int = 0
    finished_ms: int | None = None
    rejected: list[Rejected] = field(default_factory=list)
    priority: int = 0  # dumps of a higher one are read first
    paused_by: str = ""  # as the command says; empty: not paused, or not known
    paused_ms: int | None = None  # since when; None: not paused, or not known
    rests_on: int = 0  # the event log's end when this was stored: all progress is before it

    def __post_init__(self) -> None:
        self.status = DumpStatus(self.status)  # a string when loaded

    def transition(self, event: DumpInput) -> None:
        self.status = DUMPS.after(self.status, event)

    @property
    def finished(self) -> bool:
        return self.status in (DumpStatus.COMPLETED, DumpStatus.ABORTED)

    @property
    def active(self) -> bool:
        """May its chunks begin?"""
        return self.status in (DumpStatus.QUEUED, DumpStatus.RUNNING)

    def reset_progress(self, holds: Callable[[int], bool]) -> None:
        """Reset the progress of running tables, because the event log lost a part: the chunks that
        it still has are added again.
        """
        for table in self.tables:
            if table.status is TableStatus.RUNNING:
                table.forget_reading()
                table.keys_done = []
                if not holds(table.begun_offset):
                    table.first_offset = None  # it restarts

    def to_json(self) -> dict[str, Any]:
        """The values to store, which do not change with the dump. `asdict` took eight times as
        long: a dump of 500 tables is stored 1,500 times.
        """
        tables = [_values(table) for table in self.tables]
        for table in tables:
            for name in ("ranges", "failed"):
                table[name] = [_values(each) for each in table[name]]
        rejected = [_values(each) for each in self.rejected]
        return {**_values(self), "tables": tables, "rejected": rejected}

    def summary(self) -> dict[str, Any]:
        """For status: without keys, ranges and conditions, which hold cell values."""
        tables = []
        for table in self.tables:
            shown = {
                f.name: getattr(table, f.name) for f in fields(table) if f.name not in HIDDEN_FIELDS
            }
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


_FIELDS = {
    kind: tuple(each.name for each in fields(kind))
    for kind in (KeyRange, TableProgress, Rejected, DumpState)
}


def _values(item: KeyRange | TableProgress | Rejected | DumpState) -> dict[str, Any]:
    return {name: getattr(item, name) for name in _FIELDS[type(item)]}


_NO_KEYS = frozenset({
    TableRunStatus.WAITING, TableRunStatus.LOOKING_UP, TableRunStatus.READING_KEYLESS,
    TableRunStatus.ENDED,
})  # fmt: skip


@dataclass(slots=True)
class TableRun:
    """Capture's work on a table of an incremental dump: `TABLE_RUNS`.

    Attributes:
        read_at: when it was read to its end, and the number of the newest key request then.
        asked_before: number of the newest key request when it began, which its rows answer; None:
            it began before a restart.
    """

    dump: DumpState
    progress: TableProgress
    status: TableRunStatus = TABLE_RUNS.start
    read_at: tuple[float, int] | None = None
    asked_before: int | None = None

    def transition(self, event: TableRunInput) -> None:
        self.status = TABLE_RUNS.after(self.status, event)

    @property
    def ended(self) -> bool:
        return self.status is TableRunStatus.ENDED

    @property
    def retains_keys(self) -> bool:
        """Is the key history of the table kept for it?"""
        return self.status not in _NO_KEYS


def asks_for_all(progress: TableProgress) -> bool:
    """Does the dump want all rows of the table, read or not?"""
    return progress.where is None and progress.key_set is None


def whole_table(progress: TableProgress) -> bool:
    """Are all its rows read, so that rows the dump did not find are deleted?"""
    return asks_for_all(progress) and not progress.failed


def started_record(dump: DumpState, progress: TableProgress) -> dict[str, object]:
    """The control record that marks where the table's dump begins."""
    return {
        "type": "dump-started",
        "dump_id": dump.dump_id,
        "table": progress.table,
        "whole": asks_for_all(progress),
    }


def completed_record(
    dump: DumpState, progress: TableProgress, rows_ordinal: int | None = None
) -> dict[str, object]:
    """The control record that marks the table complete. ``rows_ordinal``: the ordinal of its rows,
    if the table has no key; then no output knows which of its rows are absent.
    """
    whole = whole_table(progress)
    record: dict[str, object] = {
        "type": "dump-completed",
        "dump_id": dump.dump_id,
        "table": progress.table,
        "first_offset": progress.first_offset,
        "delete_absent": whole and rows_ordinal is None,
    }
    if whole and rows_ordinal is not None:
        record["rows_ordinal"] = rows_ordinal
    return record


def _join(ranges: list[KeyRange], fresh: KeyRange) -> bool:
    """Add to ``ranges``, sorted by order and merged with neighbours; False if it is in there."""
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
