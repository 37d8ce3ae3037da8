"""Readers of Iceberg tables that are not ours: PyIceberg, and DuckDB with its extension."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

Row = dict[str, Any]


def by_pyiceberg(table: Any, order: str = "id") -> list[Row]:
    """The rows of a table that PyIceberg has loaded, without the version."""
    return _rows(table.scan().to_arrow(), order)


def by_duckdb(metadata: str, order: str = "id") -> list[Row]:
    """The rows of the table with this metadata file, without the version."""
    return _rows(query(metadata), order)


def query(metadata: str, what: str = "*", where: str = "true") -> pa.Table:
    """What is asked of the rows of the table with this metadata file, as DuckDB reads them."""
    with _duckdb().cursor() as connection:
        found = connection.execute(
            f"SELECT {what} FROM iceberg_scan(?) WHERE {where}",
            [metadata],
        )
        return found.to_arrow_table()


def _rows(table: pa.Table, order: str) -> list[Row]:
    own = [name for name in ("_version",) if name in table.schema.names]
    return list(table.drop_columns(own).sort_by(order).to_pylist())


@lru_cache(maxsize=1)
def _duckdb() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        connection.execute(f"LOAD '{_extension(name)}'")
    return connection


def _extension(name: str) -> Path:
    """As the package ``duckdb-extension-…`` brings it: nothing is downloaded."""
    found = importlib.util.find_spec(f"duckdb_extension_{name}")
    assert found is not None
    assert found.origin is not None
    (extension,) = Path(found.origin).parent.rglob(f"{name}.duckdb_extension*")
    return extension
