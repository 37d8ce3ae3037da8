"""The interface of a database server, descriptions of its tables, and the SQL that servers share.

The statements that merge staged rows into a table are the same in both databases. A row is replaced
only by a newer version of it. The key of a deleted row stays in a table of ours with the delete's
version, so that an older state, written again, is not taken for a new row.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import OutputError
from tidelog.model.schema import Column, TableName, TableSchema

# Descriptions of a destination's table: values that are sent to executors.

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
        """Return the table with columns' names as in ``names``, for a server that ignores case."""
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
        """Return the layout with only these columns: those of a batch of rows."""
        return replace(self, types={name: self.types[name] for name in columns})

    @property
    def full_name(self) -> str:
        return str(TableName(self.namespace, self.name))

    @property
    def deleted_keys(self) -> str:
        return deleted_keys_name(self.full_name)


def deleted_keys_name(full_name: str) -> str:
    """Return the name of the table with the deleted keys of another table."""
    name = f"deleted.{full_name}"
    if len(name.encode()) <= _NAME_BYTES:
        return name
    return f"deleted.{hashlib.sha256(full_name.encode()).hexdigest()[:40]}"


# The interface.

STILL_S: Final = 60
"""The server ends a session that is idle in a transaction for longer: its process is frozen or its
host is down, and a later attempt waits for its locks."""


class RowsRefusedError(OutputError):
    """The server refuses a row because of its values; ``reason`` contains none of them."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the destination refuses a row: {reason}")
        self.reason = reason

    def __reduce__(self) -> tuple[type[RowsRefusedError], tuple[str]]:
        return type(self), (self.reason,)


_QUOTED_NAME = re.compile(r'"[^"]*"|`[^`]*`')


def with_plain_names(sql: str) -> str:
    """Return a statement for a driver that takes each ``%`` for a placeholder: doubled in quoted
    names.
    """
    return _QUOTED_NAME.sub(lambda name: name[0].replace("%", "%%"), sql)


_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def without_nullability(sql_type: str) -> str:
    """Return the type of a column's definition without NULL and NOT NULL."""
    return sql_type.removesuffix(" NOT NULL").removesuffix(" NULL")


def with_digits(field: pa.Field, source: Column | None) -> pa.Field:
    """Return the field as a decimal with the digits of the source's type, if rows have it as text
    because Arrow's decimals are too short. Any other field is returned unchanged.
    """
    digits = None if source is None else _DECIMAL.match(source.type_name.lower())
    if digits is None or not pa.types.is_string(field.type):
        return field
    return field.with_type(pa.decimal256(int(digits[1]), int(digits[2])))


class DatabaseSession(Protocol):
    """A connection in autocommit; statements begin and end transactions.

    ``usable``: connected, and no error has left a transaction open. ``product``: for messages,
    ``PostgreSQL``, ``MySQL`` or ``MariaDB``. All methods raise RowsRefusedError for values that
    don't fit, OutputRefusedError for permanent errors (rights, missing objects), OutputError for
    transient ones.
    """

    @property
    def usable(self) -> bool: ...

    @property
    def product(self) -> str: ...

    def rows(self, sql: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, with ``%s`` for each argument, and return its rows, if any. A ``%`` in a
        quoted name is a part of the name.
        """
        ...

    def holds_text(self, text: str) -> bool:
        """Can our own tables store the text, whatever the database's encoding?"""
        ...

    def load(self, table: str, columns: Sequence[str], rows: pa.RecordBatch) -> None:
        """Append rows (of Arrow types) to a table, in bulk. A refused row ends the statement; then
        a transaction must be rolled back to a savepoint.

        Args:
            table: the quoted name.
            columns: unquoted names, in the order of ``rows``' columns.
            rows: the values.
        """
        ...

    def stage(self, layout: TableLayout, columns: Sequence[str]) -> str:
        """Create an empty temporary table with ``columns`` of the layout's, version and shape, all
        nullable; returns its quoted name. Call it outside of a transaction.
        """
        ...

    def lock(self, name: str) -> None:
        """Wait for the lock of this name; the end of the transaction releases it."""
        ...

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def close(self) -> None:
        """Close the connection. Never raises; what was not committed is rolled back."""
        ...


class Dialect(Protocol):
    """The SQL of one database product, and how to connect to it. Picklable."""

    @property
    def share_lock(self) -> str:
        """The clause that makes a SELECT lock its rows against changes: ``FOR SHARE``."""
        ...

    @property
    def version_type(self) -> str:
        """The type and options of the column for the version."""
        ...

    @property
    def ignores_case(self) -> bool:
        """Are columns ``a`` and ``A`` the same?"""
        ...

    @property
    def exact_text(self) -> str:
        """Options of a text column that stores every text, and distinguishes all texts."""
        ...

    @property
    def texts(self) -> Sequence[str]:
        """The names of the types of texts."""
        ...

    @property
    def own_values(self) -> str:
        """The clause of an INSERT that lets it give values to an identity, with a space behind."""
        ...

    @property
    def digits(self) -> int:
        """Default number of fractional digits of a type of times."""
        ...

    def connect(self, purpose: str) -> DatabaseSession: ...

    def key_as_text(
        self, rows: pa.RecordBatch, key: Sequence[str], source: TableSchema
    ) -> pa.RecordBatch:
        """Return ``rows`` with texts for those values of the key that only the server's own kind
        has.
        """
        ...

    def quoted(self, *names: str) -> str:
        """Return a quoted qualified name."""
        ...

    def type_of(
        self,
        session: Any,
        field: pa.Field,
        source: Column | None,
        kind: str,
        *,
        key: Sequence[pa.Field],
    ) -> str | None:
        """Return the SQL type of a new column, or None if there is none.

        Args:
            session: any session of this dialect.
            field: the field of the rows.
            source: the source's column; None if a step may have changed its values.
            kind: the source's kind.
            key: the columns of the key, if the column is one of them.
        """
        ...

    def holds(self, base: str, sql_type: str, field: pa.Field) -> bool:
        """Can a column of this type store all values of the field?"""
        ...

    def folds_tables(self, session: Any) -> bool:
        """Are tables ``t`` and ``T`` the same?"""
        ...

    def name_fault(self, session: Any, name: str) -> str | None:
        """Return why the server can't have the name for a table or column: ``has more than …``."""
        ...

    def default_namespace(self, session: Any) -> str: ...

    def create_namespace(self, session: Any, name: str) -> None:
        """Create the namespace if it does not exist."""
        ...

    def find_table(self, session: Any, namespace: str, name: str) -> FoundTargetTable | None: ...

    def rename(self, session: Any, column: FoundColumn, name: str) -> str:
        """Return the ALTER TABLE action that gives a column another (unquoted) name."""
        ...

    def widen(self, column: str, sql_type: str) -> str:
        """Return the ALTER TABLE action that gives a (quoted) column a wider type."""
        ...

    def convert(self, column: str, base: str, sql_type: str) -> str:
        """Return the ALTER TABLE action from a (quoted) column of type ``base`` to any type."""
        ...

    def upsert(self, layout: TableLayout, present: Sequence[str], stage: str) -> list[str]:
        """Return the statements that write whole rows of the stage, unless the table or the
        deleted keys have a version that is as new.
        """
        ...

    def update(
        self, layout: TableLayout, changes: Sequence[tuple[str, str]], stage: str, where: str
    ) -> str:
        """Return an UPDATE of the table (alias t) joined to the stage (alias s) by key.
        ``changes``: (quoted column, expression).
        """
        ...

    def delete(self, layout: TableLayout, stage: str, where: str) -> str:
        """Return a DELETE from the table (alias t) of keys that are in the stage (alias s)."""
        ...

    def write_tombstones(self, layout: TableLayout, stage: str) -> str:
        """Return the statement that stores the keys that the stage deletes, at their newest."""
        ...


# Statements that merge staged rows into a table.

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
    """Return rows of the shape `changes` without those below the table's floor."""
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
    """Raise RowsRefusedError for a text that is longer than its column: the servers refuse it,
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


def key_span(rows: pa.RecordBatch, layout: TableLayout) -> tuple[object, object] | None:
    """Return the first key column's least and greatest value, if all servers sort it alike."""
    column = rows.column(layout.key[0])
    if not any(getattr(pa.types, f"is_{kind}")(column.type) for kind in _PROBED):
        return None
    found = pc.min_max(column)
    return found["min"].as_py(), found["max"].as_py()


def occupied_query(dialect: Dialect, layout: TableLayout) -> str:
    """Return a SELECT of whether table or deleted keys have a key of a `key_span`, given twice."""
    first = dialect.quoted(layout.key[0])
    probes = (
        f"EXISTS (SELECT 1 FROM {table} WHERE {first} BETWEEN %s AND %s)"
        for table in (
            dialect.quoted(layout.namespace, layout.name),
            dialect.quoted(layout.own, layout.deleted_keys),
        )
    )
    return f"SELECT {' OR '.join(probes)}"


def merge_statements(
    dialect: Dialect, layout: TableLayout, staged: StagedRows, stage: str
) -> Iterator[str]:
    """Yield the statements, in order: whole rows, partial ones, deletes."""
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
    """Return the assignments for these columns and the version. The version is last, because MySQL
    assigns from left to right.
    """
    quoted = [dialect.quoted(name) for name in names]
    return [*((name, f"s.{name}") for name in quoted), (VERSION, f"s.{VERSION}")]


def same_key(dialect: Dialect, layout: TableLayout, one: str, other: str) -> str:
    """Return ``one.k = other.k AND …``."""
    names = [dialect.quoted(name) for name in layout.key]
    return " AND ".join(f"{one}.{name} = {other}.{name}" for name in names)
