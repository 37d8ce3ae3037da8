"""The log reader: MySQL's and MariaDB's binlog as `LogEvent`s."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.binlog.events.files import parse_rotate
from tidelog.codecs.mysql.binlog.events.header import (
    HEADER_BYTES,
    EventType,
    parse_header,
    without_checksum,
)
from tidelog.codecs.mysql.binlog.items import (
    Alter,
    AsOf,
    BinlogRowOf,
    FormatSeen,
    GtidsSeen,
    QuerySeen,
    RolledBackSeen,
    RowsNoticed,
    TableMapSeen,
    XaSeen,
    XaState,
)
from tidelog.codecs.mysql.binlog.position import file_number, text, unpack
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner, Scanned
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.errors import (
    ConfigError,
    ConnectionLostError,
    SourceError,
    TableRefusedError,
)
from tidelog.model.mysql_urls import parse_url
from tidelog.model.patterns import matches
from tidelog.model.records import LogBatch, Resume
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import (
    IdleAt,
    LastTransaction,
    LogEvent,
    Refusal,
    RowsUnlogged,
    SchemaRegistry,
    SchemaSeen,
    SourceId,
    StateStore,
    TableRefused,
)
from tidelog.sources.mysql.catalogue.cascade_watch import CascadeWatch
from tidelog.sources.mysql.catalogue.schemas import MySqlSchemaFinder
from tidelog.sources.mysql.connect import Connection, connect
from tidelog.sources.mysql.failures import translated
from tidelog.sources.mysql.identity import check_log, file_created, identify, source_log
from tidelog.sources.mysql.stream.ddl.effects import Effect, Statement, TableEffect
from tidelog.sources.mysql.stream.ddl.statements import read_statement
from tidelog.sources.mysql.stream.ddl.temporary import StatementPosition, TemporaryTables
from tidelog.sources.mysql.stream.gtids import SeenGtids
from tidelog.sources.mysql.stream.log_parts import LogPart, read_part
from tidelog.sources.mysql.stream.metadata_tables import MySqlMetadataTables
from tidelog.sources.mysql.stream.positions import LogFiles, log_end, log_files
from tidelog.sources.mysql.stream.replication.replica import ReplicaId
from tidelog.sources.mysql.stream.replication.stream import (
    DEFAULT_BUFFER_BYTES,
    BinlogStream,
    ReceivedEvents,
)
from tidelog.sources.mysql.stream.schemas.ahead import DdlAhead
from tidelog.sources.mysql.stream.schemas.history import SchemaHistory
from tidelog.sources.mysql.stream.schemas.log_schemas import LogSchemas
from tidelog.sources.mysql.stream.stalls import StallWatch
from tidelog.sources.mysql.stream.xa import Group, PreparedGroups, XaEvents, find_prepared

logger = logging.getLogger(__name__)

MOST_TABLES = 16_384
"""So many table maps are kept; a table has one for each time that the server opened it."""

RETRY_REFUSED_S = 5.0
TEMPORARY_OR_NOT = (
    "the binlog holds statements of this name that use temporary tables: whether they changed this "
    "table can't be known, so it is dumped"
)
ROW_FORMAT = "SET GLOBAL binlog_format = 'ROW'; -- sessions that are open keep theirs"
SYSTEM_DATABASES = ("mysql", "sys", "information_schema", "performance_schema")


class MySqlLogReader:
    """Streams one server's changes. Used by one thread.

    Args:
        url: of the server; the user needs REPLICATION SLAVE, REPLICATION CLIENT, and SELECT on the
            captured tables.
        registry: numbers the schemas that the log shows.
        kind: which flavour the server must be of; None: any.
        tables: patterns of the tables to capture.
        watermark_schema: database of the watermark table; never captured.
        signal_table: ``database.name`` of the table whose inserted rows are commands.
        keys: surrogate keys by table pattern.
        expected: the source that the event log was captured from, if there is one.
        server_id: ours, as a replica; None: follows from the URL, ``name`` and the event log.
        name: tells captures of one source apart, e.g. the event log's path.
        state: keeps what is known of schemas (`SchemaHistory`); None: memory.
        seen: told which GTIDs stand where.
        watch_cascades: tell of tables whose rows foreign keys change without a trace in the log.
        buffer_bytes: how much one `poll` takes at most (a larger single event apart).
    """

    def __init__(
        self,
        url: str,
        registry: SchemaRegistry,
        *,
        kind: Flavor | None = None,
        tables: Sequence[str] = ("*.*",),
        watermark_schema: str = "tidelog",
        signal_table: str | None = None,
        keys: Mapping[str, Sequence[str]] | None = None,
        expected: SourceId | None = None,
        server_id: int | None = None,
        name: str = "",
        state: StateStore | None = None,
        seen: SeenGtids | None = None,
        watch_cascades: bool = True,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
    ) -> None:
        self._url = parse_url(url)
        self._registry = registry
        self._kind = kind
        self._tables = tuple(tables)
        self._metadata_tables = MySqlMetadataTables(watermark_schema, signal_table)
        self._finder = MySqlSchemaFinder(keys)
        self._expected = expected
        self._server_id = server_id
        self._name = f"{self._url.where} {name}"
        self._replica = ReplicaId.derived(self._name, server_id)
        self._history = SchemaHistory(state)
        self._temporary = TemporaryTables(state)
        self._seen = seen or SeenGtids()
        self._buffer_bytes = buffer_bytes
        self._sql: Connection | None = None
        self._stream: BinlogStream | None = None
        self._flavor = kind or Flavor.MYSQL
        self._scanner: BinlogScanner | None = None
        self._schemas: LogSchemas | None = None
        self._cascades: CascadeWatch | None = None
        if watch_cascades:
            self._cascades = CascadeWatch(self._connected, self._captures)
        self._stalls = StallWatch(self._connected)
        self._files: LogFiles | None = None
        self._prepared = PreparedGroups()
        self._current: dict[TableName, TableSchema] = {}
        self._refused: set[TableName] = set()
        self._retried_at = 0.0
        self._fold = False
        self._idle_at = 0  # the furthest that may be acknowledged
        self._told = 0
        self._number = 0
        self._source: SourceId | None = None

    # ------------------------------------------------------------------ port

    def start(self, resume: Resume | None) -> Resume:
        """Check the source and stream from after ``resume`` (None: from the log's end).

        Raises:
            ConfigError, PreflightError: the set-up is wrong; the message holds what mends it.
            SourceChangedError: another server than the event log's, or its log began anew.
            GapError: the binlog no longer has all changes after ``resume``.
            ConnectionLostError: trying again may help.
        """
        self._disconnect()
        sql = self._connected()
        with translated("starting to read the binlog"):
            self._flavor = self._temporary.flavor = sql.flavor
            self._check_kind(sql)
            self._fold_names(bool(sql.value("SELECT @@lower_case_table_names")))
            source = identify(sql)
            files = log_files(sql)
            end = log_end(sql).position
            settled = self._none_between_log_and_view(sql)
        begin = Resume(end, 0, -1) if resume is None else resume
        check_log(sql, source, self._expected or self._source, files, resume, end)
        stream = BinlogStream(
            self._url, self._replica, purpose="capture", buffer_bytes=self._buffer_bytes
        )
        self._stream = stream
        at = self._stream_from(files, begin)
        self._check_file(files, unpack(at)[0], fresh=resume is None)
        number, offset = unpack(at)
        stream.start(files.name(number), offset)
        self._source, self._files = source, files
        self._schemas = LogSchemas(
            self._finder,
            self._registry,
            self._history,
            self._connected,
            DdlAhead(self._url, fold=self._fold, temporary=self._temporary),
        )
        self._scanner = BinlogScanner(
            self._flavor,
            begin,
            checksum=stream.checksum,
            file_number=number,
            offset=offset,
        )
        self._number = number
        self._prepared.clear()
        self._metadata_tables.clear()
        self._current.clear()
        if self._cascades is not None:
            self._cascades.read()
        if resume is None:
            self._schemas.note_all(self._captures, begin.acknowledge)
        self._seen.start(at, settled=settled and resume is None)
        self._idle_at = self._told = begin.acknowledge
        return begin

    def poll(self, timeout_s: float) -> Iterator[LogEvent]:
        """See `tidelog.ports.LogReader`. Take every event of one poll before the next poll."""
        stream, scanner = self._streaming()
        received = stream.receive(timeout_s)
        if received is not None:
            self._note_files(received)
            self._prepared.receive(received)
            yield from self._events(scanner, scanner.feed(received.data, received.offsets))
            self._seen.reach(scanner.position)
            if not scanner.in_transaction and (
                scanner.tables > MOST_TABLES or self._refused_are_due()
            ):
                scanner.forget_tables()
                self._metadata_tables.clear()
        self._stalls.check(scanner.position)
        if not scanner.in_transaction and scanner.position > self._told:
            # Also after transactions that held nothing for us.
            self._told = scanner.position
            resume = scanner.resume  # before `_told` while an XA transaction is prepared
            self._idle_at = max(self._idle_at, resume.acknowledge)
            self._temporary.save()
            yield IdleAt(resume, self._told)

    def acknowledge(self, position: int) -> None:
        """The server keeps binlogs by time, not for us: nothing is told."""
        self._temporary.durable_to(position)

    def close(self) -> None:
        self._disconnect()

    def belongs_to(
        self, generation: str, last: Callable[[], LastTransaction | None] = lambda: None
    ) -> None:
        """Which event log it reads for. Before `start`: the server ends what has our ids, so those
        of a configuration that was copied, with its paths, must not be the same.
        """
        del last
        self._replica = ReplicaId.derived(f"{self._name} {generation}", self._server_id)

    def start_over(self) -> Resume:
        """Begin anew at the log's end, behind a gap that was consented to. Errors as `start`."""
        self._expected = self._source = None
        return self.start(None)

    def keepalive(self) -> None:
        """The server expects no word from a replica; the connection is kept by TCP."""

    def identify(self) -> SourceId:
        """Which log this is; connects if need be."""
        if self._source is None:
            sql = self._connected()
            with translated("asking who the source is"):
                self._check_kind(sql)
                return identify(sql)
        return self._source

    @property
    def seen(self) -> SeenGtids:
        """For chunk readers of the strategy ``gtid``."""
        return self._seen

    # ------------------------------------------------------------------ start

    def _check_kind(self, sql: Connection) -> None:
        if self._kind is not None and sql.flavor is not self._kind:
            raise ConfigError(
                f"source.kind is {self._kind.value}, but the server is {sql.flavor.value} "
                f"({sql.version_text}): set source.kind: {sql.flavor.value}"
            )

    def _fold_names(self, fold: bool) -> None:
        """The server takes names in any case, and logs them in lower case: so are ours."""
        self._fold = fold
        if fold:
            self._tables = tuple(pattern.lower() for pattern in self._tables)
            self._metadata_tables.fold()

    def _none_between_log_and_view(self, sql: Connection) -> bool:
        """Is every transaction that the log holds visible? (MySQL; False: not known.)"""
        return self._flavor is Flavor.MYSQL and not sql.value("SELECT @@GLOBAL.gtid_owned")

    def _stream_from(self, files: LogFiles, begin: Resume) -> int:
        """Where the stream begins: at the last durable transaction, so that its GTID is seen again,
        or before, at what is not acknowledged.
        """
        at = begin.acknowledge
        if files.first <= begin.position < at:
            at = begin.position
        return at

    def _check_file(self, files: LogFiles, number: int, *, fresh: bool) -> None:
        """Is it the very file that we read before, not one that RESET MASTER began anew?"""
        created = file_created(self._url, files, number)
        if fresh:
            self._history.clear()
            self._temporary.clear()
        known = self._history.created(number)
        if known is not None and known != created:
            raise source_log(files.name(number))
        self._history.note_file(number, created)

    # ------------------------------------------------------------------ stream

    def _note_files(self, received: ReceivedEvents) -> None:
        """Note when each file was made that the stream comes to."""
        starts = received.offsets[:-1]
        types = received.data[starts + 4]
        for index in np.flatnonzero(
            (types == EventType.ROTATE) | (types == EventType.FORMAT_DESCRIPTION)
        ).tolist():
            event = received.data[received.offsets[index] : received.offsets[index + 1]].tobytes()
            if types[index] == EventType.ROTATE:
                name, _ = parse_rotate(without_checksum(event)[HEADER_BYTES:])
                self._number = file_number(name)[1]
            else:
                header = parse_header(event)
                if not header.artificial:
                    self._history.note_file(self._number, header.timestamp)

    def _events(self, scanner: BinlogScanner, items: Iterator[Scanned]) -> Iterator[LogEvent]:
        for item in items:
            if isinstance(item, LogBatch):
                self._temporary.save()
                yield item
            elif isinstance(item, TableMapSeen):
                yield from self._table(scanner, item)
            elif isinstance(item, GtidsSeen):
                self._seen.publish(item)
            elif isinstance(item, BinlogRowOf):
                yield from self._metadata_tables.read(item)
            elif isinstance(item, QuerySeen):
                yield from self._statement(scanner, item)
            elif isinstance(item, XaSeen):
                yield from self._xa(scanner, item)
            elif isinstance(item, RowsNoticed):
                assert self._cascades is not None
                yield from self._cascades.rows(item)
            elif isinstance(item, RolledBackSeen):
                yield from self._rolled_back(item)
            elif isinstance(item, FormatSeen) and item.server_start:
                self._metadata_tables.clear()
                self._temporary.server_started(scanner.position)

    def _table(self, scanner: BinlogScanner, seen: TableMapSeen) -> Iterator[LogEvent]:
        table = TableName(seen.database, seen.table)
        if self._metadata_tables.watches(table):
            names = None
            if table == self._metadata_tables.signals:
                names = self._signal_columns(seen)
            self._metadata_tables.bind(seen, names)
            scanner.bind(seen.table_id, 0, watch=True)
            return
        assert self._schemas is not None
        if not self._captures(table) or self._schemas.is_sequence(
            seen, min(seen.position, scanner.resume.acknowledge)
        ):
            scanner.bind(seen.table_id, 0)
            if self._cascades is not None:
                self._cascades.bind(scanner, seen, None)
            return
        try:
            schema = self._schema_at(seen)
        except TableRefusedError as error:
            scanner.bind(seen.table_id, 0)
            if self._cascades is not None:
                self._cascades.bind(scanner, seen, None)
            self._refused.add(table)
            yield TableRefused(table, Refusal(error.reason, error.remedy))
            return
        previous = self._current.get(table)
        digits = enumerate(map(types.old_digits, schema.columns))
        scanner.bind(
            seen.table_id, schema.schema_id, old_digits={i: count for i, count in digits if count}
        )
        if self._cascades is not None:
            self._cascades.bind(scanner, seen, schema)
        if previous is None or previous.schema_id != schema.schema_id:
            self._current[table] = schema
            yield SchemaSeen(schema, previous or self._before(schema))
        if table in self._refused:
            self._refused.remove(table)
            reason = "its changes could not be captured for a while"
            yield RowsUnlogged(table, reason, seen.position)

    def _refused_are_due(self) -> bool:
        """Is it time to ask anew for tables whose rows are left out?"""
        if not self._refused or time.monotonic() - self._retried_at < RETRY_REFUSED_S:
            return False
        self._retried_at = time.monotonic()
        return True

    def _signal_columns(self, seen: TableMapSeen) -> Sequence[str] | None:
        """None: they are not known any more, and what the rows say neither."""
        try:
            return self._schema_at(seen).column_names
        except SourceError as error:
            # Else the server is away, or the like.
            if type(error) not in (SourceError, TableRefusedError):
                raise
            logger.warning("signals are passed over: %s", error)
            return None

    def _schema_at(self, seen: TableMapSeen) -> TableSchema:
        schemas, scanner = self._schemas, self._scanner
        assert schemas is not None
        assert scanner is not None
        return schemas.at(seen, min(seen.position, scanner.resume.acknowledge))

    def _before(self, schema: TableSchema) -> TableSchema | None:
        """The version that the table had when capture last knew it."""
        before = self._history.last_before(schema.table, schema.schema_id)
        if before is not None:
            return self._registry.get(before)
        return self._registry.latest(schema.table)

    def _statement(self, scanner: BinlogScanner, seen: QuerySeen) -> Iterator[LogEvent]:
        if seen.alter in (Alter.START, Alter.ROLLBACK):
            return  # nothing has come of it yet, or nothing will
        statement = read_statement(seen.sql, seen.database, fold=self._fold, sql_mode=seen.sql_mode)
        place = StatementPosition(
            seen.server_id, seen.thread, seen.end, seen.uses_temporary, seen.keyword
        )
        statement = self._temporary.without(statement, place)
        assert self._schemas is not None
        self._schemas.changed(statement, seen.end)
        if seen.changes_rows and not seen.durable:
            yield from self._refuse_statement(seen, statement)
        if self._cascades is not None:
            yield from self._cascades.statement(scanner, statement, seen)
        if statement.database is not None:
            self._history.dropped(statement.database, seen.position)
        for effect in statement.effects:
            table = effect.table
            if not self._captures(table):
                continue
            if effect.effect is Effect.TRUNCATED:
                schema = self._schemas.of_statement(table)
                batch = None if schema is None else scanner.truncate(schema.schema_id)
                if batch is not None and schema is not None:
                    self._temporary.save()
                    if self._current.get(table) is None:
                        yield SchemaSeen(schema, schema)
                    yield batch
                continue
            reason = self._unlogged(effect, seen.position)
            if reason is not None and not seen.durable:
                yield RowsUnlogged(table, reason, seen.position)

    def _unlogged(self, effect: TableEffect, position: int) -> str | None:
        """Why the table's rows may have changed without row events."""
        table, kind = effect.table, effect.effect
        if kind in (Effect.DROPPED, Effect.RENAMED_AWAY):
            self._history.dropped(table, position)
            return None
        created = kind in (Effect.CREATED, Effect.CREATED_IF_MISSING)
        again = False
        if created or kind in (Effect.REPLACED, Effect.RENAMED_HERE):
            again = self._history.made(table, position)
        if created:
            known = kind is Effect.CREATED and self._registry.latest(table) is not None
            return "the table was dropped and made anew" if again or known else effect.unlogged
        if effect.unlogged is None and self._had(table, effect.added):
            return "a column was dropped and added again"
        return effect.unlogged

    def _had(self, table: TableName, columns: Sequence[str]) -> bool:
        """Did any version of the table have one of these columns?

        Also one that a chunk has met by now, ahead of the log: what only chunks have shown counts,
        so a dump too many is due where one reads a column before the log adds it.
        """
        if not columns:
            return False
        wanted = {name.lower() for name in columns}
        return any(
            name.lower() in wanted
            for version in self._registry.versions(table)
            for name in version.column_names
        )

    def _refuse_statement(self, seen: QuerySeen, statement: Statement) -> Iterator[LogEvent]:
        """A statement changed rows and the log holds the statement alone."""
        tables = [e.table for e in statement.effects if e.effect is Effect.WRITTEN]
        captured = [table for table in tables if self._captures(table)]
        databases = set(seen.databases or (seen.database,))
        if not captured and (not statement.unclear or databases <= set(SYSTEM_DATABASES)):
            return
        if captured and seen.uses_temporary:
            # Maybe of a temporary table of that name, made before the log was read: told in the
            # same words each time, and made good by a dump.
            for table in captured:
                yield TableRefused(table, Refusal(TEMPORARY_OR_NOT, ROW_FORMAT))
            return
        what = ", ".join(map(str, captured)) or f"a table (of {', '.join(sorted(databases))})"
        raise SourceError(
            f"at {text(seen.position)} of the binlog stands a {seen.keyword} of {what} as a "
            "statement, not as rows: SET GLOBAL binlog_format = ROW (in the server's configuration "
            "as well; sessions that are open keep theirs), then begin a new event log behind it, "
            "which dumps the tables again"
        )

    def _rolled_back(self, seen: RolledBackSeen) -> Iterator[LogEvent]:
        if seen.durable:
            return
        for database, name in seen.tables:
            table = TableName(database, name)
            if self._captures(table):
                yield RowsUnlogged(
                    table,
                    "a transaction was rolled back that the log holds rows of",
                    seen.position,
                )

    def _captures(self, table: TableName) -> bool:
        return (
            table.namespace != self._metadata_tables.namespace
            and table.namespace not in SYSTEM_DATABASES
            and table != self._metadata_tables.signals
            and matches(self._tables, table)
        )

    # ------------------------------------------------------------------ XA

    def _xa(self, scanner: BinlogScanner, seen: XaSeen) -> Iterator[LogEvent]:
        group = self._prepared.take(seen, checksum=scanner.checksum)
        if seen.state not in (XaState.COMMITTED, XaState.ONE_PHASE) or seen.durable:
            return
        known = group is not None
        if group is None:
            with translated("reading an XA transaction"):
                self._files = log_files(self._connected())
            group = find_prepared(self._url, self._files, seen)
        yield from self._committed(scanner, seen, group, known=known)

    def _committed(
        self, scanner: BinlogScanner, seen: XaSeen, group: Group, *, known: bool
    ) -> Iterator[LogEvent]:
        """The rows of a prepared group as records of the group that committed it."""
        resume = scanner.resume
        # Until all rows are durable, a restart must find the group again: in the stream, or by
        # looking for it where it was prepared before what is acknowledged already.
        acknowledge = max(self._idle_at, min(resume.acknowledge, group.begin))
        if not known:
            acknowledge = resume.acknowledge
        held = Resume(acknowledge, resume.position, resume.ordinal)
        number, offset = unpack(group.begin)
        again: BinlogScanner | None = None
        for events in self._events_of(group):
            if again is None:
                again = BinlogScanner(
                    self._flavor,
                    held,
                    checksum=events.checksum,
                    file_number=number,
                    offset=offset,
                    as_of=AsOf(seen.begin, seen.commit_ts),
                )
            yield from self._xa_rows(again, again.feed(events.data, events.offsets))
        if again is None or again.in_transaction:
            raise ConnectionLostError("the server sent a prepared XA transaction incompletely")
        after = again.resume
        scanner.skip_to(after.position, after.ordinal)

    def _events_of(self, group: Group) -> Iterator[XaEvents | LogPart]:
        """Those that were kept, or else read again."""
        if group.events is not None:
            yield group.events
            return
        assert self._files is not None  # of which the names alone matter here
        for _, part in read_part(self._url, self._files, group.begin, group.end):
            yield part

    def _xa_rows(self, again: BinlogScanner, items: Iterator[Scanned]) -> Iterator[LogEvent]:
        for item in items:
            if isinstance(item, LogBatch | TableMapSeen | BinlogRowOf | RowsNoticed):
                yield from self._events(again, iter([item]))

    # ------------------------------------------------------------------ connections

    def _streaming(self) -> tuple[BinlogStream, BinlogScanner]:
        if self._stream is None or self._scanner is None:
            raise ConnectionLostError("the log reader is not started")
        return self._stream, self._scanner

    def _connected(self) -> Connection:
        if self._sql is None or not self._sql.open:
            self._sql = connect(self._url, purpose="capture-sql", database="", read_timeout_s=60)
        return self._sql

    def _disconnect(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._sql is not None:
            self._sql.abandon()
            self._sql = None
        self._scanner = None
