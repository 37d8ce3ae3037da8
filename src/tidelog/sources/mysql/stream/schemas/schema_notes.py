"""What is noted of the tables' columns at places of the binlog, for `tidelog schema`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.binlog.position import file_number, pack, text
from tidelog.errors import SourceError, UsageError
from tidelog.model.mysql_urls import ServerUrl
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.ports import SchemaRegistry, StateStore
from tidelog.sources.mysql.connect import connect
from tidelog.sources.mysql.errors import translated
from tidelog.sources.mysql.stream.schemas.history import SchemaHistory
from tidelog.sources.mysql.stream.schemas.manual_schemas import ColumnFact, fix_version

_COLLATED = frozenset(
    {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"}
)


class MySqlSchemaNotes:
    """See `tidelog.app.sources.kinds.SchemaNotes`. Used by one thread."""

    def __init__(
        self,
        url: str | ServerUrl,
        registry: SchemaRegistry,
        state: StateStore,
        keys: Mapping[str, Sequence[str]],
    ) -> None:
        self._url = url
        self._registry = registry
        self._history = SchemaHistory(state, registry)
        self._keys = keys

    def of(self, table: TableName) -> list[tuple[str, int | None]]:
        """From which positions on the table has which version; None: it is not known."""
        return [(text(at), number or None) for at, number in self._history.of(table)]

    def describe(self, column: Column) -> dict[str, Any]:
        """As `fix` takes it."""
        found: dict[str, Any] = {"name": column.name, "type": column.type_name}
        found["nullable"] = column.nullable
        if _kind(column.type_name) in _COLLATED and types.collation(column):
            found["collation"] = types.collation(column)
        return found

    def fix(
        self, table: TableName, at: str, columns: Sequence[Mapping[str, Any]], key: Sequence[str]
    ) -> TableSchema:
        """Note that the table's rows have these columns from position ``at`` on."""
        position = _position(at)
        facts = []
        for column in columns:
            collation = column.get("collation")
            if _kind(column["type"]) in _COLLATED and collation is None:
                raise UsageError(
                    f"{table}: the collation of column {column['name']} is missing, which tells "
                    "the character set of its texts: COLLATION_NAME of information_schema.COLUMNS"
                )
            facts.append(ColumnFact(column["name"], column["type"], column["nullable"], collation))
        twice = {f.name for f in facts if [g.name for g in facts].count(f.name) > 1}
        if twice:
            raise UsageError(
                f"{table}: {', '.join(sorted(twice))} is listed twice among the columns"
            )
        with (
            connect(self._url, purpose="schema") as connection,
            translated("asking for collations"),
        ):
            try:
                return fix_version(
                    connection,
                    self._registry,
                    self._history,
                    table,
                    position,
                    facts,
                    key,
                    self._keys,
                )
            except SourceError as error:  # of a collation that was told
                raise UsageError(f"{table}: {error}") from None


def _kind(column_type: str) -> str:
    return (column_type.split("(")[0].split() or [""])[0].lower()


def _position(text_: str) -> int:
    """``000012:4711`` or ``binlog.000012:4711``."""
    file, _, offset = text_.rpartition(":")
    try:
        number = int(file) if file.isdigit() else file_number(file)[1]
        return pack(number, int(offset))
    except ValueError:
        raise UsageError(
            f"--at: {text_!r} is no position; expected the one that the error names, e.g. "
            "000012:4711 (the binlog file's number and the offset in it)"
        ) from None
