"""What others put into the log under our names: it is believed only if it is ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.integration.postgres.conftest import Capture

from tidelog.codecs.postgres.pgoutput import MAX_MESSAGE_BYTES
from tidelog.model.records import LogBatch
from tidelog.ports import MAX_SIGNAL_BYTES, SignalSeen
from tidelog.sources.postgres.stream.log_reader import MAX_PREFIX_CHARACTERS

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]
SIGNALS = {"signal_table": "public.debezium_signal"}


@pytest.mark.parametrize("strategy", ["table", "message"])
@pytest.mark.parametrize("transactional", ["true", "false"])
def test_messages_under_the_name_of_marks_end_nothing(
    make_capture: Callable[..., Capture], sql: Connection, strategy: str, transactional: str
) -> None:
    """Any role may write them; a watermark that nobody waits for says nothing."""
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture = make_capture(strategy=strategy)
    capture.start()
    for content in (rb"'\xff'", rb"'\x00'", b"''", b"repeat('a', 100000)::bytea", b"'mark'"):
        sql.execute(
            b"SELECT pg_logical_emit_message(%s, 'tidelog.watermark', %s::bytea)"
            % (transactional.encode(), content)
        )
    sql.execute("INSERT INTO t VALUES (1)")
    capture.catch_up(sql)
    assert [row.new for row in capture.rows] == [{"id": "1"}]
    assert capture.message_documents == []
    believed = strategy == "message" and transactional == "true"
    assert capture.watermarks == (["\0", "", "mark"] if believed else [])


def test_rows_of_a_watermark_table_say_nothing_where_messages_are_the_marks(
    make_capture: Callable[..., Capture], sql: Connection
) -> None:
    sql.execute("CREATE SCHEMA tidelog; CREATE TABLE tidelog.watermark (other int PRIMARY KEY)")
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    sql.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    sql.execute("CREATE PUBLICATION everything_inserts")
    capture = make_capture(strategy="message", publication="everything")
    capture.start()
    sql.execute("INSERT INTO tidelog.watermark VALUES (1)")
    sql.execute("INSERT INTO t VALUES (1)")
    capture.catch_up(sql)
    assert capture.watermarks == []
    assert [row.new for row in capture.rows] == [{"id": "1"}]


def test_a_message_too_large_is_recorded_without_its_content(
    capture: Capture, sql: Connection
) -> None:
    capture.start()
    sql.execute(
        "SELECT pg_logical_emit_message(true, 'app', repeat('x', %s))", (MAX_MESSAGE_BYTES,)
    )
    sql.execute(
        "SELECT pg_logical_emit_message(false, repeat('p', %s), 'short')",
        (MAX_PREFIX_CHARACTERS + 1,),
    )
    sql.execute("SELECT pg_logical_emit_message(true, 'app', repeat('y', %s))", (1000,))
    capture.catch_up(sql)
    large, long, small = capture.message_documents
    assert (large["prefix"], large["content"], large["omitted"]) == ("app", "", True)
    assert long["prefix"] == "p" * MAX_PREFIX_CHARACTERS
    assert "omitted" not in small


def test_a_flood_of_messages_is_taken_many_at_a_time(
    make_capture: Callable[..., Capture], sql: Connection
) -> None:
    """In order, and each once, also when a reader goes on in their midst."""
    capture = make_capture()
    begin = capture.start()
    for transactional in ("true", "false"):
        sql.execute(
            f"SELECT pg_logical_emit_message({transactional}, CASE WHEN i % 100 = 0 THEN "
            "'tidelog.watermark' ELSE 'app' END, i::text) FROM generate_series(1, 20000) i".encode()
        )
    capture.catch_up(sql)
    expected = [str(i).encode() for i in range(1, 20001) if i % 100] * 2
    assert [content for _, content, _ in capture.messages] == expected
    batches = [event for event in capture.events if isinstance(event, LogBatch)]
    assert len(batches) < len(expected) / 4
    capture.reader.close()
    places = [batch.resume for batch in batches]
    assert places == sorted(places, key=lambda resume: (resume.position, resume.ordinal))
    middle = len(batches) // 2
    again = make_capture()
    assert places[middle].acknowledge >= begin.acknowledge
    again.start(places[middle])
    again.catch_up(sql)
    before = sum(len(batch) for batch in batches[: middle + 1])
    assert [content for _, content, _ in again.messages] == expected[before:]


def test_a_watermark_table_of_another_shape_ends_nothing(
    make_capture: Callable[..., Capture], sql: Connection
) -> None:
    """What stands in the log once is read again at every start: it must not end each of them."""
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture = make_capture()
    capture.start()
    sql.execute("ALTER TABLE tidelog.watermark RENAME mark TO other")
    sql.execute("INSERT INTO tidelog.watermark VALUES (1, 'lost')")
    sql.execute("TRUNCATE tidelog.watermark")
    sql.execute("ALTER TABLE tidelog.watermark ALTER other TYPE bytea USING '\\xff'")
    sql.execute("ALTER TABLE tidelog.watermark RENAME other TO mark")
    sql.execute("INSERT INTO tidelog.watermark VALUES (1, '\\xff')")
    sql.execute("DELETE FROM tidelog.watermark")
    sql.execute("INSERT INTO t VALUES (1)")
    capture.catch_up(sql)
    assert [row.new for row in capture.rows] == [{"id": "1"}]
    assert "lost" not in capture.watermarks


def test_of_a_signal_too_large_comes_enough_to_refuse_it(
    make_capture: Callable[..., Capture], sql: Connection
) -> None:
    sql.execute("CREATE TABLE debezium_signal (id text, type text, data text, more jsonb)")
    capture = make_capture(**SIGNALS)
    capture.start()
    sql.execute("INSERT INTO debezium_signal VALUES (repeat('i', 2000000), 'log', '{}', '{}')")
    sql.execute("INSERT INTO debezium_signal VALUES (NULL, NULL, repeat('d', 2000000), NULL)")
    sql.execute("INSERT INTO debezium_signal VALUES (NULL, NULL, NULL, NULL)")
    capture.catch_up(sql)
    found = [event for event in capture.events if isinstance(event, SignalSeen)]
    long_id, long_data, empty = found
    assert len(long_id.signal_id) == len(long_data.data or "") == MAX_SIGNAL_BYTES + 1
    assert (empty.signal_id, empty.type, empty.data) == ("", "", None)
