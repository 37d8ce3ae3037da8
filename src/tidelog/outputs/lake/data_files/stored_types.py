"""Converts values from a table's types to those of its files, and back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidelog.errors import OutputRefusedError
from tidelog.outputs.lake.data_files.layout import FileColumn


def to_file(values: pa.ChunkedArray, column: FileColumn) -> pa.ChunkedArray:
    """Returns values of the column with the field names that files use inside structs."""
    return values if column.stored is None else _renamed(values, column.stored)


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


def _renamed(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(_Renamed(each, kind)) for each in values.chunks], kind)


class _Renamed:
    """An array as one of another type with the same memory layout (Arrow PyCapsule interface)."""

    def __init__(self, values: pa.Array, kind: pa.DataType) -> None:
        self._values, self._kind = values, kind

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[Any, Any]:
        return self._kind.__arrow_c_schema__(), self._values.__arrow_c_array__()[1]
