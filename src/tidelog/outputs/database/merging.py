"""The statements that merge staged rows into a table, the same in both databases.

A row is replaced only by a newer version of it. The key of a deleted row stays in a table of ours
with the delete's version, so that an older state, written again, is not taken for a new row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.outputs.database.dialect import Dialect, RowsRefusedError
from tidelog.outputs.database.layout import DELETED, SHAPE, VERSION, TableLayout

NEWER = f"(t.{VERSION} IS NULL OR t.{VERSION} < s.{VERSION})"
WHOLE, DELETE = 0, -1
_PROBED = ("integer", "decimal")
_LENGTH = re.compile(r"(?:var)?char(?:acter)?(?: varying)?\((\d+)\)")


@dataclass(frozen=True)
class StagedRows:
    """Rows as they are loaded: the layout's columns, version and shape. ``missing_columns``: by
    shape number from 1 on, the columns that its rows do not have.
    """

    rows: pa.RecordBatch
    missing_columns: tuple[frozenset[str], ...]
    deletes: bool
    wholes: bool

    @property
    def plain(self) -> bool:
        """Are there only whole rows?"""
        return not self.deletes and not self.missing_columns


def sort_by_key(rows: pa.RecordBatch, key: Sequence[str]) -> pa.RecordBatch:
    """Sort rows by the key's index: each page is written once, which halves an upsert's cost, and
    no two sessions lock rows in different order.
    """
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in key])
    if np.array_equal(order.to_numpy(), np.arange(rows.num_rows, dtype=np.uint64)):
        return rows
    return rows.take(order)


def stage_rows(rows: pa.RecordBatch, layout: TableLayout) -> StagedRows:
    """Returns rows of the shape `changes` without those below the table's floor."""
    from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION

    if layout.floor:
        rows = rows.filter(pc.greater_equal(rows.column(CHANGE_VERSION), layout.floor))
    deleted = pc.equal(rows.column(CHANGE_OP), "d")
    missing = rows.column(CHANGE_MISSING)
    shape = pa.repeat(pa.scalar(WHOLE, pa.int16()), rows.num_rows)
    missing_columns: tuple[frozenset[str], ...] = ()
    if missing.null_count < rows.num_rows:
        # A deleted row has only its key, and that is enough.
        joined = pc.if_else(deleted, pa.scalar(None, pa.string()), pc.binary_join(missing, "\0"))
        sets = joined.dictionary_encode()
        missing_columns = tuple(
            frozenset(names.split("\0")) for names in sets.dictionary.to_pylist()
        )
        numbered = pc.add(sets.indices.cast(pa.int16()), pa.scalar(1, pa.int16()))
        shape = pc.coalesce(numbered, shape)
    shape = pc.if_else(deleted, pa.scalar(DELETE, pa.int16()), shape)
    names = [*layout.types, VERSION, SHAPE]
    columns = [rows.column(name) for name in layout.types]
    loaded = pa.RecordBatch.from_arrays([*columns, rows.column(CHANGE_VERSION), shape], names=names)
    return StagedRows(
        loaded,
        missing_columns,
        deletes=bool(pc.any(deleted).as_py()),
        wholes=bool(pc.any(pc.equal(shape, WHOLE)).as_py()),
    )


def check_lengths(rows: pa.RecordBatch, types: Mapping[str, str]) -> None:
    """Raises RowsRefusedError for a text that is longer than its column: the servers refuse it,
    except for spaces at its end, which they cut silently, so that two keys may become one.
    """
    for name, sql_type in types.items():
        found = _LENGTH.match(sql_type)
        texts = rows.column(name)
        if found is None or not pa.types.is_string(texts.type):
            continue
        longest = pc.max(pc.utf8_length(texts)).as_py()
        if longest is not None and longest > int(found[1]):
            raise RowsRefusedError(f"too long for column {name}, {found[0]}")


def span(rows: pa.RecordBatch, layout: TableLayout) -> tuple[object, object] | None:
    """Returns the least and greatest value of the key's first column, if all servers sort
    it alike.
    """
    column = rows.column(layout.key[0])
    if not any(getattr(pa.types, f"is_{kind}")(column.type) for kind in _PROBED):
        return None
    found = pc.min_max(column)
    return found["min"].as_py(), found["max"].as_py()


def occupied_query(dialect: Dialect, layout: TableLayout) -> str:
    """Returns a SELECT that checks whether the table or its deleted keys have any key of a `span`
    (given twice).
    """
    first = dialect.quoted(layout.key[0])
    probes = (
        f"EXISTS (SELECT 1 FROM {table} WHERE {first} BETWEEN %s AND %s)"
        for table in (
            dialect.quoted(layout.namespace, layout.name),
            dialect.quoted(layout.own, layout.deleted_keys),
        )
    )
    return f"SELECT {' OR '.join(probes)}"


def merge(dialect: Dialect, layout: TableLayout, staged: StagedRows, stage: str) -> Iterator[str]:
    """Yields the statements, in order: whole rows, partial ones, deletes."""
    present = list(layout.types)
    if staged.wholes:
        yield from dialect.upsert(layout, present, stage)
    for number, missing_columns in enumerate(staged.missing_columns, 1):
        names = [n for n in present if n not in missing_columns and n not in layout.key]
        changes = assignments(dialect, names)
        alive = f" AND NOT t.{DELETED}" if layout.soft else ""
        where = f"s.{SHAPE} = {number} AND {NEWER}{alive}"
        yield dialect.update(layout, changes, stage, where)
    if staged.deletes:
        yield dialect.write_tombstones(layout, stage)
        where = f"s.{SHAPE} = {DELETE} AND {NEWER}"
        if layout.soft:
            marks = [(DELETED, "true"), (VERSION, f"s.{VERSION}")]
            yield dialect.update(layout, marks, stage, where)
        else:
            yield dialect.delete(layout, stage, where)


def assignments(dialect: Dialect, names: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the assignments for these columns and the version. The version is last, because MySQL
    assigns from left to right.
    """
    quoted = [dialect.quoted(name) for name in names]
    return [*((name, f"s.{name}") for name in quoted), (VERSION, f"s.{VERSION}")]


def by_key(dialect: Dialect, layout: TableLayout, one: str, other: str) -> str:
    """Returns ``one.k = other.k AND …``."""
    names = [dialect.quoted(name) for name in layout.key]
    return " AND ".join(f"{one}.{name} = {other}.{name}" for name in names)
