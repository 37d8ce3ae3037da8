"""Rows that come into a filter, or go out, by records that lack columns: copies have them whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from pyspark.errors import AnalysisException
from tests.behaviours.outputs.database_tables import server as database_server
from tests.integration.event_messages import capturing
from tests.support.engines import until

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.thorough]

LONG = "l" * 5000
BEFORE = ((1, 1, "x"), (2, 9, "x"), (3, 9, "x"), (4, 1, "z"), (5, 9, "z"), (6, 7, "x"))
CHANGES = (
    "UPDATE t SET v = 8 WHERE id = 1",  # comes in
    "UPDATE t SET v = 2 WHERE id = 2",  # goes out
    "UPDATE t SET v = 8 WHERE id = 3",  # stays in
    "UPDATE t SET v = 8 WHERE id = 4",  # stays out by a column that has not changed
    "UPDATE t SET region = 'x' WHERE id = 5",  # comes in by the other column
    "UPDATE t SET note = 'n' WHERE id = 6",  # the condition does not read it
    "UPDATE t SET v = 3 WHERE id = 1",
    "UPDATE t SET v = 8 WHERE id = 1",
)
PASSING = [(1, 8, None, 5000), (3, 8, None, 5000), (5, 9, None, 5000), (6, 7, "n", 5000)]
ALL = ("delta", "postgres", "mysql")
SOURCES = [
    pytest.param("postgres", "", ["postgres"], id="postgres"),
    pytest.param("mysql", "MINIMAL", ["mysql"], id="mysql-minimal"),
    pytest.param("postgres", "", ALL, id="postgres-to-all"),
    pytest.param("mysql", "NOBLOB", ALL, id="mysql-noblob"),
    pytest.param("mariadb", "MINIMAL", ALL, id="mariadb-minimal"),
    pytest.param("mariadb", "NOBLOB", ALL, id="mariadb-noblob"),
]
STEPS = """
  steps:
  - {rename: {id: key, v: n}}
  - {filter: "n > 5 AND region = 'x'"}
  - {compute: {size: length(doc)}}
  - {drop: [region, doc]}
  - {route: copy.t}
"""


def filled(kind: str) -> tuple[str, str, Any]:
    """The source's URL, the table's name, and its server."""
    place = database_server(kind)
    url = place.create_database("filtered")
    text = "text" if kind == "postgres" else "longtext"
    columns = f"id int PRIMARY KEY, v int, region varchar(9), note varchar(9), doc {text}"
    place.execute(f"CREATE TABLE t ({columns})", "filtered")
    if kind == "postgres":
        place.execute("ALTER TABLE t ALTER doc SET STORAGE EXTERNAL", "filtered")
    rows = ", ".join(f"({key}, {v}, '{region}', NULL, '{LONG}')" for key, v, region in BEFORE)
    place.execute(f"INSERT INTO t VALUES {rows}", "filtered")
    return url, "public.t" if kind == "postgres" else "filtered.t", place


def change(place: Any, image: str) -> None:
    if not image:
        for statement in CHANGES:
            place.execute(statement, "filtered")
        return
    with place.connect("filtered") as session, session.cursor() as cursor:
        cursor.execute(f"SET SESSION binlog_row_image = {image}")
        for statement in CHANGES:
            cursor.execute(statement)


class Copies:
    """Where the outputs of the given kinds write."""

    def __init__(self, spark: Any, path: Path, kinds: Sequence[str]) -> None:
        self._spark = spark
        self._kinds = kinds
        self._lake = f"{path}/lake"
        self._servers = {kind: database_server(kind) for kind in kinds if kind != "delta"}
        places = {"delta": f"path: '{self._lake}'"}
        if "postgres" in kinds:
            url = self._servers["postgres"].create_database("copy_of_filtered")
            places["postgres"] = f"url: '{url}'"
        if "mysql" in kinds:
            places["mysql"] = f"url: '{self._servers['mysql'].dsn()}'"
        listed = "".join(f"- kind: {kind}\n  {places[kind]}{STEPS}" for kind in kinds)
        self.section = f"outputs:\n{listed}pipeline: {{checkpoint: '{path}/checkpoint'}}\n"

    def rows(self) -> list[list[tuple[Any, ...]]]:
        return [[tuple(row) for row in self._rows(kind)] for kind in self._kinds]

    def keys(self) -> list[list[int]]:
        """None before the tables are there."""
        try:
            return [[row[0] for row in rows] for rows in self.rows()]
        except (psycopg.Error, pymysql.MySQLError, AnalysisException):
            return []

    def _rows(self, kind: str) -> Any:
        if kind == "delta":
            frame = self._spark.read.format("delta").load(f"{self._lake}/copy/t")
            return frame.select("key", "n", "note", "size").orderBy("key").collect()
        name, *database = ("`key`",) if kind == "mysql" else ("key", "copy_of_filtered")
        read = f"SELECT {name}, n, note, size FROM copy.t ORDER BY 1"
        return self._servers[kind].execute(read, *database)

    def drop(self) -> None:
        for kind, server in self._servers.items():
            server.drop_database("copy" if kind == "mysql" else "copy_of_filtered")


@pytest.mark.parametrize(("kind", "image", "outputs"), SOURCES)
def test_rows_that_cross_a_filter_by_records_that_lack_columns(
    spark: Any, tmp_path: Path, kind: str, image: str, outputs: Sequence[str]
) -> None:
    url, table, place = filled(kind)
    copies = Copies(spark, tmp_path, outputs)
    try:
        with capturing(tmp_path, kind, url, table, copies.section):
            until(lambda: copies.keys() == [[2, 3, 6]] * len(outputs), "the dump", 60)
            change(place, image)
            until(lambda: copies.rows() == [PASSING] * len(outputs), "the rows as they are", 60)
    finally:
        place.drop_database("filtered")
        copies.drop()
