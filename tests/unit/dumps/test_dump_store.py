"""What is stored of dumps, over restarts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import count, pairwise
from pathlib import Path

import pytest

from tidelog.capture.dumps import store as store_module
from tidelog.capture.dumps.automatic import dumps_to_repeat, last_failed
from tidelog.capture.dumps.chunk_planner import ChunkQueue, ChunkTask
from tidelog.capture.dumps.refetch_queue import KeySets
from tidelog.capture.dumps.state import (
    TABLE_GONE,
    DumpState,
    Rejected,
    TableProgress,
    TableStatus,
)
from tidelog.capture.dumps.store import DumpStore, LogView
from tidelog.model.dump_options import DumpOptions
from tidelog.model.records import ChunkMeta
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest
from tidelog.state.sqlite import SqliteState


@pytest.fixture
def state(tmp_path: Path) -> Iterator[SqliteState]:
    made = SqliteState(tmp_path / "state.db")
    yield made
    made.close()


def loaded(state: SqliteState) -> DumpStore:
    store = DumpStore(state, DumpOptions())
    store.load()
    return store


def requested(store: DumpStore, **fields: object) -> DumpState:
    table = TableProgress("public.t", **fields)  # type: ignore[arg-type]
    return store.request("d", [table], mode="incremental", reason="requested", now_ms=0)


def chunk(low: str | None, high: str | None, order: float) -> ChunkMeta:
    return ChunkMeta(
        dump_id="d",
        table="public.t",
        chunk_id="c",
        low_key=None if low is None else [low],
        high_key=None if high is None else [high],
        low_watermark="0",
        high_watermark="0",
        snapshot="1:1:",
        rows_read=1,
        rows_superseded=0,
        order=order,
    )


def test_what_is_stored_is_the_whole_dump_and_does_not_change_with_it() -> None:
    table = TableProgress("public.t", key_columns=("id",))
    table.add_range(None, ("5",), 1.0)
    table.add_failed(("5",), ("6",), 2.0)
    table.add_keys(0, 5)
    dump = DumpState("d", 1, [table], rejected=[Rejected("public.x", "gone", "SKIPPED")])
    stored, before = dump.to_json(), asdict(dump)
    assert stored == before
    assert DumpState.from_json(json.loads(json.dumps(stored))) == dump
    table.add_range(("6",), ("9",), 3.0)
    table.add_range(("5",), ("6",), 2.0)
    table.add_keys(5, 5)
    assert asdict(dump) != stored == before


def test_chunks_of_an_earlier_dump_of_the_name_are_not_this_ones(state: SqliteState) -> None:
    before = loaded(state)
    dump = requested(before, status="running", first_offset=100)
    before.flush()
    store = loaded(state)
    store.reconcile([(10, chunk(None, "5", 0.0)), (20, chunk("5", None, 1.0))])
    assert not store.all()[0].tables[0].ranges
    store.reconcile([(10, chunk(None, "5", 0.0)), (110, chunk(None, "3", 0.0))])
    assert [r.high for r in store.all()[0].tables[0].ranges] == [("3",)]
    assert dump.dump_id == "d"


def test_chunks_from_before_a_table_was_restarted_are_not_added(state: SqliteState) -> None:
    """Also where the replay of the table begins earlier, with transactions its snapshot missed."""
    before = loaded(state)
    dump = requested(before, status="running")
    dump.tables[0].begin(100, 10)
    dump.tables[0].add_range(None, ("5",), 0.0)
    dump.tables[0].spell_keys("another")
    dump.tables[0].begin(200, 10)
    before.store(dump)
    before.flush()
    store = loaded(state)
    store.reconcile([(110, chunk(None, "5", 0.0)), (210, chunk(None, "3", 0.0))])
    assert [r.high for r in store.all()[0].tables[0].ranges] == [("3",)]


def test_dump_that_was_paused_before_it_began_begins_when_resumed(state: SqliteState) -> None:
    store = loaded(state)
    requested(store)
    store.pause("d", "anna@host", 5)
    assert (store.all()[0].paused_by, store.all()[0].paused_ms) == ("anna@host", 5)
    [resumed] = store.resume("d")
    assert (resumed.status, resumed.paused_by, resumed.paused_ms) == ("queued", "", None)
    resumed.tables[0].started_ms = 1
    store.pause("d", "anna@host", 5)
    assert store.resume("d")[0].status == "running"


def test_keys_go_only_once_their_dump_is_stored_as_finished(
    state: SqliteState, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = loaded(state)
    KeySets(state).put("k", [("1",)])
    dump = requested(store, key_set="k", key_count=1)
    dump.tables[0].status = "done"

    def killed(_key: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(state, "delete", killed)
    store.finish_if_done(dump)
    with pytest.raises(KeyboardInterrupt):
        store.flush()
    assert loaded(state).all()[0].finished


def test_automatic_dumps_push_no_other_out_of_sight(state: SqliteState) -> None:
    """Of each table the newest is shown."""
    store = loaded(state)
    for number in range(9):
        name = "d" if number == 0 else f"auto-{number}"
        table = TableProgress(f"public.t{number % 2}", status="done")
        dump = store.request(name, [table], mode="incremental", reason="", now_ms=number)
        assert store.finish_if_done(dump)
    shown = [dump["dump_id"] for dump in store.summary(finished=2)["dumps"]]
    assert shown == ["d", "auto-7", "auto-8"]


@pytest.mark.parametrize("number", [0.0, 1e7])
def test_range_may_be_cut_many_times(number: float) -> None:
    """Behind each of many rows that can't be read, say; and a piece of it once more."""
    queue = ChunkQueue()
    request = ChunkRequest(TableName("public", "t"))
    orders = [number]
    queue.put_rest(ChunkTask(request.table, None, None, request, order=number), None)
    for _ in range(50_000):
        rest = queue.next_retry(0.0)
        assert rest is not None
        orders.append(rest.order)
        queue.put_rest(rest, None)
    assert all(before < after for before, after in pairwise(orders))
    assert orders[-1] < number + 1
    following = queue.next_retry(0.0)
    assert following is not None
    queue.put_rest(rest, None)
    piece = queue.next_retry(0.0)
    assert piece is not None
    assert rest.order < piece.order < following.order


def test_missing_keys_are_those_of_the_last_read(state: SqliteState) -> None:
    sets = KeySets(state)
    sets.put_piece("missing-d", 0, [("a",), ("b",)], covers=3)
    sets.put_piece("missing-d", 0, [], covers=1)  # read again, key by key: it is there
    sets.put_piece("missing-d", 1, [("b",)], covers=1)
    assert list(sets.all("missing-d")) == [("b",)]


@pytest.mark.parametrize(
    ("answer", "unread"),
    [(TableStatus.DONE, False), (TableStatus.CANCELLED, True)],
    ids=["made good", "cancelled behind a range that can't be read"],
)
def test_what_ended_a_failed_initial_dump_is_never_forgotten(
    answer: TableStatus, unread: bool, state: SqliteState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The initial dump is kept for ever: without its answer it would be asked for again."""
    monkeypatch.setattr(store_module, "KEEP_FINISHED", 3)
    store = loaded(state)

    def ended(dump_id: str, reason: str, status: TableStatus, table: str = "public.t") -> None:
        progress = TableProgress(table)
        if unread and dump_id == "auto-1":
            progress.add_failed((1,), (2,), 0.0)
        dump = store.request(dump_id, [progress], mode="incremental", reason=reason, now_ms=0)
        dump.tables[0].status = status
        store.finish_if_done(dump)

    ended("initial", "initial", TableStatus.FAILED)
    ended("auto-1", "the last dump failed", answer)
    for number in range(10):
        ended(f"mine-{number}", "requested", TableStatus.DONE, "public.other")
    assert dumps_to_repeat(store.all()) == []
    assert last_failed(store.all()) == {}
    assert {dump.dump_id for dump in store.all()} == {
        "initial", "auto-1", "mine-7", "mine-8", "mine-9",
    }  # fmt: skip


def test_a_table_whose_last_dump_failed_is_reported_however_long_ago(
    state: SqliteState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "KEEP_FINISHED", 5)
    store = loaded(state)

    numbers = count()

    def ended(table: str, status: TableStatus, reason: str = "", where: str | None = None) -> None:
        progress = TableProgress(table, where=where)
        dump_id = f"{table}-{status}-{next(numbers)}"
        dump = store.request(dump_id, [progress], mode="incremental", reason="requested", now_ms=0)
        dump.tables[0].status = status
        dump.tables[0].reason = reason
        store.finish_if_done(dump)

    ended("public.bad", TableStatus.FAILED, "it has no key")
    ended("public.gone", TableStatus.FAILED, TABLE_GONE)
    ended("public.mended", TableStatus.FAILED, "a lock")
    ended("public.mended", TableStatus.DONE)
    ended("public.part", TableStatus.FAILED, "no such column", where="x = 1")
    for number in range(30):
        ended(f"public.other_{number}", TableStatus.DONE)
    assert last_failed(store.all()) == {"public.bad": "it has no key"}
    assert len(store.all()) == 6
    ended("public.bad", TableStatus.DONE)
    assert last_failed(store.all()) == {}
    ended("public.other", TableStatus.DONE)
    assert len(store.all()) == 5


def test_range_that_was_left_out_of_given_keys_is_no_range_of_the_table(state: SqliteState) -> None:
    """After a restart: of a key that can't be read it is noted that it was left out."""
    dump = requested(loaded(state), key_set="k", key_count=3)
    dump.tables[0].add_failed(("2",), ("2",), 1.0)
    queue = ChunkQueue()
    queue.start(dump, dump.tables[0], 100)
    assert queue.next_retry(0.0) is None, "no rows that nobody asked for"
    assert queue.keys_to_fetch(("d", "public.t")) == ("k", 0)


def test_keys_are_asked_for_ahead_of_their_chunks_and_once(state: SqliteState) -> None:
    dump, name = requested(loaded(state), key_set="k", key_count=5), ("d", "public.t")
    dump.tables[0].add_keys(1, 1)  # done before a restart
    queue = ChunkQueue()
    queue.start(dump, dump.tables[0], 2)
    keys = tuple((str(number),) for number in range(5))
    read: list[tuple[str | None, ...]] = []
    while True:
        task = queue.next_chunk(name, 2, planned=False)
        if task is not None:
            read += task.request.keys or ()
            continue
        wanted = queue.keys_to_fetch(name)
        if wanted is None:
            break
        assert queue.keys_to_fetch(name) is None, "they are on their way"
        assert queue.next_chunk(name, 2, planned=False) is None
        queue.add_fetched_keys(name, wanted[1], keys[wanted[1] :][:3])
    assert read == [("0",), ("2",), ("3",), ("4",)]
    assert queue.is_exhausted(dump.tables[0])


def test_what_the_log_lost_is_taken_back_and_what_it_holds_counts(state: SqliteState) -> None:
    before, end = loaded(state), 100
    before.reconcile([], LogView(lambda: end, lambda _offset: True))
    dump = requested(before)
    table = dump.tables[0]
    table.begin(10, 10)
    for number, (low, high) in enumerate([(None, "1"), ("1", "2"), ("2", None)]):
        table.add_range(None if low is None else (low,), None if high is None else (high,), number)
    assert table.complete
    before.store(dump)
    before.flush()
    after = loaded(state)
    held = [(20, chunk(None, "1", 0)), (30, chunk("1", "2", 1))]
    after.reconcile(held, LogView(lambda: 200, lambda offset: offset <= 50))
    [(known, _)] = [(t, d) for d in after.all() for t in d.tables]
    assert not known.complete
    assert [(done.low, done.high) for done in known.ranges] == [(None, ("2",))]
    after.flush()
    again = loaded(state)
    again.reconcile(held, LogView(lambda: 200, lambda offset: offset <= 50 or offset >= 200))
    assert not again.ahead_of_log(), "it rests on the log as it is now"
