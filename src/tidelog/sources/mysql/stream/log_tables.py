"""Tracks the tables of a stream: how their rows are processed, and their schema versions.

Rows of the metadata tables, watermarks and signals, are meant for Tidelog itself and are never
records. Others may write to these tables too, and change their columns. The log is read again at
every start, so nothing in it may stop capture: a column that is missing, or has an unsupported
type, reads as NULL.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Iterator, Sequence

import numpy as np

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.binlog.items import TableMapSeen, WatchedBinlogRow
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
from tidelog.codecs.mysql.rows.keys import lacks_key
from tidelog.errors import ConfigError, SourceError, UnsupportedTableError
from tidelog.model.patterns import matches, overlap
from tidelog.model.records import LogBatch, RecordKind
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import (
    MAX_SIGNAL_BYTES,
    LogEvent,
    RowsUnlogged,
    SchemaRegistry,
    SchemaSeen,
    SignalSeen,
    UnsupportedReason,
    UnsupportedTableSeen,
    WatermarkSeen,
)
from tidelog.sources.mysql.catalogue.cascades import CascadeWatch
from tidelog.sources.mysql.stream.log_schemas import LogSchemas
from tidelog.sources.mysql.stream.schema_history import SchemaHistory

logger = logging.getLogger(__name__)

# Metadata tables.

WATERMARK_TABLE = "watermark"
WATERMARK_COLUMNS = ("id", "mark")
SIGNAL_COLUMNS = ("id", "type", "data")

_INTEGERS = {types.TINY: 1, types.SHORT: 2, types.INT24: 3, types.LONG: 4, types.LONGLONG: 8}
_BEFORE, _AFTER, _PARTIAL = 1, 2, 4  # bits of a payload's flags
_MAX_WATERMARK_BYTES = 190  # the column's size: Tidelog writes nothing longer
_CUT_BYTES = MAX_SIGNAL_BYTES + 1  # enough to notice that a text is too long


class MySqlMetadataTables:
    """Finds the metadata tables in the stream, and reads their rows.

    Args:
        watermark_schema: the database of the watermark table.
        signal_table: ``database.name`` of the table whose inserted rows are commands.
    """

    def __init__(self, watermark_schema: str, signal_table: str | None) -> None:
        self.namespace = watermark_schema
        self.watermark = TableName(watermark_schema, WATERMARK_TABLE)
        self.signals: TableName | None = None
        if signal_table is not None:
            try:
                self.signals = TableName.parse(signal_table)
            except ValueError as error:
                raise ConfigError(f"source.signal_table: {error}") from None
        self._maps: dict[int, TableMapSeen] = {}
        self._watermarks: set[int] = set()
        self._places: dict[int, list[int | None]] = {}

    def fold(self) -> None:
        """Compare names in lower case, as the server logs them."""
        self.namespace = self.namespace.lower()
        self.watermark = self.watermark.lower_case()
        self.signals = None if self.signals is None else self.signals.lower_case()

    def clear(self) -> None:
        """Forget all table ids: the server starts to number tables again."""
        self._maps.clear()
        self._watermarks.clear()
        self._places.clear()

    def watches(self, table: TableName) -> bool:
        """Return True for a table whose rows `read` needs."""
        return table in (self.watermark, self.signals)

    def bind(self, seen: TableMapSeen, names: Sequence[str] | None) -> None:
        """Prepare for rows of the table. ``names``: its columns, needed for the signal table."""
        table = TableName(seen.database, seen.table)
        self._maps[seen.table_id] = seen
        if table == self.watermark:
            self._watermarks.add(seen.table_id)
            wanted: Sequence[str] = WATERMARK_COLUMNS[1:]
            columns: Sequence[str] = WATERMARK_COLUMNS
        else:
            self._watermarks.discard(seen.table_id)
            wanted, columns = SIGNAL_COLUMNS, names or ()
        # Columns after one of unknown width can't be located.
        readable = next(
            (i for i in range(len(seen.types)) if _width(seen.types[i], seen.metas[i]) is None),
            len(seen.types),
        )
        found = {name: place for place, name in enumerate(columns[:readable])}
        places = [found.get(name) for name in wanted]
        missing = [name for name in wanted if name not in found]
        if missing and self._places.get(seen.table_id) != places:
            logger.warning(
                "%s has no column %s that can be read: it and those before it must be integers or "
                "texts (CHAR, VARCHAR, TEXT)",
                table,
                ", ".join(missing),
            )
        self._places[seen.table_id] = places

    def read(self, row: WatchedBinlogRow) -> Iterator[WatermarkSeen | SignalSeen]:
        """The watermark or signal in a row; nothing if the row holds neither."""
        if row.table_id in self._watermarks:
            if row.kind in (RecordKind.INSERT, RecordKind.UPDATE):
                (watermark,) = self._texts(row)
                if watermark is not None and len(watermark) <= _MAX_WATERMARK_BYTES:
                    yield WatermarkSeen(watermark, row.position, row.ordinal)
        elif row.kind is RecordKind.INSERT:
            signal_id, type_, data = self._texts(row)
            yield SignalSeen(signal_id or "", type_ or "", data, row.position, row.ordinal)

    def _texts(self, row: WatchedBinlogRow) -> list[str | None]:
        """The wanted columns of a row's new state as text; None for NULL or a missing column."""
        seen, places = self._maps[row.table_id], self._places[row.table_id]
        known = [place for place in places if place is not None]
        if not known:
            return [None] * len(places)
        try:
            found = _new_image(row.payload, seen, max(known) + 1)
        except (struct.error, IndexError, ValueError):
            logger.warning("a row of %s.%s does not parse", seen.database, seen.table)
            return [None] * len(places)
        return [
            found[place] if place is not None and place < len(found) else None for place in places
        ]


def _new_image(payload: bytes, seen: TableMapSeen, wanted: int) -> list[str | None]:
    """The first ``wanted`` columns of an after image."""
    flags, count = payload[1], int.from_bytes(payload[2:4], "little")
    at = 4
    if flags & _BEFORE:
        _, at = _image(payload, at, count, seen, count)
    if not flags & _AFTER:
        raise ValueError("image")
    return _image(payload, at, count, seen, wanted, partial=bool(flags & _PARTIAL))[0]


def _image(
    payload: bytes, at: int, count: int, seen: TableMapSeen, wanted: int, *, partial: bool = False
) -> tuple[list[str | None], int]:
    """Read one row image; returns its texts and the offset after it.

    ``partial``: True for updates under ``binlog_row_value_options``, where MySQL writes all updates
    in this form, also those of tables without documents.
    """
    bitmap = payload[at : at + (count + 7) // 8]
    at += len(bitmap)
    if partial:
        at += 1 + ((seen.types.count(types.JSON) + 7) // 8 if payload[at] & 1 else 0)
    present = [i for i in range(count) if bitmap[i // 8] >> i % 8 & 1]
    nulls = payload[at : at + (len(present) + 7) // 8]
    at += len(nulls)
    found: list[str | None] = [None] * count
    for place, i in enumerate(present):
        if i >= wanted:
            break
        if nulls[place // 8] >> place % 8 & 1:
            continue
        width = _width(seen.types[i], seen.metas[i])
        if width is None:
            if seen.types[i] != types.JSON:
                raise ValueError(f"type {seen.types[i]}")
            width = 4
        size = int.from_bytes(payload[at : at + width], "little")
        at += width
        if seen.types[i] in _INTEGERS:
            found[i] = str(size)
            continue
        found[i] = payload[at : at + min(size, _CUT_BYTES)].decode("utf-8", "replace")
        at += size
    return found, at


def _width(type_code: int, meta: int) -> int | None:
    """The bytes of an integer, or of a text's length; None for other types."""
    if type_code in _INTEGERS:
        return _INTEGERS[type_code]
    kind, meta = types.resolve(type_code, meta)
    if kind == types.VARCHAR:
        return 1 if meta < 256 else 2
    if kind == types.STRING:
        return 1 if types.string_bytes(meta) < 256 else 2
    if kind == types.BLOB:
        return meta
    return None


# Captured tables.

SYSTEM_DATABASES = ("mysql", "sys", "information_schema", "performance_schema")


class CapturedTables:
    """The set of captured tables.

    Args:
        patterns: patterns of the tables to capture.
        metadata_tables: Tidelog's own tables, which are not captured.

    Attributes:
        fold: True if the server ignores the case of names and logs them in lower case.
    """

    def __init__(self, patterns: Sequence[str], metadata_tables: MySqlMetadataTables) -> None:
        self.fold = False
        self._patterns = tuple(patterns)
        self._metadata_tables = metadata_tables

    def set_fold(self, fold: bool) -> None:
        """Set whether the server logs names in lower case."""
        self.fold = fold
        if fold:
            self._patterns = tuple(pattern.lower() for pattern in self._patterns)
            self._metadata_tables.fold()

    def __contains__(self, table: TableName) -> bool:
        return (
            table.namespace != self._metadata_tables.namespace
            and table.namespace not in SYSTEM_DATABASES
            and table != self._metadata_tables.signals
            and matches(self._patterns, table)
        )

    def may_include(self, database: str) -> bool:
        """Return True if a table of this database may be captured."""
        name = database.lower() if self.fold else database
        if name == self._metadata_tables.namespace or name in SYSTEM_DATABASES:
            return False
        return overlap((f"{name}.*", f'"{name}".*'), self._patterns)


RETRY_REFUSED_S = 5.0


class LogTables:
    """The tables of one log. Used by one thread.

    Args:
        captured: the captured tables.
        metadata_tables: Tidelog's own tables, whose rows are read here and yield no records.
        registry: the tables' versions.
        history: the version of each table by position.
        cascades: receives the tables, if foreign keys are watched.

    Attributes:
        current: the version of each table that was last reported since the stream began.
    """

    def __init__(
        self,
        captured: CapturedTables,
        metadata_tables: MySqlMetadataTables,
        registry: SchemaRegistry,
        history: SchemaHistory,
        cascades: CascadeWatch | None,
    ) -> None:
        self.current: dict[TableName, TableSchema] = {}
        self._captured = captured
        self._metadata_tables = metadata_tables
        self._registry = registry
        self._history = history
        self._cascades = cascades
        self._refused: set[TableName] = set()
        self._retried_at = 0.0
        self._scanner: BinlogScanner | None = None
        self._schemas: LogSchemas | None = None

    @property
    def schemas(self) -> LogSchemas:
        assert self._schemas is not None
        return self._schemas

    def start(self, scanner: BinlogScanner, schemas: LogSchemas) -> None:
        """Start a stream with this scanner and these schemas."""
        self._scanner, self._schemas = scanner, schemas
        self._metadata_tables.clear()
        self.current.clear()

    def bind(self, scanner: BinlogScanner, seen: TableMapSeen) -> Iterator[LogEvent]:
        """Tell the scanner how to process the rows after a table map."""
        table = TableName(seen.database, seen.table)
        if self._metadata_tables.watches(table):
            names = None
            if table == self._metadata_tables.signals:
                names = self._signal_columns(seen)
            self._metadata_tables.bind(seen, names)
            scanner.bind(seen.table_id, 0, watch=seen.has_readable_rows)
            return
        if table not in self._captured or self.schemas.is_sequence(
            seen, min(seen.position, scanner.resume.acknowledge)
        ):
            scanner.bind(seen.table_id, 0)
            if self._cascades is not None:
                self._cascades.bind(scanner, seen, None)
            return
        try:
            schema = self._schema_at(seen)
        except UnsupportedTableError as error:
            scanner.bind(seen.table_id, 0)
            if self._cascades is not None:
                self._cascades.bind(scanner, seen, None)
            self._refused.add(table)
            yield UnsupportedTableSeen(table, UnsupportedReason(error.reason, error.remedy))
            return
        previous = self.current.get(table)
        whole = schema.whole
        digits = enumerate(map(types.old_digits, whole.columns))
        scanner.bind(
            seen.table_id,
            schema.schema_id,
            old_digits={i: count for i, count in digits if count},
            left_out=[
                *(each.place for each in schema.excluded),
                *range(len(whole.columns), len(seen.types)),
            ],
        )
        if self._cascades is not None:
            self._cascades.bind(scanner, seen, schema)
        if previous is None or previous.schema_id != schema.schema_id:
            self.current[table] = schema
            yield SchemaSeen(schema, previous or self._previous_version(schema))
        if table in self._refused:
            self._refused.remove(table)
            reason = "its changes could not be captured for a while"
            yield RowsUnlogged(table, reason, seen.position)

    def split_keyless(self, batch: LogBatch) -> Iterator[LogEvent]:
        """The records that contain their key; tables of other records are reported for a dump."""
        keyless = lacks_key(batch, self._registry.get)
        if not keyless.any():
            yield batch
            return
        for schema_id in np.unique(batch.schema_id[keyless]).tolist():
            table = self._registry.get(schema_id).table
            reason = "a record of it does not hold its key, since binlog_row_image is not FULL"
            last = batch.xid[keyless & (batch.schema_id == schema_id)].max()
            yield RowsUnlogged(table, reason, int(last))
        if not keyless.all():
            yield batch.filter(~keyless)

    def retry_is_due(self) -> bool:
        """Return True if it is time to check again tables whose rows are left out."""
        if not self._refused or time.monotonic() - self._retried_at < RETRY_REFUSED_S:
            return False
        self._retried_at = time.monotonic()
        return True

    def _signal_columns(self, seen: TableMapSeen) -> Sequence[str] | None:
        """The signal table's columns; None if they are not known, so that its rows
        can't be read.
        """
        try:
            return self._schema_at(seen).whole.column_names
        except SourceError as error:
            # Other errors mean, for example, that the server is unreachable.
            if type(error) not in (SourceError, UnsupportedTableError):
                raise
            logger.warning("signals are skipped: %s", error)
            return None

    def _schema_at(self, seen: TableMapSeen) -> TableSchema:
        assert self._scanner is not None
        return self.schemas.at(seen, min(seen.position, self._scanner.resume.acknowledge))

    def _previous_version(self, schema: TableSchema) -> TableSchema | None:
        """The version that the table had when capture last knew it."""
        before = self._history.last_before(schema.table, schema.schema_id)
        if before is not None:
            return self._registry.get(before)
        return self._registry.latest(schema.table)
