"""Decisions of dumps that are not stored yet: they are not reported, and end nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tidelog.capture.dump_gate import DumpGate
from tidelog.capture.dumps.coordinator import DumpCoordinator
from tidelog.capture.dumps.state import DumpInput, DumpState, TableInput
from tidelog.capture.notifications import Notification
from tidelog.capture.session.start import INITIAL_DUMP, StartDumps, StartPlan
from tidelog.capture.unsupported_tables import UnsupportedTables
from tidelog.model.dump_options import DumpOptions
from tidelog.model.schema import TableName
from tidelog.state.sqlite import SqliteState

NOTHING = cast("Any", None)
T, U = TableName("public", "t"), TableName("public", "u")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[SqliteState]:
    made = SqliteState(tmp_path / "state.db")
    yield made
    made.close()


class Log:
    """No log: what is called of it is nothing here."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_given: None


class Decided:
    """A coordinator whose thread does not run, and what it told beside what was stored then."""

    def __init__(self, state: SqliteState) -> None:
        self.state = state
        self.told: list[tuple[str, str]] = []
        reader: Any = Log()
        self.coordinator = DumpCoordinator(
            open_reader=lambda: reader,
            open_blocking=NOTHING,
            open_keyless=NOTHING,
            catalogue=NOTHING,
            unsupported=UnsupportedTables(state, lambda _notification: None),
            keys=NOTHING,
            state=state,
            options=DumpOptions(),
            notify=self.tell,
            gate=DumpGate(),
        )
        self.coordinator.recover(cast("Any", Log()), [])

    def tell(self, notification: Notification) -> None:
        stored = self.stored(notification.dump_id)
        table = notification.data.get("scanned_collection")
        statuses = {t["table"]: t["status"] for t in stored["tables"]}
        self.told.append((str(notification.type), statuses.get(table, stored["status"])))

    def stored(self, dump_id: str) -> Any:
        document = self.state.get(f"dump/{dump_id}")
        assert document is not None
        return document.value

    def running(self, dump_id: str = INITIAL_DUMP) -> DumpState:
        dump = self.coordinator.request(dump_id, [T, U], reason="initial", now_ms=0)
        with self.coordinator._lock:
            dump.transition(DumpInput.BEGIN)
            for progress in dump.tables:
                progress.transition(TableInput.BEGIN)
        return dump

    def read(self, dump: DumpState) -> None:
        """The last records of its tables are durable."""
        with self.coordinator._lock:
            for progress in dump.tables:
                self.coordinator._tables.complete(dump, progress, 9)


def test_capture_that_ends_behind_its_dump_ends_once_that_is_stored(state: SqliteState) -> None:
    decided = Decided(state)
    start = StartDumps(StartPlan(then_end=True), decided.coordinator, NOTHING, state, [], 1)
    dump = decided.running()
    assert not start.all_done()
    decided.read(dump)
    assert decided.stored(INITIAL_DUMP)["status"] != "completed", "only decided"
    assert start.all_done()
    assert decided.stored(INITIAL_DUMP)["status"] == "completed"


def test_the_end_of_a_table_is_reported_once_it_is_stored(state: SqliteState) -> None:
    decided = Decided(state)
    decided.read(decided.running())
    assert not decided.told
    decided.coordinator.flush()
    scanned = ("TABLE_SCAN_COMPLETED", "done")
    assert decided.told == [scanned, scanned, ("COMPLETED", "completed")]


def test_failed_and_cancelled_tables_are_reported_once_they_are_stored(state: SqliteState) -> None:
    decided = Decided(state)
    dump = decided.running("mine")
    with decided.coordinator._lock:
        decided.coordinator._tables.fail(dump, dump.tables[0], "it has no key")
    decided.coordinator.cancel("mine", ["public.u"])
    decided.coordinator.flush()
    assert decided.told[0] == ("TABLE_SCAN_COMPLETED", "failed")
    assert {status for _, status in decided.told[1:]} == {decided.stored("mine")["status"]}
