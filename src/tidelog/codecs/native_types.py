"""Finds the logical types that the option ``types`` gives columns that are text without it.

Imported where reads are planned, so it must not import the decoder (numba takes a second).
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.kinds.adapters import NATIVE_TYPES
from tidelog.model.column_types import ColumnTypes
from tidelog.model.schema import TableSchema


def native_logicals(
    schema: TableSchema, types: ColumnTypes, of_columns: Mapping[str, ColumnTypes] | None = None
) -> dict[str, str]:
    """Return the logical types of the columns that are not text by ``types``, by name.

    Columns of a key keep theirs: a key is compared by its text, and any key must be delivered.
    ``of_columns``: by name of a column, what holds in place of ``types``.
    """
    if schema.wire_format not in NATIVE_TYPES.names:
        return {}
    logical_of, given = NATIVE_TYPES.get(schema.wire_format), of_columns or {}
    keys = {*schema.key, *schema.match_key}
    columns = [column for column in schema.columns if column.name not in keys]
    found = {c.name: logical_of(c, given.get(c.name, types)) for c in columns}
    return {name: logical for name, logical in found.items() if logical is not None}
