"""The signal table: its rows come as signals, in their place in the log, and are never records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.integration.postgres.conftest import Capture

from tidelog.errors import PreflightError
from tidelog.ports import SignalSeen
from tidelog.sources.postgres.catalogue.tables import PostgresCatalogue

pytestmark = pytest.mark.integration
SIGNALS = {"signal_table": "public.debezium_signal"}
CREATE = (
    "CREATE TABLE debezium_signal (id varchar(42) PRIMARY KEY, type varchar(32) NOT NULL, "
    "data varchar(2048))"
)


def signals(capture: Capture) -> list[SignalSeen]:
    return [event for event in capture.events if isinstance(event, SignalSeen)]


@pytest.mark.parametrize("strategy", ["table", "message"])
def test_inserted_rows_are_signals_in_their_place(
    make_capture: Callable[..., Capture], sql: psycopg.Connection[Any], database: str, strategy: str
) -> None:
    sql.execute(CREATE)
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    sql.execute("INSERT INTO debezium_signal VALUES ('before', 'log', NULL)")
    capture = make_capture(strategy=strategy, **SIGNALS)
    capture.start()
    with sql.transaction():
        sql.execute("INSERT INTO t VALUES (1)")
        sql.execute(
            "INSERT INTO debezium_signal (data, type, id) VALUES ('{\"a\": 1}', 'log', 'é-1')"
        )
        sql.execute("INSERT INTO t VALUES (2)")
    sql.execute("UPDATE debezium_signal SET type = 'pause-snapshot' WHERE id = 'é-1'")
    sql.execute("DELETE FROM debezium_signal")
    sql.execute("TRUNCATE debezium_signal")
    sql.execute("ALTER TABLE debezium_signal ADD note text")
    sql.execute("INSERT INTO debezium_signal VALUES ('2', 'stop-snapshot', NULL, 'x')")
    rows = capture.catch_up(sql)
    assert [row.table for row in rows] == ["public.t", "public.t"]
    first, second = signals(capture)
    assert (first.signal_id, first.type, first.data) == ("é-1", "log", '{"a": 1}')
    assert (first.position, first.ordinal) == (rows[0].position, rows[0].ordinal + 1)
    assert (second.signal_id, second.type, second.data) == ("2", "stop-snapshot", None)
    catalogue = PostgresCatalogue(database, metadata_tables=["public.debezium_signal"])
    assert [str(table) for table in catalogue.tables(["public.*"])] == ["public.t"]
    catalogue.close()
    assert capture.publish() == []


def test_signal_left_while_nothing_read_is_seen_once_at_start(
    make_capture: Callable[..., Capture], sql: psycopg.Connection[Any]
) -> None:
    sql.execute(CREATE)
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture = make_capture(**SIGNALS)
    capture.start()
    sql.execute("INSERT INTO t VALUES (1)")
    capture.catch_up(sql)
    capture.reader.close()
    sql.execute("INSERT INTO debezium_signal VALUES ('down', 'log', '')")
    again = make_capture(**SIGNALS)
    again.start(capture.resumes[-1])
    again.catch_up(sql)
    assert [signal.signal_id for signal in signals(again)] == ["down"]
    last = again.resumes[-1]
    again.reader.close()
    third = make_capture(**SIGNALS)
    third.start(last)
    sql.execute("INSERT INTO t VALUES (2)")
    third.catch_up(sql)
    assert signals(third) == []


def test_signal_table_without_a_key_is_read_and_not_written_to(
    make_capture: Callable[..., Capture], sql: psycopg.Connection[Any]
) -> None:
    """It is published for inserts only: else the application could not delete from it."""
    sql.execute("CREATE TABLE debezium_signal (id text, type text, data text)")
    capture = make_capture(**SIGNALS)
    capture.start()
    sql.execute("INSERT INTO debezium_signal VALUES ('1', 'log', '{}')")
    sql.execute("DELETE FROM debezium_signal")
    capture.catch_up(sql)
    assert [signal.signal_id for signal in signals(capture)] == ["1"]


def test_missing_signal_table_is_reported_with_its_sql(
    make_capture: Callable[..., Capture], sql: psycopg.Connection[Any]
) -> None:
    capture = make_capture(**SIGNALS)
    with pytest.raises(PreflightError) as refused:
        capture.start()
    sql.execute(str(refused.value).split(": ", 1)[1].encode())
    capture.start()


def test_signal_table_that_loses_a_column_ends_nothing(
    make_capture: Callable[..., Capture], sql: psycopg.Connection[Any], caplog: Any
) -> None:
    """Its row would stand in the log at every later start too. What is missing reads as NULL."""
    sql.execute(CREATE)
    capture = make_capture(**SIGNALS)
    capture.start()
    sql.execute("ALTER TABLE debezium_signal DROP data")
    sql.execute("INSERT INTO debezium_signal VALUES ('1', 'pause-snapshot')")
    capture.catch_up(sql)
    [signal] = signals(capture)
    assert (signal.signal_id, signal.type, signal.data) == ("1", "pause-snapshot", None)
    assert "public.debezium_signal has no column data" in caplog.text
