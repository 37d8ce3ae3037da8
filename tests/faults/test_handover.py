"""The leadership is moved on purpose: nothing is lost, repeated, or waited for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.capture_fixture import Source

from tidelog import app
from tidelog.errors import UsageError

pytestmark = pytest.mark.integration


@pytest.fixture
def source(database: str, tmp_path: Path) -> Iterator[Source]:
    source = Source(database, tmp_path)
    # A lease that runs out is noticed as such: it lasts longer than a handover may.
    text = source.config_file.read_text().replace("lease_ms: 1500", "lease_ms: 60s, zone: a")
    source.config_file.write_text(text)
    yield source
    source.close()


def test_the_leadership_goes_to_whom_it_is_given_and_back(source: Source) -> None:
    source.write(1, 5)
    first = source.start()
    leader = source.wait_led()
    with pytest.raises(UsageError, match="no capture stands by"):
        app.hand_over(source.config, None, timeout_s=30)
    second = source.start()
    third = source.start()
    source.wait_for(lambda: len(app.status(source.config)["standbys"]) == 2)
    status = app.status(source.config)
    assert (status["epoch"], status["zone"], status["since_ms"] > 0) == (1, "a", True)
    holders = {one["holder"] for one in status["standbys"]}
    assert {int(holder.rpartition(":")[2]) for holder in holders} == {second.pid, third.pid}
    with pytest.raises(UsageError, match="nobody:1 does not stand by; "):
        app.hand_over(source.config, "nobody:1", timeout_s=30)
    to = next(holder for holder in holders if holder.endswith(f":{third.pid}"))
    source.write(6, 10)
    assert app.hand_over(source.config, to, timeout_s=50) == {"from": leader, "to": to}
    source.write(11, 15)
    source.wait_for(lambda: len(source.inserted()) == 10)
    source.wait_for(lambda: app.status(source.config)["holder"] == to)
    # Any may lead now, but for the one that gives it away.
    found = app.hand_over(source.config, None, timeout_s=50)
    assert found["from"] == to
    assert found["to"] in {leader, *holders} - {to}
    source.write(16, 20)
    source.wait_for(lambda: len(source.inserted()) == 15)
    assert source.inserted() == list(range(6, 21))
    assert not first.died
    assert not second.died
    assert not third.died
