"""Reading an event log from where it stopped."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.build_log import SOURCE, BuiltLog
from tests.support.engines import (
    COLUMNS,
    Gates,
    committed,
    engine,
    orders_log,
    running,
    until,
    versions,
)

from tidelog.app.async_engine import log_task
from tidelog.app.async_engine.log_task import LogTask, StoredOffset
from tidelog.engine.events import Event, Events
from tidelog.engine.ports import Committer
from tidelog.errors import (
    ConfigError,
    EventLogError,
    OffsetAheadError,
    OffsetGoneError,
    StorageError,
)
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.storage import storage_at
from tidelog.eventlog.writer import EventLogWriter


def started(path: Path, **options: Any) -> LogTask:
    task = LogTask(str(path), "engine", **options)
    task.start(threading.Event())
    return task


def ids_of(task: LogTask) -> list[int]:
    found = []
    while (events := task.poll(0.0)) is not None:
        found += [event.after["id"] for event in events]
    return found


def test_resuming_at_any_committed_offset_gives_exactly_the_rest(tmp_path: Path) -> None:
    built = orders_log(tmp_path, range(10))
    built.control({"type": "note"})
    built.insert(built.table("public.orders", COLUMNS), "10", "x")
    built.flush()
    for size in (1, 3, 2048):
        task, told = started(tmp_path, batch_size=size), 0
        while (events := task.poll(0.0)) is not None:
            told += len(events)
            task.commit(events.end)
            assert ids_of(started(tmp_path)) == list(range(told, 11))
        assert committed(tmp_path) == built.writer.next_offset
        LogTask(str(tmp_path), "engine")
        started(tmp_path).commit(built.log.head_offset)


def test_records_that_are_not_rows_count_as_progress(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    built.control({"type": "note"})
    with running(engine(Gates(tmp_path), consumer=print)):
        until(lambda: committed(tmp_path) == built.writer.next_offset)


def test_events_that_come_later_are_read(tmp_path: Path) -> None:
    built = orders_log(tmp_path, [0])
    seen: list[int] = []
    with running(engine(Gates(tmp_path), consumer=lambda event: seen.append(event.after["id"]))):
        for number in range(1, 5):
            until(lambda number=number: len(seen) == number)  # type: ignore[misc]
            built.insert(built.table("public.orders", COLUMNS), str(number), "x")
            built.flush()
        until(lambda: len(seen) == 5)
    assert seen == [0, 1, 2, 3, 4]


def test_a_reading_that_breaks_off_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = orders_log(tmp_path, range(3))
    for number in range(3, 6):
        built.insert(built.table("public.orders", COLUMNS), str(number), "x")
        built.flush()
    whole = log_task._records
    broken = [2, 1, 0]

    def breaking(*given: Any) -> Any:
        for count, batch in enumerate(whole(*given)):
            if broken and count >= broken[-1]:
                broken.pop()
                raise StorageError("away")
            yield batch

    monkeypatch.setattr(log_task, "_records", breaking)
    seen: list[int] = []
    core = engine(Gates(tmp_path), consumer=lambda event: seen.append(event.after["id"]))
    with running(core):
        until(lambda: committed(tmp_path) == built.writer.next_offset)
    assert not broken
    assert seen == list(range(6))


def test_retention_waits_from_the_start(tmp_path: Path) -> None:
    built = orders_log(tmp_path, range(3))
    assert committed(tmp_path) is None
    started(tmp_path)
    assert committed(tmp_path) == built.log.head_offset


@pytest.mark.parametrize("given", [False, True], ids=["new", "has given events"])
def test_a_new_task_begins_behind_what_retention_took_while_it_started(
    tmp_path: Path, given: bool
) -> None:
    built = orders_log(tmp_path, [0])
    task = started(tmp_path, batch_size=1)
    assert not given or task.poll(0.0) is not None
    more = built.table("public.others", COLUMNS)
    for row in (1, 2):
        built.insert(more, str(row), "note")
        built.flush()
    EventLogMaintenance(tmp_path).retain(0, hard_cap_age_s=0, now_ms=4_000_000_000_000)
    if given:
        with pytest.raises(OffsetGoneError):
            ids_of(task)
    else:
        assert task.poll(0.0) is None
        assert committed(tmp_path) == built.log.head_offset
        assert ids_of(task) == [2]


@pytest.mark.parametrize("own", [False, True], ids=["log", "own store"])
@pytest.mark.parametrize("starting", ["earliest", "latest", "an offset"])
def test_a_name_without_progress_begins_at_the_given_offset_and_continues_afterwards(
    tmp_path: Path, starting: str, own: bool
) -> None:
    built = orders_log(tmp_path, range(3))
    kept: dict[str, StoredOffset] = {}

    class Offsets:
        read, write = kept.get, kept.__setitem__

    given: dict[str, Any] = {"offsets": Offsets()} if own else {}
    offset = versions(tmp_path)[1] if starting == "an offset" else starting
    first = started(tmp_path, starting_offset=offset, **given)
    built.insert(built.table("public.more", COLUMNS), "3", "note")
    built.flush()
    expected = {"earliest": [0, 1, 2, 3], "latest": [3], "an offset": [1, 2, 3]}[starting]
    # It crashes before anything is committed: what came behind its start is not passed over.
    assert ids_of(started(tmp_path, starting_offset=offset, **given)) == expected
    assert ids_of(first) == expected
    first.commit(built.writer.next_offset)
    assert ids_of(started(tmp_path, starting_offset="earliest", **given)) == []


def test_a_starting_offset_that_retention_took_is_reported(tmp_path: Path) -> None:
    built = orders_log(tmp_path, [0])
    built.insert(built.table("public.others", COLUMNS), "1", "note")
    built.flush()
    EventLogMaintenance(tmp_path).retain(0, hard_cap_age_s=0, now_ms=4_000_000_000_000)
    with pytest.raises(OffsetGoneError):
        started(tmp_path, starting_offset=0)


def test_a_starting_offset_beyond_the_end_is_refused_as_the_argument(tmp_path: Path) -> None:
    end = orders_log(tmp_path, [0]).writer.next_offset
    said = rf"^starting_offset: {end + 1} is beyond the end of the event log, which is {end}$"
    with pytest.raises(ConfigError, match=said):
        started(tmp_path, starting_offset=end + 1)


class Book:
    """A program that stores its offsets with its data, at once."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.stored: StoredOffset | None = None
        self.crash_after = 10**9

    def take(self, events: Events, committer: Committer) -> None:
        rows = [event.after["id"] for event in events]
        if len(self.rows) + len(rows) > self.crash_after:
            raise SystemError("on purpose")
        self.rows, self.stored = self.rows + rows, StoredOffset(events.generation, events.end)
        committer.mark_processed(events)  # but no offset is committed before the next crash

    def read(self, task: str) -> StoredOffset | None:
        assert task == "engine"
        return self.stored

    def write(self, task: str, stored: StoredOffset) -> None: ...


def test_an_offset_that_is_stored_with_the_data_makes_it_exactly_once(tmp_path: Path) -> None:
    orders_log(tmp_path, range(20))
    book = Book()
    for crash_after in (7, 12, 10**9):
        book.crash_after = crash_after
        task = Gates(tmp_path, batch_size=3, offsets=book)
        with running(engine(task, change_consumer=book.take)) as run:
            until(lambda: run.error or len(book.rows) == 20)
        assert (run.error is None) is (crash_after > 20)
    assert book.rows == list(range(20))


def test_an_offset_of_another_log_is_refused(tmp_path: Path) -> None:
    orders_log(tmp_path, range(3))
    book = Book()
    book.stored = StoredOffset("another", 2)
    with pytest.raises(EventLogError, match="it was recreated"):
        started(tmp_path, offsets=book)


def test_a_task_ahead_of_a_restored_log_is_reported_and_skips_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.eventlog.reader._LATE_LISTING_S", 0.1)
    log, copy = tmp_path / "log", tmp_path / "copy"
    built = orders_log(log, range(3))
    end = built.writer.next_offset
    shutil.copytree(log, copy)
    built.insert(built.table("public.orders", COLUMNS), "3", "lost")
    built.flush()
    book = Book()
    task = started(log, offsets=book)
    assert ids_of(task) == list(range(4))
    ahead = built.writer.next_offset
    book.stored = StoredOffset(built.log.generation, ahead)
    said = rf"at offset {ahead}, .* at {end}: .*restore\.md"
    shutil.rmtree(log)
    shutil.copytree(copy, log)
    with pytest.raises(OffsetAheadError, match=said):
        task.poll(0.0)
    leader = EventLogWriter(storage_at(log), SOURCE, 1, seen=0)
    again = BuiltLog(log, position=2000)  # a leader after that one
    for number in range(4, 30):
        again.insert(again.table("public.orders", COLUMNS), str(number), "x")
    again.flush()
    assert again.writer.next_offset > leader.next_offset > ahead
    for refused in (lambda: task.poll(0.0), lambda: started(log, offsets=book)):
        with pytest.raises(OffsetAheadError, match=said):
            refused()
    book.stored = StoredOffset(built.log.generation, end)  # as the message says
    assert ids_of(started(log, offsets=book)) == list(range(4, 30))


def test_a_transaction_is_not_skipped_in_its_middle(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    orders = built.table("public.orders", COLUMNS)
    place = built.transaction()
    for number in range(6):
        built.insert(orders, str(number), "x" * 100)
    built.flush(place)
    seen: list[int] = []

    def consume(event: Event) -> None:
        if event.after["id"] == 3 and 3 not in seen:
            seen.append(3)
            raise SystemError("on purpose")
        seen.append(event.after["id"])

    for _ in range(2):
        with running(engine(Gates(tmp_path), consumer=consume)) as run:
            until(lambda: run.error or committed(tmp_path) == built.writer.next_offset)
    assert seen == [0, 1, 2, 3, 3, 4, 5]
    assert len(versions(tmp_path)) == 6


def test_a_poll_is_bounded_by_bytes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows as it may take, of a MiB each, would not fit."""
    monkeypatch.setattr(log_task, "_BATCH_BYTES", 100_000)
    built = BuiltLog(tmp_path)
    orders = built.table("public.orders", COLUMNS)
    for row in range(6):
        built.insert(orders, str(row), "x" * 60_000)
        built.flush()
    task, sizes = started(tmp_path), []
    while (events := task.poll(0.0)) is not None:
        sizes += [len(events)] if events else []
    assert sizes == [2, 2, 2]
