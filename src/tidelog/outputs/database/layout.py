"""Descriptions of a destination's table: values that are sent to executors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidelog.model.schema import TableName

# Columns that we add to tables. Names with this prefix are ours: see
# `tidelog.spark.formats.shapes`.
VERSION, DELETED = "_tidelog_version", "_tidelog_deleted"
# A column of the staging table: 0 a whole row, -1 a delete, n a row with missing columns.
SHAPE = "_tidelog_shape"

_NAME_BYTES = 63  # PostgreSQL's limit; MySQL's is 64 characters


@dataclass(frozen=True)
class FoundColumn:
    """A column of an existing table.

    Attributes:
        sql_type: the type as in CREATE TABLE.
        base: the type's name alone.
        needed: whether rows can't be inserted without it.
        computed: whether nothing can be written to it.
        alike: whether it takes texts that differ, in case or so, for equal.
        padded: whether it takes texts that differ in trailing spaces for equal.
    """

    name: str
    sql_type: str
    base: str
    needed: bool = False
    computed: bool = False
    alike: bool = False
    padded: bool = False


@dataclass(frozen=True)
class FoundTargetTable:
    """A table as the server describes it; ``obstacle``: why it can't store rows."""

    columns: tuple[FoundColumn, ...]
    unique: tuple[tuple[str, ...], ...]
    obstacle: str | None = None

    def with_spelling(self, names: Iterable[str]) -> FoundTargetTable:
        """Returns the table with columns' names as in ``names``, for a server that ignores case."""
        known = {name.lower(): name for name in names}
        columns = [replace(c, name=known.get(c.name.lower(), c.name)) for c in self.columns]
        unique = [tuple(known.get(n.lower(), n) for n in index) for index in self.unique]
        return replace(self, columns=tuple(columns), unique=tuple(unique))


@dataclass(frozen=True)
class TableLayout:
    """The destination of a source table's rows.

    Attributes:
        namespace: schema (PostgreSQL) or database (MySQL). ``name``: the table's name.
        types: column → SQL type in the destination.
        key: the columns that identify rows.
        own: namespace of our tables. ``deleted_keys``: our table with this table's deleted keys.
        floor: rows of lower versions were deleted in the source.
        soft: whether rows of deleted keys stay, marked.
    """

    namespace: str
    name: str
    types: Mapping[str, str]
    key: tuple[str, ...]
    own: str
    floor: int = 0
    soft: bool = False

    def with_columns(self, columns: Sequence[str]) -> TableLayout:
        """Returns the layout with only these columns: those of a batch of rows."""
        return replace(self, types={name: self.types[name] for name in columns})

    @property
    def full_name(self) -> str:
        return str(TableName(self.namespace, self.name))

    @property
    def deleted_keys(self) -> str:
        return deleted_keys_name(self.full_name)


def deleted_keys_name(full_name: str) -> str:
    """Returns the name of the table with the deleted keys of another table."""
    name = f"deleted.{full_name}"
    if len(name.encode()) <= _NAME_BYTES:
        return name
    return f"deleted.{hashlib.sha256(full_name.encode()).hexdigest()[:40]}"
