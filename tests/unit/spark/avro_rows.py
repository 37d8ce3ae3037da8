"""Rows of every type in a built log, and the Avro messages that are made of them."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
from tests.support.avro_messages import decoded
from tests.support.build_log import BuiltLog

from tidelog.codecs.columns.values import arrow_type
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.outputs.base.tasks import prepare_rows
from tidelog.outputs.formatters import formatter
from tidelog.ports import SchemaFormatter, TargetTable
from tidelog.spark.datasource import executor
from tidelog.spark.datasource.executor import ReadPlan
from tidelog.spark.datasource.options import SourceOptions
from tidelog.spark.formats import shapes

CELLS: dict[str, tuple[str, str, str, Any]] = {  # logical type, type name, text, value
    "flag": ("bool", "boolean", "t", True),
    "small": ("int16", "smallint", "-7", -7),
    "whole": ("int32", "integer", "70000", 70000),
    "big": ("int64", "bigint", "-9000000000", -9000000000),
    "real": ("float32", "real", "1.5", 1.5),
    "double": ("float64", "double precision", "1e300", 1e300),
    "price": ("decimal(10,2)", "numeric(10,2)", "-12.50", Decimal("-12.50")),
    "day": ("date", "date", "2026-01-31", dt.date(2026, 1, 31)),
    "local": (
        "timestamp",
        "timestamp without time zone",
        "2026-01-31 12:00:00.000001",
        dt.datetime(2026, 1, 31, 12, 0, 0, 1),
    ),
    "instant": (
        "timestamptz",
        "timestamp with time zone",
        "2026-01-31 12:00:00.5+00",
        dt.datetime(2026, 1, 31, 12, 0, 0, 500000, dt.UTC),
    ),
    "time": ("text", "time(3) without time zone", "24:00:00", 86_400_000_000),
    "uuid": (
        "text",
        "uuid",
        "0f0f0f0f-0000-4000-8000-00000000000a",
        UUID("0f0f0f0f-0000-4000-8000-00000000000a"),
    ),
    "blob": ("binary", "bytea", "\\x00ff", b"\0\xff"),
    "words": ("text", "text", "größer 😀", "größer 😀"),
    "doc": ("text", "jsonb", '{"a": 1}', '{"a": 1}'),
}


def everything() -> tuple[Column, ...]:
    key = Column("id", 20, -1, "bigint", "int64", nullable=False)
    others = [Column(n, 25, -1, c[1], c[0]) for n, c in CELLS.items()]
    return (key, *others)


class Told:
    """Events of one table and the messages that a format makes of them."""

    def __init__(self, built: BuiltLog, schema: TableSchema, **target: Any) -> None:
        built.flush()
        log = built.log
        columns = pa.schema([(c.name, arrow_type(c.logical)) for c in schema.columns])
        unchanged = {column.name: column for column in schema.columns}
        found = TargetTable(
            schema.table, "sales.t-1", schema, columns, schema.key, log.source, unchanged
        )
        self.table = replace(found, **target)
        where = {"path": built.path, "shape": "events", "table": str(schema.table)}
        plan = ReadPlan(SourceOptions.parse(where), schema, shapes.events(schema))
        refs = list(log.segments(log.head_offset, log.latest_offset()))
        batches = executor.batches(plan, log, refs)
        self.events = [prepare_rows(batch, self.table, {}) for batch in batches]

    def messages(self, name: str, **options: Any) -> list[tuple[Any, Any]]:
        made = formatter(name, **options)
        assert isinstance(made, SchemaFormatter)
        schemas = made.schemas(self.table)
        by_id = {7: schemas.key or "", 4_000_000: schemas.value}
        table = replace(self.table, schema_ids=(7, 4_000_000))
        found = []
        for events in self.events:
            batch = made.format(table, events)
            pairs = (batch.column(part).to_pylist() for part in ("key", "value"))
            for key, value in zip(*pairs, strict=True):
                found.append((decoded(key, by_id.__getitem__), decoded(value, by_id.__getitem__)))
        return found


def register(built: BuiltLog, columns: tuple[Column, ...]) -> TableSchema:
    key = ("id",)
    schema = TableSchema(TableName("public", "t"), 1, columns, key, key, "d", "pgoutput")
    return built.writer.schemas.register(schema)
