"""Is an output equal to its source? Row by row, on Spark's executors, while both may change.

An executor reads the source in key order, with the same SELECT and the same decoder as a dump's
chunks; Spark compares the rows with the output's by key. Rows that differ may only be on
their way: they are looked at again, once the output has taken in all that was committed when they
were read, and only what still differs then is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from tidelog.eventlog.layout import RECORD_SCHEMA
from tidelog.model.records import LogBatch, binary_array
from tidelog.model.schema import TableSchema
from tidelog.pipeline import transforms
from tidelog.pipeline.arrow_frames import map_in_arrow
from tidelog.pipeline.key_frames import as_text
from tidelog.pipeline.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION, row_type
from tidelog.pipeline.transforms import Step, quoted, steps_of
from tidelog.ports import ChunkReader, ChunkRequest, TargetTable
from tidelog.wire.decode import decode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Key = tuple[str | None, ...]
MOST_KEYS = 1_000
ROUNDS = 5
ROUND_ROWS = 50_000
BEHIND = "the output did not catch up with the source: is the pipeline running?"


class OpenReader(Protocol):
    """Opens a chunk reader; pickled to the executors."""

    def __call__(self) -> ChunkReader: ...


@dataclass(slots=True)
class TableReport:
    """What the comparison of one table found; ``keys`` are for repair, not for logs."""

    table: str
    equal: bool
    rows: int
    missing: int
    surplus: int
    different: int
    keys: list[Key]
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def records_of(rows: LogBatch) -> pa.RecordBatch:
    """A chunk's rows in the event log's record layout, for the decoder."""
    numbers = pa.array(range(len(rows)), pa.int64())
    return pa.RecordBatch.from_arrays(
        [
            numbers,
            pa.array(rows.kind, pa.uint8()),
            pa.array(rows.schema_id, pa.int32()),
            pa.array(rows.position, pa.int64()),
            pa.array(rows.ordinal, pa.int64()),
            pa.array(rows.xid, pa.int64()),
            pa.array(rows.commit_ts, pa.int64()),
            binary_array(rows.payload_offsets, rows.payload),
        ],
        schema=RECORD_SCHEMA,
    )


def read_rows(
    open_reader: OpenReader, schema: TableSchema, requests: Iterable[ChunkRequest]
) -> Iterator[pa.RecordBatch]:
    """The source's rows, decoded to ``schema``. Runs on executors."""
    reader = open_reader()
    try:
        for request in requests:
            after = request.after
            while True:
                chunk = reader.read(
                    ChunkRequest(
                        request.table, after, request.upto, ROUND_ROWS, request.keys, request.where
                    )
                )
                reader.release()
                present = chunk.rows.filter(chunk.rows.kind == ord("r"))
                if len(present):
                    decoded = decode(records_of(present), chunk.schema, target=schema, before=False)
                    assert decoded.after is not None
                    yield pa.RecordBatch.from_struct_array(decoded.after)
                if chunk.exhausted or request.keys is not None:
                    break
                after = chunk.last_key
    finally:
        reader.close()


def source_frame(
    spark: SparkSession, open_reader: OpenReader, schema: TableSchema, requests: list[ChunkRequest]
) -> DataFrame:
    """The source's rows of ``requests``, each read by one task."""

    class SourceRows(DataSource):
        """Made for one frame: what it holds travels inside the pickled class, never in options,
        which Spark shows in plans.
        """

        @classmethod
        def name(cls) -> str:
            return "tidelog-source-rows"

        def schema(self) -> StructType:
            return row_type(schema)

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    class Reader(DataSourceReader):
        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(place) for place in range(len(requests))]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            kind = to_arrow_schema(row_type(schema), timezone="UTC")
            for batch in read_rows(open_reader, schema, [requests[partition.value]]):
                yield batch.cast(kind)

    spark.dataSource.register(SourceRows)
    return spark.read.format("tidelog-source-rows").load()


@dataclass(frozen=True)
class Copy:
    """An output's copy of a table.

    Attributes:
        target: its columns and key, after the steps.
        steps: what makes its rows of the source's.
        frame: the rows as they are now; None if there is no such table.
    """

    target: TargetTable
    steps: tuple[Step, ...]
    frame: Callable[[], DataFrame | None]


def compare(
    source: DataFrame, output: DataFrame, columns: Sequence[str], key: Sequence[str]
) -> tuple[int, int, int, list[Key]]:
    """Rows missing in the output, surplus in it, different; and up to `MOST_KEYS` of their keys."""
    from pyspark.sql import functions as f

    others = [name for name in columns if name not in key]
    kinds = {field.name: field.dataType for field in source.schema.fields}

    def side(frame: DataFrame, mark: str) -> DataFrame:
        # An output may keep a value in another type (an enum as text): as the source's it counts.
        values = {
            name: f.col(quoted(name))
            if frame.schema[name].dataType == kinds[name]
            else f.col(quoted(name)).try_cast(kinds[name])
            for name in columns
        }
        return frame.select(
            *[values[name].alias(f"k{i}") for i, name in enumerate(key)],
            f.struct(*[values[n].alias(f"c{i}") for i, n in enumerate(others)], f.lit(1)).alias(
                mark
            ),
        )

    joined = side(source, "l").join(
        side(output, "r"), [f"k{i}" for i in range(len(key))], "full_outer"
    )
    kind = (
        f.when(f.col("r").isNull(), "missing")
        .when(f.col("l").isNull(), "surplus")
        .when(~f.col("l").eqNullSafe(f.col("r")), "different")
    )
    texts = [as_text(f"k{i}", joined.schema[f"k{i}"].dataType) for i in range(len(key))]
    unequal = joined.select(
        kind.alias("kind"), *[text.alias(f"k{i}") for i, text in enumerate(texts)]
    ).where("kind is not null")
    names = [f"k{i}" for i in range(len(key))]
    shape = StructType(
        [
            StructField("kind", StringType()),
            StructField("n", LongType()),
            StructField("named", BooleanType()),
        ]
        + [StructField(name, StringType()) for name in names]
    )
    # In one job: between two, the output may have changed.
    counts = dict.fromkeys(("missing", "surplus", "different"), 0)
    keys: list[Key] = []
    for row in map_in_arrow(unequal, _Few(), shape).collect():
        counts[row["kind"]] += row["n"]
        if row["named"] and len(keys) < MOST_KEYS:
            keys.append(tuple(row[name] for name in names))
    return counts["missing"], counts["surplus"], counts["different"], keys


class _Few:
    """Of each task's rows (kind, key) at most `MOST_KEYS`; the others are counted, with no key."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        left = MOST_KEYS
        for batch in batches:
            few = batch.slice(0, left)
            left -= len(few)
            if len(few):
                ones = pa.array(np.ones(len(few), np.int64))
                named = pa.array(np.ones(len(few), np.bool_))
                yield _named([few.column(0), ones, named, *few.columns[1:]], batch)
            for found in pc.value_counts(batch.slice(len(few)).column(0)).to_pylist():
                kind, count = pa.array([found["values"]]), pa.array([found["counts"]], pa.int64())
                none = [pa.nulls(1, pa.string()) for _ in batch.schema.names[1:]]
                yield _named([kind, count, pa.array([False]), *none], batch)


def _named(columns: list[pa.Array], batch: pa.RecordBatch) -> pa.RecordBatch:
    names = ["kind", "n", "named", *batch.schema.names[1:]]
    return pa.RecordBatch.from_arrays(columns, names=names)


def verify_table(
    spark: SparkSession,
    copy: Copy,
    *,
    open_reader: OpenReader,
    caught_up: Callable[[], bool],
) -> TableReport:
    """Compare one table with its copy.

    Args:
        spark: runs the comparison.
        copy: of the table, whose match key must be set.
        open_reader: opens chunk readers of the source, here and on executors.
        caught_up: waits until the output has what is committed by now; False if it does not.
    """
    target, schema = copy.target, copy.target.schema
    name = str(schema.table)
    steps = steps_of(copy.steps, schema.table)
    changed = [step for step in steps if _changes_key(step, target.key)]
    if changed:
        note = f"the step {changed[0].action} changes the key's values: rows can't be found by it"
        return TableReport(name, False, 0, 0, 0, 0, [], note)
    note = ""
    rows_there = copy.frame()
    if rows_there is None:
        return TableReport(name, False, 0, 0, 0, 0, [], "the output has no such table")
    columns = target.columns.names
    absent = [column for column in columns if column not in rows_there.columns]
    if absent:
        return TableReport(name, False, 0, 0, 0, 0, [], f"the output lacks column {absent[0]}")

    def expected(requests: list[ChunkRequest]) -> DataFrame:
        return _transformed(source_frame(spark, open_reader, schema, requests), steps, schema)

    source = expected([ChunkRequest(schema.table)])
    rows = rows_there.count()
    missing, surplus, different, keys = compare(source, rows_there, columns, target.key)
    for _ in range(ROUNDS):
        if not keys or missing + surplus + different > MOST_KEYS:
            break
        if not caught_up():
            note = BEHIND
            break
        again = [ChunkRequest(schema.table, keys=tuple(keys))]
        narrowed = _of_keys(spark, copy.frame(), target.key, keys)
        source = expected(again)
        missing, surplus, different, keys = compare(source, narrowed, columns, target.key)
        if keys:
            time.sleep(1)
    return TableReport(name, not keys, rows, missing, surplus, different, keys, note)


def _transformed(rows: DataFrame, steps: Sequence[Step], schema: TableSchema) -> DataFrame:
    """Rows of the source as an output with ``steps`` has them."""
    from pyspark.sql import functions as f

    if not steps:
        return rows
    marked = rows.withColumns(
        {
            CHANGE_OP: f.lit("u"),
            CHANGE_VERSION: f.lit(0).cast("bigint"),
            CHANGE_MISSING: f.lit(None).cast("array<smallint>"),
        }
    )
    return transforms.apply(marked, steps, schema, keyed=True).where(f"{CHANGE_OP} = 'u'")


def _changes_key(step: Step, key: Sequence[str]) -> bool:
    """May the step give a column of the key other values? (Its function may not, says a step
    python.)
    """
    return step.action in ("cast", "compute", "mask", "hash") and not set(key).isdisjoint(
        step.argument
    )


def _of_keys(
    spark: SparkSession, frame: DataFrame | None, names: Sequence[str], keys: Sequence[Key]
) -> DataFrame:
    """The output's rows with one of ``keys``."""
    from pyspark.sql import functions as f

    assert frame is not None
    columns = ", ".join(f"w{i} string" for i in range(len(names)))
    wanted = f.broadcast(spark.createDataFrame(list(keys), columns))
    conditions = [
        as_text(name, frame.schema[name].dataType).eqNullSafe(wanted[f"w{i}"])
        for i, name in enumerate(names)
    ]
    condition = conditions[0]
    for other in conditions[1:]:
        condition &= other
    return frame.join(wanted, condition, "left_semi")
