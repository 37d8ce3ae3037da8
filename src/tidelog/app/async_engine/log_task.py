"""An engine's task that reads an event log from where it stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.app.async_engine.steps import EventSteps
from tidelog.codecs.decode import decode
from tidelog.codecs.key_changes import expand_key_changes, find_key_changes, ops_of
from tidelog.codecs.missing_columns import missing_names
from tidelog.engine.callables import WorkNotDoneError, refuse_coroutine
from tidelog.engine.event_batches import EventBatch, event_schema
from tidelog.engine.events import Events
from tidelog.errors import ConsumerError, EventLogError, OffsetGoneError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog
from tidelog.model.records import Int64s, Kind
from tidelog.model.schema import TableSchema
from tidelog.outputs.base.sections import StepSection
from tidelog.ports import SourceId


def decoded_events(
    records: pa.RecordBatch,
    schema_of: Callable[[int], TableSchema],
    origin: SourceId,
    steps: Callable[[EventBatch], EventBatch] = lambda batch: batch,
) -> list[EventBatch]:
    """Row changes of any tables as runs of one schema version, in the log's order.

    Each version's records are decoded together, however the tables alternate, and go through
    ``steps``, which keep their number.

    Raises:
        DecodeError: names table, column and version.
    """
    ids = records.column("schema_id").to_numpy()
    cuts = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
    found: dict[int, tuple[EventBatch, Int64s]] = {}
    for number in np.unique(ids).tolist():
        mask = ids == number
        own = records if mask.all() else records.filter(pa.array(mask))
        batch, places = _events(own, schema_of(number), origin)
        found[number] = steps(batch), places
    taken = dict.fromkeys(found, 0)
    runs = []
    for low, high in pairwise(cuts):
        number = int(ids[low])
        batch, places = found[number]
        start = taken[number]
        stop = taken[number] = start + high - low
        runs.append(batch.slice(int(places[start]), int(places[stop])))
    return runs


def _events(
    records: pa.RecordBatch, schema: TableSchema, origin: SourceId
) -> tuple[EventBatch, Int64s]:
    """The decoded events, and int64[n + 1]: where the events of each record begin."""
    decoded = decode(records, schema)
    before, after = decoded.before, decoded.after
    assert before is not None
    assert after is not None
    moved = find_key_changes(decoded, schema)
    op = decoded.op
    missing = missing_names(decoded.missing, schema.column_names, len(decoded))
    columns = [records.column(name) for name in ("kind", "schema_id", "position", "ordinal", "xid")]
    columns.append(decoded.commit_ts.view(pa.timestamp("us", "UTC")))
    version = decoded.version
    if moved.any():
        at, first = expand_key_changes(moved)
        op = ops_of(op, moved, at, first)
        places = pa.array(at)
        deleted, created = pa.array(first), pa.array(moved[at] & ~first)
        before = _without(before.take(places), created)
        after = _without(after.take(places), deleted)
        missing = _without(missing.take(places), deleted)
        version, *columns = (column.take(places) for column in (version, *columns))
    arrays = [op, version, before, after, missing, *columns]
    data = pa.RecordBatch.from_arrays(arrays, schema=event_schema(before.type))
    return EventBatch(schema, origin, data), np.concatenate([[0], np.cumsum(1 + moved)])


def _without(values: pa.Array, null: pa.BooleanArray) -> pa.Array:
    return pc.if_else(null, pa.scalar(None, values.type), values)


_LOOK_S: Final = 0.05
_BATCH_BYTES: Final = 32 << 20
"""A poll ends behind the stored batch that brings it there, of some MiB at most."""


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """How far a consumer is: an offset of the event log of this generation."""

    generation: str
    offset: int


StartingOffset = Literal["earliest", "latest"] | int
"""Where a name without progress begins: with the oldest event that the log holds, behind the newest
one, or at this offset.
"""


class OffsetStore(Protocol):
    """Where a program keeps its offsets, e.g. in one transaction with what it makes of the events
    (`Events.end`): then `write` has nothing left to do, unless ``starting_offset`` is given.
    """

    def read(self, task: str) -> StoredOffset | None:
        """None: it has no progress, and begins where ``starting_offset`` says."""
        ...

    def write(self, task: str, stored: StoredOffset) -> None:
        """Durable when this returns."""
        ...


class LogTask:
    """`tidelog.engine.ports.SourceTask` over an event log.

    It is registered as a consumer of the log, so that retention waits for it; where there is no
    store, its offset is kept there, too.

    Args:
        path: of the log.
        name: of the task, and of the consumer.
        batch_size: the most records that a poll gives.
        offsets: the program's own store.
        steps: what events go through before anyone sees them.
        starting_offset: of a name without progress; one that has some goes on.
    """

    def __init__(
        self,
        path: str,
        name: str,
        *,
        batch_size: int = 8192,
        offsets: OffsetStore | None = None,
        steps: Sequence[StepSection] = (),
        starting_offset: StartingOffset = "earliest",
    ) -> None:
        self.name = name
        self.trouble = ""
        self._starting_offset = starting_offset
        self._path, self._batch_size, self._offsets = path, batch_size, offsets
        self._steps = EventSteps(steps)
        self._log: EventLog | None = None
        self._next = 0
        self._reading: Iterator[pa.RecordBatch] = iter(())
        self._until = 0
        self._left: pa.RecordBatch | None = None
        self._untouched = False  # a new name at the head, and no event was given yet

    def start(self, cancelled: threading.Event) -> None:
        """Raises EventLogError if there is no log, the stored offset is of another one, or
        retention has taken the starting offset.
        """
        log = EventLog.open(self._path)
        stored = self._stored(log)
        starting = self._starting_offset
        if stored is None and starting == "earliest":
            self._begin_at_head(log)
        elif stored is None:
            # Durable at once: what is captured from here on must come, also after a crash.
            self._begin_at(log, log.latest_offset() if starting == "latest" else int(starting))
            self._store(log, self._next)
        else:
            self._begin_at(log, stored)
        self._log = log

    def poll(self, timeout_s: float) -> Events | None:
        try:
            events = self._polled(timeout_s)
            self._untouched = self._untouched and events is None
            return events
        except OffsetGoneError:
            if not self._untouched:
                raise
            # Retention had looked who needs what before this task was registered.
            self._begin_at_head(self._opened())
            return None
        except BaseException:
            # A reading that broke off must not look like one that came to its end.
            self._until, self._reading, self._left = self._next, iter(()), None
            raise

    def _polled(self, timeout_s: float) -> Events | None:
        log = self._opened()
        deadline = time.monotonic() + timeout_s
        while self._next == self._until:
            end = self._next
            if log.poll(end):
                end = log.latest_offset(after=end)
            if end > self._next:
                self._reading = _records(log, self._next, end)
                self._until = end
                break
            if end < self._next:
                log.check_offsets(self._next)
            if time.monotonic() >= deadline:
                return None
            time.sleep(_LOOK_S)
        records = self._gathered()
        if records is None:
            self._next = self._until
            return Events([], self._next, log.generation)
        events = decoded_events(records, log.schemas.get, log.source, self._steps)
        self._next = records.column("offset")[-1].as_py() + 1
        return Events(events, self._next, log.generation)

    @property
    def has_events(self) -> bool:
        """Is it this task that gives the events of its name?"""
        return True

    def committed(self) -> int | None:
        return self._stored(self._opened())

    def commit(self, offset: int) -> None:
        self._store(self._opened(), offset)

    def _store(self, log: EventLog, offset: int) -> None:
        if self._offsets is not None:
            stored = StoredOffset(log.generation, offset)
            written: object = self._offsets.write(self.name, stored)  # type: ignore[func-returns-value]
            try:
                refuse_coroutine(written)
            except WorkNotDoneError as error:
                raise ConsumerError(f"offsets.write {error}") from error
        Consumers(log.storage).register(self.name, offset, engine=True)

    def stop(self) -> None:
        """Nothing is held open."""

    def _opened(self) -> EventLog:
        assert self._log is not None, "start first"
        return self._log

    def _begin_at(self, log: EventLog, offset: int) -> None:
        self._next = self._until = offset
        log.segments(offset)  # raises if retention has taken it
        Consumers(log.storage).register(self.name, offset, engine=True)

    def _begin_at_head(self, log: EventLog) -> None:
        """A new name begins with the oldest event that there is."""
        self._next = self._until = log.head_offset
        self._reading, self._left, self._untouched = iter(()), None, True
        Consumers(log.storage).register(self.name, self._next, engine=True)

    def _stored(self, log: EventLog) -> int | None:
        if self._offsets is not None:
            stored = self._offsets.read(self.name)
            if stored is not None and stored.generation != log.generation:
                raise EventLogError(
                    f"{self._path}: task {self.name} stored an offset of generation "
                    f"{stored.generation} of the event log, this log is generation "
                    f"{log.generation}: it was recreated. Empty what was made of its events, "
                    "forget the offset, then dump the tables again."
                )
            return None if stored is None else stored.offset
        for consumer in Consumers(log.storage).all():
            if consumer.name == self.name:
                return consumer.offset
        return None

    def _gathered(self) -> pa.RecordBatch | None:
        """The next records, at most a batch's worth; None: there are none before `_until`."""
        held, rows, size = [], 0, 0
        while rows < self._batch_size and size < _BATCH_BYTES:
            batch, self._left = self._left, None
            if batch is None:
                batch = next(self._reading, None)
            if batch is None:
                break
            room = self._batch_size - rows
            if batch.num_rows > room:
                self._left = batch.slice(room)
                batch = batch.slice(0, room)
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        if not held:
            return None
        return held[0] if len(held) == 1 else pa.concat_batches(held)


def _records(log: EventLog, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Row changes alone: not our own records, nor the source's messages."""
    refs = log.segments(start, end)
    for index, ref in enumerate(refs):
        log.read_ahead(refs[index : index + 32])
        for batch in log.batches(ref):
            changes = batch.column("schema_id").to_numpy() != 0
            changes &= batch.column("kind").to_numpy() != np.uint8(Kind.MESSAGE)
            if not changes.all():
                batch = batch.filter(pa.array(changes))
            if batch.num_rows:
                yield batch
