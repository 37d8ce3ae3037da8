"""A table's columns at a place in the log, told by hand (`tidelog schema`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.charsets import bytes_per_character
from tidelog.errors import ConfigError
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.ports import SchemaRegistry
from tidelog.sources.mysql.catalogue.schemas import MySqlSchemaFinder
from tidelog.sources.mysql.connect import Connection
from tidelog.sources.mysql.stream.schemas.history import SchemaHistory


@dataclass(frozen=True, slots=True)
class ColumnFact:
    """A column as told by hand: as in ``information_schema.columns``. ``collation``: its name, or
    its id in the server's list.
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
) -> TableSchema:
    """Say by hand which columns a table had from ``position`` on (`tidelog schema`).

    Args:
        connection: to the source, which knows its collations.
        registry: stores the version.
        history: of the event log; capture must not run meanwhile.
        table: which.
        position: where the records begin that have these columns, as the error named it.
        columns: all of them, in order.
        key: the primary key's columns, in key order.
        keys: surrogate keys by table pattern.

    Returns the stored version; the log's reader checks it against the table map.
    Raises ConfigError for a type or key that is not understood.
    """
    finder = MySqlSchemaFinder(keys)
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
