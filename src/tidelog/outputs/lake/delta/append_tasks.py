"""What executors do for a table of changes: read a range, and write each change as a row.

The rows are those of the source's shape `typed`, and one for each complete dump. Like the other
tasks of the Delta output these write data files, which nobody sees before the driver commits them.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tidelog.outputs.lake.contents import COMPLETE_DUMP
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter
from tidelog.outputs.lake.delta.settle_tasks import (
    CopyFiles,
    RangeOfTable,
    SettleResult,
    attempted,
    read_range,
)
from tidelog.outputs.lake.settling.replace_files import FileChanges
from tidelog.outputs.lake.settling.row_buffer import RowBuffer
from tidelog.outputs.lake.settling.settle import Settled
from tidelog.spark.formats import shapes
from tidelog.system import failpoints


@dataclass(frozen=True)
class AppendWork:
    """Changes that one task appends.

    Attributes:
        table: where to; its files are not asked for.
        source: name of the source's table.
        rows: where they are read; None: there are none.
        dumps: for each dump of the whole table that is complete, the version where it began.
    """

    table: CopyFiles
    source: str
    rows: RangeOfTable | None
    dumps: tuple[int, ...] = ()

    def run(self) -> SettleResult:
        """One task, or a part of one."""
        return attempted(self.table, lambda: _appended(self))


def _appended(work: AppendWork) -> SettleResult:
    failpoints.hit("output.task.open")
    table = work.table
    added = RowBuffer(ParquetFileWriter(table.store, table.layout))
    count = 0
    if work.rows is not None:
        shape = shapes.typed(work.rows.schema, None)
        for batch in read_range(work.rows, "typed", shape):
            added.add(_of_table(batch, table.layout.schema))
            count += batch.num_rows
    if work.dumps:
        added.add(_of_table(_complete_dumps(work), table.layout.schema))
    settled = Settled(added.close(), {}, (), count)
    failpoints.hit("output.task.written")
    failpoints.hit("output.task.committed")
    return SettleResult(settled, FileChanges((), (), ()))


def _complete_dumps(work: AppendWork) -> pa.RecordBatch:
    """A row for each dump."""
    n = len(work.dumps)
    source = [pa.repeat(pa.scalar(each), n) for each in (work.source, "dump")]
    columns = {
        "op": pa.repeat(pa.scalar(COMPLETE_DUMP), n),
        "version": pa.array(work.dumps, pa.int64()),
        "source": pa.StructArray.from_arrays(source, ["table", "origin"]),
    }
    return pa.record_batch(columns)


def _of_table(rows: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """``rows`` by the table's names, which may differ by case, and its types, which hold all values
    of theirs; what they lack is null.
    """
    found = _as(pa.StructArray.from_arrays(rows.columns, rows.schema.names), pa.struct(schema))
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(found)], schema)


def _as(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.type.equals(kind):
        return values
    if not pa.types.is_struct(kind):
        return values.cast(kind)
    at = {field.name.lower(): n for n, field in enumerate(values.type)}
    members = [
        pa.nulls(len(values), field.type)
        if (place := at.get(field.name.lower())) is None
        else _as(values.field(place), field.type)
        for field in kind
    ]
    nulls = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(members, fields=list(kind), mask=nulls)
