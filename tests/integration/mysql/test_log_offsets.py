"""Offsets that the protocol's 32 bits can't say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.integration.mysql.test_log_reader import run

from tidelog.sources.mysql.stream import prepared_transactions, replication

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("fresh", [True, False])
def test_a_place_behind_4_gib_is_reached_from_the_files_beginning(
    fresh: bool, make_capture: Callable[..., LogCapture], sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit that is lower, or it would take 4 GiB."""
    monkeypatch.setattr(replication, "MAX_OFFSET", 4)
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    first = make_capture()
    first.start()
    run(sql, "INSERT INTO t VALUES (3), (4), (5)")
    first.catch_up()
    first.reader.close()
    assert [row.new and row.new["a"] for row in first.rows] == [3, 4, 5]
    row = first.rows[0]
    begin = first.resumes[0]
    resume = None if fresh else type(begin)(row.position, row.position, 0)
    again = make_capture(schemas=first.schemas)
    again.start(resume)
    run(sql, "INSERT INTO t VALUES (6)")
    again.catch_up()
    assert [row.new and row.new["a"] for row in again.rows] == ([6] if fresh else [4, 5, 6])


@pytest.mark.parametrize("events", [1, 32_768])
def test_of_a_file_beyond_4_gib_only_the_prepared_group_is_read_again(
    events: int,
    make_capture: Callable[..., LogCapture],
    sql: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And neither what other transactions prepared before nor what the log began behind."""
    monkeypatch.setattr(replication, "MAX_OFFSET", 4)
    defaults = replication.BinlogStream.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "buffer_events", events)
    monkeypatch.setattr(prepared_transactions, "MAX_GROUP_BYTES", 0)
    run(sql, "CREATE TABLE t (a INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    for number in (2, 3):
        run(sql, f"XA START 'g{number}'", f"INSERT INTO t VALUES ({number})")
        run(sql, f"XA END 'g{number}'", f"XA PREPARE 'g{number}'")
        if number == 2:
            run(sql, "XA ROLLBACK 'g2'")
    capture = make_capture()
    capture.start()
    run(sql, "XA COMMIT 'g3'", "INSERT INTO t VALUES (4)")
    capture.catch_up()
    for number in (5, 6):
        run(sql, f"XA START 'g{number}'", f"INSERT INTO t VALUES ({number})")
        run(sql, f"XA END 'g{number}'", f"XA PREPARE 'g{number}'")
        run(sql, f"XA {'ROLLBACK' if number == 5 else 'COMMIT'} 'g{number}'")
    capture.catch_up()
    assert [row.new and row.new["a"] for row in capture.rows] == [3, 4, 6]
