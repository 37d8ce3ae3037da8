"""A whole capture from a standby: dumps beside the log, invariants 1 to 3 of what comes out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.postgres.pair import PUBLISH, Pair, pair, servers, writers
from tests.integration.windows.live import Live

__all__ = ["pair", "servers"]  # fixtures

pytestmark = pytest.mark.integration
Make = Callable[..., Live]


@pytest.fixture
def make(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[Live] = []

    def make(**options: object) -> Live:
        live = Live(
            pair.primary.dsn(pair.name),
            tmp_path,
            monkeypatch,
            watermarks="snapshot",
            url=pair.dsn,
            **options,  # type: ignore[arg-type]
        )
        made.append(live)
        live.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL)")
        live.sql.execute("INSERT INTO t SELECT i, 0 FROM generate_series(0, 2999) i")
        for statement in PUBLISH:
            live.sql.execute(statement.encode())
        pair.standby.replayed()
        return live

    yield make
    for live in made:
        live.close()


@pytest.mark.parametrize("parallelism", [pytest.param(1, marks=pytest.mark.thorough), 4])
def test_dumps_from_a_standby_fit_the_log(parallelism: int, pair: Pair, make: Make) -> None:
    """Invariants 2 and 3, while eight writers change the primary."""
    live = make(chunk_rows=100, parallelism=parallelism, snapshot="initial")
    with writers(pair, 8):
        with pair.logging_snapshots():
            live.start()
        live.wait_for(live.completions, "the initial dump is done")
        superseded = 0
        for _ in range(3):
            done = live.dumped(live.dump())
            superseded += done["tables"][0]["rows_superseded"]
        voided = live.voided
    pair.standby.replayed()
    live.check()
    assert superseded, "no record superseded a row: nothing was tested"
    # A dump begins without the keys that transactions emitted before it touched.
    assert sum(voided.values()) <= 4 * (3 + parallelism), voided


def test_restarted_capture_resumes_at_the_standbys_slot(pair: Pair, make: Make) -> None:
    live = make(chunk_rows=100)
    with pair.logging_snapshots():
        live.start()
    with writers(pair, 2):
        live.dumped(live.dump())
        live.restart()
        live.dumped(live.dump())
    live.check()


def test_table_created_later_is_dumped(pair: Pair, make: Make) -> None:
    """The primary's publication is for all tables: nothing has to be done."""
    live = make(chunk_rows=100, snapshot="initial")
    with pair.logging_snapshots():
        live.start()
    live.sql.execute("CREATE TABLE late (id int PRIMARY KEY, n int)")
    live.sql.execute("INSERT INTO late VALUES (1, 1)")
    live.wait_for(lambda: live.completions("public.late"), "the new table is dumped")
    live.check("public.late")


def test_blocking_dump_from_a_standby(pair: Pair, make: Make) -> None:
    live = make(chunk_rows=500)
    with pair.logging_snapshots():
        live.start()
        with writers(pair, 4):
            begun = time.monotonic()
            done = live.dumped(live.dump(mode="blocking"))
            assert time.monotonic() - begun < 30
    assert done["tables"][0]["rows_read"] >= 2000
    live.check()
