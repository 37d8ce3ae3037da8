"""One Delta table of the lake: where it is, how it is made, how it follows its source's columns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField

from tidelog.errors import OutputError, OutputRefusedError
from tidelog.model.schema import TableName
from tidelog.outputs.widening import holds
from tidelog.pipeline.transforms import quoted
from tidelog.ports import TargetTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GENERATION_PROPERTY = "tidelog.generation"
TABLE_PROPERTY = "tidelog.table"
DELETED = "_deleted"  # the column of soft deletes
DROPPED_PROPERTY = "tidelog.dropped"  # columns that the source dropped, as a JSON list

# Characters that Parquet column names may hold only under Delta's column mapping.
_UNMAPPED = set(" ,;{}()\n\t=")

# Logical types that Delta keeps minimum and maximum of. We keep them for the key and the version
# alone: they let a MERGE skip files, and statistics of every column cost much of a write.
_STATISTICS = (
    "smallint", "int", "bigint", "string", "date", "timestamp", "timestamp_ntz", "decimal",
)  # fmt: skip

# Changes that Delta's type widening can make in place (delta.io, "Type widening").
_WIDER = {
    "smallint": ("int", "bigint", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}


def literal(text: str) -> str:
    """A text as a Spark SQL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def path_of(root: str, table: TableName, name: str) -> str:
    """``root/namespace/name``; a slash or percent sign inside a name is percent-encoded. Of a table
    whose destination has another ``name``, a route's, the first dot parts the directories.
    """
    parts = [table.namespace, table.name]
    if name != str(table):
        parts = [part for part in name.partition(".")[::2] if part]
    coded = [quote(part, safe=_PLAIN) if _odd(part) else part for part in parts]
    return "/".join([root.rstrip("/"), *coded])


_PLAIN = " !$&'()*+,;=:@~"


def _odd(part: str) -> bool:
    return any(c in part for c in "/%\\") or part in (".", "..")


@dataclass(frozen=True)
class DeltaLayout:
    """How rows are laid out in files: ``partitions`` (fixed once a table is made) or ``clusters``;
    and the names of the columns that are ours; ``deleted`` is "" where deletes are hard.
    """

    version: str = "_version"
    deleted: str = ""
    partitions: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()

    @property
    def own(self) -> tuple[str, ...]:
        """Names of our own columns."""
        return tuple(name for name in (self.version, self.deleted) if name)


class DeltaTable:
    """A table at its path, seen through one Spark session."""

    def __init__(self, spark: SparkSession, path: str, layout: DeltaLayout) -> None:
        self.spark = spark
        self.path = path
        self.sql_name = f"delta.{quoted(self.path)}"
        self.layout = layout

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

    def column_types(self) -> dict[str, str]:
        """Names and Spark SQL types (``simpleString``) of the columns, in order."""
        fields = self._snapshot().metadata().schema().fields()
        return {field.name(): field.dataType().simpleString() for field in fields}

    def check_ours(self, table: TableName, generation: str) -> None:
        """Raises OutputError if it was not made by Tidelog, from another log, or of another table
        than ``table``.
        """
        stored = self.property(GENERATION_PROPERTY)
        if stored is None:
            raise OutputError(
                f"{self.path} is a Delta table that Tidelog did not make (it has no property "
                f"{GENERATION_PROPERTY}). Choose another path for the output, or move the table."
            )
        if stored != generation:
            raise OutputError(
                f"{self.path} was filled from generation {stored} of the event log, this log is "
                f"generation {generation}: it was recreated. Move the table away and dump "
                f"{table} again; or, if the new log continues the old one's offsets, set the "
                f"table's property {GENERATION_PROPERTY} to {generation}."
            )
        other = self.property(TABLE_PROPERTY)
        if other not in (None, str(table)):
            raise OutputRefusedError(
                f"{self.path} is the copy of {other}, and {table} is routed there as well: two "
                "tables can't share one copy. Change the step route."
            )
        columns = self._snapshot().metadata().partitionColumns()
        kept = tuple(str(columns.apply(i)) for i in range(columns.size()))
        if kept != self.layout.partitions:
            raise OutputRefusedError(
                f"{self.path} is partitioned by {', '.join(kept) or 'nothing'}, and the "
                f"configuration says {', '.join(self.layout.partitions) or 'nothing'}. A Delta "
                f"table's partitions can't be changed: set partition_by accordingly, or move the "
                f"table away and dump {table} again."
            )

    def check_layout(self, target: TargetTable) -> None:
        """Raises OutputRefusedError if the target lacks a column of the layout."""
        for name in (*self.layout.partitions, *self.layout.clusters):
            if name not in target.columns.names:
                raise OutputRefusedError(
                    f"{target.source} has no column {name} to lay its copy out by: change "
                    "partition_by or cluster_by of the output"
                )

    def create(self, target: TargetTable, generation: str) -> None:
        """Create the table for the target's columns."""
        fields = fields_of(target)
        self._check_names(target)
        self.check_layout(target)
        layout = self.layout
        columns = [f"{quoted(name)} {_sql_type(field)}" for name, field in fields.items()]
        columns.append(f"{quoted(layout.version)} BIGINT")
        if layout.deleted:
            columns.append(f"{quoted(layout.deleted)} BOOLEAN")
        statistics = [n for n in target.key if _has_statistics(fields[n])]
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

    def evolve(self, target: TargetTable, policy: str) -> tuple[str, ...]:
        """Follow the target's columns as ``policy`` (see `tidelog.outputs.evolving`) says; the
        names of those that rows deliver from now on.

        A column that the source dropped stays as it was, null in later rows; if the source adds it
        again, the old values go. Raises OutputError for a change of type that can't be made in
        place.
        """
        self._check_names(target)
        fields = fields_of(target)
        current = self.column_types()
        folded = {name.lower(): name for name in current}
        added = [name for name in fields if name.lower() not in folded]
        widened: list[str] = []
        stuck: list[str] = []
        for name, field in fields.items():
            if name.lower() not in folded:
                continue
            have, want = current[folded[name.lower()]], _sql_type(field)
            if have == want or holds(have, want, _WIDER):
                continue
            (widened if holds(want, have, _WIDER) else stuck).append(name)
        dropped = self._dropped(target, current)
        if policy == "fail":
            fresh = [n for n in dropped if n not in self._known_dropped()]
            if changed := [*added, *widened, *stuck, *fresh]:
                raise OutputRefusedError(
                    f"{self.path}: columns {', '.join(changed)} of {target.source} changed, and "
                    "on_schema_change is fail. Change the Delta table and the policy."
                )
        if policy == "ignore":
            self._forget_dropped(dropped, current)
            left = {*added, *widened, *stuck}
            return self._delivered(target, left)
        if stuck and policy == "evolve":
            name = stuck[0]
            raise OutputError(
                f"{self.path}: column {name} of {target.source} is {_sql_type(fields[name])} now "
                f"and was {current[folded[name.lower()]]}; Delta can't change that in place. Move "
                f"the table away and dump {target.source} again, or set on_schema_change to "
                "lenient, which leaves the column as it is."
            )
        self._forget_dropped(dropped, current)
        if added:
            if any(_UNMAPPED & set(name) for name in added):
                self._set("delta.columnMapping.mode", "name")
            listed = ", ".join(f"{quoted(n)} {_sql_type(fields[n])}" for n in added)
            self.spark.sql(f"ALTER TABLE {self.sql_name} ADD COLUMNS ({listed})")
        for name in widened:
            self._set("delta.enableTypeWidening", "true")
            column, kind = quoted(folded[name.lower()]), _sql_type(fields[name])
            self.spark.sql(f"ALTER TABLE {self.sql_name} ALTER COLUMN {column} TYPE {kind}")
        if self.layout.deleted and self.layout.deleted.lower() not in folded:
            self.spark.sql(
                f"ALTER TABLE {self.sql_name} ADD COLUMNS ({quoted(self.layout.deleted)} BOOLEAN)"
            )
        return self._delivered(target, set(stuck))

    def _delivered(self, target: TargetTable, left: set[str]) -> tuple[str, ...]:
        lost = left & set(target.key)
        if lost:
            raise OutputRefusedError(
                f"{self.path}: columns {', '.join(sorted(lost))} are of the key of {target.source} "
                "and changed. Move the table away and dump it again."
            )
        return tuple(name for name in target.columns.names if name not in left)

    def _known_dropped(self) -> list[str]:
        found: list[str] = json.loads(self.property(DROPPED_PROPERTY) or "[]")
        return found

    def _dropped(self, target: TargetTable, current: dict[str, str]) -> list[str]:
        names = {name.lower() for name in target.columns.names}
        return [n for n in current if n.lower() not in names and n not in self.layout.own]

    def _forget_dropped(self, dropped: list[str], current: dict[str, str]) -> None:
        known = self._known_dropped()
        if dropped == known:
            return
        again = [name for name in known if name not in dropped and name in current]
        if again:
            # Before the property: a crash between the two does this twice, never not at all.
            nulls = ", ".join(f"{quoted(name)} = NULL" for name in again)
            self.spark.sql(f"UPDATE {self.sql_name} SET {nulls}")  # noqa: S608
        self._set(DROPPED_PROPERTY, json.dumps(dropped))

    def cluster(self) -> None:
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
        """Rewrite small files as large ones, and by the layout; with ``keep_s`` remove files that
        no version of the last so many seconds has.
        """
        self.spark.sql(f"OPTIMIZE {self.sql_name}")
        if keep_s is not None:
            self.spark.sql(f"VACUUM {self.sql_name} RETAIN {keep_s / 3600:.6f} HOURS")

    def _set(self, name: str, value: str) -> None:
        self.spark.sql(
            f"ALTER TABLE {self.sql_name} SET TBLPROPERTIES ({literal(name)} = {literal(value)})"
        )

    def _check_names(self, target: TargetTable) -> None:
        names = [*target.columns.names, *self.layout.own]
        seen: dict[str, str] = {}
        for name in names:
            other = seen.setdefault(name.lower(), name)
            if other is not name:
                raise OutputError(
                    f"{target.source} has columns {other} and {name}, which Delta can't tell apart "
                    "(it ignores case"
                    + (
                        "; one of them is the output's own: rename yours by a step)."
                        if name in self.layout.own
                        else "). Exclude the table from this output, or rename a column by a step."
                    )
                )

    def _snapshot(self) -> Any:
        # Delta has no public API for a table's transactions; this class is stable since 2019.
        jvm: Any = self.spark._jvm
        session: Any = self.spark._jsparkSession
        none = jvm.scala.Option.empty()
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, self.path)
        return log.update(False, none, none)


def fields_of(target: TargetTable) -> dict[str, StructField]:
    """The delivered columns with Spark's types, in order."""
    found = from_arrow_schema(target.columns, prefer_timestamp_ntz=True)
    return {field.name: field for field in found.fields}


def _sql_type(field: StructField) -> str:
    return field.dataType.simpleString()


def _has_statistics(field: StructField) -> bool:
    return _sql_type(field).partition("(")[0] in _STATISTICS
