"""When the writer thread writes a segment."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.support.engines import until

from tidelog.capture.writer_thread import ControlItem, OutputBuffer, PositionItem, WriterThread
from tidelog.errors import OutcomeUnknownError, StorageError
from tidelog.model.records import LogBatch, RecordKind, Resume
from tidelog.system import peer_check

FLUSH_S = 0.2
LATER = Resume(1, 1, 0)


@dataclass
class Appended:
    """An event log that keeps how many batches each segment has."""

    segments: list[int] = field(default_factory=list)
    first: int = 0
    next: int = 0
    next_offset: int = 0
    flows: threading.Event = field(default_factory=threading.Event)
    asked: threading.Event = field(default_factory=threading.Event)
    failure: Exception | None = None

    def __post_init__(self) -> None:
        self.flows.set()

    def append_log(self, batches: list[LogBatch], resume: Resume) -> Appended:
        self._append()
        self.segments.append(len(batches))
        return self

    def append_position(self, resume: Resume) -> Appended:
        self._append()
        return self

    def append_controls(self, messages: list[dict[str, Any]]) -> tuple[Appended, list[int]]:
        self._append()
        self.segments.append(len(messages))
        return self, [10 * message["number"] for message in messages]

    def idle(self) -> None: ...

    def _append(self) -> None:
        self.asked.set()
        self.flows.wait()
        if self.failure is not None:
            raise self.failure


class Writing:
    def __init__(self) -> None:
        self.log = Appended()
        self.done: list[tuple[int, int]] = []
        self.log_answers = True
        self.buffer = OutputBuffer(1 << 20)
        log: Any = self.log
        self.thread = WriterThread(
            self.buffer, log, Resume(0, 0, -1), 1 << 20, FLUSH_S, lambda: self.log_answers
        )

    def put(self, behind_s: float) -> None:
        batch = LogBatch.of_transaction(
            RecordKind.INSERT, [(1, 0, b"row")], position=1, xid=1, commit_ts=1, resume=LATER
        )
        batch.behind_s = behind_s
        self.buffer.put(batch, threading.Event, time.monotonic())

    def put_control(self, number: int) -> None:
        item = ControlItem({"number": number}, lambda at: self.done.append((number, at)))
        self.buffer.put(item, threading.Event, time.monotonic())

    def put_position(self) -> None:
        self.buffer.put(PositionItem(LATER), threading.Event, time.monotonic())


@pytest.fixture
def writing() -> Iterator[Writing]:
    found = Writing()
    found.thread.start()
    yield found
    found.log.flows.set()
    found.thread.end(10)


def test_what_is_new_waits_no_longer_than_the_timeout(writing: Writing) -> None:
    began = time.monotonic()
    writing.put(behind_s=0.0)
    until(lambda: writing.log.segments == [1])
    assert time.monotonic() - began >= FLUSH_S


def test_segments_of_a_backlog_are_larger_until_it_is_caught_up_with(writing: Writing) -> None:
    began = time.monotonic()
    writing.put(behind_s=3600.0)
    time.sleep(1.5 * FLUSH_S)
    assert writing.log.segments == [] or time.monotonic() - began > 3 * FLUSH_S  # a busy machine
    writing.put(behind_s=0.0)
    until(lambda: writing.log.segments == [2])
    writing.put(behind_s=3600.0)
    until(lambda: writing.log.segments == [2, 1])  # nothing else comes


def test_control_records_that_wait_share_a_segment_and_each_gets_its_own_offset(
    writing: Writing,
) -> None:
    writing.log.flows.clear()
    writing.put_control(0)
    assert writing.log.asked.wait(10)
    for number in (1, 2, 3):
        writing.put_control(number)
    writing.put(behind_s=0.0)
    writing.put_control(4)  # after the row
    assert writing.done == []
    writing.log.flows.set()
    until(lambda: len(writing.done) == 5)
    assert writing.log.segments == [1, 3, 1, 1]
    assert writing.done == [(0, 0), (1, 10), (2, 20), (3, 30), (4, 40)]
    assert writing.buffer.bytes == 0


@pytest.mark.parametrize("item", ["rows", "position"])
def test_nothing_may_be_acknowledged_before_its_segment_is_durable(
    writing: Writing, item: str
) -> None:
    """Invariant 6. ``durable`` is what sources are told of."""
    before = writing.thread.durable
    writing.log.flows.clear()
    if item == "rows":
        writing.put(behind_s=0.0)
    else:
        writing.put_position()
    assert writing.log.asked.wait(10)
    assert writing.thread.durable == before, "the append has only begun"
    writing.log.flows.set()
    until(lambda: writing.thread.durable == LATER)


@pytest.mark.parametrize("item", ["rows", "position"])
def test_nothing_may_be_acknowledged_whose_append_failed(writing: Writing, item: str) -> None:
    """Invariant 6."""
    before = writing.thread.durable
    writing.log.failure = StorageError("the disk is full")
    if item == "rows":
        writing.put(behind_s=0.0)
    else:
        writing.put_position()
    writing.thread.join(10)
    assert not writing.thread.is_alive()
    assert writing.thread.durable == before


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHECK_AFTER_S", "ANSWER_S", "CHECK_AGAIN_S"):
        monkeypatch.setattr(peer_check, name, 0.1)


@pytest.mark.usefixtures("soon")
def test_a_log_that_does_not_answer_is_not_waited_for(writing: Writing) -> None:
    writing.log.flows.clear()
    writing.log_answers = False
    writing.put(behind_s=0.0)
    with pytest.raises(OutcomeUnknownError, match="the event log has not answered for"):
        until(lambda: writing.thread.check())
    began = time.monotonic()
    writing.thread.end(30)
    assert time.monotonic() - began < 10
    assert writing.thread.is_alive()


@pytest.mark.usefixtures("soon")
def test_an_append_that_takes_long_is_waited_for(writing: Writing) -> None:
    writing.log.flows.clear()
    writing.put(behind_s=0.0)
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        writing.thread.check()
        time.sleep(0.01)
    threading.Timer(0.5, writing.log.flows.set).start()
    writing.thread.end(30)
    assert writing.log.segments == [1]


@pytest.mark.usefixtures("soon")
def test_a_log_that_nobody_waits_for_need_not_answer(writing: Writing) -> None:
    writing.put(behind_s=0.0)
    until(lambda: writing.thread.records == 1)
    writing.log_answers = False
    began = time.monotonic()
    while time.monotonic() < began + 1.0:
        writing.thread.check()
        time.sleep(0.01)
