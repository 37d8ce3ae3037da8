"""Is an output equal to its source? Found out while both change, and never answered wrongly.

Ranges of the key are summed up in the source, by SQL, and in the output, by tasks on executors
(`tidelog.verify.digests`): those of many tables at a time. Equal sums are equal rows. Where they
differ, `tidelog.verify.row_comparison` compares both sides' rows of these ranges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from tidelog.codecs.mysql.types import WIRE_FORMAT as BINLOG
from tidelog.errors import ChunkError
from tidelog.model.schema import TableSchema
from tidelog.ports import ChunkRequest, Digest
from tidelog.spark.transforms import Step, delivered_names, quoted, steps_of
from tidelog.verify import digests as row_digests
from tidelog.verify.digests import CopySums
from tidelog.verify.model import ALL, BY_ROWS, Copy, Key, Range, Ranges, Source, TableReport
from tidelog.verify.row_comparison import BEHIND, RowComparison

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RANGE_ROWS = 20_000
RANGES_AT_ONCE = 64
TABLES_AT_ONCE = 64
_DATES = ("date", "timestamp", "timestamptz")
_UNCHANGING = ("select", "drop", "rename", "route")


def verify_tables(
    spark: SparkSession, copies: Iterable[Copy], source: Source
) -> Iterator[tuple[Copy, TableReport]]:
    """Compare tables, whose match keys must be set, with their copies, many at a time."""
    waiting = iter(copies)
    while some := [_Comparison(spark, each, source) for each in islice(waiting, TABLES_AT_ONCE)]:
        begun = [each for each in some if each.may_begin()]
        caught_up = source.caught_up([each.copy for each in begun])
        to_sum = [each for each, came in zip(begun, caught_up, strict=True) if each.begin(came)]
        _sum_up(spark, source, to_sum)
        yield from ((each.copy, each.finished()) for each in some)


def _sum_up(spark: SparkSession, source: Source, comparisons: Sequence[_Comparison]) -> None:
    """Compare sums, of as many tables in one Spark job as have `RANGES_AT_ONCE` ranges."""
    waiting = deque(comparisons)
    while waiting:
        unplanned = [each for each in waiting if not each.planned]
        requests = [each.next_request() for each in unplanned]
        ends = source.boundaries(requests, RANGES_AT_ONCE)
        for each, found in zip(unplanned, ends, strict=True):
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


def _compare_sums(spark: SparkSession, source: Source, job: Sequence[_Comparison]) -> None:
    for each in job:
        source.tell(each.schema.table, "rows are summed up on both sides")
    theirs = source.digests([each.of_source() for each in job])
    ours = row_digests.digests(spark, [each.of_copy() for each in job])
    for each, their, our in zip(job, theirs(), ours, strict=True):
        each.take(their, our)


class _Comparison:
    """One table's.

    Attributes:
        planned: the ranges that are summed up next; empty: they are not known yet.
        summed_up: nothing is left to be summed up.
    """

    def __init__(self, spark: SparkSession, copy: Copy, source: Source) -> None:
        self.copy = copy
        self.schema = copy.target.schema
        self.planned: list[Range] = []
        self.summed_up = False
        self._source = source
        self._steps = steps_of(copy.steps, self.schema.table)
        self._columns: Sequence[str] = copy.target.columns.names
        self._report = TableReport(str(self.schema.table), True)
        self._rows = RowComparison(spark, copy, source, self._report)
        self._names: Mapping[str, str] = {}
        self._ordered = False  # is a row's range the same on both sides?
        self._after: Key | None = None
        self._theirs: list[Digest] = []  # of the ranges so far, where it is not

    def may_begin(self) -> bool:
        """Can rows of the copy be found by key?"""
        self._refuse(self._key_changes())
        return not self._report.note

    def begin(self, caught_up: bool) -> bool:
        """Can it be compared by sums? If not, it is compared now, if it can be at all."""
        if not caught_up:
            self._report.note = BEHIND
        lacks = self._lacks()
        if lacks:
            self._refuse(lacks)
            return False
        names = _unchanged_columns(self._columns, self._steps, self.schema)
        if names is None:
            self._by_rows("the output's steps change rows")
            return False
        because = self._source.why_not(self.schema, list(names.values()))
        if because is not None:
            self._by_rows(because)
            return False
        self._names = names
        self._ordered = row_digests.has_common_order(self.schema) and not self._unreal_keys()
        return True

    def finished(self) -> TableReport:
        report = self._report
        if not report.equal:
            return report
        report.equal = not (
            report.missing or report.surplus or report.different or self._rows.unjudged
        )
        if report.note == BEHIND:  # what came since the rows were counted was compared by key
            report.rows = self._rows.of(ALL).count()
        if report.note and report.unsettled:
            report.equal = False
        return report

    def _refuse(self, note: str) -> None:
        if note:
            self._report.equal, self._report.note = False, note

    def _key_changes(self) -> str:
        """Why rows of the copy can't be found by key; empty if they can."""
        key: Sequence[str | None] = self.schema.match_key
        for step in self._steps:
            if _changes_key(step, key):
                return f"the step {step.action} changes the key's values: rows can't be found by it"
            key = delivered_names(key, [step])
        return ""

    def _lacks(self) -> str:
        """What the copy lacks to be compared; empty if nothing."""
        found = self.copy.columns()
        if found is None:
            return "the output has no such table"
        absent = [column for column in self._columns if column not in found]
        return f"the output lacks column {absent[0]}" if absent else ""

    def _unreal_keys(self) -> bool:
        """Does the copy hold dates that MySQL or MariaDB order among others, and Spark before?"""
        if self.schema.wire_format != BINLOG:
            return False
        columns = {column.name: column.logical for column in self.schema.columns}
        pairs = zip(self.schema.match_key, self.copy.target.key, strict=True)
        names = [ours for name, ours in pairs if columns[name] in _DATES]
        if not names:
            return False
        early = [f"{quoted(name)} < DATE'0001-01-01'" for name in names]
        return not self._rows.of(ALL).where(" OR ".join(early)).isEmpty()

    # ------------------------------------------------------------------ sums

    def next_request(self) -> ChunkRequest:
        return ChunkRequest(self.schema.table, after=self._after, limit_rows=RANGE_ROWS)

    def plan(self, found: Sequence[Key] | ChunkError) -> None:
        """The ends of the next ranges, or why the source can't give them."""
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

    def of_source(self) -> Ranges:
        return Ranges(self.schema, tuple(self._names.values()), tuple(self.planned))

    def of_copy(self) -> CopySums | None:
        """None: nothing is to be summed up now."""
        if self._ordered:
            return CopySums(self.copy, self._names, tuple(self.planned))
        return CopySums(self.copy, self._names, (ALL,)) if self.planned[-1][1] is None else None

    def take(self, theirs: Sequence[Digest] | ChunkError, ours: Sequence[Digest]) -> None:
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
        else:  # where a row of the output can't be told its range: ranges add up
            self._theirs += theirs
            whole = Digest(sum(d.rows for d in self._theirs), sum(d.total for d in self._theirs))
            unequal = [ALL] if self.summed_up and list(ours) != [whole] else []
        if unequal:
            self._rows.compare(unequal)
        self._source.tell(self.schema.table, f"{report.rows:,} rows summed up on both sides")

    def _fail(self, error: ChunkError) -> None:
        """Compare by rows what was not summed up."""
        self.planned, self.summed_up = [], True
        if self._after is None or not self._ordered:
            self._by_rows(str(error))
            return
        self._report.because = str(error)
        self._report.ranges += 1
        rest: list[Range] = [(self._after, None)]
        self._report.rows += self._rows.of_ranges(rest).count()
        self._rows.compare(rest)

    def _by_rows(self, because: str) -> None:
        report = self._report
        report.method, report.because = BY_ROWS, because
        self._source.tell(self.schema.table, "the copy's rows are counted")
        report.rows = self._rows.of(ALL).count()
        self._rows.compare([ALL])


def _bounds(ranges: Sequence[Range]) -> list[Key]:
    ends = [ranges[0][0], *(upto for _, upto in ranges)]
    return [end for end in ends if end is not None]


def _unchanged_columns(
    columns: Sequence[str], steps: Sequence[Step], schema: TableSchema
) -> dict[str, str] | None:
    """By column of the output, the source's column that it holds as it is; None if steps do more
    than choose and name columns.
    """
    if any(step.action not in _UNCHANGING for step in steps):
        return None
    delivered = delivered_names(schema.column_names, steps)
    names = dict(zip(delivered, schema.column_names, strict=True))
    return {name: names[name] for name in columns}


def _changes_key(step: Step, key: Sequence[str | None]) -> bool:
    """May the step give a column of the key other values? (Its function may not, says a step
    python.)
    """
    return step.action in ("cast", "compute", "mask", "hash") and not set(key).isdisjoint(
        step.argument
    )
