"""Compares rows of ranges of the key, or of some keys, on both sides.

A row that differs may just not be delivered yet: the event log shows that. If a key has no record
there that the source's SELECTs did not see, nor one that the output may not have yet, then it had
one state in the source during the comparison, and the output should have it: it differs indeed. All
others are read again by key, and count as unsettled if they never stop changing (docs/adr/0013).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BooleanType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from tidelog.codecs.wire_formats import nan_key, source_spellings
from tidelog.errors import OutputError
from tidelog.model.schema import TableSchema
from tidelog.ports import ChunkRequest
from tidelog.spark import transforms
from tidelog.spark.changed_keys import as_text, with_nan
from tidelog.spark.executor_jobs import map_in_arrow
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION
from tidelog.spark.source_rows import source_frame
from tidelog.spark.transforms import Step, steps_of
from tidelog.verify.digests import cast_expressions, range_condition
from tidelog.verify.model import ALL, Copy, Key, Range, Source, TableReport

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KINDS = ("missing", "surplus", "different", "unsettled", "foreign")


@dataclass(slots=True)
class UnequalRows:
    """Unequal rows by kind: their number, and keys of some of them. Foreign ones are only in the
    output, and their key has no value of the source's type.
    """

    counts: dict[str, int]
    keys: dict[str, list[Key]]

    @property
    def definite(self) -> int:
        return sum(self.counts[kind] for kind in KINDS[:3])

    @property
    def definite_keys(self) -> list[Key]:
        return [key for kind in KINDS[:3] for key in self.keys[kind]]


class RowDifferences:
    """Rows that differ between ``source`` and ``output``, computed once when it is created: a later
    write to either never changes them. (``persist`` would allow it: Spark computes cached frames
    again after a write to a table that they read, in any session.)

    Args:
        source: the source's rows; values are compared as its types.
        output: the output's rows, perhaps with values of other types.
        columns: columns to compare.
        key: the columns among them that match rows.
        keys: rows with another key are left out.
        nan_columns: columns of the key in which null means ``NaN`` (`nan_key`).
    """

    def __init__(
        self,
        source: DataFrame,
        output: DataFrame,
        columns: Sequence[str],
        key: Sequence[str],
        keys: Sequence[Key] | None = None,
        nan_columns: Collection[str] = (),
    ) -> None:
        self._names = [f"k{place}" for place in range(len(key))]
        found = _unequal(source, output, columns, key, keys, nan_columns)
        self._frame = found.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
        self.count = self._frame.count()

    def classify(self, changed: DataFrame | bool, most: dict[str, int]) -> UnequalRows:
        """Return the rows by kind. Those with a key of ``changed`` (True: all) are unsettled.

        Args:
            changed: the result of `tidelog.spark.changed_keys.changed_keys`.
            most: about the most keys of each kind that are returned.
        """
        frame = self._frame
        foreign = f.col("kind") == "foreign"
        if changed is True:
            frame = frame.withColumn("kind", f.when(foreign, "foreign").otherwise("unsettled"))
        elif changed is not False:
            same: Column = f.lit(True)
            other = changed.withColumnsRenamed({name: f"t_{name}" for name in self._names})
            for name in self._names:
                same &= f.col(name).eqNullSafe(f.col(f"t_{name}"))
            frame = frame.join(other, same, "left").select(
                f.when(f.col("changed") & ~foreign, "unsettled")
                .otherwise(f.col("kind"))
                .alias("kind"),
                *self._names,
            )
        shape = StructType(
            [
                StructField("kind", StringType()),
                StructField("n", LongType()),
                StructField("named", BooleanType()),
                *(StructField(name, StringType()) for name in self._names),
            ]
        )
        counts = dict.fromkeys(KINDS, 0)
        keys: dict[str, list[Key]] = {kind: [] for kind in KINDS}
        for row in map_in_arrow(frame, _LimitKeys({"foreign": 0, **most}), shape).collect():
            kind = row["kind"]
            counts[kind] += row["n"]
            if row["named"] and len(keys[kind]) < most[kind]:
                keys[kind].append(tuple(row[name] for name in self._names))
        return UnequalRows(counts, keys)


def _unequal(
    source: DataFrame,
    output: DataFrame,
    columns: Sequence[str],
    key: Sequence[str],
    keys: Sequence[Key] | None,
    nan_columns: Collection[str],
) -> DataFrame:
    """Return ``kind`` and the key's texts ``k0``, ``k1`` … of the rows that differ."""
    others = [name for name in columns if name not in key]
    kinds = {field.name: field.dataType for field in source.schema.fields}
    names = [f"k{i}" for i in range(len(key))]

    def side(frame: DataFrame, mark: str) -> DataFrame:
        # An output may keep a value in another type (an enum as text): it is compared in the
        # source's.
        sql = {name: cast_expressions(frame, name, kinds[name]) for name in columns}
        values = {name: (f.expr(held), f.expr(sound)) for name, (held, sound) in sql.items()}
        sound: Column = f.lit(True)
        for name in others:
            sound &= values[name][1]
        of_key = [f.when(values[n][1], _of_key(values[n][0], n in nan_columns)) for n in key]
        held = [_comparable(values[n][0], kinds[n]).alias(f"c{i}") for i, n in enumerate(others)]
        found = frame.select(
            *[value.alias(name) for value, name in zip(of_key, names, strict=True)],
            f.struct(*held, sound.alias("sound")).alias(mark),
        )
        return found if keys is None else _with_keys(found, names, keys)

    joined = side(source, "l").join(side(output, "r"), names, "full_outer")
    no_key: Column = f.lit(False)
    for name in names:
        no_key |= f.col(name).isNull()
    kind = (
        f.when(f.col("r").isNull(), "missing")
        .when(f.col("l").isNull() & no_key, "foreign")
        .when(f.col("l").isNull(), "surplus")
        .when(~f.col("l").eqNullSafe(f.col("r")), "different")
    )
    texts = [as_text(name, joined.schema[name].dataType).alias(name) for name in names]
    return joined.select(kind.alias("kind"), *texts).where("kind is not null")


def _comparable(value: Column, kind: DataType) -> Column:
    if isinstance(kind, VariantType):
        return f.to_json(value)
    return f.sort_array(f.map_entries(value)) if isinstance(kind, MapType) else value


def _of_key(value: Column, may_be_nan: bool) -> Column:
    """Return a value of the key as a join column: never null."""
    return with_nan(value.cast("string")) if may_be_nan else value


def _with_keys(frame: DataFrame, names: Sequence[str], keys: Sequence[Key]) -> DataFrame:
    """Return the rows with one of ``keys``, whose columns are ``names``."""
    columns = ", ".join(f"w{i} string" for i in range(len(names)))
    wanted = f.broadcast(frame.sparkSession.createDataFrame(list(keys), columns))
    conditions = [
        as_text(name, frame.schema[name].dataType).eqNullSafe(wanted[f"w{i}"])
        for i, name in enumerate(names)
    ]
    condition = conditions[0]
    for other in conditions[1:]:
        condition &= other
    return frame.join(wanted, condition, "left_semi")


class _LimitKeys:
    """Keeps a limited number of each task's rows (kind, key) of a kind; counts the others, without
    keys.
    """

    def __init__(self, most: dict[str, int]) -> None:
        self._most = most

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        left = dict(self._most)
        for batch in batches:
            for kind in pc.unique(batch.column(0)).to_pylist():
                of_kind = batch.filter(pc.equal(batch.column(0), kind))
                few = of_kind.slice(0, left[kind])
                left[kind] -= len(few)
                if len(few):
                    ones = pa.array(np.ones(len(few), np.int64))
                    named = pa.array(np.ones(len(few), np.bool_))
                    yield _rows_with_names([few.column(0), ones, named, *few.columns[1:]], batch)
                rest = len(of_kind) - len(few)
                if rest:
                    none = [pa.nulls(1, pa.string()) for _ in batch.schema.names[1:]]
                    count = pa.array([rest], pa.int64())
                    columns = [pa.array([kind]), count, pa.array([False]), *none]
                    yield _rows_with_names(columns, batch)


def _rows_with_names(columns: list[pa.Array], batch: pa.RecordBatch) -> pa.RecordBatch:
    names = ["kind", "n", "named", *batch.schema.names[1:]]
    return pa.RecordBatch.from_arrays(columns, names=names)


MOST_KEYS = 1_000
MOST_UNSETTLED = 20_000  # read again by key
ROUNDS = 5
BEHIND = "the output did not catch up with the source: do capture and the pipeline run?"
FOREIGN = "the output has rows whose key is NULL, or no value of the source's type"


class RowComparison:
    """Compares rows of one table with its copy, and counts in ``report``.

    Attributes:
        again: keys of rows that differed and may not have been delivered: to be read again.
        unjudged: number of rows that differed and are not read again by key.
    """

    def __init__(
        self, spark: SparkSession, copy: Copy, source: Source, report: TableReport
    ) -> None:
        self.again: list[Key] = []
        self.unjudged = 0
        self._rounds = 0
        self._spark = spark
        self._copy = copy
        self._source = source
        self._report = report
        self._schema = copy.target.schema
        self._steps = steps_of(copy.steps, self._schema.table)

    def copy_rows(self, part: Range) -> DataFrame:
        """Return the copy's rows, at least those of the range."""
        found = self._copy.frame(part)
        if found is None:
            raise OutputError(f"the copy of {self._schema.table} does not exist any more")
        return found

    def copy_rows_of(self, ranges: Sequence[Range]) -> DataFrame:
        """Return the copy's rows of neighbouring ranges, and no others."""
        if list(ranges) == [ALL]:
            return self.copy_rows(ALL)
        found = self.copy_rows((ranges[0][0], ranges[-1][1]))
        key = self._copy.target.key
        condition = range_condition(found, self._schema, key, ranges[0])
        for part in ranges[1:]:
            condition |= range_condition(found, self._schema, key, part)
        return found.where(condition)

    def compare(self, ranges: Sequence[Range]) -> None:
        """Compare rows of the ranges; those that may not be delivered yet are left to `retry`."""
        self._report.ranges_read += len(ranges)
        requests = [
            ChunkRequest(self._schema.table, after=after, upto=upto) for after, upto in ranges
        ]
        found = self._compare_once(requests, lambda: self.copy_rows_of(ranges))
        report = self._report
        self.again += found.keys["unsettled"]
        beyond = found.counts["unsettled"] - len(found.keys["unsettled"])
        if found.counts["foreign"]:  # rows that are not delivered yet never have such a key
            report.surplus += found.counts["foreign"]
            report.note = report.note or FOREIGN
        if found.definite > MOST_KEYS:
            self._count(found)
        else:  # by key, whatever the order of keys is
            self.again += found.definite_keys
        report.unsettled += beyond
        self.unjudged += beyond

    def retry(self, caught_up: bool) -> None:
        """Read the rows of ``again`` once more, by key; after some rounds, what still changes is
        unsettled. ``caught_up``: whether the copy has what was committed before.
        """
        report, key = self._report, self._schema.match_key
        if not caught_up:
            report.note = BEHIND
        asked = [each for k in self.again for each in source_spellings(k, self._schema, key)]
        request = ChunkRequest(self._schema.table, keys=tuple(asked), key_columns=key)
        found = self._compare_once([request], lambda: self.copy_rows(ALL), self.again)
        self._count(found)
        self.again, self._rounds = list(found.keys["unsettled"]), self._rounds + 1
        if not caught_up or self._rounds == ROUNDS:  # it would not in the next round either
            report.unsettled += len(self.again)
            self.again, self._rounds = [], 0
        elif not self.again:
            self._rounds = 0

    def _compare_once(
        self,
        requests: list[ChunkRequest],
        rows: Callable[[], DataFrame],
        keys: list[Key] | None = None,
    ) -> UnequalRows:
        """Return the differences between rows of the source and of the copy, of ``keys`` if given:
        the source's own comparison may find others besides.

        The copy may be pinned to its state when its frame is created: that must be after ``watch``
        read the state's offset.
        """
        table, target = self._schema.table, self._copy.target
        self._source.report_stage(table, "rows are read from both sides")
        judge = self._source.watch(table, self._copy)
        source = source_frame(self._spark, self._source.open_reader, self._schema, requests)
        expected = _transformed(source, self._steps, self._schema)
        pairs = zip(self._schema.match_key, target.key, strict=True)
        nan_columns = {ours for name, ours in pairs if name in nan_key(self._schema)}
        unequal = RowDifferences(
            expected, rows(), target.columns.names, target.key, keys, nan_columns
        )
        changed = judge(self._spark) if unequal.count else False
        most = dict.fromkeys(("missing", "surplus", "different"), MOST_KEYS)
        return unequal.classify(changed, {**most, "unsettled": MOST_UNSETTLED})

    def _count(self, found: UnequalRows) -> None:
        report = self._report
        report.missing += found.counts["missing"]
        report.surplus += found.counts["surplus"]
        report.different += found.counts["different"]
        report.keys = (*report.keys, *found.definite_keys)[:MOST_KEYS]


def _transformed(rows: DataFrame, steps: Sequence[Step], schema: TableSchema) -> DataFrame:
    """Return rows of the source as an output with ``steps`` has them."""
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
