"""Keys of log rows, dump rows and absent keys of the binlog's wire format are the same texts."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from tests.support.binlog_values import delete, insert, schema_of, update

from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.rows.keys import BinlogKeys
from tidelog.codecs.mysql.types import binlog_column
from tidelog.codecs.postgres.tuples import absent_rows
from tidelog.errors import DecodeError
from tidelog.model.records import KeyEffect, LogBatch, RecordKind, Resume

KEYS = BinlogKeys()


def column(name: str, kind: str, octets: int | None = None, collation: int | None = None):
    return binlog_column(
        name, kind.split("(")[0], kind, flavor=Flavor.MYSQL, octet_length=octets,
        collation_id=collation,
    )  # fmt: skip


SCHEMA = schema_of(
    [
        column("a", "varchar(9)", 36, 8), column("n", "int"), column("f", "float"),
        column("v", "text", 65535, 255),
    ],
    ["f", "a"],
)  # fmt: skip


def dump_row(*cells: bytes | None) -> bytes:
    body = b"".join(
        b"n" if cell is None else b"t" + struct.pack("!I", len(cell)) + cell for cell in cells
    )
    return struct.pack("!cIcH", b"I", 0, b"N", len(cells)) + body


def batch(*rows: tuple[RecordKind, bytes]) -> LogBatch:
    n = len(rows)
    offsets = np.zeros(n + 1, dtype=np.int32)
    offsets[1:] = np.cumsum([len(payload) for _, payload in rows])
    numbers = np.arange(n, dtype=np.int64)
    return LogBatch(
        np.array([kind for kind, _ in rows], dtype=np.uint8), np.ones(n, dtype=np.int32),
        numbers, numbers, numbers, numbers, offsets,
        np.frombuffer(b"".join(payload for _, payload in rows), dtype=np.uint8), Resume(0, 0, 0),
    )  # fmt: skip


def entries(of: LogBatch, records: list[int] | None = None) -> list[tuple[int, KeyEffect, object]]:
    chosen = range(len(of)) if records is None else records
    found = KEYS.keys(of, np.array(chosen, dtype=np.int32), SCHEMA)
    return [
        (int(found.record[i]), KeyEffect(found.effect[i]), KEYS.texts(found.key(i), SCHEMA))
        for i in range(len(found))
    ]


ROW = {"a": b"caf\xe9", "n": 1, "f": 0.1, "v": "x"}
FLOAT = "0.10000000149011612"


def test_rows_of_all_origins_have_one_key() -> None:
    mixed = batch(
        (RecordKind.INSERT, insert(SCHEMA, ROW)),
        (RecordKind.DUMP_ROW, dump_row("café".encode(), b"1", b"1.0000000149011612e-1", b"x")),
        (RecordKind.TRUNCATE, struct.pack("!ciBI", b"T", 1, 0, 0)),
        (RecordKind.DELETE, delete(SCHEMA, ROW)),
    )
    key = (FLOAT, "café")
    assert entries(mixed) == [
        (0, KeyEffect.COMPLETE, key), (1, KeyEffect.COMPLETE, key), (3, KeyEffect.GONE, key),
    ]  # fmt: skip
    assert entries(mixed, [3]) == [(3, KeyEffect.GONE, key)]
    hashes = KEYS.keys(mixed, np.array([0, 1, 3], dtype=np.int32), SCHEMA).hash
    assert len(set(hashes.tolist())) == 1
    assert entries(absent_rows([(FLOAT, "café")], SCHEMA)) == [(0, KeyEffect.GONE, key)]
    assert KEYS.texts(KEYS.encode(key), SCHEMA) == key


def test_effects_follow_what_the_images_hold() -> None:
    moved = ROW | {"a": b"tea"}
    rows = batch(
        (RecordKind.UPDATE, update(SCHEMA, ROW, ROW | {"n": 2})),
        (RecordKind.UPDATE, update(SCHEMA, ROW, {"a": b"tea"})),
        (RecordKind.UPDATE, update(SCHEMA, {"a": b"a", "f": 1.0}, {"n": 5})),
        (RecordKind.UPDATE, update(SCHEMA, {"a": b"a", "f": 1.0}, moved)),
        (RecordKind.UPDATE, update(SCHEMA, {"a": b"a", "f": 1.0}, {"a": b"b"})),
        (RecordKind.INSERT, insert(SCHEMA, {"a": b"a", "f": 1.0})),
    )
    old, tea, a = (FLOAT, "café"), (FLOAT, "tea"), ("1", "a")
    assert entries(rows) == [
        (0, KeyEffect.COMPLETE, old), (1, KeyEffect.GONE, old), (1, KeyEffect.COMPLETE, tea),
        (2, KeyEffect.PARTIAL, a), (3, KeyEffect.GONE, a), (3, KeyEffect.COMPLETE, tea),
        (4, KeyEffect.GONE, a), (4, KeyEffect.MOVED_PARTIAL, ("1", "b")),
        (5, KeyEffect.MOVED_PARTIAL, a),
    ]  # fmt: skip
    assert KEYS.key_changes(rows).tolist() == [2, 3, 4, 5]


def test_a_row_without_its_key_is_an_error_that_names_its_place() -> None:
    rows = batch(
        (RecordKind.INSERT, insert(SCHEMA, ROW)), (RecordKind.DELETE, delete(SCHEMA, {"n": 1}))
    )
    with pytest.raises(DecodeError, match=r"shop\.orders .*key.*position 1, record 1"):
        entries(rows)


def test_a_malformed_row_is_an_error_that_holds_no_value() -> None:
    rows = batch((RecordKind.INSERT, insert(SCHEMA, ROW | {"v": "secret"})[:-1]))
    with pytest.raises(DecodeError, match=r"shop\.orders") as caught:
        entries(rows)
    assert "secret" not in str(caught.value)
