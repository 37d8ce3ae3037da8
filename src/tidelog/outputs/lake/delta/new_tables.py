"""What a Delta table is like when it is made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import StructField

from tidelog.outputs.lake.contents import LakeLayout, columns_of, fields_of
from tidelog.outputs.lake.delta_log.definition import TableDefinition, new_table
from tidelog.outputs.lake.table import (
    GENERATION_PROPERTY,
    HOLDS_PROPERTY,
    MARKED_PROPERTY,
    TABLE_PROPERTY,
)
from tidelog.ports import TargetTable
from tidelog.spark.transforms import quoted

DELETED: Final = "_deleted"  # the column of soft deletes

# Characters that Parquet column names may hold only under Delta's column mapping.
_UNMAPPED = set(" ,;{}()\n\t=")

# Commits between two checkpoints of tables that are created. Delta's default, 10, is for commits
# that come once a minute; a checkpoint holds all files, and those removed in the last week.
_CHECKPOINT_INTERVAL = "100"

# Types that minimum and maximum are kept of. We keep them for the key and the version alone: they
# let look-ups skip files, and statistics of every column cost much of a write.
_STATISTICS = (
    "smallint", "int", "bigint", "string", "date", "timestamp", "timestamp_ntz", "decimal",
)  # fmt: skip
_OF_CHANGES = ("ts",)  # beside the version: what people read changes by


@dataclass(frozen=True)
class DeltaLayout(LakeLayout):
    """``clusters``: columns of liquid clustering, of tables that are not partitioned;
    ``deletion_vectors``: do tables that are created have them?
    """

    clusters: tuple[str, ...] = ()
    deletion_vectors: bool = True


def needs_mapping(names: Iterable[str]) -> bool:
    """Is there a name that files can't have?"""
    return any(_UNMAPPED & set(name) for name in names)


def new_definition(target: TargetTable, generation: str, layout: DeltaLayout) -> TableDefinition:
    """The table of ``target``, as the layout says, of an event log's generation."""
    statistics = _with_statistics(target, layout)
    statistics += [name for name in layout.clusters if name not in statistics]
    statistics = [name for name in statistics if name not in layout.partitions]
    properties = {
        GENERATION_PROPERTY: generation,
        TABLE_PROPERTY: str(target.source),
        **({HOLDS_PROPERTY: layout.holds} if layout.holds != "copy" else {}),
        **({MARKED_PROPERTY: layout.deleted} if layout.deleted else {}),
        "delta.dataSkippingStatsColumns": ",".join(
            quoted(name) for name in [*statistics, layout.version]
        ),
        "delta.checkpointInterval": _CHECKPOINT_INTERVAL,
    }
    return new_table(
        columns_of(target, layout),
        partitions=layout.partitions,
        clusters=layout.clusters,
        properties=properties,
        column_mapping=needs_mapping(target.columns.names),
        deletion_vectors=layout.deletion_vectors,
    )


def _with_statistics(target: TargetTable, layout: DeltaLayout) -> list[str]:
    if layout.holds == "changes":
        return list(_OF_CHANGES)
    fields = fields_of(target)
    return [name for name in target.key if _has_statistics(fields[name])]


def _has_statistics(field: StructField) -> bool:
    return field.dataType.simpleString().partition("(")[0] in _STATISTICS
