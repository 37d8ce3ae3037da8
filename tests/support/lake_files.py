"""Rows of every type that a Delta table may have, and a log beside their files."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.layout import FileColumn, FileLayout

TYPES: dict[str, pa.DataType] = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal(9,2)": pa.decimal128(9, 2),
    "decimal(38,10)": pa.decimal128(38, 10),
}
_NAMES = {kind: name for name, kind in TYPES.items()}
_ODD_TEXTS = (
    "",
    " ",
    "a",
    "a/b=c",
    "%41",
    "ü",
    "x" * 40,
    "\U0010ffff" * 33,
    "a\nb",
    "é+?#&'\"",
    ".",
)
_YEARS_1_TO_9999_US = -62_135_596_800_000_000, 253_402_300_799_999_999


@contextmanager
def table_folder() -> Iterator[str]:
    """A folder for one table, in memory where there is such a place: examples are many."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield folder


def plain_layout(
    columns: Mapping[str, pa.DataType],
    *,
    key: Sequence[str] = (),
    partitions: Sequence[str] = (),
    null_key: bool = False,
) -> FileLayout:
    """A layout with statistics of all columns."""
    return FileLayout(
        columns=tuple(FileColumn(name, name, kind) for name, kind in columns.items()),
        partitions=tuple(partitions),
        key=tuple(key),
        version="_version",
        deleted="",
        statistics=tuple(name for name in columns if name not in partitions),
        null_key=null_key,
    )


def values_of(kind: pa.DataType, *, any_year: bool = True) -> st.SearchStrategy[Any]:
    """Values for `column_of`, odd ones often."""
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return st.integers(-3, 3) | st.integers(-most, most - 1)
    if pa.types.is_floating(kind):
        odd = st.sampled_from([0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.5])
        return odd | st.floats(width=kind.bit_width)
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_string(kind):
        return st.sampled_from(_ODD_TEXTS) | st.text(max_size=40)
    if pa.types.is_binary(kind):
        return st.sampled_from([b"", b"a", b"\x00\xff"]) | st.binary(max_size=5)
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        whole = st.integers(-300, 300) | st.integers(-most, most)
        return whole.map(lambda number: Decimal(f"{number}E-{kind.scale}"))
    # As numbers since 1970: Python's dates don't know all years.
    least, greatest = _YEARS_1_TO_9999_US if not any_year else (-(10**17), 10**18)
    unit = 86_400_000_000 if pa.types.is_date32(kind) else 1
    return st.integers(-1500, 1500) | st.integers(least // unit + 1, greatest // unit)


def column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values of `values_of`, and None, as a column."""
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, kind)


def plain_values(column: pa.ChunkedArray) -> list[Any]:
    """The inverse of `column_of`; NaN as a text, so that it is equal to itself."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return ["NaN" if each != each else each for each in column.to_pylist()]


def plain_rows(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Rows in an order that hangs on nothing but their values."""
    return sorted(zip(*map(plain_values, rows.columns), strict=True), key=repr)


def write_log(root: Path, layout: FileLayout, files: Sequence[DataFile]) -> None:
    """Make a Delta table of ``files``, at its first version."""
    features = ["timestampNtz"] if pa.timestamp("us") in layout.schema.types else []
    fields = [
        {"name": each.name, "type": _NAMES[each.type], "nullable": each.nullable, "metadata": {}}
        for each in layout.columns
    ]
    actions: list[dict[str, Any]] = [
        {
            "protocol": {
                "minReaderVersion": 3, "minWriterVersion": 7,
                "readerFeatures": features, "writerFeatures": features,
            }
        },
        {
            "metaData": {
                "id": "0c1c3e5e-7d1c-4f0c-9b52-5f0d1f4c1a4e",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": list(layout.partitions),
                "configuration": {},
                "createdTime": 0,
            }
        },
    ]  # fmt: skip
    for file in files:
        add = {
            "path": file.path, "partitionValues": dict(file.partition_values), "size": file.size,
            "modificationTime": file.modification_time_ms, "dataChange": True,
        }  # fmt: skip
        actions.append({"add": add if file.stats is None else {**add, "stats": file.stats}})
    (root / "_delta_log").mkdir(parents=True)
    text = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in actions)
    (root / "_delta_log" / f"{0:020d}.json").write_text(text, encoding="utf-8")
