"""The tables of an output as they are delivered: their types, names, columns and messages' schemas.

Columns that exist in the destination keep their type, whatever the option ``types`` says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from tidelog.codecs.wire_formats import native_logicals
from tidelog.errors import (
    ConcurrentCommitError,
    ConfigError,
    KeyRequiredError,
    OutputRefusedError,
    RowsLeftOutError,
    TableLeftOutError,
)
from tidelog.eventlog.schemas import MessageSchemaStore
from tidelog.model.option_values import ColumnTypes, StructTypes
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base import ranges, schema_evolution
from tidelog.outputs.base.left_out import missing_key_error, shared_address_error
from tidelog.outputs.base.output import BaseOutput
from tidelog.outputs.base.progress import OutputProgress
from tidelog.outputs.base.schema_evolution import ColumnChange
from tidelog.outputs.base.writer import Delivery
from tidelog.ports import OutputBatch, SchemaFormatter, TargetTable
from tidelog.spark.datasource.partitions import schema_now, schemas_now
from tidelog.spark.transforms import Step, delivered_names, steps_of

# The option ``types``.

_LIMITS = re.compile(r"decimal\w*\((\d+), ?(\d+)\)")
_LISTS = re.compile(r"(array<|list<(element|item): )*")


def with_types(
    schema: TableSchema, types: ColumnTypes | None, steps: Sequence[Step], have: Mapping[str, str]
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


class TargetTables:
    """Creates the `TargetTable`s of one output."""

    def __init__(self, output: BaseOutput, delivery: Delivery) -> None:
        self._output = output
        self._log = output.log
        self._delivery = delivery
        self._schemas = MessageSchemaStore(output.log.storage)

    def target_of(self, schema: TableSchema, have: Mapping[str, str] | None = None) -> TargetTable:
        """Return the table as rows of ``schema`` are delivered; ``have``: the destination's
        columns and their Arrow types. Raises TableLeftOutError if the steps don't fit it or the
        formatter can't have a column, KeyMissingError or, with ``keyless: fail``,
        KeyRequiredError if a copy needs a key and it has none.
        """
        delivery = self._delivery
        typed = with_types(schema, delivery.types, delivery.steps, have or {})
        found = self._output.transformed(typed, delivery.steps, keyed=delivery.keyed)
        if delivery.keyed and not found.key:
            raise missing_key_error(schema, delivery.name, delivery.keyless)
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


class TableOutput(BaseOutput):
    """An output whose destination has tables, or the like, and what it does about each of them. A
    kind of output overrides the hooks that it needs.
    """

    def create(self, table: TargetTable) -> None:
        """Create the destination's table if it does not exist. Called before the first rows in each
        run, and before the first rows with other columns or another key.
        """

    def address(self, table: TargetTable) -> str | None:
        """Return the part of the destination that no other table of the output may share, such as
        ``topic t``.
        """
        return None

    def alter(self, table: TargetTable, change: ColumnChange) -> None:
        """Add and widen columns; may be called again. OutputRefusedError: it is impossible."""

    def check_table(self, table: TargetTable) -> None:
        """Check that the destination's table can hold all rows, after `create` and `alter`. Raises
        TableLeftOutError if it can't.
        """

    def accepts_type(self, table: TargetTable, column: str, former: str) -> bool:
        """Return True if the destination's table takes the column's type unchanged, or does not
        exist.

        Called for columns whose type in the source changed from ``former`` (as
        `schema_evolution.stored_columns`): somebody may have altered the destination's table.
        """
        return False

    def remedy_for(self, table: TargetTable, columns: Sequence[str]) -> str:
        """Return what the user can do about columns of another type, for messages."""
        return schema_evolution.LEAVE_OUT

    def subject(self, table: TargetTable) -> str:
        """Return the subject under which the schemas of the table's messages are registered."""
        return table.name

    def has_table(self, table: TargetTable) -> bool:
        """Does the destination have the table? Called at a start with keyed delivery."""
        return True

    def remove_below(self, table: TargetTable, version: int) -> bool:
        """Delete the table's rows of a lower version, now or in `writing`; with keyed delivery
        before the batch's rows. Returns False if the writers do it (`WriteTask.deleted_below`).
        """
        return False

    def needs_truncates(self, table: TargetTable) -> bool:
        """Return True if the table's truncates must be delivered even where they are skipped."""
        return False


class CurrentTables:
    """Keeps the destination's tables in step with the source's schemas. Used by one thread."""

    def __init__(self, targets: TargetTables, delivery: Delivery, destination: TableOutput) -> None:
        self._targets = targets
        self._delivery = delivery
        self._destination = destination
        self._known: dict[TableName, tuple[int, TargetTable | None]] = {}  # by schema version
        self._owners: dict[str, str] | None = None  # by address

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
        found, left_out = None, self._destination.left_out
        try:
            found = self._follow(schema, progress)
        except TableLeftOutError as error:
            left_out.add(str(table), error, start)
        else:
            left_out.resume(str(table), start, keyed=bool(schema.match_key))
        self._known[table] = (schema.schema_id, found)
        return found

    def take_again(self, schema: TableSchema, progress: OutputProgress) -> None:
        """Prepare the destination for a table that was left out. Raises TableLeftOutError if it
        can't have the table still.
        """
        self._known[schema.table] = schema.schema_id, self._follow(schema, progress)

    def begin_dumps(self, batch: OutputBatch) -> None:
        """Resume the tables that `leave_out` left out, and of which dumps begin in the batch."""
        for table in self._destination.left_out.begin_dumps(batch):
            self._known.pop(table, None)

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
        remedy = " in the options of an output with another name and path, or change the row"
        self._destination.left_out.leave_out(table, error, start, remedy)
        self._known[table] = self._known[table][0], None

    def _follow(self, schema: TableSchema, progress: OutputProgress) -> TargetTable:
        """Prepare the destination for rows of ``schema``. Raises TableLeftOutError if the
        destination can't have the table.
        """
        destination, table = self._destination, str(schema.table)
        destination.left_out.check_rows(schema.table)
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
                    progress.dropped.get(table, ()),
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
            progress.store_columns(table, change.columns_after(columns), change.dropped)
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
