"""Capture from a physical standby: the log, chunks placed by snapshots, what is refused."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
import pytest
from tests.integration.postgres.conftest import Capture, Row, rows_of
from tests.integration.postgres.pair import Pair, pair, servers, writers
from tests.support.postgres import PostgresServer
from tests.support.postgres_parts import preflight
from tests.support.standby import PostgresStandby

from tidelog.errors import (
    ChunkError,
    ConnectionLostError,
    GapError,
    PreflightError,
    SourceChangedError,
)
from tidelog.model.records import Resume
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest, ChunkRows, NullRegistry, SourceId
from tidelog.sources.postgres.catalogue.tables import PostgresCatalogue
from tidelog.sources.postgres.chunks import digests as digests_module
from tidelog.sources.postgres.chunks.blocking import PostgresBlockingReader
from tidelog.sources.postgres.chunks.digests import PostgresDigests
from tidelog.sources.postgres.chunks.reader import PostgresChunkReader
from tidelog.sources.postgres.chunks.watermarks import PgSnapshot, StandbySnapshot
from tidelog.sources.postgres.stream import standby
from tidelog.sources.postgres.stream.replication import ReplicationStream
from tidelog.sources.postgres.stream.server import check_same, identify

__all__ = ["pair", "servers"]  # fixtures

pytestmark = pytest.mark.integration

Connection = psycopg.Connection[Any]
T = TableName("public", "t")


def test_a_standby_that_is_behind_is_called_so(pair: Pair) -> None:
    """It is no former primary, and nobody restored it from a backup."""
    with closing(ReplicationStream(pair.dsn, purpose="test")) as stream:
        found = stream.identify()
        here = SourceId("postgres", found.system, found.database, found.timeline)
        check_same(stream, here)
        later = replace(here, timeline=found.timeline + 1)
        with pytest.raises(SourceChangedError, match="leads to a standby that has not reached"):
            check_same(stream, later)
        beyond = Resume(position=found.flushed, ordinal=0, acknowledge=found.flushed + (1 << 30))
        with pytest.raises(SourceChangedError, match="leads to a standby that has not reached"):
            identify(stream, beyond, later)
        with pytest.raises(SourceChangedError, match="leads to a standby that is behind"):
            identify(stream, beyond, here)


def passed(capture: Capture, position: int, timeout_s: float = 30) -> None:
    """Return once the log has come that far."""
    capture.until(lambda: any(r.acknowledge >= position for r in capture.resumes[-1:]), timeout_s)


def reader_on(pair: Pair, schemas: NullRegistry | None = None) -> PostgresChunkReader:
    return PostgresChunkReader(pair.dsn, schemas or NullRegistry(), strategy="snapshot")


def key_of(row: Row) -> str:
    image = row.new or row.old
    assert image is not None
    return str(image["id"])


def state_before(rows: list[Row], position: int) -> dict[str, str]:
    state: dict[str, str] = {}
    for row in rows:
        if row.position < position:
            if row.new is None:
                del state[key_of(row)]
            else:
                state[key_of(row)] = str(row.new["n"])
    return state


def wrong_keys(
    chunk: ChunkRows, snapshot: PgSnapshot, rows: list[Row], schemas: NullRegistry
) -> set[str]:
    """Keys for which the log up to the emission point, then the chunk's rows that no record
    supersedes, would not be the state at that point.
    """
    assert chunk.emit_at is not None
    emitted = [row for row in rows if row.position < chunk.emit_at]
    seen = snapshot.visible(np.array([row.xid for row in emitted], np.int64))
    superseded = {key_of(row) for row, visible in zip(emitted, seen, strict=True) if not visible}
    found = {key_of(row): str((row.new or {})["n"]) for row in rows_of(chunk.rows, schemas)}
    state = state_before(rows, chunk.emit_at)
    keys = (set(state) | set(found)) - superseded
    return {key for key in keys if state.get(key) != found.get(key)}


# ---------------------------------------------------------------- chunks


def test_chunks_fit_the_log_while_the_primary_is_written_to(pair: Pair) -> None:
    pair.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    capture = pair.capture()
    schemas = NullRegistry()
    reader = reader_on(pair, schemas)
    chunks: list[ChunkRows] = []
    failed: list[str] = []
    deadline = time.monotonic() + 6
    with writers(pair, 8):
        while time.monotonic() < deadline:
            try:
                chunks.append(reader.read(ChunkRequest(T, limit_rows=1000)))
            except ChunkError as error:
                failed.append(str(error))
            finally:
                reader.release()
            capture.poll(0.001)
    reader.close()
    pair.standby.replayed()
    with psycopg.connect(pair.dsn) as there:
        row = there.execute("SELECT pg_last_wal_replay_lsn() - '0/0'::pg_lsn").fetchone()
    assert row is not None
    passed(capture, int(row[0]))
    rows = capture.rows
    assert len(rows) > 500
    assert len(chunks) > 50
    assert all("recovery" in error for error in failed)
    for chunk in chunks:
        assert isinstance(chunk.snapshot, StandbySnapshot)
        assert not wrong_keys(chunk, chunk.snapshot, rows, schemas)


class CommittedMeanwhile(PostgresChunkReader):
    """A transaction of the primary commits, and is replayed, between snapshot and position."""

    meanwhile: Callable[[], None]

    def _emission_point(self, connection: Connection, snapshot: PgSnapshot) -> int:
        self.meanwhile()
        return super()._emission_point(connection, snapshot)


@pytest.mark.parametrize("how", ["plain", "savepoint", "prepared"])
def test_transaction_open_on_the_primary_supersedes_what_the_standby_read(
    how: str, pair: Pair
) -> None:
    """``pg_visible_in_snapshot`` says of it that it was visible."""
    pair.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    pair.sql.execute("INSERT INTO t VALUES (1, 1), (2, 1)")
    capture = pair.capture()
    open_ = pair.on_primary()
    open_.execute("BEGIN")
    if how == "savepoint":
        open_.execute("SAVEPOINT s")
    open_.execute("UPDATE t SET n = 2 WHERE id = 1")
    pair.sql.execute("INSERT INTO t VALUES (3, 1)")  # a later one is over already
    if how == "prepared":
        open_.execute("PREPARE TRANSACTION 'p'")
    pair.standby.replayed()

    def commit() -> None:
        open_.execute("COMMIT PREPARED 'p'" if how == "prepared" else "COMMIT")
        pair.standby.replayed()

    schemas = NullRegistry()
    reader = CommittedMeanwhile(pair.dsn, schemas, strategy="snapshot")
    reader.meanwhile = commit
    chunk = reader.read(ChunkRequest(T))
    reader.release()
    reader.close()
    open_.close()
    emit_at = chunk.emit_at
    assert emit_at is not None
    passed(capture, emit_at)
    snapshot = chunk.snapshot
    assert isinstance(snapshot, StandbySnapshot)
    # Rows 1 and 2 are from before the slot.
    rows = [Row("public.t", "I", 0, 0, 0, {"id": str(key), "n": "1"}) for key in (1, 2)]
    rows += capture.rows
    assert not wrong_keys(chunk, snapshot, rows, schemas)
    as_primary = PgSnapshot(snapshot.xmin, snapshot.xmax, snapshot.xip)
    assert wrong_keys(chunk, as_primary, rows, schemas) == {"1"}


def test_emission_point_is_reached_without_traffic(pair: Pair) -> None:
    pair.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    capture = pair.capture()
    pair.sql.execute("INSERT INTO t VALUES (1, 1)")
    pair.standby.replayed()
    reader = reader_on(pair)
    for _ in range(3):
        chunk = reader.read(ChunkRequest(T))
        reader.release()
        emit_at = chunk.emit_at
        assert emit_at is not None
        passed(capture, emit_at, 5)
    assert [row.kind for row in capture.rows] == ["I"]
    assert isinstance(reader.current_snapshot(), StandbySnapshot)
    reader.close()


def test_conflict_with_recovery_fails_the_chunk_alone(pair: Pair) -> None:
    pair.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    pair.standby.replayed()
    reader = reader_on(pair)
    reader.read(ChunkRequest(T))
    pair.sql.execute("ALTER TABLE t ALTER n TYPE bigint")
    time.sleep(1.0)  # more than max_standby_streaming_delay
    with pytest.raises(ChunkError):
        reader.read(ChunkRequest(T))
    reader.release()
    pair.standby.replayed()
    chunk = reader.read(ChunkRequest(T))
    assert chunk.schema.columns[1].type_name == "bigint"
    reader.release()
    reader.close()


def test_blocking_snapshot_stands_at_a_position_of_the_standbys_log(pair: Pair) -> None:
    pair.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    capture = pair.capture()
    schemas = NullRegistry()
    reader = PostgresBlockingReader(pair.dsn, schemas, tables=[T])
    with writers(pair, 4):
        with pair.logging_snapshots():
            position = reader.begin(20)
        chunk = reader.read(ChunkRequest(T, limit_rows=1000))
        reader.close()
    pair.sql.execute("INSERT INTO t VALUES (-1, 0)")
    capture.until(lambda: bool(capture.rows) and key_of(capture.rows[-1]) == "-1")
    found = {key_of(row): str((row.new or {})["n"]) for row in rows_of(chunk.rows, schemas)}
    assert found == state_before(capture.rows, position)


# ---------------------------------------------------------------- set-up


def test_marks_are_refused_on_a_standby(pair: Pair) -> None:
    capture = pair.reading()
    with pytest.raises(PreflightError, match=r"set source\.watermarks: snapshot"):
        capture.start()


def test_unpublished_tables_are_named_with_the_sql_that_publishes_them(pair: Pair) -> None:
    pair.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    pair.sql.execute("CREATE TABLE keyless (n int)")
    pair.standby.replayed()
    capture = pair.reading(strategy="snapshot")
    with pytest.raises(PreflightError, match="CREATE PUBLICATION") as error:
        capture.start()
    statements = str(error.value)[str(error.value).index("CREATE") :]
    pair.sql.execute(statements.encode())
    pair.standby.replayed()
    with pair.logging_snapshots():
        capture.start()
    pair.sql.execute("INSERT INTO t VALUES (1, 1)")
    pair.sql.execute("INSERT INTO keyless VALUES (1)")
    capture.until(lambda: len(capture.rows) == 2)


def test_waiting_for_the_primary_is_explained(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(standby, "HINT_AFTER_S", 0.01)
    with caplog.at_level(logging.WARNING):
        pair.capture()
    assert "run on the primary: SELECT pg_log_standby_snapshot()" in caplog.text


def test_check_says_what_a_standby_needs(pair: Pair) -> None:
    pair.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    pair.standby.replayed()
    found = {finding.name: finding for finding in preflight(pair.dsn).check()}
    assert found["standby"].level == "error"
    assert found["standby"].fix == "source.watermarks: snapshot"
    found = {f.name: f for f in preflight(pair.dsn, strategy="snapshot").check()}
    assert found["standby"].level == "ok"
    assert found["publication"].level == "error"
    assert "watermark table" not in found
    pair.sql.execute(found["publication"].fix.encode())
    pair.standby.replayed()
    findings = preflight(pair.dsn, strategy="snapshot").check()
    assert not [finding for finding in findings if finding.level == "error"]


def test_position_is_what_is_replayed(pair: Pair) -> None:
    catalogue = PostgresCatalogue(pair.dsn)
    before = catalogue.position()
    pair.sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pair.standby.replayed()
    assert catalogue.position() > before
    assert catalogue.tables(["public.*"]) == [T]
    catalogue.close()


def test_verify_waits_for_the_record_that_is_replayed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby shows a commit a moment before it counts it: a pause makes the moment longer."""
    monkeypatch.setattr(digests_module, "_RECORD_S", 30.0)  # however long the resuming takes
    pair.sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pair.standby.replayed()
    digests = PostgresDigests(pair.dsn)
    try:
        begun = time.monotonic()
        before = digests.position()
        assert time.monotonic() - begun < 30  # an idle one keeps nobody waiting
        pair.standby.execute("SELECT pg_wal_replay_pause()")
        pair.sql.execute("INSERT INTO t VALUES (1)")
        pair.standby.received()  # what is not here yet is not waited for
        resumed = threading.Timer(0.2, pair.standby.execute, ["SELECT pg_wal_replay_resume()"])
        resumed.start()
        assert digests.position() > before
        resumed.join()
    finally:
        digests.close()


def test_standby_that_does_not_replay_is_a_lag(pair: Pair) -> None:
    catalogue = PostgresCatalogue(pair.primary.dsn(pair.name))
    standby = psycopg.connect(pair.dsn, autocommit=True)
    standby.execute("SELECT pg_wal_replay_pause()")
    try:
        deadline = time.monotonic() + 20
        pair.sql.execute("CREATE TABLE behind (id int PRIMARY KEY)")
        while (catalogue.load(0).replica_lag_s or 0) < 0.5:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        standby.execute("SELECT pg_wal_replay_resume()")
        standby.close()
        catalogue.close()


@pytest.mark.parametrize("version", [16, 18])
def test_slot_that_the_primarys_vacuum_invalidated_is_a_gap(version: int) -> None:
    with (
        PostgresServer(version) as primary,
        PostgresStandby(primary, {"hot_standby_feedback": "off"}) as standby_,
        psycopg.connect(primary.dsn(), autocommit=True) as sql,
    ):
        sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
        capture = Pair(primary, standby_, "postgres", sql).capture()
        findings = preflight(standby_.dsn(), strategy="snapshot").check()
        assert [f.level for f in findings if f.name == "standby"] == ["ok", "error"]
        sql.execute("INSERT INTO t VALUES (1, 1)")
        capture.until(lambda: len(capture.rows) == 1)
        for number in range(20):
            sql.execute(f"CREATE TABLE x{number} (id int)")
            sql.execute(f"DROP TABLE x{number}")
        for catalogue in ("pg_class", "pg_attribute", "pg_type"):
            sql.execute(f"VACUUM {catalogue}".encode())
        with pytest.raises(ConnectionLostError):
            capture.until(lambda: False, 20)
        with pytest.raises(GapError, match="hot_standby_feedback"):
            capture.start(capture.resumes[-1])
        capture.reader.close()


# ---------------------------------------------------------------- promotion


@pytest.mark.parametrize("version", [16, 18])
def test_promoted_standby_is_captured_on(version: int) -> None:
    with PostgresServer(version) as primary, PostgresStandby(primary) as standby_:
        with psycopg.connect(primary.dsn(), autocommit=True) as sql:
            sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
            pair = Pair(primary, standby_, "postgres", sql)
            capture = pair.capture()
            sql.execute("INSERT INTO t VALUES (1, 1)")
        capture.until(lambda: len(capture.rows) == 1)
        reader = reader_on(pair)
        assert isinstance(reader.read(ChunkRequest(T)).snapshot, StandbySnapshot)
        reader.release()
        standby_.replayed()
        standby_.promote()
        standby_.execute("INSERT INTO t VALUES (2, 1)")
        chunk = reader.read(ChunkRequest(T))
        reader.release()
        reader.close()
        assert not isinstance(chunk.snapshot, StandbySnapshot)
        assert len(chunk.rows) == 2
        emit_at = chunk.emit_at
        assert emit_at is not None
        passed(capture, emit_at)
        assert [key_of(row) for row in capture.rows] == ["1", "2"]
        resume = capture.resumes[-1]
        capture.reader.close()
        again = Capture(pair.dsn, schemas=capture.schemas, options={"strategy": "snapshot"})
        again.start(resume)
        standby_.execute("INSERT INTO t VALUES (3, 1)")
        again.until(lambda: len(again.rows) == 1)
        assert key_of(again.rows[0]) == "3"
        again.reader.close()
