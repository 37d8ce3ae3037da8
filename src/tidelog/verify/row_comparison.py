"""Rows of ranges of the key, or of some keys, compared on both sides.

A row that differs may only be on its way: the event log tells. A key that has no record there which
the source's SELECTs did not see, nor one that the output may lack, had one state in the source all
the while, and the output should hold it: it differs indeed. All others are looked at again by key,
and count as unsettled if they never rest (docs/adr/0013).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidelog.errors import OutputError
from tidelog.model.schema import TableSchema
from tidelog.ports import ChunkRequest
from tidelog.spark import transforms
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION
from tidelog.spark.source_rows import source_frame
from tidelog.spark.transforms import Step, steps_of
from tidelog.verify.digests import within
from tidelog.verify.model import ALL, Copy, Key, Range, Source, TableReport
from tidelog.verify.rows import Found, RowDifferences
from tidelog.verify.source_key_text import spellings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_KEYS = 1_000
MOST_UNSETTLED = 20_000  # looked at again by key
ROUNDS = 5
BEHIND = "the output did not catch up with the source: is the pipeline running?"
FOREIGN = "the output has rows whose key holds NULL, or what is no value of the source's type"


class RowComparison:
    """Compares rows of one table with its copy, and counts in ``report``.

    ``unjudged``: rows that differed, and no look by key was taken at.
    """

    def __init__(
        self, spark: SparkSession, copy: Copy, source: Source, report: TableReport
    ) -> None:
        self.unjudged = 0
        self._spark = spark
        self._copy = copy
        self._source = source
        self._report = report
        self._schema = copy.target.schema
        self._steps = steps_of(copy.steps, self._schema.table)

    def of(self, part: Range) -> DataFrame:
        """The copy's rows, of the range at least."""
        found = self._copy.frame(part)
        if found is None:
            raise OutputError(f"the copy of {self._schema.table} is gone")
        return found

    def of_ranges(self, ranges: Sequence[Range]) -> DataFrame:
        """The copy's rows, of neighbouring ranges, and no others."""
        if list(ranges) == [ALL]:
            return self.of(ALL)
        found = self.of((ranges[0][0], ranges[-1][1]))
        key = self._copy.target.key
        condition = within(found, self._schema, key, ranges[0])
        for part in ranges[1:]:
            condition |= within(found, self._schema, key, part)
        return found.where(condition)

    def compare(self, ranges: Sequence[Range]) -> None:
        """Compare rows of the ranges; what may be on its way again by key."""
        self._report.ranges_read += len(ranges)
        requests = [
            ChunkRequest(self._schema.table, after=after, upto=upto) for after, upto in ranges
        ]
        found = self._look(requests, lambda: self.of_ranges(ranges))
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
            if not all(self._source.caught_up([self._copy])):
                report.note = BEHIND
            key = self._schema.match_key
            asked = [each for k in again for each in spellings(k, self._schema, key)]
            request = ChunkRequest(self._schema.table, keys=tuple(asked), key_columns=key)
            found = self._look([request], lambda: self.of(ALL), again)
            self._count(found)
            again = list(found.keys["unsettled"])
        report.unsettled += len(again) + beyond
        self.unjudged += beyond

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
        table, target = self._schema.table, self._copy.target
        self._source.tell(table, "rows are read from both sides")
        judge = self._source.watch(table, self._copy)
        source = source_frame(self._spark, self._source.open_reader, self._schema, requests)
        expected = _transformed(source, self._steps, self._schema)
        pairs = zip(self._schema.match_key, target.key, strict=True)
        nan_key = {ours for name, ours in pairs if name in self._schema.nan_key}
        unequal = RowDifferences(expected, rows(), target.columns.names, target.key, keys, nan_key)
        changed = judge(self._spark) if unequal.count else False
        most = dict.fromkeys(("missing", "surplus", "different"), MOST_KEYS)
        return unequal.judged(changed, {**most, "unsettled": MOST_UNSETTLED})

    def _count(self, found: Found) -> None:
        report = self._report
        report.missing += found.counts["missing"]
        report.surplus += found.counts["surplus"]
        report.different += found.counts["different"]
        report.keys = (*report.keys, *found.definite_keys)[:MOST_KEYS]


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
