"""A source that does not answer: what needs no answer continues, status and commands first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.stalling_proxy import StallingProxy, simple_query
from tests.integration.windows.live import Live

from tidelog import app
from tidelog.control.commands import (
    CancelDump,
    PauseDump,
    ResumeDump,
    SetDumpOptions,
    StartDump,
)
from tidelog.sources.postgres.chunks.watermarks import TAKE_SNAPSHOT

pytestmark = pytest.mark.integration

LOOK_UP = simple_query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
"""With this the catalogue begins to look one table up, and nothing else begins."""
PATIENCE_S = 20.0
"""For a command. One that waits for the source has no answer at all, however long one waits."""


@pytest.fixture
def proxy(database: str) -> Iterator[StallingProxy]:
    with StallingProxy(database) as made:
        yield made


@pytest.fixture
def live(
    proxy: StallingProxy, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Live]:
    made = Live(
        database,
        tmp_path,
        monkeypatch,
        chunk_rows=2,
        url=proxy.url,
        poll_interval_s=3600.0,
        patience_s=60.0,
    )
    made.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL)")
    made.sql.execute("INSERT INTO t SELECT i, 1 FROM generate_series(1, 10) i")
    try:
        made.start()
        made.dumped(made.dump())  # what is done once is done
        yield made
    finally:
        proxy.release()
        made.close()


def everything_but_the_source_answers(live: Live, dump_id: str) -> None:
    """Status is fresh, every command that asks the source nothing is acted on."""
    before = app.status(live.config).document["updated_ms"]
    live.wait_for(
        lambda: app.status(live.config).document["updated_ms"] > before, "status is fresh"
    )
    for command in (
        PauseDump(dump_id=dump_id),
        ResumeDump(dump_id=dump_id),
        SetDumpOptions(delay_ms=1),
    ):
        outcome = app.send_command(live.config, command, timeout_s=PATIENCE_S).to_dict()
        assert outcome["error"] is None, outcome
    shown = {d["dump_id"]: d["status"] for d in app.status(live.config).document["dumps"]}
    assert dump_id in shown


def test_snapshot_that_does_not_come_holds_up_no_command(live: Live, proxy: StallingProxy) -> None:
    """A dump's table begins with a snapshot, which tells what its chunks can't see."""
    proxy.arm(simple_query(TAKE_SNAPSHOT))
    dump_id = live.dump()
    assert proxy.stalled.wait(PATIENCE_S)
    everything_but_the_source_answers(live, dump_id)
    proxy.release()
    live.dumped(dump_id)
    live.check()


@pytest.mark.parametrize("mode", ["incremental", "blocking"])
def test_table_that_cannot_be_looked_up_now_holds_up_no_command(
    live: Live, proxy: StallingProxy, mode: str
) -> None:
    live.wait_for(lambda: "public.t" in live.published(), "it is published")
    proxy.arm(LOOK_UP, passing=1)  # the command itself looks it up, to say at once what is wrong
    dump_id = live.dump(mode=mode)
    assert proxy.stalled.wait(PATIENCE_S)
    if mode == "incremental":
        everything_but_the_source_answers(live, dump_id)
    else:  # it can't be paused
        before = app.status(live.config).document["updated_ms"]
        live.wait_for(
            lambda: app.status(live.config).document["updated_ms"] > before, "status is fresh"
        )
        app.send_command(live.config, SetDumpOptions(delay_ms=1), timeout_s=PATIENCE_S)
    proxy.release()
    live.dumped(dump_id)
    live.check()


def test_dump_cancelled_while_its_table_is_looked_up_stays_cancelled(
    live: Live, proxy: StallingProxy
) -> None:
    proxy.arm(LOOK_UP, passing=1)
    dump_id = live.dump()
    assert proxy.stalled.wait(PATIENCE_S)
    app.send_command(live.config, CancelDump(dump_id=dump_id), timeout_s=PATIENCE_S)
    proxy.release()
    following = live.dump()
    live.dumped(following)
    [status] = [
        d["status"] for d in app.status(live.config).document["dumps"] if d["dump_id"] == dump_id
    ]
    assert status == "aborted"
    assert len(live.completions()) == 2  # of the fixture's, and of the one that followed
    live.check()


def test_chunk_that_failed_is_looked_into_without_holding_up_commands(
    live: Live, proxy: StallingProxy
) -> None:
    """Whether a table that can't be read is there at all is asked of the source."""
    live.sql.execute(
        "CREATE FUNCTION broken() RETURNS bool LANGUAGE plpgsql AS "
        "$$BEGIN RAISE EXCEPTION 'no'; END$$"
    )
    proxy.arm(LOOK_UP, passing=2)  # the command's, the one before the first chunk
    command = StartDump(
        dump_id="fails", tables=("public.t",), conditions={"public.t": "public.broken()"}
    )
    app.send_command(live.config, command, timeout_s=PATIENCE_S)
    assert proxy.stalled.wait(PATIENCE_S)
    everything_but_the_source_answers(live, "fails")
    proxy.release()

    def ended() -> str:
        return str(
            next(
                d["status"]
                for d in app.status(live.config).document["dumps"]
                if d["dump_id"] == "fails"
            )
        )

    live.wait_for(lambda: ended() == "aborted", "it ends")
