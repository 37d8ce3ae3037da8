"""Checks whether an output is equal to its source, while both change, and never gives a wrong
answer.

The source, by SQL, and the output, by tasks on executors (`tidelog.verify.digests`), sum up ranges
of the key: those of many tables at a time. Equal sums mean equal rows. Where they differ,
both sides' rows of these ranges are compared.

A row that differs may just not be delivered yet: the event log shows that. If a key has no record
there that the source's SELECTs did not see, nor one that the output may not have yet, then it had
one state in the source during the comparison, and the output should have it: it differs indeed. All
others are read again by key, and count as unsettled if they never stop changing (docs/adr/0013).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.errors import PySparkException
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

from tidelog.codecs.wire_formats import nan_key, source_spellings, wire_format
from tidelog.errors import ChunkError, DecodeError, OutputError, TidelogError
from tidelog.model.schema import TableSchema, backticked, element_of, members_of
from tidelog.model.units import counted
from tidelog.ports import ChunkRequest, Digest
from tidelog.spark import transforms
from tidelog.spark.changed_keys import as_text, with_nan
from tidelog.spark.executor_jobs import map_in_arrow
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION
from tidelog.spark.sessions.errors import Py4JJavaError, known_error, output_error
from tidelog.spark.source_rows import source_frame
from tidelog.spark.transforms import Step, delivered_names, steps_of
from tidelog.verify import digests as row_digests
from tidelog.verify.digests import CopySums, cast_expressions, range_condition
from tidelog.verify.model import ALL, BY_ROWS, Copy, Key, Range, Source, SourceRanges, TableReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
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


RANGE_ROWS = 20_000
RANGES_AT_ONCE = 64
TABLES_AT_ONCE = 64
_ROUND_S = 0.5
_DATES = ("date", "timestamp", "timestamptz")
_UNCHANGING = ("select", "drop", "rename", "route")


def verify_tables(
    spark: SparkSession, copies: Iterable[Copy], source: Source
) -> Iterator[tuple[Copy, TableReport]]:
    """Compare tables, whose match keys must be set, with their copies, many at a time.

    An error of one table or copy is the ``note`` of its report. Before any other error is raised,
    the reports of the tables that were compared are returned.
    """
    waiting = iter(copies)
    while some := [_Comparison(spark, each, source) for each in islice(waiting, TABLES_AT_ONCE)]:
        try:
            begun = [each for each in some if each.can_compare()]
            came = _caught_up(source, begun)
            to_sum = [each for each in begun if each in came and each.begin(came[each])]
            _sum_up(spark, source, to_sum)
            _settle(source, begun)
        except BaseException:
            yield from ((each.copy, each.report()) for each in some if each.done)
            raise
        yield from ((each.copy, each.report()) for each in some)


def _caught_up(source: Source, comparisons: Sequence[_Comparison]) -> dict[_Comparison, bool]:
    """Return which copies have caught up, without those that can't say so."""
    try:
        found = source.caught_up([each.copy for each in comparisons])
    except OutputError:
        pass
    else:
        return dict(zip(comparisons, found, strict=True))
    came = {}
    for each in comparisons:
        with each.own_errors():
            came[each] = source.caught_up([each.copy])[0]
    return came


def _sum_up(spark: SparkSession, source: Source, comparisons: Sequence[_Comparison]) -> None:
    """Compare sums, in one Spark job for as many tables as have `RANGES_AT_ONCE` ranges."""
    waiting = deque(comparisons)
    while waiting:
        unplanned = [each for each in waiting if not each.planned]
        requests = [each.next_request() for each in unplanned]
        ends = source.boundaries(requests, RANGES_AT_ONCE)
        for each, found in zip(unplanned, ends, strict=True):
            with each.own_errors():
                each.plan(found)
        waiting = deque(each for each in waiting if each.planned)
        job: list[_Comparison] = []
        room = RANGES_AT_ONCE
        while waiting and (not job or len(waiting[0].planned) <= room):
            job.append(waiting.popleft())
            room -= len(job[-1].planned)
        if job:
            _compare_sums(spark, source, job)
            waiting.extendleft(each for each in reversed(job) if not each.summed_up)
        if sum(len(each.rows.again) for each in comparisons) > MOST_UNSETTLED:
            _settle(source, comparisons)


def _settle(source: Source, comparisons: Sequence[_Comparison]) -> None:
    """Read rows again that may not have been delivered: in rounds, with one wait for all copies."""
    pause_s = 0.0
    while waiting := [each for each in comparisons if each.rows.again]:
        time.sleep(pause_s)
        pause_s = _ROUND_S
        for each, caught_up in _caught_up(source, waiting).items():
            with each.own_errors():
                each.rows.retry(caught_up)


def _compare_sums(spark: SparkSession, source: Source, job: Sequence[_Comparison]) -> None:
    for each in job:
        source.report_stage(each.schema.table, "rows are summed up on both sides")
    theirs = source.digests([each.source_ranges() for each in job])
    try:
        ours = row_digests.digests(spark, [each.copy_sums() for each in job])
    except Exception as error:
        theirs()  # until then its readers are in use
        if len(job) == 1:
            with job[0].own_errors():
                raise
        elif copy_error(error) is None:
            raise
        else:  # whose error it is shows one by one
            for each in job:
                _compare_sums(spark, source, [each])
        return
    for each, their, our in zip(job, theirs(), ours, strict=True):
        with each.own_errors():
            each.compare_sums(their, our)


def copy_error(error: Exception) -> TidelogError | None:
    """Return the error of a table, or its copy, that can't be read; None: it is no error of one
    copy alone.
    """
    found = known_error(error)
    if found is None and isinstance(error, Py4JJavaError | PySparkException):
        found = output_error("reading the copy", error)
    return found if isinstance(found, ChunkError | OutputError | DecodeError) else None


class _Comparison:
    """The comparison of one table.

    Attributes:
        planned: the next ranges to sum up; empty: not known yet.
        summed_up: whether nothing is left to sum up.
        rows: compares rows where sums differ, or can't be compared.
    """

    def __init__(self, spark: SparkSession, copy: Copy, source: Source) -> None:
        self.copy = copy
        self.schema = copy.target.schema
        self.planned: list[Range] = []
        self.summed_up = False
        self._done = False
        self._source = source
        self._steps = steps_of(copy.steps, self.schema.table)
        self._columns: Sequence[str] = copy.target.columns.names
        self._report = TableReport(str(self.schema.table), True)
        self.rows = RowComparison(spark, copy, source, self._report)
        self._names: Mapping[str, str] = {}
        self._ordered = False  # whether a row has the same range on both sides
        self._after: Key | None = None
        self._theirs: list[Digest] = []  # of the ranges so far, if it has not

    @property
    def done(self) -> bool:
        """Whether the comparison has a result."""
        return self._done and not self.rows.again

    @contextmanager
    def own_errors(self) -> Iterator[None]:
        """An error of the table or copy inside ends this comparison alone: its report says so."""
        try:
            yield
        except Exception as error:
            found = copy_error(error)
            if found is None:
                raise
            self._refuse(f"not compared: {found}")
            self.planned, self.summed_up, self.rows.again = [], True, []

    def can_compare(self) -> bool:
        """Does the output deliver the table, and can rows of the copy be found by key?"""
        left_out = self.copy.left_out()
        self._report.left_out = True if left_out else None
        self._refuse(f"the output leaves it out: {left_out}" if left_out else self._key_changes())
        return not self._report.note

    def begin(self, caught_up: bool) -> bool:
        """Return True if it can be compared by sums. Otherwise it is compared now, if possible."""
        with self.own_errors():
            if self._begin(caught_up):
                return True
        self._done = True
        return False

    def _begin(self, caught_up: bool) -> bool:
        if not caught_up:
            self._report.note = BEHIND
        missing = self._missing_parts()
        if missing:
            self._refuse(missing)
            return False
        names = _unchanged_columns(self._columns, self._steps, self.schema)
        if names is None:
            self._compare_by_rows("the output's steps change rows")
            return False
        because = self._source.why_not(self.schema, list(names.values()))
        kinds = {column.logical for column in self.schema.columns}
        if "variant" in kinds:
            because = "a VARIANT has no text as the source writes it"
        elif any(map(_is_nested, kinds)):
            because = "structs, nested arrays and times have no text as the source writes it"
        if because is not None:
            self._compare_by_rows(because)
            return False
        self._names = names
        self._ordered = row_digests.has_common_order(self.schema) and not self._has_invalid_dates()
        return True

    def report(self) -> TableReport:
        report = self._report
        if not report.equal:
            return report
        report.equal = not (
            report.missing or report.surplus or report.different or self.rows.unjudged
        )
        if report.note == BEHIND:  # rows written after the count were compared by key
            with self.own_errors():
                report.rows = self.rows.copy_rows(ALL).count()
        if report.note and report.unsettled:
            report.equal = False
        return report

    def _refuse(self, note: str) -> None:
        if note:
            self._report.equal, self._report.note = False, note
            self._done = True

    def _key_changes(self) -> str:
        """Return why rows of the copy can't be found by key; empty if they can."""
        key: Sequence[str | None] = self.schema.match_key
        for step in self._steps:
            if _changes_key(step, key):
                return f"the step {step.action} changes the key's values: rows can't be found by it"
            key = delivered_names(key, [step])
        return ""

    def _missing_parts(self) -> str:
        """Return what the copy does not have for a comparison; empty if nothing."""
        found = self.copy.columns()
        if found is None:
            return "the output has no such table"
        absent = [column for column in self._columns if column not in found]
        late = "under `evolve` a new one comes with the table's next row"
        return f"the output has no column {absent[0]} ({late})" if absent else ""

    def _has_invalid_dates(self) -> bool:
        """Does the copy have dates that the source sorts among others, and Spark before?"""
        if not wire_format(self.schema).has_invalid_dates:
            return False
        columns = {column.name: column.logical for column in self.schema.columns}
        pairs = zip(self.schema.match_key, self.copy.target.key, strict=True)
        names = [ours for name, ours in pairs if columns[name] in _DATES]
        if not names:
            return False
        early = [f"{backticked(name)} < DATE'0001-01-01'" for name in names]
        return not self.rows.copy_rows(ALL).where(" OR ".join(early)).isEmpty()

    # ------------------------------------------------------------------ sums

    def next_request(self) -> ChunkRequest:
        return ChunkRequest(self.schema.table, after=self._after, limit_rows=RANGE_ROWS)

    def plan(self, found: Sequence[Key] | ChunkError) -> None:
        """Set the ends of the next ranges, or handle the error of the source."""
        if isinstance(found, ChunkError):
            self._fail(found)
            return
        ends: list[Key | None] = list(found)
        if len(ends) < RANGES_AT_ONCE:
            ends.append(None)
        ranges = list(pairwise([self._after, *ends]))
        if self._ordered and not row_digests.ascending(self.schema, _bounds(ranges)):
            if self._after is not None:
                self._fail(ChunkError("the key's order in the source can't be followed"))
                return
            self._ordered = False
        self.planned = ranges

    def source_ranges(self) -> SourceRanges:
        return SourceRanges(self.schema, tuple(self._names.values()), tuple(self.planned))

    def copy_sums(self) -> CopySums | None:
        """Return the ranges of the copy to sum up; None: nothing now."""
        if self._ordered:
            return CopySums(self.copy, self._names, tuple(self.planned))
        return CopySums(self.copy, self._names, (ALL,)) if self.planned[-1][1] is None else None

    def compare_sums(self, theirs: Sequence[Digest] | ChunkError, ours: Sequence[Digest]) -> None:
        """Compare the sums of the planned ranges."""
        if isinstance(theirs, ChunkError):
            self._fail(theirs)
            return
        ranges, self.planned = self.planned, []
        report = self._report
        report.ranges += len(ranges)
        report.rows += sum(digest.rows for digest in ours)
        self._after = ranges[-1][1]
        self.summed_up = self._after is None
        unequal: list[Range] = []
        if self._ordered:
            pairs = zip(ranges, theirs, ours, strict=True)
            unequal = [part for part, their, our in pairs if their != our]
        else:  # a row's range in the output is unknown: ranges add up
            self._theirs += theirs
            whole = Digest(sum(d.rows for d in self._theirs), sum(d.total for d in self._theirs))
            unequal = [ALL] if self.summed_up and list(ours) != [whole] else []
        if unequal:
            self.rows.compare(unequal)
        self._done = self.summed_up
        self._source.report_stage(
            self.schema.table, f"{counted(report.rows, 'row')} summed up on both sides"
        )

    def _fail(self, error: ChunkError) -> None:
        """Compare by rows what was not summed up."""
        self.planned, self.summed_up = [], True
        if self._after is None or not self._ordered:
            self._compare_by_rows(str(error))
            return
        self._report.because = str(error)
        self._report.ranges += 1
        rest: list[Range] = [(self._after, None)]
        self._report.rows += self.rows.copy_rows_of(rest).count()
        self.rows.compare(rest)
        self._done = True

    def _compare_by_rows(self, because: str) -> None:
        report = self._report
        report.method, report.because = BY_ROWS, because
        self._source.report_stage(self.schema.table, "the copy's rows are counted")
        report.rows = self.rows.copy_rows(ALL).count()
        self.rows.compare([ALL])
        self._done = True


def _bounds(ranges: Sequence[Range]) -> list[Key]:
    ends = [ranges[0][0], *(upto for _, upto in ranges)]
    return [end for end in ends if end is not None]


def _is_nested(logical: str) -> bool:
    """Is it a struct, an array of arrays or structs, or a time of day?"""
    inner = element_of(logical) or ""
    has_members = members_of(logical) is not None or members_of(inner) is not None
    return has_members or element_of(inner) is not None or logical == "time"


def _unchanged_columns(
    columns: Sequence[str], steps: Sequence[Step], schema: TableSchema
) -> dict[str, str] | None:
    """Return, by column of the output, the source's column with the same values; None if steps do
    more than select and name columns.
    """
    if any(step.action not in _UNCHANGING for step in steps):
        return None
    delivered = delivered_names(schema.column_names, steps)
    names = dict(zip(delivered, schema.column_names, strict=True))
    return {name: names[name] for name in columns}


def _changes_key(step: Step, key: Sequence[str | None]) -> bool:
    """May the step change values of the key? (A step python may not, by its contract.)"""
    return step.action in ("cast", "compute", "mask", "hash") and not set(key).isdisjoint(
        step.argument
    )
