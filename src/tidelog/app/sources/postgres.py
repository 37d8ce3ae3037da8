"""The adapters of PostgreSQL; see `tidelog.app.sources.kinds.SourceKind`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from tidelog.app.base.log_location import end_of_log, event_log_path, log_copy_id
from tidelog.app.sources.kinds import SourceParts
from tidelog.codecs.postgres.pgoutput import PgoutputScanner
from tidelog.codecs.postgres.tuples import PgoutputKeys
from tidelog.config import Config
from tidelog.config.source import PostgresSourceSection
from tidelog.errors import TidelogError, UsageError
from tidelog.eventlog.reader import EventLog
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.ports import (
    BlockingReader,
    ChunkReader,
    Published,
    SchemaRegistry,
    SourceId,
    StateStore,
)
from tidelog.sources.findings import Finding
from tidelog.sources.postgres.catalogue.publication import Publications
from tidelog.sources.postgres.catalogue.schemas import PostgresSchemaFinder
from tidelog.sources.postgres.catalogue.tables import PostgresCatalogue
from tidelog.sources.postgres.chunks.blocking import PostgresBlockingReader
from tidelog.sources.postgres.chunks.digests import PostgresDigests, PostgresEstimates
from tidelog.sources.postgres.chunks.reader import PostgresChunkReader
from tidelog.sources.postgres.chunks.sql import key_texts
from tidelog.sources.postgres.connect import CATALOGUE_SETTINGS, connect
from tidelog.sources.postgres.errors import translate_errors
from tidelog.sources.postgres.preflight.checks import PostgresPreflight
from tidelog.sources.postgres.stream.log_reader import PostgresLogReader
from tidelog.sources.postgres.stream.replication import ReplicationStream
from tidelog.sources.postgres.stream.server import check_same
from tidelog.sources.postgres.stream.slots import SLOT_KEY, SlotOwner, drop_unread_slot
from tidelog.sources.postgres.stream.standby import in_recovery, who_is_open
from tidelog.state.opening import open_state, state_exists


class NoSchemaNotes:
    """See `tidelog.app.sources.kinds.SchemaNotes`: PostgreSQL's log has the columns itself."""

    def of(self, table: TableName) -> list[tuple[str, int | None]]:
        del table
        return []

    def describe(self, column: Column) -> dict[str, Any]:
        return {"name": column.name, "type": column.type_name, "nullable": column.nullable}

    def fix(
        self, table: TableName, at: str, columns: Sequence[Mapping[str, Any]], key: Sequence[str]
    ) -> TableSchema:
        raise UsageError(
            "PostgreSQL's log has the columns of all rows: there is nothing to set by hand"
        )


class PostgresKind:
    """A PostgreSQL database, captured from one replication slot."""

    state_keys = (SLOT_KEY,)

    def __init__(self, config: Config) -> None:
        assert isinstance(config.source, PostgresSourceSection)
        self._source = config.source
        self._dsn = config.source.url.reveal()
        self._statement_timeout_ms = config.dump.statement_timeout_ms
        self._log_location, self._state_url = event_log_path(config), config.state.location
        self._reader: PostgresLogReader | None = None
        source = config.source
        # Shared: the catalogue's watch needs to know what the log reader publishes at its start.
        self._publications = Publications(
            source.publication_name,
            source.tables,
            source.watermark_schema,
            strategy=source.watermarks,
            signal_table=source.signal_table,
            slot=source.slot,
            exclude_columns=source.exclude_columns,
        )
        # One for all lookups: they must agree on the keys, and none may read an excluded column.
        self._finder = PostgresSchemaFinder(
            source.keys, self._publications.names, source.exclude_columns
        )

    @property
    def _server_dsn(self) -> str:
        """The server from which the log is read: everything of a session comes from one server."""
        return self._dsn if self._reader is None else self._reader.dsn

    def prepare(self) -> None:
        PgoutputScanner()

    def reach(self) -> None:
        connect(self._dsn, purpose="reach").close()

    def log_reader(
        self, registry: SchemaRegistry, state: StateStore, expected: SourceId | None
    ) -> PostgresLogReader:
        self._reader = PostgresLogReader(
            self._dsn,
            registry,
            self._publications,
            slot=self._source.slot,
            finder=self._finder,
            expected=expected,
            state=state,
            which_copy=lambda: log_copy_id(self._log_location),
        )
        return self._reader

    def parts(self, registry: SchemaRegistry) -> SourceParts:
        source = self._source
        publications = self._publications

        def open_reader() -> ChunkReader:
            return PostgresChunkReader(
                self._server_dsn,
                registry,
                strategy=source.watermarks,
                watermark_schema=source.watermark_schema,
                finder=self._finder,
                statement_timeout_ms=self._statement_timeout_ms,
            )

        def open_blocking(
            tables: Sequence[TableName] = (), *, keep_locks: bool = True
        ) -> BlockingReader:
            return PostgresBlockingReader(
                self._server_dsn,
                registry,
                tables=tables,
                keep_locks=keep_locks,
                finder=self._finder,
                statement_timeout_ms=self._statement_timeout_ms,
            )

        def publish() -> Published:
            with connect(
                self._server_dsn, purpose="publication", settings=CATALOGUE_SETTINGS
            ) as connection:
                if self._reader is not None:
                    with translate_errors("looking at the publications"):
                        self._reader.check_publications(connection)
                added = publications.sync(connection)
                return Published(
                    added,
                    dict(publications.refused),
                    dict(publications.inserts_only),
                    dict(publications.left_out_columns),
                )

        def open_transactions() -> str:
            with (
                connect(
                    self._server_dsn, purpose="catalogue", settings=CATALOGUE_SETTINGS
                ) as connection,
                translate_errors("looking for open transactions"),
            ):
                if in_recovery(connection):
                    return "On the primary, pg_stat_activity and pg_prepared_xacts show them"
                return who_is_open(connection)

        def forget_log() -> None:
            with (
                connect(
                    self._server_dsn, purpose="slot", settings=CATALOGUE_SETTINGS
                ) as connection,
                translate_errors(f"dropping slot {source.slot!r}"),
            ):
                drop_unread_slot(connection, source.slot)

        return SourceParts(
            catalogue=self.catalogue(),
            keys=PgoutputKeys(),
            open_reader=open_reader,
            open_blocking=open_blocking,
            open_keyless=lambda: open_blocking(keep_locks=False),
            publish=publish,
            who_is_open=open_transactions,
            forget_log=forget_log,
        )

    def catalogue(self) -> PostgresCatalogue:
        source = self._source
        return PostgresCatalogue(
            self._server_dsn,
            own_schemas=[source.watermark_schema],
            metadata_tables=[source.signal_table] if source.signal_table else (),
            finder=self._finder,
            published_by_others=source.watermarks == "snapshot",
            slot=source.slot,
        )

    def plain_reader(self, registry: SchemaRegistry) -> ChunkReader:
        return PostgresChunkReader(
            self._dsn,
            registry,
            watermark_schema=self._source.watermark_schema,
            finder=self._finder,
            statement_timeout_ms=self._statement_timeout_ms,
        )

    def digests(self) -> PostgresDigests:
        return PostgresDigests(
            self._dsn,
            finder=self._finder,
            statement_timeout_ms=self._statement_timeout_ms,
        )

    def estimates(self) -> PostgresEstimates:
        return PostgresEstimates(
            self._dsn,
            self._finder,
        )

    def schema_notes(self, registry: SchemaRegistry, state: StateStore) -> NoSchemaNotes:
        del registry, state
        return NoSchemaNotes()

    def check(self) -> list[Finding]:
        return PostgresPreflight(
            self._dsn,
            self._publications,
            slot=self._source.slot,
            needs_slot=end_of_log(self._log_location) is not None,
            finder=self._finder,
            owner=self._slot_owner(),
        ).check()

    def _slot_owner(self) -> SlotOwner | None:
        """Return the owner by the event log; None if the log can't be read: `check` reports it."""
        owner = SlotOwner(self._source.slot)
        try:
            if not EventLog.exists(self._log_location):
                return owner
            log = EventLog.open(self._log_location)
            if log.resume is not None or self._is_slot_claimed(log.generation):
                owner.generation, owner.copy = log.generation, log_copy_id(self._log_location)
        except TidelogError:
            return None
        return owner

    def _is_slot_claimed(self, generation: str) -> bool:
        """Return whether the slot was created for an event log that is still empty."""
        if not state_exists(self._state_url):
            return False
        state = open_state(self._state_url)
        try:
            owner = SlotOwner(self._source.slot, state)
            owner.generation = generation
            return owner.claimed
        finally:
            state.close()

    def check_source(self, expected: SourceId) -> None:
        with closing(ReplicationStream(self._dsn, purpose="identity")) as stream:
            check_same(stream, expected)

    @property
    def key_texts(self) -> Callable[[pa.Array], pa.StringArray]:
        return key_texts
