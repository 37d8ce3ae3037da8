"""DuckDB and delta-rs read what is written, and skip no file that has rows for a query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import deltalake
import duckdb
import duckdb_extension_delta
import pyarrow as pa
import pytest
from tests.support.skipped_files import conditions, write_tables

Query = Callable[[str], list[int]]


def duckdb_query(root: Path) -> Query:
    extension = f"extensions/v{duckdb.__version__}/delta.duckdb_extension"
    connection = duckdb.connect()
    connection.execute(f"LOAD '{Path(duckdb_extension_delta.__file__).parent / extension}'")
    connection.execute(f"CREATE VIEW t AS SELECT * FROM delta_scan('{root}')")

    def query(where: str) -> list[int]:
        where = where.replace("TIMESTAMP_NTZ", "TIMESTAMP").replace(
            "AS TIMESTAMP)", "AS TIMESTAMPTZ)"
        )
        return [row[0] for row in connection.execute(f"SELECT id FROM t WHERE {where}").fetchall()]

    return query


def delta_rs_query(root: Path) -> Query:
    builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(root)))

    def query(where: str) -> list[int]:
        where = where.replace("_NTZ", "")
        found = pa.table(builder.execute(f"SELECT id FROM t WHERE {where}"))
        return [int(each) for each in found["id"].to_pylist()]

    return query


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    return write_tables(tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module", params=[duckdb_query, delta_rs_query])
def queries(request: pytest.FixtureRequest, tables: tuple[Path, Path, Path]) -> list[Query]:
    return [request.param(table) for table in tables]


@pytest.mark.parametrize(("where", "ids"), conditions())
def test_no_file_with_rows_for_a_query_is_skipped(
    queries: list[Query], where: str, ids: list[int]
) -> None:
    kept, none, parted = (sorted(query(where)) for query in queries)
    assert kept == none == ids
    assert parted == ([] if ids == [0] else ids)  # its empty text is null in a partition
