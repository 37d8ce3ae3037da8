"""The stale-read race, provoked: a commit stands in the log and no SELECT can see it.

PostgreSQL logs a commit, waits for the synchronous standby, and only then lets others see it. With
a standby that never answers the gap between the two is as long as a test wants.
"""

from __future__ import annotations

import functools

import pytest
from tests.integration.windows import mutations
from tests.integration.windows.live import at, check_no_time_travel, ten_rows
from tests.integration.windows.rules import Make, rule

from tidelog.app.capture import run as capture_run
from tidelog.app.capture import run as capture_sizes
from tidelog.capture.session.loop import CaptureOptions
from tidelog.capture.windows import Windows

pytestmark = pytest.mark.integration


@rule(mutations.published_rule)
def test_row_of_a_logged_but_unseen_transaction_is_superseded(make: Make) -> None:
    """Invariant 2. The published algorithm emits the old row after the new one."""
    live = ten_rows(make(chunk_rows=2))
    with at("chunk.after_high", lambda: live.hang_emitted("UPDATE t SET n = 2 WHERE id = 9")):
        done = live.dumped(live.dump())
    check_no_time_travel(live.events("public.t"))
    assert done["tables"][0]["rows_superseded"] == 1
    assert live.voided == {}, "its keys were held"
    live.hung[0].release()
    live.check()


@rule(
    mutations.published_rule,
    mutations.keys_taken_for_held,
    mutations.replay_begins_at_request,
)
def test_transaction_emitted_before_the_dump_was_requested(make: Make) -> None:
    """Its keys were not held: the chunk is void, and the event log tells them."""
    live = ten_rows(make())
    hung = live.hang_emitted("UPDATE t SET n = 2 WHERE id = 5")
    live.dumped(live.dump())
    voided = live.voided
    hung.release()
    live.check()
    assert voided == {"keys_not_held": 1}


@rule(mutations.event_log_not_asked)
def test_transaction_emitted_before_a_restart(make: Make) -> None:
    live = ten_rows(make())
    hung = live.hang_emitted("UPDATE t SET n = 2 WHERE id = 5")
    live.restart()
    live.dumped(live.dump())
    hung.release()
    live.check()


@rule(mutations.dropped_keys_not_noticed)
def test_keys_given_up_for_lack_of_room(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A history of one byte holds nothing: every unseen transaction is looked up."""
    monkeypatch.setattr(capture_run, "Windows", _windows(retain_bytes=1))
    live = ten_rows(make(chunk_rows=2))
    with at("chunk.after_high", lambda: live.hang_emitted("UPDATE t SET n = 2 WHERE id = 9")):
        live.dumped(live.dump())
    live.hung[0].release()
    live.check()
    assert live.voided["keys_not_held"] >= 1


@rule(mutations.dropped_transactions_not_noticed)
def test_transactions_given_up_for_lack_of_room(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_run, "Windows", _windows(journal_entries=1))
    live = ten_rows(make(chunk_rows=2))
    live.dumped(live.dump())  # from now on the journal is complete
    live.hang_emitted("UPDATE t SET n = 2 WHERE id = 9")
    live.sql.execute("UPDATE t SET n = 2 WHERE id = 1")
    live.catch_up()
    live.dumped(live.dump())
    live.hung[0].release()
    live.check()


@rule(mutations.visible_to_one_is_forgotten)
def test_transaction_that_becomes_visible_after_the_read(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots taken later see it; the open window's does not, and needs its keys."""
    often = functools.partial(CaptureOptions, journal_prune_entries=-1)
    monkeypatch.setattr(capture_sizes, "CaptureOptions", often)
    live = ten_rows(make(chunk_rows=5))

    def release() -> None:
        live.hung[0].release()
        live.one("SELECT pg_sleep(0.5)")  # housekeeping forgets what is visible, each 0.1 s

    with (
        at("chunk.after_high", lambda: live.hang_emitted("UPDATE t SET n = 2 WHERE id = 9")),
        at("chunk.after_read", release, hit=2),
    ):
        live.dumped(live.dump())
    live.check()


@rule(mutations.published_rule)
def test_hung_transactions_of_many_kinds(make: Make) -> None:
    """Deletes, inserts, key changes and rolled back savepoints, none of them seen."""
    live = ten_rows(make(chunk_rows=3))

    def writes() -> None:
        live.hang_emitted(
            "DELETE FROM t WHERE id = 8",
            "SAVEPOINT a",
            "UPDATE t SET n = 2 WHERE id = 7",
            "ROLLBACK TO a",
            "SAVEPOINT b",
            "UPDATE t SET n = 2 WHERE id = 9",
            "RELEASE b",
        )
        live.hang_emitted("UPDATE t SET id = 50, n = 2 WHERE id = 5")
        live.hang_emitted("INSERT INTO t VALUES (60, 2)")

    with at("chunk.after_high", writes):
        live.dumped(live.dump())
    check_no_time_travel(live.events("public.t"))
    for hung in live.hung:
        hung.release()
    live.check()
    keys = {e.key[0] for e in live.events("public.t") if e.op == "r"}
    assert keys == {"1", "2", "3", "4", "6", "7", "10"}, "7: that savepoint was rolled back"


def _windows(**limits: int) -> object:
    """Windows with other limits than the runtime gives."""

    def making(*arguments: object, **options: object) -> Windows:
        return Windows(*arguments, **{**options, **limits})  # type: ignore[arg-type]

    return functools.wraps(Windows)(making)
