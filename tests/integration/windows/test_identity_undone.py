"""A table loses what identifies its rows, is changed, and gets it back: with and without the event
trigger, while capture runs, while it is down, and in one transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.integration.windows.live import Live
from tests.integration.windows.rules import Make
from tests.integration.windows.test_changes_undone import agrees
from tests.integration.windows.test_ddl_trigger import BACK, LOSSES, NO_IDENTITY, captured

pytestmark = pytest.mark.integration

CHANGES = ("UPDATE t SET n = n + 100 WHERE id < 4", "DELETE FROM t WHERE id = 9")
PATIENCE_S = 60.0


def in_steps(live: Live, loss: str) -> None:
    """The application tries again what fails until capture has looked."""
    for statement in LOSSES[loss]:
        live.sql.execute(statement.encode())
    for statement in CHANGES:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                live.sql.execute(statement.encode())
                break
            except NO_IDENTITY:
                assert time.monotonic() < deadline
                time.sleep(0.1)
    live.sql.execute(BACK[loss].encode())


def in_one_transaction(live: Live, loss: str) -> None:
    with live.connect(autocommit=False) as application:
        for statement in (*LOSSES[loss], *CHANGES, BACK[loss]):
            application.execute(statement.encode())


WAYS = {
    "live": (in_steps, False),
    "in one transaction": (in_one_transaction, False),
    "down": (in_steps, True),
    "down, in one transaction": (in_one_transaction, True),
}


def losses_and_ways() -> Iterator[object]:
    """Without the trigger only a capture that runs lets such changes through."""
    for at, loss in enumerate(LOSSES):
        for number, way in enumerate(WAYS):
            for trigger in (True, False) if way == "live" else (True,):
                marks = () if trigger and number == at % 4 else (pytest.mark.thorough,)
                name = f"{loss}-{way}-{'trigger' if trigger else 'no trigger'}"
                yield pytest.param(loss, way, trigger, marks=marks, id=name)


@pytest.mark.parametrize(("loss", "way", "trigger"), list(losses_and_ways()))
def test_changes_while_the_identity_was_away_are_made_good(
    live: Make, loss: str, way: str, trigger: bool
) -> None:
    capture = captured(live(poll_interval_s=0.5), trigger=trigger)
    work, down = WAYS[way]
    if down:
        capture.stop()
    work(capture, loss)
    if down:
        capture.start()
    agrees(capture)


@pytest.mark.parametrize("loss", ["key deferrable", "identity nothing"])
def test_without_the_trigger_one_transaction_fails_whole(live: Make, loss: str) -> None:
    """So nothing is changed that the log lacks."""
    capture = captured(live(poll_interval_s=0.5), trigger=False)
    with pytest.raises(NO_IDENTITY):
        in_one_transaction(capture, loss)
    agrees(capture)
