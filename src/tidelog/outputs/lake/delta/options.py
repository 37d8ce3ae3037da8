"""What can be chosen of Delta copies, and the layout that it gives each table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidelog.model.schema import TableName
from tidelog.outputs.lake.delta.table import DELETED, DeltaLayout
from tidelog.outputs.lake.output import LakeOptions
from tidelog.outputs.lake.table import of_table


@dataclass(frozen=True)
class DeltaOptions(LakeOptions):
    """``cluster_by``: columns by table or pattern, of tables that are not partitioned;
    ``deletion_vectors``: do tables that are created have them?
    """

    cluster_by: Mapping[str, Sequence[str]] = field(default_factory=dict)
    deletion_vectors: bool = True

    def layout_of(self, table: TableName) -> DeltaLayout:
        """Of the copy of a table of the source."""
        partitions = of_table(self.partition_by, table)
        return DeltaLayout(
            deleted=DELETED if self.soft_deletes else "",
            partitions=partitions,
            clusters=() if partitions else of_table(self.cluster_by, table),
            deletion_vectors=self.deletion_vectors,
        )
