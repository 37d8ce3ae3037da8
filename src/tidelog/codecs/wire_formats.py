"""What differs between the wire formats of rows, by the name that a schema version has.

Each format is a `WireFormat` in the folder of its database, which `tidelog.kinds.adapters` names.

This module is imported where reads are planned, so it must not import the decoder (numba takes a
second).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from tidelog.codecs.cell_positions import CellPlaces
from tidelog.kinds.adapters import NATIVE_TYPES, WIRE_FORMATS
from tidelog.model.option_values import ColumnTypes
from tidelog.model.schema import Column, TableName, TableSchema, double_quoted

Key = tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFormat:
    """One wire format.

    Attributes:
        parse: finds the cells of records; see `parse`.
        possibly_missing_columns: returns the names of the columns that a record's new state may
            lack; never one of the match key.
        key_spellings: returns the texts that the source reads, for a key column's text as Spark
            writes it: one, except for values that may be infinite.
        fraction_digits: of the seconds in a type of times whose name has no number in brackets.
        decimals_have_nan: whether a ``decimal(p,s)`` may be ``NaN``.
        has_invalid_dates: whether dates may be in no calendar; see
            `tidelog.codecs.columns.times`.
        sorts_uuids_as_texts: whether the source does.
        example: returns an insert's payload with a cell of each logical type, and its schema, to
            compile the kernels early.
        quoted: quotes a qualified name as the source's SQL has it.
        row_id: the type of a column that numbers the rows of a table.
    """

    parse: Callable[..., CellPlaces]
    possibly_missing_columns: Callable[[TableSchema], frozenset[str]]
    key_spellings: Callable[[str, Column], tuple[str, ...]]
    fraction_digits: int
    quoted: Callable[..., str] = double_quoted
    row_id: str = "bigint GENERATED ALWAYS AS IDENTITY"
    decimals_have_nan: bool = False
    has_invalid_dates: bool = False
    sorts_uuids_as_texts: bool = False
    example: Callable[[], tuple[bytes, TableSchema]] | None = None


def wire_format(schema: TableSchema) -> WireFormat:
    """Return the format of the schema version's rows. Raises ConfigError if there is none."""
    return _named(schema.wire_format)


def add_key_sql(table: TableName, source: WireFormat) -> str:
    """Return the statements that give a table of the source a key, to choose from."""
    return (
        f"ALTER TABLE {source.quoted(table.namespace, table.name)} ADD PRIMARY KEY (COLUMN, …), or "
        f"ADD COLUMN row_id {source.row_id} PRIMARY KEY"
    )


@cache
def _named(name: str) -> WireFormat:
    found: WireFormat = WIRE_FORMATS.get(name)
    return found


def parse(
    records: pa.RecordBatch,
    schema: TableSchema,
    wanted: Sequence[int],
    *,
    old: bool,
    old_columns: Sequence[int] | None = None,
) -> CellPlaces:
    """Find where each cell of records, all of ``schema``, begins and how long it is.

    Args:
        records: a batch in the event log's record layout.
        schema: the version that the records were written under.
        wanted: wire column numbers; row ``i`` of the matrices is column ``wanted[i]``.
        old: whether to return the old images too (otherwise they only fill unchanged cells).
        old_columns: wire column numbers; old images may leave out (`MISSING`) all others where that
            saves time. None: none may be left out.

    Raises:
        DecodeError: a payload does not fit ``schema``; names table and version.
    """
    parse_format = wire_format(schema).parse
    return parse_format(records, schema, wanted, old=old, old_columns=old_columns)


def nan_key(schema: TableSchema) -> frozenset[str]:
    """Return the columns of the match key whose typed value is null for ``NaN``. No decimal has
    ``NaN``, though the source's may: it is one value, so that null is one key.
    """
    if not wire_format(schema).decimals_have_nan:
        return frozenset()
    return frozenset(
        column.name
        for column in schema.columns
        if column.name in schema.match_key and column.logical.startswith("decimal(")
    )


def source_spellings(key: Key, schema: TableSchema, columns: Sequence[str]) -> list[Key]:
    """Return the source's keys that ``key`` (of ``columns``), in Spark's texts, may stand for.
    Spark's texts are those of `tidelog.spark.changed_keys.as_text`.
    """
    spellings = wire_format(schema).key_spellings
    found = [schema.columns[schema.column_index(name)] for name in columns]
    texts = zip(key, found, strict=True)
    each = [(None,) if text is None else spellings(text, column) for text, column in texts]
    return list(itertools.product(*each))


# Logical types by the option ``types``, of columns that are text without it.


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
    found = {c.name: logical_of(schema, c, given.get(c.name, types)) for c in columns}
    return {name: logical for name, logical in found.items() if logical is not None}
