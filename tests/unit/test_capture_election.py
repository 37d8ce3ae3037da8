"""Epochs of capture grow whatever becomes of the state store."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.eventlog.records import SOURCE, batch, register

from tidelog.app.elections import CaptureElection
from tidelog.config import Config, parse_config
from tidelog.errors import EventLogError
from tidelog.eventlog.writer import EventLogWriter


@pytest.fixture
def config(tmp_path: Path) -> Config:
    text = """
source: {kind: postgres, url: "postgresql://h/d", tables: ["a.b"]}
log: {path: log}
"""
    return parse_config(text, "tidelog.yaml", tmp_path, {})


def append(config: Config, epoch: int) -> None:
    writer = EventLogWriter.create(config.log.path, SOURCE, epoch)
    register(config.log.path)
    writer.append_log([batch([b"x"], 10 * epoch)])
    writer.close()


def test_a_store_that_was_wiped_while_we_stood_by_does_not_count_from_anew(
    config: Config, tmp_path: Path
) -> None:
    with closing(CaptureElection(config, "a")) as a, closing(CaptureElection(config, "b")) as b:
        lease = a.acquire()
        assert lease is not None
        assert lease.epoch == 1
        append(config, 7)
        a.release(lease)
        again = b.acquire()
        assert again is not None
        assert again.epoch == 8
        assert a.acquire() is None
        assert b.renew(again).epoch == 8
        assert a.leader() == b.leader() == "b"


def test_a_lease_is_given_back_if_the_log_cannot_be_read(config: Config) -> None:
    append(config, 3)
    with closing(CaptureElection(config, "a")) as a, closing(CaptureElection(config, "b")) as b:
        (Path(config.log.path) / "log.json").write_text("{")
        with pytest.raises(EventLogError):
            a.acquire()
        assert b.leader() is None
