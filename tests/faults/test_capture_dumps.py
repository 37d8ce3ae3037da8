"""Dumps under hostile timing, where the history oracle once found, or could find, lost rows."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.integration.windows.live import Live, at, crash

from tidelog import app
from tidelog.errors import ChunkError
from tidelog.system import failpoints

WIDE = "(SELECT string_agg(md5(i::text || n), '') FROM generate_series(1, 300) n)"


def test_row_that_moves_to_a_range_read_before_is_not_lost(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are matched by an index's column; the primary key moves from an unread range to a read
    one by an update without the TOASTed value. Invariant 3 (docs/INVARIANTS.md).
    """
    live = Live(database, tmp_path, monkeypatch, chunk_rows=5)
    try:
        live.sql.execute("CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL, n int, v text)")
        live.sql.execute(
            f"INSERT INTO t SELECT i, 'c' || (1000 + i), 1, {WIDE} FROM generate_series(1, 20) i"
        )
        live.sql.execute("CREATE UNIQUE INDEX by_code ON t (code)")
        live.sql.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX by_code")
        live.start()
        moved = threading.Event()

        def move() -> None:
            if not moved.is_set():  # after the first chunk, before any other
                moved.set()
                live.sql.execute("UPDATE t SET id = -1, n = 2 WHERE id = 20")
                live.sql.execute("UPDATE t SET id = 50, n = 2 WHERE id = 1")

        with failpoints.arm({"chunk.durable_before_progress": move}):
            live.dumped(live.dump())
        assert moved.is_set()
        live.check(key=("code",))
    finally:
        live.close()


def test_key_that_another_row_moves_to_while_it_is_read_again_is_read_once_more(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both updates lack the TOASTed value. Invariant 3 (docs/INVARIANTS.md)."""
    live = Live(database, tmp_path, monkeypatch)
    try:
        live.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int, v text)")
        live.sql.execute(f"INSERT INTO t SELECT i, 1, {WIDE} FROM generate_series(1, 9) i")
        live.start()
        moved = threading.Event()

        def move() -> None:
            if not moved.is_set():  # the first row was read, its progress is not stored
                moved.set()
                live.sql.execute("DELETE FROM t WHERE id = 105")
                live.sql.execute("UPDATE t SET id = 105, n = 3 WHERE id = 6")
                live.wait_for(
                    lambda: any(e.op == "U" and e.n == 3 for e in live.events("public.t")),
                    "the second move is emitted",
                )

        with failpoints.arm({"chunk.durable_before_progress": move}):
            live.sql.execute("UPDATE t SET id = 105, n = 2 WHERE id = 5")
            live.wait_for(
                lambda: [e.n for e in live.events("public.t") if e.op == "r"] == [2, 3],
                "the key is read once more",
            )
        assert live.events("public.t")[-1].row == live.source("t", ("id",))[("105",)]
    finally:
        live.close()


def test_renamed_column_dumps_the_table_although_capture_dies_when_it_sees_it(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schema store knows the version by then, so a restart sees no change in the log."""
    live = Live(database, tmp_path, monkeypatch)
    try:
        live.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int, a text)")
        live.sql.execute("INSERT INTO t SELECT i, 1, 'a' FROM generate_series(1, 9) i")
        live.start()
        live.sql.execute("INSERT INTO t VALUES (10, 1, 'a')")
        live.dumped(live.dump())
        live.catch_up()
        with at("put.before_link", crash, hit=2):  # the first is the version itself
            with live.sql.transaction():
                live.sql.execute("ALTER TABLE t RENAME COLUMN a TO b")
                live.sql.execute("INSERT INTO t VALUES (11, 1, 'b')")
            live.crashes()
        live.start()
        live.wait_for(
            lambda: (
                [
                    dump["status"]
                    for dump in app.status(live.config).document.get("dumps", ())
                    if "renamed" in dump["reason"]
                ]
                == ["completed"]
            ),
            "the table is dumped for the new name",
        )
        live.check()
    finally:
        live.close()


def test_keys_of_a_failed_chunk_are_read_and_so_are_those_behind_it(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second chunk of keys must not count for the first, which is read again (invariant 3)."""
    live = Live(database, tmp_path, monkeypatch, chunk_rows=4)
    try:
        live.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
        live.sql.execute("INSERT INTO t SELECT i, 1 FROM generate_series(1, 10) i")
        live.start()
        before = len([e for e in live.events("public.t") if e.op == "r"])

        def fail() -> None:
            raise ChunkError("as if the connection were lost")

        with at("chunk.after_read", fail) as reached:
            found = live.dumped(live.dump(keys=[(str(i),) for i in range(1, 13)]))
        assert reached.is_set()
        (table,) = found["tables"]
        assert (table["keys_read"], table["keys_absent"], table["chunks"]) == (12, 2, 3)
        dumped = [e for e in live.events("public.t") if e.op == "r"][before:]
        assert len(dumped) == 10
    finally:
        live.close()
