"""Reads and writes the schema notes of binlog positions for `tidelog schema`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.binlog.position import file_number, pack, text
from tidelog.codecs.mysql.charsets import bytes_per_character
from tidelog.codecs.mysql.server_urls import ServerUrl
from tidelog.errors import ConfigError, SourceError, UsageError
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.ports import SchemaRegistry, StateStore
from tidelog.sources.mysql.catalogue.schemas import MySqlSchemaFinder
from tidelog.sources.mysql.connect import Connection, connect
from tidelog.sources.mysql.errors import translate_errors
from tidelog.sources.mysql.stream.schemas.history import SchemaHistory


@dataclass(frozen=True, slots=True)
class ColumnFact:
    """A column given by hand, as in ``information_schema.columns``.

    ``collation``: its name, or its id in the server's list.
    """

    name: str
    column_type: str
    nullable: bool = True
    collation: str | int | None = None


def fix_version(
    connection: Connection,
    registry: SchemaRegistry,
    history: SchemaHistory,
    table: TableName,
    position: int,
    columns: Sequence[ColumnFact],
    key: Sequence[str],
    keys: Mapping[str, Sequence[str]] | None = None,
    exclude_columns: Sequence[str] = (),
) -> TableSchema:
    """Note by hand the columns that a table has from ``position`` on (`tidelog schema`).

    Args:
        connection: a connection to the source, which knows its collations.
        registry: stores the version.
        history: the notes of the event log; capture must not run at the same time.
        table: the table.
        position: where the records with these columns begin, as the error named it.
        columns: all columns, in order.
        key: the primary key's columns, in key order.
        keys: surrogate keys by table pattern.
        exclude_columns: see `MySqlSchemaFinder`.

    Returns the stored version; the log reader checks it against the table map.
    Raises ConfigError for a type or key that is not understood.
    """
    finder = MySqlSchemaFinder(keys, exclude_columns)
    built: list[Column] = []
    for fact in columns:
        data_type = fact.column_type.split("(")[0].split()[0].lower()
        collation = fact.collation
        if isinstance(collation, str):
            collation = finder.collation_id(connection, collation)
        try:
            column = types.binlog_column(
                fact.name,
                data_type,
                fact.column_type,
                flavor=connection.flavor,
                octet_length=_octets(fact.column_type, collation),
                collation_id=collation,
                nullable=fact.nullable,
            )
        except (types.UnknownTypeError, ValueError) as error:
            raise ConfigError(f"{table}: {error}") from None
        built.append(column)
    missing = [name for name in key if name not in {column.name for column in built}]
    if missing:
        raise ConfigError(f"{table}: no column {', '.join(missing)}, which the key names")
    schema = registry.register(finder.schema(table, built, key))
    history.note(table, position, schema.schema_id)
    return schema


def _octets(column_type: str, collation: int | None) -> int | None:
    """CHARACTER_OCTET_LENGTH of ``varchar(20)`` and the like."""
    kind, bracket, rest = column_type.partition("(")
    if kind.lower() not in ("char", "varchar", "binary", "varbinary"):
        return None
    count = int(rest.split(")")[0]) if bracket else 1
    return count * (bytes_per_character(collation) if collation is not None else 1)


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
        exclude_columns: Sequence[str] = (),
    ) -> None:
        self._url = url
        self._registry = registry
        self._history = SchemaHistory(state, registry)
        self._keys = keys
        self._exclude_columns = exclude_columns

    def of(self, table: TableName) -> list[tuple[str, int | None]]:
        """(position, version) pairs: the version of the table from the position on; None: not
        known.
        """
        return [(text(at), number or None) for at, number in self._history.of(table)]

    def describe(self, column: Column) -> dict[str, Any]:
        """The column in the form that `fix` takes."""
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
                    f"{table}: the collation of column {column['name']} is missing, which "
                    "determines the character set of its texts: COLLATION_NAME of "
                    "information_schema.COLUMNS"
                )
            facts.append(ColumnFact(column["name"], column["type"], column["nullable"], collation))
        twice = {f.name for f in facts if [g.name for g in facts].count(f.name) > 1}
        if twice:
            raise UsageError(
                f"{table}: {', '.join(sorted(twice))} is listed twice among the columns"
            )
        with (
            connect(self._url, purpose="schema") as connection,
            translate_errors("reading collations"),
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
                    self._exclude_columns,
                )
            except SourceError as error:  # the given collation is unknown
                raise UsageError(f"{table}: {error}") from None


def _kind(column_type: str) -> str:
    return (column_type.split("(")[0].split() or [""])[0].lower()


def _position(text_: str) -> int:
    """Parse ``000012:4711`` or ``binlog.000012:4711``."""
    file, _, offset = text_.rpartition(":")
    try:
        number = int(file) if file.isdigit() else file_number(file)[1]
        return pack(number, int(offset))
    except ValueError:
        raise UsageError(
            f"--at: {text_!r} is no position; expected the one that the error names, e.g. "
            "000012:4711 (the binlog file's number and the offset in it)"
        ) from None
