"""The capture loop: what is acknowledged to the source, what makes the reader wait. No server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import Mock

import pytest
from tests.support.engines import until

from tidelog.capture.pauses import BlockingDumpPause
from tidelog.capture.session.loop import CaptureLoop, CaptureOptions
from tidelog.capture.windows import Window, Windows
from tidelog.capture.writer_thread import OutputBuffer
from tidelog.codecs.postgres.tuples import PgoutputKeys
from tidelog.errors import StorageError
from tidelog.model.records import LogBatch, RecordKind, Resume
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.ports import LogEvent, RowsUnlogged

BEGIN = Resume(0, 0, -1)
ID = Column("id", 23, -1, "integer", "int32", False)
ORDERS = TableSchema(TableName("public", "orders"), 1, (ID,), ("id",), ("id",), "d", "pgoutput")


def transaction(number: int, row: bytes = b"row") -> LogBatch:
    return LogBatch.of_transaction(
        RecordKind.INSERT,
        [(1, 0, row)],
        position=number,
        xid=number,
        commit_ts=1,
        resume=Resume(number, number, 0),
    )


class Source:
    """A log reader that shows some events first, then one transaction with each poll."""

    def __init__(self, transactions: int, first: Sequence[LogEvent]) -> None:
        self._left = [first, *([transaction(number + 1)] for number in range(transactions))]
        self.told: list[int] = []

    def poll(self, timeout_s: float) -> Iterator[LogEvent]:
        if self._left:
            yield from self._left.pop(0)
        else:
            time.sleep(0.001)

    def acknowledge(self, position: int) -> None:
        self.told.append(position)

    def keepalive(self) -> None: ...

    @property
    def is_read(self) -> bool:
        return not self._left


class Log:
    """An event log whose appends wait for leave, and may fail."""

    next_offset = first = next = 0

    def __init__(self) -> None:
        self.let, self.asked = threading.Event(), threading.Event()
        self.failure: Exception | None = None
        self.durable: list[int] = []

    def append_log(self, batches: list[LogBatch], resume: Resume) -> Log:
        self.asked.set()
        self.let.wait(10)
        if self.failure is not None:
            raise self.failure
        self.durable.append(resume.acknowledge)
        return self

    def idle(self) -> None: ...


class Capture:
    """The loop in a thread, over a source and an event log of the test's own."""

    def __init__(
        self, transactions: int, *open_windows: Window, first: Sequence[LogEvent] = ()
    ) -> None:
        self.source, self.log, self.stop = Source(transactions, first), Log(), threading.Event()
        self.unlogged: list[tuple[int, int]] = []  # how many together, the bytes buffered then
        parts: Any = {"reader": self.source, "log": self.log, "coordinator": None, "emitted": None}
        self.loop = CaptureLoop(
            windows=Windows(PgoutputKeys(), lambda _id: ORDERS),
            resume=BEGIN,
            options=CaptureOptions(4 << 20, 0.0, 32 << 20, None),
            on_signals=lambda _: None,
            **parts,
        )
        for window in open_windows:
            self.loop.register(window)
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run(self.stop, Mock(on_unlogged=self._on_unlogged))
        except StorageError as error:
            self.failure = error

    def _on_unlogged(self, seen: Sequence[RowsUnlogged]) -> None:
        self.unlogged.append((len(seen), self.loop.progress().buffer_bytes))

    def end(self) -> None:
        self.stop.set()
        self.log.let.set()
        self._thread.join(10)
        assert not self._thread.is_alive()


def test_nothing_is_acknowledged_before_it_is_durable() -> None:
    """Invariant 6."""
    capture = Capture(transactions=3)
    until(lambda: capture.source.is_read and capture.log.asked.is_set())
    time.sleep(0.1)  # many turns of the loop
    assert capture.source.told == [], "the append has only begun"
    capture.log.let.set()
    until(lambda: capture.source.told[-1:] == [3])
    assert set(capture.source.told) <= set(capture.log.durable)
    capture.end()


def test_nothing_is_acknowledged_whose_append_failed() -> None:
    """Invariant 6."""
    capture = Capture(transactions=3)
    capture.log.failure = StorageError("the disk is full")
    until(capture.log.asked.is_set)
    capture.end()
    assert capture.failure is capture.log.failure
    assert capture.source.told == []


def test_what_was_read_is_durable_and_acknowledged_at_the_end() -> None:
    capture = Capture(transactions=3)
    until(lambda: capture.source.is_read)
    capture.end()
    assert capture.source.told[-1] == capture.log.durable[-1] == 3


def test_the_log_flows_while_a_chunks_watermarks_are_awaited() -> None:
    """Invariant 4."""
    capture = Capture(3, Window("chunk", TableName("public", "t"), "low", "high"))
    capture.log.let.set()
    until(lambda: capture.source.told[-1:] == [3])
    assert capture.loop.progress().open_windows == 1
    capture.end()


def test_changes_without_row_events_are_passed_on_together_before_more_is_appended() -> None:
    unlogged = RowsUnlogged(TableName("public", "t"), "a statement", 1)
    capture = Capture(0, first=[unlogged, unlogged, transaction(1), unlogged])
    until(lambda: len(capture.unlogged) == 2)
    capture.end()
    (together, buffered), (after, _) = capture.unlogged
    assert (together, buffered, after) == (2, 0, 1)


def test_who_reads_waits_while_the_buffer_is_full() -> None:
    """Invariant 9."""
    buffer = OutputBuffer(limit_bytes=1000)
    buffer.put(transaction(1), lambda: pytest.fail("there is room"), 0.0)
    large = transaction(2, bytes(1000))
    waited = threading.Event()
    thread = threading.Thread(target=lambda: buffer.put(large, waited.set, 0.0))
    thread.start()
    assert waited.wait(10), "whoever waits keeps the source's connection alive"
    assert len(buffer) == 1
    assert buffer.take(0) is not None
    assert buffer.take(0) is None, "what is being written still takes room"
    buffer.release(buffer.bytes)
    thread.join(10)
    assert len(buffer) == 1


def test_a_row_larger_than_the_buffer_passes_through_alone() -> None:
    """Invariant 9."""
    buffer = OutputBuffer(limit_bytes=1)
    buffer.put(transaction(1), lambda: pytest.fail("nothing else is in the buffer"), 0.0)
    assert len(buffer) == 1


def test_the_log_continues_once_a_pause_is_released() -> None:
    """Invariant 4. Whatever ends a blocking dump releases its pause."""
    pause = BlockingDumpPause()
    pause.set_position(10)
    assert not pause.pause_at(9, 0.0), "the log has not come there yet"
    assert pause.pause_at(10, 0.0)
    assert pause.wait(0.0)
    threading.Timer(0.05, pause.release).start()
    began = time.monotonic()
    assert not pause.pause_at(10, 10.0)
    assert time.monotonic() - began < 5
    assert not pause.pause_at(11, 10.0)
    assert pause.at is None


def test_a_pause_that_moves_lets_the_log_continue_to_there() -> None:
    pause = BlockingDumpPause()
    pause.set_position(10)
    assert pause.pause_at(12, 0.0), "at the first boundary that is not before it"
    pause.set_position(20)
    assert not pause.wait(0.0)
    assert not pause.pause_at(12, 0.0)
    assert pause.pause_at(20, 0.0)
