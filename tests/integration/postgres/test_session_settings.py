"""Defaults of a role, and transactions of others, that must not get in capture's way."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.integration.postgres.conftest import PATIENCE_S, Capture
from tests.support.postgres import PostgresServer

from tidelog.errors import OutputError, OutputRefusedError, SourceError
from tidelog.outputs.database.postgres import PostgresSession
from tidelog.sources.postgres.connect import connect, connect_replication
from tidelog.sources.postgres.stream import slots, standby

pytestmark = pytest.mark.integration

TIMEOUTS = (
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "transaction_timeout",  # PostgreSQL 17
)


@pytest.fixture(scope="module", params=[16, 18])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with PostgresServer(request.param, {"max_prepared_transactions": 5}) as server:
        server.execute("CREATE ROLE hasty SUPERUSER LOGIN REPLICATION")
        for name in timeouts(server):
            server.execute(f"ALTER ROLE hasty SET {name} = 300")
        server.execute("ALTER ROLE hasty SET default_transaction_read_only = on")
        server.execute("ALTER ROLE hasty SET default_transaction_isolation = 'serializable'")
        yield server


def timeouts(server: PostgresServer) -> list[str]:
    return [name for name in TIMEOUTS if server.version >= 17 or name != "transaction_timeout"]


def test_every_session_sets_its_own_timeouts(server: PostgresServer) -> None:
    """The walsender's too: PostgreSQL 18 decodes a transaction within one of its own."""
    dsn = server.dsn(user="hasty")
    pgconn = connect_replication(dsn, purpose="test")
    output = PostgresSession(dsn, "test")
    with connect(dsn, purpose="test") as sql, psycopg.connect(dsn) as bare:
        for name in timeouts(server):
            show = f"SHOW {name}".encode()
            assert bare.execute(show).fetchone() == ("300ms",), "the default is a trap"
            # Half of deadlock_timeout: ours gives way, whatever the role's.
            ours = "500ms" if name == "lock_timeout" else "0"
            assert sql.execute(show).fetchone() == (ours,)
            assert pgconn.exec_(show).get_value(0, 0) == b"0"
            if name != "lock_timeout":  # has its own
                idle = name == "idle_in_transaction_session_timeout"
                assert output.rows(show.decode()) == [("1min" if idle else "0",)]
        assert sql.execute(b"SHOW transaction_read_only").fetchone() == ("off",)
        assert sql.execute(b"SHOW transaction_isolation").fetchone() == ("read committed",)
        with pytest.raises(OutputError, match="default_transaction_read_only is on") as stopped:
            output.rows("CREATE TABLE public.written (id int)")
        assert not isinstance(stopped.value, OutputRefusedError)
    output.close()
    pgconn.finish()


def test_a_hasty_role_captures_at_its_leisure(server: PostgresServer) -> None:
    server.create_database("leisure")
    with psycopg.connect(server.dsn("leisure"), autocommit=True) as sql:
        sql.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        capture = Capture(server.dsn("leisure", user="hasty"))
        capture.start()
        sql.execute("INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(1, 200000) g")
        begun = time.monotonic()
        while time.monotonic() - begun < 1:  # longer than any of them
            capture.poll(0.1)
        assert len(capture.catch_up(sql)) == 200_000
        capture.publish()
        capture.reader.close()
    server.drop_database("leisure")


def test_who_holds_up_a_new_slot_is_named(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slots, "CREATE_TIMEOUT", "2s")
    monkeypatch.setattr(standby, "HINT_AFTER_S", 0.2)
    server.create_database("held")
    with psycopg.connect(server.dsn("held"), autocommit=True) as sql:
        sql.execute("CREATE TABLE t (id int)")
        with psycopg.connect(server.dsn("held"), application_name="payroll") as other:
            other.execute("INSERT INTO t VALUES (4711)")
            other.execute("PREPARE TRANSACTION 'it''s left'")
            other.commit()
            other.execute("INSERT INTO t VALUES (4712)")
            capture = Capture(server.dsn("held"))
            with caplog.at_level(logging.WARNING), pytest.raises(SourceError) as error:
                capture.start()
            pid = other.info.backend_pid
            for text in (str(error.value), caplog.text):
                assert "prepared transaction 'it''s left' in database 'held', open for" in text
                assert "ROLLBACK PREPARED 'it''s left'" in text
                assert f"process {pid} ('payroll') in database 'held', open for" in text
                assert "4711" not in text
                assert "INSERT" not in text
        monkeypatch.setattr(slots, "CREATE_TIMEOUT", f"{PATIENCE_S}s")
        ended = threading.Timer(1, lambda: server.execute("ROLLBACK PREPARED 'it''s left'", "held"))
        ended.start()
        capture.start()
        ended.join()
        capture.reader.close()
    server.drop_database("held")


def test_names_of_many_are_left_out(server: PostgresServer) -> None:
    server.execute("CREATE TABLE IF NOT EXISTS many (id int)")
    others = [psycopg.connect(server.dsn()) for _ in range(5)]
    for other in others:
        other.execute("INSERT INTO many VALUES (1)")
        other.execute("SAVEPOINT s")
        other.execute("INSERT INTO many VALUES (2)")
    with psycopg.connect(server.dsn(), autocommit=True) as sql:
        text = standby.who_is_open(sql)
        assert text.count("process ") == 3
        assert "; and 2 more" in text
        oldest: Any = others[0].info.backend_pid
        assert text.startswith(f"Open, the oldest first: process {oldest} ")
        for other in others:
            other.close()
