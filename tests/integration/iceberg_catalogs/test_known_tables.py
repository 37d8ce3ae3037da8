"""What an Iceberg output sees of a table that it knows, once others changed it. Without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.outputs.lake.iceberg import table as tables
from tidelog.outputs.lake.iceberg.catalog import IcebergCatalog
from tidelog.outputs.lake.iceberg.table import IcebergLayout, IcebergTable
from tidelog.outputs.lake.java_libraries import hadoop_settings, start_java
from tidelog.spark.sessions.jars import iceberg_jars

pytestmark = [pytest.mark.spark, pytest.mark.integration]

PARTS = ("public", "t")
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "a", "required": False, "type": "int"}]}


def test_commits_and_other_tables_in_its_place_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = {"type": "hadoop", "warehouse": str(tmp_path)}
    gateway, process = start_java({}, iceberg_jars())
    try:
        hadoop = hadoop_settings(gateway, {})
        ours, theirs = (IcebergCatalog(gateway, hadoop, o, properties) for o in ("a", "b"))
        known = IcebergTable(ours, PARTS, "t", IcebergLayout(), lambda _: [], "tidelog-a-")
        assert not known.exists()

        def replace_table(value: str) -> None:
            theirs._catalog.dropTable(theirs._identifier(PARTS))
            theirs.create(PARTS, SCHEMA, {"spec-id": 0, "fields": []}, {"value": value})

        def value() -> str | None:
            assert known.exists()
            return known.property("value")

        replace_table("first")
        assert value() == "first"
        found = theirs.load(PARTS)
        assert found is not None
        assert found.commit(properties={"value": "committed"})
        assert value() == "committed"
        replace_table("of fewer versions")
        assert value() == "of fewer versions"
        monkeypatch.setattr(tables, "RELOAD_S", 0.0)
        replace_table("of as many versions")
        assert value() == "of as many versions"
        theirs._catalog.dropTable(theirs._identifier(PARTS))
        assert not known.exists()
    finally:
        gateway.close()
        process.kill()
        process.wait()
