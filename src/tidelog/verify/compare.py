"""Is an output equal to its source? Found out while both change, and never answered wrongly.

Ranges of the key are summed up in the source, by SQL, and in the output, by Spark
(`tidelog.verify.digests`). Equal sums are equal rows. Where they differ, executors read both
sides' rows of these ranges and Spark compares them. A row that differs may only be on its way: the
event log tells. A key that has no record there which the source's SELECTs did not see, nor one that
the output may lack, had one state in the source all the while, and the output should hold it: it
differs indeed. All others are looked at again by key, and count as unsettled if they never rest
(docs/adr/0013).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.codecs.mysql.types import WIRE_FORMAT as BINLOG
from tidelog.errors import ChunkError, OutputError
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import ChunkRequest, Digest, TargetTable
from tidelog.spark import transforms
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION
from tidelog.spark.source_rows import ReaderFactory, source_frame
from tidelog.spark.transforms import Step, delivered_names, quoted, steps_of
from tidelog.verify import digests as row_digests
from tidelog.verify.digests import Key, Range, within
from tidelog.verify.rows import Found, Unequal
from tidelog.verify.source_keys import spellings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_KEYS = 1_000
MOST_UNSETTLED = 20_000  # looked at again by key
ROUNDS = 5
RANGE_ROWS = 20_000
RANGES_AT_ONCE = 64
BEHIND = "the output did not catch up with the source: is the pipeline running?"
FOREIGN = "the output has rows whose key holds NULL, or what is no value of the source's type"
BY_CHECKSUM, BY_ROWS = "checksum", "rows"
_DATES = ("date", "timestamp", "timestamptz")
_UNCHANGING = ("select", "drop", "rename", "route")
ALL: Range = (None, None)


@dataclass(slots=True)
class TableReport:
    """What the comparison of one table found; ``keys`` are for repair, not for logs.

    ``equal``: nothing differs. ``unsettled`` rows changed whenever they were looked at. ``method``:
    ``checksum``, or ``rows`` where all were read; ``because`` says why. ``ranges`` were summed up,
    ``ranges_read`` of them read row by row.
    """

    table: str
    equal: bool
    rows: int = 0
    missing: int = 0
    surplus: int = 0
    different: int = 0
    unsettled: int = 0
    keys: tuple[Key, ...] = ()
    method: str = BY_CHECKSUM
    because: str = ""
    ranges: int = 0
    ranges_read: int = 0
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"keys": list(self.keys)}


@dataclass(frozen=True)
class Copy:
    """An output's copy of a table.

    Attributes:
        target: its columns and key, after the steps.
        steps: what makes its rows of the source's.
        frame: the rows, those of a range of the key at least; None if there is no such table. They
            are as of when the frame is made, or as of when it is computed.
        committed: the offset below which everything of the table is in the copy by now.
    """

    target: TargetTable
    steps: tuple[Step, ...]
    frame: Callable[[Range], DataFrame | None]
    committed: Callable[[], int]


class Source(Protocol):
    """What is asked of the source and the event log beside."""

    @property
    def open_reader(self) -> ReaderFactory:
        """Opens chunk readers on executors."""
        ...

    def why_not(self, schema: TableSchema, columns: Sequence[str]) -> str | None: ...

    def boundaries(self, request: ChunkRequest, count: int) -> list[Key]: ...

    def digests(
        self, schema: TableSchema, columns: Sequence[str], ranges: Sequence[Range]
    ) -> list[Digest]:
        """The digest of each range."""
        ...

    def tell(self, stage: str) -> None:
        """What is done from now on, for whoever waits: it is shown until the next is told."""
        ...

    def caught_up(self, copy: Copy) -> bool:
        """Wait until the copy has what is committed by now; False if it does not come."""
        ...

    def watch(self, table: TableName, copy: Copy) -> Callable[[SparkSession], DataFrame | bool]:
        """Call it before rows are read, and what it returns when they were: the keys that can't be
        judged by what was read, as `tidelog.spark.changes.changed_keys.changed_keys` gives them.
        """
        ...


def verify_table(spark: SparkSession, copy: Copy, source: Source) -> TableReport:
    """Compare one table, whose match key must be set, with its copy."""
    return _Comparison(spark, copy, source).report()


class _Comparison:
    def __init__(self, spark: SparkSession, copy: Copy, source: Source) -> None:
        self._spark = spark
        self._copy = copy
        self._source = source
        self._target = copy.target
        self._schema = copy.target.schema
        self._steps = steps_of(copy.steps, self._schema.table)
        self._columns = copy.target.columns.names
        self._report = TableReport(str(self._schema.table), True)
        self._unjudged = 0  # rows that no look by key was taken at

    def report(self) -> TableReport:
        report = self._report
        refused = self._key_changes()
        if not refused:
            if not self._source.caught_up(self._copy):
                report.note = BEHIND
            refused = self._lacks()
        if refused:
            report.equal, report.note = False, refused
            return report
        names = _unchanged_columns(self._columns, self._steps, self._schema)
        if names is None:
            self._by_rows("the output's steps change rows")
        else:
            because = self._source.why_not(self._schema, list(names.values()))
            if because is None:
                because = self._by_checksum(names)
            if because is not None:
                self._by_rows(because)
        report.equal = not (report.missing or report.surplus or report.different or self._unjudged)
        if report.note == BEHIND:  # what came since the rows were counted was compared by key
            report.rows = self._rows(ALL).count()
        if report.note and report.unsettled:
            report.equal = False
        return report

    def _key_changes(self) -> str:
        """Why rows of the copy can't be found by key; empty if they can."""
        key: Sequence[str | None] = self._schema.match_key
        for step in self._steps:
            if _changes_key(step, key):
                return f"the step {step.action} changes the key's values: rows can't be found by it"
            key = delivered_names(key, [step])
        return ""

    def _lacks(self) -> str:
        """What the copy lacks to be compared; empty if nothing."""
        rows = self._copy.frame(ALL)
        if rows is None:
            return "the output has no such table"
        absent = [column for column in self._columns if column not in rows.columns]
        return f"the output lacks column {absent[0]}" if absent else ""

    # ------------------------------------------------------------------ checksums

    def _by_checksum(self, names: Mapping[str, str]) -> str | None:
        """Compare sums; or, with nothing found so far, why that can't be."""
        self._source.tell("rows are summed up on both sides")
        after: Key | None = None
        ordered = row_digests.has_common_order(self._schema)
        ordered = ordered and not self._unreal_keys()
        theirs: list[Digest] = []
        while True:
            try:
                ranges = self._ranges(after)
                if ordered and not row_digests.ascending(self._schema, _bounds(ranges)):
                    if after is not None:
                        raise ChunkError("the key's order in the source can't be followed")
                    ordered = False
                if ordered:
                    unequal = self._unequal(names, ranges)
                else:
                    theirs += self._source.digests(self._schema, list(names.values()), ranges)
                    unequal = []
            except ChunkError as error:
                if after is None or not ordered:
                    return str(error)
                self._report.because = str(error)
                ranges = unequal = [(after, None)]
                self._report.rows += self._rows_in(ranges).count()
            self._report.ranges += len(ranges)
            if unequal:
                self._compare(unequal)
            self._source.tell(f"{self._report.rows:,} rows summed up on both sides")
            after = ranges[-1][1]
            if after is None:
                break
        if not ordered:
            self._compare_all(names, theirs)
        return None

    def _unreal_keys(self) -> bool:
        """Does the copy hold dates that MySQL or MariaDB order among others, and Spark before?"""
        if self._schema.wire_format != BINLOG:
            return False
        columns = {column.name: column.logical for column in self._schema.columns}
        pairs = zip(self._schema.match_key, self._target.key, strict=True)
        names = [ours for name, ours in pairs if columns[name] in _DATES]
        if not names:
            return False
        early = [f"{quoted(name)} < DATE'0001-01-01'" for name in names]
        return not self._rows(ALL).where(" OR ".join(early)).isEmpty()

    def _ranges(self, after: Key | None) -> list[Range]:
        """The next ones."""
        request = ChunkRequest(self._schema.table, after=after, limit_rows=RANGE_ROWS)
        ends: list[Key | None] = list(self._source.boundaries(request, RANGES_AT_ONCE))
        if len(ends) < RANGES_AT_ONCE:
            ends.append(None)
        return list(pairwise([after, *ends]))

    def _unequal(self, names: Mapping[str, str], ranges: list[Range]) -> list[Range]:
        """The ranges whose sums differ."""
        whole = (ranges[0][0], ranges[-1][1])
        theirs = self._source.digests(self._schema, list(names.values()), ranges)
        found = self._rows(whole)
        found = found.where(within(found, self._schema, self._target.key, whole))
        bounds = [upto for _, upto in ranges[:-1] if upto is not None]
        ours = row_digests.digests(found, self._schema, names, bounds)
        self._report.rows += sum(digest.rows for digest in ours)
        pairs = zip(ranges, theirs, ours, strict=True)
        return [part for part, their, our in pairs if their != our]

    def _compare_all(self, names: Mapping[str, str], theirs: list[Digest]) -> None:
        """The same where a row of the output can't be told its range: ranges add up."""
        [ours] = row_digests.digests(self._rows(ALL), self._schema, names, [])
        self._report.rows = ours.rows
        if ours != Digest(sum(d.rows for d in theirs), sum(d.total for d in theirs)):
            self._compare([ALL])

    # ------------------------------------------------------------------ rows

    def _by_rows(self, because: str) -> None:
        report = self._report
        report.method, report.because = BY_ROWS, because
        self._source.tell("the copy's rows are counted")
        report.rows = self._rows(ALL).count()
        self._compare([ALL])

    def _compare(self, ranges: list[Range]) -> None:
        """Compare rows of the ranges; what may be on its way again by key."""
        self._report.ranges_read += len(ranges)
        requests = [
            ChunkRequest(self._schema.table, after=after, upto=upto) for after, upto in ranges
        ]
        found = self._look(requests, lambda: self._rows_in(ranges))
        report = self._report
        again = list(found.keys["unsettled"])
        beyond = found.counts["unsettled"] - len(again)
        if found.counts["foreign"]:  # nothing that is on its way has such a key
            report.surplus += found.counts["foreign"]
            report.note = report.note or FOREIGN
        if found.definite > MOST_KEYS:
            self._count(found)
        else:  # by key, whatever the order of keys is
            again += found.definite_keys
        for round_ in range(ROUNDS):
            if not again:
                break
            if round_:
                time.sleep(0.5)
            if not self._source.caught_up(self._copy):
                report.note = BEHIND
            key = self._schema.match_key
            asked = [each for k in again for each in spellings(k, self._schema, key)]
            request = ChunkRequest(self._schema.table, keys=tuple(asked), key_columns=key)
            found = self._look([request], lambda: self._rows(ALL), again)
            self._count(found)
            again = list(found.keys["unsettled"])
        report.unsettled += len(again) + beyond
        self._unjudged += beyond

    def _look(
        self,
        requests: list[ChunkRequest],
        rows: Callable[[], DataFrame],
        keys: list[Key] | None = None,
    ) -> Found:
        """What differs between rows of the source and of the copy, of ``keys`` if given: the
        source's own comparison may find others besides.

        The copy may be pinned to its state when its frame is made: that has to be after ``watch``
        asked what is in it.
        """
        self._source.tell("rows are read from both sides")
        judge = self._source.watch(self._schema.table, self._copy)
        source = source_frame(self._spark, self._source.open_reader, self._schema, requests)
        expected = _transformed(source, self._steps, self._schema)
        pairs = zip(self._schema.match_key, self._target.key, strict=True)
        nan_key = {ours for name, ours in pairs if name in self._schema.nan_key}
        unequal = Unequal(expected, rows(), self._columns, self._target.key, keys, nan_key)
        changed = judge(self._spark) if unequal.count else False
        most = dict.fromkeys(("missing", "surplus", "different"), MOST_KEYS)
        return unequal.judged(changed, {**most, "unsettled": MOST_UNSETTLED})

    def _rows_in(self, ranges: list[Range]) -> DataFrame:
        if ranges == [ALL]:
            return self._rows(ALL)
        found = self._rows((ranges[0][0], ranges[-1][1]))
        conditions = [within(found, self._schema, self._target.key, part) for part in ranges]
        condition = conditions[0]
        for other in conditions[1:]:
            condition |= other
        return found.where(condition)

    def _rows(self, part: Range) -> DataFrame:
        """The copy's, of the range at least."""
        found = self._copy.frame(part)
        if found is None:
            raise OutputError(f"the copy of {self._schema.table} is gone")
        return found

    def _count(self, found: Found) -> None:
        report = self._report
        report.missing += found.counts["missing"]
        report.surplus += found.counts["surplus"]
        report.different += found.counts["different"]
        report.keys = (*report.keys, *found.definite_keys)[:MOST_KEYS]


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
