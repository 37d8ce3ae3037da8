"""Chooses how the columns of Parquet files are encoded."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_SAMPLE = 20_000  # rows that show whether values repeat


def dictionary_columns(table: pa.Table) -> list[str]:
    """Return the columns, and members of structs, for which a dictionary makes files smaller.
    Trying one for each costs much.
    """
    head = table.slice(0, _SAMPLE)
    found: list[str] = []
    for field in head.schema:
        _add_columns(head[field.name], field.name, found)
    return found


def _add_columns(values: pa.ChunkedArray, path: str, found: list[str]) -> None:
    kind = values.type
    if pa.types.is_struct(kind):
        for at, member in enumerate(kind):
            _add_columns(pc.struct_field(values, at), f"{path}.{member.name}", found)
        return
    text = pa.types.is_string(kind) or pa.types.is_binary(kind)
    if text and pc.count_distinct(values).as_py() * 2 < len(values):
        found.append(path)
