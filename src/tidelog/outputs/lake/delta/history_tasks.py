"""The tasks of a Delta output for tables of history, on executors: they read a range, and settle it
with the table's files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.missing_columns import named_lists
from tidelog.outputs.lake.data_files.key_index_cache import shared_cache
from tidelog.outputs.lake.delta.settle_tasks import (
    CopyFiles,
    RangeOfTable,
    SettleResult,
    read_range,
    result_of,
    result_or_error,
)
from tidelog.outputs.lake.settling.history import Removals
from tidelog.outputs.lake.settling.settle import SettledChanges
from tidelog.outputs.lake.settling.settle_history import settle_history, settle_removals
from tidelog.spark.formats import shapes
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, EVENT_BEFORE
from tidelog.system import failpoints


@dataclass(frozen=True)
class HistoryWork:
    """The changes that one task settles.

    Attributes:
        table: the table that receives them.
        rows: the range to read; None: there is none, or Spark delivers the rows.
        columns: names of the delivered columns.
        removals: those of the range.
        alone: whether no other task settles changes of this table, so that this task also closes
            the rows of other keys, and changes the table's files.
    """

    table: CopyFiles
    rows: RangeOfTable | None
    columns: tuple[str, ...]
    removals: Removals
    alone: bool = True

    def run(self) -> SettleResult:
        """Run one task, or a part of one."""
        return result_or_error(self.table, lambda: _settle(self, None))


@dataclass(frozen=True)
class HistoryPartition:
    """Settles changes that Spark has read and transformed: one partition of them in each task, with
    all changes of its keys, in any order.
    """

    work: HistoryWork

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> SettleResult:
        return result_or_error(self.work.table, lambda: _settle(self.work, batches))


@dataclass(frozen=True)
class RemovalsWork:
    """Closes the rows of keys that were removed and not changed, after tasks have settled the
    changes of all others; ``dead``: the rows that these remove (see `SettledChanges`).
    """

    table: CopyFiles
    removals: Removals
    dead: Mapping[str, bytes] = field(default_factory=dict)

    def run(self) -> SettleResult:
        """Run one task, or a part of one."""
        return result_or_error(
            self.table, lambda: SettleResult(_settle_removals(self.table, self.removals, self.dead))
        )


def _settle(work: HistoryWork, batches: Iterable[pa.RecordBatch] | None) -> SettleResult:
    failpoints.hit("output.task.open")
    table, cache = work.table, shared_cache()
    events = _events(_read(work.rows) if batches is None else batches, work.rows)
    settled = settle_history(
        events, table.files, table.store, table.layout, work.columns, cache, work.removals
    )
    if work.alone and len(work.removals):
        others = _settle_removals(table, work.removals, settled.dead)
        settled = SettledChanges.of_parts([settled, others])
    return result_of(table, settled, alone=work.alone)


def _settle_removals(
    table: CopyFiles, removals: Removals, dead: Mapping[str, bytes]
) -> SettledChanges:
    return settle_removals(table.files, table.store, table.layout, shared_cache(), removals, dead)


def _events(batches: Iterable[pa.RecordBatch], rows: RangeOfTable | None) -> pa.Table | None:
    """Returns all changes in order, without truncates, with the names of missing columns."""
    filled = [_named(batch, rows) for batch in batches if batch.num_rows]
    if not filled:
        return None
    events = pa.Table.from_batches(filled)
    events = events.filter(pc.not_equal(events.column(CHANGE_OP), "t"))
    return events if rows is not None else events.sort_by(shapes.CHANGE_VERSION)


def _named(batch: pa.RecordBatch, rows: RangeOfTable | None) -> pa.RecordBatch:
    names = () if rows is None else rows.schema.column_names
    at = batch.schema.get_field_index(CHANGE_MISSING)
    lists = named_lists(batch.column(at), names)
    found = batch.set_column(at, CHANGE_MISSING, lists)
    return found.drop_columns([name for name in (EVENT_BEFORE,) if name in found.schema.names])


def _read(rows: RangeOfTable | None) -> Iterator[pa.RecordBatch]:
    return iter(()) if rows is None else read_range(rows, "events", shapes.events(rows.schema))
