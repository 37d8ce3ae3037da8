"""The statements that bring rows of the shape `changes` into a lake's table."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from pyspark.sql import DataFrame

from tidelog.outputs.lake.iceberg.merged_table import MergedTable, literal
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION
from tidelog.spark.transforms import quoted

_views = itertools.count(1)  # tables may share a session


def append(copy: MergedTable, source: DataFrame, columns: Sequence[str]) -> None:
    """Into an empty table, where nothing can match. Rows of which not all is known are left out."""
    rows = source.where(f"{CHANGE_OP} = 'u' AND {CHANGE_MISSING} IS NULL")
    chosen = [quoted(name) for name in columns]
    chosen.append(f"{CHANGE_VERSION} AS {quoted(copy.layout.version)}")
    if copy.layout.deleted:
        chosen.append(f"false AS {quoted(copy.layout.deleted)}")
    copy.append(rows.selectExpr(*chosen))


def merge(
    copy: MergedTable,
    source: DataFrame,
    columns: Sequence[str],
    key: Sequence[str],
    may_lack: Collection[str],
    deleted_below: int,
    *,
    null_key: bool,
) -> None:
    """Bring one row per key over, unless the table has it in a later version.

    Args:
        copy: the table, not empty.
        source: its ``_tidelog_missing`` holds the names of columns that are not known.
        columns: to be written.
        key: those of them by which rows are known.
        may_lack: those of them that may be missing from a row.
        deleted_below: rows of a lower version are gone from the source, by events or not.
        null_key: null in the key is a value like others (`nan_key`).
    """
    view = f"tidelog_changes_{next(_views)}"
    layout = copy.layout
    version, deleted = quoted(layout.version), quoted(layout.deleted)
    same = "<=>" if null_key else "="
    matched = " AND ".join(f"t.{quoted(name)} {same} s.{quoted(name)}" for name in key)
    updates = [f"t.{version} = s.{CHANGE_VERSION}"]
    for name in columns:
        value = f"s.{quoted(name)}"
        if name in may_lack:
            missing = f"s.{CHANGE_MISSING}"
            unknown = f"{missing} IS NOT NULL AND array_contains({missing}, {literal(name)})"
            value = f"IF({unknown}, t.{quoted(name)}, {value})"
        updates.append(f"t.{quoted(name)} = {value}")
    names = [*(quoted(name) for name in columns), version]
    values = [*(f"s.{quoted(name)}" for name in columns), f"s.{CHANGE_VERSION}"]
    # A row without a version is somebody else's: it gives way to any state of its key.
    newer = f"(t.{version} IS NULL OR s.{CHANGE_VERSION} > t.{version})"
    removed, may_update = "DELETE", newer
    may_remove = f"({newer} OR t.{version} < {deleted_below})" if deleted_below else newer
    if layout.deleted:
        latest = f"greatest(t.{version}, s.{CHANGE_VERSION})"
        removed = f"UPDATE SET t.{version} = {latest}, t.{deleted} = true"
        updates.append(f"t.{deleted} = false")
        names.append(deleted)
        values.append("false")
        # What a deleted row held is not what a row that came back holds.
        may_update += f" AND (s.{CHANGE_MISSING} IS NULL OR NOT coalesce(t.{deleted}, false))"
    statement = (
        f"MERGE INTO {copy.sql_name} t USING {view} s ON {matched} "  # noqa: S608
        f"WHEN MATCHED AND {may_remove} AND s.{CHANGE_OP} = 'd' THEN {removed} "
        f"WHEN MATCHED AND {may_update} THEN UPDATE SET {', '.join(updates)} "
        f"WHEN NOT MATCHED AND s.{CHANGE_OP} = 'u' AND s.{CHANGE_MISSING} IS NULL "
        f"THEN INSERT ({', '.join(names)}) VALUES ({', '.join(values)})"
    )
    if deleted_below:
        statement += f" WHEN NOT MATCHED BY SOURCE AND t.{version} < {deleted_below}"
        if layout.deleted:
            statement += f" AND NOT coalesce(t.{deleted}, false)"
            statement += f" THEN UPDATE SET t.{deleted} = true"
        else:
            statement += " THEN DELETE"
    source.createOrReplaceTempView(view)
    try:
        copy.spark.sql(statement)
    finally:
        copy.spark.catalog.dropTempView(view)


def remove_below(copy: MergedTable, version: int) -> None:
    """Delete the rows of a lower version."""
    layout = copy.layout
    where = f"{quoted(layout.version)} < {version}"
    if layout.deleted:
        deleted = quoted(layout.deleted)
        copy.spark.sql(
            f"UPDATE {copy.sql_name} SET {deleted} = true "  # noqa: S608
            f"WHERE {where} AND NOT coalesce({deleted}, false)"
        )
    else:
        copy.spark.sql(f"DELETE FROM {copy.sql_name} WHERE {where}")  # noqa: S608
