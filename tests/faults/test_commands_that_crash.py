"""A command at which capture dies is stored: it must not end every capture that comes after."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.capture_fixture import Source

from tidelog.control.commands import PauseDump, ResumeDump
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
    fatal, other = mailbox.send(PauseDump()), mailbox.send(ResumeDump())
    for _ in range(2):
        dying = source.start("command.begun:kill")
        source.wait_for(lambda dying=dying: dying.died)
        assert mailbox.is_waiting(fatal)
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


def test_signals_are_acted_on_once_and_in_order_whenever_capture_dies(source: Source) -> None:
    source.sql.execute(
        "CREATE TABLE debezium_signal (id varchar(42) PRIMARY KEY, type varchar(32) NOT NULL, "
        "data varchar(2048))"
    )
    text = source.config_file.read_text()
    named = text.replace("tables: ['app.*']", "tables: ['app.*'], signal_table: debezium_signal")
    source.config_file.write_text(named.replace(": debezium", ": public.debezium"))
    first = source.start()
    source.wait_led()
    with source.sql.transaction():
        source.write(1, 1)
        source.sql.execute(
            "INSERT INTO debezium_signal SELECT i, 'log', json_build_object('message', 'no ' || i) "
            "FROM generate_series(1, 30) i"
        )
        source.write(2, 2)
    source.wait_for(lambda: 2 in source.inserted())
    first.stop()
    with source.sql.transaction():
        source.write(3, 3)
        source.sql.execute(
            "INSERT INTO debezium_signal SELECT i, 'log', json_build_object('message', 'no ' || i) "
            "FROM generate_series(31, 60) i"
        )
        source.write(4, 4)
    for failpoint in ("signals.kept:kill", "signals.delivered_one:kill:7"):
        dying = source.start(failpoint)
        source.wait_for(lambda dying=dying: dying.died)
    source.start()

    def messages() -> list[int]:
        logs = "".join(capture.log_file.read_text() for capture in source.captures)
        return [int(n) for n in re.findall(r"message of command \w+: no (\d+)", logs)]

    source.wait_for(lambda: 60 in messages() and 4 in source.inserted())
    assert messages() == list(range(1, 61))
    assert source.inserted() == [1, 2, 3, 4]
