"""HOT PATH. Writes rows to new data files of a table."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.errors import OutputRefusedError
from tidelog.outputs.base.file_store import file_errors
from tidelog.outputs.base.parquet_columns import dictionary_columns
from tidelog.outputs.base.stores import FileStore
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.file_reader import encoded_path, format_of, to_file
from tidelog.outputs.lake.data_files.layout import VALID_TO_VERSION, FileLayout, SortedBy
from tidelog.outputs.lake.data_files.look_up import KeyIndexCache, index_keys
from tidelog.system.processes import unix_ms

_MOST_CHARACTERS = 32  # Delta's default (stringPrefixLength)
_LAST_CHARACTER = "\U0010ffff"
_FIRST_YEAR, _END_YEAR = np.datetime64("0001", "Y"), np.datetime64("10000", "Y")


def file_statistics(rows: pa.Table, layout: FileLayout) -> str:
    """Return the JSON text of a file's statistics.

    Args:
        rows: rows of the file, by the table's names, with the layout's types.
        layout: the layout, which names the columns with statistics.
    """
    nulls, least, greatest = [], [], []
    time_unit = format_of(layout).time_unit
    for name in layout.statistics:
        column, physical = rows[name], _quoted(layout.column(name).physical)
        nulls.append(f"{physical}:{column.null_count}")
        if (found := _bounds(column, time_unit)) is not None:
            least.append(f"{physical}:{found[0]}")
            greatest.append(f"{physical}:{found[1]}")
    tight = ',"tightBounds":true' if layout.deletion_vectors else ""
    return (
        f'{{"numRecords":{rows.num_rows},"minValues":{{{",".join(least)}}},'
        f'"maxValues":{{{",".join(greatest)}}},"nullCount":{{{",".join(nulls)}}}{tight}}}'
    )


def has_bounds(kind: pa.DataType) -> bool:
    """Does Delta keep minimum and maximum of the type?"""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_temporal(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_floating(kind)
    )


def _bounds(column: pa.ChunkedArray, time_unit: str) -> tuple[str, str] | None:
    """Return minimum and maximum as JSON; None where they can't be, or are no bounds."""
    kind = column.type
    if not has_bounds(kind):
        return None
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    # To Spark NaN is greater than all other values, and JSON can't express it.
    elif pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        return None
    found = pc.min_max(column)
    least, greatest = found["min"].as_py(), found["max"].as_py()
    if least is None:
        return None
    if pa.types.is_string(kind):
        return _quoted(least[:_MOST_CHARACTERS]), _quoted(_upper_bound(greatest))
    if pa.types.is_date32(kind):
        return _times(least, greatest, "D", "")
    if pa.types.is_timestamp(kind):
        micros = 1 if time_unit == "us" else 1000
        zone = "Z" if kind.tz else ""
        return _times(least // micros, -(-greatest // micros), time_unit, zone)
    if pa.types.is_decimal(kind):
        return f"{least:f}", f"{greatest:f}"
    if pa.types.is_floating(kind):
        # Readers may distinguish the zeros, and sort the negative one first.
        bounds = least or -0.0, greatest or 0.0
        return None if np.isinf(bounds).any() else (repr(bounds[0]), repr(bounds[1]))
    return str(least), str(greatest)


def _times(least: int, greatest: int, unit: str, zone: str) -> tuple[str, str] | None:
    """Return the bounds as JSON texts; None outside the years that every reader can read."""
    bounds = np.array([least, greatest]).astype(f"M8[{unit}]")
    if bounds[0] < _FIRST_YEAR or bounds[1] >= _END_YEAR:
        return None
    found = np.datetime_as_string(bounds)
    return f'"{found[0]}{zone}"', f'"{found[1]}{zone}"'


def _upper_bound(text: str) -> str:
    """Return a short text that is not less."""
    end = _MOST_CHARACTERS
    while end < len(text) and text[end] == _LAST_CHARACTER:
        end += 1
    return text if end >= len(text) else text[:end] + _LAST_CHARACTER


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_MOST_BYTES = 1 << 30  # of a file's rows in memory
FULL_BYTES = 128 << 20
"""A file is full if its rows take this in memory, or if it has half of the most rows. Compaction
would write its rows to as many files again.
"""
_FULL_ENDING = ".full.zstd.parquet"
_GROUP_ROWS = 128 << 10
_GROUP_BYTES = 128 << 20  # of a row group's rows in memory

_Partition = Mapping[str, str | None]


class ParquetFileWriter:
    """Writes files of a table. Used by one thread at a time.

    Args:
        store: the store at the table's location.
        layout: the layout of its files.
        max_rows: the most rows of a file.
        cache: receives the key indexes of the files; of history also their rows.
    """

    def __init__(
        self,
        store: FileStore,
        layout: FileLayout,
        *,
        max_rows: int = 2_000_000,
        cache: KeyIndexCache | None = None,
    ) -> None:
        self._store = store
        self._layout = layout
        self._max_rows = max_rows
        self._cache = cache
        self._number = 0

    def write(self, rows: pa.Table, *, sorted_by_key: bool = False) -> list[DataFile]:
        """Write ``rows`` to as many files as they need, durably, and return the files.

        Args:
            rows: rows with all columns of the layout's schema, in any order.
            sorted_by_key: whether the rows of each partition are sorted by the key already.

        Raises:
            OutputRefusedError: a value is null where its column can't be, or is impossible in a
                partition.
            OutputError, StorageError: a file can't be written. No file is left.
        """
        rows = self._cast_rows(rows)
        names: list[str] = []
        found = []
        try:
            for partition, part in self._partitions(rows, sorted_by_key):
                for piece in self._pieces(part):
                    names.append(self._new_name(partition, self._is_full(piece)))
                    found.append(self._write(names[-1], partition, piece))
            self._store.sync([*names, *{name.rpartition("/")[0] for name in names}])
        except BaseException:
            self._store.delete(names)
            raise
        return found

    def _cast_rows(self, rows: pa.Table) -> pa.Table:
        schema = self._layout.schema
        rows = rows.select(schema.names)
        if not rows.schema.equals(schema):
            rows = rows.cast(schema)
        for column in self._layout.columns:
            if not column.nullable and rows[column.name].null_count:
                raise OutputRefusedError(
                    f"column {column.name} of the table is NOT NULL, and a row has no value of "
                    f"it: ALTER TABLE … ALTER COLUMN {column.name} DROP NOT NULL"
                )
        return rows.combine_chunks()

    def _partitions(
        self, rows: pa.Table, sorted_by_key: bool
    ) -> Iterator[tuple[_Partition, pa.Table]]:
        """Yield rows by partition, each sorted."""
        if not rows.num_rows:
            return
        rules = format_of(self._layout)
        keys = rules.partition_keys(rows, self._layout)
        if not keys:
            yield {}, self._sorted(rows, sorted_by_key)
            return
        codes = np.zeros(rows.num_rows, np.int64)
        for key in keys.values():
            values = key.dictionary_encode(null_encoding="encode")
            codes = codes * len(values.dictionary) + np.asarray(values.indices)
            codes = np.unique(codes, return_inverse=True)[1]
        starts = [0, *np.cumsum(np.bincount(codes)).tolist()]
        order = np.argsort(codes, kind="stable")
        rows = rows.take(pa.array(order))
        for start, end in pairwise(starts):
            part = rows.slice(start, end - start)
            one = {name: key.slice(int(order[start]), 1) for name, key in keys.items()}
            yield (
                rules.partition_values(one, self._layout),
                self._sorted(part, sorted_by_key),
            )

    def _sorted(self, rows: pa.Table, sorted_by_key: bool) -> pa.Table:
        if self._layout.order:
            return _in_order(rows, self._layout.order)
        return rows if sorted_by_key else _sorted(rows, self._layout.key)

    def _pieces(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Yield rows by file, equally many for each."""
        most = min(self._max_rows, max(1, _MOST_BYTES // _row_bytes(rows)))
        count = -(-rows.num_rows // most)
        size = -(-rows.num_rows // count)
        for start in range(0, rows.num_rows, size):
            yield rows.slice(start, size)

    def _is_full(self, rows: pa.Table) -> bool:
        return bool(rows.nbytes >= FULL_BYTES or 2 * rows.num_rows > self._max_rows)

    def _new_name(self, partition: _Partition, is_full: bool) -> str:
        ending = _FULL_ENDING if is_full else ".c000.zstd.parquet"
        name = f"part-{self._number:05d}-{uuid.uuid4()}{ending}"
        self._number += 1
        folder = format_of(self._layout).folder(partition, self._layout)
        return f"{folder}/{name}" if folder else name

    def _write(self, name: str, partition: _Partition, rows: pa.Table) -> DataFile:
        columns = self._layout.in_files
        table = pa.Table.from_arrays(
            [to_file(rows[each.name], each) for each in columns],
            schema=pa.schema([each.file_field for each in columns]),
        )
        with (
            self._store.open_output(name) as sink,
            file_errors(f"{self._store.path}/{name}", "written"),
        ):
            with pq.ParquetWriter(
                sink,
                table.schema,
                compression="zstd",
                use_dictionary=dictionary_columns(table),
                write_statistics=self._group_statistics(),
                store_schema=False,
                store_decimal_as_integer=True,
            ) as writer:
                group = min(_GROUP_ROWS, max(1, _GROUP_BYTES // _row_bytes(table)))
                writer.write_table(table, row_group_size=group)
            size = sink.tell()
        path = encoded_path(name)
        is_ended = self._layout.history and not rows[VALID_TO_VERSION].null_count
        if self._cache is not None and self._layout.file_key and not is_ended:
            index = index_keys(rows, self._layout)
            self._cache.keep(self._store.path, path, self._layout, index)
            if self._layout.history:
                self._cache.rows.keep(self._store.path, path, self._layout, [rows])
        return DataFile(
            path,
            dict(partition),
            size,
            unix_ms(),
            file_statistics(rows, self._layout),
        )

    def _group_statistics(self) -> list[str]:
        """Return the columns with statistics in Parquet. Floats have none: Parquet's ignore NaN,
        which Spark sorts above all other values.
        """
        columns = map(self._layout.column, self._layout.statistics)
        return [each.physical for each in columns if not pa.types.is_floating(each.type)]


def is_full(file: DataFile) -> bool:
    """Return whether the file is full, see `FULL_BYTES`. Its name says so: how well its rows are
    compressed is not known from its size, and every table format keeps names.
    """
    return file.path.endswith(_FULL_ENDING)


def _row_bytes(rows: pa.Table) -> int:
    return int(max(1, rows.nbytes // max(1, rows.num_rows)))


def _in_order(rows: pa.Table, by: Sequence[SortedBy]) -> pa.Table:
    order = pa.array(np.arange(rows.num_rows))
    for each in reversed(by):  # each sort is stable
        values = rows[each.column].combine_chunks().take(order)
        if pa.types.is_floating(values.type):
            values = _whole(values)
        order = order.take(
            pc.array_sort_indices(
                values,
                order="descending" if each.descending else "ascending",
                null_placement="at_start" if each.nulls_first else "at_end",
            )
        )
    return rows.take(order)


def _whole(values: pa.Array) -> pa.Array:
    """Return whole numbers in the order that Iceberg's specification ("Sorting") gives floats:
    −0.0 is below 0.0, and NaN above all.
    """
    nulls = np.asarray(values.is_null())
    bits = np.asarray(values.cast(pa.float64()).fill_null(0)).view(np.int64)
    return pa.array(bits ^ ((bits >> 63) & np.iinfo(np.int64).max), mask=nulls)


def _sorted(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    if not key:
        return rows
    if len(key) == 1 and pa.types.is_integer(rows.schema.field(key[0]).type):
        values = rows[key[0]]
        if not values.null_count:
            whole = values.to_numpy()
            if (whole[:-1] <= whole[1:]).all():
                return rows
            return rows.take(pa.array(np.argsort(whole)))
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in key])
    return rows.take(order)
