"""Keys to be read again, over a state store on disk: none is lost, and each is stored but once."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidelog.capture.dumps import refetch_queue
from tidelog.capture.dumps.refetch_queue import PIECE_KEYS, REFETCH_KEY, KeysToRead, RefetchQueue
from tidelog.capture.dumps.state import Key
from tidelog.codecs.postgres.tuples import PgoutputKeys
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.state.sqlite import SqliteState

KEYS = PgoutputKeys()


def schema(name: str) -> TableSchema:
    column = Column("id", 23, -1, "integer", "int32", False)
    return TableSchema(TableName("public", name), 1, (column,), ("id",), ("id",), "d", "pgoutput")


T, U = schema("t"), schema("u")


class CountingState(SqliteState):
    """Counts the keys that are written."""

    stored = 0

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        self.stored += len(value["keys"])
        return super().put(key, value, expected_version)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[CountingState]:
    state = CountingState(tmp_path / "state.db")
    yield state
    state.close()


@pytest.fixture
def wanted(state: CountingState) -> RefetchQueue:
    return RefetchQueue(KEYS, state)


def encoded(first: int, last: int) -> list[bytes]:
    return [KEYS.encode((str(number),)) for number in range(first, last)]


def texts(first: int, last: int) -> list[Key]:
    return [(str(number),) for number in range(first, last)]


def next_of(wanted: RefetchQueue, limit: int = 5_000, now: float = 0.0) -> KeysToRead | None:
    """As the coordinator's turn has it: what is asked of the state store is asked before."""
    wanted.flush()
    wanted.fetch(limit)
    return wanted.take(limit, now)


def take(wanted: RefetchQueue, limit: int = 5_000, now: float = 0.0) -> KeysToRead:
    taken = next_of(wanted, limit, now)
    assert taken is not None
    return taken


def waiting(state: SqliteState) -> list[Key]:
    """What a capture that begins now reads again."""
    after = RefetchQueue(KEYS, state)
    after.load()
    found: list[Key] = []
    while (taken := next_of(after, 10**9)) is not None:
        found += taken.keys
    return found


def test_a_key_is_stored_once_however_many_wait(wanted: RefetchQueue, state: CountingState) -> None:
    batches, each = 60, 1_000
    for number in range(batches):
        wanted.add(T, encoded(number * each, number * each + each))
    assert state.stored == batches * each
    while (taken := next_of(wanted)) is not None:
        wanted.done(taken)
    assert state.stored == batches * each
    wanted.flush()
    assert not state.keys(REFETCH_KEY)
    assert not wanted.wanted


def test_single_keys_share_documents(wanted: RefetchQueue, state: CountingState) -> None:
    for number in range(2_000):
        wanted.add(T, encoded(number, number + 1))
    assert len(state.keys(REFETCH_KEY)) <= 5
    assert sorted(waiting(state)) == sorted(texts(0, 2_000))


def test_keys_that_wait_fill_no_memory(wanted: RefetchQueue) -> None:
    wanted.add(T, encoded(0, 20 * PIECE_KEYS))
    taken = take(wanted)
    held = [
        piece for piece in wanted._pieces[taken.refetch_table].values() if piece.keys is not None
    ]
    assert sum(len(piece.keys or ()) for piece in held) <= 2 * PIECE_KEYS


def test_keys_that_are_being_read_wait_still_after_a_crash(
    wanted: RefetchQueue, state: CountingState
) -> None:
    wanted.add(T, encoded(0, 3))
    take(wanted)
    assert waiting(state) == texts(0, 3)


def test_keys_whose_document_an_earlier_leader_deletes_late_hold_up_no_dump(
    wanted: RefetchQueue, state: CountingState
) -> None:
    wanted.add(T, encoded(0, 3))
    after = RefetchQueue(KEYS, state)
    after.load()
    wanted.done(take(wanted))
    assert after.has_pending("public.t")
    wanted.flush()
    assert next_of(after, 10) is None
    assert not after.has_pending("public.t")
    assert not after.wanted


def test_a_key_that_is_asked_for_while_it_is_read_is_read_once_more(
    wanted: RefetchQueue, state: CountingState
) -> None:
    wanted.add(T, encoded(0, 3))
    first = take(wanted)
    wanted.add(T, encoded(1, 2))
    wanted.done(first)
    wanted.flush()
    assert waiting(state) == [("1",)]
    assert take(wanted).keys == (("1",),)


def test_two_reads_at_once_never_share_a_request(
    wanted: RefetchQueue, state: CountingState
) -> None:
    wanted.add(T, encoded(0, 3))
    first = take(wanted)
    wanted.add(T, encoded(0, 3))
    second = take(wanted)
    wanted.done(first)
    wanted.flush()
    assert waiting(state) == texts(0, 3), "the second request was not answered by the first read"
    wanted.done(second)
    wanted.flush()
    assert not waiting(state)


def test_keys_still_unseen_count_by_their_first_request(wanted: RefetchQueue) -> None:
    wanted.add(T, encoded(0, 3))
    number = wanted.number
    wanted.done(take(wanted), unread={("2",)})
    assert wanted.has_pending("public.t", upto=number)
    assert take(wanted).keys == (("2",),)


def test_a_limit_below_a_piece_leaves_the_rest_to_the_next_read(
    wanted: RefetchQueue, state: CountingState
) -> None:
    wanted.add(T, encoded(0, 10))
    parts = [take(wanted, 4), take(wanted, 4), take(wanted, 4)]
    assert [key for taken in parts for key in taken.keys] == texts(0, 10)
    assert next_of(wanted, 4) is None
    for taken in parts:
        wanted.done(taken)
    wanted.flush()
    assert not state.keys(REFETCH_KEY)


def test_tables_take_turns(wanted: RefetchQueue) -> None:
    wanted.add(T, encoded(0, 2 * PIECE_KEYS))
    wanted.add(U, encoded(0, 1))
    assert [take(wanted).refetch_table.table for _ in range(3)] == [
        "public.t",
        "public.u",
        "public.t",
    ]


def test_a_key_put_aside_is_tried_alone_and_later(
    wanted: RefetchQueue, state: CountingState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refetch_queue.time, "monotonic", lambda: 100.0)
    wanted.add(T, encoded(0, 3))
    taken = take(wanted)
    for key in taken.keys[:2]:
        wanted.quarantine(KeysToRead(taken.refetch_table, taken.pieces, (key,)))
    wanted.done(KeysToRead(taken.refetch_table, taken.pieces, taken.keys[2:]))
    wanted.flush()
    assert sorted(waiting(state)) == texts(0, 2)
    assert not wanted.has_pending("public.t")
    assert wanted.unread("public.t", since=0) == 2
    assert next_of(wanted, 10, 100.0) is None
    again = take(wanted, now=200.0)
    assert again.keys == (("0",),)
    wanted.done(again)  # what was in its way is gone: the other is as any
    assert wanted.has_pending("public.t")
    wanted.done(take(wanted))
    wanted.flush()
    assert not state.keys(REFETCH_KEY)
    assert not wanted.wanted


def test_what_a_dump_has_read_is_not_missing(wanted: RefetchQueue, state: CountingState) -> None:
    wanted.add(T, encoded(0, 1))
    wanted.quarantine(take(wanted))
    wanted.on_table_dumped("public.t", since=wanted.number)
    assert not wanted.wanted
    wanted.flush()
    assert not state.keys(REFETCH_KEY)


def test_keys_that_wait_are_not_in_memory(wanted: RefetchQueue) -> None:
    """A statement that moved many: only those that are being read are."""
    count, batch = 60_000, 10_000

    def ask_and_read() -> int:
        for first in range(0, count, batch):
            wanted.add(T, encoded(first, first + batch))
        read = 0
        while wanted.wanted:
            taken = take(wanted)
            read += len(taken.keys)
            wanted.done(taken)
        return read

    tracemalloc.start()
    try:
        assert ask_and_read() == count
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 8 << 20, f"{most >> 20} MiB for {count} keys"


def test_keys_of_a_table_that_is_left_out_are_forgotten_for_good(
    wanted: RefetchQueue, state: CountingState
) -> None:
    wanted.add(T, encoded(0, 3))
    wanted.add(U, encoded(5, 8))
    after = RefetchQueue(KEYS, state)
    after.load()
    assert after.tables() == {"public.t", "public.u"}
    after.leave_out(["public.u"])
    after.flush()
    assert after.tables() == {"public.t"}
    assert waiting(state) == texts(0, 3)
