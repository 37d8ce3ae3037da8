"""A composite type that was altered by a transaction that nobody can see yet, but the log shows."""

from __future__ import annotations

import time

import pytest
from tests.integration.windows.rules import Make

from tidelog.eventlog.reader import EventLog

pytestmark = [pytest.mark.integration, pytest.mark.thorough]


def test_log_has_no_rows_of_a_type_before_its_change_is_visible(live: Make) -> None:
    """What capture relies on: the server waits for the type's lock to write the rows' texts."""
    capture = live()
    capture.sql.execute("CREATE TYPE pair AS (a int, b int)")
    capture.sql.execute("CREATE TABLE t (id int PRIMARY KEY, p pair)")
    capture.start()
    capture.sql.execute("INSERT INTO t VALUES (1, '(1,2)')")
    capture.wait_for(lambda: any(e.key == ("1",) for e in capture.events("public.t")), "a row")
    hung = capture.hang(
        "ALTER TYPE pair DROP ATTRIBUTE a",
        "ALTER TYPE pair ADD ATTRIBUTE c int",
        "INSERT INTO t VALUES (2, '(1,2)')",
    )

    def is_there() -> bool:
        return any(event.xid == hung.xid for event in capture.events("public.t"))

    time.sleep(2)
    assert not is_there()
    hung.release()
    capture.wait_for(is_there, "its row")
    schemas = EventLog.open(capture.directory / "log").schemas
    [found] = {event.schema_id for event in capture.events("public.t") if event.xid == hung.xid}
    assert schemas.get(found).structures == ()
