"""The output over a relational database: the driver's part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from tidelog.errors import ConfigError
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base.delivery import Delivery
from tidelog.outputs.base.output import ExecutorOutput
from tidelog.outputs.base.scheduling import BatchPlan
from tidelog.outputs.base.schema_evolution import ColumnChange
from tidelog.outputs.database import metadata_tables
from tidelog.outputs.database.dialect import DatabaseSession, Dialect
from tidelog.outputs.database.layout import DELETED, VERSION, TableLayout
from tidelog.outputs.database.metadata_tables import Owner
from tidelog.outputs.database.tables import Tables
from tidelog.outputs.database.writer import TableWriter
from tidelog.ports import StateStore, TargetTable, TaskWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DatabaseOutput(ExecutorOutput):
    """`tidelog.ports.Output` over tables, one for each source table.

    Args:
        spark: any session.
        log_path: the event log that batches refer to.
        state: keeps the output's progress.
        delivery: keyed.
        dialect: where the database is, and which.
        namespace: schema or database of the tables; None: named as in the source.
        own: schema or database of the metadata tables.
        deletes: ``hard`` or ``soft``.
        batch_rows: as many rows are brought over in one transaction.
    """

    def __init__(
        self,
        spark: SparkSession,
        log_path: str,
        state: StateStore,
        delivery: Delivery,
        dialect: Dialect,
        *,
        namespace: str | None = None,
        own: str = "tidelog",
        deletes: str = "hard",
        batch_rows: int = 50_000,
    ) -> None:
        if not delivery.keyed:
            raise ConfigError("an output into tables is of keyed delivery")
        self._dialect = dialect
        self._own = own
        self._soft = deletes == "soft"
        self._batch_rows = batch_rows
        self._tables = Tables(dialect, delivery.name, delivery.steps, namespace, own, self._soft)
        self._session: DatabaseSession | None = None
        self._known: dict[TableName, tuple[TargetTable, TableName]] = {}
        self._floors: dict[TableName, int] = {}
        self._layouts: dict[TableName, TableLayout] = {}
        super().__init__(spark, log_path, state, delivery)

    def check(self, generation: str) -> None:
        try:
            metadata_tables.create(self._connected(), self._dialect, self._own)
        except BaseException:
            self._disconnect()
            raise

    def create(self, table: TargetTable) -> None:
        session = self._connected()
        place = self._tables.place(session, table)
        self._tables.create(session, table, place)
        name = self._dialect.quoted(place.namespace, place.name)
        empty = not session.rows(f"SELECT 1 FROM {name} LIMIT 1")
        source = str(table.source)
        if not (source.isascii() or session.holds_text(source)):
            source = source.encode("ascii", "backslashreplace").decode()
        owner = Owner(self.name, source, self.log.generation)
        floor = metadata_tables.claim(
            session, self._dialect, self._own, str(place), owner, empty=empty
        )
        self._known[table.source] = (table, place)
        self._floors[table.source] = floor

    def address(self, table: TargetTable) -> str:
        return self._tables.address(self._connected(), table)

    def alter(self, table: TargetTable, change: ColumnChange) -> None:
        _, place = self._known[table.source]
        self._tables.extend(self._connected(), table, place, change.added, change.widened)
        self._known[table.source] = (table, place)
        self._layouts.pop(table.source, None)

    def takes(self, table: TargetTable, column: str, former: str) -> bool:
        session = self._connected()
        place = self._tables.place(session, table)
        return self._tables.takes(session, table, place, table.columns.field(column), former)

    def remedy_for(self, table: TargetTable, columns: Sequence[str]) -> str:
        session = self._connected()
        return self._tables.remedy_for(session, table, self._tables.place(session, table), columns)

    def remove_below(self, table: TargetTable, version: int) -> bool:
        """Also keeps older rows from coming back; none can come meanwhile."""
        session = self._connected()
        self._next_attempt(version)
        layout = self._layout(table.source)
        session.begin()
        metadata_tables.raise_floor(session, self._dialect, layout, version)
        session.commit()
        floor = max(version, layout.floor)
        self._floors[table.source] = floor
        self._layouts[table.source] = replace(layout, floor=floor)
        return True

    def writer(self) -> TaskWriter:
        layouts = {str(source): self._layout(source) for source in self._known}
        attempt = self._next_attempt(self._opened(self.log.generation).begun)
        return TableWriter(self._dialect, layouts, attempt, self._own, self._batch_rows)

    @contextmanager
    def writing(self, plan: BatchPlan) -> Iterator[TaskWriter]:
        """What is gone goes last: most of it has been replaced by then, and no reader misses it."""
        yield self.writer()
        for source, version in plan.removed.items():
            layout = self._layout(source)
            name = self._dialect.quoted(layout.namespace, layout.name)
            # Rows without a version are somebody else's: the output never wrote them.
            where = f"WHERE {VERSION} < {version}"
            statement = f"DELETE FROM {name} {where}"
            if layout.soft:
                statement = f"UPDATE {name} SET {DELETED} = true {where} AND NOT {DELETED}"
            self._connected().rows(statement)

    def target_of(self, schema: TableSchema) -> tuple[TargetTable, TableName]:
        """The table as it is delivered, and where."""
        target = self._targets.of(schema)
        return target, self._tables.place(self._connected(), target)

    def close(self) -> None:
        self._disconnect()
        super().close()

    # ------------------------------------------------------------------

    def _connected(self) -> DatabaseSession:
        if self._session is not None and not self._session.usable:
            self._disconnect()
        if self._session is None:
            self._session = self._dialect.connect(self.name)
        return self._session

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def reached(self) -> int:
        return metadata_tables.reached(self._connected(), self._dialect, self._own, self._run)

    @property
    def _run(self) -> str:
        return metadata_tables.run_name(self.name, self.log.generation)

    def _next_attempt(self, end: int) -> int:
        return metadata_tables.next_attempt(
            self._connected(), self._dialect, self._own, self._run, self.epoch, end
        )

    def _layout(self, source: TableName) -> TableLayout:
        layout = self._layouts.get(source)
        table, place = self._known[source]
        if layout is None or (*layout.types, layout.key) != (*table.columns.names, table.key):
            session = self._connected()
            layout = self._tables.layout(session, table, place, self._floors[source])
            metadata_tables.create_gone(session, self._dialect, layout)
            # What the log does not hold any more can't come again.
            metadata_tables.forget(session, self._dialect, layout, self.log.head_offset)
            self._layouts[source] = layout
        return layout
