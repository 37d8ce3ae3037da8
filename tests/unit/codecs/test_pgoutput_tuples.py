"""Keys of rows, COPY text and absent keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.support import pgoutput_messages as pg
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.codecs.postgres.pgoutput import START
from tidelog.codecs.postgres.tuples import PgoutputKeys, absent_rows, copy_text_rows
from tidelog.errors import ChunkError, DecodeError
from tidelog.model.records import KeyEffect, KeyEntries, LogBatch, RecordKind
from tidelog.model.schema import Column, TableName, TableSchema

KEYS = PgoutputKeys()
COMPLETE, PARTIAL, GONE, MOVED_PARTIAL = KeyEffect


def schema(
    key: Sequence[str] = ("b", "a"), identity_kind: str = "d", identity: Sequence[str] = ()
) -> TableSchema:
    """Columns a, b, c, d; the key's order is not the columns'."""
    names = ("a", "b", "c", "d")
    chosen = {"d": tuple(key), "f": names, "i": tuple(identity), "n": ()}[identity_kind]
    return TableSchema(
        table=TableName("public", "t"),
        relation_id=5,
        columns=tuple(Column(name, 25, -1, "text", "text") for name in names),
        key=tuple(key),
        identity=chosen,
        identity_kind=identity_kind,
        wire_format="pgoutput",
        schema_id=3,
    )


def batch(*payloads: bytes) -> LogBatch:
    count = len(payloads)
    data, offsets = pg.packed(payloads)
    return LogBatch(
        kind=np.array([payload[0] for payload in payloads], dtype=np.uint8),
        schema_id=np.full(count, 3, dtype=np.int32),
        position=np.zeros(count, dtype=np.int64),
        ordinal=np.arange(count, dtype=np.int64),
        xid=np.zeros(count, dtype=np.int64),
        commit_ts=np.zeros(count, dtype=np.int64),
        payload_offsets=offsets.astype(np.int32),
        payload=data,
        resume=START,
    )


def extract(log: LogBatch, table: TableSchema, records: list[int] | None = None) -> KeyEntries:
    chosen = range(len(log)) if records is None else records
    return KEYS.keys(log, np.array(chosen, dtype=np.int32), table)


def entries(*payloads: bytes, table: TableSchema | None = None) -> list[tuple[object, ...]]:
    found = extract(batch(*payloads), table or schema())
    return [
        (int(found.record[i]), KEYS.texts(found.key(i), schema()), KeyEffect(int(found.effect[i])))
        for i in range(len(found))
    ]


def test_each_operation_with_a_default_identity() -> None:
    assert entries(
        pg.insert(5, ["1", "x", None, "d"]),
        pg.update(5, ["1", "x", "c", None]),
        pg.update(5, ["2", "x", "c", None], key=["1", "x", None, None]),
        pg.truncate(5),
        pg.delete(5, key=["2", "x", None, None]),
    ) == [
        (0, ("x", "1"), COMPLETE),
        (1, ("x", "1"), COMPLETE),
        (2, ("x", "1"), GONE),
        (2, ("x", "2"), COMPLETE),
        (4, ("x", "2"), GONE),
    ]


def test_unchanged_toast_makes_a_partial_entry_unless_the_old_row_has_the_value() -> None:
    old = ["1", "x", "long", "d"]
    assert entries(
        pg.update(5, ["1", "x", UNCHANGED, "e"]),
        pg.update(5, ["2", "x", UNCHANGED, "e"], key=["1", "x", None, None]),
    ) == [(0, ("x", "1"), PARTIAL), (1, ("x", "1"), GONE), (1, ("x", "2"), MOVED_PARTIAL)]
    assert entries(
        pg.update(5, ["1", "x", UNCHANGED, "e"], old=old),
        pg.update(5, ["2", "x", UNCHANGED, "e"], old=old),
        pg.update(5, ["2", "x", UNCHANGED, "e"], old=["1", "x", UNCHANGED, "d"]),
        table=schema(identity_kind="f"),
    ) == [
        (0, ("x", "1"), COMPLETE),
        (1, ("x", "1"), GONE),
        (1, ("x", "2"), COMPLETE),
        (2, ("x", "1"), GONE),
        (2, ("x", "2"), MOVED_PARTIAL),
    ]


def test_a_full_old_row_of_a_table_that_is_not_full_has_no_more_than_its_identity() -> None:
    """As of a partition whose root alone is FULL; the other columns are sent as NULL."""
    assert entries(
        pg.update(5, ["1", "x", UNCHANGED, "e"], old=["1", "x", None, None]),
        pg.update(5, ["2", "x", UNCHANGED, "e"], old=["1", "x", None, None]),
    ) == [(0, ("x", "1"), PARTIAL), (1, ("x", "1"), GONE), (1, ("x", "2"), MOVED_PARTIAL)]


def test_a_full_old_row_with_the_same_key_is_no_key_change() -> None:
    table = schema(identity_kind="f")
    assert entries(
        pg.update(5, ["1", "x", "c", "e"], old=["1", "x", "b", "e"]),
        pg.delete(5, old=["1", "x", "c", "e"]),
        table=table,
    ) == [(0, ("x", "1"), COMPLETE), (1, ("x", "1"), GONE)]


def test_an_unchanged_toasted_key_column_is_taken_from_the_old_key() -> None:
    long = "k" * 2000  # twice in the entries, once in the payload
    assert entries(
        pg.update(5, [UNCHANGED, "y", "c", "d"], key=[long, "x", None, None]),
        pg.update(5, [UNCHANGED, "x", "c", "d"], key=[long, "x", None, None]),
        pg.update(5, [UNCHANGED, "x", UNCHANGED, "d"], key=[long, "x", None, None]),
    ) == [
        (0, ("x", long), GONE),
        (0, ("y", long), COMPLETE),
        (1, ("x", long), COMPLETE),
        (2, ("x", long), PARTIAL),
    ]


def test_keys_follow_the_identity_index() -> None:
    table = schema(key=("a",), identity_kind="i", identity=("c",))
    assert entries(
        pg.insert(5, ["1", "x", "k", "d"]),
        pg.update(5, ["9", "x", "k", "d"]),
        pg.delete(5, key=[None, None, "k", None]),
        table=table,
    ) == [(0, ("k",), COMPLETE), (1, ("k",), COMPLETE), (2, ("k",), GONE)]


def test_only_the_chosen_records_are_read() -> None:
    log = batch(pg.insert(5, ["1", "x", None, None]), b"junk", pg.insert(5, ["2", "", None, None]))
    found = extract(log, schema(), [2, 0])
    assert found.record.tolist() == [2, 0]
    assert [KEYS.texts(found.key(i), schema()) for i in range(2)] == [("", "2"), ("x", "1")]
    assert len(extract(log, schema(), [])) == 0


def test_null_and_empty_key_values_differ() -> None:
    table = schema(key=("a",), identity_kind="f")
    found = extract(
        batch(pg.insert(5, [None, "", "", ""]), pg.insert(5, ["", None, None, None])), table
    )
    assert [KEYS.texts(found.key(i), schema()) for i in range(2)] == [(None,), ("",)]
    assert found.hash[0] != found.hash[1]


def test_texts_and_encode_are_inverse_and_match_the_kernel() -> None:
    for texts in [(), (None,), ("",), ("ü€", None, "a\0b"), ("\udcff",)]:
        assert KEYS.texts(KEYS.encode(texts), schema()) == texts
    found = extract(batch(pg.insert(5, ["1", "ü", None, None])), schema())
    assert found.key(0) == KEYS.encode(("ü", "1"))


def test_equal_keys_hash_alike_and_others_spread() -> None:
    rows = [pg.insert(5, [str(i), "x", str(i % 7), None]) for i in range(20_000)]
    found = extract(batch(*rows, *rows), schema())
    half = len(rows)
    assert (found.hash[:half] == found.hash[half:]).all()
    assert len(np.unique(found.hash[:half])) == half
    for bits in (found.hash[:half] & np.uint64(255), found.hash[:half] >> np.uint64(56)):
        counts = np.bincount(bits.astype(np.int64), minlength=256)
        assert counts.min() > 30
        assert counts.max() < 150


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (pg.insert(5, ["s3cret", "x", None, None])[:-1], "malformed"),
        (pg.insert(5, ["s3cret", "x", None, None]) + b"\0", "malformed"),
        (pg.insert(5, ["s3cret", "x", None]), "number of columns"),
        (pg.insert(5, ["1", "x", None, "z"]).replace(b"t\0\0\0\1z", b"b\0\0\0\1z"), "malformed"),
        (pg.insert(5, ["1", "x", None, "z"]).replace(b"\0\0\0\1z", b"\xff\xff\xff\xffz"), "malfor"),
        (pg.update(5, [UNCHANGED, "s3cret", None, None]), "does not carry its key"),
        (pg.update(5, ["1", "x", "c", "d"], key=["1", "x", None, None])[:40], "malformed"),
        (b"U", "malformed"),
        (b"I\0\0\0\5K\0\0", "malformed"),
        (b"D\0\0\0\5N\0\0", "malformed"),
        (b"Zzzzzzzzzz", "malformed"),
        (b"", "malformed"),
    ],
)
def test_malformed_rows_are_named_without_values(payload: bytes, says: str) -> None:
    log = batch(payload or b"I")
    if not payload:
        log.payload_offsets[1] = 0
    with pytest.raises(DecodeError) as caught:
        extract(log, schema())
    assert says in str(caught.value)
    assert "public.t" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_key_that_old_images_do_not_carry_is_an_error_not_a_null() -> None:
    table = TableSchema(**{**vars(schema()), "key": ("c",), "identity": ("a",)})
    with pytest.raises(DecodeError, match="replica identity"):
        entries(pg.delete(5, key=["1", None, None, None]), table=table)


def test_moved_names_the_updates_that_carry_an_old_key() -> None:
    row = ["1", "x", "c", "d"]
    log = batch(
        pg.insert(5, row),
        pg.update(5, row),
        pg.update(5, row, key=["2", "x", None, None]),
        pg.update(5, row, old=row),
        pg.delete(5, key=["2", "x", None, None]),
    )
    assert KEYS.key_changes(log).tolist() == [2, 3]
    assert KEYS.key_changes(batch()).tolist() == []


def test_indices_outside_the_batch_are_refused() -> None:
    log = batch(pg.insert(5, ["1", "x", None, None]))
    for index in (-1, 1):
        with pytest.raises(DecodeError):
            extract(log, schema(), [index])


# ---------------------------------------------------------------- COPY


def rows_of(log: LogBatch) -> list[bytes]:
    return [
        log.payload[a:b].tobytes()
        for a, b in zip(log.payload_offsets[:-1], log.payload_offsets[1:], strict=True)
    ]


def test_copy_text_becomes_inserts() -> None:
    log = copy_text_rows(
        b"1\t\\N\ta\\tb\\nc\\\\N\n" + b"\\\\N\t\t\\b\\f\\r\\v\\x\n" + b"\\N\t\\N\t\\N\n", 5, 3, 3
    )
    assert rows_of(log) == [
        pg.insert(5, ["1", None, "a\tb\nc\\N"]),
        pg.insert(5, ["\\N", "", "\b\f\r\vx"]),
        pg.insert(5, [None, None, None]),
    ]
    assert log.kind.tolist() == [RecordKind.DUMP_ROW] * 3
    assert log.schema_id.tolist() == [3] * 3
    for column in (log.position, log.ordinal, log.xid, log.commit_ts):
        assert column.tolist() == [0] * 3


def test_only_a_whole_field_is_null() -> None:
    log = copy_text_rows(b"\\Nx\tx\\N\n", 5, 3, 2)
    assert rows_of(log) == [pg.insert(5, ["Nx", "xN"])]


def test_copy_of_no_rows_and_of_no_columns() -> None:
    assert len(copy_text_rows(b"", 5, 3, 2)) == 0
    assert rows_of(copy_text_rows(b"\n\n", 5, 3, 0)) == [pg.insert(5, [])] * 2
    assert rows_of(copy_text_rows(b"\n", 5, 3, 1)) == [pg.insert(5, [""])]
    assert rows_of(copy_text_rows(np.frombuffer(b"a\n", np.uint8), 5, 3, 1)) == [
        pg.insert(5, ["a"])
    ]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (b"a\tb", 2),
        (b"a\n", 2),
        (b"a\tb\tc\n", 2),
        (b"a\tb\n\n", 2),
        (b"a\t\\\n", 2),
        (b"a\n", 0),
        (b"\\N", 1),
        (b"\\", 1),
    ],
)
def test_torn_copy_rows_are_refused(text: bytes, columns: int) -> None:
    with pytest.raises(DecodeError, match="COPY"):
        copy_text_rows(text, 5, 3, columns)


# ---------------------------------------------------------------- absent keys


def test_absent_keys_are_deletes_that_the_extractor_reads() -> None:
    table = schema()
    log = absent_rows([("x", "1"), ("ü", "2")], table)
    assert rows_of(log)[0] == pg.delete(5, key=["1", "x", None, None])
    assert log.kind.tolist() == [RecordKind.ABSENT] * 2
    found = extract(log, table)
    assert [KEYS.texts(found.key(i), schema()) for i in range(2)] == [("x", "1"), ("ü", "2")]
    assert found.effect.tolist() == [GONE, GONE]
    assert len(absent_rows([], table)) == 0


def test_absent_keys_of_a_table_with_full_identity() -> None:
    table = schema(identity_kind="f")
    found = extract(absent_rows([("x", "1")], table), table)
    assert KEYS.texts(found.key(0), table) == ("x", "1")


def test_absent_keys_that_do_not_name_the_match_key_are_refused() -> None:
    table = schema(key=("a",), identity_kind="i", identity=("c",))
    with pytest.raises(ChunkError, match=r"matched by \(c\)"):
        absent_rows([("1",)], table, columns=("a",))
    log = absent_rows([("1", "k")], table, columns=("a", "c"))
    assert KEYS.texts(extract(log, table).key(0), table) == ("k",)
