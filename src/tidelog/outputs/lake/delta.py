"""The Delta output: a copy of each table, kept by MERGE, exactly once.

The batch's end is Delta's transaction version (application: log generation and output); the rest is
`tidelog.outputs.lake.output`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.model.schema import TableName
from tidelog.outputs.lake.delta_table import DELETED, DeltaLayout, DeltaTable, path_of
from tidelog.outputs.lake.output import LakeOptions, LakeOutput
from tidelog.outputs.lake.table import of_table
from tidelog.ports import StateStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SESSION_CONF = {
    "spark.databricks.delta.snapshotPartitions": "1",
    # VACUUM lists with as many tasks, however few files there are: 110 s with the default, 10,000.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
}


@dataclass(frozen=True)
class DeltaOptions(LakeOptions):
    """``cluster_by``: columns by table or pattern, of tables that are not partitioned."""

    cluster_by: Mapping[str, Sequence[str]] = field(default_factory=dict)


class DeltaOutput(LakeOutput):
    """A directory (or object-store prefix) of Delta tables.

    Args:
        spark: a session with Delta; each thread gets a session of its own beside it.
        log_path: the event log that batches refer to.
        path: the lake's root; a table is at ``path/namespace/name``.
        tables: names or patterns; empty: all.
        name: tells this output from others of the same log; part of Delta's application id.
        options: see there.
        parallel_tables: how many tables are merged at once.
        state: keeps which tables are left out for their names; None: such a table stops it.
    """

    product = "Delta"
    _options: DeltaOptions

    def __init__(
        self,
        spark: SparkSession,
        log_path: str,
        path: str,
        *,
        tables: Sequence[str] = (),
        name: str = "delta",
        options: DeltaOptions | None = None,
        parallel_tables: int = 2,
        state: StateStore | None = None,
    ) -> None:
        super().__init__(
            spark,
            log_path,
            tables=tables,
            name=name,
            options=options or DeltaOptions(),
            parallel_tables=parallel_tables,
            state=state,
        )
        self._root = path
        self._of_thread = threading.local()

    def _open(self, table: TableName, name: str) -> DeltaTable:
        options = self._options
        partitions = of_table(options.partition_by, table)
        layout = DeltaLayout(
            deleted=DELETED if options.soft_deletes else "",
            partitions=partitions,
            clusters=() if partitions else of_table(options.cluster_by, table),
        )
        return DeltaTable(self._thread_session, path_of(self._root, table, name), layout)

    def _thread_session(self) -> SparkSession:
        """This thread's own: Delta takes the transaction of a commit from the session's settings.
        One for each table would cost half a second and megabytes of the JVM's memory for each.
        """
        if not hasattr(self._of_thread, "session"):
            self._of_thread.session = self._session(_SESSION_CONF)
        session: SparkSession = self._of_thread.session
        return session
