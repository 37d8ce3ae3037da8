"""Iceberg tables as tasks see them: position deletes, deletion vectors, hidden partitions.

Iceberg's specification, "Position Delete Files" and "Deletion Vectors"; the Puffin specification.
"""

from __future__ import annotations

import json
import struct
import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.model.records import Int64s
from tidelog.outputs.base.stores import FileStore
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.deletion_vectors import frame_of, read_frame, rows_of_frame
from tidelog.outputs.lake.data_files.file_reader import locate_file, open_parquet
from tidelog.outputs.lake.data_files.layout import (
    FileColumn,
    FileLayout,
    MarkedFiles,
    MarksWriter,
)
from tidelog.outputs.lake.iceberg.files import (
    DeleteFile,
    IcebergFile,
    as_iceberg,
    deletes_of,
    iceberg_path,
    own_path,
)
from tidelog.outputs.lake.iceberg.partitioning import Partition, partition_keys, value_json

DATA_FOLDER: Final = "data"
_MAGIC: Final = b"PFA1"
_MOST_KEPT: Final = 32 << 20  # bytes of deleted rows, of all files
_ENTRY_BYTES: Final = 1 << 10
_POSITION_ID: Final = 2147483645  # reserved field id of a row's position in its file
_PATH_FIELD: Final = pa.field(
    "file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}
)
_POSITION_FIELD: Final = pa.field(
    "pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}
)


# Of each row of format 3, where its place does not say it (specification, "Row Lineage").
_LINEAGE: Final = tuple(
    FileColumn(name, name, pa.int64(), field_id)
    for name, field_id in (("_row_id", 2147483540), ("_last_updated_sequence_number", 2147483539))
)


class _KnownRows:
    """Deleted rows by their file and its deletes, none of which ever change: of those that this
    process wrote or read last. Thread-safe.
    """

    def __init__(self) -> None:
        self._rows: OrderedDict[object, Int64s] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, path: str, deletes: Sequence[DeleteFile]) -> Int64s | None:
        with self._lock:
            place = _place(path, deletes)
            if place in self._rows:
                self._rows.move_to_end(place)
            return self._rows.get(place)

    def keep(self, path: str, deletes: Sequence[DeleteFile], rows: Int64s) -> None:
        with self._lock:
            place = _place(path, deletes)
            if place not in self._rows:
                self._rows[place] = rows
                self._bytes += rows.nbytes + _ENTRY_BYTES
            while self._bytes > _MOST_KEPT:
                self._bytes -= self._rows.popitem(last=False)[1].nbytes + _ENTRY_BYTES


def _place(path: str, deletes: Sequence[DeleteFile]) -> object:
    return path, *((each.path, each.offset) for each in deletes)


_known = _KnownRows()


@dataclass(frozen=True)
class PartitionField:
    """A field of the partition spec: ``id``, and what it is made of."""

    id: int
    partition: Partition


@dataclass(frozen=True)
class IcebergFormat:
    """The rules of one Iceberg table.

    Attributes:
        location: as the table's metadata have it.
        version: of the table format: 2, with position deletes, or 3, with deletion vectors.
        spec: id of the table's partition spec.
        fields: those of the spec.
    """

    by_id: ClassVar[bool] = True
    time_unit: ClassVar[str] = "us"  # Spark takes bounds for the least and the greatest value

    location: str
    version: int
    spec: int
    fields: tuple[PartitionField, ...] = ()

    def deleted_rows(self, store: FileStore, file: DataFile) -> Int64s:
        path, deletes = iceberg_path(file, self.location), deletes_of(file)
        if not deletes:
            return np.zeros(0, np.int64)
        if (known := _known.find(path, deletes)) is not None:
            return known
        found = [self._positions(store, each, path) for each in deletes]
        rows = np.unique(np.concatenate(found))
        _known.keep(path, deletes, rows)
        return rows

    def _positions(self, store: FileStore, deletes: DeleteFile, path: str) -> Int64s:
        holder, name = locate_file(store, own_path(deletes.path, self.location)[0])
        if deletes.offset is not None:
            data = read_frame(holder, name, deletes.offset, deletes.length or 0)
            return rows_of_frame(data, deletes.rows, f"{holder.path}/{name}")
        with open_parquet(holder, name) as parquet:
            names = ["pos"] if deletes.data_file else ["file_path", "pos"]
            found = parquet.read(names, use_threads=False)
        if not deletes.data_file:
            found = found.filter(pc.equal(found["file_path"], path))
        return np.asarray(found["pos"].combine_chunks()).astype(np.int64)

    @property
    def lineage(self) -> tuple[FileColumn, ...]:
        return _LINEAGE if self.version >= 3 else ()

    def with_lineage(self, rows: pa.Table, file: DataFile, numbers: Int64s | None) -> pa.Table:
        known: dict[str, Any] = {"_row_id": None, "_last_updated_sequence_number": None}
        if isinstance(file, IcebergFile):
            if file.first_row is not None:
                places = np.arange(len(rows)) if numbers is None else numbers
                known["_row_id"] = pa.array(file.first_row + places)
            known["_last_updated_sequence_number"] = pa.scalar(file.sequence, pa.int64())
        for name, values in known.items():
            if values is not None:
                at = rows.schema.get_field_index(name)
                rows = rows.set_column(at, rows.schema.field(at), pc.coalesce(rows[name], values))
        return rows

    def marks_writer(self, store: FileStore) -> MarksWriter:
        writer = _PuffinMarks if self.version >= 3 else _PositionMarks
        return writer(store, self.location)

    def partition_keys(self, rows: pa.Table, layout: FileLayout) -> Mapping[str, pa.Array]:
        found = {}
        for each in self.fields:
            column = each.partition.column or layout.columns[0].name  # "": of void, it is gone
            found[str(each.id)] = partition_keys(rows[column].combine_chunks(), each.partition)
        return found

    def partition_values(
        self, keys: Mapping[str, pa.Array], layout: FileLayout
    ) -> Mapping[str, str | None]:
        del layout
        return {name: value_json(key) for name, key in keys.items()}

    def folder(self, partition: Mapping[str, str | None], layout: FileLayout) -> str:
        del partition, layout
        return DATA_FOLDER


class _Marks:
    def __init__(self, store: FileStore, location: str) -> None:
        self._store = store
        self._location = location
        self._names: list[str] = []
        self._marked: list[tuple[DataFile, DataFile]] = []

    def close(self) -> MarkedFiles:
        if self._names:
            self._store.sync([*self._names, DATA_FOLDER])
        return tuple(self._marked)


class _PositionMarks(_Marks):
    """Writes a file of positions for each data file, in place of an earlier one; files about
    several data files stay.
    """

    def mark(self, file: DataFile, rows: Int64s, count: int) -> None:
        del count
        path = iceberg_path(file, self._location)
        name = f"{DATA_FOLDER}/{uuid.uuid4()}-deletes.parquet"
        table = pa.Table.from_arrays(
            [pa.repeat(path, len(rows)), pa.array(rows, pa.int64())],
            schema=pa.schema([_PATH_FIELD, _POSITION_FIELD]),
        )
        with self._store.open_output(name) as sink:
            pq.write_table(
                table, sink, compression="zstd", use_dictionary=["file_path"], store_schema=False
            )
            size = sink.tell()
        self._names.append(name)
        kept = tuple(each for each in deletes_of(file) if not each.data_file)
        fresh = DeleteFile(
            f"{self._location.rstrip('/')}/{name}", file.partition_values, size, len(rows), path
        )
        if not kept:
            _known.keep(path, [fresh], rows)
        self._marked.append((file, as_iceberg(file, deletes=(*kept, fresh))))


class _PuffinMarks(_Marks):
    """Writes deletion vectors, each in a Puffin file of its own: Iceberg's library, by which many
    expire snapshots, removes a file as a whole once one of its vectors was replaced.

    A data file's vector replaces all that marked its rows before.
    """

    def mark(self, file: DataFile, rows: Int64s, count: int) -> None:
        del count
        path, offset, frame = iceberg_path(file, self._location), len(_MAGIC), frame_of(rows)
        blob = {
            "type": "deletion-vector-v1",
            "fields": [_POSITION_ID],
            "snapshot-id": -1,
            "sequence-number": -1,
            "offset": offset,
            "length": len(frame),
            "properties": {"referenced-data-file": path, "cardinality": str(len(rows))},
        }
        footer = json.dumps({"blobs": [blob], "properties": {}}).encode()
        end = struct.pack("<i", len(footer)) + bytes(4) + _MAGIC
        data = _MAGIC + frame + _MAGIC + footer + end
        name = f"{DATA_FOLDER}/{uuid.uuid4()}-deletes.puffin"
        self._store.put(name, data)
        fresh = DeleteFile(
            f"{self._location.rstrip('/')}/{name}",
            file.partition_values,
            len(data),
            len(rows),
            path,
            offset,
            len(frame),
        )
        _known.keep(path, [fresh], rows)
        self._marked.append((file, as_iceberg(file, deletes=(fresh,))))
