"""The scanner against messages built field by field from the protocol's documentation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np
import pytest
from tests.support import pgoutput_messages as pg

from tidelog.codecs.postgres.pgoutput import (
    LogicalMessage,
    PgoutputScanner,
    RelationSeen,
    Scanned,
    TypeSeen,
    WatchedRow,
)
from tidelog.errors import DecodeError
from tidelog.model.records import LogBatch, RecordKind, Resume

TABLE, OTHER, MARKS = 16_384, 4_000_000_000, 16_390
COLUMNS = [(1, "id", 23, -1), (0, "näme", 1043, 14)]
TS = 1_767_225_600_123_456


def relation(relation_id: int) -> bytes:
    return pg.relation(relation_id, "public", f"t{relation_id}", COLUMNS)


def bind(scanner: PgoutputScanner, relation_id: int) -> None:
    schema_id = {TABLE: 7, OTHER: 0, MARKS: 0}[relation_id]
    scanner.bind(relation_id, schema_id, watch=relation_id == MARKS)


def run(
    scanner: PgoutputScanner,
    messages: Iterable[bytes],
    bind: Callable[[PgoutputScanner, int], None] = bind,
) -> list[Scanned]:
    items = []
    for item in scanner.feed(*pg.packed(messages)):
        items.append(item)
        if isinstance(item, RelationSeen):
            bind(scanner, item.relation_id)
    return items


def announced(resume: Resume | None = None, xid_epoch_base: int = 0) -> PgoutputScanner:
    scanner = PgoutputScanner(resume, xid_epoch_base)
    run(scanner, [relation(TABLE), relation(OTHER), relation(MARKS)])
    return scanner


def only_batch(items: list[Scanned]) -> LogBatch:
    (batch,) = items
    assert isinstance(batch, LogBatch)
    return batch


def payloads(batch: LogBatch) -> list[bytes]:
    ends = batch.payload_offsets
    return [batch.payload[a:b].tobytes() for a, b in pairwise(ends)]


ROWS = [
    pg.insert(TABLE, ["1", "one"]),
    pg.update(TABLE, ["1", None]),
    pg.update(TABLE, ["2", "two"], key=["1", None]),
    pg.delete(TABLE, key=["2", None]),
]


def transaction(rows: list[bytes], lsn: int = 1000, xid: int = 700) -> list[bytes]:
    return [pg.begin(lsn, TS, xid), *rows, pg.commit(lsn, lsn + 48, TS)]


def test_rows_carry_their_transactions_position_time_and_xid() -> None:
    scanner = announced()
    batch = only_batch(run(scanner, transaction(ROWS)))
    assert batch.kind.tobytes() == b"IUUD"
    assert batch.schema_id.tolist() == [7] * 4
    assert batch.position.tolist() == [1000] * 4
    assert batch.ordinal.tolist() == [0, 1, 2, 3]
    assert batch.xid.tolist() == [700] * 4
    assert batch.commit_ts.tolist() == [TS] * 4
    assert payloads(batch) == ROWS
    assert batch.resume == scanner.resume == Resume(1048, 1000, 3)
    assert not scanner.in_transaction
    assert scanner.commit_end == 1048


def test_columns_have_the_types_of_the_model() -> None:
    batch = only_batch(run(announced(), transaction(ROWS)))
    assert batch.kind.dtype == batch.payload.dtype == np.uint8
    assert batch.schema_id.dtype == batch.payload_offsets.dtype == np.int32
    for column in (batch.position, batch.ordinal, batch.xid, batch.commit_ts):
        assert column.dtype == np.int64


def test_an_open_transaction_is_not_acknowledged() -> None:
    scanner = announced()
    run(scanner, transaction(ROWS))
    batch = only_batch(run(scanner, transaction(ROWS[:2], lsn=2000)[:-1]))
    assert batch.resume == Resume(1048, 2000, 1)
    assert scanner.in_transaction


def test_relation_and_type_are_seen_in_place_with_pg_catalog_spelled_out() -> None:
    scanner = announced()
    changed = pg.relation(TABLE, "", 'a "b"', COLUMNS, "f")
    items = run(
        scanner,
        [
            pg.begin(1000, TS),
            ROWS[0],
            pg.type_(90_000, "shop", "colour"),
            changed,
            ROWS[1],
            pg.commit(1000, 1048, TS),
        ],
        lambda scanner, relation_id: scanner.bind(relation_id, 8),
    )
    first, type_, seen, second = items
    assert isinstance(first, LogBatch)
    assert isinstance(second, LogBatch)
    assert type_ == TypeSeen(90_000, "shop", "colour")
    assert seen == RelationSeen(TABLE, "pg_catalog", 'a "b"', "f", COLUMNS)
    assert (first.schema_id[0], first.ordinal[0]) == (7, 0)
    assert (second.schema_id[0], second.ordinal[0]) == (8, 1)


def test_dropped_rows_count_and_an_all_filtered_transaction_advances_the_resume() -> None:
    scanner = announced()
    assert run(scanner, transaction([pg.insert(OTHER, ["1"]), pg.insert(OTHER, ["2"])])) == []
    assert scanner.resume == Resume(1048, 1000, 1)
    batch = only_batch(run(scanner, transaction([pg.insert(OTHER, ["1"]), ROWS[0]], lsn=2000)))
    assert batch.ordinal.tolist() == [1]


def test_watched_rows_stand_between_batches_with_exact_resumes() -> None:
    scanner = announced()
    mark = pg.update(MARKS, ["1", "mark"])
    resumes = []
    items = []
    for item in scanner.feed(*pg.packed(transaction([ROWS[0], mark, ROWS[1]]))):
        items.append(item)
        resumes.append(scanner.resume)
    first, row, second = items
    assert isinstance(first, LogBatch)
    assert isinstance(second, LogBatch)
    assert first.resume == resumes[0] == Resume(0, 1000, 0)
    assert row == WatchedRow(MARKS, RecordKind.UPDATE, mark, 1000, 1)
    assert resumes[1] == Resume(0, 1000, 1)
    assert second.resume == resumes[2] == Resume(1048, 1000, 2)


def test_truncate_gives_a_record_for_each_captured_relation_and_counts_each() -> None:
    scanner = announced()
    truncate = pg.truncate(TABLE, OTHER, MARKS, TABLE, options=1)
    items = run(scanner, transaction([ROWS[0], truncate, ROWS[1]]))
    before, first, watched, last, after = items
    assert isinstance(first, LogBatch)
    assert isinstance(last, LogBatch)
    assert isinstance(after, LogBatch)
    narrowed = pg.truncate(TABLE, options=1)
    assert first.kind.tolist() == [RecordKind.TRUNCATE]
    assert payloads(first) == payloads(last) == [narrowed]
    assert first.ordinal.tolist() == [1]
    assert watched == WatchedRow(MARKS, RecordKind.TRUNCATE, pg.truncate(MARKS, options=1), 1000, 3)
    assert last.ordinal.tolist() == [4]
    assert last.resume == Resume(0, 1000, 4)
    assert after.ordinal.tolist() == [5]
    assert isinstance(before, LogBatch)


def test_logical_messages_inside_and_outside_transactions() -> None:
    scanner = announced()
    inside = pg.message(990, "app", b"\0in", transactional=True)
    outside = pg.message(1500, "app", b"out", transactional=False)
    items = run(scanner, [*transaction([inside, ROWS[0]]), outside])
    message, batch, other = items
    assert message == LogicalMessage(True, "app", b"\0in", 1000, 0, 700, TS)
    assert isinstance(batch, LogBatch)
    assert batch.ordinal.tolist() == [1]
    assert other == LogicalMessage(False, "app", b"out", 1500, 0)
    assert scanner.resume == Resume(1048, 1500, 0)


ABORT = pg.stream_abort(4_294_967_295, 700)
"""Its xid must not be taken for the newest one."""


def test_a_stream_abort_is_skipped_wherever_it_stands_between_transactions() -> None:
    one, two = transaction(ROWS[:2]), transaction(ROWS[2:], lsn=2000, xid=701)
    plain, other = announced(), announced()
    run(plain, one + two)
    with_aborts = only_batch(run(other, [ABORT, *one, ABORT, ABORT, *two, ABORT]))
    assert payloads(with_aborts) == ROWS
    assert with_aborts.position.tolist() == [1000, 1000, 2000, 2000]
    assert with_aborts.ordinal.tolist() == [0, 1, 0, 1]
    assert with_aborts.xid.tolist() == [700, 700, 701, 701]
    assert with_aborts.resume == plain.resume == other.resume == Resume(2048, 2000, 1)


def test_a_feed_of_stream_aborts_gives_nothing_and_moves_nothing() -> None:
    scanner = announced(Resume(900, 1000, 1))
    assert run(scanner, [ABORT]) == []
    assert scanner.resume == Resume(900, 1000, 1)
    assert not scanner.in_transaction
    assert run(scanner, [ABORT, *transaction(ROWS[:2]), ABORT]) == []
    assert scanner.resume == Resume(1048, 1000, 1)
    batch = only_batch(run(scanner, [ABORT, *transaction(ROWS[:1], lsn=2000), ABORT]))
    assert (batch.xid.tolist(), batch.ordinal.tolist()) == ([700], [0])


def test_resume_skips_what_is_durable_and_never_goes_back() -> None:
    scanner = announced(Resume(900, 1000, 1))
    assert run(scanner, transaction(ROWS[:1], lsn=950)) == []
    assert scanner.resume == Resume(998, 1000, 1)
    batch = only_batch(run(scanner, transaction(ROWS)))
    assert batch.ordinal.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("base", "wire", "wide"),
    [
        (0, 700, 700),
        (0, 4_000_000_000, 4_000_000_000),
        (5 << 32, 700, (5 << 32) + 700),
        ((5 << 32) + 3, 0xFFFFFFF0, (4 << 32) + 0xFFFFFFF0),
        ((5 << 32) - 3, 12, (5 << 32) + 12),
    ],
)
def test_xids_are_widened_to_the_nearest(base: int, wire: int, wide: int) -> None:
    batch = only_batch(run(announced(xid_epoch_base=base), transaction(ROWS, xid=wire)))
    assert set(batch.xid.tolist()) == {wide}


def test_the_base_of_xids_advances_over_many_wraparounds() -> None:
    scanner = announced(xid_epoch_base=1000)
    lsn = 1000
    for wide in range(1000, 5 << 32, 1 << 30):
        batch = only_batch(run(scanner, transaction(ROWS[:1], lsn, wide)))
        assert batch.xid.tolist() == [wide]
        lsn += 1000


def test_a_batch_survives_the_reuse_of_the_input() -> None:
    scanner = announced()
    data, offsets = pg.packed(transaction(ROWS))
    buffer = data.copy()
    batch = only_batch(list(scanner.feed(buffer, offsets)))
    buffer[:] = 0
    assert payloads(batch) == ROWS


def test_a_small_batch_of_a_large_feed_keeps_little_memory() -> None:
    dropped = [pg.insert(OTHER, ["x" * 1000])] * 1000
    batch = only_batch(run(announced(), transaction([*dropped, ROWS[0]])))
    assert batch.payload.base is None
    assert batch.payload.nbytes == len(ROWS[0])


def test_messages_may_begin_anywhere_in_the_buffer() -> None:
    scanner = announced()
    data, offsets = pg.packed(transaction(ROWS))
    padded = np.concatenate([np.full(5, 255, np.uint8), data, np.full(3, 255, np.uint8)])
    assert payloads(only_batch(list(scanner.feed(padded, offsets + 5)))) == ROWS


def test_large_feeds_are_scanned_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.codecs.postgres.pgoutput.MAX_FEED_BYTES", 40)
    batches = [b for b in run(announced(), transaction(ROWS)) if isinstance(b, LogBatch)]
    assert len(batches) > 1
    assert [payload for batch in batches for payload in payloads(batch)] == ROWS


SECRET = "s3cret-cell"


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([ROWS[0]], "outside a transaction"),
        ([pg.truncate(TABLE)], "outside a transaction"),
        ([pg.message(5, "p", b"", transactional=True)], "outside a transaction"),
        ([pg.commit(1000, 1048)], "outside a transaction"),
        ([pg.begin(1000), pg.begin(1000)], "inside another one"),
        ([pg.begin(1000), pg.commit(1001, 1048)], "does not end the transaction"),
        ([*transaction([]), *transaction([], lsn=900)], "before the previous one"),
        ([pg.begin(1000), pg.insert(99, [SECRET])], "was not announced"),
        ([pg.begin(1000), pg.truncate(99)], "was not announced"),
        ([b"S" + bytes(5)], "streaming"),
        ([b"E"], "streaming"),
        ([b"c" + bytes(29)], "streaming"),
        ([ABORT[:-1]], "torn or malformed"),
        ([ABORT[:1]], "torn or malformed"),
        ([*transaction(ROWS), ABORT[:5]], "torn or malformed"),
        ([ABORT + bytes(16)], "torn or malformed"),  # as with parallel streaming
        ([pg.begin(1000), ABORT], "inside a transaction"),
        ([b"\xff"], "of unknown kind"),
        ([pg.begin(1000)[:-1]], "torn or malformed"),
        ([pg.begin(1000), pg.commit(1000, 1048) + b"\0"], "torn or malformed"),
        ([pg.begin(1000), ROWS[0][:7]], "torn or malformed"),
        ([pg.begin(1000), ROWS[0].replace(b"N", b"K", 1)], "torn or malformed"),
        ([pg.begin(1000), pg.truncate(TABLE) + b"\0"], "torn or malformed"),
        ([relation(TABLE)[:-3]], "torn or malformed"),
        ([relation(TABLE) + b"\0"], "torn or malformed"),
        ([pg.type_(1, "a", "b")[:-1]], "torn or malformed"),
        ([pg.message(5, "p", b"abc", transactional=False)[:-1]], "torn or malformed"),
        ([b""], "torn or malformed"),
    ],
)
def test_faults_are_named_without_values(messages: list[bytes], says: str) -> None:
    with pytest.raises(DecodeError) as caught:
        run(announced(), messages)
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)


def test_what_precedes_a_fault_is_delivered_and_the_fault_is_placed() -> None:
    scanner = announced()
    got = []
    with pytest.raises(DecodeError, match=r"committed at 0/3E8, record 1\)"):
        got += list(scanner.feed(*pg.packed([pg.begin(1000, TS), ROWS[0], b"Z"])))
    iterator = iter(announced().feed(*pg.packed([pg.begin(1000, TS), ROWS[0], b"Z"])))
    assert payloads(only_batch([next(iterator)])) == [ROWS[0]]


def test_a_relation_that_was_announced_again_must_be_bound_again() -> None:
    scanner = announced()
    with pytest.raises(DecodeError, match="not announced"):
        list(scanner.feed(*pg.packed([pg.begin(1000), relation(TABLE), ROWS[0]])))


@pytest.mark.parametrize("offsets", [[], [0, 99], [-1, 5], [5, 0], [0, 30, 10, 21]])
def test_offsets_that_do_not_fit_are_refused(offsets: list[int]) -> None:
    data = np.frombuffer(pg.begin(1000), dtype=np.uint8)
    with pytest.raises(DecodeError):
        list(PgoutputScanner().feed(data, np.array(offsets, dtype=np.int64)))
