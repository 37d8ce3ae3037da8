"""Iceberg tables whose files are damaged or gone: each is left out alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.iceberg_catalogs.conftest import Delivered
from tests.support.iceberg_readers import by_duckdb

from tidelog.state.sqlite import SqliteState

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.thorough]

CATALOG = {"type": "hadoop"}
COLUMNS = {"id": "int64", "v": "text"}


def test_a_table_that_lost_a_file_is_left_out_alone(delivered: Delivered, tmp_path: Path) -> None:
    built = delivered.built
    names = ["lost", "cut", "rows", "well"]
    tables = [
        built.table(f"public.{name}", COLUMNS, relation_id=number)
        for number, name in enumerate(names, 1)
    ]
    state = f"sqlite:///{tmp_path / 'state.db'}"

    def change(*keys: str) -> dict[str, str]:
        for table in tables:
            for key in keys:
                built.insert(table, key, "a")
        built.flush()
        return delivered.run(CATALOG, state=SqliteState(state))

    assert change("1", "2") == {}
    warehouse = tmp_path / "warehouse" / "public"
    manifests = [
        next(each for each in (warehouse / name / "metadata").glob("*.avro") if chosen(each))
        for name, chosen in (("lost", is_manifest), ("cut", is_list_of_manifests))
    ]
    manifests[0].unlink()
    manifests[1].write_bytes(b"")
    (rows,) = (warehouse / "rows" / "data").glob("*.parquet")
    rows.write_bytes(rows.read_bytes()[:-9])
    refused = change("1", "3")
    assert refused.keys() == {"public.lost", "public.cut", "public.rows"}
    for name, file in zip(names, [*manifests, rows], strict=False):
        assert file.name in refused[f"public.{name}"]
        assert "move " in refused[f"public.{name}"]
    newest = max((warehouse / "well" / "metadata").glob("v*.metadata.json"), key=version)
    assert [row["id"] for row in by_duckdb(str(newest))] == [1, 2, 3]


def is_list_of_manifests(file: Path) -> bool:
    return file.name.startswith("snap-")


def is_manifest(file: Path) -> bool:
    return not is_list_of_manifests(file)


def version(file: Path) -> int:
    return int(file.name.split(".")[0].removeprefix("v"))
