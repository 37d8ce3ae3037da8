"""The output into a relational database, and how executors write rows into it.

Rows are collected by table; some ten thousand at once are one transaction. Versions allow that:
rows that are written again change nothing. Two guards cover what versions can't, because two
sessions do not see each other's states: each attempt at a batch has a number, and a transaction of
an older one is refused (`AttemptSupersededError`); and duplicates of one task wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tidelog.errors import ConfigError, OutputError, OutputRefusedError, RowsLeftOutError
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base.executor_output import ExecutorOutput
from tidelog.outputs.base.scheduling import BatchPlan
from tidelog.outputs.base.schema_evolution import ColumnChange
from tidelog.outputs.base.writer import Delivery, Writer
from tidelog.outputs.database import dialect as merging
from tidelog.outputs.database import metadata_tables
from tidelog.outputs.database.dialect import (
    DELETED,
    SHAPE,
    VERSION,
    DatabaseSession,
    Dialect,
    RowsRefusedError,
    StagedRows,
    TableLayout,
)
from tidelog.outputs.database.metadata_tables import Owner
from tidelog.outputs.database.tables import Tables
from tidelog.ports import Rejection, StateStore, TargetTable, TaskWriter, WriteTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Long rows are written sooner: their text is in memory as a whole.
_PIECE_BYTES = 32 << 20


class AttemptSupersededError(OutputError):
    """A later attempt at the batch, or a later run, has begun: this one may not write any more."""


@dataclass
class _PendingRows:
    table: TargetTable
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


class TableWriter(Writer):
    """Upserts rows into tables.

    Args:
        dialect: the server's dialect.
        layouts: by source table (its text), the destination of its rows.
        attempt: number of this attempt of the output.
        own: namespace of our tables.
        batch_rows: rows that are written at once.
    """

    def __init__(
        self,
        dialect: Dialect,
        layouts: Mapping[str, TableLayout],
        attempt: int,
        own: str,
        batch_rows: int,
    ) -> None:
        self._dialect = dialect
        self._layouts = dict(layouts)
        self._attempt = attempt
        self._own = own
        self._batch_rows = batch_rows

    def open(self, task: WriteTask) -> None:
        self._task = task
        self._gathered: dict[str, _PendingRows] = {}
        self._session: DatabaseSession | None = self._dialect.connect(task.output)

    def write(self, table: TargetTable, rows: pa.RecordBatch) -> list[Rejection]:
        rejected: list[Rejection] = []
        name = str(table.source)
        pieces = -(-rows.nbytes // _PIECE_BYTES)
        step = max(1, min(self._batch_rows, -(-rows.num_rows // max(1, pieces))))
        for start in range(0, rows.num_rows, step):
            gathered = self._gathered.setdefault(name, _PendingRows(table))
            piece = rows.slice(start, step)
            gathered.batches.append(piece)
            gathered.rows += piece.num_rows
            gathered.bytes += piece.nbytes
            if gathered.rows >= self._batch_rows or gathered.bytes >= _PIECE_BYTES:
                rejected += self._flush(self._gathered.pop(name))
        return rejected

    def commit(self) -> list[Rejection]:
        rejected = []
        for gathered in self._gathered.values():
            rejected += self._flush(gathered)
        self._gathered = {}
        return rejected

    def close(self) -> None:
        session, self._session = getattr(self, "_session", None), None
        if session is not None:
            session.close()

    # ------------------------------------------------------------------ one transaction

    def _flush(self, gathered: _PendingRows) -> list[Rejection]:
        layout = self._layouts[str(gathered.table.source)].with_columns(
            gathered.table.columns.names
        )
        names = gathered.batches[0].schema.names
        rows = pa.concat_batches([batch.select(names) for batch in gathered.batches])
        if not rows.num_rows:
            return []
        rows = merging.sort_by_key(rows, layout.key)
        rows = self._dialect.key_as_text(rows, layout.key, gathered.table.schema)
        session = self._session
        assert session is not None
        stage = session.stage(layout, list(layout.types))
        session.begin()
        run = metadata_tables.run_name(self._task.output, self._task.generation)
        session.lock(f"{run}/{layout.full_name}/{self._task.number}")
        if metadata_tables.current_attempt(session, self._dialect, self._own, run) != self._attempt:
            raise AttemptSupersededError(
                f"output {self._task.output}: a later attempt at this batch has begun"
            )
        try:
            rejected = self._write_rows(session, layout, stage, rows)
        except OutputRefusedError as error:  # of a right, say
            raise RowsLeftOutError(f"{gathered.table.source}: {error}") from None
        session.commit()
        return [Rejection(gathered.table.name, *each) for each in rejected]

    def _write_rows(
        self, session: DatabaseSession, layout: TableLayout, stage: str, rows: pa.RecordBatch
    ) -> list[tuple[int, str]]:
        """Write rows, or if the destination refuses one, halves of them; returns (version, reason)
        of those that it refuses.
        """
        staged = merging.stage_rows(rows, layout)
        if not staged.rows.num_rows:
            return []
        session.rows("SAVEPOINT tidelog")
        try:
            merging.check_lengths(staged.rows, layout.types)
            if not self._append(session, layout, staged):
                session.load(stage, staged.rows.schema.names, staged.rows)
                for statement in merging.merge_statements(self._dialect, layout, staged, stage):
                    session.rows(statement)
        except RowsRefusedError as refused:
            session.rows("ROLLBACK TO SAVEPOINT tidelog")
            if rows.num_rows == 1:
                return [(staged.rows.column(VERSION)[0].as_py(), refused.reason)]
        else:
            session.rows(f"DELETE FROM {stage}")
            return []
        half = rows.num_rows // 2
        return [
            *self._write_rows(session, layout, stage, rows.slice(0, half)),
            *self._write_rows(session, layout, stage, rows.slice(half)),
        ]

    def _append(self, session: DatabaseSession, layout: TableLayout, staged: StagedRows) -> bool:
        """Load rows directly into the table where no existing row can conflict, as in a
        first dump.
        """
        span = merging.key_span(staged.rows, layout) if staged.plain else None
        if span is None:
            return False
        probe = merging.occupied_query(self._dialect, layout)
        if session.rows(probe, (*span, *span))[0][0]:
            return False
        table = self._dialect.quoted(layout.namespace, layout.name)
        rows = staged.rows.drop_columns([SHAPE])
        session.rows("SAVEPOINT tidelog_append")
        try:
            session.load(table, [*layout.types, VERSION], rows)
        except RowsRefusedError:
            session.rows("ROLLBACK TO SAVEPOINT tidelog_append")
            return False
        return True


class DatabaseOutput(ExecutorOutput):
    """`tidelog.ports.Output` over tables, one for each source table.

    Args:
        spark, log_path, state: see `ExecutorOutput`.
        delivery: keyed.
        dialect: the database's address and product.
        namespace: schema or database of the tables; None: named as in the source.
        own: schema or database of the metadata tables.
        deletes: ``hard`` or ``soft``.
        batch_rows: rows that are written in one transaction.
    """

    frequent = True

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
        batch_rows: int,
    ) -> None:
        if not delivery.keyed:
            raise ConfigError("an output into tables is of keyed delivery")
        self._dialect = dialect
        self._own = own
        self._soft = deletes == "soft"
        self._batch_rows = batch_rows
        self._tables = Tables(dialect, delivery.name, namespace, own, self._soft)
        self._session: DatabaseSession | None = None
        self._known: dict[TableName, tuple[TargetTable, TableName]] = {}
        self._floors: dict[TableName, int] = {}
        self._layouts: dict[TableName, TableLayout] = {}
        super().__init__(spark, log_path, state, delivery)

    def check(self, generation: str) -> None:
        try:
            metadata_tables.create(self._connect(), self._dialect, self._own)
        except BaseException:
            self._disconnect()
            raise

    def create(self, table: TargetTable) -> None:
        self._known.pop(table.source, None)  # until it is known to fit
        session = self._connect()
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

    def has_table(self, table: TargetTable) -> bool:
        session = self._connect()
        return self._tables.exists(session, self._tables.place(session, table))

    def address(self, table: TargetTable) -> str:
        return self._tables.address(self._connect(), table)

    def alter(self, table: TargetTable, change: ColumnChange) -> None:
        _, place = self._known.pop(table.source)  # until it is known to fit
        self._tables.extend(self._connect(), table, place, change.added, change.widened)
        self._known[table.source] = (table, place)
        self._layouts.pop(table.source, None)

    def check_table(self, table: TargetTable) -> None:
        self._layouts.pop(table.source, None)  # somebody may have altered the table
        try:
            self._layout(table.source)
        except OutputRefusedError:
            del self._known[table.source]
            raise

    def accepts_type(self, table: TargetTable, column: str, former: str) -> bool:
        session = self._connect()
        place = self._tables.place(session, table)
        return self._tables.accepts_type(session, table, place, table.columns.field(column), former)

    def remedy_for(self, table: TargetTable, columns: Sequence[str]) -> str:
        session = self._connect()
        return self._tables.remedy_for(session, table, self._tables.place(session, table), columns)

    def remove_below(self, table: TargetTable, version: int) -> bool:
        """Delete the table's rows of a lower version, and keep older rows from being inserted
        again; none can be written at the same time.
        """
        session = self._connect()
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
        self.request_if_restored()
        progress = self._progress
        attempt = self._next_attempt(progress.begun)
        progress.written = progress.begun
        return TableWriter(self._dialect, layouts, attempt, self._own, self._batch_rows)

    @contextmanager
    def writing(self, plan: BatchPlan) -> Iterator[TaskWriter]:
        """Deleted rows are removed last: by then most of them are replaced, so that readers never
        miss rows.
        """
        yield self.writer()
        for source, version in plan.removed.items():
            layout = self._layout(source)
            name = self._dialect.quoted(layout.namespace, layout.name)
            # Rows without a version belong to somebody else: the output never wrote them.
            where = f"WHERE {VERSION} < {version}"
            statement = f"DELETE FROM {name} {where}"
            if layout.soft:
                statement = f"UPDATE {name} SET {DELETED} = true {where} AND NOT {DELETED}"
            try:
                self._connect().rows(statement)
            except (OutputRefusedError, RowsRefusedError) as error:  # by a trigger, say
                raise RowsLeftOutError(
                    f"{source}: output {self.name}: rows that the source does not have any more "
                    f"can't be deleted: {error}"
                ) from None

    def target_of(self, schema: TableSchema) -> tuple[TargetTable, TableName]:
        """Return the table as it is delivered, and its destination."""
        target = self._targets.target_of(schema)
        return target, self._tables.place(self._connect(), target)

    def close(self) -> None:
        self._disconnect()
        super().close()

    # ------------------------------------------------------------------

    def _connect(self) -> DatabaseSession:
        if self._session is not None and not self._session.usable:
            self._disconnect()
        if self._session is None:
            self._session = self._dialect.connect(self.name)
        return self._session

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def reached_offset(self) -> int:
        return metadata_tables.reached_offset(self._connect(), self._dialect, self._own, self._run)

    @property
    def _run(self) -> str:
        return metadata_tables.run_name(self.name, self.log.generation)

    def _next_attempt(self, end: int) -> int:
        return metadata_tables.next_attempt(
            self._connect(), self._dialect, self._own, self._run, self.lease.epoch, end
        )

    def _layout(self, source: TableName) -> TableLayout:
        layout = self._layouts.get(source)
        table, place = self._known[source]
        if layout is None or (*layout.types, layout.key) != (*table.columns.names, table.key):
            session = self._connect()
            former = [c for each in self.log.schemas.versions(source) for c in each.columns]
            layout = self._tables.layout(session, table, place, self._floors[source], former)
            metadata_tables.create_deleted_keys(session, self._dialect, layout)
            # The log can't deliver again what it does not have any more.
            metadata_tables.delete_tombstones(session, self._dialect, layout, self.log.head_offset)
            self._layouts[source] = layout
        return layout
