"""One Iceberg table of the lake: how it is created, follows its source's columns, and is committed.

A batch is one commit: its files, and its end, in the snapshot's summary and as a property of the
table. It fails if readers see another snapshot than the batch was settled with, whatever it
changed: Iceberg's own check of conflicts lets a writer append that read what was committed long
before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidelog.errors import (
    ConflictError,
    NameRefusedError,
    OutputBusyError,
    OutputError,
    TableLeftOutError,
)
from tidelog.model.schema import TableName
from tidelog.outputs.base import tasks
from tidelog.outputs.base.schema_evolution import Wider
from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.base.targets import rename_step
from tidelog.outputs.lake.contents import ColumnPlan, LakeLayout, fields_of
from tidelog.outputs.lake.data_files.layout import FileColumn, FileLayout
from tidelog.outputs.lake.data_files.parquet_files import has_bounds
from tidelog.outputs.lake.delta.tasks import CopyFiles
from tidelog.outputs.lake.delta_log.actions import DataFile
from tidelog.outputs.lake.iceberg.catalog import IcebergCatalog
from tidelog.outputs.lake.iceberg.format import IcebergFormat, PartitionField
from tidelog.outputs.lake.iceberg.partitioning import Partition
from tidelog.outputs.lake.iceberg.state import (
    IcebergState,
    SchemaChange,
    TableChange,
    with_spec,
)
from tidelog.outputs.lake.settled_table import Rewrite, SettledTable
from tidelog.outputs.lake.settling.settle import ChangeFile, FileChanges, SettleOptions
from tidelog.outputs.lake.table import (
    DROPPED_PROPERTY,
    GENERATION_PROPERTY,
    MARKED_PROPERTY,
    TABLE_PROPERTY,
    RestoredCopy,
)
from tidelog.ports import TargetTable
from tidelog.system import failpoints

DELETED = "_tidelog_deleted"  # the column of soft deletes; Iceberg has a _deleted of its own
_MODE = "write.merge.mode"
_FIRST_PARTITION_ID = 1000  # as the specification assigns them

# Names that Iceberg gives columns of its own (its specification, "Reserved Field IDs").
_RESERVED = (
    "_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id",
    "_last_updated_sequence_number", "_change_type", "_change_ordinal", "_commit_snapshot_id",
)  # fmt: skip

# Iceberg's types, with Spark's and Arrow's.
_TYPES: Mapping[str, tuple[DataType, pa.DataType]] = {
    "boolean": (BooleanType(), pa.bool_()),
    "int": (IntegerType(), pa.int32()),
    "long": (LongType(), pa.int64()),
    "float": (FloatType(), pa.float32()),
    "double": (DoubleType(), pa.float64()),
    "string": (StringType(), pa.string()),
    "binary": (BinaryType(), pa.binary()),
    "date": (DateType(), pa.date32()),
    "timestamp": (TimestampNTZType(), pa.timestamp("us")),
    "timestamptz": (TimestampType(), pa.timestamp("us", "UTC")),
}
_NAMES = {spark.simpleString(): name for name, (spark, _) in _TYPES.items()}
_NAMES |= {"tinyint": "int", "smallint": "int"}  # Iceberg has no smaller ones


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


class IcebergTable(SettledTable):
    """A table of a catalog.

    Args:
        catalog: where the table is.
        parts: its namespace and name.
        location: names it in messages.
        layout: of tables that are created; and of the columns.
        rewrite: runs works on executors.
        branch: how names of branches begin in which this output wrote before it had one commit.
    """

    product = "Iceberg"
    wider: ClassVar[Wider] = {"int": ("bigint",), "float": ("double",)}
    rescales = False

    layout: IcebergLayout

    def __init__(
        self,
        catalog: IcebergCatalog,
        parts: Sequence[str],
        location: str,
        layout: IcebergLayout,
        rewrite: Rewrite,
        branch: str,
    ) -> None:
        super().__init__(location, layout, rewrite)
        self._catalog = catalog
        self._parts = tuple(parts)
        self._branch = branch
        self._found: IcebergState | None = None
        self._fields: list[Mapping[str, Any]] = []  # columns, of the schema of this id
        self._of_schema: tuple[str, int] | None = None
        self._files: dict[str, DataFile] = {}  # of the snapshot of this table
        self._of_files: tuple[str, int | None] | None = None
        self._given: tuple[str, int | None] | None = None  # the snapshot that tasks have

    @property
    def _state(self) -> IcebergState:
        assert self._found is not None  # `exists` was asked before, or `create`
        return self._found

    # ------------------------------------------------ what there is

    def exists(self) -> bool:
        self._found = self._catalog.load(self._parts)
        return self._found is not None

    def committed(self, application: str) -> int | None:
        found = self._state.property(f"{application}/committed")
        return None if found is None else int(found)

    def property(self, name: str) -> str | None:
        return self._state.property(name)

    def definition(self) -> object:
        return (self._state.uuid, self._state.schema_id())

    def column_types(self) -> dict[str, str]:
        return {field.name: field.dataType.simpleString() for field in self.columns().fields}

    def columns(self) -> StructType:
        return StructType(
            [StructField(each["name"], self._kinds(each)[0]) for each in self._declared()]
        )

    def partitions(self) -> tuple[str, ...]:
        return tuple(each.partition.sql(quote=False) for each in self._partition_fields())

    def layout_columns(self) -> tuple[str, ...]:
        return tuple(Partition.parse(each).column for each in self.layout.partitions)

    def sql_type(self, field: StructField) -> str:
        kind = super().sql_type(field)
        return "int" if kind in ("tinyint", "smallint") else kind

    def data_files(self) -> Mapping[str, DataFile]:
        place = (self._state.uuid, self._state.head())
        if self._of_files != place:
            by_id = {each.field_id: each for each in self._file_columns() if each.field_id}
            self._files = dict(self._state.files(by_id))
            self._of_files = place
        return self._files

    def files(self, *, marked: str | None = None) -> CopyFiles:
        state, columns = self._state, self._file_columns()
        names = {each.name for each in columns}
        deleted = self.layout.deleted if marked is None else marked
        # As long as the key is not known: all that can have statistics.
        kept = {*self.key, self.layout.version} if self.key else names
        layout = FileLayout(
            columns=columns,
            partitions=(),
            key=self.key,
            version=self.layout.version,
            deleted=deleted if deleted in names else "",
            statistics=tuple(
                each.name for each in columns if each.name in kept and has_bounds(each.type)
            ),
            null_key=self.null_key,
            deletion_vectors=self._marks_rows(),
            format=self._format(),
        )
        options = SettleOptions(deletion_vectors=layout.deletion_vectors)
        store = open_file_store(_plain(state.location))
        files = tuple(self.data_files().values())
        self._given = self._of_files
        return CopyFiles(self.location, store, layout, files, options, tasks.armed_failpoints())

    def _format(self) -> IcebergFormat:
        state = self._state
        spec, fields = int(state.spec()["spec-id"]), tuple(self._partition_fields())
        return IcebergFormat(state.location, state.format_version, spec, fields)

    def _marks_rows(self) -> bool:
        return (self.property(_MODE) or "merge-on-read") != "copy-on-write"

    def _partition_fields(self) -> list[PartitionField]:
        names = {int(each["id"]): str(each["name"]) for each in self._declared()}
        return [
            PartitionField(
                int(each["field-id"]),
                Partition.kept(names.get(int(each["source-id"]), ""), str(each["transform"])),
            )
            for each in self._state.spec()["fields"]
        ]

    def _declared(self) -> list[Mapping[str, Any]]:
        """The columns as the metadata have them."""
        place = (self._state.uuid, self._state.schema_id())
        if self._of_schema != place:
            self._fields = list(self._state.schema()["fields"])
            self._of_schema = place
        return self._fields

    def _file_columns(self) -> tuple[FileColumn, ...]:
        return tuple(
            FileColumn(
                name=str(each["name"]),
                physical=str(each["name"]),
                type=self._kinds(each)[1],
                field_id=int(each["id"]),
                nullable=not each.get("required", False),
            )
            for each in self._declared()
        )

    def _kinds(self, declared: Mapping[str, Any]) -> tuple[DataType, pa.DataType]:
        kind = declared["type"]
        if isinstance(kind, str) and (found := _TYPES.get(kind)) is not None:
            return found
        if isinstance(kind, str) and kind.startswith("decimal("):
            precision, scale = (int(each) for each in kind[len("decimal(") : -1].split(","))
            return DecimalType(precision, scale), pa.decimal128(precision, scale)
        name = kind if isinstance(kind, str) else kind["type"]
        raise TableLeftOutError(
            f"{self.location}: column {declared['name']} is of type {name}, which Tidelog can't "
            'write: drop the column, or exclude the table: add "!NAMESPACE.TABLE" to the tables '
            "of the output"
        )

    # ------------------------------------------------ what it is like

    def check_ours(self, table: TableName, generation: str) -> None:
        super().check_ours(table, generation)
        self.data_files()  # raises TableLeftOutError if there are files that can't be read

    def check_names(self, target: TargetTable) -> None:
        super().check_names(target)
        check_reserved(target)

    def create(self, target: TargetTable, generation: str) -> None:
        self.check_names(target)
        layout, fields = self.layout, fields_of(target)
        columns = {name: self._declared_type(field) for name, field in fields.items()}
        columns[layout.version] = "long"
        if layout.deleted:
            columns[layout.deleted] = "boolean"
        ids = {name: number for number, name in enumerate(columns, 1)}
        schema = [
            {"id": ids[name], "name": name, "required": False, "type": kind}
            for name, kind in columns.items()
        ]
        by = [Partition.parse(each) for each in layout.partitions]
        spec = [
            {
                "name": each.field_name,
                "transform": each.spelled,
                "source-id": ids[each.column],
                "field-id": _FIRST_PARTITION_ID + at,
            }
            for at, each in enumerate(by)
        ]
        properties = {
            GENERATION_PROPERTY: generation,
            TABLE_PROPERTY: str(target.source),
            **({MARKED_PROPERTY: layout.deleted} if layout.deleted else {}),
            "format-version": str(layout.format_version),
            _MODE: layout.mode,
            "write.update.mode": layout.mode,
            "write.delete.mode": layout.mode,
            # Every batch writes metadata files.
            "write.metadata.delete-after-commit.enabled": "true",
        }
        self._catalog.create(
            self._parts,
            {"type": "struct", "fields": schema},
            {"spec-id": 0, "fields": spec},
            properties,
        )
        if not self.exists():
            raise OutputError(
                f"the catalog neither created {self.location} nor has it: somebody removed it, or "
                "a Hive Metastore could not lock it (docs/outputs/iceberg.md, Catalogs)"
            )

    def _declared_type(self, field: StructField) -> str:
        """Returns the type of a new column as Iceberg spells it."""
        kind = field.dataType
        if isinstance(kind, DecimalType):
            return f"decimal({kind.precision}, {kind.scale})"
        return self._spelled(field.name, kind.simpleString())

    def _spelled(self, column: str, kind: str) -> str:
        if kind.startswith("decimal("):
            return kind
        found = _NAMES.get(kind)
        if found is None:
            raise TableLeftOutError(
                f"{self.location}: column {column} is of type {kind}, which the Iceberg output "
                "can't write. Cast it to string by a step `cast`, or leave it out by a step `drop`"
            )
        return found

    def set_property(self, name: str, value: str) -> None:
        self._state.refresh()  # rows may have gone just before
        if not self._state.commit(properties={name: value}):
            raise self._busy_error()

    def follow(self, columns: ColumnPlan, target: TargetTable) -> None:
        """Follow the columns, in one commit. A column that comes again is a new one, without
        values.
        """
        types = self.column_types()
        widened = {name: self._spelled(name, kind) for name, kind in columns.widened.items()}
        back = {
            name: widened.pop(name, "") or self._spelled(name, types[name])
            for name in columns.readded
        }
        added = {name: self._spelled(name, kind) for name, kind in columns.added.items()}
        change = SchemaChange([*back], {**back, **added}, widened)
        dropped = json.dumps(columns.dropped)
        if not change and dropped == (self.property(DROPPED_PROPERTY) or "[]"):
            return
        properties = {DROPPED_PROPERTY: dropped}
        if not self._state.commit(properties=properties, columns=change or None):
            raise self._busy_error()

    # ------------------------------------------------ what is written

    def altered(self) -> bool:
        before = self.definition()
        return not self.exists() or self.definition() != before

    def commit_settled(
        self,
        changes: Sequence[FileChanges],
        change_files: Sequence[ChangeFile],
        application: str,
        since: int | None,
        end: int,
    ) -> None:
        del change_files  # Iceberg derives changes from snapshots
        committed = f"{application}/committed"
        if self.committed(application) != since:
            raise ConflictError(f"{self.location}: another driver wrote rows at the same time")
        again = since is not None and end <= since  # nothing is beyond what is committed
        failpoints.hit("iceberg.written")
        self._commit(
            self._change(changes, same_rows=False, summary={_end(application): str(end)}),
            properties={} if again else {committed: str(end)},
            expected={committed: None if since is None else str(since)},
            sequence=f"{application}/sequence",
        )
        failpoints.hit("iceberg.published")

    def commit_files(
        self, changes: Sequence[FileChanges], operation: str, *, data_change: bool
    ) -> None:
        del operation
        if any(each.added or each.removed or each.marked for each in changes):
            failpoints.hit("lake.rewrite.commit")
            change = self._change(changes, same_rows=not data_change, summary={})
            self._commit(change, properties={}, expected={})

    def _change(
        self, changes: Sequence[FileChanges], *, same_rows: bool, summary: Mapping[str, str]
    ) -> TableChange:
        spec = int(self._state.spec()["spec-id"])
        return TableChange(
            added=[with_spec(file, spec) for each in changes for file in each.added],
            removed=[file for each in changes for file in each.removed],
            marked=[pair for each in changes for pair in each.marked],
            same_rows=same_rows,
            summary=summary,
        )

    def _commit(
        self,
        change: TableChange,
        *,
        properties: Mapping[str, str],
        expected: Mapping[str, str | None],
        sequence: str = "",
    ) -> None:
        state, files = self._state, dict(self.data_files())
        if self._given != (state.uuid, state.head()):
            raise ConflictError(f"{self.location}: somebody else committed before")
        columns = {each.physical: each for each in self._file_columns()}
        number = state.commit_files(
            change,
            columns,
            properties=properties,
            expected=expected,
            sequence=sequence,
            retired=self._branch,
        )
        if number is None:
            raise ConflictError(f"{self.location}: somebody else committed at the same time")
        for file in change.removed:
            del files[file.path]
        files |= {file.path: file for file in change.added}
        files |= {after.path: after for _, after in change.marked}
        self._files, self._of_files = files, (state.uuid, number)

    # ------------------------------------------------ tables that were rolled back

    def find_restore(self, application: str, since: int) -> RestoredCopy | None:
        """The snapshot that readers see has the end of its batch in its summary, or one before it
        has. Where none of these is left, the number of the snapshot shows whether a later one was
        taken back, but not which.
        """
        state = self._state
        at = head = state.head()
        while at is not None:
            found = state.summary(at, _end(application))
            if found is not None:
                if int(found) == since:
                    return None
                return RestoredCopy(int(found), f"it was rolled back to snapshot {head}")
            at = state.parent(at)
        return self._rolled_back()

    def _rolled_back(self) -> RestoredCopy | None:
        head = self._state.head()
        newest = 0 if head is None else self._state.sequence(head)
        for name, value in self._state.properties("tidelog/").items():
            if name.endswith("/sequence") and newest < int(value):
                return RestoredCopy(None, f"it was rolled back to snapshot {head}")
        return None

    def expire(self, before_ms: int) -> None:
        """See `IcebergState.expire`. Raises OutputBusyError if others commit all the time."""
        found = self._catalog.load(self._parts)
        if found is None:
            raise OutputBusyError(f"{self.location} was removed")
        found.expire(before_ms)


def _end(application: str) -> str:
    """Returns the key of the end of a batch in the summary of its snapshot."""
    return f"{application}/end"


def _plain(location: str) -> str:
    """Returns a table's location as stores take it: a local one as a path."""
    return (
        "/" + location.removeprefix("file:").lstrip("/")
        if location.startswith("file:")
        else location
    )
