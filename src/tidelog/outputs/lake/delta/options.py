"""Options of Delta copies, and the layout that they give each table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidelog.model.patterns import choice
from tidelog.model.schema import TableName
from tidelog.outputs.lake.delta.new_tables import DELETED, DeltaLayout
from tidelog.outputs.lake.output import LakeOptions


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
        """Returns the layout of the copy of a table of the source."""
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
        )

    def keyless_layout_of(self, table: TableName) -> DeltaLayout | None:
        """Returns the layout of the changes of a table that has no key, in place of a copy's; None:
        they are not appended, or steps would alter them.
        """
        return replace(self._changes, keyless=True) if self.appends_keyless(table) else None

    @property
    def _changes(self) -> DeltaLayout:
        # No row is ever deleted: vectors would only exclude some readers.
        return DeltaLayout(
            "version", holds="changes", deletion_vectors=False, plain_names=self.plain_names
        )
