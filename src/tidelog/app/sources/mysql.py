"""The adapters of MySQL and MariaDB; see `tidelog.app.sources.kinds.SourceKind`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from tidelog.app.base.log_location import end_of_log, event_log_path
from tidelog.app.sources.kinds import SourceParts
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.rows.keys import BinlogKeys
from tidelog.codecs.mysql.server_urls import ServerUrl, parse_url
from tidelog.config import Config
from tidelog.config.source import MySqlSourceSection
from tidelog.errors import GapError, LogResetError, PreflightError, TidelogError
from tidelog.model.patterns import exclusion
from tidelog.model.schema import TableName
from tidelog.ports import (
    BlockingReader,
    ChunkReader,
    Published,
    SchemaRegistry,
    SourceId,
    StateStore,
)
from tidelog.sources.findings import Finding
from tidelog.sources.mysql.catalogue.cascades import cascades
from tidelog.sources.mysql.catalogue.schemas import MySqlSchemaFinder
from tidelog.sources.mysql.catalogue.tables import MySqlCatalogue
from tidelog.sources.mysql.chunks.blocking import MySqlBlockingReader
from tidelog.sources.mysql.chunks.digests import MySqlDigests, MySqlEstimates
from tidelog.sources.mysql.chunks.reader import MySqlChunkReader
from tidelog.sources.mysql.chunks.sql import key_texts
from tidelog.sources.mysql.connect import connect
from tidelog.sources.mysql.errors import translate_errors
from tidelog.sources.mysql.preflight.checks import MySqlPreflight
from tidelog.sources.mysql.stream import replication, temporary_tables
from tidelog.sources.mysql.stream.failover import check_log, check_same, identify
from tidelog.sources.mysql.stream.gtids import LoggedGtids, SeenGtids
from tidelog.sources.mysql.stream.log_reader import MySqlLogReader
from tidelog.sources.mysql.stream.positions import FILE_START, log_end, log_files
from tidelog.sources.mysql.stream.replication import ReplicaId
from tidelog.sources.mysql.stream.schema_history import DROPPED_KEY, FILE_KEY, MySqlSchemaNotes


class MySqlKind:
    """The databases of one MySQL or MariaDB server, captured from its binlog."""

    state_keys = (FILE_KEY, DROPPED_KEY, temporary_tables.KEY)

    def __init__(self, config: Config) -> None:
        assert isinstance(config.source, MySqlSourceSection)
        self._source = config.source
        # One for all lookups: they must agree on the keys, and none may read an excluded column.
        self._finder = MySqlSchemaFinder(config.source.keys, config.source.exclude_columns)
        self._url = parse_url(config.source.server_url)  # one pin for all connections
        self._name = config.log.path
        self._log_location = event_log_path(config)
        replica = ReplicaId.derived(f"{self._url.where} {self._name}", config.source.server_id)
        self._server_id = replica.server_id
        self._statement_timeout_ms = config.dump.statement_timeout_ms
        # The log reader shares with chunk readers what it has seen.
        self._seen = SeenGtids()
        self._logged = LoggedGtids()

    def prepare(self) -> None:
        replication.prepare_kernel()
        BinlogScanner(
            Flavor(self._source.kind), None, checksum=True, file_number=1, offset=FILE_START
        )

    def reach(self) -> None:
        connect(self._url, purpose="reach").close()

    def log_reader(
        self, registry: SchemaRegistry, state: StateStore, expected: SourceId | None
    ) -> MySqlLogReader:
        source = self._source
        return MySqlLogReader(
            self._url,
            registry,
            kind=Flavor(source.kind),
            server_id=source.server_id,
            name=self._name,
            state=state,
            tables=source.tables,
            watermark_schema=source.watermark_schema,
            signal_table=source.signal_table,
            finder=self._finder,
            expected=expected,
            seen=self._seen,
            logged=self._logged,
            watch_cascades=source.cascades != "accept",
        )

    def parts(self, registry: SchemaRegistry) -> SourceParts:
        source = self._source

        def open_reader() -> ChunkReader:
            return MySqlChunkReader(
                self._url,
                registry,
                strategy=source.watermarks,
                watermark_schema=source.watermark_schema,
                finder=self._finder,
                seen=self._seen,
                statement_timeout_ms=self._statement_timeout_ms,
            )

        def open_blocking(
            tables: Sequence[TableName] = (), *, may_stop_writers: bool = True
        ) -> BlockingReader:
            return MySqlBlockingReader(
                self._url,
                registry,
                tables=tables,
                may_stop_writers=may_stop_writers,
                finder=self._finder,
                statement_timeout_ms=self._statement_timeout_ms,
            )

        catalogue = self.catalogue()

        def publish() -> Published:
            """Check foreign keys: the binlog has all tables, but not what cascades do to them."""
            if source.cascades == "refuse":
                refuse_cascades(self._url, catalogue.tables(source.tables))
            return Published(holds_new_tables=True)

        return SourceParts(
            catalogue=catalogue,
            keys=BinlogKeys(Flavor(source.kind)),
            open_reader=open_reader,
            open_blocking=open_blocking,
            open_keyless=lambda: open_blocking(may_stop_writers=False),
            publish=publish,
            located=self._logged.with_gtids,
        )

    def catalogue(self) -> MySqlCatalogue:
        source = self._source
        return MySqlCatalogue(
            self._url,
            own_schemas=[source.watermark_schema],
            metadata_tables=[source.signal_table] if source.signal_table else (),
            finder=self._finder,
        )

    def plain_reader(self, registry: SchemaRegistry) -> ChunkReader:
        return MySqlChunkReader(
            self._url,
            registry,
            watermark_schema=self._source.watermark_schema,
            finder=self._finder,
            statement_timeout_ms=self._statement_timeout_ms,
        )

    def digests(self) -> MySqlDigests:
        return MySqlDigests(
            self._url,
            watermark_schema=self._source.watermark_schema,
            finder=self._finder,
            statement_timeout_ms=self._statement_timeout_ms,
        )

    def estimates(self) -> MySqlEstimates:
        return MySqlEstimates(self._url, self._finder)

    def schema_notes(self, registry: SchemaRegistry, state: StateStore) -> MySqlSchemaNotes:
        return MySqlSchemaNotes(self._url, registry, state, self._finder)

    def check(self) -> list[Finding]:
        source = self._source
        findings = MySqlPreflight(
            source.server_url,
            server_id=self._server_id,
            kind=Flavor(source.kind),
            tables=source.tables,
            watermark_schema=source.watermark_schema,
            strategy=source.watermarks,
            signal_table=source.signal_table,
            keys=source.keys,
            exclude_columns=source.exclude_columns,
            cascades=source.cascades,
            snapshot_mode=source.snapshot_mode,
        ).check()
        if all(each.level != "error" for each in findings) and (lost := self._lost_position()):
            advice = "tidelog reset CONFIG"
            findings.append(Finding("position", "error", str(lost), advice))
        return findings

    def _lost_position(self) -> TidelogError | None:
        """Return the error if the server no longer has what follows the event log."""
        ended = end_of_log(self._log_location)
        if ended is None:
            return None
        resume, expected = ended
        try:
            with (
                connect(self._source.server_url, purpose="check") as connection,
                translate_errors("comparing the event log's end"),
            ):
                found = identify(connection, expected)
                if found.member != expected.member:
                    return None  # a failover: capture compares GTIDs
                connection.pin.shift = expected.timeline
                check_log(log_files(connection), resume, log_end(connection).position)
        except (GapError, LogResetError) as error:
            return error
        except TidelogError:
            return None  # it went away, which the next check reports
        return None

    def check_source(self, expected: SourceId) -> None:
        with (
            connect(self._url, purpose="identity") as connection,
            translate_errors("reading the source's identity"),
        ):
            check_same(identify(connection, expected), expected)
        self._url.pin.shift = expected.timeline  # for all later positions

    @property
    def key_texts(self) -> Callable[[pa.Array], pa.StringArray]:
        return key_texts


def refuse_cascades(url: ServerUrl, tables: Sequence[TableName]) -> None:
    """Raise PreflightError if foreign keys change rows of the tables without a trace in the log."""
    with connect(url, purpose="cascades") as connection, translate_errors("reading foreign keys"):
        foreign_keys = cascades(connection, set(tables))
    if foreign_keys:
        children = dict.fromkeys(f.child for f in foreign_keys)
        named = ", ".join(
            f"{f.constraint} of {f.child} ({', '.join(f.rules)})" for f in foreign_keys
        )
        raise PreflightError(
            f"foreign keys change rows of captured tables, and the binlog holds nothing of it: "
            f"{named}. Set source.cascades: dump, which dumps these tables again whenever that "
            f"may have happened; or make the keys RESTRICT; or {exclusion(*children)}"
        )
