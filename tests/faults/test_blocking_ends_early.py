"""A blocking dump that ends before its last row leaves no row where the log has gone on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.windows.live import Live, at, check_no_time_travel

from tidelog import app
from tidelog.capture.session import loop
from tidelog.control.commands import CancelDump
from tidelog.errors import ChunkLostError
from tidelog.sources.postgres.chunks.blocking import PostgresBlockingReader

pytestmark = pytest.mark.integration


def update_behind_the_snapshot(live: Live, patch: pytest.MonkeyPatch) -> None:
    """The log has come to the update, and is held right before it, while the rows are read."""
    begin = PostgresBlockingReader.begin
    numbers = iter(range(2, 99))

    def beginning(self: PostgresBlockingReader, timeout_s: float) -> int:
        position = begin(self, timeout_s)
        live.sql.execute(f"UPDATE t SET n = {next(numbers)}".encode())
        return position

    patch.setattr(PostgresBlockingReader, "begin", beginning)
    patch.setattr(loop, "PAUSED_TURN_S", 0.3)  # rows wait for this long to be appended


@pytest.mark.parametrize("how", ["lost", "stopped", "cancelled"])
def test_rows_of_a_blocking_dump_that_ends_early_stand_before_the_rest_of_the_log(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Invariant 2 (docs/INVARIANTS.md)."""
    live = Live(database, tmp_path, monkeypatch, chunk_rows=1)

    def lost() -> None:
        raise ChunkLostError("the connection was lost")

    def stopped() -> None:
        live._stop.set()
        live.one("SELECT pg_sleep(1)")  # the log goes on meanwhile

    def cancelled() -> None:
        app.send_command(live.config, CancelDump(), timeout_s=5)

    ends: dict[str, Callable[[], None]] = {
        "lost": lost,
        "stopped": stopped,
        "cancelled": cancelled,
    }
    try:
        live.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL)")
        live.sql.execute("INSERT INTO t SELECT i, 1 FROM generate_series(1, 5) i")
        live.start()
        update_behind_the_snapshot(live, monkeypatch)
        with at("blocking.read", ends[how], hit=2):
            dump_id = live.dump(mode="blocking")
            if how == "lost":
                live.dumped(dump_id)
            elif how == "stopped":
                live.stop()
            else:
                live.catch_up()
        check_no_time_travel(live.events("public.t"))
    finally:
        live.close()
