"""Two captures of one event log that were given different state stores by mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.capture_fixture import Source

from tidelog.app.base.state_copy import copy_state

pytestmark = pytest.mark.integration


def other_store(source: Source, name: str) -> str:
    url = f"sqlite:///{source.directory}/{name}.db"
    text = source.config_file.read_text()
    source.config_file.write_text(text.replace(source.state, url))
    return url


def test_the_one_that_led_before_ends_and_says_why(database: str, tmp_path: Path) -> None:
    source = Source(database, tmp_path)
    first = source.start()
    source.wait_led()
    source.write(1, 10)
    source.wait_for(lambda: len(source.inserted()) == 10)
    other_store(source, "another")
    second = source.start()
    source.write(11, 20)
    assert first.wait(60) == 2
    assert "led through another state store" in first.log_file.read_text()
    source.wait_for(lambda: second.died or len(source.inserted()) == 20)
    assert not second.died, second.log_file.read_text()
    assert "was led through another state store" in second.log_file.read_text()
    assert source.inserted() == list(range(1, 21))
    source.close()


def test_a_store_that_was_copied_is_used_no_more(database: str, tmp_path: Path) -> None:
    source = Source(database, tmp_path)
    first = source.start()
    source.wait_led()
    assert first.stop() == 0
    before = source.config_file.read_text()
    copy_state(source.state, other_store(source, "copied"))
    second = source.start()
    source.write(1, 10)
    source.wait_for(lambda: second.died or len(source.inserted()) == 10)
    assert second.stop() == 0
    source.config_file.write_text(before)
    third = source.start()
    assert third.wait(60) == 2, third.log_file.read_text()
    source.close()
