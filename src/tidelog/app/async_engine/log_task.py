"""A task of an engine that reads an event log from where it stopped."""

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
from tidelog.codecs.cell_positions import missing_names
from tidelog.codecs.decode import decode, expand_key_changes, expanded_ops, find_key_changes
from tidelog.engine.event_batches import EventBatch, event_schema
from tidelog.engine.events import Events
from tidelog.engine.options import BATCH_SIZE
from tidelog.errors import (
    ConfigError,
    ConsumerError,
    EventLogError,
    OffsetAheadError,
    OffsetGoneError,
)
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog
from tidelog.model.records import Int64s, RecordKind
from tidelog.model.schema import TableSchema
from tidelog.outputs.base.sections import StepSection
from tidelog.ports import SourceId
from tidelog.system.callbacks import WorkNotDoneError, refuse_coroutine


def decoded_events(
    records: pa.RecordBatch,
    schema_of: Callable[[int], TableSchema],
    origin: SourceId,
    steps: Callable[[EventBatch], EventBatch] = lambda batch: batch,
) -> list[EventBatch]:
    """Decode row changes of any tables into runs of one schema version, in the log's order.

    The records of each version are decoded together, however the tables alternate, and go through
    ``steps``, which keep their number.

    Raises:
        DecodeError: names table, column and version.
    """
    ids = records.column("schema_id").to_numpy()
    cuts = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
    decoded: dict[int, tuple[EventBatch, Int64s]] = {}
    for number in np.unique(ids).tolist():
        mask = ids == number
        own = records if mask.all() else records.filter(pa.array(mask))
        batch, places = _events(own, schema_of(number), origin)
        decoded[number] = steps(batch), places
    next_index = dict.fromkeys(decoded, 0)
    runs = []
    for low, high in pairwise(cuts):
        number = int(ids[low])
        batch, places = decoded[number]
        start = next_index[number]
        stop = next_index[number] = start + high - low
        runs.append(batch.slice(int(places[start]), int(places[stop])))
    return runs


def _events(
    records: pa.RecordBatch, schema: TableSchema, origin: SourceId
) -> tuple[EventBatch, Int64s]:
    """Return the decoded events, and int64[n + 1]: where the events of each record start."""
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
        op = expanded_ops(op, moved, at, first)
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


_POLL_S: Final = 0.05
_BATCH_BYTES: Final = 32 << 20
"""A poll ends after the stored batch that reaches this size; a batch has some MiB at most."""


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """The progress of a consumer: an offset of the event log of this generation."""

    generation: str
    offset: int


StartingOffset = Literal["earliest", "latest"] | int
"""Where a name without progress starts: at the oldest event in the log, after the newest one, or at
this offset.
"""


class OffsetStore(Protocol):
    """The program's own store of offsets.

    It may store them in one transaction with its results (`Events.end`): then `write` has nothing
    left to do, unless ``starting_offset`` is given.
    """

    def read(self, task: str) -> StoredOffset | None:
        """Return the progress; None: there is none, and it starts at ``starting_offset``."""
        ...

    def write(self, task: str, stored: StoredOffset) -> None:
        """Store the progress, durably."""
        ...


class LogTask:
    """A `tidelog.engine.ports.SourceTask` over an event log.

    It is registered as a consumer of the log, so that retention waits for it; without an own store,
    its offset is stored there, too.

    Args:
        path: the path of the log.
        name: the name of the task, and of the consumer.
        batch_size: the greatest number of records in a poll.
        offsets: the program's own store.
        steps: the steps that events go through first.
        starting_offset: where a name without progress starts; others resume.
    """

    def __init__(
        self,
        path: str,
        name: str,
        *,
        batch_size: int = BATCH_SIZE,
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
        self._rest: pa.RecordBatch | None = None
        self._at_head = False  # a new name at the head, and no event was returned yet

    def start(self, cancelled: threading.Event) -> None:
        """Open the log, and find the first offset.

        Raises EventLogError if there is no log, the stored offset is of another one, or retention
        has removed the starting offset.
        """
        log = EventLog.open(self._path)
        stored = self._read_stored_offset(log)
        starting = self._starting_offset
        if stored is None and starting == "earliest":
            self._start_at_head(log)
        elif stored is None:
            # Durable at once: all that is captured from here on must be delivered, also after a
            # crash.
            try:
                self._start_at(log, log.latest_offset() if starting == "latest" else int(starting))
            except OffsetAheadError:
                raise ConfigError(
                    f"starting_offset: {starting} is beyond the end of the event log, which is "
                    f"{log.latest_offset()}"
                ) from None
            self._store(log, self._next)
        else:
            self._start_at(log, stored)
        self._log = log

    def poll(self, timeout_s: float) -> Events | None:
        try:
            events = self._read_events(timeout_s)
            self._at_head = self._at_head and events is None
            return events
        except OffsetGoneError:
            if not self._at_head:
                raise
            # Retention had read the consumers before this task was registered.
            self._start_at_head(self._open_log())
            return None
        except BaseException:
            # After an error, the read must not look complete.
            self._until, self._reading, self._rest = self._next, iter(()), None
            raise

    def _read_events(self, timeout_s: float) -> Events | None:
        log = self._open_log()
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
            time.sleep(_POLL_S)
        records = self._next_records()
        if records is None:
            self._next = self._until
            return Events([], self._next, log.generation)
        events = decoded_events(records, log.schemas.get, log.source, self._steps)
        self._next = records.column("offset")[-1].as_py() + 1
        return Events(events, self._next, log.generation)

    @property
    def has_events(self) -> bool:
        """Whether this task returns the events of its name."""
        return True

    def committed(self) -> int | None:
        return self._read_stored_offset(self._open_log())

    def commit(self, offset: int) -> None:
        self._store(self._open_log(), offset)

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
        """Do nothing: nothing is open."""

    def _open_log(self) -> EventLog:
        assert self._log is not None, "start first"
        return self._log

    def _start_at(self, log: EventLog, offset: int) -> None:
        self._next = self._until = offset
        log.segments(offset)  # raises if retention has removed it
        Consumers(log.storage).register(self.name, offset, engine=True)

    def _start_at_head(self, log: EventLog) -> None:
        """Start at the oldest event that there is."""
        self._next = self._until = log.head_offset
        self._reading, self._rest, self._at_head = iter(()), None, True
        Consumers(log.storage).register(self.name, self._next, engine=True)

    def _read_stored_offset(self, log: EventLog) -> int | None:
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

    def _next_records(self) -> pa.RecordBatch | None:
        """Return the next records, at most a batch; None: there are none before `_until`."""
        gathered, rows, size = [], 0, 0
        while rows < self._batch_size and size < _BATCH_BYTES:
            batch, self._rest = self._rest, None
            if batch is None:
                batch = next(self._reading, None)
            if batch is None:
                break
            room = self._batch_size - rows
            if batch.num_rows > room:
                self._rest = batch.slice(room)
                batch = batch.slice(0, room)
            gathered.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        if not gathered:
            return None
        return gathered[0] if len(gathered) == 1 else pa.concat_batches(gathered)


def _records(log: EventLog, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield row changes only: no records of Tidelog, no messages of the source."""
    refs = log.segments(start, end)
    for index, ref in enumerate(refs):
        log.read_ahead(refs[index : index + 32])
        for batch in log.batches(ref):
            changes = batch.column("schema_id").to_numpy() != 0
            changes &= batch.column("kind").to_numpy() != np.uint8(RecordKind.MESSAGE)
            if not changes.all():
                batch = batch.filter(pa.array(changes))
            if batch.num_rows:
                yield batch
