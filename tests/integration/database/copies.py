"""Tables of a destination, written without Spark: as one task of an output writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from tidelog.codecs.fold import fold
from tidelog.model.schema import TableSchema
from tidelog.outputs.base.tasks import prepare_rows
from tidelog.outputs.database import metadata_tables
from tidelog.outputs.database.dialect import DatabaseSession, Dialect, TableLayout
from tidelog.outputs.database.output import TableWriter
from tidelog.outputs.database.tables import Tables
from tidelog.ports import Rejection, SourceId, TargetTable, WriteTask
from tidelog.spark.formats import shapes
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION

OWN = "own"
TASK = WriteTask("out", "generation", 0, 1, 0)


@dataclass
class Copy:
    """One table's copy. ``attempt``: of the next writer."""

    dialect: Dialect
    table: TargetTable
    namespace: str
    soft: bool = False
    own: str = OWN
    floor: int = 0
    attempt: int = field(default=0, init=False)

    def prepare(self) -> TableLayout:
        """Create the table, or take the one that is there."""
        session = self.dialect.connect("test")
        try:
            tables = Tables(self.dialect, "out", self.namespace, self.own, self.soft)
            metadata_tables.create(session, self.dialect, self.own)
            place = tables.place(session, self.table)
            tables.create(session, self.table, place)
            layout = tables.layout(session, self.table, place, self.floor)
            metadata_tables.create_deleted_keys(session, self.dialect, layout)
            return layout
        finally:
            session.close()

    def begin(self, batch_rows: int = 1000) -> TableWriter:
        """The writer of a new try."""
        layout = self.prepare()
        session = self.dialect.connect("test")
        try:
            run = metadata_tables.run_name(TASK.output, TASK.generation)
            self.attempt = metadata_tables.next_attempt(session, self.dialect, self.own, run)
        finally:
            session.close()
        layouts = {str(self.table.source): layout}
        return TableWriter(self.dialect, layouts, self.attempt, self.own, batch_rows)

    def write(
        self, *batches: pa.RecordBatch, by: TableWriter | None = None, task: WriteTask = TASK
    ) -> list[Rejection]:
        """Bring batches of the shape `changes` over; what the destination rejects."""
        writer = by or self.begin()
        writer.open(task)
        try:
            rejected: list[Rejection] = []
            for batch in batches:
                rejected += writer.write(self.table, batch)
            return rejected + writer.commit()
        finally:
            writer.close()

    def select(self, sql: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Of a query with ``{t}`` for the table."""
        session: DatabaseSession = self.dialect.connect("test")
        try:
            name = self.dialect.quoted(self.namespace, self.table.source.name)
            return session.rows(sql.replace("{t}", name), arguments)
        finally:
            session.close()


def copy_of(dialect: Dialect, schema: TableSchema, kind: str, namespace: str, **how: Any) -> Copy:
    """Of a table of a source of this kind."""
    columns = to_arrow_schema(shapes.row_type(schema), timezone="UTC")
    origin = SourceId(kind, "1", "shop", 1)
    table = TargetTable(
        schema.table, str(schema.table), schema, columns, schema.match_key, origin,
        {column.name: column for column in schema.columns},
    )  # fmt: skip
    return Copy(dialect, table, namespace, **how)


def folded(records: pa.RecordBatch, table: TargetTable) -> pa.RecordBatch:
    """Records of one schema as a task's writer gets them."""
    return prepare_rows(fold(records, table.schema).to_batch("_tidelog_"), table, {})


def changes(
    table: TargetTable, *rows: tuple[str, int, dict[str, Any]], untold: Sequence[str] = ()
) -> pa.RecordBatch:
    """Rows of the shape `changes` from (op, version, values); the columns ``untold`` by u rows."""
    fields = [(CHANGE_OP, pa.string()), (CHANGE_VERSION, pa.int64())]
    fields += [(each.name, each.type) for each in table.columns]
    fields += [(CHANGE_MISSING, pa.list_(pa.string()))]
    values = [
        {CHANGE_OP: op, CHANGE_VERSION: version, **row}
        | {CHANGE_MISSING: list(untold) if untold and op == "u" else None}
        for op, version, row in rows
    ]
    return pa.RecordBatch.from_pylist(values, pa.schema(fields))


def numbered(schema: TableSchema) -> TableSchema:
    return replace(schema, schema_id=1)
