"""Data files and delete files of an Iceberg table, from and to the JSON of Iceberg's library.

Column bounds: specification, "Appendix D: Single-value serialization", binary; as statistics they
have the form of Delta's, which tasks read.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from decimal import Context, Decimal
from typing import Any, Final
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa

from tidelog.errors import TableLeftOutError
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.layout import FileColumn
from tidelog.outputs.lake.iceberg.partitioning import unscaled_bytes

SPEC: Final = "spec"
"""Among a file's partition values: the id of the partition spec that it was written with."""

_PATH_TAG: Final = "path"
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_FILE_PATH_ID: Final = 2147483546  # reserved field id of a position delete's path
_EXACT: Final = Context(prec=76)  # more digits than a decimal has
_WIDTHS: Final = {pa.int32(): "<i", pa.int64(): "<q", pa.float32(): "<f", pa.float64(): "<d"}


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """Positions of deleted rows: a Parquet file, or a part of a Puffin file.

    Attributes:
        path: as Iceberg's metadata have it.
        partition_values: as `DataFile` has them.
        size: of the file, in bytes.
        rows: number of positions.
        data_file: the only data file that it is about, as Iceberg's metadata have it; "": several.
        offset, length: of a deletion vector in its Puffin file, in bytes; None: a Parquet file.
    """

    path: str
    partition_values: Mapping[str, str | None]
    size: int
    rows: int
    data_file: str = ""
    offset: int | None = None
    length: int | None = None


@dataclass(frozen=True, slots=True)
class IcebergFile(DataFile):
    """A data file with its deletes. Format 3 gives rows ids: ``first_row`` is that of the first
    one, and ``sequence`` the number of the commit; None: not known yet.
    """

    deletes: tuple[DeleteFile, ...] = field(default=())
    first_row: int | None = None
    sequence: int | None = None

    @property
    def deleted_rows(self) -> int:
        return sum(each.rows for each in self.deletes)


def as_iceberg(file: DataFile, **changes: Any) -> IcebergFile:
    """Return a file, which may just have been written, with other attributes."""
    known = {each.name: getattr(file, each.name) for each in fields(file)}
    return IcebergFile(**{**known, **changes})


def deletes_of(file: DataFile) -> tuple[DeleteFile, ...]:
    """Return the delete files of a data file, which may just have been written."""
    return file.deletes if isinstance(file, IcebergFile) else ()


def iceberg_path(file: DataFile, location: str) -> str:
    """Return a data file's path as Iceberg's metadata have it; ``location``: the table's."""
    if file.tags and _PATH_TAG in file.tags:
        return file.tags[_PATH_TAG]
    name = unquote(file.path)
    return name if _URL.match(name) else f"{location.rstrip('/')}/{name}"


def own_path(path: str, location: str) -> tuple[str, Mapping[str, str] | None]:
    """Return a path of Iceberg's metadata as `DataFile` has paths, and its tags."""
    root = location.rstrip("/") + "/"
    if path.startswith(root):
        return quote(path.removeprefix(root), safe="/!$&'()*+,;=@~"), None
    url = path if _URL.match(path) else f"file://{path}"
    return quote(url, safe="/:!$&'()*+,;=@~"), {_PATH_TAG: path}


def file_of(
    found: Mapping[str, Any],
    deletes: tuple[DeleteFile, ...],
    by_spec: Mapping[int, list[int]],
    columns: Mapping[int, FileColumn],
    location: str,
    sequence: int | None = None,
) -> IcebergFile:
    """Return the data file of its JSON.

    Args:
        found: the parsed JSON.
        deletes: of the file.
        by_spec: by spec id, the ids of the partition's fields, in order.
        columns: the table's columns by their field ids.
        location: the table's.
        sequence: see `IcebergFile`.
    """
    if (kind := found["file-format"].lower()) != "parquet":
        raise TableLeftOutError(
            f"{location} has data files of format {kind}, which Tidelog can't read: let their "
            "writer rewrite them as Parquet, or move the table away and dump it again"
        )
    path, tags = own_path(found["file-path"], location)
    return IcebergFile(
        path,
        _partition_values(found, by_spec),
        int(found["file-size-in-bytes"]),
        0,
        _stats(found, columns),
        tags=tags,
        deletes=deletes,
        first_row=found.get("first-row-id"),
        sequence=sequence,
    )


def delete_file_of(
    found: Mapping[str, Any], fields: Mapping[int, list[int]], location: str
) -> DeleteFile:
    """Return the delete file of its JSON. Raises TableLeftOutError for one with keys."""
    if found["content"].lower() not in ("position-deletes", "position_deletes"):
        raise TableLeftOutError(
            f"{location}: another writer has deleted rows by equality, which Tidelog can't read. "
            "Compact the table by that writer, or by Spark's rewrite_data_files, so that these "
            "delete files are gone"
        )
    data_file = found.get("referenced-data-file") or _only_path(found)
    return DeleteFile(
        found["file-path"],
        _partition_values(found, fields),
        int(found["file-size-in-bytes"]),
        int(found["record-count"]),
        data_file,
        found.get("content-offset"),
        found.get("content-size-in-bytes"),
    )


def _only_path(found: Mapping[str, Any]) -> str:
    names = "lower-bounds", "upper-bounds"
    lower, upper = (_by_id(found.get(name)).get(_FILE_PATH_ID) for name in names)
    return bytes.fromhex(lower).decode() if lower is not None and lower == upper else ""


def data_json(
    file: DataFile, columns: Mapping[str, FileColumn], location: str, order: int = 0
) -> str:
    """Return the JSON of a data file. ``columns``: by name, those of which statistics are kept.
    ``order``: id of the order of its rows.
    """
    stats = file.statistics
    nulls, rows = stats.get("nullCount", {}), stats.get("numRecords", 0)
    ids = {name: each.field_id for name, each in columns.items()}
    counted = {ids[name]: count for name, count in nulls.items() if name in ids}
    bounds = {}
    for name in ("minValues", "maxValues"):
        pairs = {
            ids[column]: _bound(value, columns[column].type)
            for column, value in stats.get(name, {}).items()
            if column in ids
        }
        bounds[name] = _map({key: found for key, found in pairs.items() if found is not None})
    return json.dumps(
        {
            **_common(file.partition_values, "data", iceberg_path(file, location)),
            "file-format": "parquet",
            "file-size-in-bytes": file.size,
            "record-count": rows,
            "value-counts": _map(dict.fromkeys(counted, rows)),
            "null-value-counts": _map(counted),
            "lower-bounds": bounds["minValues"],
            "upper-bounds": bounds["maxValues"],
            "sort-order-id": order,
        }
    )


def delete_json(file: DeleteFile) -> str:
    """Return the JSON of a delete file."""
    found = {
        **_common(file.partition_values, "position-deletes", file.path),
        "file-format": "parquet" if file.offset is None else "puffin",
        "file-size-in-bytes": file.size,
        "record-count": file.rows,
    }
    if file.data_file:
        found["referenced-data-file"] = file.data_file
        bound = _map({_FILE_PATH_ID: file.data_file.encode().hex().upper()})
        if file.offset is None:
            found |= {"lower-bounds": bound, "upper-bounds": bound}
    if file.offset is not None:
        found |= {"content-offset": file.offset, "content-size-in-bytes": file.length}
    return json.dumps(found)


def _common(partition: Mapping[str, str | None], content: str, path: str) -> dict[str, Any]:
    values = [
        None if text is None else json.loads(text)
        for name, text in partition.items()
        if name != SPEC
    ]
    return {
        "spec-id": int(partition[SPEC] or 0),
        "content": content,
        "file-path": path,
        "partition": values,
    }


def _partition_values(
    found: Mapping[str, Any], fields: Mapping[int, list[int]]
) -> dict[str, str | None]:
    spec, values = int(found["spec-id"]), found.get("partition") or {}
    if isinstance(values, list):
        values = dict(zip(map(str, fields[spec]), values, strict=True))
    texts = {
        str(each): None
        if values.get(str(each)) is None
        else json.dumps(values[str(each)], ensure_ascii=False)
        for each in fields[spec]
    }
    return {SPEC: str(spec), **texts}


def _stats(found: Mapping[str, Any], columns: Mapping[int, FileColumn]) -> str:
    """Return the statistics in Delta's form."""
    counts = _by_id(found.get("null-value-counts"))
    nulls = {columns[n].physical: v for n, v in counts.items() if n in columns}
    stats = json.dumps({"numRecords": int(found["record-count"]), "nullCount": nulls})[:-1]
    for name, bounds in (("minValues", "lower-bounds"), ("maxValues", "upper-bounds")):
        texts = []
        for number, value in _by_id(found.get(bounds)).items():
            text = None if number not in columns else _text(value, columns[number].type)
            if text is not None:
                texts.append(f"{json.dumps(columns[number].physical)}:{text}")
        stats += f',"{name}":{{{",".join(texts)}}}'
    return stats + "}"


def _by_id(found: Any) -> dict[int, Any]:
    return dict(zip(found["keys"], found["values"], strict=True)) if found else {}


def _map(found: Mapping[Any, Any]) -> dict[str, Any]:
    return {"keys": [*found], "values": [*found.values()]}


def _bound(value: Any, kind: pa.DataType) -> str | None:
    """Return a bound in hex, of a value as Delta's statistics have it."""
    if pa.types.is_string(kind):
        data = str(value).encode()
    elif pa.types.is_decimal(kind):
        data = unscaled_bytes(
            Decimal(value).quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
        )
    elif pa.types.is_temporal(kind):
        day = pa.types.is_date32(kind)
        whole = np.datetime64(value.removesuffix("Z")).astype("M8[D]" if day else "M8[us]")
        data = struct.pack("<i" if day else "<q", int(whole.astype(np.int64)))
    elif (width := _WIDTHS.get(kind)) is not None:
        data = struct.pack(width, float(value) if pa.types.is_floating(kind) else int(value))
    else:
        return None
    return data.hex().upper()


def _text(value: str, kind: pa.DataType) -> str | None:
    """Return a bound as JSON of Delta's statistics, of its value in hex; None: of no use."""
    data = bytes.fromhex(value)
    try:
        if pa.types.is_string(kind):
            return json.dumps(data.decode(), ensure_ascii=False)
        if pa.types.is_decimal(kind):
            digits = Decimal(int.from_bytes(data, "big", signed=True))
            return f"{digits.scaleb(-kind.scale, _EXACT):f}"
        if pa.types.is_integer(kind):  # of a column that was widened: a shorter one
            return str(int.from_bytes(data, "little", signed=True))
        if pa.types.is_temporal(kind):
            whole = np.array([int.from_bytes(data, "little", signed=True)])
            day = pa.types.is_date32(kind)
            text = np.datetime_as_string(whole.astype("M8[D]" if day else "M8[us]"))[0]
            return json.dumps(text + ("Z" if not day and kind.tz else ""))
    except ValueError:
        return None
    return None
