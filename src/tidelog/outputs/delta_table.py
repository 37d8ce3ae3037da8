"""One Delta table of the lake: where it is, how it is made, how it follows its source's schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tidelog.errors import OutputError
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.pipeline.shapes import spark_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GENERATION_PROPERTY = "tidelog.generation"
TABLE_PROPERTY = "tidelog.table"
DROPPED_PROPERTY = "tidelog.dropped"  # columns that the source dropped, as a JSON list

# Characters that Parquet column names may hold only under Delta's column mapping.
_UNMAPPED = set(" ,;{}()\n\t=")

# Logical types that Delta keeps minimum and maximum of. We keep them for the key and the version
# alone: they let a MERGE skip files, and statistics of every column cost much of a write.
_STATISTICS = ("int16", "int32", "int64", "text", "date", "timestamp", "timestamptz", "decimal")

# Changes that Delta's type widening can make in place (delta.io, "Type widening").
_WIDER = {
    "smallint": ("int", "bigint", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}


def quoted(name: str) -> str:
    """A name as a Spark SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text as a Spark SQL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def path_of(root: str, table: TableName) -> str:
    """``root/namespace/name``; a slash or percent sign inside a name is percent-encoded."""
    parts = [quote(part, safe=_PLAIN) if _odd(part) else part for part in _parts(table)]
    return "/".join([root.rstrip("/"), *parts])


_PLAIN = " !$&'()*+,;=:@~"


def _parts(table: TableName) -> tuple[str, str]:
    return table.namespace, table.name


def _odd(part: str) -> bool:
    return any(c in part for c in "/%\\") or part in (".", "..")


class DeltaTable:
    """A table at its path, seen through one Spark session."""

    def __init__(self, spark: SparkSession, root: str, table: TableName, version: str) -> None:
        self.spark = spark
        self.table = table
        self.path = path_of(root, table)
        self.sql_name = f"delta.{quoted(self.path)}"
        self.version_column = version

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

    def check_ours(self, generation: str) -> None:
        """Raises OutputError if the table was not made by Tidelog, or from another log."""
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
                f"{self.table} again; or, if the new log continues the old one's offsets, set the "
                f"table's property {GENERATION_PROPERTY} to {generation}."
            )

    def create(self, schema: TableSchema, generation: str) -> None:
        """Create the table for rows of ``schema``."""
        self._check_names(schema)
        columns = ", ".join(
            f"{quoted(column.name)} {_sql_type(column)}" for column in schema.columns
        )
        properties = {
            GENERATION_PROPERTY: generation,
            TABLE_PROPERTY: str(self.table),
            "delta.dataSkippingStatsColumns": ",".join(
                quoted(name) for name in [*_with_statistics(schema), self.version_column]
            ),
        }
        if any(_UNMAPPED & set(name) for name in schema.column_names):
            properties["delta.columnMapping.mode"] = "name"
        listed = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in properties.items())
        self.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.sql_name} "
            f"({columns}, {quoted(self.version_column)} BIGINT) USING delta "
            f"TBLPROPERTIES ({listed})"
        )

    def evolve(self, schema: TableSchema) -> None:
        """Add columns and widen types so that rows of ``schema`` fit.

        A column that the source dropped stays as it was, null in later rows; if the source adds it
        again, the old values go. Raises OutputError for a change of type that can't be made in
        place.
        """
        self._check_names(schema)
        current = self.column_types()
        self._forget_dropped(schema, current)
        folded = {name.lower(): name for name in current}
        added = [c for c in schema.columns if c.name.lower() not in folded]
        if added:
            if any(_UNMAPPED & set(c.name) for c in added):
                self._set("delta.columnMapping.mode", "name")
            listed = ", ".join(f"{quoted(c.name)} {_sql_type(c)}" for c in added)
            self.spark.sql(f"ALTER TABLE {self.sql_name} ADD COLUMNS ({listed})")
        for column in schema.columns:
            name = folded.get(column.name.lower())
            if name is None:
                continue
            have, want = current[name], _sql_type(column)
            if have == want or _holds(have, want):
                continue
            if not _holds(want, have):
                raise OutputError(
                    f"{self.path}: column {column.name} of {self.table} is {want} now and was "
                    f"{have}; Delta can't change that in place. Move the table away and dump "
                    f"{self.table} again."
                )
            self._set("delta.enableTypeWidening", "true")
            self.spark.sql(f"ALTER TABLE {self.sql_name} ALTER COLUMN {quoted(name)} TYPE {want}")

    def _forget_dropped(self, schema: TableSchema, current: dict[str, str]) -> None:
        names = {name.lower() for name in schema.column_names}
        known: list[str] = json.loads(self.property(DROPPED_PROPERTY) or "[]")
        dropped = [n for n in current if n.lower() not in names and n != self.version_column]
        if dropped == known:
            return
        again = [name for name in known if name not in dropped and name in current]
        if again:
            # Before the property: a crash between the two does this twice, never not at all.
            nulls = ", ".join(f"{quoted(name)} = NULL" for name in again)
            self.spark.sql(f"UPDATE {self.sql_name} SET {nulls}")  # noqa: S608
        self._set(DROPPED_PROPERTY, json.dumps(dropped))

    def _set(self, name: str, value: str) -> None:
        self.spark.sql(
            f"ALTER TABLE {self.sql_name} SET TBLPROPERTIES ({literal(name)} = {literal(value)})"
        )

    def _check_names(self, schema: TableSchema) -> None:
        names = [*schema.column_names, self.version_column]
        seen: dict[str, str] = {}
        for name in names:
            other = seen.setdefault(name.lower(), name)
            if other is not name:
                raise OutputError(
                    f"{self.table} has columns {other} and {name}, which Delta can't tell apart "
                    "(it ignores case"
                    + (
                        "; the output's version_column can be renamed)."
                        if name == self.version_column
                        else "). Exclude the table from this output, or rename a column."
                    )
                )

    def _snapshot(self) -> Any:
        # Delta has no public API for a table's transactions; this class is stable since 2019.
        jvm: Any = self.spark._jvm
        session: Any = self.spark._jsparkSession
        none = jvm.scala.Option.empty()
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, self.path)
        return log.update(False, none, none)


def _sql_type(column: Column) -> str:
    return spark_type(column.logical).simpleString()


def _with_statistics(schema: TableSchema) -> Sequence[str]:
    logical = {column.name: column.logical for column in schema.columns}
    return [n for n in schema.match_key if logical[n].partition("(")[0] in _STATISTICS]


def _holds(wide: str, narrow: str) -> bool:
    """Does every value of the type ``narrow`` fit into ``wide`` (Spark SQL types)?"""
    if wide in _WIDER.get(narrow, ()):
        return True
    if wide.startswith("decimal") and narrow.startswith("decimal"):
        wide_p, wide_s = _decimal(wide)
        narrow_p, narrow_s = _decimal(narrow)
        return wide_s >= narrow_s and wide_p - wide_s >= narrow_p - narrow_s
    return False


def _decimal(text: str) -> tuple[int, int]:
    precision, scale = text.removeprefix("decimal(").removesuffix(")").split(",")
    return int(precision), int(scale)
