"""Tracks the tables of a stream: how their rows are processed, and their schema versions."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence

import numpy as np

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.binlog.items import TableMapSeen
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
from tidelog.codecs.mysql.rows.keys import lacks_key
from tidelog.errors import SourceError, TableRefusedError
from tidelog.model.patterns import matches, overlap
from tidelog.model.records import LogBatch
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import LogEvent, Refusal, RowsUnlogged, SchemaRegistry, SchemaSeen, TableRefused
from tidelog.sources.mysql.catalogue.cascade_watch import CascadeWatch
from tidelog.sources.mysql.stream.metadata_tables import MySqlMetadataTables
from tidelog.sources.mysql.stream.schemas.history import SchemaHistory
from tidelog.sources.mysql.stream.schemas.log_schemas import LogSchemas

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


logger = logging.getLogger(__name__)

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
        except TableRefusedError as error:
            scanner.bind(seen.table_id, 0)
            if self._cascades is not None:
                self._cascades.bind(scanner, seen, None)
            self._refused.add(table)
            yield TableRefused(table, Refusal(error.reason, error.remedy))
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
            if type(error) not in (SourceError, TableRefusedError):
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
