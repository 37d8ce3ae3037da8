"""Reads a range of one table with Spark, one row per key, and replays tables as they were at a
position of the log: from a completed dump and the changes after it.

A range is planned by its segments. One task reads and folds each part
(`tidelog.codecs.fold`, `tidelog.spark.datasource.executor`). Spark folds the rows of several parts
once more, by the same rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as f

from tidelog.errors import ConfigError, OffsetGoneError
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.records import Bools, RecordKind
from tidelog.model.schema import TableName, TableSchema, backticked, is_native
from tidelog.spark.datasource import options
from tidelog.spark.datasource import partitions as planning
from tidelog.spark.datasource.options import DumpRecord, PlannedRefs
from tidelog.spark.datasource.source import register, tidelog_reader
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# One task folds this much of a table where rows are not cached.
PART_BYTES = 32 << 20


def read_planned(
    spark: SparkSession,
    log_path: str,
    generation: str,
    schema: TableSchema,
    refs: Sequence[SegmentRef],
    *,
    parts: int,
    shape: str = "changes",
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Return the records of one table in ``refs``, in at most ``parts`` Spark partitions of
    neighbours.

    Args:
        spark: the session that reads.
        log_path: path of the event log.
        generation: generation of the log; reading another one is an error.
        schema: the schema that records are decoded to.
        refs: segments, in log order.
        parts: as above.
        shape: ``changes`` (the newest state of each key in each part) or ``events``.
        columns: columns of `changes`; the schema's if None.
    """
    names = schema.column_names if columns is None else columns
    native = {c.name: c.logical for c in schema.columns if is_native(c.logical)}
    reader = (
        tidelog_reader(spark)
        .option("path", log_path)
        .option("shape", shape)
        .option("table", str(schema.table))
        .option("schemaVersion", schema.schema_id)
        .option("logicals", json.dumps(native))
        .option("refs", PlannedRefs(generation, tuple(refs)).to_option())
        .option("partitions", max(1, parts))
        .option("partitionBytes", 1)
    )
    if shape == "changes" and not any("," in name for name in names):
        reader = reader.option("columns", ",".join(names))
    return reader.load()


@contextmanager
def read_newest(
    spark: SparkSession,
    log_path: str,
    generation: str,
    schema: TableSchema,
    refs: Sequence[SegmentRef],
    *,
    parts: int,
) -> Iterator[DataFrame]:
    """Yield one row per key of `read_planned` changes. Inside the block, the rows of several
    parts are cached.
    """
    source = read_planned(spark, log_path, generation, schema, refs, parts=parts)
    if parts < 2:
        yield source
        return
    cached = source.persist()
    try:
        complete = cached.where(f"{CHANGE_MISSING} IS NOT NULL").isEmpty()
        yield fold_parts(cached, schema, complete=complete)
    finally:
        cached.unpersist()


def fold_parts(parts: DataFrame, schema: TableSchema, *, complete: bool) -> DataFrame:
    """Return one row per match key of rows in the shape `changes`, by the rules of
    `tidelog.spark.datasource.executor.merge_batches`. ``complete``: no row has missing columns.
    """
    keys = [backticked(name) for name in schema.match_key]
    if complete:
        rest = [f.col(backticked(name)) for name in parts.columns if name not in schema.match_key]
        found = parts.groupBy(*keys).agg(
            f.max_by(f.struct(*rest), CHANGE_VERSION).alias("_tidelog_n")
        )
        return found.select(*(_column_from(name, schema, "_tidelog_n") for name in parts.columns))
    version = f.col(CHANGE_VERSION)
    state = f.when(f.col(CHANGE_OP) == "u", version)
    aggregates = [
        f.max_by(CHANGE_OP, CHANGE_VERSION).alias("_tidelog_op"),
        f.max(version).alias("_tidelog_v"),
        f.max(f.when(f.col(CHANGE_OP) == "d", version)).alias("_tidelog_gone"),
    ]
    columns: list[Column] = []
    unknown: list[Column] = []
    for index, column in enumerate(schema.columns):
        if column.name in schema.match_key:
            columns.append(f.col(backticked(column.name)))
            continue
        number = f.lit(index).cast("smallint")
        is_absent = f.coalesce(f.array_contains(CHANGE_MISSING, number), f.lit(False))
        value = f.struct(f.col(backticked(column.name)).alias("value"), version.alias("at"))
        aggregates.append(f.max_by(value, f.when(~is_absent, state)).alias(f"_tidelog_c{index}"))
        # Values of a row before its delete are not its values now.
        at = f.col(f"_tidelog_c{index}.at")
        known = f.coalesce(at > f.coalesce("_tidelog_gone", f.lit(-1)), f.lit(False))
        columns.append(f.when(known, f.col(f"_tidelog_c{index}.value")).alias(column.name))
        unknown.append(f.when(~known, number))
    missing = f.lit(None)
    if unknown:
        numbers = f.array_compact(f.array(*unknown))
        missing = f.when((f.col("_tidelog_op") == "u") & (f.size(numbers) > 0), numbers)
    return (
        parts.groupBy(*keys)
        .agg(*aggregates)
        .select(
            f.col("_tidelog_op").alias(CHANGE_OP),
            f.col("_tidelog_v").alias(CHANGE_VERSION),
            *columns,
            missing.cast("array<smallint>").alias(CHANGE_MISSING),
        )
    )


def with_deletes_below(changes: DataFrame, version: int) -> DataFrame:
    """Return ``changes`` with deletes for rows of a lower version, none for version 0."""
    if not version:
        return changes
    op = f"IF({CHANGE_VERSION} < {version}, 'd', {CHANGE_OP})"
    return changes.withColumn(CHANGE_OP, f.expr(op))


def _column_from(name: str, schema: TableSchema, struct: str) -> Column:
    if name in schema.match_key:
        return f.col(backticked(name))
    return f.col(f"{struct}.{backticked(name)}").alias(name)


VERSION = "_version"  # version of a row's newest change, beside the table's columns
_NOT_CHANGES = (int(RecordKind.DUMP_ROW), int(RecordKind.ABSENT), int(RecordKind.CONTROL))
_COLUMNS = ("offset", "kind", "position", "xid")


def as_of(
    spark: SparkSession,
    path: str,
    *,
    version: int | None = None,
    timestamp: str | datetime | None = None,
) -> TablesAtOffset:
    """Return the tables of the event log at ``path`` as they were at one position in it.

    Args:
        spark: the session that replays.
        path: path of the event log.
        version: version of a change; that change and its whole transaction are included.
        timestamp: a time (ISO 8601; UTC unless it says otherwise): everything that was committed up
            to it is included. Default, if neither is given: everything committed in the log.

    Raises ConfigError if both are given, or the position is not in the log.
    """
    if version is not None and timestamp is not None:
        raise ConfigError("as_of: version and timestamp exclude one another")
    log = EventLog.open(path)
    at = options.LogPosition("latest")
    if version is not None:
        at = options.LogPosition("version", version)
    elif timestamp is not None:
        at = options.LogPosition("timestamp", options.microseconds("timestamp", timestamp))
    register(spark)
    return TablesAtOffset(spark, path, log, _whole_transactions(log, options.end_of(log, at)))


@dataclass
class TablesAtOffset:
    """All tables at one position of the log: with every transaction before ``end``, none
    after it.
    """

    spark: SparkSession
    path: str
    log: EventLog
    end: int

    @cached_property
    def dumps(self) -> dict[str, DumpRecord]:
        """Return, by table, the newest complete dump of all of it."""
        found: dict[str, DumpRecord] = {}
        for record in options.dump_records(self.log, self.log.head_offset, self.end):
            if record.completed and record.whole and not record.keyless:
                found.setdefault(record.table, record)
        return found

    @property
    def tables(self) -> list[str]:
        """The tables that can be replayed: those with a complete dump by then."""
        return sorted(self.dumps)

    def table(self, name: str) -> DataFrame:
        """Return the table's rows: its columns as of this position, and ``_version``, the version
        of each row's newest change. Executors compute them when the frame is used.

        Raises:
            ConfigError: the table has no complete dump here, or no key.
            OffsetGoneError: retention removed a part of the changes to replay.
        """
        table = TableName.parse(name)
        record = self.dumps.get(str(table))
        if record is None:
            raise self._no_dump(table)
        if record.first_offset < self.log.head_offset:
            raise OffsetGoneError(
                f"{self.log.storage!r}: {table} as of here begins at offset {record.first_offset}, "
                f"but retention removed everything before {self.log.head_offset}. Choose a "
                "position after a newer dump (tidelog dump)."
            )
        refs = [
            ref
            for ref in self.log.segments(record.first_offset, self.end, tables=(str(table),))
            if ref.rows
        ]
        schema = self._schema(table)
        if not schema.match_key:
            raise ConfigError(f"{table} has no key: its rows can't be identified in the log")
        first_version = max(record.first_offset, self._truncated(refs, table))
        parts = planning.partition_refs(refs, partition_bytes=PART_BYTES, partitions=None)
        changes = read_planned(
            self.spark, self.path, self.log.generation, schema, refs, parts=len(parts)
        ).where(f.col(CHANGE_VERSION) >= first_version)
        rows = fold_parts(changes, schema, complete=False)
        present_rows = rows.where((f.col(CHANGE_OP) == "u") & f.col(CHANGE_MISSING).isNull())
        columns = [f.col(backticked(name)) for name in schema.column_names]
        return present_rows.select(*columns, f.col(CHANGE_VERSION).alias(VERSION))

    def _schema(self, table: TableName) -> TableSchema:
        found = planning.schema_at(self.log, table, self.log.head_offset, self.end)
        return found or planning.table_schema(self.log, table, None)

    def _truncated(self, refs: list[SegmentRef], table: TableName) -> int:
        ids = [schema.schema_id for schema in self.log.schemas.versions(table)]
        newest = 0
        for ref in refs:
            for batch in self.log.batches(ref, ("offset", "kind"), schema_ids=ids):
                at = np.flatnonzero(batch.column("kind").to_numpy() == RecordKind.TRUNCATE)
                if len(at):
                    newest = batch.column("offset")[int(at[-1])].as_py()
        return newest

    def _no_dump(self, table: TableName) -> ConfigError:
        later = [
            record.offset
            for record in options.dump_records(self.log, self.end, self.log.latest_offset())
            if record.completed and record.whole and record.table == str(table)
        ]
        advice = "dump it (tidelog dump) and choose a position after that"
        if later:
            advice = f"the first position with one is version {min(later)}"
        return ConfigError(
            f"no dump of {table} was complete before offset {self.end} of {self.log.storage!r}, "
            f"and a table's state is built on one: {advice}"
        )


def _whole_transactions(log: EventLog, end: int) -> int:
    """Return ``end``, or the end of the transaction that ``end`` would split; the start of the
    transaction if its end is not in the log yet.
    """
    last = next(_records_before(log, end), None)
    if last is None or not last.changes[-1]:
        return end
    place = (last.position[-1], last.xid[-1])
    for records in _records_from(log, end):
        others = np.flatnonzero(~records.in_transaction(*place))
        if len(others):
            return int(records.offset[others[0]])
    tail = log.tail
    if tail is None or tail.resume is None or tail.resume.acknowledge > place[0]:
        return log.latest_offset()
    begin = end
    for records in _records_before(log, end):
        others = np.flatnonzero(~records.in_transaction(*place))
        if len(others) == len(records.offset):
            break
        begin = int(records.offset[others[-1] + 1 if len(others) else 0])
        if len(others):
            break
    return begin


class _Records:
    """The columns of ``n`` neighbouring records that identify their transactions; each int64[n],
    bool[n].
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        offset, kind, position, xid = (column.to_numpy() for column in batch.columns)
        self.offset, self.position, self.xid = offset, position, xid
        self.changes = ~np.isin(kind, _NOT_CHANGES)

    def in_transaction(self, position: int, xid: int) -> Bools:
        """Return bool[n]: the changes of one transaction."""
        same: Bools = self.changes & (self.position == position) & (self.xid == xid)
        return same


def _records_from(log: EventLog, start: int) -> Iterator[_Records]:
    for ref in log.segments(start, log.latest_offset()):
        yield from map(_Records, log.batches(ref, _COLUMNS))


def _records_before(log: EventLog, end: int) -> Iterator[_Records]:
    for segment in reversed(log.chain().between(log.head_offset, end)):
        for ref in log.segments(segment.first, min(segment.next, end)):
            yield from map(_Records, reversed(list(log.batches(ref, _COLUMNS))))
