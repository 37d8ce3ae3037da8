"""A source's adapters, as its configuration asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidelog.config import Config
from tidelog.model.schema import TableName
from tidelog.ports import (
    BlockingReader,
    Catalogue,
    ChunkReader,
    KeyExtractor,
    SchemaRegistry,
    SourceId,
)
from tidelog.sources.postgres.blocking import PostgresBlockingReader
from tidelog.sources.postgres.catalogue import PostgresCatalogue
from tidelog.sources.postgres.chunks import PostgresChunkReader
from tidelog.sources.postgres.connect import connect
from tidelog.sources.postgres.log_reader import PostgresLogReader
from tidelog.sources.postgres.publication import Publications
from tidelog.wire.tuples import PgoutputKeys


@dataclass(frozen=True, slots=True)
class SourceParts:
    """The ports of one source.

    Attributes:
        catalogue, keys: ports.
        open_reader: a new reader of chunks, over connections of its own.
        open_blocking: a new reader for a blocking dump of these tables.
        publish: brings what the source publishes in step with the patterns; what was added.
    """

    catalogue: Catalogue
    keys: KeyExtractor
    open_reader: Callable[[], ChunkReader]
    open_blocking: Callable[[Sequence[TableName]], BlockingReader]
    publish: Callable[[], list[TableName]]


def open_log_reader(
    config: Config, registry: SchemaRegistry, expected: SourceId | None
) -> PostgresLogReader:
    """The reader of the source's log; ``expected``: which the event log was captured from."""
    source = config.source
    return PostgresLogReader(
        source.url.reveal(),
        registry,
        slot=source.slot,
        publication=source.publication,
        tables=source.tables,
        watermark_schema=source.watermark_schema,
        strategy=source.watermarks,
        signal_table=source.signal_table,
        keys=source.keys,
        expected=expected,
    )


def open_source(config: Config, registry: SchemaRegistry) -> SourceParts:
    """All else of the source. Connects when it is first used."""
    source = config.source
    dsn = source.url.reveal()

    def open_reader() -> ChunkReader:
        return PostgresChunkReader(
            dsn,
            registry,
            strategy=source.watermarks,
            watermark_schema=source.watermark_schema,
            keys=source.keys,
            statement_timeout_ms=config.dump.statement_timeout_ms,
        )

    def open_blocking(tables: Sequence[TableName]) -> BlockingReader:
        return PostgresBlockingReader(
            dsn,
            registry,
            tables=tables,
            keys=source.keys,
            statement_timeout_ms=config.dump.statement_timeout_ms,
        )

    publications = Publications(
        source.publication,
        source.tables,
        source.watermark_schema,
        strategy=source.watermarks,
        signal_table=source.signal_table,
    )

    def publish() -> list[TableName]:
        with connect(dsn, purpose="publication") as connection:
            return publications.sync(connection)

    return SourceParts(
        catalogue=PostgresCatalogue(
            dsn,
            own_schemas=[source.watermark_schema],
            own_tables=[source.signal_table] if source.signal_table else (),
            keys=source.keys,
            published_by=publications.names if source.watermarks == "snapshot" else None,
        ),
        keys=PgoutputKeys(),
        open_reader=open_reader,
        open_blocking=open_blocking,
        publish=publish,
    )
