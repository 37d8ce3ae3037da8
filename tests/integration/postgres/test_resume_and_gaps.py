"""Restarts: nothing lost, nothing twice; and where something would be lost, a clear stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.integration.postgres.conftest import Capture
from tests.support.postgres import PostgresServer, drop_slot
from tests.support.postgres_parts import log_reader, preflight

from tidelog.errors import (
    ConfigError,
    ConnectionLostError,
    GapError,
    PreflightError,
    SourceChangedError,
    SourceError,
)
from tidelog.ports import IdleAt, NullRegistry
from tidelog.sources.findings import fix_script
from tidelog.sources.postgres.connect import lsn_value
from tidelog.sources.postgres.stream.slots import SlotOwner

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]


def confirmed(sql: Connection) -> int:
    row = sql.execute(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots "
        "WHERE database = current_database()"
    ).fetchone()
    assert row is not None
    return lsn_value(row[0])


def test_resume_in_the_middle_of_a_large_transaction(
    make_capture: Callable[..., Capture], sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    schemas = NullRegistry()
    first = make_capture(schemas=schemas, buffer_bytes=1 << 18)
    first.start()
    sql.execute("INSERT INTO t VALUES (0)")
    sql.execute("INSERT INTO t SELECT generate_series(1, 50000)")
    sql.execute("INSERT INTO t VALUES (50001)")
    first.until(lambda: len(first.rows) > 1000)
    assert len(first.rows) < 50000
    durable = list(first.rows)
    resume = first.resumes[-1]
    first.reader.acknowledge(resume.acknowledge)
    first.reader.close()
    second = make_capture(schemas=schemas)
    assert second.start(resume) == resume
    rows = durable + second.catch_up(sql)
    assert [row.new for row in rows] == [{"id": str(i)} for i in range(50002)]
    assert second.seen_schemas[0].previous == second.seen_schemas[0].schema


def test_lost_connection_then_start_again_continues(capture: Capture, sql: Connection) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    resume = capture.start()
    for start in range(0, 3000, 1000):
        sql.execute(f"INSERT INTO t SELECT generate_series({start}, {start} + 999)")
        sql.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
        with pytest.raises(ConnectionLostError):
            capture.until(lambda: False)
        resume = capture.resumes[-1] if capture.resumes else resume
        capture.start(resume)
    capture.catch_up(sql)
    assert [row.new for row in capture.rows] == [{"id": str(i)} for i in range(3000)]


def test_server_crash_then_start_again_continues() -> None:
    with PostgresServer() as server:
        capture = Capture(server.dsn())
        server.execute("CREATE TABLE t (id int PRIMARY KEY)")
        begin = capture.start()
        server.execute("INSERT INTO t SELECT generate_series(0, 999)")
        capture.until(lambda: len(capture.rows) == 1000)
        capture.reader.acknowledge(capture.resumes[-1].acknowledge)
        server.kill()
        with pytest.raises(ConnectionLostError):
            capture.until(lambda: False)
        with pytest.raises(ConnectionLostError):
            capture.start(capture.resumes[-1])
        server.restart()
        assert capture.start(capture.resumes[-1]).acknowledge > begin.acknowledge
        server.execute("INSERT INTO t VALUES (1000)")
        capture.until(lambda: len(capture.rows) == 1001)
        capture.reader.close()
        assert [row.new for row in capture.rows] == [{"id": str(i)} for i in range(1001)]


def test_idle_database_does_not_pin_wal(
    make_capture: Callable[..., Capture], sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    sql.execute("CREATE TABLE busy (id int)")
    capture = make_capture(tables=["public.t"])
    begin = capture.start()
    sql.execute("INSERT INTO busy SELECT generate_series(1, 10000)")
    row = sql.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    assert row is not None
    capture.until(
        lambda: bool(capture.resumes) and capture.resumes[-1].acknowledge >= lsn_value(row[0])
    )
    assert not capture.rows
    assert isinstance(capture.events[-1], IdleAt)
    assert capture.resumes[-1].position == begin.position
    assert confirmed(sql) == begin.acknowledge  # nothing is acknowledged but what we say
    capture.reader.acknowledge(capture.resumes[-1].acknowledge)
    capture.until(lambda: confirmed(sql) >= lsn_value(row[0]), timeout_s=8)


def test_resume_never_falls_behind_what_was_reported_as_idle(
    capture: Capture, sql: Connection
) -> None:
    """Otherwise a restart would take the acknowledged idle position for a gap."""
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture.start()
    for i in range(5):
        sql.execute("SELECT pg_logical_emit_message(false, 'x', 'y')")
        capture.poll(0.05)
        sql.execute("SELECT txid_current(); SELECT pg_switch_wal()")
        capture.catch_up(sql)
        sql.execute(f"INSERT INTO t VALUES ({i})")
        capture.catch_up(sql)
    acknowledged = [resume.acknowledge for resume in capture.resumes]
    assert acknowledged == sorted(acknowledged)
    assert len(capture.rows) == 5


def test_status_is_sent_while_the_consumer_is_slow(sql: Connection, database: str) -> None:
    """Three times as long as the server waits for one. On a machine so busy that this process, or
    the server's, came too late with one it shows nothing: then again, with more time.
    """
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    for attempt, timeout_s in enumerate((1.0, 4.0, 12.0)):
        timeout = f"-c%20wal_sender_timeout%3D{timeout_s * 1000:.0f}"
        capture = Capture(f"{database}?options={timeout}")
        capture.reader._slot = f"slow_{attempt}"
        capture.start()
        sql.execute("INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 20000) g")
        try:
            capture.poll(timeout_s)
            for _ in range(10):
                time.sleep(timeout_s * 0.3)
                capture.reader._stream.keepalive(now=True)  # type: ignore[union-attr]
            while len(capture.rows) < 20000:
                capture.reader._stream.keepalive(now=True)  # type: ignore[union-attr]
                capture.poll()
            return
        except ConnectionLostError:
            if attempt == 2:
                raise
        finally:
            capture.reader.close()
            drop_slot(sql, f"slow_{attempt}")
        sql.execute("TRUNCATE t")


def test_dropped_slot_is_a_gap(capture: Capture, sql: Connection) -> None:
    resume = capture.start()
    capture.reader.close()
    drop_slot(sql, capture.slot)
    with pytest.raises(
        GapError, match=rf"{capture.slot}.*does not exist.*new dump.*tidelog reset CONFIG"
    ):
        capture.start(resume)


def test_slot_that_was_read_further_is_a_gap_with_both_positions(
    capture: Capture, sql: Connection
) -> None:
    resume = capture.start()
    capture.reader.close()
    sql.execute("CREATE TABLE t (id int)")
    time.sleep(0.3)
    sql.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (capture.slot,))
    with pytest.raises(GapError, match=r"ends at \w+/\w+, but .* only from \w+/\w+ on"):
        capture.start(resume)


def test_recreated_slot_is_a_gap(capture: Capture, sql: Connection) -> None:
    resume = capture.start()
    capture.reader.close()
    drop_slot(sql, capture.slot)
    sql.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (capture.slot,))
    with pytest.raises(GapError, match="recreated"):
        capture.start(resume)


@pytest.mark.parametrize("version", [16, 18])
def test_slot_whose_wal_was_removed_is_a_gap(version: int) -> None:
    settings = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with PostgresServer(version=version, settings=settings) as server:
        capture = Capture(server.dsn())
        resume = capture.start()
        capture.reader.close()
        server.execute("CREATE TABLE t (id int, v text)")
        for _ in range(6):
            server.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))")
            server.execute("SELECT pg_switch_wal()")
            server.execute("CHECKPOINT")
        with pytest.raises(GapError, match=r"invalid: .*max_slot_wal_keep_size.*new dump") as error:
            capture.start(resume)
        assert "recovery" not in str(error.value)
        ours = SlotOwner(capture.slot)
        ours.generation = "g"
        for owner, fix in ((None, "if it is this capture's"), (ours, "tidelog reset CONFIG")):
            findings = preflight(server.dsn(), slot=capture.slot, owner=owner).check()
            slot = next(f for f in findings if f.name == "slot")
            assert (slot.level, "max_slot_wal_keep_size" in slot.message) == ("error", True)
            assert fix in slot.fix
            assert not [line for line in fix_script(findings) if line.startswith("SELECT pg_drop")]


def test_resume_beyond_the_source_is_another_source(capture: Capture) -> None:
    resume = capture.start()
    with pytest.raises(SourceChangedError, match="restored from a backup"):
        capture.start(replace(resume, acknowledge=resume.acknowledge + (1 << 40)))


def test_another_system_is_refused(database: str, postgres18: PostgresServer) -> None:
    here = Capture(database)
    source = here.reader.identify()
    assert (source.kind, source.timeline) == ("postgres", 1)
    name = database.rsplit("/", 1)[1]
    postgres18.create_database(name)
    there = Capture(postgres18.dsn(name), options={"expected": source})
    with pytest.raises(SourceChangedError, match=source.system):
        there.start()
    there.reader.close()
    postgres18.drop_database(name)


def test_frozen_predecessor_is_ended(database: str, sql: Connection) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    frozen, leader = Capture(database), Capture(database)
    resume = frozen.start()
    assert leader.start(resume) == resume
    with pytest.raises(ConnectionLostError):
        frozen.until(lambda: False)
    sql.execute("INSERT INTO t VALUES (1)")
    assert len(leader.catch_up(sql)) == 1
    leader.reader.close()
    frozen.reader.close()


def test_slot_read_by_another_program_is_named(capture: Capture, postgres: PostgresServer) -> None:
    import subprocess

    if not postgres.binary("pg_recvlogical").exists():
        pytest.skip("this version's programs come without pg_recvlogical")
    resume = capture.start()
    capture.reader.close()
    other = subprocess.Popen([
        str(postgres.binary("pg_recvlogical")), "--dbname", capture.dsn, "--slot", capture.slot,
        "--start", "--file", "/dev/null", "--option", "proto_version=1",
        "--option", "publication_names=tidelog",
    ])  # fmt: skip
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                capture.start(resume)
            except SourceError as error:
                message = str(error)
                break
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        other.kill()
        other.wait()
    assert "pg_recvlogical" in message


def test_foreign_slots_are_refused(capture: Capture, sql: Connection) -> None:
    sql.execute("SELECT pg_create_physical_replication_slot(%s)", (capture.slot,))
    with pytest.raises(PreflightError, match="not a pgoutput slot"):
        capture.start()
    drop_slot(sql, capture.slot)
    sql.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (capture.slot,))
    with pytest.raises(PreflightError, match="pg_drop_replication_slot"):
        capture.start()


def test_wal_level_replica_says_what_to_set() -> None:
    with PostgresServer(settings={"wal_level": "replica"}) as server:
        capture = Capture(server.dsn())
        with pytest.raises(PreflightError, match="ALTER SYSTEM SET wal_level = 'logical'"):
            capture.start()
        capture.reader.close()


def test_connection_refusals_say_what_to_do_and_never_the_password() -> None:
    secret = "s3cr3t-pass"
    with PostgresServer(hba=["host all checked 127.0.0.1/32 scram-sha-256"]) as server:
        server.execute("CREATE ROLE checked LOGIN PASSWORD 'right'")
        server.execute("CREATE ROLE plain LOGIN")
        cases = [
            (
                server.dsn(user="checked", password=secret),
                ConfigError,
                "password in source.url is wrong",
            ),
            (server.dsn(user="checked"), ConfigError, "wants a password"),
            (server.dsn("nowhere", password=secret), ConfigError, "no such database"),
            (server.dsn(user="plain"), PreflightError, "ALTER ROLE"),
            (f"postgresql://u:{secret}@no-such-host.invalid/d", ConfigError, "host name"),
            (
                f"postgresql://u:{secret}@127.0.0.1:1/d",
                ConnectionLostError,
                "is the server running",
            ),
            (f"postgresql://u:p@{secret}@127.0.0.1/d", ConfigError, "percent-encode"),
            (f"postgresql://u:{secret}@127.0.0.1:port/d", ConfigError, "percent-encode"),
        ]
        for dsn, kind, advice in cases:
            reader = log_reader(dsn, NullRegistry())
            with pytest.raises(kind, match=advice) as caught:
                reader.start(None)
            reader.close()
            trace = "".join(str(e) for e in (caught.value, caught.value.__cause__))
            assert secret not in trace
