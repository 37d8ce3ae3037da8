"""`tidelog.ports.LogReader` for PostgreSQL's logical decoding.

The application's logical messages become records; Tidelog's own messages, and rows of the metadata
tables (watermarks and signals), never do.

Any role of the database may write any message (``pg_logical_emit_message`` needs no grant), also
with Tidelog's prefix. So a watermark counts only with the strategy ``message`` and if it has a
watermark's form; only the code that waits for it can verify it (`tidelog.capture.windows`):
watermarks are random.

Others may write to the metadata tables too, and change their columns. The log is read again at
every start, so nothing in it may stop capture: a missing column reads as NULL.
"""

from __future__ import annotations

import base64
import json
import logging
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import psycopg

from tidelog.codecs.postgres.pgoutput import (
    LogicalMessage,
    PgoutputScanner,
    RelationSeen,
    WatchedRow,
)
from tidelog.codecs.postgres.server_texts import ServerText
from tidelog.codecs.postgres.texts import to_utf8
from tidelog.errors import (
    ConnectionLostError,
    DecodeError,
    Policy,
    SourceBusyError,
    SourceError,
    UnsupportedTableError,
)
from tidelog.model.patterns import EXCLUDE, excludes, matches
from tidelog.model.records import LogBatch, RecordKind, Resume
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import (
    MAX_SIGNAL_BYTES,
    CatalogueChanged,
    IdleAt,
    LastTransaction,
    LogEvent,
    RelationNamed,
    RowsUnlogged,
    SchemaRegistry,
    SchemaSeen,
    SignalSeen,
    SourceId,
    StateStore,
    UnsupportedReason,
    UnsupportedTableSeen,
    WatermarkSeen,
)
from tidelog.sources.postgres.catalogue.ddl_trigger import DDL_PREFIX
from tidelog.sources.postgres.catalogue.metadata_tables import SIGNAL_COLUMNS
from tidelog.sources.postgres.catalogue.publication import Publications
from tidelog.sources.postgres.catalogue.schemas import (
    PostgresSchemaFinder,
    composite_types,
    may_have_been_partition,
    tables_above,
)
from tidelog.sources.postgres.catalogue.storage import (
    FIRST_USER_OID,
    attributes_version,
    composites_of,
)
from tidelog.sources.postgres.chunks.watermarks import (
    MAX_WATERMARK_BYTES,
    WATERMARK_COLUMN,
    WATERMARK_PREFIX,
)
from tidelog.sources.postgres.connect import connect
from tidelog.sources.postgres.errors import translate_errors
from tidelog.sources.postgres.stream import slots
from tidelog.sources.postgres.stream.replication import DEFAULT_BUFFER_BYTES, ReplicationStream
from tidelog.sources.postgres.stream.server import check_history, check_server, identify, one_value
from tidelog.sources.postgres.stream.slots import SlotOwner, reader_of
from tidelog.system import failpoints

logger = logging.getLogger(__name__)

# Logical messages.

_to_json = json.JSONEncoder(separators=(",", ":")).encode
MAX_PREFIX_CHARACTERS = 256
"""Number of characters of a prefix that are recorded."""


def is_own_message(message: LogicalMessage) -> bool:
    """Return True if the message has Tidelog's prefix; then it is no record, whoever wrote it."""
    return message.prefix in (WATERMARK_PREFIX, DDL_PREFIX)


def watermark_of(message: LogicalMessage) -> str | None:
    """The watermark in a message with Tidelog's prefix; None if it can't be one."""
    content = message.content
    if not message.transactional or content is None or len(content) > MAX_WATERMARK_BYTES:
        return None
    return content.decode("ascii") if content.isascii() else None


def message_batch(messages: Sequence[LogicalMessage], resume: Resume) -> LogBatch:
    """Convert the application's logical messages, in order, to records: kind MESSAGE, schema id 0,
    JSON payloads. A message outside a transaction has no time: it gets the time of its capture.

    The transaction's number is only in the payload: as the record's number it would take room in
    the journal of invisible transactions, for any role's messages.
    """
    count = len(messages)
    now = time.time_ns() // 1000
    times = [now if each.commit_ts is None else each.commit_ts for each in messages]
    payloads = [_payload(message) for message in messages]
    return LogBatch(
        kind=np.full(count, RecordKind.MESSAGE, np.uint8),
        schema_id=np.zeros(count, np.int32),
        position=np.array([message.position for message in messages], np.int64),
        ordinal=np.array([message.ordinal for message in messages], np.int64),
        xid=np.zeros(count, np.int64),
        commit_ts=np.array(times, np.int64),
        payload_offsets=np.cumsum([0, *map(len, payloads)], dtype=np.int32),
        payload=np.frombuffer(b"".join(payloads), np.uint8),
        resume=resume,
    )


def _payload(message: LogicalMessage) -> bytes:
    prefix = message.prefix[:MAX_PREFIX_CHARACTERS]
    value: dict[str, Any] = {
        "type": "message",
        "transactional": message.transactional,
        "xid": message.xid,
        # Bytes that are not UTF-8 (the database has no encoding) are replaced.
        "prefix": prefix.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
        "content": base64.b64encode(message.content or b"").decode(),
    }
    if message.content is None:
        value["omitted"] = True
    return _to_json(value).encode()


# Metadata tables.

_CUT_BYTES = MAX_SIGNAL_BYTES + 1  # enough to notice that a text is too long


class PostgresMetadataTables:
    """Finds the metadata tables in the stream, and reads their rows.

    Args:
        publications: the names of the tables.
    """

    def __init__(self, publications: Publications) -> None:
        self._publications = publications
        self._watermarks: dict[int, int | None] = {}  # the column's index by relation
        self._signals: dict[int, list[int | None]] = {}

    def bind(self, seen: RelationSeen) -> bool:
        """Return True for a table whose rows `read` needs."""
        table = TableName(seen.namespace, seen.name)
        names = [name for _, name, _, _ in seen.columns]
        self._watermarks.pop(seen.relation_id, None)
        self._signals.pop(seen.relation_id, None)
        if table == self._publications.watermark:
            if self._publications.strategy != "table":
                return False
            (self._watermarks[seen.relation_id],) = _places(
                table, names, [WATERMARK_COLUMN], "drop the table; it is created again"
            )
            return True
        if table == self._publications.signals:
            self._signals[seen.relation_id] = _places(
                table, names, SIGNAL_COLUMNS, "give it the columns id, type and data"
            )
            return True
        return False

    def read(self, row: WatchedRow) -> Iterator[WatermarkSeen | SignalSeen]:
        """The watermark or signal in a row; nothing if the row holds neither."""
        if row.relation_id in self._watermarks and row.kind in (
            RecordKind.INSERT,
            RecordKind.UPDATE,
        ):
            (watermark,) = _columns(row.payload, [self._watermarks[row.relation_id]])
            if watermark is not None and len(watermark) <= MAX_WATERMARK_BYTES:
                yield WatermarkSeen(watermark, row.position, row.ordinal)
        elif row.relation_id in self._signals and row.kind is RecordKind.INSERT:
            signal_id, type_, data = _columns(row.payload, self._signals[row.relation_id])
            yield SignalSeen(signal_id or "", type_ or "", data, row.position, row.ordinal)


def _places(
    table: TableName, names: list[str], wanted: Sequence[str], advice: str
) -> list[int | None]:
    missing = [name for name in wanted if name not in names]
    if missing:
        logger.warning("%s has no column %s: %s", table, ", ".join(missing), advice)
    return [names.index(name) if name in names else None for name in wanted]


def _columns(payload: bytes, places: Sequence[int | None]) -> list[str | None]:
    texts = _new_texts(payload)
    return [None if place is None else texts[place] for place in places]


def _new_texts(payload: bytes) -> list[str | None]:
    """The new tuple of an insert or update as text; None for NULL or an unchanged value."""
    try:
        at = 5
        if payload[at : at + 1] in (b"K", b"O"):
            _, at = _texts(payload, at + 1)
        if payload[at : at + 1] != b"N":
            raise ValueError("tuple tag")
        return _texts(payload, at + 1)[0]
    except (struct.error, ValueError) as error:
        raise DecodeError("a row of one of Tidelog's own tables does not parse") from error


def _texts(payload: bytes, at: int) -> tuple[list[str | None], int]:
    (count,) = struct.unpack_from("!h", payload, at)
    at += 2
    found: list[str | None] = []
    for _ in range(count):
        if payload[at : at + 1] in (b"n", b"u"):
            found.append(None)
            at += 1
        else:
            (length,) = struct.unpack_from("!i", payload, at + 1)
            kept = payload[at + 5 : at + 5 + min(length, _CUT_BYTES)]
            found.append(kept.decode("utf-8", "surrogateescape"))
            at += 5 + length
    return found, at


# The log reader.

LOCKED_LIMIT_S = 30.0
RETRY_S = 0.05

_Result = TypeVar("_Result")


def retry_while_locked(
    doing: str, attempt: Callable[[], _Result], *, between_attempts: Callable[[], None]
) -> _Result:
    """The result of ``attempt``, tried again while another session holds a lock.

    ``between_attempts`` is called between the short attempts: Tidelog's sessions give up a
    lock before a deadlock is detected. Raises SourceBusyError if it takes too long.
    """
    deadline = time.monotonic() + LOCKED_LIMIT_S
    while True:
        try:
            with translate_errors(doing):
                return attempt()
        except SourceBusyError:
            if time.monotonic() > deadline:
                raise
            between_attempts()
            time.sleep(RETRY_S)


RETRY_REFUSED_S = 5.0


@dataclass(frozen=True, slots=True)
class _Composites:
    """The composites of a relation's columns, themselves relations, and `attributes_version`."""

    seen: RelationSeen
    relations: list[int]
    version: str


class PostgresLogReader:
    """Streams one database's changes from one slot. Used by one thread, except `acknowledge`.

    Args:
        dsn: connection string; the user needs REPLICATION.
        registry: numbers the schemas that the log shows.
        publications: name the tables to capture; shared with the caller of `sync`, which then
            also reports what `start` published. Created at the first `start`, as is ``slot``.
        finder: finds schemas, of all columns by default; the same one for all of a source.
        expected: the source that the event log was captured from, if there is one.
        state: the store for what must be known of the slot after a restart; None: memory.
        buffer_bytes: most bytes that one `poll` returns (except a larger single message).
        which_copy: returns the event log's copy id once the log exists; see `SlotOwner`.
    """

    def __init__(
        self,
        dsn: str,
        registry: SchemaRegistry,
        publications: Publications,
        *,
        slot: str,
        finder: PostgresSchemaFinder | None = None,
        expected: SourceId | None = None,
        state: StateStore | None = None,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        which_copy: Callable[[], str] = lambda: "",
    ) -> None:
        self._dsn = self.dsn = dsn
        self._registry = registry
        self._slot = slot
        self._owner = SlotOwner(slot, state)
        self._which_copy = which_copy
        self._last: Callable[[], LastTransaction | None] = lambda: None
        self._publications, self._tables = publications, publications.patterns
        self._finder = finder or PostgresSchemaFinder()
        self._expected = expected
        self._buffer_bytes = buffer_bytes
        self._sql: psycopg.Connection[tuple[Any, ...]] | None = None
        self._stream: ReplicationStream | None = None
        self._texts: ServerText | None = None
        self._scanner = PgoutputScanner(None)
        self._bound: dict[int, TableSchema] = {}
        self._composites: dict[int, _Composites] = {}
        self._refused: dict[int, RelationSeen] = {}
        self._retried_at = 0.0
        self._metadata_tables = PostgresMetadataTables(self._publications)
        self._idle_at = 0
        self._source: SourceId | None = None
        self._reported_source: SourceId | None = None
        self._promoted = False  # since the event log was written

    # ------------------------------------------------------------------ port

    def start(self, resume: Resume | None) -> Resume:
        """Check the source, create what is missing, and stream from ``resume``.

        Raises:
            ConfigError, PreflightError: the set-up is wrong, or another event log needs the slot;
                the message says how to fix it.
            SourceChangedError: another server, database or timeline than the event log's.
            GapError: the slot no longer has all changes after ``resume``.
            ConnectionLostError: trying again may help.
        """
        stream = self._open_stream()
        sql = self._get_connection()
        with translate_errors(f"starting to read slot {self._slot!r}"):
            check_server(sql, self._publications.strategy)
            # Before anything is created or altered: it may be another server. The source of an
            # earlier start has everything that `expected` has.
            before = self._source or self._expected
            source = identify(stream, resume, before)
            slots.check_same_timeline(self._reported_source, source)
            self._source = source
            if before is not None and before.timeline not in (0, source.timeline):
                self._promoted = True
            begin = self._prepare_slot(sql, resume)
            next_xid = one_value(sql, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8")
            slots.take_over(sql, self._slot, self._owner)
            slots.prepare_failover(sql, self.dsn, self._slot)
        stream.start(self._slot, begin.acknowledge, self._publications.names)
        self._scanner = PgoutputScanner(begin, next_xid)
        self._bound.clear()
        self._composites.clear()
        self._refused.clear()
        self._idle_at = begin.acknowledge
        return begin

    def poll(self, timeout_s: float) -> Iterator[LogEvent]:
        """See `tidelog.ports.LogReader`. Take every event of one poll before the next poll."""
        stream = self._streaming()
        yield from self._retry_refused()
        received = stream.receive(timeout_s)
        if received is None:
            return
        data, offsets = received.data, received.offsets
        if self._texts is not None:
            data, offsets = to_utf8(data, offsets, self._texts)
        messages: list[LogicalMessage] = []
        resume = self._scanner.resume
        for item in self._scanner.feed(data, offsets):
            if isinstance(item, LogicalMessage) and not is_own_message(item):
                messages.append(item)
                resume = self._scanner.resume
                continue
            if messages:
                yield message_batch(messages, self._not_before_idle(resume))
                messages = []
            if isinstance(item, LogBatch):
                item.resume = self._not_before_idle(item.resume)
                item.behind_s = max(0, received.sent_at - int(item.commit_ts[-1])) / 1e6
                yield from self._check_attributes(item)
                yield item
            elif isinstance(item, RelationSeen):
                yield from self._relation(item)
            elif isinstance(item, WatchedRow):
                yield from self._metadata_tables.read(item)
            elif isinstance(item, LogicalMessage):
                if item.prefix == DDL_PREFIX:
                    yield CatalogueChanged()
                else:
                    yield from self._watermark_seen(item)
        if messages:
            yield message_batch(messages, self._not_before_idle(resume))
        resume = self._scanner.resume
        if self._scanner.in_transaction:
            return
        end = max(received.sent_up_to or 0, resume.acknowledge)
        if end > self._idle_at:
            # Also after transactions without captured changes: the source may remove them.
            self._idle_at = end
            yield IdleAt(replace(resume, acknowledge=end))

    def acknowledge(self, position: int) -> None:
        if self._stream is not None:
            self._stream.acknowledge(position)

    def close(self) -> None:
        self._disconnect()

    def belongs_to(
        self, generation: str, last: Callable[[], LastTransaction | None] = lambda: None
    ) -> None:
        """Set the event log before `start`, so that no other log's slot is used. ``last``: returns
        the log's newest transaction, which is searched if the slot went back.
        """
        self._owner.generation, self._last = generation, last
        self._owner.copy = self._which_copy()

    def start_over(self, missed: Resume) -> Resume:
        """Restart after an accepted gap, with a new slot. Errors as `start`; SourceBusyError while
        the old slot has a reader.
        """
        stream = self._open_stream()
        self._source = identify(stream, missed, self._source or self._expected)
        with translate_errors(f"recreating slot {self._slot!r}"):
            slots.drop_unread_slot(self._get_connection(), self._slot)
        return self.start(None)

    def keepalive(self) -> None:
        """Keep the connection alive while nothing is polled; called by the polling thread."""
        if self._stream is not None:
            self._stream.keepalive()

    def identify(self) -> SourceId:
        """The log's source; connects if necessary."""
        if self._source is None:
            with closing(ReplicationStream(self._dsn, purpose=self._slot)) as stream:
                found = stream.identify()
            self._reported_source = SourceId(
                "postgres", found.system, found.database, found.timeline
            )
            return self._reported_source
        return self._source

    def check_publications(
        self, connection: psycopg.Connection[tuple[Any, ...]], reached: int | None = None
    ) -> None:
        """Check that the publications are those through which the event log was read up to
        ``reached`` (None: up to the slot's position).

        Raises GapError. May be called from any thread.
        """
        if reached is None:
            state = slots.find_slot(connection, self._slot)
            reached = 0 if state is None else state.confirmed
        self._owner.check_publications(connection, self._publications.names, reached)

    # ------------------------------------------------------------------ start

    def _prepare_slot(
        self, sql: psycopg.Connection[tuple[Any, ...]], resume: Resume | None
    ) -> Resume:
        state = slots.find_slot(sql, self._slot)
        if state is None and resume is not None:
            raise slots.missing_slot(self._slot, resume, self._promoted)
        if state is not None:
            # All checks come before the slot is taken from a reader.
            slots.check_slot(state, self._slot, sql.info.dbname)
            if resume is not None:
                # First: a copy of the log that has fallen behind must not learn how to accept the
                # gap.
                self._owner.require(reader_of(sql, self._slot))
                slots.check_position(state, self._slot, resume)
                self.check_publications(sql, resume.acknowledge)
            elif not self._owner.claimed:
                raise self._owner.refuse_new(reader_of(sql, self._slot))
            slots.take_over(sql, self._slot, self._owner)
            if resume is None and not self._publications.exist(sql):
                slots.drop_unread_slot(sql, self._slot)  # its first changes can't be decoded
            state = slots.find_slot(sql, self._slot)
            if state is None and resume is not None:
                raise slots.missing_slot(self._slot, resume, self._promoted)
        # Before the slot: a publication must be older than the first decoded change. All tables of
        # a new event log are dumped at first: newly published ones need no report.
        self._publications.sync(sql, strict=resume is None, report=resume is None)
        if state is None:
            self._owner.claim()

            def open_connection() -> psycopg.Connection[tuple[Any, ...]]:
                return connect(self.dsn, purpose="capture")

            begin = Resume(slots.create_slot(sql, self._slot, open_connection), 0, -1)
            failpoints.hit("slot.created")
        elif resume is None:
            begin = Resume(state.confirmed, 0, -1)
        else:
            slots.check_position(state, self._slot, resume)
            if state.confirmed < max(resume.acknowledge, resume.position):
                self._check_history(state.confirmed, resume)
            begin = resume
        self._owner.note_publications(sql, self._publications.names)
        return begin

    def _check_history(self, confirmed: int, resume: Resume) -> None:
        stream = self._stream_from(self.dsn)
        try:
            names = self._publications.names
            check_history(stream, self._slot, names, confirmed, resume, self._last())
        finally:
            stream.close()

    # ------------------------------------------------------------------ stream

    def _relation(self, seen: RelationSeen) -> Iterator[LogEvent]:
        table = TableName(seen.namespace, seen.name)
        if self._metadata_tables.bind(seen):
            self._scanner.bind(seen.relation_id, 0, watch=True)
            return
        own = table.namespace == self._publications.watermark.namespace
        captured = not own and matches(self._tables, table) and not self._root_is_excluded(seen)
        yield RelationNamed(seen.relation_id, table, captured, self._scanner.xid)
        if not captured:
            self._scanner.bind(seen.relation_id, 0)
            return
        bound = self._bound.get(seen.relation_id)
        previous = bound or self._registry.latest(table)
        self._composites.pop(seen.relation_id, None)
        try:
            schema, composites = retry_while_locked(
                f"looking up {table}",
                lambda: self._look_up(seen),
                between_attempts=self.keepalive,
            )
        except SourceError as error:
            if error.policy is not Policy.STOP:
                raise
            self._scanner.bind(seen.relation_id, 0)
            self._refused[seen.relation_id] = seen
            refusal = UnsupportedReason(str(error))
            if isinstance(error, UnsupportedTableError):
                refusal = UnsupportedReason(error.reason, error.remedy)
            yield UnsupportedTableSeen(table, refusal)
            return
        schema = self._registry.register(schema)
        self._bound[seen.relation_id] = schema
        if composites is not None:
            self._composites[seen.relation_id] = composites
        excluded = [each.place for each in schema.excluded]
        self._scanner.bind(seen.relation_id, schema.schema_id, excluded=excluded)
        if bound is None or bound.schema_id != schema.schema_id or bound.table != table:
            yield SchemaSeen(schema, previous)
            if bound is not None:
                yield CatalogueChanged()  # e.g. without its key, updates fail until a check
        if self._refused.pop(seen.relation_id, None) is not None:
            yield RowsUnlogged(table, "its changes could not be captured for a while")

    def _look_up(self, seen: RelationSeen) -> tuple[TableSchema, _Composites | None]:
        """The relation's schema, and the composites whose attributes are in it, if there are."""
        connection = self._get_connection()
        types = [type_oid for _, _, type_oid, _ in seen.columns if type_oid >= FIRST_USER_OID]
        # Before the schema: if they are altered in between, the next check finds it.
        found = composites_of(connection, types) if types else ([], "")
        schema = self._finder.schema_of_relation(connection, seen)
        return schema, _Composites(seen, *found) if composite_types(schema) else None

    def _check_attributes(self, batch: LogBatch) -> Iterator[LogEvent]:
        """Give the batch's rows a new schema version if attributes of composites were altered.

        The log does not show ALTER TYPE, and the text of a composite has no names. What the
        catalogue shows now is not older than these rows: the server opens the type to write its
        text, and can't until whoever altered it is visible. A type that is gone keeps its
        attributes: so is the column.
        """
        for relation_id, found in list(self._composites.items()):
            rows = batch.schema_id == self._bound[relation_id].schema_id
            if not rows.any():
                continue
            with translate_errors("looking up composite types"):
                version = attributes_version(self._get_connection(), found.relations)
            if version not in ("", found.version):
                yield from self._relation(found.seen)
                batch.schema_id[rows] = self._bound[relation_id].schema_id

    def _root_is_excluded(self, seen: RelationSeen) -> bool:
        """Does source.tables exclude a table of which this is a partition? Partitions are seen only
        in a publication of others that does not publish them as their root.
        """
        if not any(pattern.startswith(EXCLUDE) for pattern in self._tables):
            return False
        table = TableName(seen.namespace, seen.name)
        above = retry_while_locked(
            f"looking up {table}",
            lambda: tables_above(self._get_connection(), [seen.relation_id]).get(
                seen.relation_id, []
            ),
            between_attempts=self.keepalive,
        )
        if above or self._registry.latest(table) is not None:  # captured when it was there
            return any(excludes(self._tables, each) for each in above)
        hidden = retry_while_locked(
            f"looking up {table}",
            lambda: may_have_been_partition(
                self._get_connection(), seen.relation_id, self._publications.names
            ),
            between_attempts=self.keepalive,
        )
        if hidden:
            logger.warning(
                "%s is gone, and may have been a partition of an excluded table: its changes are "
                "left out",
                table,
            )
        return hidden

    def _retry_refused(self) -> Iterator[LogEvent]:
        """Retry tables whose rows are left out: the log announces each only once."""
        if not self._refused or time.monotonic() - self._retried_at < RETRY_REFUSED_S:
            return
        self._retried_at = time.monotonic()
        for seen in list(self._refused.values()):
            yield from self._relation(seen)

    def _watermark_seen(self, item: LogicalMessage) -> Iterator[LogEvent]:
        watermark = watermark_of(item) if self._publications.strategy == "message" else None
        if watermark is not None:
            yield WatermarkSeen(watermark, item.position, item.ordinal)

    def _not_before_idle(self, resume: Resume) -> Resume:
        """The resume position, not before that reported as idle, which may be acknowledged."""
        if resume.acknowledge >= self._idle_at:
            return resume
        return replace(resume, acknowledge=self._idle_at)

    # ------------------------------------------------------------------ connections

    def _streaming(self) -> ReplicationStream:
        if self._stream is None:
            raise ConnectionLostError("the log reader is not started")
        return self._stream

    def _get_connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._sql is None or self._sql.closed or self._sql.broken:
            self._sql = connect(self.dsn, purpose="capture")
        return self._sql

    def _open_stream(self) -> ReplicationStream:
        """Open the first connection: checks REPLICATION first, sets the server of all others."""
        self._disconnect()
        self._stream = self._stream_from(self._dsn)
        self._texts, self.dsn = self._stream.texts, self._stream.dsn
        return self._stream

    def _stream_from(self, dsn: str) -> ReplicationStream:
        return ReplicationStream(dsn, purpose=self._owner.purpose, buffer_bytes=self._buffer_bytes)

    def _disconnect(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._sql is not None:
            self._sql.close()
            self._sql = None
