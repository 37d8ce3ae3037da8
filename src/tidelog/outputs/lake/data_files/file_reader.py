"""Reads rows of data files, by the table's names and types, whatever columns a file has.

Partition values are texts in the log (Delta protocol, "Partition Value Serialization"). Times are
UTC. Readers take an empty text or binary value for null.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.errors import OutputRefusedError, RowsLeftOutError, TidelogError
from tidelog.model.option_values import is_object_store
from tidelog.model.records import Int64s
from tidelog.outputs.base.file_store import file_errors
from tidelog.outputs.base.stores import FileStore, open_file_store
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.deletion_vectors import DeletionVectorWriter, read_rows
from tidelog.outputs.lake.data_files.disk_cache import CachedRows, RowCache
from tidelog.outputs.lake.data_files.layout import (
    FileColumn,
    FileLayout,
    MarkedFiles,
    MarksWriter,
    TableFormat,
)

# Values in a table's types, and in those of its files.


def to_file(values: pa.ChunkedArray, column: FileColumn) -> pa.ChunkedArray:
    """Return values of the column with the field names that files use inside structs. Members that
    are never null there, those of a VARIANT, are empty where the VARIANT is null.
    """
    stored = column.stored
    if stored is None:
        return values
    chunks = [_filled(each, stored) for each in values.chunks]
    return _renamed(pa.chunked_array(chunks, values.type), stored)


def from_file(values: pa.ChunkedArray, column: FileColumn) -> pa.ChunkedArray:
    """Converts values of a file, perhaps of a narrower type, to values of the column.

    Raises:
        OutputRefusedError: their type can't become the column's.
    """
    stored = column.stored or column.type
    if not values.type.equals(stored):
        try:
            values = values.cast(stored)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise OutputRefusedError(
                f"column {column.name} is of type {column.type} in the table, and a data file has "
                f"it as {values.type}: dump the table"
            ) from None
    return values if column.stored is None else _renamed(values, column.type)


def _members_by_id(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return structs, however deep, with the members of ``kind``, found by their field ids: others
    may have renamed one, or given its name to another. Without ids they stay as they are.
    """
    if values.type.equals(kind, check_metadata=True) or not values.num_chunks:
        return values
    return pa.chunked_array([_by_id(each, kind) for each in values.chunks])


def _by_id(values: pa.Array, kind: pa.DataType) -> pa.Array:
    is_list, is_map = pa.types.is_list(kind), pa.types.is_map(kind)
    if is_list and hasattr(values.type, "value_field"):  # Arrow has several kinds of lists
        values = values.cast(pa.list_(values.type.value_field))
        elements = _by_id(values.values, kind.value_type)
        return _with_child(values, pa.list_(elements.type), elements)
    if is_map and pa.types.is_map(values.type):
        keys, items = _by_id(values.keys, kind.key_type), _by_id(values.items, kind.item_type)
        entries = pa.StructArray.from_arrays([keys, items], ["key", "value"])
        return _with_child(values, pa.map_(keys.type, items.type), entries)
    if not pa.types.is_struct(values.type) or not (found := _field_ids(values.type)):
        return values
    names = [found.get(number) for number in _field_ids(kind)]
    members = [
        pa.nulls(len(values), member.type)
        if name is None
        else _by_id(values.field(name), member.type)
        for name, member in zip(names, kind, strict=True)
    ]
    nulls = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(members, [member.name for member in kind], mask=nulls)


def _with_child(values: pa.Array, kind: pa.DataType, child: pa.Array) -> pa.Array:
    """Return lists or maps with other elements or entries, as many."""
    buffers = values.buffers()[:2]
    return pa.Array.from_buffers(kind, len(values), buffers, offset=values.offset, children=[child])


def _has_required(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _has_required(kind.value_type)
    if not pa.types.is_struct(kind):
        return False
    return any(not member.nullable or _has_required(member.type) for member in kind)


def _filled(values: pa.Array, stored: pa.DataType) -> pa.Array:
    if not _has_required(stored):
        return values
    if pa.types.is_list(stored):
        return _with_child(values, values.type, _filled(values.values, stored.value_type))
    members = [
        _filled(each, member.type) if member.nullable else each.fill_null(b"")
        for each, member in zip(values.flatten(), stored, strict=True)
    ]
    return pa.StructArray.from_arrays(members, fields=list(values.type), mask=values.is_null())


def _renamed(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(_Renamed(each, kind)) for each in values.chunks], kind)


class _Renamed:
    """An array as one of another type with the same memory layout (Arrow PyCapsule interface)."""

    def __init__(self, values: pa.Array, kind: pa.DataType) -> None:
        self._values, self._kind = values, kind

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[Any, Any]:
        return self._kind.__arrow_c_schema__(), self._values.__arrow_c_array__()[1]


# Partition values in the log, and folders of partitions.

_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_NOT_IN_FOLDERS = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")  # Hive's escapePathName
_MOST_NAME_BYTES = 255  # of a folder on Linux


def partition_texts(values: pa.Array, column: str) -> list[str | None]:
    """Return ``values`` as the log has them.

    Raises:
        OutputRefusedError: a binary value of ``column`` is not UTF-8, which the protocol can't
            represent.
    """
    return [None if each is None else _text(each, column) or None for each in _values(values)]


def partition_value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return the value that the log has as ``text``.

    Raises:
        OutputRefusedError: the text is no value of that type.
    """
    try:
        return _parsed(text, kind) if text else pa.scalar(None, kind)
    except ValueError:
        raise OutputRefusedError(
            f"the log of the table has the value of a partition of type {kind} in a format that "
            "Tidelog can't read: rewrite that partition"
        ) from None


def partition_folder(values: Mapping[str, str | None], columns: Sequence[str]) -> str | None:
    """Return the folder for files of a partition, with Hive's naming; None: a name is too long for
    a folder.
    """
    names = []
    for column in columns:
        value = values[column]
        last = _NULL_FOLDER if value is None else folder_text(value)
        names.append(f"{folder_text(column)}={last}")
        if len(names[-1].encode()) > _MOST_NAME_BYTES:
            return None
    return "/".join(names)


def folder_text(text: str) -> str:
    """Return a column or a value as it appears in the name of a folder."""
    return _NOT_IN_FOLDERS.sub(lambda found: f"%{ord(found[0]):02X}", text)


def encoded_path(name: str) -> str:
    """Return a file's name as its path in the log: percent-encoded."""
    return quote(name, safe="/!$&'()*+,;=@~")


def _parsed(text: str, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_string(kind):
        return pa.scalar(text, kind)
    if pa.types.is_binary(kind):
        return pa.scalar(text.encode(), kind)
    if pa.types.is_date32(kind):
        return pa.scalar(int(np.datetime64(text, "D").astype(np.int64)), pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        instant = np.datetime64(text.removesuffix("Z"), "us")
        return pa.scalar(int(instant.astype(np.int64)), pa.int64()).cast(kind)
    return pa.scalar(text).cast(kind)


def _values(values: pa.Array) -> list[Any]:
    """Return Python values; dates and times as NumPy's, which support all years; times with their
    zone.
    """
    kind = values.type
    if pa.types.is_floating(kind):
        found: Sequence[Any] = list(values.to_numpy(zero_copy_only=False))
    elif pa.types.is_date32(kind):
        found = list(np.asarray(values.cast(pa.int32()).fill_null(0)).astype("M8[D]"))
    elif pa.types.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        instants = np.asarray(values.cast(pa.int64()).fill_null(0)).astype("M8[us]")
        found = [str(each).replace("T", "T" if zone else " ") + zone for each in instants]
    else:
        return list(values.to_pylist())
    return [
        each if known.as_py() else None
        for each, known in zip(found, values.is_valid(), strict=True)
    ]


def _text(value: Any, column: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise OutputRefusedError(
                f"a value of the partition column {column} is no UTF-8, and Delta can't hold "
                "another in a partition: partition by another column"
            ) from None
    if isinstance(value, np.floating):
        if np.isnan(value):
            return "NaN"
        return str(value).replace("inf", "Infinity")
    return f"{value:f}" if hasattr(value, "as_tuple") else str(value)


# The reader.

LOST_FILE = (
    "a file of the table is missing, as after a VACUUM that kept nothing while a batch was "
    "written; restore the table to a version that has all its files, or move it away"
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_TIGHT = re.compile(r'("tightBounds"\s*:\s*)true')
_ALPHANUMERIC = string.ascii_letters + string.digits


class DataFileReader:
    """Reads files of a table at ``store``. ``cache``: it has, and gets, rows of its files."""

    def __init__(self, store: FileStore, layout: FileLayout, cache: RowCache | None = None) -> None:
        self._store = store
        self._layout = layout
        self._cache = cache

    def read(
        self,
        file: DataFile,
        columns: Sequence[str] | None = None,
        rows: np.ndarray | None = None,
    ) -> pa.Table:
        """Return rows by the table's names and types: a column that the file does not have is
        its default, a narrower type is widened, values of the partition are columns.

        Args:
            file: a file of the table.
            columns: names; None: all.
            rows: int64[n], numbers of rows in the file, returned in this order; None: all rows of
                the file, also those that its deletion vector marks.

        Raises:
            RowsLeftOutError: the file is damaged, or is not there any more.
            OutputError, StorageError: the file can't be read.
        """
        names = self._layout.schema.names if columns is None else columns
        if (cached := self._cached(file)) is not None:
            return cached.take(names, rows)
        wanted = [self._layout.column(name) for name in names]
        with self._open(file) as parquet:
            if rows is not None and self._is_worth_caching(parquet, rows):
                self._keep(file)
                if (cached := self._cached(file)) is not None:
                    return cached.take(names, rows)
            stored, at = self._stored_names(parquet, wanted), None
            if rows is None:
                found = parquet.read([*stored.values()], use_threads=False)
                count = parquet.metadata.num_rows
            else:
                found, count, at = _read_groups(parquet, [*stored.values()], rows)
        table = pa.Table.from_arrays(
            [self._values(file, each, stored, found, count) for each in wanted],
            schema=pa.schema([pa.field(each.name, each.type) for each in wanted]),
        )
        # Arrow can't take rows of delta-rs's types, such as string_view: only of the table's.
        if at is not None:
            table = table.take(pa.array(at))
        rules = format_of(self._layout)
        of_lineage = [each.name for each in rules.lineage if each.name in names]
        return rules.with_lineage(table, file, rows) if of_lineage else table

    def _cached(self, file: DataFile) -> CachedRows | None:
        if self._cache is None:
            return None
        return self._cache.find(self._store.path, file.path, self._layout)

    def _is_worth_caching(self, parquet: pq.ParquetFile, rows: Int64s) -> bool:
        """Return True if ``rows`` are of most of the file's row groups."""
        if self._cache is None or not len(rows):
            return False
        starts = _group_starts(parquet)
        return 2 * len(np.unique(_group_of(rows, starts))) >= len(starts) - 1

    def _keep(self, file: DataFile) -> None:
        """Cache all rows of the file, if there is room."""
        assert self._cache is not None
        whole = self.row_groups(file, self._layout.schema.names, None, (None, None), (0, 1))
        groups = (group for _, group in whole)
        self._cache.keep(self._store.path, file.path, self._layout, groups)

    def row_groups(
        self,
        file: DataFile,
        columns: Sequence[str],
        column: FileColumn | None,
        bounds: tuple[int | None, int | None],
        share: tuple[int, int],
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of the file's row groups, each with the number of its first row.

        Args:
            file: a file of the table.
            columns: names of the columns to read, in this order.
            column: an integer column. Row groups are skipped that, by their statistics, have no
                value of it between ``bounds``. None: no row group is skipped.
            bounds: the least and the greatest value; None: no limit.
            share: (i, n): the i-th of every n row groups.
        """
        wanted = [self._layout.column(name) for name in columns]
        schema = pa.schema([pa.field(each.name, each.type) for each in wanted])
        with self._open(file) as parquet:
            stored = self._stored_names(parquet, wanted)
            searched = self._stored_names(parquet, [] if column is None else [column])
            names = parquet.schema_arrow.names
            at = names.index(searched[column.name]) if column and searched else -1
            start = 0
            for number in range(parquet.metadata.num_row_groups):
                group = parquet.metadata.row_group(number)
                if number % share[1] == share[0] and (
                    at < 0 or _may_hold(group.column(at).statistics, *bounds)
                ):
                    found = parquet.read_row_group(number, [*stored.values()], use_threads=False)
                    count = group.num_rows
                    values = [self._values(file, each, stored, found, count) for each in wanted]
                    yield start, pa.Table.from_arrays(values, schema=schema)
                start += group.num_rows

    def row_count(self, file: DataFile) -> int:
        """Return the number of rows of the file, with those that its vector marks, from the file
        itself.
        """
        with self._open(file) as parquet:
            return int(parquet.metadata.num_rows)

    def deleted_rows(self, file: DataFile) -> np.ndarray:
        """Return int64[n]: the sorted numbers of the file's rows that are marked as deleted."""
        return format_of(self._layout).deleted_rows(self._store, file)

    def _open(self, file: DataFile) -> AbstractContextManager[pq.ParquetFile]:
        return open_parquet(*locate_file(self._store, file.path))

    def _stored_names(
        self, parquet: pq.ParquetFile, columns: Sequence[FileColumn]
    ) -> dict[str, str]:
        """Return the names in a file of those of the columns that it has, by the table's."""
        fields = parquet.schema_arrow
        names = {each.physical: each.name for each in columns}
        if format_of(self._layout).by_id and (ids := _field_ids(fields)):
            return {each.name: ids[each.field_id] for each in columns if each.field_id in ids}
        return {names[name]: name for name in fields.names if name in names}

    def _values(
        self,
        file: DataFile,
        column: FileColumn,
        stored: Mapping[str, str],
        found: pa.Table,
        count: int,
    ) -> pa.ChunkedArray:
        if column.name in self._layout.partitions:
            value = partition_value(file.partition_values.get(column.physical), column.type)
            return pa.chunked_array([pa.repeat(value, count)])
        if column.name not in stored:
            default = column.default
            return pa.chunked_array(
                [pa.nulls(count, column.type) if default is None else pa.repeat(default, count)]
            )
        values = found.column(stored[column.name])
        if format_of(self._layout).by_id and column.stored is not None:
            values = _members_by_id(values, column.stored)
        return from_file(values, column)


def _field_ids(fields: Iterable[pa.Field]) -> dict[int | None, str]:
    """Return the names of a file's columns, or of a struct's members, by their field ids."""
    key = b"PARQUET:field_id"
    return {int(each.metadata[key]): each.name for each in fields if key in (each.metadata or {})}


def _may_hold(statistics: pq.Statistics | None, low: int | None, high: int | None) -> bool:
    if statistics is None or not statistics.has_min_max:
        return True
    below = high is not None and statistics.min > high
    return not below and not (low is not None and statistics.max < low)


@contextmanager
def open_parquet(store: FileStore, name: str) -> Iterator[pq.ParquetFile]:
    """Opens a file. Raises RowsLeftOutError if it is damaged, or is not there any more."""
    try:
        with (
            _lost_file_errors(store, name),
            file_errors(f"{store.path}/{name}", "read"),
            store.open_input(name) as source,
            pq.ParquetFile(
                source,
                coerce_int96_timestamp_unit="us",  # as Spark writes them
                pre_buffer=is_object_store(store.path),  # few large requests
            ) as parquet,
        ):
            yield parquet
    except RowsLeftOutError:
        raise
    except (TidelogError, pa.ArrowInvalid, UnicodeDecodeError) as error:
        cause = error.__cause__ if isinstance(error, TidelogError) else error
        if cause is None or not _is_of_content(cause):
            raise
        raise RowsLeftOutError(
            f"{store.path}/{name} can't be read as Parquet ({str(cause).splitlines()[0]}): "
            "RESTORE the table to a version without it, or move it away"
        ) from None


def _is_of_content(error: BaseException) -> bool:
    """Return True for an error of Arrow about a file's bytes, False for one of reading them."""
    if type(error) is OSError:  # those of reading have the system's number
        return error.errno is None
    return isinstance(error, pa.ArrowInvalid | UnicodeDecodeError)


@contextmanager
def _lost_file_errors(store: FileStore, name: str) -> Iterator[None]:
    """Raise RowsLeftOutError in place of another error if there is no such file any more."""
    try:
        yield
    except TidelogError:
        if store.tag(name) is None:
            raise RowsLeftOutError(f"{store.path}/{name}: {LOST_FILE}") from None
        raise


def locate_file(store: FileStore, path: str) -> tuple[FileStore, str]:
    """Return the store and the name in it for a ``path`` of a table's log: below the table, or, in
    a shallow clone, an absolute URL.
    """
    name = unquote(path)
    if not _URL.match(name):
        return store, name
    folder, _, last = name.rpartition("/")
    return open_file_store(re.sub(r"^file:/+", "file:///", folder)), last


def _read_groups(
    parquet: pq.ParquetFile, columns: Sequence[str], rows: Int64s
) -> tuple[pa.Table, int, Int64s]:
    """Read only the row groups that contain ``rows``. Return these groups, how many rows they have,
    and int64[n], where in them ``rows`` are.
    """
    starts = _group_starts(parquet)
    group_of = _group_of(rows, starts)
    groups, sizes = np.unique(group_of), np.diff(starts)
    found = parquet.read_row_groups(groups.tolist(), columns, use_threads=False)
    first = np.zeros(len(sizes), np.int64)  # of each group, in what was read
    first[groups] = np.concatenate([[0], np.cumsum(sizes[groups])])[:-1]
    return found, int(sizes[groups].sum()), rows - starts[group_of] + first[group_of]


def _group_starts(parquet: pq.ParquetFile) -> Int64s:
    """Return int64[row groups + 1]: the number of each one's first row, then that of all rows."""
    metadata = parquet.metadata
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _group_of(rows: Int64s, starts: Int64s) -> Int64s:
    return np.searchsorted(starts, rows, side="right") - 1


@dataclass(frozen=True)
class DeltaFormat:
    """Delta: deletion vectors; partitions are columns, whose values files do not have."""

    by_id: ClassVar[bool] = False
    time_unit: ClassVar[str] = "ms"  # protocol: "Per-file Statistics"

    @property
    def lineage(self) -> tuple[FileColumn, ...]:
        return ()

    def with_lineage(self, rows: pa.Table, file: DataFile, numbers: Int64s | None) -> pa.Table:
        del file, numbers
        return rows

    def deleted_rows(self, store: FileStore, file: DataFile) -> Int64s:
        vector = file.deletion_vector
        return np.zeros(0, np.int64) if vector is None else read_rows(store, vector)

    def marks_writer(self, store: FileStore) -> MarksWriter:
        return _VectorMarks(store)

    def partition_keys(self, rows: pa.Table, layout: FileLayout) -> Mapping[str, pa.Array]:
        columns = [layout.column(name) for name in layout.partitions]
        return {each.physical: rows[each.name].combine_chunks() for each in columns}

    def partition_values(
        self, keys: Mapping[str, pa.Array], layout: FileLayout
    ) -> Mapping[str, str | None]:
        columns = [layout.column(name) for name in layout.partitions]
        return {
            each.physical: partition_texts(keys[each.physical], each.name)[0] for each in columns
        }

    def folder(self, partition: Mapping[str, str | None], layout: FileLayout) -> str:
        physical = [layout.column(each).physical for each in layout.partitions]
        length = layout.prefix_length
        folder = None if length else partition_folder(partition, physical)
        if folder is None:
            folder = "".join(secrets.choice(_ALPHANUMERIC) for _ in range(length or 2))
        return folder


class _VectorMarks:
    """Marks rows by deletion vectors, all of them in one file."""

    def __init__(self, store: FileStore) -> None:
        self._vectors = DeletionVectorWriter(store)
        self._marked: list[tuple[DataFile, DataFile]] = []

    def mark(self, file: DataFile, rows: Int64s, count: int) -> None:
        vector, stats = self._vectors.add(rows), _stats_of_marked(file.stats, count)
        self._marked.append((file, replace(file, deletion_vector=vector, stats=stats)))

    def close(self) -> MarkedFiles:
        self._vectors.close()
        return tuple(self._marked)


def _stats_of_marked(stats: str | None, count: int) -> str:
    """Return the statistics of a file with a vector: they must have its number of rows, and bounds
    may be those of deleted rows (protocol: "Per-file Statistics"). Numbers keep their spelling:
    decimals are exact only as text.
    """
    known = json.loads(stats or "{}")
    if stats is None or "numRecords" not in known:
        return json.dumps({"numRecords": count, "tightBounds": False})
    if "tightBounds" not in known:
        return stats.rstrip()[:-1] + ',"tightBounds":false}'
    for found in _TIGHT.finditer(stats):
        loose = f"{stats[: found.end(1)]}false{stats[found.end() :]}"
        if json.loads(loose)["tightBounds"] is False:
            return loose
    return stats


_DELTA = DeltaFormat()


def format_of(layout: FileLayout) -> TableFormat:
    """Return the rules of a table's format."""
    return _DELTA if layout.format is None else layout.format
