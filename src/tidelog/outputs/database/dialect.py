"""The interface of a database server: everything in which the servers differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from tidelog.errors import OutputError
from tidelog.model.schema import Column, TableSchema
from tidelog.outputs.database.layout import FoundColumn, FoundTargetTable, TableLayout

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
    """Returns a statement for a driver that takes each ``%`` for a placeholder: doubled in quoted
    names.
    """
    return _QUOTED_NAME.sub(lambda name: name[0].replace("%", "%%"), sql)


_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def with_digits(field: pa.Field, source: Column | None) -> pa.Field:
    """Returns the field as a decimal with the digits of the source's type, if rows have it as text
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
    def digits(self) -> int:
        """Default number of fractional digits of a type of times."""
        ...

    def connect(self, purpose: str) -> DatabaseSession: ...

    def key_as_text(
        self, rows: pa.RecordBatch, key: Sequence[str], source: TableSchema
    ) -> pa.RecordBatch:
        """Returns ``rows`` with texts for those values of the key that only the server's own kind
        has.
        """
        ...

    def quoted(self, *names: str) -> str:
        """Returns a quoted qualified name."""
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
        """Returns the SQL type of a new column, or None if there is none.

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
        """Returns why the server can't have the name for a table or column: ``has more than …``."""
        ...

    def default_namespace(self, session: Any) -> str: ...

    def create_namespace(self, session: Any, name: str) -> None:
        """Create the namespace if it does not exist."""
        ...

    def find_table(self, session: Any, namespace: str, name: str) -> FoundTargetTable | None: ...

    def rename(self, session: Any, column: FoundColumn, name: str) -> str:
        """Returns the ALTER TABLE action that gives a column another (unquoted) name."""
        ...

    def widen(self, column: str, sql_type: str) -> str:
        """Returns the ALTER TABLE action that gives a (quoted) column a wider type."""
        ...

    def convert(self, column: str, base: str, sql_type: str) -> str:
        """Returns the ALTER TABLE action that gives a (quoted) column of the type ``base`` any
        other type.
        """
        ...

    def upsert(self, layout: TableLayout, present: Sequence[str], stage: str) -> list[str]:
        """Returns the statements that write whole rows of the stage, unless the table or the
        deleted keys have a version that is as new.
        """
        ...

    def update(
        self, layout: TableLayout, changes: Sequence[tuple[str, str]], stage: str, where: str
    ) -> str:
        """Returns an UPDATE of the table (alias t) joined to the stage (alias s) by key.
        ``changes``: (quoted column, expression).
        """
        ...

    def delete(self, layout: TableLayout, stage: str, where: str) -> str:
        """Returns a DELETE from the table (alias t) of rows joined to the stage (alias s)
        by key.
        """
        ...

    def write_tombstones(self, layout: TableLayout, stage: str) -> str:
        """Returns the statement that stores the keys that the stage deletes, with the greatest
        version.
        """
        ...
