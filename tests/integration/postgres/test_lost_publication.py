"""A publication that was dropped: what was written without it is not decoded, which is a gap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.integration.postgres.conftest import Capture
from tests.support.postgres import PostgresServer

from tidelog.codecs.postgres.pgoutput import lsn_text
from tidelog.errors import GapError

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]


@pytest.fixture(params=["postgres16", "postgres18"])
def dsn(request: pytest.FixtureRequest) -> Iterator[str]:
    server: PostgresServer = request.getfixturevalue(request.param)
    yield server.create_database("lost_publication")
    server.drop_database("lost_publication")


@pytest.fixture
def sql(dsn: str) -> Iterator[Connection]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (0)")
        yield connection


@pytest.fixture
def capture(dsn: str) -> Iterator[Capture]:
    made = Capture(dsn)
    yield made
    made.reader.close()


def made_anew(sql: Connection) -> None:
    sql.execute("INSERT INTO t VALUES (1)")
    sql.execute("DROP PUBLICATION tidelog")
    sql.execute("INSERT INTO t VALUES (2)")
    sql.execute("CREATE PUBLICATION tidelog FOR TABLE t")
    sql.execute("INSERT INTO t VALUES (3)")


def test_dropped_while_capture_is_down(capture: Capture, sql: Connection) -> None:
    resume = capture.start()
    capture.reader.close()
    sql.execute("DROP PUBLICATION tidelog")
    sql.execute("INSERT INTO t VALUES (1)")
    where = lsn_text(resume.acknowledge)
    for _ in range(2):
        with pytest.raises(GapError, match=f"'tidelog' does not exist.*up to {where}.*new dump"):
            capture.start(resume)


def test_recreated_while_capture_is_down(capture: Capture, sql: Connection) -> None:
    """PostgreSQL 18 leaves out what was written in between, without an error."""
    resume = capture.start()
    capture.reader.close()
    made_anew(sql)
    where = lsn_text(resume.acknowledge)
    with pytest.raises(GapError, match=f"'tidelog' was dropped and recreated.*up to {where}"):
        capture.start(resume)


def test_recreated_while_the_log_is_read(capture: Capture, sql: Connection) -> None:
    """PostgreSQL up to 17 says so in the stream; the look at the catalogue does on each version."""
    capture.start()
    made_anew(sql)
    with pytest.raises(GapError, match="'tidelog' was dropped and recreated"):
        capture.reader.check_publications(sql)
    if sql.info.server_version < 180_000:
        with pytest.raises(GapError, match=r"tidelog.*dropped and recreated.*new dump"):
            capture.until(lambda: False)


def test_another_publication_is_configured(dsn: str, capture: Capture, sql: Connection) -> None:
    resume = capture.start()
    capture.reader.close()
    other = Capture(dsn, options={"publication": "other"})
    other.reader._owner = capture.reader._owner  # as the state store does
    with pytest.raises(GapError, match=r"'other' does not exist"):
        other.start(resume)
    sql.execute("CREATE PUBLICATION other FOR TABLE t")
    with pytest.raises(GapError, match=r"'other' is not one .*tidelog.*source\.publication"):
        other.start(resume)
    other.reader.close()


def test_begun_over_it_continues(capture: Capture, sql: Connection) -> None:
    resume = capture.start()
    capture.reader.close()
    made_anew(sql)
    sql.execute("DROP PUBLICATION tidelog_inserts")
    with pytest.raises(GapError):
        capture.start(resume)
    begin = capture.reader.start_over(resume)
    assert begin.acknowledge > resume.acknowledge
    capture.start(begin)
    sql.execute("INSERT INTO t VALUES (4)")
    assert [row.new for row in capture.catch_up(sql)] == [{"id": "4"}]
