"""The layout of a table's data files: its columns, their names, its key and partitions.

It also has what differs between table formats (`TableFormat`). Types: Delta protocol, "Schema
Serialization Format" (github.com/delta-io/delta, PROTOCOL.md).

Names: without column mapping Delta refuses some characters, and not every reader reads a table with
column mapping right. So a plain name has ``_`` in their place, and the column's metadata keeps the
source's name, by which the column is found from then on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Final, Protocol

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from tidelog.errors import TableLeftOutError
from tidelog.model.records import Int64s
from tidelog.outputs.base.stores import FileStore
from tidelog.outputs.lake.data_files.data_file import DataFile

# Names of columns.

SOURCE_NAME: Final = "tidelog.name"
"""The key in a column's metadata of the source's name, where the table has another one."""

# Characters that Delta allows in names only under column mapping.
_UNMAPPED: Final = re.compile(r"[ ,;{}()\n\t=]")


def needs_mapping(names: Iterable[str]) -> bool:
    """Return True if one of the names is possible only under column mapping."""
    return any(_UNMAPPED.search(name) for name in names)


def plain_names(names: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """Return the names in a table of the source's columns ``names``, by the source's: plain, and
    different from each other whatever the case.

    Args:
        names: columns of the source.
        known: the names in the table of the columns that it has, by the source's; they stay.
    """
    found = {name.lower(): (name, own) for name, own in known.items()}
    taken = {own.lower() for own in known.values()}
    fresh = [name for name in names if name.lower() not in found]
    for name in sorted(fresh, key=lambda each: needs_mapping([each])):  # others keep their names
        plain = own = _UNMAPPED.sub("_", name)
        number = 1
        while own.lower() in taken:
            number += 1
            own = f"{plain}_{number}"
        taken.add(own.lower())
        found[name.lower()] = name, own
    return dict(found.values())


def renamed(field: StructField, names: Mapping[str, str]) -> StructField:
    """Return a column, with its members if it is a struct, by its name in the table; ``names`` as
    of `plain_names`.
    """
    kind = field.dataType
    if isinstance(kind, StructType):
        kind = StructType([renamed(each, names) for each in kind.fields])
    by_case = {name.lower(): own for name, own in names.items()}
    own = by_case.get(field.name.lower(), field.name)
    if own.lower() == field.name.lower():
        return StructField(field.name, kind, field.nullable, field.metadata)
    metadata = {**(field.metadata or {}), SOURCE_NAME: field.name}
    metadata["comment"] = f"in the source: {field.name}"
    return StructField(own, kind, field.nullable, metadata)


def source_name(declared: Mapping[str, Any]) -> str:
    """Return the source's name of a column of a serialized schema."""
    return str((declared.get("metadata") or {}).get(SOURCE_NAME, declared["name"]))


def with_source_names(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a serialized schema with the source's names of columns, and of members of structs."""
    return {**schema, "fields": [_with_source_name(each) for each in schema["fields"]]}


def _with_source_name(declared: Mapping[str, Any]) -> dict[str, Any]:
    kind = declared["type"]
    if isinstance(kind, Mapping) and kind["type"] == "struct":
        kind = with_source_names(kind)
    return {**declared, "name": source_name(declared), "type": kind}


# The layout.

_TYPES = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_LISTED_NAME = re.compile(r"\s*(?:`((?:[^`]|``)*)`|([^,`]+))\s*(?:,|$)")

# Columns of a table of history: since when and until when a row's state held, by time and by
# version, and whether it holds now.
VALID_FROM: Final = "_valid_from"
VALID_TO: Final = "_valid_to"
VALID_FROM_VERSION: Final = "_valid_from_version"
VALID_TO_VERSION: Final = "_valid_to_version"
CURRENT: Final = "_current"

_ID = "delta.columnMapping.id"
_PHYSICAL = "delta.columnMapping.physicalName"
_INDEXED_COLUMNS = 32  # default of delta.dataSkippingNumIndexedCols
_PREFIX_LENGTH = 2  # default of delta.randomPrefixLength


MarkedFiles = tuple[tuple[DataFile, DataFile], ...]
"""Pairs of a file before, and the same file with its new marks."""


class MarksWriter(Protocol):
    """Writes which rows of data files are deleted. Used by one task."""

    def mark(self, file: DataFile, rows: Int64s, count: int) -> None:
        """Mark rows of a file.

        Args:
            file: the file, with the marks that it had.
            rows: all of its deleted rows, also those marked before; sorted, distinct.
            count: number of all rows of the file.
        """
        ...

    def close(self) -> MarkedFiles:
        """Return the files, once their marks are durable."""
        ...


class TableFormat(Protocol):
    """A table format, as tasks see it. Picklable; equal for tables with the same rules.

    Attributes:
        by_id: whether columns of files are found by their field ids, not by their names.
        time_unit: of bounds of times in statistics, as NumPy spells it: ``ms``, rounded, or ``us``.
        lineage: columns that rows keep when they move to another file as they are; the first one
            also if they change.
    """

    by_id: ClassVar[bool]
    time_unit: ClassVar[str]

    @property
    def lineage(self) -> tuple[FileColumn, ...]: ...

    def with_lineage(self, rows: pa.Table, file: DataFile, numbers: Int64s | None) -> pa.Table:
        """Return rows with the values of `lineage` that follow from their places in ``file``, which
        are their ``numbers``; None: these are all of its rows.
        """
        ...

    def deleted_rows(self, store: FileStore, file: DataFile) -> Int64s:
        """Return int64[n]: the sorted numbers of the file's deleted rows. ``store``: the
        table's.
        """
        ...

    def marks_writer(self, store: FileStore) -> MarksWriter:
        """Return a writer for the table at ``store``."""
        ...

    def partition_keys(self, rows: pa.Table, layout: FileLayout) -> Mapping[str, pa.Array]:
        """Return, by the name that `DataFile.partition_values` has, a value for each row: rows
        with other values are of other partitions. Empty: the table has no partitions.
        """
        ...

    def partition_values(
        self, keys: Mapping[str, pa.Array], layout: FileLayout
    ) -> Mapping[str, str | None]:
        """Return the values of one partition for `DataFile`; ``keys``: as above, of one row."""
        ...

    def folder(self, partition: Mapping[str, str | None], layout: FileLayout) -> str:
        """Return the folder for new files of a partition, below the table; "": the table's."""
        ...


@dataclass(frozen=True)
class FileColumn:
    """A column of a table.

    Attributes:
        name: the source's name.
        physical: its name in files, statistics and partition values.
        type: its type, with the source's names.
        field_id: Parquet's field id; None: without column mapping.
        nullable: whether it may be null.
        stored: its type in files where that differs from ``type``: structs whose members have
            other names there.
        default: its value in files that were written before it was added; None: null.
        written: its value in new rows that bring none; None: null.
    """

    name: str
    physical: str
    type: pa.DataType
    field_id: int | None = None
    nullable: bool = True
    stored: pa.DataType | None = None
    default: pa.Scalar | None = None
    written: pa.Scalar | None = None

    @property
    def file_field(self) -> pa.Field:
        """The column's field in a file that is written now."""
        return _field(self.physical, self.stored or self.type, self.field_id)


@dataclass(frozen=True)
class SortedBy:
    """A column by which rows of files are sorted."""

    column: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class FileLayout:
    """A table's columns, and how its rows are laid out in files. Picklable.

    Attributes:
        columns: all columns, our own included, in the table's order.
        partitions: names of the columns that the table is partitioned by.
        key: names of the columns that identify rows; rows of a file are in this order, unless
            ``order`` is another one.
        version: name of the column with a row's version.
        deleted: name of the column that marks deleted rows; "" where deletes are hard.
        statistics: names of the columns with statistics.
        null_key: whether null in the key is a value like others.
        deletion_vectors: whether the table may have deletion vectors.
        change_feed: whether each change of a row is also written to the table's change data feed.
        prefix_length: length of the names of random folders for files; 0: files are in their
            partition's folder.
        history: whether rows are states of keys, which end; see
            `tidelog.outputs.lake.settling.history`.
        format: the rules of the table format; None: Delta's.
        order: what rows of files are sorted by, as the table says; empty: by the key.
    """

    columns: tuple[FileColumn, ...]
    partitions: tuple[str, ...]
    key: tuple[str, ...]
    version: str
    deleted: str
    statistics: tuple[str, ...]
    null_key: bool
    deletion_vectors: bool = False
    change_feed: bool = False
    prefix_length: int = 0
    history: bool = False
    format: TableFormat | None = None
    order: tuple[SortedBy, ...] = ()
    _by_name: dict[str, FileColumn] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {each.name: each for each in self.columns})

    def column(self, name: str) -> FileColumn:
        """Raise KeyError if the table has no column of that name."""
        return self._by_name[name]

    @cached_property
    def of_kept_rows(self) -> FileLayout:
        """The layout with the columns of `TableFormat.lineage`."""
        lineage = () if self.format is None else self.format.lineage
        return replace(self, columns=(*self.columns, *lineage)) if lineage else self

    @cached_property
    def schema(self) -> pa.Schema:
        """All columns by name, as tables of rows have them."""
        return pa.schema([pa.field(each.name, each.type) for each in self.columns])

    @cached_property
    def in_files(self) -> tuple[FileColumn, ...]:
        """The columns that files have: all but the partitions."""
        return tuple(each for each in self.columns if each.name not in self.partitions)

    @cached_property
    def file_key(self) -> tuple[FileColumn, ...]:
        """The columns of the key that files have, in the key's order."""
        return tuple(self.column(name) for name in self.key if name not in self.partitions)


class DeltaMetadata(Protocol):
    """The part of a table's metadata (action ``metaData``) that `delta_layout` reads."""

    @property
    def schema(self) -> Mapping[str, Any]: ...

    @property
    def partition_columns(self) -> Sequence[str]: ...

    @property
    def configuration(self) -> Mapping[str, str]: ...


def delta_layout(
    metadata: DeltaMetadata,
    *,
    key: Sequence[str],
    version: str,
    deleted: str,
    null_key: bool,
    history: bool = False,
) -> FileLayout:
    """Return the layout of a Delta table.

    Raises:
        TableLeftOutError: a column has a type that can't be written.
    """
    settings = metadata.configuration
    mapped = settings.get("delta.columnMapping.mode", "none") != "none"
    columns = tuple(_column(each, mapped) for each in metadata.schema["fields"])
    prefixed = mapped or settings.get("delta.randomizeFilePrefixes", "false").lower() == "true"
    length = int(settings.get("delta.randomPrefixLength", _PREFIX_LENGTH))
    names = {each["name"]: source_name(each) for each in metadata.schema["fields"]}
    partitions = tuple(names[name] for name in metadata.partition_columns)
    listed = _statistics(columns, partitions, settings)
    wanted = {*(names.get(name, name) for name in listed), *key, version}
    if history:
        wanted.add(VALID_TO_VERSION)
    return FileLayout(
        columns=columns,
        partitions=partitions,
        key=tuple(key),
        version=version,
        deleted=deleted,
        statistics=tuple(
            each.name for each in columns if each.name in wanted and each.name not in partitions
        ),
        null_key=null_key,
        deletion_vectors=settings.get("delta.enableDeletionVectors", "false").lower() == "true",
        change_feed=settings.get("delta.enableChangeDataFeed", "false").lower() == "true",
        prefix_length=length if prefixed else 0,
        history=history,
    )


def _statistics(
    columns: Sequence[FileColumn], partitions: Sequence[str], settings: Mapping[str, str]
) -> list[str]:
    """Return the columns with statistics, by the table's properties: names of the table's where
    it lists them.
    """
    listed = settings.get("delta.dataSkippingStatsColumns")
    if listed is not None:
        found = _LISTED_NAME.findall(listed)
        return [quoted.replace("``", "`") or plain.strip() for quoted, plain in found]
    most = int(settings.get("delta.dataSkippingNumIndexedCols", _INDEXED_COLUMNS))
    names = [each.name for each in columns if each.name not in partitions]
    return names if most < 0 else names[:most]


def _column(declared: Mapping[str, Any], mapped: bool) -> FileColumn:
    name = source_name(declared)
    notes = declared.get("metadata") or {}
    of_rows = _type(declared["type"], name, None)
    stored = _type(declared["type"], name, mapped)
    return FileColumn(
        name=name,
        physical=notes[_PHYSICAL] if mapped else declared["name"],
        type=of_rows,
        field_id=notes[_ID] if mapped else None,
        nullable=declared.get("nullable", True),
        stored=None if stored == of_rows else stored,
    )


def _type(declared: Any, column: str, mapped: bool | None) -> pa.DataType:
    """Return the Arrow type of a column. Fields of structs have their names in files, by column
    mapping if ``mapped``; None: those of the source.
    """
    if isinstance(declared, str):
        if (found := _TYPES.get(declared)) is not None:
            return found
        if declared == "variant":  # a null one has null members, which Parquet's required hide
            members = [pa.field(n, pa.binary(), mapped is None) for n in ("value", "metadata")]
            return pa.struct(members)
        if decimal := _DECIMAL.fullmatch(declared):
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
    elif declared["type"] == "struct":
        return pa.struct([_struct_field(each, column, mapped) for each in declared["fields"]])
    elif declared["type"] == "array":
        return pa.list_(_type(declared["elementType"], column, mapped))
    elif declared["type"] == "map":
        key, value = (_type(declared[each], column, mapped) for each in ("keyType", "valueType"))
        return pa.map_(key, value)
    kind = declared if isinstance(declared, str) else declared["type"]
    raise TableLeftOutError(
        f"column {column} of the Delta table is of type {kind}, which Tidelog can't write: drop "
        'the column, or exclude the table: add "!NAMESPACE.TABLE" to the tables of the output'
    )


def _struct_field(declared: Mapping[str, Any], column: str, mapped: bool | None) -> pa.Field:
    kind = _type(declared["type"], column, mapped)
    if mapped is None:
        return pa.field(source_name(declared), kind)
    notes = declared.get("metadata") or {}
    if not mapped:
        return pa.field(declared["name"], kind)
    return _field(notes[_PHYSICAL], kind, notes[_ID])


def _field(name: str, kind: pa.DataType, field_id: int | None) -> pa.Field:
    notes = None if field_id is None else {"PARQUET:field_id": str(field_id)}
    return pa.field(name, kind, metadata=notes)
