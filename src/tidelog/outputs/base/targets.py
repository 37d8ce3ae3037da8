"""The tables of an output as they are delivered: their types, names, columns and messages' schemas.

Columns that exist in the destination keep their type, whatever the option ``types`` says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol

from tidelog.codecs.wire_formats import native_logicals
from tidelog.errors import (
    ConcurrentCommitError,
    ConfigError,
    DecodeError,
    KeyMissingError,
    KeyRequiredError,
    NameRefusedError,
    OutputRefusedError,
    RowsLeftOutError,
    TableLeftOutError,
    ValueRefusedError,
)
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.schemas import MessageSchemaStore
from tidelog.model.option_values import ColumnTypes, StructTypes
from tidelog.model.patterns import dump_command, exclusion, matches, pattern_of
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base import ranges, schema_evolution
from tidelog.outputs.base.delivery import Delivery
from tidelog.outputs.base.progress import DUMPED_AT_START, LeftOutTableStore, OutputProgress
from tidelog.outputs.base.schema_evolution import ColumnChange
from tidelog.outputs.base.sections import KeylessPolicy
from tidelog.ports import SchemaFormatter, StateStore, TargetTable
from tidelog.spark.datasource.partitions import schema_now, schemas_now
from tidelog.spark.transforms import Step, delivered_names, steps_of, target_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The option ``types``.

_LIMITS = re.compile(r"decimal\w*\((\d+), ?(\d+)\)")
_LISTS = re.compile(r"(array<|list<(element|item): )*")


def with_types(
    schema: TableSchema,
    types: ColumnTypes | None,
    steps: Sequence[Step],
    have: Mapping[str, str],
) -> TableSchema:
    """Return the schema with the types that its columns have in the destination, and those that
    ``types`` gives new ones.

    Args:
        schema: the source's.
        types: the output's option; None: it has none, and all such columns are text.
        steps: of the output.
        have: SQL types, or Arrow's, of the destination's columns, by their names there.
    """
    if types is None:
        return schema
    kinds = {name.lower(): kind for name, kind in have.items()}
    own = steps_of(steps, schema.table)
    names = zip(schema.column_names, delivered_names(schema.column_names, own), strict=True)
    kept = {
        name: types_of(kinds[theirs.lower()], types)
        for name, theirs in names
        if theirs is not None and theirs.lower() in kinds
    }
    return schema.with_logicals(native_logicals(schema, types, kept))


def types_of(kind: str, types: ColumnTypes) -> ColumnTypes:
    """Return the option by which a column has this type, SQL's or Arrow's. A decimal has it by the
    option only if ``types`` has decimals: else it was one in the source.
    """
    limits = _LIMITS.search(kind) if types.numeric is not None else None
    lists = _LISTS.match(kind)
    depth = lists[0].count("<") if lists else 0
    members: StructTypes = "struct" if "struct<" in kind else "text"
    return ColumnTypes(
        arrays="native" if depth else "text",
        numeric=(int(limits[1]), int(limits[2])) if limits else None,
        json="variant" if kind == "variant" else "text",
        hstore="map" if kind.startswith("map<") else "text",
        ranges=members,
        composites=members,
        interval=members,
        time="time" if kind.startswith("time(") or kind.startswith("time64") else "text",
        dimensions=(("*.*.*", depth),) if depth else (),
    )


# Tables as they are delivered.

_NAME_BYTES = 255  # of file systems


def require_generation(log: EventLog, generation: str, output: str) -> None:
    """Raise OutputRefusedError if the pipeline reads another generation of the log than the output
    opened.
    """
    if log.generation != generation:
        raise OutputRefusedError(
            f"output {output} reads generation {log.generation} of the event log, the "
            f"pipeline generation {generation}: restart the pipeline"
        )


def route_step(table: TableName) -> str:
    """Return the advice for a table whose name the destination can't have."""
    return f"Send the table elsewhere by a step: {{route: SCHEMA.OTHER, tables: [{_text(table)}]}}"


def rename_step(table: TableName, *columns: str) -> str:
    """Return the advice for columns whose names the destination can't have."""
    names = ", ".join(f"{_text(column)}: OTHER{n or ''}" for n, column in enumerate(columns))
    step = f"{{rename: {{{names}}}, tables: [{_text(table)}]}}"
    return f"Rename {'them' if len(columns) > 1 else 'it'} by a step: {step}"


def _text(value: object) -> str:
    """Return the value as a YAML string."""
    return "'" + str(value).replace("'", "''") + "'"


def shared_address_error(
    output: str, owner: TableName, table: TableName, address: str
) -> NameRefusedError:
    """Return the error for two tables that would go to one place of the destination."""
    return NameRefusedError(
        f"output {output}: {owner} and {table} both go to {address}. {route_step(table)}"
    )


def check_directory(output: str, table: TableName, place: str) -> None:
    """Raise NameRefusedError if no directory can have the name that ``place`` gives the table."""
    if any(len(part.encode()) > _NAME_BYTES for part in place.split("/")):
        raise NameRefusedError(
            f"output {output}: the directory of {table} has a name of more than {_NAME_BYTES} "
            f"bytes, which file systems refuse. {route_step(table)}"
        )


def check_has_columns(schema: TableSchema) -> None:
    """Raise TableLeftOutError for a table without columns, which PostgreSQL allows: neither Arrow
    nor Parquet has a struct without members.
    """
    if not schema.columns:
        raise TableLeftOutError(
            f"{schema.table} has no columns: this output delivers it once it has one"
        )


def refused_names(
    output: str,
    tables: Sequence[TargetTable],
    check: Callable[[TargetTable], object],
    address: Callable[[TargetTable], str | None] = lambda _table: None,
) -> Iterator[str]:
    """Yield the errors of ``check`` for each table, and an error for each table whose ``address``
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
    """Return the advice for a table without a key."""
    return (
        f"Give it a key: ALTER TABLE {table} ADD PRIMARY KEY (COLUMN, …), or name columns that "
        f"identify a row by source.keys: {{{_text(pattern_of(table))}: [COLUMN, …]}} "
        "(`tidelog check` prints the line of a unique index)"
    )


def advised(error: RowsLeftOutError, table: TableName, other: str) -> RowsLeftOutError:
    """Return the error with what to do once it is put right. ``other``: more advice
    for a value that does not fit.
    """
    more = other if isinstance(error, ValueRefusedError) else ""
    return type(error)(
        f"{str(error).rstrip('.')}{more}. Then run `{dump_command(table)}`{DUMPED_AT_START}"
    )


def undecodable_rows_error(error: DecodeError) -> RowsLeftOutError:
    """Return the error for rows that can't be decoded, which is of their table alone."""
    return RowsLeftOutError(
        f"{error}. Change the value in the source or exclude the column (source.exclude_columns), "
        "and please report this message"
    )


def check_steps(refused: Sequence[TableLeftOutError], tables: int) -> None:
    """Raise ConfigError if steps fit none of an output's ``tables``, a number: then the steps are
    wrong. ``refused``: why tables are left out.
    """
    wrong = [each.__cause__ for each in refused if isinstance(each.__cause__, ConfigError)]
    if wrong and len(wrong) == tables:
        raise wrong[0]


def missing_key_error(
    table: TableName, output: str, keyless: KeylessPolicy, why: str = "keeps rows by their key"
) -> OutputRefusedError:
    """Return the error for a table without a key: of that table alone, unless the option
    ``keyless`` is ``fail``. ``why`` the output needs a key: words after its name.
    """
    text = f"{table} has no key, and output {output} {why}"
    if keyless == "fail":
        return KeyRequiredError(
            f"{text}. {key_line(table)}. Or set the output's keyless to skip, or "
            + exclusion(table, of="the tables of the output")
        )
    return KeyMissingError(f"{text}, so it is left out. {key_line(table)}")


class TargetTables:
    """Creates the `TargetTable`s of one output."""

    def __init__(self, spark: SparkSession, log: EventLog, delivery: Delivery) -> None:
        self._spark = spark
        self._log = log
        self._delivery = delivery
        self._schemas = MessageSchemaStore(log.storage)

    def target_of(self, schema: TableSchema, have: Mapping[str, str] | None = None) -> TargetTable:
        """Return the table as rows of ``schema`` are delivered; ``have``: the destination's
        columns and their Arrow types. Raises TableLeftOutError if the steps don't fit it or the
        formatter can't have a column, KeyMissingError or, with ``keyless: fail``,
        KeyRequiredError if a copy needs a key and it has none.
        """
        delivery = self._delivery
        try:
            found = target_table(
                self._spark,
                with_types(schema, delivery.types, delivery.steps, have or {}),
                delivery.steps,
                self._log.source,
                keyed=delivery.keyed,
            )
        except ConfigError as error:
            raise TableLeftOutError(f"output {delivery.name}: {error}") from error
        if delivery.keyed and not found.key:
            raise missing_key_error(found.source, delivery.name, delivery.keyless)
        if isinstance(delivery.formatter, SchemaFormatter):
            delivery.formatter.schemas(found)  # raises if it can't format a column
        return found

    def target_of_records(
        self, schema: TableSchema, have: Mapping[str, str] | None = None
    ) -> TargetTable:
        """Return `target_of` for records of ``schema``: under that schema or, if it is
        an old one that the steps don't fit any more, under the newest one, because a column that
        the steps hide must not appear under its old name.
        """
        try:
            return self.target_of(schema, have)
        except TableLeftOutError:
            newest = schema_now(self._log, schema.table)
            if self._delivery.keyed or newest is None or newest.schema_id == schema.schema_id:
                raise
            return self.target_of(newest, have)

    def owners(
        self, delivered: Collection[str], address: Callable[[TargetTable], str | None]
    ) -> dict[str, str]:
        """Return, by address, the first of the tables that were ``delivered``."""
        found: dict[str, str] = {}
        for table, schema in sorted(schemas_now(self._log).items()):
            if str(table) in delivered:
                with suppress(OutputRefusedError):  # not delivered any more
                    table_address = address(self.target_of_records(schema))
                    if table_address is not None:
                        found.setdefault(table_address, str(table))
        return found

    def with_schema_ids(self, table: TargetTable, subject: str) -> TargetTable:
        """Return ``table`` with the ids of its messages' schemas, registered by ``subject``."""
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


# The tables as the output delivers them now, in step with the source's schemas.


class DestinationHooks(Protocol):
    """The hooks of `tidelog.outputs.base.output.ExecutorOutput` that act at the destination."""

    def create(self, table: TargetTable) -> None: ...

    def address(self, table: TargetTable) -> str | None: ...

    def alter(self, table: TargetTable, change: ColumnChange) -> None: ...

    def check_table(self, table: TargetTable) -> None: ...

    def accepts_type(self, table: TargetTable, column: str, former: str) -> bool: ...

    def remedy_for(self, table: TargetTable, columns: Sequence[str]) -> str: ...

    def subject(self, table: TargetTable) -> str: ...


class CurrentTables:
    """Keeps the destination's tables in step with the source's schemas. Used by one thread."""

    def __init__(
        self,
        log: EventLog,
        targets: TargetTables,
        delivery: Delivery,
        state: StateStore,
        destination: DestinationHooks,
    ) -> None:
        self._log = log
        self._targets = targets
        self._delivery = delivery
        self._state = state
        self._destination = destination
        self._known: dict[TableName, tuple[int, TargetTable | None]] = {}  # by schema version
        self._owners: dict[str, str] | None = None  # by address

    @cached_property
    def left_out(self) -> LeftOutTableStore:
        """The tables that are left out."""
        its = self._delivery
        settings = (its.steps, its.types, its.on_schema_change, type(its.dead_letters))
        return LeftOutTableStore(self._state, self._log.generation, its.name, settings)

    @cached_property
    def _unfit(self) -> dict[TableName, RowsLeftOutError]:
        """See `leave_out`."""
        return self.left_out.dumped_in_vain()

    def all(self) -> list[TargetTable]:
        return [table for _, table in self._known.values() if table is not None]

    def find(self, source: TableName) -> TargetTable | None:
        return self._known.get(source, (0, None))[1]

    def add(self, table: TargetTable) -> None:
        """Add a table that is in no catalogue."""
        self._known[table.source] = (0, table)

    def current_table(
        self, schema: TableSchema, start: int, progress: OutputProgress
    ) -> TargetTable | None:
        """Return the table as rows of ``schema`` from offset ``start`` on are delivered, or None
        if it is left out.
        """
        table = schema.table
        number, known = self._known.get(table, (0, None))
        if number == schema.schema_id:
            return known
        found: TargetTable | None = None
        try:
            found = self._follow(schema, progress)
        except TableLeftOutError as error:
            self.left_out.add(str(table), error, start)
        else:
            self.left_out.resume(str(table), start, keyed=bool(schema.match_key))
        self._known[table] = (schema.schema_id, found)
        return found

    def take_again(self, ask: Callable[[Sequence[str]], None], progress: OutputProgress) -> None:
        """See `tidelog.ports.RejectingOutput`."""
        tables = self._delivery.tables
        known = {str(t): s for t, s in schemas_now(self._log).items() if matches(tables, t)}

        def check(table: str) -> None:
            schema = known[table]
            self._known[schema.table] = schema.schema_id, self._follow(schema, progress)

        keyless = [table for table, schema in known.items() if not schema.match_key]
        self.left_out.take_again(known, check, ask, self._log.latest_offset(), keyless)

    def begin_dumps(self, tables: Collection[str], start: int) -> None:
        """Take those tables again that `leave_out` left out: dumps of ``tables`` begin in a batch
        that starts at offset ``start``.
        """
        for table in [each for each in self._unfit if str(each) in tables]:
            del self._unfit[table]
            self._known.pop(table, None)
            self.left_out.resume(str(table), start, is_dumped=True)

    def leave_out(self, error: RowsLeftOutError, start: int) -> None:
        """Leave out the table whose rows can't be written, with its rows from offset ``start`` on,
        until a dump of it begins or the output starts again: no check sees before what is wrong.
        Raises ``error`` if its table is unknown.
        """
        found = {
            table
            for table, (_, target) in self._known.items()
            if str(error).startswith(f"{table}: ")
            or (target is not None and str(error).startswith(f"{target.name}: "))
        }
        if len(found) != 1:
            raise error
        [table] = found
        other = " in the options of an output with another name and path, or change the row"
        advice = advised(error, table, other)
        self._unfit[table] = advice
        self.left_out.add(str(table), advice, start)
        self._known[table] = self._known[table][0], None

    def _follow(self, schema: TableSchema, progress: OutputProgress) -> TargetTable:
        """Prepare the destination for rows of ``schema``. Raises TableLeftOutError if the
        destination can't have the table.
        """
        destination, table = self._destination, str(schema.table)
        if schema.table in self._unfit:
            raise self._unfit[schema.table]
        columns = progress.columns.get(table)
        have = {column[0]: column[1] for column in columns or ()}
        # An output of changes stops where it would leave out a table that it has delivered.
        may_leave_out = self._delivery.keyed or columns is None
        try:
            found = self._targets.target_of_records(schema, have)
        except TableLeftOutError as error:
            if isinstance(error.__cause__, ConfigError) and not may_leave_out:
                raise error.__cause__ from None
            raise
        self._check_address(found, progress)
        if columns is None:
            with _refusals_of_table(may_leave_out):
                destination.create(found)
                destination.check_table(found)
            progress.store_columns(table, schema_evolution.stored_columns(found.columns))
        else:
            columns = schema_evolution.with_alterations(
                columns, found.columns, partial(destination.accepts_type, found)
            )
            try:
                change = schema_evolution.plan_change(
                    self._delivery.on_schema_change,
                    table,
                    columns,
                    found.columns,
                    found.key,
                    partial(destination.remedy_for, found),
                )
            except TableLeftOutError as error:
                if self._delivery.keyed:
                    raise
                # No dump would deliver the changes that are left out.
                raise OutputRefusedError(str(error)) from None
            found = replace(found, columns=change.delivered)
            if not steps_of(self._delivery.steps, schema.table):
                delivered = ranges.delivered_schema(found.schema, change.delivered.names)
                found = replace(found, schema=delivered)
            with _refusals_of_table(may_leave_out):
                destination.create(found)  # its columns or its key have changed
                if change.alters:
                    destination.alter(found, change)
                destination.check_table(found)
            progress.store_columns(table, change.columns_after(columns))
        return self._targets.with_schema_ids(found, destination.subject(found))

    def _check_address(self, table: TargetTable, progress: OutputProgress) -> None:
        """Raise NameRefusedError if another table of the output has the same address."""
        address = self._destination.address(table)
        if address is None:
            return
        if self._owners is None:
            self._owners = self._targets.owners(progress.columns, self._destination.address)
        owner = self._owners.setdefault(address, str(table.source))
        if owner != str(table.source):
            raise shared_address_error(
                self._delivery.name, TableName.parse(owner), table.source, address
            )


@contextmanager
def _refusals_of_table(may_leave_out: bool) -> Iterator[None]:
    """Make what a destination refuses while a table is prepared, such as a right, that table's, if
    it may be left out.
    """
    try:
        yield
    except (TableLeftOutError, KeyRequiredError, ConcurrentCommitError):
        raise
    except OutputRefusedError as error:
        if not may_leave_out:
            raise
        raise TableLeftOutError(str(error)) from error
