"""The scanner against a plain model of the stream: any cut into feeds, any resume, any garbage."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import pgoutput_messages as pg

from tidelog.codecs.postgres.pgoutput import (
    LogicalMessage,
    PgoutputScanner,
    RelationSeen,
    WatchedRow,
)
from tidelog.errors import DecodeError
from tidelog.model.records import LogBatch, RecordKind, Resume

# relation id → what the consumer binds it to; -1 stands for a watched relation
POLICY = {10: 1, 20: 2, 4_100_000_000: 3, 30: 0, 40: -1}
COLUMNS = [(1, "id", 23, -1), (0, "v", 25, -1)]
# the first call loads the kernels
patient = settings(deadline=None)
XID_BASE = (3 << 32) - 4  # so that histories cross a wraparound


@dataclass(frozen=True)
class Seen:
    """One delivered thing, in a form that does not depend on how it was batched."""

    what: str
    key: tuple[int, int]
    detail: tuple[Any, ...]


relations = st.sampled_from(sorted(POLICY))
texts = st.one_of(st.none(), st.just(pg.UNCHANGED), st.text(max_size=5))
rows = st.tuples(texts, texts)
operations = st.one_of(
    st.builds(pg.insert, relations, rows),
    st.builds(pg.update, relations, rows),
    st.builds(lambda r, new, key: pg.update(r, new, key=key), relations, rows, rows),
    st.builds(lambda r, new, old: pg.update(r, new, old=old), relations, rows, rows),
    st.builds(lambda r, key: pg.delete(r, key=key), relations, rows),
    st.builds(lambda r, old: pg.delete(r, old=old), relations, rows),
    st.lists(relations, max_size=4).map(lambda listed: pg.truncate(*listed)),
    st.builds(
        lambda content: pg.message(7, "p", content, transactional=True), st.binary(max_size=3)
    ),
    st.just(pg.type_(99_999, "public", "mood")),
    st.just(pg.origin(5, "elsewhere")),
    relations.map(lambda r: pg.relation(r, "public", f"t{r}", COLUMNS)),
)
# A transaction is a list of operations, a loose message its content, a Stream Abort its xids.
Element = list[bytes] | bytes | tuple[int, int]
xids = st.integers(0, 0xFFFFFFFF)
histories = st.lists(
    st.one_of(st.lists(operations, max_size=6), st.binary(max_size=3), st.tuples(xids, xids)),
    min_size=1,
    max_size=6,
)

Step = tuple[int, int, bytes]  # where a restart may begin, what it would resume by, message


def steps(history: Sequence[Element]) -> list[tuple[int, list[bytes], list[Seen]]]:
    """For each element of a history: its end LSN, its messages, what must be delivered."""
    result = []
    lsn = 1000
    xid = XID_BASE
    for element in history:
        seen: list[Seen] = []
        if isinstance(element, tuple):
            result.append((lsn + 10, [pg.stream_abort(*element)], seen))
            lsn += 10
            continue
        if isinstance(element, bytes):
            message = pg.message(lsn, "loose", element, transactional=False)
            seen.append(Seen("message", (lsn, 0), (False, element)))
            result.append((lsn + 10, [message], seen))
            lsn += 10
            continue
        ts = 1_700_000_000_000_000 + xid
        ordinal = 0
        for message in element:
            kind = message[:1]
            for relation_id, payload in counted(message):
                policy = POLICY.get(relation_id, 0)
                if kind == b"M":
                    seen.append(Seen("message", (lsn, ordinal), (True, message[15:])))
                elif policy > 0:
                    detail = (kind[0], policy, xid, ts, payload)
                    seen.append(Seen("record", (lsn, ordinal), detail))
                elif policy == -1:
                    seen.append(Seen("row", (lsn, ordinal), (relation_id, kind[0], payload)))
                ordinal += 1
        end = lsn + 50
        messages = [pg.begin(lsn, ts, xid), *element, pg.commit(lsn, end, ts)]
        result.append((end, messages, seen))
        lsn = end  # a commit may begin where the last one ended
        xid += 1
    return result


def counted(message: bytes) -> list[tuple[int, bytes]]:
    """What counts as a record in a message: (relation, payload), one each."""
    kind = message[:1]
    if kind == b"T":
        ids = np.frombuffer(message[6:], dtype=">u4").tolist()
        return [(relation_id, pg.truncate(relation_id)) for relation_id in ids]
    if kind in b"IUD":
        return [(int.from_bytes(message[1:5], "big"), message)]
    return [(0, message)] if kind == b"M" else []


ANNOUNCEMENTS = [pg.relation(r, "public", f"t{r}", COLUMNS) for r in POLICY]


def deliver(
    messages: Sequence[bytes], cuts: Sequence[int], resume: Resume | None = None
) -> list[tuple[Seen, Resume]]:
    """Scan messages in feeds cut after ``cuts``; each thing with the resume of its item."""
    scanner = PgoutputScanner(resume, XID_BASE)
    delivered = []
    bounds = sorted({0, len(messages), *(cut % (len(messages) + 1) for cut in cuts)})
    for first, last in pairwise(bounds):
        data, offsets = pg.packed(messages[first:last])
        buffer = data.copy()
        taken = []
        for item in scanner.feed(buffer, offsets):
            if isinstance(item, RelationSeen):
                policy = POLICY[item.relation_id]
                scanner.bind(item.relation_id, max(policy, 0), watch=policy < 0)
            if isinstance(item, LogBatch):
                assert len(item) > 0
                assert item.resume == scanner.resume
            taken.append((item, scanner.resume))
        buffer[:] = 0xEE  # the input may be reused: what was yielded must not change
        for item, at in taken:
            delivered += [(seen, at) for seen in flattened(item)]
    return delivered


def flattened(item: object) -> list[Seen]:
    if isinstance(item, LogBatch):
        assert item.payload_offsets[0] == 0
        assert item.payload_bytes == len(item.payload)
        return [
            Seen(
                "record",
                (int(item.position[i]), int(item.ordinal[i])),
                (
                    int(item.kind[i]),
                    int(item.schema_id[i]),
                    int(item.xid[i]),
                    int(item.commit_ts[i]),
                    item.payload[item.payload_offsets[i] : item.payload_offsets[i + 1]].tobytes(),
                ),
            )
            for i in range(len(item))
        ]
    if isinstance(item, WatchedRow):
        detail = (item.relation_id, int(item.kind), item.payload)
        return [Seen("row", (item.position, item.ordinal), detail)]
    if isinstance(item, LogicalMessage):
        content = item.content
        if item.transactional:
            content = (len(content)).to_bytes(4, "big")[3:] + content
        return [Seen("message", (item.position, item.ordinal), (item.transactional, content))]
    return []


cut_lists = st.lists(st.integers(0, 60), max_size=6)


@patient
@given(histories, cut_lists)
def test_any_cut_into_feeds_gives_the_same_records(history: list[Element], cuts: list[int]) -> None:
    parts = steps(history)
    messages = [*ANNOUNCEMENTS, *(m for _, part, _ in parts for m in part)]
    delivered = deliver(messages, cuts)
    assert [seen for seen, _ in delivered] == [s for _, _, part in parts for s in part]


@patient
@given(histories, cut_lists, cut_lists, st.data())
def test_resuming_at_any_record_gives_exactly_the_remainder(
    history: list[Element], cuts: list[int], other_cuts: list[int], data: st.DataObject
) -> None:
    parts = steps(history)
    messages = [*ANNOUNCEMENTS, *(m for _, part, _ in parts for m in part)]
    delivered = deliver(messages, cuts)
    expected = [seen for seen, _ in delivered]
    if not expected:
        return
    at = data.draw(st.integers(0, len(expected) - 1))
    item_resume = delivered[at][1]
    if data.draw(st.booleans()):  # durable up to here, inside of what was one batch
        acknowledge = max([end for end, _, seen in parts if end <= expected[at].key[0]], default=0)
        resume = Resume(acknowledge, *expected[at].key)
        rest = expected[at + 1 :]
    else:  # the resume that the item itself gave
        resume = item_resume
        rest = [s for s in expected if s.key > (resume.position, resume.ordinal)]
        assert all(s.key <= (resume.position, resume.ordinal) for s in expected[: at + 1])
    # The server sends whole transactions, those that end after what was acknowledged.
    sent = [m for end, part, _ in parts if end > resume.acknowledge for m in part]
    again = deliver([*ANNOUNCEMENTS, *sent], other_cuts, resume)
    assert [seen for seen, _ in again] == rest


@patient
@given(histories, cut_lists)
def test_resumes_never_go_back_and_acknowledge_whole_transactions_only(
    history: list[Element], cuts: list[int]
) -> None:
    parts = steps(history)
    messages = [*ANNOUNCEMENTS, *(m for _, part, _ in parts for m in part)]
    ends = {0, *(end for end, part, _ in parts if part[0][:1] == b"B")}
    before = Resume(0, 0, -1)
    for seen, resume in deliver(messages, cuts):
        assert resume.acknowledge in ends
        assert resume.acknowledge >= before.acknowledge
        assert (resume.position, resume.ordinal) >= (before.position, before.ordinal)
        assert (resume.position, resume.ordinal) >= seen.key
        before = resume


def scan_all(messages: list[bytes]) -> None:
    scanner = PgoutputScanner()
    for message in ANNOUNCEMENTS:
        for item in scanner.feed(*pg.packed([message])):
            assert isinstance(item, RelationSeen)
            policy = POLICY[item.relation_id]
            scanner.bind(item.relation_id, max(policy, 0), watch=policy < 0)
    for _ in scanner.feed(*pg.packed(messages)):
        pass


@patient
@given(st.lists(st.binary(max_size=40), max_size=5))
def test_garbage_is_a_decode_error_or_nothing(messages: list[bytes]) -> None:
    with suppress(DecodeError):
        scan_all(messages)


@settings(patient, max_examples=300)
@given(histories, st.data())
def test_torn_and_flipped_messages_are_decode_errors_or_nothing(
    history: list[Element], data: st.DataObject
) -> None:
    messages = [m for _, part, _ in steps(history) for m in part]
    at = data.draw(st.integers(0, len(messages) - 1))
    message = bytearray(messages[at])
    if data.draw(st.booleans()):
        del message[data.draw(st.integers(0, len(message) - 1)) :]
    else:
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    messages[at] = bytes(message)
    with suppress(DecodeError):
        scan_all(messages)


@patient
@given(st.binary(max_size=60), st.lists(st.integers(-5, 70), max_size=6))
def test_garbage_offsets_never_read_outside_the_data(data: bytes, offsets: list[int]) -> None:
    with suppress(DecodeError):
        for _ in PgoutputScanner().feed(
            np.frombuffer(data, dtype=np.uint8), np.array(offsets, dtype=np.int64)
        ):
            pass


def test_kinds_of_rows_are_their_tags() -> None:
    assert (
        bytes([RecordKind.INSERT, RecordKind.UPDATE, RecordKind.DELETE, RecordKind.TRUNCATE])
        == b"IUDT"
    )
