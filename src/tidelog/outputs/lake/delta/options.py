"""Options of Delta copies, and the layout that they give each table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark.sql.types import StructField

from tidelog.model.patterns import choice
from tidelog.model.schema import TableName, backticked
from tidelog.outputs.lake.contents import LakeLayout, columns_of, fields_of
from tidelog.outputs.lake.data_files.layout import (
    VALID_FROM,
    VALID_TO,
    VALID_TO_VERSION,
    needs_mapping,
    plain_names,
    renamed,
)
from tidelog.outputs.lake.delta_log.definition import TableDefinition, new_table
from tidelog.outputs.lake.output import LakeOptions
from tidelog.outputs.lake.table import (
    GENERATION_PROPERTY,
    HOLDS_PROPERTY,
    KEYLESS_PROPERTY,
    MARKED_PROPERTY,
    TABLE_PROPERTY,
)
from tidelog.ports import TargetTable

DELETED: Final = "_deleted"  # the column of soft deletes

# Commits between two checkpoints of tables that are created. Delta's default, 10, suits commits
# once a minute; a checkpoint contains all files, and those removed in the last week.
_CHECKPOINT_INTERVAL = "100"

# Types with minimum and maximum. We keep statistics only for the key and the version: they let
# look-ups skip files, and statistics of every column cost much of a write.
_STATISTICS = (
    "smallint", "int", "bigint", "string", "date", "timestamp", "timestamp_ntz", "decimal",
)  # fmt: skip
_OF_CHANGES = ("ts",)  # beside the version: people read changes by it
_OF_HISTORY = (VALID_FROM, VALID_TO, VALID_TO_VERSION)  # the same, and files without open rows


@dataclass(frozen=True)
class DeltaLayout(LakeLayout):
    """Adds Delta's layout options.

    Attributes:
        clusters: columns of liquid clustering, for tables that are not partitioned.
        deletion_vectors: whether tables that are created have them.
        plain_names: whether new columns get names that need no column mapping.
    """

    clusters: tuple[str, ...] = ()
    deletion_vectors: bool = True
    plain_names: bool = True

    @property
    def reserved(self) -> tuple[str, ...]:
        """Names of our own columns beside the source's, also of one that may come later."""
        return (self.version, DELETED) if self.holds == "copy" else self.own


def new_definition(target: TargetTable, generation: str, layout: DeltaLayout) -> TableDefinition:
    """Return the definition of the table for ``target``, by the layout, for an event log's
    generation.
    """
    reserved = {name: name for name in layout.reserved}
    names = plain_names(target.columns.names, reserved) if layout.plain_names else {}
    statistics = _with_statistics(target, layout)
    statistics += [name for name in layout.clusters if name not in statistics]
    statistics = [name for name in statistics if name not in layout.partitions]
    properties = {
        GENERATION_PROPERTY: generation,
        TABLE_PROPERTY: str(target.source),
        **({HOLDS_PROPERTY: layout.holds} if layout.holds != "copy" else {}),
        **({KEYLESS_PROPERTY: "true"} if layout.keyless else {}),
        **({MARKED_PROPERTY: layout.deleted} if layout.deleted else {}),
        "delta.dataSkippingStatsColumns": ",".join(
            backticked(names.get(name, name)) for name in [*statistics, layout.version]
        ),
        "delta.checkpointInterval": _CHECKPOINT_INTERVAL,
    }
    return new_table(
        [renamed(each, names) for each in columns_of(target, layout)],
        partitions=[names.get(name, name) for name in layout.partitions],
        clusters=[names.get(name, name) for name in layout.clusters],
        properties=properties,
        column_mapping=not layout.plain_names and needs_mapping(target.columns.names),
        deletion_vectors=layout.deletion_vectors,
    )


def _with_statistics(target: TargetTable, layout: DeltaLayout) -> list[str]:
    if layout.holds == "changes":
        return list(_OF_CHANGES)
    fields = fields_of(target)
    found = [name for name in target.key if _has_statistics(fields[name])]
    return [*found, *_OF_HISTORY] if layout.holds == "history" else found


def _has_statistics(field: StructField) -> bool:
    return field.dataType.simpleString().partition("(")[0] in _STATISTICS


@dataclass(frozen=True)
class DeltaOptions(LakeOptions):
    """Adds Delta's options.

    Attributes:
        cluster_by: columns by table or pattern, for tables that are not partitioned.
        deletion_vectors: whether tables that are created have them.
        plain_names: whether new columns get names that need no column mapping.
    """

    cluster_by: Mapping[str, Sequence[str]] = field(default_factory=dict)
    deletion_vectors: bool = True
    plain_names: bool = True

    def layout_of(self, table: TableName) -> DeltaLayout:
        """Return the layout of the copy of a table of the source."""
        partitions = tuple(choice(self.partition_by, table, ()))
        clusters = () if partitions else tuple(choice(self.cluster_by, table, ()))
        holds = self.holds_of(table)
        if holds == "changes":
            return replace(self._changes, partitions=partitions, clusters=clusters)
        return DeltaLayout(
            deleted=DELETED if self.soft_deletes and holds == "copy" else "",
            holds=holds,
            partitions=partitions,
            clusters=clusters,
            deletion_vectors=self.deletion_vectors,
            plain_names=self.plain_names,
            cache_bytes=self.cache_bytes,
        )

    def keyless_layout_of(self, table: TableName) -> DeltaLayout | None:
        """Return the layout of the changes of a table that has no key, in place of a copy's; None:
        they are not appended, or steps would alter them.
        """
        return replace(self._changes, keyless=True) if self.appends_keyless(table) else None

    @property
    def _changes(self) -> DeltaLayout:
        # No row is ever deleted: vectors would only exclude some readers.
        return DeltaLayout(
            "version", holds="changes", deletion_vectors=False, plain_names=self.plain_names
        )
