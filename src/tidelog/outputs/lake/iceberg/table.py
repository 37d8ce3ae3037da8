"""One Iceberg table of the lake: how it is created, follows its source's columns, and is committed.

A batch is one commit: its files, and its end, in the snapshot's summary and as a property of the
table. It fails if readers see another snapshot than the batch was settled with, whatever it
changed: Iceberg's own check of conflicts lets a writer append that read what was committed long
before.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
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
from tidelog.outputs.base.left_out import rename_step
from tidelog.outputs.base.schema_evolution import Wider
from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.contents import (
    ColumnPlan,
    LakeLayout,
    column_edits,
    columns_of,
    fields_of,
)
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.layout import (
    VALID_FROM,
    VALID_TO,
    VALID_TO_VERSION,
    FileColumn,
    FileLayout,
    SortedBy,
)
from tidelog.outputs.lake.data_files.parquet_files import has_bounds
from tidelog.outputs.lake.iceberg.catalog import IcebergCatalog
from tidelog.outputs.lake.iceberg.features import DEFAULTS, check_supported, support_inputs
from tidelog.outputs.lake.iceberg.files import as_iceberg, iceberg_path
from tidelog.outputs.lake.iceberg.format import IcebergFormat, PartitionField
from tidelog.outputs.lake.iceberg.partitioning import Partition, json_value
from tidelog.outputs.lake.iceberg.state import (
    AddedColumn,
    IcebergState,
    SchemaChange,
    TableChange,
    with_spec,
)
from tidelog.outputs.lake.settling.settle import FileChanges, SettleOptions
from tidelog.outputs.lake.settling.tasks import CopyFiles
from tidelog.outputs.lake.table import (
    DROPPED_PROPERTY,
    GENERATION_PROPERTY,
    HOLDS_PROPERTY,
    KEYLESS_PROPERTY,
    MARKED_PROPERTY,
    TABLE_PROPERTY,
    LakeTable,
    RestoredCopy,
    Rewrite,
)
from tidelog.ports import TargetTable
from tidelog.system import failpoints

DELETED = "_tidelog_deleted"  # the column of soft deletes; Iceberg has a _deleted of its own
_MODE = "write.merge.mode"
_ROWS_SEQUENCE = "tidelog.sequence"  # of the snapshot that the property below is right for
# By what a table holds, the property that says what was done to all of its rows. A rollback does
# not set properties back, so that each snapshot has its own value in its summary.
_OF_ROWS = {"copy": MARKED_PROPERTY, "history": DROPPED_PROPERTY}
RELOAD_S = 300.0
"""Seconds after which a known table is loaded again, not only followed: what a catalog hands out
with it (credentials of its store) expires, and a catalog of files shows no difference between a
table and another that took its place, if both have as many versions.
"""
_WITH_LINEAGE = 3  # the first format whose rows have ids
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
if hasattr(types, "TimeType"):  # from Spark 4.1 on
    _TYPES = {**_TYPES, "time": (types.TimeType(6), pa.time64("us"))}
_NAMES = {spark.simpleString(): name for name, (spark, _) in _TYPES.items()}
_NAMES |= {"tinyint": "int", "smallint": "int"}  # Iceberg has no smaller ones
_SMALL = re.compile(r"(^|[<:,])(tinyint|smallint)(?=$|[>,])")


# Columns with statistics beside the key and the version.
_STATISTICS = {"changes": ("ts",), "history": (VALID_FROM, VALID_TO, VALID_TO_VERSION)}


@dataclass(frozen=True)
class IcebergLayout(LakeLayout):
    """``mode``: of changed rows, ``merge-on-read`` or ``copy-on-write``; ``format_version`` of
    tables that are created.
    """

    mode: str = "merge-on-read"
    format_version: int = 2


def check_reserved(target: TargetTable, layout: LakeLayout) -> None:
    """Raise NameRefusedError if a column has a name of Iceberg's."""
    for name in target.columns.names if layout.holds != "changes" else ():
        if name.lower() in _RESERVED:
            raise NameRefusedError(
                f"{target.source} has a column {name}, a name that Iceberg keeps for itself. "
                f"{rename_step(target.source, name)}"
            )


class IcebergTable(LakeTable):
    """A table of a catalog.

    Args:
        catalog: where the table is.
        parts: its namespace and name.
        location: names it in messages.
        layout: of tables that are created; and of the columns.
        rewrite: runs works on executors.
        branch: how names of branches begin in which this output wrote before it had one commit.
        keyless_layout: see `LakeTable`.
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
        keyless_layout: IcebergLayout | None = None,
    ) -> None:
        super().__init__(location, layout, rewrite, keyless_layout)
        self._catalog = catalog
        self._parts = tuple(parts)
        self._branch = branch
        self._found: IcebergState | None = None
        self._loaded_at = 0.0
        self._supported: object = None  # what the last check depends on
        self._fields: list[Mapping[str, Any]] = []  # columns, of the schema of this id
        self._columns: tuple[FileColumn, ...] | None = None  # the same ones in files
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
        now = time.monotonic()
        is_old = now - self._loaded_at >= RELOAD_S
        if self._found is None or is_old or not self._found.follow():
            self._found, self._loaded_at = self._catalog.load(self._parts), now
        if self._found is None:
            return False
        if self._supported != (inputs := support_inputs(self._found)):
            check_supported(self._found, self.location)
            self._file_columns()  # checks their types and defaults
            self._supported = inputs
        return True

    def metadata_file(self) -> str | None:
        """Return the name of the file of the metadata; None: there is no table."""
        return None if self._found is None else self._found.metadata_file

    def committed(self, application: str) -> int | None:
        found = self._state.property(committed_property(application))
        return None if found is None else int(found)

    def property(self, name: str) -> str | None:
        known, at = self._state.property(name), self._state.property(_ROWS_SEQUENCE)
        if name != _OF_ROWS.get(self.layout.holds) or at is None or not self._is_before(int(at)):
            return known
        recorded = (self._state.summary(each, name) for each in self._state.lineage_of_head())
        return next((each for each in recorded if each is not None), known)

    def _is_before(self, sequence: int) -> bool:
        """Was the snapshot of this number taken back? False also if that can't be known."""
        numbers = map(self._state.sequence, self._state.lineage_of_head())
        return next((each for each in numbers if each <= sequence), sequence) < sequence

    def definition(self) -> object:
        dropped = self.property(DROPPED_PROPERTY)
        return (self._state.uuid, self._state.schema_id(), dropped)

    def columns(self) -> StructType:
        return StructType(
            [
                StructField(each["name"], self._kinds(each["type"], each["name"])[0])
                for each in self._declared()
            ]
        )

    def layout_columns(self) -> tuple[str, ...]:
        return tuple(Partition.parse(each).column for each in self.layout.partitions)

    def sql_type(self, field: StructField) -> str:
        return _SMALL.sub(r"\1int", super().sql_type(field))

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
        known = self.key or self.layout.holds == "changes"
        kept = {*self.key, self.layout.version} if known else names
        kept |= set(_STATISTICS.get(self.layout.holds, ()))
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
            history=self.layout.holds == "history",
            format=self._format(),
            order=self._order(),
        )
        options = SettleOptions(
            deletion_vectors=layout.deletion_vectors, cache_bytes=self.layout.cache_bytes
        )
        store = open_file_store(plain(state.location))
        files = tuple(self.data_files().values())
        self._given = self._of_files
        return CopyFiles(self.location, store, layout, files, options, tasks.armed_failpoints())

    def _format(self) -> IcebergFormat:
        state = self._state
        spec, fields = int(state.spec()["spec-id"]), tuple(self._partition_fields())
        return IcebergFormat(state.location, state.format_version, spec, fields)

    def _order(self) -> tuple[SortedBy, ...]:
        """Return the table's order of rows in files; empty: none, or one that can't be kept."""
        known = {each.field_id: each for each in self._file_columns()}
        found = []
        for each in self._state.order()["fields"]:
            column = known.get(each.get("source-id"))
            if each["transform"] != "identity" or column is None or pa.types.is_nested(column.type):
                return ()
            descending, first = each["direction"] == "desc", each["null-order"] == "nulls-first"
            found.append(SortedBy(column.name, descending, first))
        return tuple(found)

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
            self._fields, self._columns = list(self._state.schema()["fields"]), None
            self._of_schema = place
        return self._fields

    def _file_columns(self) -> tuple[FileColumn, ...]:
        declared = self._declared()
        if self._columns is None:
            self._columns = tuple(map(self._file_column, declared))
        return self._columns

    def _file_column(self, field: Mapping[str, Any]) -> FileColumn:
        _, kind, stored = self._kinds(field["type"], field["name"])
        default, written = (self._default(field, name, kind) for name in DEFAULTS)
        return FileColumn(
            name=str(field["name"]),
            physical=str(field["name"]),
            type=kind,
            field_id=int(field["id"]),
            nullable=not field.get("required", False),
            stored=stored if pa.types.is_nested(kind) else None,
            default=default,
            written=written,
        )

    def _default(self, column: Mapping[str, Any], name: str, kind: pa.DataType) -> pa.Scalar | None:
        try:
            return None if column.get(name) is None else json_value(column[name], kind)
        except (ValueError, TypeError, ArithmeticError):
            raise TableLeftOutError(
                f"{self.location}: the {name} of column {column['name']} can't be read as {kind}: "
                "drop the column, or move the table away and dump it again"
            ) from None

    def _kinds(self, kind: Any, column: str) -> tuple[DataType, pa.DataType, pa.DataType]:
        """Return Spark's type, Arrow's, and Arrow's with the ids of members, as files have it."""
        if isinstance(kind, str) and (known := _TYPES.get(kind)) is not None:
            return known[0], known[1], known[1]
        if isinstance(kind, str) and kind.startswith("decimal("):
            precision, scale = (int(each) for each in kind[len("decimal(") : -1].split(","))
            decimal = pa.decimal128(precision, scale)
            return DecimalType(precision, scale), decimal, decimal
        name = kind if isinstance(kind, str) else kind["type"]
        if name == "struct":
            names = [str(each["name"]) for each in kind["fields"]]
            types = [self._kinds(each["type"], column) for each in kind["fields"]]
            ids = [each["id"] for each in kind["fields"]]
            return (
                StructType([StructField(n, t[0]) for n, t in zip(names, types, strict=True)]),
                pa.struct([pa.field(n, t[1]) for n, t in zip(names, types, strict=True)]),
                pa.struct(
                    [_with_id(n, t[2], i) for n, t, i in zip(names, types, ids, strict=True)]
                ),
            )
        if name == "list":
            spark, plain, stored = self._kinds(kind["element"], column)
            element = _with_id("element", stored, kind["element-id"])
            return ArrayType(spark), pa.list_(plain), pa.list_(element)
        if name == "map":
            of_key, of_value = (self._kinds(kind[each], column) for each in ("key", "value"))
            stored = pa.map_(
                _with_id("key", of_key[2], kind["key-id"]).with_nullable(False),
                _with_id("value", of_value[2], kind["value-id"]),
            )
            return MapType(of_key[0], of_value[0]), pa.map_(of_key[1], of_value[1]), stored
        raise TableLeftOutError(
            f"{self.location}: column {column} is of type {name}, which Tidelog can't "
            'write: drop the column, or exclude the table: add "!NAMESPACE.TABLE" to the tables '
            "of the output"
        )

    # ------------------------------------------------ what it is like

    def check_ours(self, table: TableName, generation: str) -> None:
        super().check_ours(table, generation)
        self.data_files()  # raises TableLeftOutError if there are files that can't be read

    def check_names(self, target: TargetTable) -> None:
        super().check_names(target)
        check_reserved(target, self.layout)

    def create(self, target: TargetTable, generation: str) -> None:
        self.check_names(target)
        layout, numbers = self.layout, count(1)
        schema = [self._declared_column(each, numbers) for each in columns_of(target, layout)]
        ids = {each["name"]: each["id"] for each in schema}
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
            **({HOLDS_PROPERTY: layout.holds} if layout.holds != "copy" else {}),
            **({KEYLESS_PROPERTY: "true"} if layout.keyless else {}),
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

    def _declared_column(self, field: StructField, ids: Iterator[int]) -> dict[str, Any]:
        """Return a new column as metadata have it. The catalog gives it an id of its own."""
        kind = self._declared_type(field.name, field.dataType, ids)
        return {"id": next(ids), "name": field.name, "required": False, "type": kind}

    def _declared_type(self, column: str, kind: DataType, ids: Iterator[int]) -> Any:
        """Return the type of a new column as Iceberg spells it."""
        if isinstance(kind, DecimalType):
            return f"decimal({kind.precision}, {kind.scale})"
        if isinstance(kind, StructType):
            fields = [self._declared_column(each, ids) for each in kind.fields]
            return {"type": "struct", "fields": fields}
        if isinstance(kind, ArrayType):
            element = self._declared_type(column, kind.elementType, ids)
            return {
                "type": "list",
                "element-id": next(ids),
                "element": element,
                "element-required": False,
            }
        if isinstance(kind, MapType):
            return {
                "type": "map",
                "key-id": next(ids),
                "key": self._declared_type(column, kind.keyType, ids),
                "value-id": next(ids),
                "value": self._declared_type(column, kind.valueType, ids),
                "value-required": False,
            }
        return self._spelled(column, kind.simpleString())

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
        if not self._set_properties({name: value}):
            raise self._busy_error()

    def _set_properties(
        self, properties: Mapping[str, str], columns: SchemaChange | None = None
    ) -> bool:
        """Commit them, and the columns; False: somebody else committed before."""
        head = self._state.head()
        sequence = "0" if head is None else str(self._state.sequence(head))
        return self._state.commit(
            properties={**properties, _ROWS_SEQUENCE: sequence}, columns=columns
        )

    def follow(self, columns: ColumnPlan, target: TargetTable) -> None:
        """Follow the columns, in one commit. A column that comes again is a new one, without
        values; but not where older states, or changes, keep theirs.
        """
        known = self._state.property(DROPPED_PROPERTY) or "[]"
        dropped = json.dumps(columns.dropped)
        if self.layout.holds == "copy":
            change = self._change_of_copy(columns, target)
        else:
            if self.layout.holds == "history" and columns.readded:
                nulls = tuple(columns.readded)
                self._rewrite_files({DROPPED_PROPERTY: dropped}, null_columns=nulls)
                known = dropped
            edits = column_edits(columns, target, self.columns(), self.layout)
            change = SchemaChange(
                [],
                [
                    AddedColumn(
                        each.field.name,
                        self._declared_type(each.field.name, each.field.dataType, count(2)),
                        each.within,
                    )
                    for each in edits
                    if not each.widens
                ],
                {
                    f"{each.within}.{each.field.name}".removeprefix("."): self._spelled(
                        each.field.name, each.field.dataType.simpleString()
                    )
                    for each in edits
                    if each.widens
                },
            )
        if not change and dropped == known:
            return
        if not self._set_properties({DROPPED_PROPERTY: dropped}, change or None):
            raise self._busy_error()

    def _change_of_copy(self, columns: ColumnPlan, target: TargetTable) -> SchemaChange:
        known, wanted = {each.name: each.dataType for each in self.columns()}, fields_of(target)
        widened = {name: self._spelled(name, kind) for name, kind in columns.widened.items()}
        added: dict[str, Any] = {
            name: widened.pop(name, None) or self._declared_type(name, known[name], count(2))
            for name in columns.readded
        }
        for name in columns.added:
            kind = wanted[name].dataType if name in wanted else BooleanType()
            added[name] = self._declared_type(name, kind, count(2))
        return SchemaChange(
            [*columns.readded], [AddedColumn(*each) for each in added.items()], widened
        )

    # ------------------------------------------------ what is written

    def has_changed(self) -> bool:
        before, head = self.definition(), self._state.head()
        if not self.exists() or self.definition() != before:
            return True
        return head is not None and head not in self._state.lineage_of_head()

    def commit_settled(
        self,
        changes: Sequence[FileChanges],
        application: str,
        since: int | None,
        end: int,
    ) -> None:
        committed = committed_property(application)
        if self.committed(application) != since:
            raise ConflictError(f"{self.location}: another driver wrote rows at the same time")
        again = since is not None and end <= since  # nothing is beyond what is committed
        failpoints.hit("iceberg.written")
        self._commit(
            self._change(changes, same_rows=False, summary={_end(application): str(end)}),
            properties={} if again else {committed: str(end)},
            expected={committed: None if since is None else str(since)},
            sequences=[f"{application}/sequence"],
        )
        failpoints.hit("iceberg.published")

    def commit_files(
        self,
        changes: Sequence[FileChanges],
        operation: str,
        *,
        data_change: bool,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        del operation
        if any(each.added or each.removed or each.marked for each in changes):
            failpoints.hit("lake.rewrite.commit")
            summary = self._ends()
            change = self._change(changes, same_rows=not data_change, summary=summary)
            self._commit(change, properties=properties or {}, expected={})
        elif properties and not self._set_properties(properties):
            raise ConflictError(f"{self.location}: somebody else committed before")

    def _ends(self) -> dict[str, str]:
        """Return the ends of the batches whose rows there are, for the summary of a snapshot with
        the same ones: those of the batches may be gone once somebody rolls back to it.
        """
        names = [name.rpartition("/") for name in self._state.properties("tidelog/")]
        ends = {name: self._known_end(name) for name, _, last in names if last == "committed"}
        return {_end(name): str(end) for name, end in ends.items() if end is not None}

    def _change(
        self, changes: Sequence[FileChanges], *, same_rows: bool, summary: Mapping[str, str]
    ) -> TableChange:
        spec = int(self._state.spec()["spec-id"])
        return TableChange(
            added=[with_spec(file, spec) for each in changes for file in each.added],
            removed=[file for each in changes for file in each.removed],
            marked=[pair for each in changes for pair in each.marked],
            order=int(self._state.order()["order-id"]) if self._order() else 0,
            same_rows=same_rows,
            summary=summary,
        )

    def _commit(
        self,
        change: TableChange,
        *,
        properties: Mapping[str, str],
        expected: Mapping[str, str | None],
        sequences: Sequence[str] = (),
    ) -> None:
        state, files = self._state, dict(self.data_files())
        if self._given != (state.uuid, state.head()):
            raise ConflictError(f"{self.location}: somebody else committed before")
        if (name := _OF_ROWS.get(self.layout.holds)) is not None:
            known, value = state.property(name), properties.get(name, self.property(name) or "")
            change = replace(change, summary={**change.summary, name: value})
            expected, sequences = {**expected, name: known}, [*sequences, _ROWS_SEQUENCE]
            properties = {**properties, name: value} if value != (known or "") else properties
        columns = {each.physical: each for each in self._file_columns()}
        number = state.commit_files(
            change,
            columns,
            properties=properties,
            expected=expected,
            sequences=sequences,
            retired=self._branch,
        )
        if number is None:
            raise ConflictError(f"{self.location}: somebody else committed at the same time")
        for file in change.removed:
            del files[file.path]
        added = change.added
        if added and state.format_version >= _WITH_LINEAGE:
            found = state.lineage(number)
            places = [found[iceberg_path(file, state.location)] for file in added]
            added = [
                as_iceberg(file, first_row=first, sequence=sequence)
                for file, (first, sequence) in zip(added, places, strict=True)
            ]
        files |= {file.path: file for file in added}
        files |= {after.path: after for _, after in change.marked}
        self._files, self._of_files = files, (state.uuid, number)
        if state.format_version >= _WITH_LINEAGE and None in {
            getattr(file, "first_row", None) for file in files.values()
        }:  # of format 2 until now: this commit has given them
            self._of_files = None

    # ------------------------------------------------ tables that were rolled back

    def find_restore(self, application: str, since: int) -> RestoredCopy | None:
        """The snapshot that readers see has the end of its batch in its summary, or one before it
        has. Where none of these is left, the number of the snapshot shows whether a later one was
        taken back, but not which.
        """
        end = self._known_end(application)
        if end is not None:
            why = f"it was rolled back to snapshot {self._state.head()}"
            return RestoredCopy(end, why) if end != since or self._has_old_values() else None
        restored = self._rolled_back()
        if restored is not None and self.layout.holds != "copy":  # each change is written only once
            return replace(restored, offset=self._offset_of_rows(None, since))
        return restored

    def _has_old_values(self) -> bool:
        """Are values of a dropped column back in a table of history?"""
        known = self._state.property(DROPPED_PROPERTY)
        return (self.property(DROPPED_PROPERTY) or "[]") != (known or "[]")

    def _known_end(self, application: str) -> int | None:
        """Return the end of the newest batch whose rows readers see; None: no snapshot has it."""
        lineage = self._state.lineage_of_head()
        ends = (self._state.summary(each, _end(application)) for each in lineage)
        return next((int(each) for each in ends if each is not None), None)

    def _rolled_back(self) -> RestoredCopy | None:
        for name, value in self._state.properties("tidelog/").items():
            if name.endswith("/sequence") and self._is_before(int(value)):
                return RestoredCopy(None, f"it was rolled back to snapshot {self._state.head()}")
        return None

    def remove_snapshots(self, before_ms: int, *, thin: bool) -> None:
        """See `IcebergState.expire` and, with ``thin``, `IcebergState.thin`. Raises OutputBusyError
        if others commit all the time.
        """
        found = self._catalog.load(self._parts)
        if found is None:
            raise OutputBusyError(f"{self.location} was removed")
        if thin:
            found.thin(before_ms)
        else:
            found.expire(before_ms)


def committed_property(application: str) -> str:
    """Return the name of the property with the end of an application's last batch."""
    return f"{application}/committed"


def _end(application: str) -> str:
    """Return the key of the end of a batch in the summary of its snapshot."""
    return f"{application}/end"


def _with_id(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


def plain(location: str) -> str:
    """Return a table's location as stores take it: a local one as a path."""
    return (
        "/" + location.removeprefix("file:").lstrip("/")
        if location.startswith("file:")
        else location
    )
