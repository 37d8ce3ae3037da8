"""Reads rows of data files, by the table's names and types, whatever columns a file has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.errors import OutputError, TidelogError
from tidelog.model.log_locations import is_object_store
from tidelog.outputs.base.stores.errors import file_errors
from tidelog.outputs.base.stores.port import FileStore, open_file_store
from tidelog.outputs.lake.data_files.layout import FileColumn, FileLayout
from tidelog.outputs.lake.data_files.partition_values import partition_value
from tidelog.outputs.lake.data_files.stored_types import from_file
from tidelog.outputs.lake.delta_log.actions import DataFile
from tidelog.outputs.lake.delta_log.deletion_vectors import read_rows

LOST_FILE = (
    "a file of the table is missing, as after a VACUUM that kept nothing while a batch was "
    "written; restore the table to a version that has all its files, or move it away and dump "
    "it again"
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


class DataFileReader:
    """Reads files of a table at ``store``."""

    def __init__(self, store: FileStore, layout: FileLayout) -> None:
        self._store = store
        self._layout = layout

    def read(
        self,
        file: DataFile,
        columns: Sequence[str] | None = None,
        rows: np.ndarray | None = None,
    ) -> pa.Table:
        """Returns rows by the table's names and types: a column that the file does not have is
        null, a narrower type is widened, values of the partition are columns.

        Args:
            file: a file of the table.
            columns: names; None: all.
            rows: int64[n], numbers of rows in the file, returned in this order; None: all rows of
                the file, also those that its deletion vector marks.

        Raises:
            OutputError, StorageError: the file can't be read.
        """
        names = self._layout.schema.names if columns is None else columns
        wanted = [self._layout.column(name) for name in names]
        stored = [each.physical for each in wanted if each.name not in self._layout.partitions]
        with self._open(file) as parquet:
            if rows is None:
                found = parquet.read(stored, use_threads=False)
                count = parquet.metadata.num_rows
            else:
                found = _read_rows(parquet, stored, rows)
                count = len(rows)
        return pa.Table.from_arrays(
            [self._values(file, each, found, count) for each in wanted],
            schema=pa.schema([pa.field(each.name, each.type) for each in wanted]),
        )

    def row_groups(
        self,
        file: DataFile,
        columns: Sequence[str],
        column: str | None,
        bounds: tuple[int | None, int | None],
        share: tuple[int, int],
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yields the rows of the file's row groups, each with the number of its first row.

        Args:
            file: a file of the table.
            columns: names of the columns to read, in this order.
            column: an integer column, by its name in files. Row groups are skipped that, by their
                statistics, have no value of it between ``bounds``. None: no row group is skipped.
            bounds: the least and the greatest value; None: no limit.
            share: (i, n): the i-th of every n row groups.
        """
        wanted = [self._layout.column(name) for name in columns]
        stored = [each.physical for each in wanted if each.name not in self._layout.partitions]
        schema = pa.schema([pa.field(each.name, each.type) for each in wanted])
        with self._open(file) as parquet:
            names = parquet.schema_arrow.names
            at = names.index(column) if column in names else -1
            start = 0
            for number in range(parquet.metadata.num_row_groups):
                group = parquet.metadata.row_group(number)
                if number % share[1] == share[0] and (
                    at < 0 or _may_hold(group.column(at).statistics, *bounds)
                ):
                    found = parquet.read_row_group(number, stored, use_threads=False)
                    values = [self._values(file, each, found, group.num_rows) for each in wanted]
                    yield start, pa.Table.from_arrays(values, schema=schema)
                start += group.num_rows

    def row_count(self, file: DataFile) -> int:
        """Returns the number of rows of the file, with those that its vector marks, from the file
        itself.
        """
        with self._open(file) as parquet:
            return int(parquet.metadata.num_rows)

    def deleted_rows(self, file: DataFile) -> np.ndarray:
        """Returns int64[n]: the sorted numbers of the rows that the file's vector marks."""
        vector = file.deletion_vector
        return np.zeros(0, np.int64) if vector is None else read_rows(self._store, vector)

    @contextmanager
    def _open(self, file: DataFile) -> Iterator[pq.ParquetFile]:
        store, name = locate_file(self._store, file.path)
        try:
            with (
                file_errors(f"{store.path}/{name}", "read"),
                store.open_input(name) as source,
                pq.ParquetFile(
                    source,
                    coerce_int96_timestamp_unit="us",  # as Spark writes them
                    pre_buffer=is_object_store(store.path),  # few large requests
                ) as parquet,
            ):
                yield parquet
        except TidelogError:
            if store.tag(name) is not None:
                raise
            raise OutputError(f"{store.path}/{name}: {LOST_FILE}") from None
        except pa.ArrowInvalid as error:
            raise OutputError(
                f"{store.path}/{name} can't be read as Parquet ({str(error).splitlines()[0]}): "
                "RESTORE the table to a version without it, or dump it again"
            ) from None

    def _values(
        self, file: DataFile, column: FileColumn, found: pa.Table, count: int
    ) -> pa.ChunkedArray:
        if column.name in self._layout.partitions:
            value = partition_value(file.partition_values.get(column.physical), column.type)
            return pa.chunked_array([pa.repeat(value, count)])
        at = found.schema.get_field_index(column.physical)
        if at < 0:
            return pa.chunked_array([pa.nulls(count, column.type)])
        return from_file(found.column(at), column)


def _may_hold(statistics: pq.Statistics | None, low: int | None, high: int | None) -> bool:
    if statistics is None or not statistics.has_min_max:
        return True
    below = high is not None and statistics.min > high
    return not below and not (low is not None and statistics.max < low)


def locate_file(store: FileStore, path: str) -> tuple[FileStore, str]:
    """Returns the store and the name in it for a ``path`` of a table's log: below the table, or, in
    a shallow clone, an absolute URL.
    """
    name = unquote(path)
    if not _URL.match(name):
        return store, name
    folder, _, last = name.rpartition("/")
    return open_file_store(re.sub(r"^file:/+", "file:///", folder)), last


def _read_rows(parquet: pq.ParquetFile, columns: Sequence[str], rows: np.ndarray) -> pa.Table:
    """Read only the row groups that contain ``rows``."""
    metadata = parquet.metadata
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    group_of = np.searchsorted(starts, rows, side="right") - 1
    groups = np.unique(group_of)
    found = parquet.read_row_groups(groups.tolist(), columns, use_threads=False)
    first = np.zeros(len(sizes), np.int64)  # of each group, in what was read
    first[groups] = np.concatenate([[0], np.cumsum(np.asarray(sizes)[groups])])[:-1]
    return found.take(pa.array(rows - starts[group_of] + first[group_of]))
