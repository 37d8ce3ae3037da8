"""Dumps under hostile timing, where the history oracle once found, or could find, lost rows."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.integration.windows.live import Live

from tidelog import failpoints

WIDE = "(SELECT string_agg(md5(i::text || n), '') FROM generate_series(1, 300) n)"


def test_row_that_moves_to_a_range_read_before_is_not_lost(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are matched by an index's column; the primary key moves from an unread range to a read
    one by an update without the TOASTed value. Invariant 3 (DESIGN.md §3).
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
