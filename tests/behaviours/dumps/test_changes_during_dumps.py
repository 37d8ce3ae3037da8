"""Rows that change while their table is dumped, inside the chunk that is read and outside it."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from tests.behaviours.dumps.dumped import Dumped, Make, gate, quietly
from tests.behaviours.dumps.sources import N, series
from tests.behaviours.dumps.ways import EVERY, STRATEGIES, only, ways
from tests.integration.windows.live import PATIENCE_S, at
from tests.support.repeatedly import repeatedly

from tidelog.system import failpoints

pytestmark = pytest.mark.integration


@contextmanager
def writers(dumped: Dumped, count: int, rows: int) -> Iterator[None]:
    """Writers that insert, update, delete, move keys, roll back, in part and as a whole."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=_write, args=(dumped, number, rows, stop), daemon=True)
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)


def _statement(chance: random.Random, rows: int, upsert: str) -> str:
    key, other = chance.randint(1, rows), chance.randint(1, rows)
    return chance.choice(
        (
            f"UPDATE t SET n = {N} WHERE id = {key}",
            f"UPDATE t SET n = {N} WHERE id BETWEEN {key} AND {key + 2}",
            f"UPDATE t SET id = {other}, n = {N} WHERE id = {key}",
            f"DELETE FROM t WHERE id = {key}",
            f"INSERT INTO t VALUES ({key}, {N})",
            f"INSERT INTO t VALUES ({key}, {N}) {upsert} n = {N}",
        )
    )


def _write(dumped: Dumped, seed: int, rows: int, stop: threading.Event) -> None:
    chance = random.Random(seed)

    def change() -> None:
        quietly(dumped, connection, _statement(chance, rows, dumped.on.upsert))

    with dumped.connect(autocommit=True) as connection:
        while not stop.is_set():
            connection.execute("BEGIN")
            for _ in range(chance.randint(1, 4)):
                # A savepoint; rolled back where another's key is in the way.
                change()
                if chance.random() < 0.2:
                    connection.execute("SAVEPOINT part")
                    change()
                    # A deadlock may have undone everything, with the savepoint.
                    with contextlib.suppress(*dumped.on.refused):
                        connection.execute("ROLLBACK TO SAVEPOINT part")
            connection.execute(b"COMMIT" if chance.random() < 0.8 else b"ROLLBACK")
            stop.wait(0.004)


@ways(EVERY)
def test_idle_table_is_dumped_once_each_row(make: Make) -> None:
    """Debezium: snapshotOnly. Nothing else happens on the server."""
    dumped = make()
    dumped.table()
    dumped.start()
    dump = dumped.dump()
    done = dumped.dumped(dump)
    rows = dumped.rows_of(dump)
    assert sorted(rows, key=lambda key: int(key[0] or 0)) == [(str(i),) for i in range(1, 21)]
    if dumped.parallelism == 1:
        assert rows == [(str(i),) for i in range(1, 21)], "in key order"
    assert done["tables"][0]["rows_superseded"] == 0
    assert done["tables"][0]["finalized_until"] == dumped.completions()[0].offset + 1
    dumped.check()


@ways(EVERY)
def test_rows_written_inside_and_outside_the_chunk(make: Make) -> None:
    """Debezium: updates, insertInsertWatermarkingStrategy, insertDeleteWatermarkingStrategy. Before
    and after a chunk's SELECT: its own rows, and ones of chunks that were and will be read.
    """
    dumped = make()
    dumped.table(rows=30)
    dumped.start()
    changes = {
        "chunk.after_low": iter((1, 2, 3, 4, 5, 6)),
        "chunk.after_read": iter((1, 2, 3, 4, 5)),
    }

    def write(point: str) -> None:
        # Chunk k holds the keys 5k-4 to 5k: each in turn is met inside its own window.
        turn, base = next(changes[point], 0), {"chunk.after_low": 0, "chunk.after_read": 1}[point]
        if not turn:
            return
        inside = 5 * turn - 4 + base
        dumped.do(
            f"UPDATE t SET n = {N} WHERE id = {inside}",
            f"DELETE FROM t WHERE id = {inside + 2}",
            f"INSERT INTO t VALUES ({100 * turn + 50 + base}, {N})",
            f"UPDATE t SET n = {N} WHERE id IN (1, 15, 30)",
        )
        dumped.do(f"INSERT INTO t VALUES ({1000 + turn + 50 * base}, {N})")
        dumped.do(f"DELETE FROM t WHERE id = {1000 + turn + 50 * base}")

    with failpoints.arm({point: partial(write, point) for point in changes}):
        done = dumped.dumped(dumped.dump())
    dumped.check()
    if not dumped.reads_only:
        assert done["tables"][0]["rows_superseded"] > 0


@ways(STRATEGIES)
def test_one_large_chunk_with_many_updates(make: Make) -> None:
    """Debezium: updatesLargeChunk."""
    dumped = make(chunk_rows=1000)
    dumped.table(rows=300)
    dumped.start()
    with at("chunk.after_read", lambda: dumped.do(f"UPDATE t SET n = {N} WHERE id % 2 = 0")):
        done = dumped.dumped(dumped.dump())
    [table] = done["tables"]
    # Without marks the chunk stands before the change, unless the log was read beyond it already.
    superseded = {0, 150} if dumped.reads_only else {150}
    assert table["rows_read"] == 300
    assert table["rows_superseded"] in superseded
    dumped.check()


@ways(EVERY)
def test_interleaved_and_rolled_back_transactions_and_savepoints(make: Make) -> None:
    dumped = make(chunk_rows=7)
    dumped.table(rows=150)
    dumped.start()
    with writers(dumped, 3, 200):
        for _ in range(2):
            dumped.dumped(dumped.dump())
    dumped.check()
    voided = sum(dumped.voided.values())
    assert voided <= 10, dumped.voided


@ways(EVERY)
def test_key_that_moves_between_read_and_unread_ranges(make: Make) -> None:
    """The row is met in no chunk or in two; its records say where it is."""
    dumped = make()
    dumped.table(rows=20)
    dumped.start()
    with gate("chunk.after_read", hit=2) as held:
        dump = dumped.dump()
        dumped.reach(held)
        dumped.do(f"UPDATE t SET id = 100, n = {N} WHERE id = 2")  # read → unread
        dumped.do(f"UPDATE t SET id = 2, n = {N} WHERE id = 19")  # unread → read
        dumped.do(f"UPDATE t SET id = 102, n = {N} WHERE id = 8")
        dumped.do(f"UPDATE t SET id = 101, n = {N} WHERE id = 7")
        dumped.do(f"UPDATE t SET id = 7, n = {N} WHERE id = 101")
        held.open()
        dumped.dumped(dump)
    dumped.check()


@ways(STRATEGIES)
def test_events_that_share_a_position(make: Make) -> None:
    """All rows of a transaction commit at one position; the window's edge never parts them."""
    dumped = make()
    dumped.table(rows=20)
    dumped.start()
    with gate("chunk.after_read", hit=1) as held:
        dump = dumped.dump()
        dumped.reach(held)
        dumped.do(
            f"UPDATE t SET n = {N} WHERE id <= 10",
            "DELETE FROM t WHERE id IN (3, 8)",
            f"INSERT INTO t VALUES (3, {N})",
            f"UPDATE t SET n = {N} WHERE id <= 3",
        )
        held.open()
        dumped.dumped(dump)
    events = dumped.check()
    [xid] = {e.xid for e in events if e.op in "IUD"}
    at_xid = [place for place, e in enumerate(events) if e.xid == xid and e.op in "IUD"]
    assert at_xid == list(range(at_xid[0], at_xid[0] + 16)), "nothing stands between its rows"


@ways(only("postgres", STRATEGIES))  # others leave columns out by binlog_row_image: test_row_images
def test_unchanged_large_values_are_not_lost(make: Make) -> None:
    """TOAST: the record of an update lacks what it did not change."""
    dumped = make()
    dumped.table(
        columns="id int PRIMARY KEY, n int NOT NULL, large text",
        rows=series(12, "i, 1, repeat(md5(i::text), 300)"),
    )
    dumped.do("ALTER TABLE t ALTER large SET STORAGE EXTERNAL", "UPDATE t SET large = large || 'x'")
    dumped.do("TRUNCATE aside.ledger")
    dumped.start()
    with gate("chunk.after_read", hit=2) as held:
        dump = dumped.dump()
        dumped.reach(held)
        dumped.do(f"UPDATE t SET n = {N} WHERE id IN (2, 7, 11)")
        dumped.do(f"UPDATE t SET n = {N}, id = 50 WHERE id = 8")
        dumped.do(f"UPDATE t SET n = {N}, large = 'short' WHERE id = 9")
        held.open()
        dumped.dumped(dump)
    dumped.check()


@ways(EVERY)
def test_traffic_only_in_tables_that_are_not_captured(make: Make) -> None:
    """Debezium: processingOfMessagesShouldHappenOnlyWhenSnapshotIsRunning. The log shows nothing
    of ours, and windows close all the same.
    """
    dumped = make()
    dumped.table(rows=20)
    dumped.sql.execute("CREATE TABLE aside.busy (id serial, PRIMARY KEY (id))")
    dumped.start()
    with dumped.connect() as connection:
        insert = partial(connection.execute, "INSERT INTO aside.busy VALUES (DEFAULT)")
        with repeatedly(insert, 0.005):
            dumped.dumped(dumped.dump())
    dumped.check()


@ways(EVERY)
def test_open_and_prepared_transactions(make: Make) -> None:
    """What they wrote comes later; no chunk waits for them."""
    dumped = make()
    dumped.table(rows=20)
    dumped.start()
    with dumped.connect(autocommit=False) as open_, dumped.connect() as prepared:
        open_.execute("SAVEPOINT a")
        open_.execute(f"UPDATE t SET n = {N} WHERE id <= 3".encode())
        open_.execute("SAVEPOINT b")
        open_.execute("DELETE FROM t WHERE id = 4")
        prepared.execute(dumped.on.begins)
        prepared.execute(f"UPDATE t SET n = {N} WHERE id IN (9, 10)".encode())
        prepared.execute(f"INSERT INTO t VALUES (40, {N})".encode())
        for statement in dumped.on.prepares:
            prepared.execute(statement)
        dumped.dumped(dumped.dump())
        prepared.execute(dumped.on.commits)
        open_.execute("ROLLBACK TO SAVEPOINT b")
        open_.commit()
        dumped.dumped(dumped.dump())
    dumped.check()


@ways(EVERY)
def test_truncate_while_the_table_is_dumped(make: Make) -> None:
    dumped = make()
    dumped.table(rows=20)
    dumped.start()
    with gate("chunk.after_low", hit=3) as held:
        dump = dumped.dump()
        dumped.reach(held)
        dumped.do("TRUNCATE TABLE t", f"INSERT INTO t VALUES (3, {N}), (60, {N})")
        held.open()
        dumped.dumped(dump)
    dumped.check()
    assert dumped.source("t", ("id",)).keys() == {("3",), ("60",)}
