"""Reads the rows of a lake table with our own reader: in tasks, or as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructField, StructType

from tidelog.outputs.base.stores import FileStore
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.layout import VALID_TO_VERSION, FileLayout
from tidelog.outputs.lake.settling.rows import is_closed
from tidelog.outputs.lake.settling.tasks import CopyFiles
from tidelog.spark.executor_jobs import rows_on_executors
from tidelog.spark.sessions.versions import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCH_ROWS = 64_000  # Spark converts a batch to rows as a whole
_TASK_BYTES = 8 << 20  # the least bytes of a file for each of several tasks
_INTEGERS = (pa.int16(), pa.int32(), pa.int64())

Bounds = tuple[str | None, str | None]
"""``after <= value <= upto`` of the first column of the key, as texts; None: open."""


@dataclass(frozen=True)
class FileRows:
    """Live rows of one file, without those that are marked as deleted, or of states that have
    ended. Picklable.

    Attributes:
        store, layout: of the table.
        file: a file of the table.
        columns: names of the columns to read, in this order.
        bounds: of the first column of the key, an integer: other rows may be skipped. None: open.
        share: (i, n): the i-th of every n row groups.
    """

    store: FileStore
    layout: FileLayout
    file: DataFile
    columns: tuple[str, ...]
    bounds: tuple[int | None, int | None]
    share: tuple[int, int] = (0, 1)

    @property
    def bytes(self) -> int:
        return self.file.size // self.share[1]

    def batches(self) -> Iterator[pa.RecordBatch]:
        reader, ended = DataFileReader(self.store, self.layout), self.layout.history
        marker = VALID_TO_VERSION if ended else self.layout.deleted
        dead = reader.deleted_rows(self.file)
        first = self.layout.file_key[0] if self.layout.file_key else None
        columns = [*self.columns, *([marker] if marker else [])]
        groups = reader.row_groups(self.file, columns, first, self.bounds, self.share)
        for start, rows in groups:
            live = np.ones(rows.num_rows, np.bool_)
            low, high = np.searchsorted(dead, [start, start + rows.num_rows])
            live[dead[low:high] - start] = False
            if marker:
                marks = rows.column(len(columns) - 1)
                live &= np.asarray(marks.is_null() if ended else pc.invert(marks.fill_null(False)))
            found = rows.select(range(len(self.columns)))
            if not live.all():
                found = found.filter(pa.array(live))
            yield from found.to_batches(max_chunksize=_BATCH_ROWS)


def file_rows(
    copy: CopyFiles, columns: Sequence[str], bounds: Bounds = (None, None), tasks: int = 1
) -> list[FileRows]:
    """Return the table's current rows, in parts that can be read independently.

    Args:
        copy: the table.
        columns: names of the columns to read, in this order.
        bounds: rows outside may be skipped. Used for integers only.
        tasks: the most tasks that read one large file.
    """
    limits, found = _limits(copy.layout, bounds), []
    for file in copy.files:
        if is_closed(file, copy.layout):
            continue
        shares = max(1, min(tasks, file.size // _TASK_BYTES))
        for share in range(shares):
            given = (copy.store, copy.layout, file, tuple(columns), limits, (share, shares))
            found.append(FileRows(*given))
    return found


def frame_of(
    spark: SparkSession, copy: CopyFiles, schema: StructType, bounds: Bounds = (None, None)
) -> DataFrame:
    """Return the same rows as a DataFrame of all columns of ``schema``."""
    plain = StructType([StructField(each.name, each.dataType) for each in schema.fields])
    works = file_rows(copy, plain.names, bounds)
    return rows_on_executors(spark, _SparkRows(arrow_schema(plain)), works, plain)


@dataclass(frozen=True)
class _SparkRows:
    """Converts batches to the schema that Spark expects."""

    schema: pa.Schema

    def __call__(self, rows: FileRows) -> Iterator[pa.RecordBatch]:
        return (batch.cast(self.schema) for batch in rows.batches())


def _limits(layout: FileLayout, bounds: Bounds) -> tuple[int | None, int | None]:
    if not layout.file_key or layout.file_key[0].name != layout.key[0]:
        return None, None
    if layout.file_key[0].type not in _INTEGERS:
        return None, None
    try:
        low, high = (None if text is None else int(text) for text in bounds)
    except ValueError:
        return None, None
    return low, high


def bounds_of(after: Sequence[str | None] | None, upto: Sequence[str | None] | None) -> Bounds:
    """Return the bounds of a key range: those of its first column."""
    return (after[0] if after else None), (upto[0] if upto else None)
