"""Readers of Delta tables that are not ours: Spark with Delta, delta-rs, DuckDB."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

_DUCKDB_VERSION = f"v{duckdb.__version__}"


@lru_cache(maxsize=1)
def duckdb_extension() -> Path:
    """As the package ``duckdb-extension-delta`` brings it: nothing is downloaded."""
    found = importlib.util.find_spec("duckdb_extension_delta")
    assert found is not None
    assert found.origin is not None
    (extension,) = Path(found.origin).parent.rglob("delta.duckdb_extension*")
    return extension


def by_duckdb(place: str, order: str = "id", what: str = "*", where: str = "true") -> pa.Table:
    """All rows, as DuckDB reads them; or what is asked of them."""
    with _duckdb().cursor() as connection:
        rows = connection.execute(
            f"SELECT {what} FROM delta_scan('{place}') WHERE {where} ORDER BY {order}"
        )
        return rows.to_arrow_table()


@lru_cache(maxsize=1)
def _duckdb() -> duckdb.DuckDBPyConnection:
    """To load the extension takes a third of a second of CPU."""
    connection = duckdb.connect()
    connection.execute(f"LOAD '{duckdb_extension()}'")
    return connection


def by_delta_rs(place: str, order: str = "id") -> pa.Table:
    """All rows, as delta-rs reads them by its own engine: that by pyarrow loses rows of files
    without statistics.
    """
    from deltalake import QueryBuilder

    builder = QueryBuilder().register("t", DeltaTable(place))
    return pa.table(builder.execute(f"SELECT * FROM t ORDER BY {order}").read_all())


def by_spark(spark: Any, place: str, order: str = "id") -> pa.Table:
    """All rows, as Spark with Delta reads them."""
    return spark.sql(f"SELECT * FROM delta.`{place}` ORDER BY {order}").toArrow()


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Rows to compare: readers differ in the types of Arrow that they choose."""
    return [dict(sorted(row.items())) for row in table.to_pylist()]
