"""`tidelog capture` where event log, state, or both are put back from an older copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.faults.capture_fixture import Source

from tidelog.errors import OffsetAheadError
from tidelog.eventlog.reader import EventLog


def put_back(directory: Path, what: str, saved: Path) -> None:
    if what in ("log", "both"):
        shutil.rmtree(directory / "log")
        shutil.copytree(saved / "log", directory / "log")
    if what in ("state", "both"):
        for each in directory.glob("state.db*"):
            each.unlink()
        for each in saved.glob("state.db*"):
            shutil.copy2(each, directory / each.name)
    if what == "segments":
        for each in sorted((directory / "log").glob("0*.arrow"))[-3:]:
            each.unlink()


@pytest.mark.parametrize("what", ["log", "state", "both", "segments"])
def test_no_offset_is_issued_twice_and_no_row_is_missing(
    what: str, database: str, tmp_path: Path
) -> None:
    source = Source(database, tmp_path)
    config = source.config_file.read_text()
    source.config_file.write_text(config.replace("slot:", "snapshot: when_needed, slot:"))
    source.write(1, 500)
    source.start()
    source.wait_led()
    source.write(501, 510)
    source.wait_for(lambda: len(source.inserted()) == 10)
    assert source.captures[-1].stop() == 0
    saved = tmp_path / "saved"
    shutil.copytree(tmp_path / "log", saved / "log")
    for each in tmp_path.glob("state.db*"):
        shutil.copy2(each, saved / each.name)
    source.start()
    source.write(511, 520)
    source.sql.execute("DELETE FROM app.t WHERE id <= 100")
    source.wait_for(lambda: sum(change.op == "D" for change in source.records()) == 100)
    assert source.captures[-1].stop() == 0
    log = EventLog.open(tmp_path / "log")
    ahead = log.latest_offset()
    issued = {change.offset for change in source.records()}
    put_back(tmp_path, what, saved)
    end = EventLog.open(tmp_path / "log").latest_offset()
    source.start()
    source.write(521, 540)

    def there() -> set[int]:
        changes = (change for change in source.records() if change.offset >= end)
        return {int(change.new["id"] or 0) for change in changes if change.new}

    # Where the log went back, the slot is ahead of it: all is dumped again.
    expected = set(range(521 if what == "state" else 101, 541))
    source.wait_for(lambda: there() >= expected, 40)
    if what == "state":
        log.check_place(ahead)
    else:
        assert end < ahead
        with pytest.raises(OffsetAheadError, match=rf"at offset {ahead}, .* at {end}: "):
            log.check_place(ahead)
        fresh = {change.offset for change in source.records() if change.offset >= end}
        assert not fresh & issued, "an offset was issued twice"
    assert source.captures[-1].stop() == 0
    source.close()
