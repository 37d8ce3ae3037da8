"""One Iceberg table of the lake: how it is made, follows its source's columns, and takes a batch.

A batch is written to a branch of this process's own, which begins where ``main`` is. Then one
commit makes the branch's snapshot ``main``'s, and sets the batch's end as a property, unless
``main`` moved or the property changed before. Iceberg's own check of conflicts would not do: it
lets a writer append, and one whose rows match none, that read what was committed long before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.types import StructField

from tidelog.errors import NameRefusedError, TableLeftOutError
from tidelog.model.schema import TableName
from tidelog.outputs.base.schema_evolution import Wider
from tidelog.outputs.base.targets import rename_step
from tidelog.outputs.lake.contents import ColumnPlan, LakeLayout, fields_of
from tidelog.outputs.lake.iceberg.merged_table import MergedTable, literal
from tidelog.outputs.lake.iceberg.state import (
    MAIN,
    IcebergCatalog,
    IcebergState,
    SchemaChange,
    conflict,
)
from tidelog.outputs.lake.table import (
    DROPPED_PROPERTY,
    GENERATION_PROPERTY,
    TABLE_PROPERTY,
    RestoredCopy,
)
from tidelog.ports import TargetTable
from tidelog.spark.transforms import quoted
from tidelog.system import failpoints

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELETED = "_tidelog_deleted"  # the column of soft deletes; Iceberg has a _deleted of its own

# Names that Iceberg gives columns of its own (its specification, "Reserved Field IDs").
_RESERVED = (
    "_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id",
    "_last_updated_sequence_number", "_change_type", "_change_ordinal", "_commit_snapshot_id",
)  # fmt: skip

_TRANSFORM = re.compile(r"(year|month|day|hour)s?\((.+)\)|(bucket|truncate)\((\d+), *(.+)\)")
_KEPT_TRANSFORM = re.compile(r"(year|month|day|hour)|(bucket|truncate)\[(\d+)\]")
_PUBLISH_TRIES = 10


@dataclass(frozen=True)
class Partition:
    """A column, and what is made of it: nothing, ``days``, ``bucket`` with a number, …"""

    column: str
    transform: str = ""
    width: str = ""

    @classmethod
    def parse(cls, text: str) -> Partition:
        """``column``, ``days(column)`` (also years, months, hours), ``bucket(16, column)`` or
        ``truncate(4, column)``.
        """
        found = _TRANSFORM.fullmatch(text.strip())
        if found is None:
            return cls(text)
        if found[1]:
            return cls(found[2].strip(), f"{found[1]}s")
        return cls(found[5].strip(), found[3], found[4])

    @classmethod
    def kept(cls, column: str, transform: str) -> Partition:
        """From what Iceberg returns for a table."""
        found = _KEPT_TRANSFORM.fullmatch(transform)
        if found is None:
            return cls(column, "" if transform == "identity" else transform)
        return cls(column, f"{found[1]}s") if found[1] else cls(column, found[2], found[3])

    def sql(self, *, quote: bool = True) -> str:
        column = quoted(self.column) if quote else self.column
        if not self.transform:
            return column
        return f"{self.transform}({f'{self.width}, ' if self.width else ''}{column})"


@dataclass(frozen=True)
class IcebergLayout(LakeLayout):
    """``mode``: of changed rows, ``merge-on-read`` or ``copy-on-write``; ``format_version`` of
    tables that are created.
    """

    mode: str = "merge-on-read"
    format_version: int = 2


def check_reserved(target: TargetTable) -> None:
    """Raises NameRefusedError if a column has a name of Iceberg's."""
    for name in target.columns.names:
        if name.lower() in _RESERVED:
            raise NameRefusedError(
                f"{target.source} has a column {name}, a name that Iceberg keeps for itself. "
                f"{rename_step(target.source, name)}"
            )


class IcebergTable(MergedTable):
    """A table of a catalog.

    Args:
        spark: a session that knows the catalog.
        catalog: where the table is.
        parts: its namespace and name.
        location: names it in messages.
        layout: of tables that are created; and of the columns.
        branch: where batches are written before they are seen; ``prefix-…``, of this process.
    """

    product = "Iceberg"
    wider: ClassVar[Wider] = {"int": ("bigint",), "float": ("double",)}
    rescales = False

    layout: IcebergLayout

    def __init__(
        self,
        spark: SparkSession,
        catalog: IcebergCatalog,
        parts: Sequence[str],
        location: str,
        layout: IcebergLayout,
        branch: str,
    ) -> None:
        self._name = ".".join(map(quoted, [catalog.name, *parts]))
        super().__init__(spark, location, f"{self._name}.{quoted(f'branch_{branch}')}", layout)
        self.read_name = self._name
        self._catalog = catalog
        self._parts = tuple(parts)
        self._branch = branch
        self._found: IcebergState | None = None

    @property
    def _state(self) -> IcebergState:
        assert self._found is not None  # `exists` was asked before, or `create`
        return self._found

    def exists(self) -> bool:
        self._found = self._catalog.load(self._parts)
        return self._found is not None

    def is_empty(self) -> bool:
        main = self._state.head()
        counts = {} if main is None else self._state.summary(main)
        return all(counts.get(f"total-{kind}-files") == "0" for kind in ("data", "delete"))

    def committed(self, application: str) -> int | None:
        self._state.refresh()
        return self._committed(application)

    def _committed(self, application: str) -> int | None:
        found = self._state.property(f"{application}/committed")
        return None if found is None else int(found)

    def property(self, name: str) -> str | None:
        return self._state.property(name)

    def set_property(self, name: str, value: str) -> None:
        self._state.refresh()  # rows may have gone just before
        if not self._state.commit(properties={name: value}):
            raise conflict(self.location)

    def column_types(self) -> dict[str, str]:
        return self._state.column_types()

    def partitions(self) -> tuple[str, ...]:
        return tuple(Partition.kept(*each).sql(quote=False) for each in self._state.partitions())

    def layout_columns(self) -> tuple[str, ...]:
        return tuple(Partition.parse(each).column for each in self.layout.partitions)

    def sql_type(self, field: StructField) -> str:
        kind = super().sql_type(field)
        return "int" if kind in ("tinyint", "smallint") else kind  # Iceberg has no smaller ones

    def check_ours(self, table: TableName, generation: str) -> None:
        super().check_ours(table, generation)
        self._check_not_rolled_back(str(table))

    def find_restore(self, application: str, since: int) -> RestoredCopy | None:
        """A rollback is refused: the content of a snapshot is unknown."""
        self._check_not_rolled_back(self.property(TABLE_PROPERTY) or "the table")
        return None

    def _check_not_rolled_back(self, table: str) -> None:
        main = self._state.head()
        newest = 0 if main is None else self._state.sequence(main)
        for name, value in self._state.properties("tidelog/").items():
            if name.endswith("/sequence") and newest < int(value):
                raise TableLeftOutError(
                    f"{self.location} was rolled back to a snapshot before what was brought over "
                    "last "
                    f"(property {name}). Roll it forward again, or move the table away and dump "
                    f"{table} again."
                )

    def check_names(self, target: TargetTable) -> None:
        super().check_names(target)
        check_reserved(target)

    def create(self, target: TargetTable, generation: str) -> None:
        self.check_names(target)
        layout = self.layout
        fields = fields_of(target)
        columns = [f"{quoted(name)} {self.sql_type(field)}" for name, field in fields.items()]
        columns.append(f"{quoted(layout.version)} BIGINT")
        if layout.deleted:
            columns.append(f"{quoted(layout.deleted)} BOOLEAN")
        properties = {
            GENERATION_PROPERTY: generation,
            TABLE_PROPERTY: str(target.source),
            "format-version": str(layout.format_version),
            "write.merge.mode": layout.mode,
            "write.update.mode": layout.mode,
            "write.delete.mode": layout.mode,
            # Every batch writes metadata files.
            "write.metadata.delete-after-commit.enabled": "true",
        }
        listed = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in properties.items())
        by = ", ".join(Partition.parse(each).sql() for each in layout.partitions)
        if len(self._parts) > 1:
            namespace = ".".join(map(quoted, [self._catalog.name, *self._parts[:-1]]))
            self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        self.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self._name} ({', '.join(columns)}) USING iceberg "
            f"{f'PARTITIONED BY ({by}) ' if by else ''}TBLPROPERTIES ({listed})"
        )
        self._found = self._catalog.load(self._parts)
        if self._state.head() is None:
            self._state.begin()

    def follow(self, columns: ColumnPlan, target: TargetTable) -> None:
        """Follow the columns, in one commit. A column that comes again is a new one, without
        values.
        """
        types, widened = self.column_types(), dict(columns.widened)
        back = {name: widened.pop(name, types[name]) for name in columns.readded}
        change = SchemaChange([*back], {**back, **columns.added}, widened)
        dropped = json.dumps(columns.dropped)
        if not change and dropped == (self.property(DROPPED_PROPERTY) or "[]"):
            return
        properties = {DROPPED_PROPERTY: dropped}
        if not self._state.commit(properties=properties, columns=change or None):
            raise conflict(self.location)

    @contextmanager
    def committing(self, application: str, since: int | None, end: int) -> Iterator[None]:
        before = self._begin(application, since)
        yield
        failpoints.hit("iceberg.written")
        self._publish(application, since, before, end)
        failpoints.hit("iceberg.published")

    def _begin(self, application: str, since: int | None) -> int:
        """Have the branch begin at ``main``; that snapshot."""
        state = self._state
        if state.head() is None:
            state.begin()  # a crash came between the table and its first snapshot
        main = state.head()
        if main is None or self._committed(application) != since:
            raise conflict(self.location)
        if state.head(self._branch) != main:
            # Those of processes that ended, or should have.
            prefix = self._branch.rpartition("-")[0] + "-"
            others = [n for n in state.branches() if n.startswith(prefix) and n != self._branch]
            if not state.commit(branches={self._branch: main}, removed=others):
                raise conflict(self.location)
        return main

    def _publish(self, application: str, since: int | None, before: int, end: int) -> None:
        state = self._state
        for _ in range(_PUBLISH_TRIES):
            state.refresh()
            written = state.head(self._branch)
            if (
                written is None
                or state.head() != before
                or self._committed(application) != since
                or (written != before and state.parent(written) != before)
            ):
                break
            properties = {
                f"{application}/committed": str(end),
                f"{application}/sequence": str(state.sequence(written)),
            }
            if state.commit(branches={MAIN: written}, properties=properties):
                return
        raise conflict(self.location)

    def append(self, rows: DataFrame) -> None:
        given = {name.lower() for name in rows.columns}
        absent = {n: kind for n, kind in self.column_types().items() if n.lower() not in given}
        nulls = [f"CAST(NULL AS {kind}) AS {quoted(name)}" for name, kind in absent.items()]
        rows.selectExpr("*", *nulls).writeTo(self.sql_name).append()

    def optimize(self, keep_s: float | None) -> None:
        table = literal(".".join(map(quoted, self._parts)))
        system = f"{quoted(self._catalog.name)}.system"
        options = "options => map('min-input-files', '2'{})"
        data = options.format(", 'remove-dangling-deletes', 'true'")
        self.spark.sql(f"CALL {system}.rewrite_data_files(table => {table}, {data})").collect()
        if self.layout.format_version == 2 and self.layout.mode == "merge-on-read":
            rewrite = f"{system}.rewrite_position_delete_files"
            self.spark.sql(f"CALL {rewrite}(table => {table}, {options.format('')})").collect()
        if keep_s is not None:
            until = (datetime.now(UTC) - timedelta(seconds=keep_s)).strftime("%Y-%m-%d %H:%M:%S.%f")
            self.spark.sql(
                f"CALL {system}.expire_snapshots(table => {table}, "
                f"older_than => TIMESTAMP '{until}')"
            ).collect()
