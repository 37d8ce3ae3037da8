"""The stale-read race and the idle source, under each watermark strategy."""

from __future__ import annotations

import numpy as np
import pytest
from tests.integration.windows.live import at, check_no_time_travel, ten_rows
from tests.integration.windows.rules import Make, rule

from tidelog.model.records import ranges_of
from tidelog.sources.postgres.chunks.watermarks import PgSnapshot

pytestmark = pytest.mark.integration
STRATEGIES = ["table", "message", "snapshot"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_logged_but_unseen_transaction_supersedes(live: Make, strategy: str) -> None:
    capture = ten_rows(live(chunk_rows=2, watermarks=strategy))
    hang = "UPDATE t SET n = 2 WHERE id = 9"
    with at("chunk.after_read", lambda: capture.hang_emitted(hang)):
        done = capture.dumped(capture.dump())
    check_no_time_travel(capture.events("public.t"))
    assert done["tables"][0]["rows_superseded"] == 1
    capture.hung[0].release()
    capture.check()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_transaction_emitted_before_the_dump_was_requested(live: Make, strategy: str) -> None:
    capture = ten_rows(live(watermarks=strategy))
    hung = capture.hang_emitted("UPDATE t SET n = 2 WHERE id = 5")
    capture.dumped(capture.dump())
    voided = capture.voided
    hung.release()
    capture.check()
    assert voided == {"keys_not_held": 1}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_dump_ends_on_an_idle_source_with_open_transactions(live: Make, strategy: str) -> None:
    capture = ten_rows(live(chunk_rows=2, watermarks=strategy))
    with capture.connect(autocommit=False) as writer:
        writer.execute("UPDATE t SET n = 2 WHERE id = 5")
        writer.execute("SAVEPOINT s")
        writer.execute("UPDATE t SET n = 2 WHERE id = 6")
        capture.dumped(capture.dump())
        writer.commit()
    capture.check()


def everything_is_visible(patch: pytest.MonkeyPatch) -> None:
    """What stands in the log before the emission point is taken for seen."""
    patch.setattr(PgSnapshot, "visible", lambda self, xid: np.ones(len(xid), np.bool_))
    patch.setattr(PgSnapshot, "invisible_ranges", lambda self, upto_xid: ranges_of([]))


@rule(everything_is_visible)
def test_snapshots_decide_and_not_positions(make: Make) -> None:
    live = ten_rows(make(chunk_rows=2, watermarks="snapshot"))
    with at("chunk.after_read", lambda: live.hang_emitted("UPDATE t SET n = 2 WHERE id = 9")):
        live.dumped(live.dump())
    live.hung[0].release()
    live.check()
