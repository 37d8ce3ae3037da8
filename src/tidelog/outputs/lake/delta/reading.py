"""The rows of a Delta table as a DataFrame, read by our own reader: no jar of Delta's is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from tidelog.outputs.base.stores.port import FileStore
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.layout import FileLayout
from tidelog.outputs.lake.delta.settle_tasks import CopyFiles
from tidelog.outputs.lake.delta_log.actions import DataFile
from tidelog.spark.executor_jobs import rows_on_executors
from tidelog.spark.sessions.versions import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCH_ROWS = 64_000  # Spark turns a batch into rows as a whole
_INTEGERS = (pa.int16(), pa.int32(), pa.int64())

Bounds = tuple[str | None, str | None]
"""``after <= value <= upto`` of the first column of the key, as texts; None: open."""


@dataclass(frozen=True)
class _FileRows:
    """One file to be read: its live rows, those between the bounds at least."""

    store: FileStore
    layout: FileLayout
    file: DataFile
    bounds: tuple[int | None, int | None]
    schema: pa.Schema  # as Spark expects it


def frame_of(
    spark: SparkSession, copy: CopyFiles, schema: StructType, bounds: Bounds = (None, None)
) -> DataFrame:
    """The live rows of the files, as of now.

    Args:
        spark: the session that reads.
        copy: the table.
        schema: its columns.
        bounds: others may be left out. Heeded for whole numbers alone.
    """
    plain = StructType([StructField(each.name, each.dataType) for each in schema.fields])
    limits = _limits(copy.layout, bounds)
    expected = arrow_schema(plain)
    works = [_FileRows(copy.store, copy.layout, f, limits, expected) for f in copy.files]
    return rows_on_executors(spark, _rows, works, plain)


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


def _rows(work: _FileRows) -> Iterator[pa.RecordBatch]:
    reader = DataFileReader(work.store, work.layout)
    dead = reader.deleted_rows(work.file)
    low, high = work.bounds
    name = work.layout.file_key[0].physical if work.layout.file_key else None
    for start, rows in reader.row_groups(work.file, name, low, high):
        live = np.ones(rows.num_rows, np.bool_)
        here = dead[np.searchsorted(dead, start) : np.searchsorted(dead, start + rows.num_rows)]
        live[here - start] = False
        found = rows if live.all() else rows.filter(pa.array(live))
        yield from found.cast(work.schema).to_batches(max_chunksize=_BATCH_ROWS)


def bounds_of(after: Sequence[str | None] | None, upto: Sequence[str | None] | None) -> Bounds:
    """Of a range of the key: those of its first column."""
    return (after[0] if after else None), (upto[0] if upto else None)
