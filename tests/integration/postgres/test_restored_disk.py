"""A server whose disk was put back to an earlier state, and a slot that went back in a crash."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from tests.integration.postgres.conftest import Capture
from tests.support.postgres import PostgresServer

from tidelog.errors import SourceChangedError
from tidelog.model.records import LogBatch, Resume
from tidelog.ports import LastTransaction
from tidelog.sources.postgres.connect import lsn_value

pytestmark = pytest.mark.integration


class Restorable:
    """A server of its own with a captured table ``t``, and copies of its disk."""

    def __init__(self, server: PostgresServer, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.execute = server.execute
        self.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        self.execute("CREATE TABLE aside (id int)")
        self.capture = Capture(server.dsn(), ["public.t"])

    def read(self, rows: int) -> None:
        self.capture.until(lambda: len(self.capture.rows) >= rows)

    def catch_up(self) -> Resume:
        with psycopg.connect(self.server.dsn(), autocommit=True) as sql:
            self.capture.catch_up(sql)
        return self.capture.resumes[-1]

    def confirm(self) -> Resume:
        """Have the server know that all so far is durable, and capture stop."""
        resume = self.catch_up()
        self.capture.reader.acknowledge(resume.acknowledge)
        self.capture.until(lambda: self.confirmed() >= resume.acknowledge)
        self.capture.reader.close()
        return resume

    def confirmed(self) -> int:
        slot = self.execute("SELECT confirmed_flush_lsn::text FROM pg_replication_slots")
        return lsn_value(str(slot[0][0]))

    def save(self) -> None:
        self.server.stop()
        self._copy(self.server.data_dir, self.directory / "saved")
        self.server.restart()

    def restore(self) -> None:
        self.server.stop()
        subprocess.run(["rm", "-rf", str(self.server.data_dir)], check=True)
        self._copy(self.directory / "saved", self.server.data_dir)
        self.server.restart()

    def write_past(self, resume: Resume) -> None:
        """Grow the log beyond the event log's end, without a row that is captured."""
        while self.execute(
            f"SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn <= {resume.acknowledge}"
        )[0][0]:
            self.execute("INSERT INTO aside SELECT generate_series(1, 1000)")

    def start(self, resume: Resume) -> Resume:
        """Another process starts; it knows what the event log holds."""
        before = self.capture
        self.capture = Capture(self.server.dsn(), ["public.t"], before.schemas)
        self.capture.reader.belongs_to("log", lambda: last_of(before))
        return self.capture.start(resume)

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def last_of(capture: Capture) -> LastTransaction | None:
    batches = [e for e in capture.events if isinstance(e, LogBatch) and e.xid[-1]]
    if not batches:
        return None
    last = batches[-1]
    return LastTransaction(int(last.position[-1]), int(last.xid[-1]), int(last.commit_ts[-1]))


Make = Callable[[int], Restorable]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    servers: list[PostgresServer] = []
    captures: list[Restorable] = []

    def make(version: int) -> Restorable:
        servers.append(PostgresServer(version=version))
        servers[-1].start()
        captures.append(Restorable(servers[-1], tmp_path))
        return captures[-1]

    yield make
    for made in captures:
        made.capture.reader.close()
    for server in servers:
        server.close()


@pytest.mark.parametrize("version", [16, 18])
def test_other_changes_than_those_captured_are_noticed(make: Make, version: int) -> None:
    on = make(version)
    resume = on.capture.start()
    on.execute("INSERT INTO t VALUES (1)")
    on.read(1)
    resume = on.confirm()
    on.save()
    on.start(resume)
    on.execute("INSERT INTO t VALUES (2, 'lost')")
    on.read(1)
    resume = on.confirm()
    on.restore()
    on.execute("INSERT INTO t VALUES (3, 'another past')")
    on.write_past(resume)
    with pytest.raises(SourceChangedError, match=r"restored to an earlier state.*drop the slot"):
        on.start(resume)


def test_the_same_changes_at_another_time_are_noticed(make: Make) -> None:
    """An application that does the same again: even positions and transaction ids are equal."""
    on = make(16)
    resume = on.capture.start()
    on.execute("INSERT INTO t VALUES (1)")
    on.read(1)
    on.confirm()
    on.save()
    on.start(on.capture.resumes[-1])
    on.execute("INSERT INTO t VALUES (2, 'x')")
    on.read(1)
    first = last_of(on.capture)
    resume = on.confirm()
    on.restore()
    on.execute("INSERT INTO t VALUES (2, 'y')")
    on.write_past(resume)
    with pytest.raises(SourceChangedError, match="the event log holds transaction"):
        on.start(resume)
    assert first is not None


def test_changes_where_capture_saw_none_are_noticed(make: Make) -> None:
    """Nothing of the captured tables was lost: what came instead would have been skipped."""
    on = make(16)
    on.capture.start()
    on.execute("INSERT INTO t VALUES (1)")
    on.read(1)
    on.confirm()
    on.save()
    on.start(on.capture.resumes[-1])
    on.execute("INSERT INTO aside SELECT generate_series(1, 10000)")
    resume = on.confirm()
    on.restore()
    on.execute("INSERT INTO t VALUES (2)")
    on.write_past(resume)
    found = (
        r"where there was nothing when|has something else there"  # where a record happens to end
    )
    with pytest.raises(SourceChangedError, match=found):
        on.start(resume)


@pytest.mark.parametrize("version", [16, 18])
def test_a_slot_that_went_back_in_a_crash_is_fine(make: Make, version: int) -> None:
    """The server writes the slot only now and then: as if it had never been told."""
    on = make(version)
    begin = on.capture.start()
    on.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 20000) g")
    on.execute("INSERT INTO aside SELECT generate_series(1, 1000)")
    on.execute("UPDATE t SET v = 'y' WHERE id < 4")
    on.execute("SELECT pg_logical_emit_message(false, 'x', 'y')")
    on.read(20003)
    resume = on.catch_up()
    rows = len(on.capture.rows)
    on.capture.reader.close()
    on.server.kill()
    on.server.restart()
    assert begin.acknowledge <= on.confirmed() < resume.acknowledge
    on.execute("DELETE FROM t WHERE id = 1")
    assert on.start(resume) == resume
    on.read(1)
    assert (rows, [row.kind for row in on.capture.rows]) == (20003, ["D"])


def test_a_crash_within_a_large_transaction_is_fine(make: Make) -> None:
    on = make(16)
    on.capture.start()
    on.execute("INSERT INTO t VALUES (0)")
    on.execute("INSERT INTO t SELECT g FROM generate_series(1, 50000) g")
    on.capture.until(lambda: len(on.capture.rows) > 1000)
    rows = len(on.capture.rows)
    assert rows < 50001
    resume = on.capture.resumes[-1]
    on.capture.reader.close()
    on.server.kill()
    on.server.restart()
    on.start(resume)
    on.read(50001 - rows)
    assert len(on.capture.rows) == 50001 - rows
