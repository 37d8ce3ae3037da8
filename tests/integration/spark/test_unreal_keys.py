"""Dates that no calendar has, in keys of MySQL and MariaDB: each row stays one row everywhere."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.event_messages import wait_for
from tests.support.mysql import MySqlFamilyServer
from tests.support.postgres import PostgresServer

import tidelog
from tidelog import app
from tidelog.app.base.outputs import make_outputs
from tidelog.config import Config, load_config
from tidelog.errors import OutputError
from tidelog.eventlog.reader import EventLog
from tidelog.spark.datasource.segment_rows import batch_of

logger = logging.getLogger(__name__)
pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.thorough]

DATES = (
    "0000-00-00", "0000-00-31", "0000-01-00", "0000-01-01", "0000-02-29", "0000-03-01",
    "0001-01-01", "0001-00-00", "1970-00-31", "2023-02-29", "2024-00-10", "2024-02-00",
    "2024-02-29", "2024-02-30", "2024-02-31", "2024-04-31", "2024-06-31", "2024-09-31",
    "2024-11-31", "2024-12-00", "9999-12-31", "9999-12-00", "9999-00-31", "9999-11-31",
)  # fmt: skip
EVERYWHERE = "SELECT CAST(d AS CHAR), CAST(at AS CHAR), CAST(ts AS CHAR), n FROM"


def test_no_two_keys_become_one(
    spark: Any,
    mysql_family: MySqlFamilyServer,
    mysql_family_database: str,
    postgres16: PostgresServer,
    tmp_path: Path,
) -> None:
    """Half of the rows are dumped, half are logged; then each is changed, and some go."""
    name, copy = mysql_family_database, f"{mysql_family_database}_copy"
    kind = mysql_family.dsn().split(":")[0]
    far = postgres16.create_database(f"{name}_unreal")
    with mysql_family.connect(name) as session, session.cursor() as sql:
        _create(sql)
        _insert(sql, DATES[::2])
        sql.execute(f"CREATE DATABASE {copy}")
        file = tmp_path / "tidelog.yaml"
        file.write_text(
            f"source: {{kind: {kind}, url: '{mysql_family.dsn(name)}', tables: [{name}.t]}}\n"
            f"log: {{path: {tmp_path}/log}}\n"
            f"state: {{url: 'sqlite:///{tmp_path}/state.db'}}\n"
            f"outputs: [{{kind: delta, path: {tmp_path}/lake}}, "
            f"{{kind: mysql, url: '{mysql_family.dsn(copy)}'}}, "
            f"{{kind: postgres, url: '{far}', schema: copies}}]\n"
        )
        config = load_config(file)
        with tidelog.CaptureGroup([config], pipelines=False):
            wait_for(config, len(DATES))
            _insert(sql, DATES[1::2])
            sql.execute("UPDATE t SET n = n + 1")
            sql.execute("DELETE FROM t WHERE DAYOFMONTH(d) = 0 AND MONTH(d) = 12")
            sql.execute("UPDATE t SET d = '2024-02-00', at = NOW(), n = 7 WHERE d = '2024-04-31'")
            wait_for(config, 4 * len(DATES) + 4 + 2)
            with writing(config, spark):
                sql.execute(f"{EVERYWHERE} {name}.t ORDER BY 1, 2, 3")
                theirs = [tuple(map(str, row)) for row in sql.fetchall()]
                report = app.verify(config).to_dict()
                assert [(t["equal"], t["rows"]) for t in report["tables"]] == [
                    (True, len(theirs))
                ] * 3, report
                sql.execute(f"{EVERYWHERE} {copy}.t ORDER BY 1, 2, 3")
                ours = [(d, at[:23], ts[:22], str(n)) for d, at, ts, n in sql.fetchall()]
                assert ours == theirs
                sql.execute(f"UPDATE {copy}.t SET n = 99 WHERE d IN ('0000-00-00', '2024-02-31')")
                report = app.verify(config).to_dict()
                assert [t["different"] for t in report["tables"]] == [0, 4, 0]
                assert {key[0] for key in report["tables"][1]["keys"]} == {
                    str(spark.sql(f"SELECT CAST(DATE'1970-01-01' + {n} AS STRING)").first()[0])
                    for n in (-1_230_000, -1_230_000 + 51 * 2024 + 46)
                }
    postgres16.drop_database(f"{name}_unreal")


def _create(sql: Any) -> None:
    sql.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'")
    sql.execute(
        "CREATE TABLE t (d date, at datetime(3), ts timestamp(2) NOT NULL DEFAULT 0, n int, "
        "loose date, PRIMARY KEY (d, at, ts))"
    )


def _insert(sql: Any, dates: tuple[str, ...]) -> None:
    for n, date in enumerate(dates):
        for stamp in ("0000-00-00 00:00:00", "2024-01-01 00:00:00.25"):
            sql.execute(
                "INSERT INTO t VALUES (%s, %s, %s, %s, %s)",
                (date, f"{date} 01:02:03.456", stamp, n, date),
            )


@contextmanager
def writing(config: Config, spark: Any) -> Iterator[None]:
    """The outputs are kept up to date."""
    stop = threading.Event()
    log = EventLog.open(str(config.log.path))
    outputs = make_outputs(config, spark)

    def write() -> None:
        done = log.head_offset
        for output in outputs:
            output.prepare(log.generation)
        while not stop.is_set():
            end = log.latest_offset()
            try:
                for output in outputs if end > done else ():
                    output.write(batch_of(log, done, end))
                done = end
            except OutputError:  # Spark's Python worker did not start in time: once more
                logger.exception("writing")
            stop.wait(0.2)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(120)
        for output in outputs:
            output.close()
