"""The tables of an output as it delivers them now, and the columns that its destination has for
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Protocol

from tidelog.errors import OutputRefusedError, TableLeftOutError, ValueRefusedError
from tidelog.eventlog.reader import EventLog
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base import ranges, schema_evolution
from tidelog.outputs.base.delivery import Delivery
from tidelog.outputs.base.progress import OutputProgress, RefusedTables
from tidelog.outputs.base.schema_evolution import ColumnChange
from tidelog.outputs.base.targets import TargetTables, shared_address_error
from tidelog.ports import StateStore, TargetTable
from tidelog.spark.datasource.partitions import schemas_now
from tidelog.spark.transforms import steps_of


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
        self._unfit: dict[TableName, ValueRefusedError] = {}  # see `leave_out`

    @cached_property
    def refused(self) -> RefusedTables:
        """The tables that are left out."""
        return RefusedTables(self._state, self._log.generation, self._delivery.name)

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
        """Returns the table as rows of ``schema`` from offset ``start`` on are delivered, or None
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
            self.refused.refuse(str(table), error, start)
        else:
            self.refused.resume(str(table), start, keyed=bool(schema.match_key))
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
        self.refused.take_again(known, check, ask, self._log.latest_offset(), keyless)

    def leave_out(self, error: ValueRefusedError, start: int) -> None:
        """Leave out the table of a value that does not fit, with its rows from offset ``start`` on,
        until the output starts again: only another output, or other rows in the source, can help.
        Raises ``error`` if its table is unknown.
        """
        message = str(error)
        table = next((known for known in self._known if message.startswith(f"{known}: ")), None)
        if table is None:
            raise error
        told = ValueRefusedError(
            f"{message} in the options of an output with another name and path, or change the row "
            f"in the source and start again: {table} is dumped"
        )
        self._unfit[table] = told
        self.refused.refuse(str(table), told, start)
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
        found = self._targets.target_of_records(schema, have)
        self._check_address(found, progress)
        if columns is None:
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
            destination.create(found)  # its columns or its key have changed
            if change.alters:
                destination.alter(found, change)
            destination.check_table(found)
            progress.store_columns(table, change.columns_after(columns))
        return self._targets.with_schema_ids(found, destination.subject(found))

    def _check_address(self, table: TargetTable, progress: OutputProgress) -> None:
        """Raises NameRefusedError if another table of the output has the same address."""
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
