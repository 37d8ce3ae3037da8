"""A command at which capture dies is stored: it must not end every capture that comes after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.capture_fixture import Source

from tidelog.control.commands import PauseSnapshot, ResumeSnapshot
from tidelog.control.mailbox import Mailbox
from tidelog.state.sqlite import SqliteState

pytestmark = pytest.mark.integration


@pytest.fixture
def source(database: str, tmp_path: Path) -> Iterator[Source]:
    made = Source(database, tmp_path)
    yield made
    made.close()


def test_command_that_ends_capture_twice_is_set_aside(source: Source) -> None:
    source.write(1, 10)
    state = SqliteState(source.config.state.url)
    mailbox = Mailbox(state)
    fatal, other = mailbox.send(PauseSnapshot()), mailbox.send(ResumeSnapshot())
    for _ in range(2):
        dying = source.start("command.begun:kill")
        source.wait_for(lambda dying=dying: dying.died)
        assert mailbox.waits(fatal)
    source.start()
    outcome = mailbox.wait(fatal, 120)
    assert outcome is not None
    assert "set aside: capture ended 2 times" in (outcome.error or "")
    done = mailbox.wait(other, 120)
    assert done is not None
    assert done.error is None
    state.close()
    source.write(11, 11)
    source.wait_for(lambda: 11 in source.inserted())
