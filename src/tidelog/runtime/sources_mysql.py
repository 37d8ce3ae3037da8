"""The adapters of MySQL and MariaDB; see `tidelog.runtime.sources.SourceKind`."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Callable, Sequence

import pyarrow as pa

from tidelog.config import Config
from tidelog.configsource import MySqlSource
from tidelog.model.schema import TableName
from tidelog.ports import BlockingReader, ChunkReader, SchemaRegistry, SourceId
from tidelog.runtime.sources import SourceParts
from tidelog.sources.findings import Finding
from tidelog.sources.mysql.blocking import MySqlBlockingReader
from tidelog.sources.mysql.catalogue import MySqlCatalogue
from tidelog.sources.mysql.chunks import MySqlChunkReader
from tidelog.sources.mysql.gtids import SeenGtids
from tidelog.sources.mysql.key_texts import key_texts
from tidelog.sources.mysql.log_reader import MySqlLogReader
from tidelog.sources.mysql.planning import MySqlEstimates
from tidelog.sources.mysql.preflight import MySqlPreflight
from tidelog.wire.binlog_keys import BinlogKeys
from tidelog.wire.flavor import Flavor


class MySqlKind:
    """The databases of one MySQL or MariaDB server, captured from its binlog."""

    def __init__(self, config: Config) -> None:
        assert isinstance(config.source, MySqlSource)
        self._source = config.source
        self._url = config.source.server_url
        self._server_id = config.source.server_id or _server_id(str(config.log.path))
        self._statement_timeout_ms = config.dump.statement_timeout_ms
        # The reader of the log tells those of chunks what it has seen.
        self._seen = SeenGtids()

    def log_reader(self, registry: SchemaRegistry, expected: SourceId | None) -> MySqlLogReader:
        source = self._source
        return MySqlLogReader(
            self._url,
            registry,
            flavor=Flavor(source.kind),
            server_id=self._server_id,
            tables=source.tables,
            watermark_schema=source.watermark_schema,
            strategy=source.watermarks,
            signal_table=source.signal_table,
            keys=source.keys,
            expected=expected,
            seen=self._seen,
        )

    def parts(self, registry: SchemaRegistry) -> SourceParts:
        source = self._source

        def open_reader() -> ChunkReader:
            return MySqlChunkReader(
                self._url,
                registry,
                strategy=source.watermarks,
                watermark_schema=source.watermark_schema,
                keys=source.keys,
                seen=self._seen,
                statement_timeout_ms=self._statement_timeout_ms,
            )

        def open_blocking(tables: Sequence[TableName]) -> BlockingReader:
            return MySqlBlockingReader(
                self._url,
                registry,
                tables=tables,
                keys=source.keys,
                statement_timeout_ms=self._statement_timeout_ms,
            )

        return SourceParts(
            catalogue=self.catalogue(),
            keys=BinlogKeys(),
            open_reader=open_reader,
            open_blocking=open_blocking,
            publish=list,  # all tables are in the binlog
        )

    def catalogue(self) -> MySqlCatalogue:
        source = self._source
        return MySqlCatalogue(
            self._url,
            own_schemas=[source.watermark_schema],
            own_tables=[source.signal_table] if source.signal_table else (),
            keys=source.keys,
        )

    def plain_reader(self, registry: SchemaRegistry) -> ChunkReader:
        return MySqlChunkReader(
            self._url,
            registry,
            watermark_schema=self._source.watermark_schema,
            keys=self._source.keys,
            statement_timeout_ms=self._statement_timeout_ms,
        )

    def estimates(self) -> MySqlEstimates:
        return MySqlEstimates(self._url, self._source.keys)

    def check(self) -> list[Finding]:
        source = self._source
        return MySqlPreflight(
            self._url,
            server_id=self._server_id,
            kind=Flavor(source.kind),
            tables=source.tables,
            watermark_schema=source.watermark_schema,
            strategy=source.watermarks,
            signal_table=source.signal_table,
            keys=source.keys,
            cascades=source.cascades,
            snapshot_mode=source.snapshot_mode,
        ).check()

    @property
    def key_texts(self) -> Callable[[pa.Array], pa.StringArray]:
        return key_texts


def _server_id(path: str) -> int:
    """An id that captures of this host into one event log share, and hardly anybody else has: a
    server ends a reader that it takes for dead when one with the same id comes.
    """
    return 1 << 30 | zlib.crc32(f"{socket.gethostname()}:{path}".encode()) & ((1 << 30) - 1)
