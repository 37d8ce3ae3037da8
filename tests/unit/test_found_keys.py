"""Keys of transactions that are read back from the event log, however large these are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.property.test_windows_model import SCHEMA, batch_of
from tests.support import pgoutput_messages as messages

from tidelog.capture.windows import windows as windows_module
from tidelog.capture.windows.windows import Windows
from tidelog.codecs.postgres.tuples import PgoutputKeys
from tidelog.model.records import Kind, LogBatch

XID = 735
ROWS = 100


def endless() -> Iterator[LogBatch]:
    payloads = [messages.insert(1, [str(n), "1", "1"]) for n in range(ROWS)]
    position = 1000
    while True:
        position += 1
        yield batch_of([Kind.INSERT] * ROWS, payloads, XID, position)


def test_a_transaction_is_read_no_further_than_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor are its records all asked for before the first of them is looked at."""
    monkeypatch.setattr(windows_module, "FOUND_BYTES", 64 << 10)
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
