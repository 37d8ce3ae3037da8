"""Keys of transactions that are read back from the event log, however large these are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.property.test_windows_model import SCHEMA, batch_of
from tests.support import pgoutput_messages as messages
from tests.support.build_log import BuiltLog

from tidelog.capture import windows as windows_module
from tidelog.capture.windows import Windows
from tidelog.codecs.postgres.tuples import PgoutputKeys
from tidelog.eventlog.reader import EmittedTransactions
from tidelog.model.records import LogBatch, RecordKind, ranges_of

XID = 735
ROWS = 100
SEGMENTS, SEGMENT_ROWS = 64, 500


def endless() -> Iterator[LogBatch]:
    payloads = [messages.insert(1, [str(n), "1", "1"]) for n in range(ROWS)]
    position = 1000
    while True:
        position += 1
        yield batch_of([RecordKind.INSERT] * ROWS, payloads, XID, position)


def test_a_transaction_is_read_no_further_than_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor are its records all asked for before the first of them is looked at."""
    monkeypatch.setattr(windows_module, "READ_BACK_BYTES", 64 << 10)
    read = 0

    def counted() -> Iterator[LogBatch]:
        nonlocal read
        for batch in endless():
            read += 1
            assert read < 100, "it reads on though there is no room"
            yield batch

    windows = Windows(PgoutputKeys(), lambda _id: SCHEMA)
    assert windows.keys_of(counted()) is None
    assert read > 1


def test_keys_that_there_is_room_for_are_held() -> None:
    windows = Windows(PgoutputKeys(), lambda _id: SCHEMA)
    found = windows.keys_of([next(endless())])
    assert found is not None
    assert found.changed is not None
    assert len(found.changed.key) == ROWS
    assert found.truncates == []


def test_a_transaction_that_is_read_back_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    """Only its keys are; of its records a segment's."""
    built = BuiltLog(tmp_path)
    table = built.table("public.t", {"id": "int64", "v": "text"})
    transaction = built.transaction()
    for segment in range(SEGMENTS):
        for row in range(SEGMENT_ROWS):
            built.insert(table, str(segment * SEGMENT_ROWS + row), "x" * 1024)
        built.flush(transaction, whole=segment == SEGMENTS - 1)
    emitted = EmittedTransactions(built.log)
    windows = Windows(PgoutputKeys(), lambda _id: table)
    windows.keys_of(emitted.records_of(ranges_of([transaction + 700]), table.table))  # compiles
    arrow = pa.total_allocated_bytes()
    most = 0

    def watched() -> Iterator[LogBatch]:
        nonlocal most
        for found in emitted.records_of(ranges_of([transaction + 700]), table.table):
            yield found
            most = max(most, pa.total_allocated_bytes() - arrow)

    tracemalloc.start()
    try:
        keys = windows.keys_of(watched())
        most += tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert keys is not None
    assert keys.changed is not None
    assert len(keys.changed) == SEGMENTS * SEGMENT_ROWS
    assert most < 8 << 20, f"{most >> 20} of {SEGMENTS * SEGMENT_ROWS >> 10} MiB"
