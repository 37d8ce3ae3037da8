"""Writes rows into a database, on executors.

Rows are collected by table; some ten thousand at once are one transaction. Versions allow that:
rows that are written again change nothing. Two guards cover what versions can't, because two
sessions do not see each other's states: each attempt at a batch has a number, and a transaction of
an older one is refused (`AttemptSupersededError`); and duplicates of one task wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from tidelog.errors import OutputError, OutputRefusedError, RowsLeftOutError
from tidelog.outputs.base.writer import Writer
from tidelog.outputs.database import dialect as merging
from tidelog.outputs.database import metadata_tables
from tidelog.outputs.database.dialect import (
    SHAPE,
    VERSION,
    DatabaseSession,
    Dialect,
    RowsRefusedError,
    StagedRows,
    TableLayout,
)
from tidelog.ports import Rejection, TargetTable, WriteTask

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
