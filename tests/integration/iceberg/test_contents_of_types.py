"""Tables of changes and of history whose columns have the types that the option `types` gives."""

from __future__ import annotations

from datetime import date, time
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable
from tests.integration.event_messages import wait_for
from tests.integration.spark.test_native_types import (
    CASES,
    CLOCK,
    COLUMNS,
    TYPES,
    WITH_TIMES,
    capture,
    database,  # noqa: F401 - a fixture, as the next
    insert,
    run_once,
    server_with_extensions,  # noqa: F401
    spanning,
)
from tests.support.delta_readers import rows_of
from tests.support.iceberg_readers import by_duckdb, by_pyiceberg
from tests.support.iceberg_sql import spark_catalog_conf

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.thorough]

EXPECTED = {name: found for name, (*_, found) in zip(COLUMNS, CASES, strict=True)}
TIMES = {"times": (time(12, 30, 0, 250_000), time(1, 2, 3)), "texts": ("12:30:00.25", "01:02:03")}
"""Iceberg's library for Spark reads no table with a column of type `time`."""
ADDED = {
    "span": ("daterange", "'[2026-01-02,)'", spanning(date(2026, 1, 2), None, "[)")),
    "tags": ("hstore", "'a=>1'", [("a", "1")]),
    "spot": ("place", "ROW('s', 1.5, NULL, NULL)",
             {"street": "s", "size": Decimal("1.50"), "note": None, "inner": None}),
    "spans": ("int4multirange", "'{[1,2)}'", [spanning(1, 2, "[)")]),
    "lasts": ("interval", "'1 day'", {"months": 0, "days": 1, "microseconds": 0}),
    "clock": ("time", "'01:02:03'", None),
}  # fmt: skip


def test_readers_find_every_type_in_changes_and_in_history(
    spark: Any,
    database: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    """A row is dumped, others are logged, changed and deleted; then columns are added."""
    outputs = ", ".join(
        f"{{kind: iceberg, name: {holds}_{times}, path: {tmp_path}/{times}/{holds}, {types}, "
        f"tables: [public.t], holds: {{'*.*': {holds}}}}}"
        for holds in ("copy", "changes", "history")
        for times, types in (("times", WITH_TIMES), ("texts", TYPES))
    )
    with capture(database, tmp_path, f"[{outputs}]") as (sql, config):
        wait_for(config, 1)
        insert(sql, 2)
        sql.execute("UPDATE t SET c2 = '{7,8}' WHERE id = 1")
        wait_for(config, 3)
        assert run_once(spark, config) == ""
        for name, (kind, *_) in ADDED.items():
            sql.execute(f"ALTER TABLE t ADD COLUMN {name} {kind}")
        values = ", ".join(f"{name} = {value}" for name, (_, value, _) in ADDED.items())
        sql.execute(f"UPDATE t SET {values} WHERE id = 1")
        sql.execute("DELETE FROM t WHERE id = 2")
        wait_for(config, 5)
        assert run_once(spark, config) == ""

    for times, read in (
        ("times", _by_pyiceberg),
        ("times", _by_duckdb),
        ("texts", partial(_by_sql, spark)),
    ):
        place, (before, after) = tmp_path / times, TIMES[times]
        first = EXPECTED | {CLOCK: before} | dict.fromkeys(ADDED)
        changed = first | {"c2": [7, 8]}
        newest = changed | {name: found for name, (*_, found) in ADDED.items()} | {"clock": after}
        (row,) = read(place / "copy", "id")
        assert _values(row) == newest
        rows = [row for row in read(place / "changes", "version") if row["op"] != "s"]
        assert "".join(row["op"] for row in rows) == "rcuud"
        assert [_values(row["after"]) for row in rows[:4]] == [
            first,
            first,
            changed,
            newest,
        ]
        states = read(place / "history", "_valid_from_version")
        found = sorted((row["id"], row["c2"] or [], row["_current"]) for row in states)
        assert found == [(1, [], False), (1, [7, 8], False), (1, [7, 8], True), (2, [], False)]
        (current,) = [row for row in states if row["_current"]]
        assert _values(current) == newest
        for row in states:
            if not row["_current"]:
                assert _values(row) == (changed if row["c2"] else first)


def _by_sql(spark: Any, place: Path, order: str) -> list[dict[str, Any]]:
    """As Iceberg's library for Spark reads it."""
    session, catalog = spark.newSession(), {"type": "hadoop", "warehouse": str(place)}
    for name, value in spark_catalog_conf("lake", catalog).items():
        session.conf.set(name, value)
    return rows_of(session.table("lake.public.t").orderBy(order).toArrow())


def _metadata(place: Path) -> str:
    found = (place / "public/t/metadata").glob("v*.metadata.json")
    return str(max(found, key=lambda path: int(path.name[1:].split(".")[0])))


def _by_pyiceberg(place: Path, order: str) -> list[dict[str, Any]]:
    rows = by_pyiceberg(StaticTable.from_metadata(_metadata(place)), order)
    # It reads a missing array of structs as an empty one.
    return [row | {"spans": row["spans"] or None} if "spans" in row else row for row in rows]


def _by_duckdb(place: Path, order: str) -> list[dict[str, Any]]:
    return by_duckdb(_metadata(place), order)


def _values(row: dict[str, Any]) -> dict[str, Any]:
    found = {name: row[name] for name in (*COLUMNS, *ADDED)}
    return found | {"c14": [str(each) for each in found["c14"]]}
