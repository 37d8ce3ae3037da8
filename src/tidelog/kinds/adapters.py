"""The registries of adapters.

Only this module has the names of our adapters, and where each is; plugins are found by entry points
(docs/how-to/extend.md).
"""

from __future__ import annotations

from typing import Any

from tidelog.kinds.registry import Registry
from tidelog.ports import FormatterKind, OutputKind, StateBackend

OUTPUT_KINDS: Registry[OutputKind[Any]] = Registry(
    "tidelog.outputs",
    "kind of output",
    {
        "delta": "tidelog.outputs.lake.kinds:DELTA",
        "files": "tidelog.outputs.files.kind:KIND",
        "http": "tidelog.outputs.http.kind:KIND",
        "iceberg": "tidelog.outputs.lake.kinds:ICEBERG",
        "kafka": "tidelog.outputs.kafka.kind:KIND",
        "opensearch": "tidelog.outputs.opensearch.kind:KIND",
        "python": "tidelog.outputs.custom.kind:KIND",
        "postgres": "tidelog.outputs.database.kinds:POSTGRES",
        "mysql": "tidelog.outputs.database.kinds:MYSQL",
    },
)

FORMATTERS: Registry[FormatterKind] = Registry(
    "tidelog.formatters",
    "format",
    {
        "debezium": "tidelog.outputs.formatters.json_formats:Debezium.of",
        "flat": "tidelog.outputs.formatters.json_formats:Flat.of",
        "cloudevents": "tidelog.outputs.formatters.json_formats:CloudEvents.of",
        "avro": "tidelog.outputs.formatters.avro:Avro.of",
        "avro_flat": "tidelog.outputs.formatters.avro:AvroFlat.of",
    },
)

WIRE_FORMATS: Registry[Any] = Registry(  # of tidelog.codecs.wire_formats.WireFormat
    "tidelog.wire_formats",
    "wire format",
    {
        "pgoutput": "tidelog.codecs.postgres.formats:PGOUTPUT",
        "binlog": "tidelog.codecs.mysql.formats:BINLOG",
    },
)

NATIVE_TYPES: Registry[Any] = Registry(  # functions, see tidelog.codecs.wire_formats
    "tidelog.native_types",
    "wire format with native types",
    {
        "pgoutput": "tidelog.codecs.postgres.formats:native_logical",
        "binlog": "tidelog.codecs.mysql.types:native_logical",
    },
)

SOURCE_BLOCKS: Registry[Any] = Registry(  # of tidelog.codecs.source_blocks.SourceBlocks
    "tidelog.source_blocks",
    "source block",
    {
        "postgres": "tidelog.codecs.postgres.formats:SOURCE_BLOCKS",
        "mysql": "tidelog.codecs.mysql.formats:SOURCE_BLOCKS",
        "mariadb": "tidelog.codecs.mysql.formats:SOURCE_BLOCKS",
    },
)

SOURCE_KINDS: Registry[Any] = Registry(  # of tidelog.app.sources.kinds.SourceKind
    "tidelog.sources",
    "kind of source",
    {
        "postgres": "tidelog.app.sources.postgres:PostgresKind",
        "mysql": "tidelog.app.sources.mysql:MySqlKind",
        "mariadb": "tidelog.app.sources.mysql:MySqlKind",
    },
)

STATES: Registry[StateBackend] = Registry(
    "tidelog.state",
    "scheme of state.url",
    {
        "sqlite": "tidelog.state.sqlite:BACKEND",
        "log": "tidelog.state.log_store:BACKEND",
        "zookeeper": "tidelog.state.zookeeper:BACKEND",
        "postgresql": "tidelog.state.postgres:BACKEND",
    },
)
