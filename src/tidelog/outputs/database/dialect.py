"""What the databases differ in. Everything else is written once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from tidelog.errors import OutputError
from tidelog.model.schema import Column, TableSchema
from tidelog.outputs.database.layout import FoundColumn, FoundTargetTable, TableLayout

STILL_S: Final = 60
"""A session that asks for nothing amid a transaction for so long is ended by the server: its
process is frozen or its host gone, and a later try waits for its locks.
"""


class RowsRefusedError(OutputError):
    """Some row of those that were sent is refused for its values; ``reason`` holds none of them."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the destination refuses a row: {reason}")
        self.reason = reason

    def __reduce__(self) -> tuple[type[RowsRefusedError], tuple[str]]:
        return type(self), (self.reason,)


_QUOTED_NAME = re.compile(r'"[^"]*"|`[^`]*`')


def with_plain_names(sql: str) -> str:
    """A statement for a driver that takes each ``%`` for a placeholder: doubled in quoted names."""
    return _QUOTED_NAME.sub(lambda name: name[0].replace("%", "%%"), sql)


_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def with_digits(field: pa.Field, source: Column | None) -> pa.Field:
    """The field as a decimal with the digits of the source's type, where rows have it as text
    because Arrow's decimals are too short. Any other as it is.
    """
    told = None if source is None else _DECIMAL.match(source.type_name.lower())
    if told is None or not pa.types.is_string(field.type):
        return field
    return field.with_type(pa.decimal256(int(told[1]), int(told[2])))


class DatabaseSession(Protocol):
    """A connection in autocommit, transactions by statements.

    ``usable``: connected, and no transaction was left open by an error.
    ``product``: for messages, ``PostgreSQL``, ``MySQL`` or ``MariaDB``.

    All methods raise RowsRefusedError for values that don't fit, OutputRefusedError for what must
    be changed by somebody (rights, missing objects), OutputError for what may pass.
    """

    @property
    def usable(self) -> bool: ...

    @property
    def product(self) -> str: ...

    def rows(self, sql: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, with ``%s`` for each argument; its rows, if it has any. A ``%`` in a
        quoted name is a part of the name.
        """
        ...

    def holds_text(self, text: str) -> bool:
        """Do our own tables hold it, whatever the database's encoding?"""
        ...

    def load(self, table: str, columns: Sequence[str], rows: pa.RecordBatch) -> None:
        """Append rows (of Arrow types) to a table, in bulk. Those that it refuses end it; a
        transaction must be rolled back to a savepoint then.

        Args:
            table: the quoted name.
            columns: unquoted names, in the order of ``rows``' columns.
            rows: the values.
        """
        ...

    def stage(self, layout: TableLayout, columns: Sequence[str]) -> str:
        """An empty temporary table with ``columns`` of the layout's, version and shape, all
        nullable; its quoted name. Outside of a transaction.
        """
        ...

    def alone(self, name: str) -> None:
        """Wait until no other session holds this name; it is let go when the transaction ends."""
        ...

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def close(self) -> None:
        """Never raises; what was not committed is rolled back."""
        ...


class Dialect(Protocol):
    """Picklable: the options of connections, and how SQL is spelled."""

    @property
    def share_lock(self) -> str:
        """What makes a SELECT lock its rows against changes: ``FOR SHARE``."""
        ...

    @property
    def version_type(self) -> str:
        """The type and options of the column for the version."""
        ...

    @property
    def ignores_case(self) -> bool:
        """Are columns ``a`` and ``A`` one?"""
        ...

    @property
    def exact_text(self) -> str:
        """Options of a text column that takes every text, and no two for one."""
        ...

    @property
    def digits(self) -> int:
        """Behind the point, of a type of times that does not say how many."""
        ...

    def connect(self, purpose: str) -> DatabaseSession: ...

    def spelled(
        self, rows: pa.RecordBatch, key: Sequence[str], source: TableSchema
    ) -> pa.RecordBatch:
        """``rows`` with such values of the key as texts that only the server's own kind has."""
        ...

    def quoted(self, *names: str) -> str:
        """A qualified name."""
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
        """The SQL type of a new column. None if there is none.

        Args:
            session: any of this dialect's.
            field: of the rows.
            source: the column as the source has it; None if a step may have changed its values.
            kind: of the source.
            key: the columns of the key, if the column is one of them.
        """
        ...

    def holds(self, base: str, sql_type: str, field: pa.Field) -> bool:
        """Does a column of this type take what the field holds?"""
        ...

    def folds_tables(self, session: Any) -> bool:
        """Are tables ``t`` and ``T`` one?"""
        ...

    def name_fault(self, session: Any, name: str) -> str | None:
        """Why the server can't hold the name of a table or column: ``has more than …``."""
        ...

    def default_namespace(self, session: Any) -> str: ...

    def create_namespace(self, session: Any, name: str) -> None:
        """If it is not there."""
        ...

    def found(self, session: Any, namespace: str, name: str) -> FoundTargetTable | None: ...

    def rename(self, session: Any, column: FoundColumn, name: str) -> str:
        """What ALTER TABLE says to give a column another (unquoted) name."""
        ...

    def widen(self, column: str, sql_type: str) -> str:
        """What ALTER TABLE says to give a (quoted) column a wider type."""
        ...

    def convert(self, column: str, base: str, sql_type: str) -> str:
        """What ALTER TABLE says to give a (quoted) column of the type ``base`` any other type."""
        ...

    def upsert(self, layout: TableLayout, told: Sequence[str], stage: str) -> list[str]:
        """Statements: whole rows of the stage, unless the table or the deleted keys have a version
        that is as new.
        """
        ...

    def update(
        self, layout: TableLayout, changes: Sequence[tuple[str, str]], stage: str, where: str
    ) -> str:
        """UPDATE of the table (alias t) joined to the stage (alias s) by key.

        ``changes``: (quoted column, expression).
        """
        ...

    def delete(self, layout: TableLayout, stage: str, where: str) -> str:
        """DELETE from the table (alias t) of rows joined to the stage (alias s) by key."""
        ...

    def write_tombstones(self, layout: TableLayout, stage: str) -> str:
        """Keep the keys that the stage deletes, with the greatest version."""
        ...
