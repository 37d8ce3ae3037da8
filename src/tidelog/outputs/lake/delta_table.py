"""One Delta table of the lake: where it is, how it is made, how it follows its source's columns."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.types import StructField

from tidelog.model.schema import TableName
from tidelog.outputs.base.widening import Wider
from tidelog.outputs.lake import delta_history
from tidelog.outputs.lake.columns import ColumnPlan
from tidelog.outputs.lake.restored import Restored
from tidelog.outputs.lake.table import (
    DROPPED_PROPERTY,
    GENERATION_PROPERTY,
    TABLE_PROPERTY,
    LakeLayout,
    LakeTable,
    fields_of,
    literal,
    parts_of,
)
from tidelog.ports import TargetTable
from tidelog.spark.transforms import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

DELETED = "_deleted"  # the column of soft deletes

# Characters that Parquet column names may hold only under Delta's column mapping.
_UNMAPPED = set(" ,;{}()\n\t=")

# Logical types that Delta keeps minimum and maximum of. We keep them for the key and the version
# alone: they let a MERGE skip files, and statistics of every column cost much of a write.
_STATISTICS = (
    "smallint", "int", "bigint", "string", "date", "timestamp", "timestamp_ntz", "decimal",
)  # fmt: skip

_TXN_APP = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_NOTE = "spark.databricks.delta.commitInfo.userMetadata"


def path_of(root: str, table: TableName, name: str) -> str:
    """``root/namespace/name``, see `parts_of`."""
    return "/".join([root.rstrip("/"), *parts_of(table, name)])


@dataclass(frozen=True)
class DeltaLayout(LakeLayout):
    """``clusters``: columns of liquid clustering, of tables that are not partitioned."""

    clusters: tuple[str, ...] = ()


class DeltaTable(LakeTable):
    """A table at its path. ``session``: see `LakeTable`; no two threads may share one, because the
    transaction of a commit is a setting of the session.
    """

    product = "Delta"
    # Changes that Delta's type widening can make in place (delta.io, "Type widening").
    wider: ClassVar[Wider] = {
        "smallint": ("int", "bigint", "double"),
        "int": ("bigint", "double"),
        "float": ("double",),
        "date": ("timestamp_ntz",),
    }

    layout: DeltaLayout

    def __init__(self, session: Callable[[], SparkSession], path: str, layout: DeltaLayout) -> None:
        super().__init__(session, path, f"delta.{quoted(path)}", layout)
        self.path = path
        self._checked = -1  # no RESTORE up to this version is left to be made good
        self._restored = -1  # the same, once what is lacking has come again
        self._expected: tuple[int, int] | None = None  # our commit: version, transaction version

    def exists(self) -> bool:
        return bool(self._snapshot().version() >= 0)

    def is_empty(self) -> bool:
        return int(self._snapshot().numOfFiles()) == 0

    def committed(self, application: str) -> int | None:
        """The transaction version that ``application`` committed last."""
        found = self._snapshot().transactions().get(application)
        return int(found.get()) if found.isDefined() else None

    def property(self, name: str) -> str | None:
        found = self._snapshot().metadata().configuration().get(name)
        return str(found.get()) if found.isDefined() else None

    def set_property(self, name: str, value: str) -> None:
        self.spark.sql(
            f"ALTER TABLE {self.sql_name} SET TBLPROPERTIES ({literal(name)} = {literal(value)})"
        )

    def column_types(self) -> dict[str, str]:
        fields = self._snapshot().metadata().schema().fields()
        return {field.name(): field.dataType().simpleString() for field in fields}

    def partitions(self) -> tuple[str, ...]:
        columns = self._snapshot().metadata().partitionColumns()
        return tuple(str(columns.apply(i)) for i in range(columns.size()))

    def laid_out_by(self) -> tuple[str, ...]:
        return (*self.layout.partitions, *self.layout.clusters)

    def create(self, target: TargetTable, generation: str) -> None:
        fields = fields_of(target)
        self.check_names(target)
        self.check_layout(target)
        layout = self.layout
        columns = [f"{quoted(name)} {self.sql_type(field)}" for name, field in fields.items()]
        columns.append(f"{quoted(layout.version)} BIGINT")
        if layout.deleted:
            columns.append(f"{quoted(layout.deleted)} BOOLEAN")
        statistics = [n for n in target.key if self._has_statistics(fields[n])]
        statistics += [n for n in layout.clusters if n not in statistics]
        statistics = [name for name in statistics if name not in layout.partitions]
        properties = {
            GENERATION_PROPERTY: generation,
            TABLE_PROPERTY: str(target.source),
            "delta.dataSkippingStatsColumns": ",".join(
                quoted(name) for name in [*statistics, layout.version]
            ),
        }
        if any(_UNMAPPED & set(name) for name in fields):
            properties["delta.columnMapping.mode"] = "name"
        listed = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in properties.items())
        laid_out = ""
        if layout.partitions:
            laid_out = f"PARTITIONED BY ({', '.join(map(quoted, layout.partitions))}) "
        elif layout.clusters:
            laid_out = f"CLUSTER BY ({', '.join(map(quoted, layout.clusters))}) "
        self.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.sql_name} ({', '.join(columns)}) USING delta "
            f"{laid_out}TBLPROPERTIES ({listed})"
        )

    def follow(self, columns: ColumnPlan) -> None:
        self._forget(columns)
        if columns.added:
            if any(_UNMAPPED & set(name) for name in columns.added):
                self.set_property("delta.columnMapping.mode", "name")
            listed = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.added.items())
            self.spark.sql(f"ALTER TABLE {self.sql_name} ADD COLUMNS ({listed})")
        for name, kind in columns.widened.items():
            self.set_property("delta.enableTypeWidening", "true")
            column = quoted(name)
            self.spark.sql(f"ALTER TABLE {self.sql_name} ALTER COLUMN {column} TYPE {kind}")
        self._cluster()

    def _forget(self, columns: ColumnPlan) -> None:
        if columns.dropped == json.loads(self.property(DROPPED_PROPERTY) or "[]"):
            return
        if columns.back:
            # Before the property: a crash between the two does this twice, never not at all.
            nulls = ", ".join(f"{quoted(name)} = NULL" for name in columns.back)
            self.spark.sql(f"UPDATE {self.sql_name} SET {nulls}")  # noqa: S608
        self.set_property(DROPPED_PROPERTY, json.dumps(columns.dropped))

    def restored(self, application: str, since: int) -> Restored | None:
        snapshot = self._snapshot()
        version = int(snapshot.version())
        if version == self._checked:
            return None
        if self._expected == (version, since):  # a commit beyond what was checked, and it is ours
            self._checked = version
            return None
        found = delta_history.standing(self._commit, version, application)
        if found.offset == since or found.restored is None:
            self._checked = version
            return None
        if found.offset is None and self._written_since(found.restored, application):
            logger.warning(
                "%s was restored to an older version before this version of Tidelog wrote to it: "
                "rows may be missing; `tidelog verify --repair` finds and mends them",
                self.place,
            )
            self._checked = version
            return None
        self._restored = version
        return Restored(found.offset, f"version {found.restored} is a RESTORE")

    def _written_since(self, version: int, application: str) -> bool:
        """Did an older Tidelog, which left no notes, write after the commit?"""
        commit = self._commit(version)
        found = self._transaction(application)
        updated = None if found is None or found.lastUpdated().isEmpty() else found.lastUpdated()
        return commit is not None and updated is not None and updated.get() > commit.timestamp_ms

    def _transaction(self, application: str) -> Any:
        found = self._snapshot().setTransactions()
        each = [found.apply(index) for index in range(found.size())]
        return next((one for one in each if one.appId() == application), None)

    def _commit(self, version: int) -> delta_history.DeltaCommit | None:
        jvm: Any = self.spark._jvm
        log = self._log()
        path = jvm.org.apache.hadoop.fs.Path(log.logPath(), f"{version:020d}.json")
        if not path.getFileSystem(log.newDeltaHadoopConf()).exists(path):
            return None
        lines = log.store().read(path, log.newDeltaHadoopConf())
        for index in range(lines.size()):
            action = json.loads(lines.apply(index))
            if "commitInfo" in action:
                return delta_history.DeltaCommit.parse(version, action["commitInfo"])
        return delta_history.DeltaCommit.parse(version, {})

    @contextmanager
    def committing(self, application: str, since: int | None, end: int) -> Iterator[None]:
        """Uses Delta's transaction version: Delta skips a write that is not newer than the last."""
        before = int(self._snapshot().version())
        again = end == since  # of a restored copy: beyond the last transaction is nothing
        if not again:
            self.spark.conf.set(_TXN_APP, application)
            self.spark.conf.set(_TXN_VERSION, str(end))
        checked = self._restored if again else self._checked
        self.spark.conf.set(_NOTE, delta_history.note(application, end, checked))
        try:
            yield
        finally:
            for name in (_TXN_APP, _TXN_VERSION, _NOTE):
                self.spark.conf.unset(name)
        self._expected = (before + 1, end) if before == checked and not again else None
        self._checked = checked

    def append(self, rows: DataFrame) -> None:
        rows.write.format("delta").mode("append").save(self.path)

    def _cluster(self) -> None:
        """Have a table that was made with other clustering columns follow the configuration."""
        wanted = self.layout.clusters
        if not wanted or self.layout.partitions:
            return
        found = self.spark.sql(f"DESCRIBE DETAIL {self.sql_name}").first()
        assert found is not None
        if tuple(found["clusteringColumns"] or ()) != wanted:
            self.spark.sql(
                f"ALTER TABLE {self.sql_name} CLUSTER BY ({', '.join(map(quoted, wanted))})"
            )

    def optimize(self, keep_s: float | None) -> None:
        self.spark.sql(f"OPTIMIZE {self.sql_name}")
        if keep_s is not None:
            self.spark.sql(f"VACUUM {self.sql_name} RETAIN {keep_s / 3600:.6f} HOURS")

    def _snapshot(self) -> Any:
        jvm: Any = self.spark._jvm
        none = jvm.scala.Option.empty()
        return self._log().update(False, none, none)

    def _log(self) -> Any:
        # Delta has no public API for a table's transactions; this class is stable since 2019.
        jvm: Any = self.spark._jvm
        session: Any = self.spark._jsparkSession
        return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, self.path)

    def _has_statistics(self, field: StructField) -> bool:
        return self.sql_type(field).partition("(")[0] in _STATISTICS
