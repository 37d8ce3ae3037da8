"""The tables of an output as they are delivered: after its steps, with their messages' schemas."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from tidelog.errors import (
    ConfigError,
    KeyMissingError,
    NameRefusedError,
    OutputRefusedError,
    TableLeftOutError,
)
from tidelog.eventlog.message_schemas import MessageSchemaStore
from tidelog.eventlog.reader import EventLog
from tidelog.model.patterns import exclusion, pattern_of
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base.delivery import Delivery
from tidelog.outputs.base.native_types import with_types
from tidelog.outputs.base.sections import KeylessPolicy
from tidelog.ports import SchemaFormatter, TargetTable
from tidelog.spark.datasource.partitions import schema_now, schemas_now
from tidelog.spark.transforms import target_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME_BYTES = 255  # of file systems


def require_generation(log: EventLog, generation: str, output: str) -> None:
    """Raises OutputRefusedError if the pipeline reads another generation of the log than the output
    opened.
    """
    if log.generation != generation:
        raise OutputRefusedError(
            f"output {output} reads generation {log.generation} of the event log, the "
            f"pipeline generation {generation}: restart the pipeline"
        )


def route_step(table: TableName) -> str:
    """Returns the advice for a table whose name the destination can't have."""
    return f"Send the table elsewhere by a step: {{route: SCHEMA.OTHER, tables: [{_text(table)}]}}"


def rename_step(table: TableName, *columns: str) -> str:
    """Returns the advice for columns whose names the destination can't have."""
    names = ", ".join(f"{_text(column)}: OTHER{n or ''}" for n, column in enumerate(columns))
    step = f"{{rename: {{{names}}}, tables: [{_text(table)}]}}"
    return f"Rename {'them' if len(columns) > 1 else 'it'} by a step: {step}"


def _text(value: object) -> str:
    """Returns the value as a YAML string."""
    return "'" + str(value).replace("'", "''") + "'"


def shared_address_error(
    output: str, owner: TableName, table: TableName, address: str
) -> NameRefusedError:
    """Returns the error for two tables that would go to one place of the destination."""
    return NameRefusedError(
        f"output {output}: {owner} and {table} both go to {address}. {route_step(table)}"
    )


def check_directory(output: str, table: TableName, place: str) -> None:
    """Raises NameRefusedError if no directory can have the name that ``place`` gives the table."""
    if any(len(part.encode()) > _NAME_BYTES for part in place.split("/")):
        raise NameRefusedError(
            f"output {output}: the directory of {table} has a name of more than {_NAME_BYTES} "
            f"bytes, which file systems refuse. {route_step(table)}"
        )


def refused_names(
    output: str,
    tables: Sequence[TargetTable],
    check: Callable[[TargetTable], object],
    address: Callable[[TargetTable], str | None] = lambda _table: None,
) -> Iterator[str]:
    """Yields the errors of ``check`` for each table, and an error for each table whose ``address``
    belongs to one before it.
    """
    owners: dict[str, TableName] = {}
    for table in tables:
        try:
            check(table)
            table_address = address(table)
        except NameRefusedError as error:
            yield str(error)
            continue
        if table_address is None:
            continue
        owner = owners.setdefault(table_address, table.source)
        if owner != table.source:
            yield str(shared_address_error(output, owner, table.source, table_address))


def key_line(table: TableName) -> str:
    """Returns the advice for a table without a key."""
    return (
        f"Give it a key: ALTER TABLE {table} ADD PRIMARY KEY (COLUMN, …), or name columns that "
        f"identify a row by source.keys: {{{_text(pattern_of(table))}: [COLUMN, …]}}"
    )


def missing_key_error(
    table: TableName, output: str, keyless: KeylessPolicy, why: str = "keeps rows by their key"
) -> OutputRefusedError:
    """Returns the error for a table without a key: of that table alone, unless the option
    ``keyless`` is ``fail``. ``why`` the output needs a key: words after its name.
    """
    text = f"{table} has no key, and output {output} {why}"
    if keyless == "fail":
        return OutputRefusedError(
            f"{text}. {key_line(table)}. Or set the output's keyless to skip, or "
            + exclusion(table, of="the tables of the output")
        )
    return KeyMissingError(f"{text}. {key_line(table)}")


class TargetTables:
    """Creates the `TargetTable`s of one output."""

    def __init__(self, spark: SparkSession, log: EventLog, delivery: Delivery) -> None:
        self._spark = spark
        self._log = log
        self._delivery = delivery
        self._schemas = MessageSchemaStore(log.storage)

    def target_of(self, schema: TableSchema, have: Mapping[str, str] | None = None) -> TargetTable:
        """Returns the table as rows of ``schema`` are delivered; ``have``: the destination's
        columns and their Arrow types. Raises ConfigError if the steps don't fit it,
        TableLeftOutError if the formatter can't have a column, KeyMissingError or, with
        ``keyless: fail``, OutputRefusedError if a copy needs a key and it has none.
        """
        delivery = self._delivery
        found = target_table(
            self._spark,
            with_types(schema, delivery.types, delivery.steps, have or {}),
            delivery.steps,
            self._log.source,
            keyed=delivery.keyed,
        )
        if delivery.keyed and not found.key:
            raise missing_key_error(found.source, delivery.name, delivery.keyless)
        if isinstance(delivery.formatter, SchemaFormatter):
            delivery.formatter.schemas(found)  # raises if it can't format a column
        return found

    def target_of_records(
        self, schema: TableSchema, have: Mapping[str, str] | None = None
    ) -> TargetTable:
        """Returns `target_of` for records of ``schema``: under that schema or, if it is
        an old one that the steps don't fit any more, under the newest one, because a column that
        the steps hide must not appear under its old name.
        """
        try:
            return self.target_of(schema, have)
        except (ConfigError, TableLeftOutError):
            newest = schema_now(self._log, schema.table)
            if self._delivery.keyed or newest is None or newest.schema_id == schema.schema_id:
                raise
            return self.target_of(newest, have)

    def owners(
        self, delivered: Collection[str], address: Callable[[TargetTable], str | None]
    ) -> dict[str, str]:
        """Returns, by address, the first of the tables that were ``delivered``."""
        found: dict[str, str] = {}
        for table, schema in sorted(schemas_now(self._log).items()):
            if str(table) in delivered:
                with suppress(ConfigError, OutputRefusedError):  # not delivered any more
                    table_address = address(self.target_of_records(schema))
                    if table_address is not None:
                        found.setdefault(table_address, str(table))
        return found

    def with_schema_ids(self, table: TargetTable, subject: str) -> TargetTable:
        """Returns ``table`` with the ids of its messages' schemas, which are registered under
        ``subject``.
        """
        formatter = self._delivery.formatter
        if not isinstance(formatter, SchemaFormatter):
            return table
        table = self._with_nullable(table)
        schemas = formatter.schemas(table)
        key = 0 if schemas.key is None else self._schemas.register(f"{subject}-key", schemas.key)
        value = self._schemas.register(f"{subject}-value", schemas.value)
        return replace(table, schema_ids=(key, value))

    def _with_nullable(self, table: TargetTable) -> TargetTable:
        """Marks columns as nullable that were added or became NOT NULL: they may be null in earlier
        records.
        """
        versions = self._log.schemas.versions(table.source)
        unchanged = dict(table.unchanged)
        for name, column in table.unchanged.items():
            found = [{each.name: each.nullable for each in v.columns} for v in versions]
            if any(of.get(column.name, True) for of in found):
                unchanged[name] = replace(column, nullable=True)
        return replace(table, unchanged=unchanged)
