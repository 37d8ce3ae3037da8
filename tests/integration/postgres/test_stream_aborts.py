"""Aborts that PostgreSQL 18 announces to a reader that did not ask for streaming."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import psycopg
import pytest
from tests.integration.postgres.conftest import Capture
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.integration
NAME = "stream_aborts"


@pytest.fixture
def database18(postgres18: PostgresServer) -> Iterator[str]:
    dsn = postgres18.create_database(NAME)
    with psycopg.connect(dsn, autocommit=True) as sql:
        # Also the walsender's: the server spills, and so looks, as early as it can.
        sql.execute(f"ALTER DATABASE {NAME} SET logical_decoding_work_mem = '64kB'")
    yield dsn
    postgres18.drop_database(NAME)


def test_capture_continues_where_the_server_announces_an_abort(
    database18: str, make_capture: Callable[..., Capture]
) -> None:
    """Why the server does is said in tests/unit/codecs/test_pgoutput_server.py.

    The reader is stopped meanwhile, so that the transaction is aborted before it is decoded.
    """
    capture = make_capture(dsn=database18)
    with psycopg.connect(database18, autocommit=True) as sql:
        sql.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        sql.execute("SELECT pg_create_logical_replication_slot('witness', 'pgoutput')")
        capture.start()
        sql.execute("INSERT INTO t VALUES (-1, 'before')")
        capture.catch_up(sql)
        resume = capture.resumes[-1]
        capture.reader.close()
        with sql.transaction(force_rollback=True):
            with sql.transaction():  # a savepoint, released
                sql.execute("INSERT INTO t VALUES (-2, 'sub')")
            sql.execute("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 1000) i")
        sql.execute("INSERT INTO t VALUES (-3, 'after')")
        assert b"A" in tags_of_witness(sql), (
            "the server announced no abort: this test tests nothing"
        )

        assert capture.start(resume) == resume
        rows = capture.catch_up(sql)
    assert [(row.new, row.ordinal) for row in rows] == [
        ({"id": "-1", "v": "before"}, 0),
        ({"id": "-3", "v": "after"}, 0),
    ]
    assert rows[0].xid < rows[1].xid < rows[0].xid + 100
    assert all(a.acknowledge <= b.acknowledge for a, b in pairwise(capture.resumes))


def tags_of_witness(sql: psycopg.Connection[tuple[object, ...]]) -> set[bytes]:
    """What another slot of the same database is sent, by the first byte of its messages."""
    with psycopg.connect(sql.info.dsn, autocommit=True) as fresh:
        rows = fresh.execute(
            "SELECT DISTINCT substr(data, 1, 1) FROM pg_logical_slot_peek_binary_changes('witness',"
            " NULL, NULL, 'proto_version', '1', 'publication_names',"
            " (SELECT string_agg(pubname, ',') FROM pg_publication))"
        ).fetchall()
    return {bytes(row[0]) for row in rows}  # type: ignore[call-overload]
