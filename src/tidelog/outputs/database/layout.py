"""What is known of a destination's table: values that travel to executors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidelog.model.schema import TableName

# Columns that we add to tables. Names that begin so are ours: see `tidelog.spark.formats.shapes`.
VERSION, DELETED = "_tidelog_version", "_tidelog_deleted"
# A column of the staging table: 0 a whole row, -1 a delete, n a row that lacks columns.
SHAPE = "_tidelog_shape"

_NAME_BYTES = 63  # PostgreSQL's limit; MySQL's is 64 characters


@dataclass(frozen=True)
class FoundColumn:
    """A column of an existing table.

    ``sql_type`` as in CREATE TABLE; ``base`` the type's name alone. ``needed``: rows can't be
    inserted without it. ``computed``: nothing can be written to it. ``alike``: it takes texts that
    differ, in case or so, for one. ``padded``: those that differ in trailing spaces.
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
    """A table as the server describes it; ``obstacle``: why rows can't be kept in it."""

    columns: tuple[FoundColumn, ...]
    unique: tuple[tuple[str, ...], ...]
    obstacle: str | None = None

    def spelled(self, names: Iterable[str]) -> FoundTargetTable:
        """For a server that ignores case: with columns' names as they are in ``names``."""
        known = {name.lower(): name for name in names}
        columns = [replace(c, name=known.get(c.name.lower(), c.name)) for c in self.columns]
        unique = [tuple(known.get(n.lower(), n) for n in index) for index in self.unique]
        return replace(self, columns=tuple(columns), unique=tuple(unique))


@dataclass(frozen=True)
class TableLayout:
    """Where a source table's rows go.

    Attributes:
        namespace: schema (PostgreSQL) or database (MySQL). ``name``: of the table.
        types: column → SQL type in the destination.
        key: those of them that rows are known by.
        own: namespace of our tables. ``gone``: the one that holds this table's deleted keys.
        floor: rows of lower versions are gone from the source.
        soft: rows of deleted keys stay, marked.
    """

    namespace: str
    name: str
    types: Mapping[str, str]
    key: tuple[str, ...]
    own: str
    floor: int = 0
    soft: bool = False

    def of(self, columns: Sequence[str]) -> TableLayout:
        """With these columns alone: those that a batch of rows holds."""
        return replace(self, types={name: self.types[name] for name in columns})

    @property
    def full_name(self) -> str:
        return str(TableName(self.namespace, self.name))

    @property
    def gone(self) -> str:
        return gone_name(self.full_name)


def gone_name(full_name: str) -> str:
    """The name of the table that holds the deleted keys of another."""
    name = f"deleted.{full_name}"
    if len(name.encode()) <= _NAME_BYTES:
        return name
    return f"deleted.{hashlib.sha256(full_name.encode()).hexdigest()[:40]}"
