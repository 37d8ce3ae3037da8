"""Keys and COPY rows against plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import pgoutput_messages as pg
from tests.support.pgoutput_messages import UNCHANGED, Absent, Value

from tidelog.codecs.postgres.pgoutput import START
from tidelog.codecs.postgres.tuples import PgoutputKeys, absent_rows, copy_text_rows
from tidelog.errors import DecodeError
from tidelog.model.records import KeyEffect, LogBatch
from tidelog.model.schema import Column, TableName, TableSchema

# the first call loads the kernels
patient = settings(deadline=None)
KEYS = PgoutputKeys()
NAMES = ("a", "b", "c", "d")

# Any bytes: the wire does not promise UTF-8 (SQL_ASCII).
values = st.one_of(st.none(), st.binary(max_size=12), st.sampled_from([b"", b"N", b"\\N", b"\\"]))
full_rows = st.tuples(*[values] * len(NAMES))
keys = st.permutations(NAMES).flatmap(lambda names: st.integers(1, 3).map(lambda n: names[:n]))


def schema(key: Sequence[str], identity_kind: str) -> TableSchema:
    return TableSchema(
        table=TableName("public", "t"),
        relation_id=0xFFFFFFFE,
        columns=tuple(Column(name, 25, -1, "text", "text") for name in NAMES),
        key=tuple(key),
        identity=NAMES if identity_kind == "f" else tuple(key),
        identity_kind=identity_kind,
        wire_format="pgoutput",
        schema_id=3,
    )


def batch(payloads: Sequence[bytes]) -> LogBatch:
    count = len(payloads)
    data, offsets = pg.packed(payloads)
    zeros = np.zeros(count, dtype=np.int64)
    return LogBatch(
        kind=np.array([payload[0] for payload in payloads], dtype=np.uint8),
        schema_id=np.full(count, 3, dtype=np.int32),
        position=zeros,
        ordinal=zeros,
        xid=zeros,
        commit_ts=zeros,
        payload_offsets=offsets.astype(np.int32),
        payload=data,
        resume=START,
    )


def escaped(value: bytes | None) -> bytes:
    """As CopyAttributeOutText does."""
    if value is None:
        return b"\\N"
    value = value.replace(b"\\", b"\\\\")
    for byte, letter in zip(b"\b\f\n\r\t\v", b"bfnrtv", strict=True):
        value = value.replace(bytes([byte]), b"\\" + bytes([letter]))
    return value


def copied(rows: Sequence[Sequence[bytes | None]]) -> bytes:
    return b"".join(b"\t".join(map(escaped, row)) + b"\n" for row in rows)


def rows_of(log: LogBatch) -> list[bytes]:
    ends = log.payload_offsets
    return [log.payload[a:b].tobytes() for a, b in pairwise(ends)]


def encoded(key: Sequence[Value]) -> bytes:
    texts = [v.decode("utf-8", "surrogateescape") if isinstance(v, bytes) else None for v in key]
    return KEYS.encode(texts)


@patient
@given(st.lists(full_rows, max_size=5))
def test_copy_text_and_the_log_give_equal_rows(rows: list[tuple[bytes | None, ...]]) -> None:
    assert rows_of(copy_text_rows(copied(rows), 77, 3, len(NAMES))) == [
        pg.insert(77, row) for row in rows
    ]


def test_copy_text_round_trips_every_byte() -> None:
    every = bytes(range(256))
    rows = [(every, None), *((bytes([byte]), bytes([92, byte])) for byte in range(256))]
    assert rows_of(copy_text_rows(copied(rows), 77, 3, 2)) == [pg.insert(77, row) for row in rows]


@patient
@given(st.lists(full_rows, max_size=5), keys)
def test_keys_of_a_dump_row_equal_those_of_its_insert(
    rows: list[tuple[bytes | None, ...]], key: Sequence[str]
) -> None:
    table = schema(key, "d")
    indices = np.arange(len(rows), dtype=np.int32)
    read = KEYS.keys(copy_text_rows(copied(rows), 77, 3, len(NAMES)), indices, table)
    logged = KEYS.keys(batch([pg.insert(77, row) for row in rows]), indices, table)
    assert read.hash.tolist() == logged.hash.tolist()
    assert read.data.tobytes() == logged.data.tobytes()
    assert read.offsets.tolist() == logged.offsets.tolist()
    assert read.effect.tolist() == logged.effect.tolist()


@patient
@given(st.lists(full_rows, max_size=5), keys, st.sampled_from("df"))
def test_absent_keys_equal_those_of_their_rows(
    rows: list[tuple[bytes | None, ...]], key: Sequence[str], identity_kind: str
) -> None:
    table = schema(key, identity_kind)
    wanted = [[row[NAMES.index(name)] for name in key] for row in rows]
    texts = [KEYS.texts(encoded(each), table) for each in wanted]
    found = KEYS.keys(absent_rows(texts, table), np.arange(len(rows), dtype=np.int32), table)
    assert [found.key(i) for i in range(len(found))] == [encoded(each) for each in wanted]
    assert set(found.effect.tolist()) <= {KeyEffect.GONE}


# One change: operation, new row, which columns are unchanged TOAST, old row, is the key changed?
changes = st.tuples(
    st.sampled_from("IUUUD"),
    full_rows,
    st.tuples(*[st.booleans()] * len(NAMES)),
    full_rows,
    st.booleans(),
)
Expected = list[tuple[int, bytes, KeyEffect]]


@settings(patient, max_examples=300)
@given(st.lists(changes, max_size=6), keys, st.sampled_from("df"))
def test_entries_are_those_of_a_plain_reading(
    drawn: list[
        tuple[str, tuple[bytes | None, ...], tuple[bool, ...], tuple[bytes | None, ...], bool]
    ],
    key: Sequence[str],
    identity_kind: str,
) -> None:
    table = schema(key, identity_kind)
    places = [NAMES.index(name) for name in key]
    payloads = []
    expected: Expected = []
    for index, (operation, new, unchanged, old, move) in enumerate(drawn):
        before = list(old)
        after = list(new)
        for column in range(len(NAMES)):
            if unchanged[column] or (column in places and not move):
                after[column] = before[column]
        old_key = [before[place] for place in places]
        new_key = [after[place] for place in places]
        key_image = [v if i in places else None for i, v in enumerate(before)]
        images = {"old": before} if identity_kind == "f" else {"key": key_image}
        if operation == "I":
            payloads.append(pg.insert(1, after))
            expected.append((index, encoded(new_key), KeyEffect.COMPLETE))
        elif operation == "D":
            payloads.append(pg.delete(1, **images))
            expected.append((index, encoded(old_key), KeyEffect.GONE))
        else:
            sent: list[Value] = [
                UNCHANGED if unchanged[column] else value for column, value in enumerate(after)
            ]
            key_left_out = any(isinstance(sent[place], Absent) for place in places)
            if identity_kind == "d" and old_key == new_key and not key_left_out:
                images = {}  # the server sends an old key only if it must
            payloads.append(pg.update(1, sent, **images))
            partial = identity_kind == "d" and any(
                isinstance(value, Absent) and column not in places
                for column, value in enumerate(sent)
            )
            if old_key != new_key:
                expected.append((index, encoded(old_key), KeyEffect.GONE))
                effect = KeyEffect.MOVED_PARTIAL if partial else KeyEffect.COMPLETE
            else:
                effect = KeyEffect.PARTIAL if partial else KeyEffect.COMPLETE
            expected.append((index, encoded(new_key), effect))
    found = KEYS.keys(batch(payloads), np.arange(len(payloads), dtype=np.int32), table)
    assert [
        (int(found.record[i]), found.key(i), KeyEffect(int(found.effect[i])))
        for i in range(len(found))
    ] == expected
    hashes: dict[bytes, int] = {}
    for i in range(len(found)):
        assert hashes.setdefault(found.key(i), int(found.hash[i])) == int(found.hash[i])


@patient
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=4), st.sampled_from("df"))
def test_garbage_rows_are_decode_errors_or_nothing(
    payloads: list[bytes], identity_kind: str
) -> None:
    with suppress(DecodeError):
        KEYS.keys(
            batch(payloads), np.arange(len(payloads), dtype=np.int32), schema("ab", identity_kind)
        )


@settings(patient, max_examples=300)
@given(full_rows, full_rows, st.data())
def test_flipped_rows_are_decode_errors_or_nothing(
    old: tuple[bytes | None, ...], new: tuple[bytes | None, ...], data: st.DataObject
) -> None:
    payload = bytearray(pg.update(1, new, old=old))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    del payload[data.draw(st.integers(1, len(payload))) :]
    with suppress(DecodeError):
        KEYS.keys(batch([bytes(payload)]), np.zeros(1, dtype=np.int32), schema("ab", "f"))


@patient
@given(st.binary(max_size=60), st.integers(0, 4))
def test_garbage_copy_text_is_a_decode_error_or_rows(text: bytes, columns: int) -> None:
    try:
        log = copy_text_rows(text, 77, 3, columns)
    except DecodeError:
        return
    assert len(log) == text.count(b"\n")
    assert log.payload_bytes == len(log.payload)
