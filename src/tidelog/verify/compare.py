"""Checks whether an output is equal to its source, while both change, and never gives a wrong
answer.

The source, by SQL, and the output, by tasks on executors (`tidelog.verify.digests`), sum up ranges
of the key: those of many tables at a time. Equal sums mean equal rows. Where they differ,
`tidelog.verify.row_comparison` compares both sides' rows of these ranges.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from tidelog.codecs.wire_formats import wire_format
from tidelog.errors import ChunkError, DecodeError, OutputError, TidelogError
from tidelog.model.schema import TableSchema, backticked, element_of, members_of
from tidelog.model.units import counted
from tidelog.ports import ChunkRequest, Digest
from tidelog.spark.sessions.errors import Py4JJavaError, known_error, output_error
from tidelog.spark.transforms import Step, delivered_names, steps_of
from tidelog.verify import digests as row_digests
from tidelog.verify.digests import CopySums
from tidelog.verify.model import ALL, BY_ROWS, Copy, Key, Range, Source, SourceRanges, TableReport
from tidelog.verify.row_comparison import BEHIND, MOST_UNSETTLED, RowComparison

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
