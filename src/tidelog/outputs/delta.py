"""The Delta output: a copy of each table, kept by MERGE, exactly once.

Per batch and table: executors decode the range and fold it to the newest state per key; one MERGE
brings it over. What is done is read from the table itself: a MERGE commits the batch's end offset
as Delta's transaction version (application: log generation and output), and a batch's part below
the committed offset is skipped. So a batch may come again, cut differently, also from a new
checkpoint. Names in SQL are quoted by `tidelog.outputs.delta_table.quoted`.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.functions import expr

from tidelog.errors import OutputError, TidelogError
from tidelog.eventlog.reader import EventLog
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.delta_table import DeltaTable, quoted
from tidelog.outputs.folding import fold_parts
from tidelog.outputs.ranges import gone_below, refs_of, schema_in
from tidelog.pipeline.failures import find_error
from tidelog.pipeline.options import PlannedRefs
from tidelog.pipeline.planning import matches, runs
from tidelog.pipeline.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION
from tidelog.pipeline.source import register
from tidelog.ports import OutputBatch, TableRange
from tidelog.wire.partial_rows import columns_that_may_lack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# One task folds this much alone, without a shuffle; more is folded in parts and then by Spark.
_PART_BYTES = 512 << 20

# Of sessions that run our MERGEs.
_SESSION_CONF = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_TXN_APP = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"


@dataclass(frozen=True, slots=True)
class _Task:
    """What is to be done for one table in one batch."""

    table: TableName
    start: int
    end: int
    has_rows: bool
    gone_below: int  # rows of a lower version are gone from the source (truncate, full dump)


class DeltaOutput:
    """`tidelog.ports.Output` over a directory (or object-store prefix) of Delta tables.

    Args:
        spark: a session with Delta; each table gets a session of its own beside it.
        log_path: the event log that batches refer to.
        path: the lake's root; a table is at ``path/namespace/name``.
        tables: names or patterns; empty: all.
        name: tells this output from others of the same log; part of Delta's application id.
        version_column: name of the column that holds a row's version.
        parallel_tables: how many tables are merged at once.
    """

    def __init__(
        self,
        spark: SparkSession,
        log_path: str,
        path: str,
        *,
        tables: Sequence[str] = (),
        name: str = "delta",
        version_column: str = "_version",
        parallel_tables: int = 2,
    ) -> None:
        self.name = name
        self._spark = spark
        self._log = EventLog.open(log_path)
        self._log_path = log_path
        self._root = path
        self._patterns = tuple(tables)
        self._version_column = version_column
        self._tables: dict[TableName, DeltaTable] = {}
        self._checked: set[TableName] = set()
        self._schemas: dict[TableName, int] = {}
        self._pool = ThreadPoolExecutor(max(1, parallel_tables), thread_name_prefix="delta")

    def prepare(self, generation: str) -> None:
        """Check the tables that are there already."""
        if self._log.generation != generation:
            raise OutputError(
                f"the Delta output reads generation {self._log.generation} of the event log, the "
                f"pipeline generation {generation}: restart the pipeline"
            )
        for table in self._log.schemas.tables():
            if matches(table, self._patterns):
                delta = self._table(table)
                if delta.exists():
                    delta.check_ours(generation)
                    self._checked.add(table)

    def write(self, batch: OutputBatch) -> None:
        """Merge every table of the batch; tables in parallel."""
        tasks = self._tasks(batch)
        futures = [self._pool.submit(self._run, task, batch.generation) for task in tasks]
        failures = [error for future in futures if (error := future.exception()) is not None]
        if failures:
            raise failures[0]

    def committed(self, table: TableName) -> int | None:
        delta = self._table(table)
        return delta.committed(self._application) if delta.exists() else None

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def _application(self) -> str:
        return f"tidelog/{self._log.generation}/{self.name}"

    def _tasks(self, batch: OutputBatch) -> list[_Task]:
        gone = gone_below(self._log, batch)
        ranges = {str(each.table): each for each in batch.tables}
        names = {name: each.table for name, each in ranges.items()}
        names |= {name: TableName.parse(name) for name in gone if name not in names}
        tasks = [
            _Task(table, batch.start, batch.end, name in ranges, gone.get(name, 0))
            for name, table in sorted(names.items())
            if matches(table, self._patterns)
        ]
        # The largest first: it decides how long the batch takes.
        return sorted(tasks, key=lambda task: -_size(ranges.get(str(task.table))))

    def _run(self, task: _Task, generation: str) -> None:
        try:
            self._bring_over(task, generation)
        except TidelogError:
            raise
        except Exception as error:
            ours = find_error(str(error))  # of an executor: retrying helps no undecodable record
            if ours is not None:
                raise ours from error
            raise OutputError(
                f"Delta table {self._table(task.table).path}: writing offsets {task.start} to "
                f"{task.end} of {task.table} failed: {_reason(error)}"
            ) from error

    def _bring_over(self, task: _Task, generation: str) -> None:
        delta = self._table(task.table)
        exists = delta.exists()
        if exists and task.table not in self._checked:
            delta.check_ours(generation)
        start = max(task.start, (delta.committed(self._application) or 0) if exists else 0)
        if start >= task.end:
            return
        parts = self._parts(task, start) if task.has_rows else []
        schema = schema_in(self._log, task.table, start, task.end)
        if schema is None or not schema.match_key:
            if schema is not None:
                raise OutputError(
                    f"{task.table} has no primary key and no surrogate key: a Delta copy can't be "
                    "kept. Exclude it from this output's tables, or name a surrogate key."
                )
            if not exists:
                return
        elif not exists:
            delta.create(schema, generation)
        elif self._schemas.get(task.table) != schema.schema_id:
            delta.evolve(schema)
        self._checked.add(task.table)
        if schema is not None:
            self._schemas[task.table] = schema.schema_id
        session = delta.spark
        session.conf.set(_TXN_APP, self._application)
        session.conf.set(_TXN_VERSION, str(task.end))
        try:
            if parts and schema is not None:
                self._write_rows(delta, task, schema, parts)
            elif task.gone_below and exists:
                version = quoted(self._version_column)
                where = f"{version} < {task.gone_below}"
                session.sql(f"DELETE FROM {delta.sql_name} WHERE {where}")  # noqa: S608
        finally:
            session.conf.unset(_TXN_APP)
            session.conf.unset(_TXN_VERSION)

    def _parts(self, task: _Task, start: int) -> list[PlannedRefs]:
        """Nothing, or the range as what single tasks fold."""
        refs = refs_of(self._log, task.table, start, task.end)
        if not refs:
            return []
        split = runs(refs, partition_bytes=_PART_BYTES, partitions=None)
        return [PlannedRefs(self._log.generation, tuple(run)) for run in split]

    def _write_rows(
        self, delta: DeltaTable, task: _Task, schema: TableSchema, parts: list[PlannedRefs]
    ) -> None:
        refs = PlannedRefs(parts[0].generation, tuple(r for part in parts for r in part.refs))
        source: DataFrame = (
            delta.spark.read.format("tidelog")
            .option("path", self._log_path)
            .option("shape", "changes")
            .option("table", str(task.table))
            .option("schemaVersion", schema.schema_id)
            .option("refs", refs.to_option())
            .option("partitions", len(parts))
            .option("partitionBytes", 1)
            .load()
        )
        if task.gone_below:
            gone = f"IF({CHANGE_VERSION} < {task.gone_below}, 'd', {CHANGE_OP})"
            source = source.withColumn(CHANGE_OP, expr(gone))
        held = source.persist() if len(parts) > 1 else None
        try:
            if held is not None:
                source = fold_parts(held, schema)
            if delta.is_empty():
                self._append(delta, schema, source)
            else:
                self._merge(delta, schema, source, task.gone_below)
        finally:
            if held is not None:
                held.unpersist()

    def _append(self, delta: DeltaTable, schema: TableSchema, source: DataFrame) -> None:
        """The table is empty: nothing can match."""
        rows = source.where(f"{CHANGE_OP} = 'u' AND {CHANGE_MISSING} IS NULL")
        columns = [quoted(name) for name in schema.column_names]
        version = f"{CHANGE_VERSION} AS {quoted(self._version_column)}"
        rows.selectExpr(*columns, version).write.format("delta").mode("append").save(delta.path)

    def _merge(
        self, delta: DeltaTable, schema: TableSchema, source: DataFrame, gone_below: int
    ) -> None:
        view = "tidelog_changes"
        source.createOrReplaceTempView(view)
        version = quoted(self._version_column)
        keys = " AND ".join(f"t.{quoted(k)} = s.{quoted(k)}" for k in schema.match_key)
        updates = [f"t.{version} = s.{CHANGE_VERSION}"]
        partial = columns_that_may_lack(schema)
        for index, column in enumerate(schema.columns):
            name = quoted(column.name)
            value = f"s.{name}"
            if column.name in partial:
                unknown = f"s.{CHANGE_MISSING} IS NOT NULL AND array_contains(s.{CHANGE_MISSING}, "
                value = f"IF({unknown}CAST({index} AS SMALLINT)), t.{name}, s.{name})"
            updates.append(f"t.{name} = {value}")
        names = [quoted(name) for name in schema.column_names]
        inserted = ", ".join([*names, version])
        values = ", ".join([*(f"s.{name}" for name in names), f"s.{CHANGE_VERSION}"])
        newer = f"s.{CHANGE_VERSION} > t.{version}"
        statement = (
            f"MERGE INTO {delta.sql_name} t USING {view} s ON {keys} "  # noqa: S608
            f"WHEN MATCHED AND {newer} AND s.{CHANGE_OP} = 'd' THEN DELETE "
            f"WHEN MATCHED AND {newer} THEN UPDATE SET {', '.join(updates)} "
            f"WHEN NOT MATCHED AND s.{CHANGE_OP} = 'u' AND s.{CHANGE_MISSING} IS NULL "
            f"THEN INSERT ({inserted}) VALUES ({values})"
        )
        if gone_below:
            statement += f" WHEN NOT MATCHED BY SOURCE AND t.{version} < {gone_below} THEN DELETE"
        delta.spark.sql(statement)

    def _table(self, table: TableName) -> DeltaTable:
        found = self._tables.get(table)
        if found is None:
            session = self._spark.newSession()
            for name, value in _SESSION_CONF.items():
                session.conf.set(name, value)
            register(session)
            found = DeltaTable(session, self._root, table, self._version_column)
            self._tables[table] = found
        return found


def _size(found: TableRange | None) -> int:
    return found.payload_bytes if found else 0


def _reason(error: Exception) -> str:
    """The error's kind and Spark's error class; its text may hold values."""
    get_condition = getattr(error, "getCondition", None)
    condition = get_condition() if get_condition is not None else None
    return f"{type(error).__name__}{f' ({condition})' if condition else ''}"
