"""What MariaDB has logged and no SELECT can see yet: its semi-sync AFTER_SYNC, with no replica.

PostgreSQL's way is in tests/integration/windows/test_stale_reads.py. MySQL's servers of the tests
have no such plugin.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from tests.behaviours.dumps.dumped import Dumped, Make
from tests.behaviours.dumps.sources import N, Source
from tests.behaviours.dumps.ways import Way, only, ways
from tests.integration.windows.live import PATIENCE_S, check_no_time_travel
from tests.integration.windows.rules import impatient
from tests.support.mysql import MariaDbServer

from tidelog.model.records import ranges_of
from tidelog.sources.mysql.chunks.watermarks import BinlogSnapshot

pytestmark = pytest.mark.integration
GTID = only("mariadb", [Way("gtid", 1, "mariadb")])
_WAITS = {
    "rpl_semi_sync_master_timeout": "60000",
    "rpl_semi_sync_master_wait_point": "AFTER_SYNC",
    "rpl_semi_sync_master_wait_no_slave": "ON",
    "rpl_semi_sync_master_enabled": "ON",
}


class Waiting:
    """Lets commits wait for a replica that is not there."""

    def __init__(self, server: MariaDbServer) -> None:
        self._server = server
        self._threads: list[threading.Thread] = []

    def begin(self, dumped: Dumped, statement: str) -> None:
        """Commit a change of ``t`` that hangs; its record is in the event log."""
        for name, value in _WAITS.items():
            self._server.execute(f"SET GLOBAL {name} = {value}")
        known = len(dumped.events("public.t"))
        self._threads.append(threading.Thread(target=dumped.do, args=(statement,), daemon=True))
        self._threads[-1].start()
        dumped.wait_for(lambda: len(dumped.events("public.t")) > known, "it is emitted")

    def end(self) -> None:
        self._server.execute("SET GLOBAL rpl_semi_sync_master_enabled = OFF")
        for thread in self._threads:
            thread.join(PATIENCE_S)


@pytest.fixture
def waiting(mariadb_server: MariaDbServer, place: Source) -> Iterator[Waiting]:
    found = Waiting(mariadb_server)
    yield found
    found.end()


def dumped_while_it_waits(make: Make, waiting: Waiting) -> None:
    dumped = make()
    dumped.table(rows=12)
    dumped.start()
    waiting.begin(dumped, f"UPDATE t SET n = {N} WHERE id = 5")
    assert dumped.one("SELECT n FROM t WHERE id = 5") == 1, "no SELECT sees it"
    dumped.dumped(dumped.dump())
    check_no_time_travel(dumped.events("public.t"))
    assert len(dumped.rows_of("dump-1")) == 11
    waiting.end()
    dumped.check()


@ways(GTID)
def test_logged_but_unseen_transaction_supersedes(make: Make, waiting: Waiting) -> None:
    dumped_while_it_waits(make, waiting)


@ways(GTID)
def test_what_is_logged_taken_for_seen_is_noticed(
    make: Make, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule broken on purpose."""
    monkeypatch.setattr(BinlogSnapshot, "visible", lambda self, xid: np.ones(len(xid), np.bool_))
    monkeypatch.setattr(BinlogSnapshot, "invisible_ranges", lambda self, upto: ranges_of([]))

    with pytest.raises(AssertionError):
        dumped_while_it_waits(impatient(make), waiting)
