"""Between a dump's decision and its effect: a crash, a lost lease, a cancel, late news."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.windows.live import (
    LOCALLY,
    PATIENCE_S,
    Crash,
    Live,
    at,
    ten_rows,
    times_dumped,
)

from tidelog import app
from tidelog.capture.dumps import store
from tidelog.capture.dumps.state import CHUNKS, ChunkInput, ChunkStatus, TableRun
from tidelog.capture.dumps.table_dump import DumpTables
from tidelog.capture.session.loop import CaptureLoop
from tidelog.control.commands import CancelDump
from tidelog.errors import LeaseLostError, StateError, StorageError
from tidelog.state.sqlite import SqliteState

pytestmark = pytest.mark.integration


@pytest.fixture
def live(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    made = Live(database, tmp_path, monkeypatch, chunk_rows=4, patience_s=60.0)
    try:
        yield ten_rows(made)
    finally:
        made.close()


def epoch(live: Live) -> int:
    """Of the session that leads."""
    return int(app.status(live.config).document["epoch"])


def status_of(live: Live, dump_id: str) -> str:
    dumps = app.status(live.config).document["dumps"]
    return next((str(d["status"]) for d in dumps if d["dump_id"] == dump_id), "unknown")


# ---------------------------------------------------------------- decided, and not done


@pytest.mark.parametrize(
    ("record", "durable", "failure"),
    [
        ("dump-started", False, Crash),
        ("dump-started", True, Crash),
        ("dump-completed", False, Crash),
        ("dump-completed", True, Crash),
        ("dump-started", False, LeaseLostError),
        ("dump-completed", False, LeaseLostError),
    ],
)
def test_record_that_was_decided_and_did_not_come_is_decided_again(
    live: Live,
    monkeypatch: pytest.MonkeyPatch,
    record: str,
    durable: bool,
    failure: type[Exception],
) -> None:
    """Before it is appended; or when it is durable, and nobody was told."""
    append = CaptureLoop.append_control

    def failing(loop: CaptureLoop, value: dict[str, Any], done: Callable[[int], None]) -> None:
        if value["type"] != record:
            append(loop, value, done)
            return
        monkeypatch.setattr(CaptureLoop, "append_control", append)

        def ends(_offset: int) -> None:
            raise failure("between decision and effect")

        if durable:
            append(loop, value, ends)
        else:
            ends(0)

    monkeypatch.setattr(CaptureLoop, "append_control", failing)
    dump_id = live.dump()
    if failure is Crash:
        live.crashes()
        live.start()
    live.dumped(dump_id)
    twice = durable and record == "dump-completed"
    assert len(live.completions()) == 1 + twice
    assert times_dumped(live) == {1}
    live.check()


def test_event_log_that_cannot_be_asked_restarts_the_session(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the snapshot of a table's begin can't see is looked up there."""
    first_unseen = CaptureLoop.first_unseen

    def failing(_loop: CaptureLoop, _snapshot: Any, _table: Any) -> int | None:
        monkeypatch.setattr(CaptureLoop, "first_unseen", first_unseen)
        raise StorageError("the disk is away")

    monkeypatch.setattr(CaptureLoop, "first_unseen", failing)
    live.dumped(live.dump())
    assert times_dumped(live) == {1}
    live.check()


# ---------------------------------------------------------------- decided, and cancelled since


def test_last_record_of_a_table_cancelled_meanwhile_is_not_appended(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits behind an effect that takes long, as a look at a source that does not answer."""
    waits, goes = threading.Event(), threading.Event()
    complete = DumpTables._complete_if_read

    def completing(tables: DumpTables, run: TableRun) -> None:
        if tables._queue.is_exhausted(run.progress) and not waits.is_set():

            def effect() -> None:
                waits.set()
                goes.wait(PATIENCE_S)

            tables._decisions.effect(effect)
        complete(tables, run)

    monkeypatch.setattr(DumpTables, "_complete_if_read", completing)
    dump_id = live.dump()
    assert waits.wait(PATIENCE_S)
    app.send_command(live.config, CancelDump(dump_id=dump_id), timeout_s=PATIENCE_S)
    goes.set()
    live.dumped(live.dump())
    assert status_of(live, dump_id) == "aborted"
    assert len(live.completions()) == 1, "of the dump that followed"
    live.check()


# ---------------------------------------------------------------- a store that does not answer


def test_chunk_that_was_read_holds_up_no_ddl_while_the_state_store_is_away(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader needs the coordinator's lock, under which progress must not be stored."""
    reads, storing, back = threading.Event(), threading.Event(), threading.Event()
    altered: list[bool] = []
    put = SqliteState.put

    def away(state: SqliteState, key: str, value: Any, expected_version: int | None) -> int:
        if key.startswith("dump/") and reads.is_set() and not back.is_set():
            storing.set()
            raise StateError("the store does not answer")
        return put(state, key, value, expected_version)

    def after_read() -> None:
        """The transaction that reads the second chunk is open; progress is stored from now on."""
        reads.set()
        monkeypatch.setattr(store, "STORE_EVERY_S", 0.0)
        assert storing.wait(PATIENCE_S)
        threading.Thread(target=alter).start()

    def alter() -> None:
        with live.connect(options=f"{LOCALLY} -c lock_timeout=60s", autocommit=False) as other:
            other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")  # as ALTER TABLE does
        altered.append(not back.is_set())

    monkeypatch.setattr(store, "STORE_EVERY_S", 1e9)
    monkeypatch.setattr(SqliteState, "put", away)
    with at("chunk.after_read", after_read, hit=2):
        dump_id = live.dump()
        try:
            live.wait_for(lambda: altered, "the table is altered")
        finally:
            back.set()
        live.dumped(dump_id)
    assert altered == [True]
    assert times_dumped(live) == {1}
    live.check()


def test_chunk_that_was_read_holds_up_no_ddl_while_the_log_stands_still(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's thread waits for a disk or a store with the lock that hands rows over."""
    loops: list[CaptureLoop] = []
    altered, back = threading.Event(), threading.Event()
    register = CaptureLoop.register

    def registering(loop: CaptureLoop, window: Any) -> None:
        loops.append(loop)
        register(loop, window)

    def after_read() -> None:
        """The transaction that reads the chunk is open now."""
        held = threading.Event()

        def stand_still() -> None:
            with loops[-1]._lock:
                held.set()
                back.wait(PATIENCE_S)

        threading.Thread(target=stand_still).start()
        assert held.wait(PATIENCE_S)
        threading.Thread(target=alter).start()

    def alter() -> None:
        with live.connect(options=f"{LOCALLY} -c lock_timeout=60s", autocommit=False) as other:
            other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")  # as ALTER TABLE does
        altered.set()

    monkeypatch.setattr(CaptureLoop, "register", registering)
    with at("chunk.after_read", after_read, hit=2):
        dump_id = live.dump()
        try:
            assert altered.wait(PATIENCE_S), "the chunk is given up, and read again"
            assert not back.is_set()
        finally:
            back.set()
        live.dumped(dump_id)
    live.wait_for(
        lambda: app.status(live.config).document["capture"]["open_windows"] == 0,
        "the window of the chunk that was given up is gone",
    )
    live.check()


def test_state_store_that_hangs_holds_up_nothing_that_is_in_memory(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status is told, the log goes on, a command is heard; what is decided is stored in order."""
    hangs, back = threading.Event(), threading.Event()
    put = SqliteState.put

    def hanging(state: SqliteState, key: str, value: Any, expected_version: int | None) -> int:
        if key.startswith("dump/"):
            hangs.set()
            assert back.wait(PATIENCE_S)
        return put(state, key, value, expected_version)

    live.dumped(live.dump())
    monkeypatch.setattr(SqliteState, "put", hanging)
    asking = threading.Thread(target=live.dump)  # answered once it is durable
    asking.start()
    try:
        assert hangs.wait(PATIENCE_S)
        before = app.status(live.config).document["updated_ms"]
        live.wait_for(
            lambda: app.status(live.config).document["updated_ms"] > before, "status is fresh"
        )
        live.sql.execute("INSERT INTO t VALUES (77, 1)")
        live.wait_for(
            lambda: ("77",) in {e.key for e in live.events("public.t")}, "the log goes on"
        )
        assert asking.is_alive()
    finally:
        back.set()
        asking.join(PATIENCE_S)
    live.dumped(app.status(live.config).document["dumps"][-1]["dump_id"])
    live.check()


# ---------------------------------------------------------------- what no table of states has


def test_high_watermark_that_another_writes_while_the_chunk_is_read_only_voids_it(
    live: Live,
) -> None:
    """The rows come when the chunk waits to be read again: they are of no use, and no mistake."""

    def forge() -> None:
        low = live.one("SELECT mark FROM tidelog.watermark")
        forged = low.replace(":low", ":high")
        live.sql.execute("UPDATE tidelog.watermark SET mark = %s", (forged,))
        live.wait_for(lambda: live.voided.get("order"), "the chunk is void")

    led = epoch(live)
    with at("chunk.after_low", forge):
        live.dumped(live.dump())
    assert live.voided == {"order": 1}
    assert times_dumped(live) == {1}
    live.check()
    assert epoch(live) == led, "the session went on"


def test_mistake_in_the_states_restarts_the_session(live: Live) -> None:
    led = epoch(live)
    with at("chunk.after_read", lambda: CHUNKS.after(ChunkStatus.DURABLE, ChunkInput.GIVE)):
        live.dumped(live.dump())
    assert epoch(live) > led
    assert times_dumped(live) == {1}
    live.check()
