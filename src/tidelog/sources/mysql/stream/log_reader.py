"""Reads MySQL's and MariaDB's binlog as `LogEvent`s."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from tidelog.codecs.mysql.binlog.events import (
    HEADER_BYTES,
    EventType,
    parse_header,
    parse_rotate,
    without_checksum,
)
from tidelog.codecs.mysql.binlog.items import (
    FormatSeen,
    GtidsSeen,
    QuerySeen,
    RolledBackSeen,
    RowsNoticed,
    Scanned,
    TableMapSeen,
    WatchedBinlogRow,
    XaSeen,
    parse_file_name,
    position_text,
    unpack_position,
)
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
from tidelog.codecs.mysql.flavor import Flavor, version_numbers
from tidelog.codecs.mysql.server_urls import ServerUrl, parse_url
from tidelog.errors import ConfigError, ConnectionLostError, GapError, SourceError
from tidelog.model.records import LogBatch, Resume
from tidelog.ports import IdleAt, LastTransaction, LogEvent, SchemaRegistry, SourceId, StateStore
from tidelog.sources.mysql.catalogue.cascades import CascadeWatch
from tidelog.sources.mysql.catalogue.schemas import MySqlSchemaFinder
from tidelog.sources.mysql.connect import Connection, connect
from tidelog.sources.mysql.errors import translate_errors
from tidelog.sources.mysql.stream.affected_tables import AffectedTables, LogStatements
from tidelog.sources.mysql.stream.failover import (
    check_log,
    file_created,
    file_shift,
    find_resume_position,
    identify,
    log_recreated_error,
)
from tidelog.sources.mysql.stream.gtids import LoggedGtids, SeenGtids
from tidelog.sources.mysql.stream.log_schemas import DdlLookahead, LogSchemas
from tidelog.sources.mysql.stream.log_tables import CapturedTables, LogTables, MySqlMetadataTables
from tidelog.sources.mysql.stream.positions import RESET, LogFiles, log_end, log_files
from tidelog.sources.mysql.stream.prepared_transactions import PreparedGroups, XaRows
from tidelog.sources.mysql.stream.replication import (
    DEFAULT_BUFFER_BYTES,
    BinlogStream,
    ReceivedEvents,
    ReplicaId,
)
from tidelog.sources.mysql.stream.schema_history import SchemaHistory
from tidelog.sources.mysql.stream.temporary_tables import TemporaryTables

# Seconds between comparisons of an idle stream with the log's end.
CHECK_S = 5.0


class StallWatch:
    """Detects a server whose log ends before the stream's position. Used by one thread.

    Args:
        connected: returns an SQL connection.
    """

    def __init__(self, connected: Callable[[], Connection]) -> None:
        self._get_connection = connected
        self._position = -1
        self._checked_at = 0.0

    def check(self, position: int) -> None:
        """Compare the position with the log's end; call it after each poll. Raises
        ConnectionLostError if the server's log ends before the position.
        """
        now = time.monotonic()
        if position != self._position:
            self._position, self._checked_at = position, now
            return
        if now - self._checked_at < CHECK_S:
            return
        self._checked_at = now
        with translate_errors("reading the binlog's end"):
            end = log_end(self._get_connection()).position
        if end < position:
            raise ConnectionLostError(
                f"the binlog ends at {position_text(end)}, but was read up to "
                f"{position_text(position)}: it was reset ({RESET}), or the server is another one"
            )


MOST_TABLES = 16_384
"""Maximum number of table maps kept; a table has one for each time that the server opened it."""


class MySqlLogReader:
    """Streams one server's changes. Used by one thread.

    Args:
        url: the server; the user needs REPLICATION SLAVE, REPLICATION CLIENT, and SELECT on the
            captured tables.
        registry: numbers the schemas that the log shows.
        kind: the flavor that the server must have; None: any.
        tables: patterns of the tables to capture.
        watermark_schema: database of the watermark table; never captured.
        signal_table: ``database.name`` of the table whose inserted rows are commands.
        finder: finds schemas, of all columns by default; the same one for all of a source.
        expected: the source that the event log was captured from, if there is one.
        server_id: Tidelog's id as a replica; None: derived from the URL, ``name`` and the event
            log.
        name: distinguishes captures of one source, e.g. the event log's path.
        state: the store of schema notes (`SchemaHistory`); None: memory.
        seen: receives the positions of GTIDs.
        logged: the same, for resume positions of the event log.
        watch_cascades: report tables whose rows foreign keys change without a trace in the log.
        buffer_bytes: most bytes that one `poll` takes (except a larger single event).
    """

    def __init__(
        self,
        url: str | ServerUrl,
        registry: SchemaRegistry,
        *,
        kind: Flavor | None = None,
        tables: Sequence[str] = ("*.*",),
        watermark_schema: str = "tidelog",
        signal_table: str | None = None,
        finder: MySqlSchemaFinder | None = None,
        expected: SourceId | None = None,
        server_id: int | None = None,
        name: str = "",
        state: StateStore | None = None,
        seen: SeenGtids | None = None,
        logged: LoggedGtids | None = None,
        watch_cascades: bool = True,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
    ) -> None:
        self._url = parse_url(url) if isinstance(url, str) else url
        self._registry = registry
        self._kind = kind
        self._metadata_tables = MySqlMetadataTables(watermark_schema, signal_table)
        self._captured = CapturedTables(tables, self._metadata_tables)
        self._finder = finder or MySqlSchemaFinder()
        self._expected = expected
        self._server_id = server_id
        self._name = f"{self._url.where} {name}"
        self._replica = ReplicaId.derived(self._name, server_id)
        self._history = SchemaHistory(state, registry)
        self._temporary = TemporaryTables(state)
        self._seen = seen or SeenGtids()
        self._logged = logged or LoggedGtids()
        self._buffer_bytes = buffer_bytes
        self._sql: Connection | None = None
        self._stream: BinlogStream | None = None
        self._flavor = kind or Flavor.MYSQL
        self._scanner: BinlogScanner | None = None
        self._cascades: CascadeWatch | None = None
        if watch_cascades:
            self._cascades = CascadeWatch(self._get_connection, self._captured.__contains__)
        self._stalls = StallWatch(self._get_connection)
        self._tables = LogTables(
            self._captured, self._metadata_tables, registry, self._history, self._cascades
        )
        self._prepared = PreparedGroups()
        self._statements = LogStatements(
            self._captured,
            self._tables,
            registry,
            self._history,
            self._temporary,
            self._cascades,
            AffectedTables(
                self._url, self._get_connection, self._captured, cascades=watch_cascades
            ),
            self._prepared,
        )
        self._xa = XaRows(
            self._url, self._get_connection, self._events, self._captured, self._prepared
        )
        self._idle_at = 0  # the furthest position that may be acknowledged
        self._reported_to = 0
        self._number = 0
        self._source: SourceId | None = None

    # ------------------------------------------------------------------ port

    def start(self, resume: Resume | None) -> Resume:
        """Check the source and stream from ``resume`` (None: from the log's end).

        On another server than before, the position after the same transactions is found by their
        GTIDs.

        Raises:
            ConfigError, PreflightError: the set-up is wrong; the message says how to fix it.
            SourceChangedError: the server's log was reset, or transactions of the event log are
                missing.
            GapError: the binlog no longer has all changes after ``resume``.
            ConnectionLostError: trying again may help.
        """
        return self._start(resume, None)

    def _start(self, resume: Resume | None, missed: Resume | None) -> Resume:
        """``missed``: the position before a gap after which the log restarts at its end."""
        self._disconnect()
        sql = self._get_connection()
        before = self._source or self._expected
        with translate_errors("starting to read the binlog"):
            self._flavor = self._temporary.flavor = sql.flavor
            self._check_kind(sql)
            self._captured.set_fold(bool(sql.value("SELECT @@lower_case_table_names")))
            source = identify(sql, before)
            moved = before is not None and before.member != source.member
            self._url.pin.shift = 0 if moved else source.timeline
            last = (resume if moved else None) or missed
            if last is not None and (moved or log_end(sql).position <= last.acknowledge):
                self._url.pin.shift = 0  # so that the files have the server's own numbers
                self._url.pin.shift = file_shift(log_files(sql), last)
            files = log_files(sql)
            end = log_end(sql).position
            settled = self._all_logged_visible(sql)
        if moved and resume is not None:
            assert before is not None
            resume = find_resume_position(sql, self._url, files, end, resume, before, source)
        source = replace(source, timeline=self._url.pin.shift)
        begin = Resume(end, 0, -1) if resume is None else resume
        check_log(files, resume, end)
        begin = self._logged.start(sql, self._url, files, begin)
        self._url.pin.server = sql.server
        stream = BinlogStream(
            self._url, self._replica, purpose="capture", buffer_bytes=self._buffer_bytes
        )
        self._stream = stream
        at = self._stream_from(files, begin)
        self._check_file(files, unpack_position(at)[0], fresh=resume is None)
        number, offset = unpack_position(at)
        stream.start(files.name(number), offset)
        self._source = source
        schemas = LogSchemas(
            self._finder,
            self._registry,
            self._history,
            self._get_connection,
            DdlLookahead(self._url, fold=self._captured.fold, temporary=self._temporary),
        )
        self._scanner = BinlogScanner(
            self._flavor,
            begin,
            checksum=stream.checksum,
            file_number=number,
            offset=offset,
            shift=files.shift,
        )
        self._number = number
        self._tables.start(self._scanner, schemas)
        self._statements.start()
        self._xa.start(self._flavor, files)
        if self._cascades is not None:
            self._cascades.read()
        if resume is None:
            schemas.note_all(self._captured.__contains__, begin.acknowledge)
        self._seen.start(at, settled=settled and resume is None)
        self._idle_at = self._reported_to = begin.acknowledge
        return begin

    def poll(self, timeout_s: float) -> Iterator[LogEvent]:
        """See `tidelog.ports.LogReader`. Take every event of one poll before the next poll."""
        stream, scanner = self._streaming()
        try:
            received = stream.receive(timeout_s)
        except SourceError as error:
            if not isinstance(error, ConnectionLostError):
                self._check_reset(scanner.resume)
            raise
        if received is not None:
            self._note_files(received)
            self._prepared.receive(received)
            yield from self._events(scanner, scanner.feed(received.data, received.offsets))
            self._seen.reach(scanner.position)
            if not scanner.in_transaction and (
                scanner.tables > MOST_TABLES or self._tables.retry_is_due()
            ):
                scanner.forget_tables()
                self._metadata_tables.clear()
        self._stalls.check(scanner.position)
        if not scanner.in_transaction and scanner.position > self._reported_to:
            # Also after transactions without captured changes.
            self._reported_to = scanner.position
            resume = scanner.resume  # before `_reported_to` while an XA transaction is prepared
            self._idle_at = max(self._idle_at, resume.acknowledge)
            self._temporary.save()
            yield IdleAt(resume, self._reported_to)

    def acknowledge(self, position: int) -> None:
        """The server keeps binlogs by time: it is not notified."""
        self._temporary.set_durable(position)

    def close(self) -> None:
        self._disconnect()

    def belongs_to(
        self, generation: str, last: Callable[[], LastTransaction | None] = lambda: None
    ) -> None:
        """Set the event log's generation before `start`. The server closes an existing connection
        with the same ids, so a copied configuration, with its paths, must get other ids.
        """
        del last
        self._replica = ReplicaId.derived(f"{self._name} {generation}", self._server_id)

    def start_over(self, missed: Resume) -> Resume:
        """Restart at the log's end after an accepted gap. Errors as `start`."""
        return self._start(None, missed)

    def keepalive(self) -> None:
        """Does nothing: the server expects no message from a replica; TCP keeps the connection."""

    def identify(self) -> SourceId:
        """The log's source; connects if necessary."""
        if self._source is None:
            sql = self._get_connection()
            with translate_errors("identifying the source"):
                self._check_kind(sql)
                return identify(sql, self._expected)
        return self._source

    @property
    def seen(self) -> SeenGtids:
        """The GTIDs read, for chunk readers of the strategy ``gtid``."""
        return self._seen

    # ------------------------------------------------------------------ start

    def _check_kind(self, sql: Connection) -> None:
        if self._kind is not None and sql.flavor is not self._kind:
            raise ConfigError(
                f"source.kind is {self._kind.value}, but the server is {sql.flavor.value} "
                f"({sql.version_text}): set source.kind: {sql.flavor.value}"
            )

    def _all_logged_visible(self, sql: Connection) -> bool:
        """Return True if every logged transaction is visible. (MySQL; False: not known.)"""
        return self._flavor is Flavor.MYSQL and not sql.value("SELECT @@GLOBAL.gtid_owned")

    def _stream_from(self, files: LogFiles, begin: Resume) -> int:
        """The position where the stream begins. It is the last durable transaction, so that its
        GTID is read again, or an earlier one that is not acknowledged.
        """
        at = begin.acknowledge
        if files.first <= begin.position < at:
            at = begin.position
        return at

    def _check_file(self, files: LogFiles, number: int, *, fresh: bool) -> None:
        """Check that the file is the one read before, not one recreated by RESET MASTER."""
        created = file_created(self._url, files, number)
        if fresh:
            self._history.clear()
            self._temporary.clear()
        known = self._history.created(number)
        if known is not None and known != created:
            raise log_recreated_error(files.name(number))
        self._history.note_file(number, created)

    def _check_reset(self, resume: Resume) -> None:
        """Raise LogResetError if the server's log ends before the stream's position."""
        sql = self._get_connection()
        with translate_errors("reading the binlog's end"):
            files, end = log_files(sql), log_end(sql).position
        with suppress(GapError):  # the stream's error says so, too
            check_log(files, resume, end)

    # ------------------------------------------------------------------ stream

    def _note_files(self, received: ReceivedEvents) -> None:
        """Store the creation time of each file that the stream reaches."""
        starts = received.offsets[:-1]
        types = received.data[starts + 4]
        for index in np.flatnonzero(
            (types == EventType.ROTATE) | (types == EventType.FORMAT_DESCRIPTION)
        ).tolist():
            event = received.data[received.offsets[index] : received.offsets[index + 1]].tobytes()
            if types[index] == EventType.ROTATE:
                name, _ = parse_rotate(without_checksum(event)[HEADER_BYTES:])
                self._number = parse_file_name(name)[1] + self._url.pin.shift
            else:
                header = parse_header(event)
                if not header.artificial:
                    self._history.note_file(self._number, header.timestamp)

    def _events(self, scanner: BinlogScanner, items: Iterator[Scanned]) -> Iterator[LogEvent]:
        for item in items:
            if isinstance(item, LogBatch):
                self._temporary.save()
                yield from self._tables.split_keyless(item)
            elif isinstance(item, TableMapSeen):
                yield from self._tables.bind(scanner, item)
            elif isinstance(item, GtidsSeen):
                self._seen.publish(item)
                self._logged.publish(item)
            elif isinstance(item, WatchedBinlogRow):
                yield from self._metadata_tables.read(item)
            elif isinstance(item, QuerySeen):
                yield from self._statements.read(scanner, item)
            elif isinstance(item, XaSeen):
                yield from self._xa.take(scanner, item, self._idle_at)
            elif isinstance(item, RowsNoticed):
                assert self._cascades is not None
                yield from self._cascades.rows(item)
            elif isinstance(item, RolledBackSeen):
                yield from self._statements.report_rollback(item)
            elif isinstance(item, FormatSeen):
                self._xa.version = version_numbers(item.server_version)
                if item.server_start:
                    self._metadata_tables.clear()
                    self._temporary.server_started(scanner.position)

    # ------------------------------------------------------------------ connections

    def _streaming(self) -> tuple[BinlogStream, BinlogScanner]:
        if self._stream is None or self._scanner is None:
            raise ConnectionLostError("the log reader is not started")
        return self._stream, self._scanner

    def _get_connection(self) -> Connection:
        if self._sql is None or not self._sql.open:
            self._sql = connect(self._url, purpose="capture-sql", database="", read_timeout_s=60)
        return self._sql

    def _disconnect(self) -> None:
        self._url.pin.server = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._sql is not None:
            self._sql.abandon()
            self._sql = None
        self._scanner = None
