"""What decode() makes of each kind of record."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.support.payloads import (
    UNCHANGED,
    delete,
    insert,
    record_batch,
    table_schema,
    truncate,
    update,
)

from tidelog.codecs.decode import decode, project
from tidelog.errors import DecodeError
from tidelog.model.records import RecordKind

SCHEMA = table_schema([("id", "int64"), ("name", "text"), ("note", "text")], key=["id"])
FULL = table_schema([("id", "int64"), ("name", "text"), ("note", "text")], ["id"], None, "f")


def test_every_kind_of_record_gives_its_op_and_images() -> None:
    records = record_batch(
        [
            (RecordKind.INSERT, insert(["1", "a", None])),
            (RecordKind.UPDATE, update(["1", "b", "x"])),
            (RecordKind.UPDATE, update(["2", "b", "x"], old=["1", None, None])),
            (RecordKind.DELETE, delete(["2", None, None])),
            (RecordKind.TRUNCATE, truncate()),
            (RecordKind.DUMP_ROW, insert(["7", "", "é"])),
            (RecordKind.ABSENT, delete(["8", None, None])),
        ]
    )
    decoded = decode(records, SCHEMA)
    assert decoded.op.to_pylist() == ["c", "u", "u", "d", "t", "r", "d"]
    assert decoded.after is not None
    assert decoded.before is not None
    assert decoded.after.to_pylist() == [
        {"id": 1, "name": "a", "note": None},
        {"id": 1, "name": "b", "note": "x"},
        {"id": 2, "name": "b", "note": "x"},
        None,
        None,
        {"id": 7, "name": "", "note": "é"},
        None,
    ]
    assert decoded.before.to_pylist() == [
        None,
        None,
        {"id": 1, "name": None, "note": None},
        {"id": 2, "name": None, "note": None},
        None,
        None,
        {"id": 8, "name": None, "note": None},
    ]
    assert decoded.missing is None
    assert decoded.version.to_pylist() == records.column("offset").to_pylist()
    assert decoded.xid.to_pylist() == [700] * 7
    for struct in (decoded.before, decoded.after):
        struct.validate(full=True)
        assert struct.type == pa.struct(project(SCHEMA).fields)


def test_unchanged_toast_is_missing_without_a_full_old_image() -> None:
    records = record_batch(
        [
            (RecordKind.UPDATE, update(["1", UNCHANGED, "x"])),
            (RecordKind.UPDATE, update(["1", "n", None])),
        ]
    )
    decoded = decode(records, SCHEMA)
    assert decoded.after is not None
    assert decoded.after.to_pylist()[0] == {"id": 1, "name": None, "note": "x"}
    assert decoded.missing is not None
    assert decoded.missing.tolist() == [[False, True, False], [False, False, False]]


def test_unchanged_toast_is_taken_from_a_full_old_image() -> None:
    records = record_batch(
        [(RecordKind.UPDATE, update(["1", UNCHANGED, UNCHANGED], ["1", "big", None], b"O"))]
    )
    for before in (True, False):
        decoded = decode(records, FULL, before=before)
        assert decoded.after is not None
        assert decoded.after.to_pylist() == [{"id": 1, "name": "big", "note": None}]
        assert decoded.missing is None


def test_unchanged_key_stored_out_of_line_is_taken_from_the_key_image() -> None:
    schema = table_schema([("id", "text"), ("note", "text")], key=["id"])
    records = record_batch([(RecordKind.UPDATE, update([UNCHANGED, UNCHANGED], ["long", None]))])
    decoded = decode(records, schema)
    assert decoded.after is not None
    assert decoded.after.to_pylist() == [{"id": "long", "note": None}]
    assert decoded.missing is not None
    assert decoded.missing.tolist() == [[False, True]]


def test_missing_columns_are_reported_beyond_64_columns() -> None:
    names = [f"c{i}" for i in range(150)]
    schema = table_schema([(name, "text") for name in names], key=["c0"])
    row = ["k", *["v"] * 149]
    partial = [*row]
    partial[70] = partial[149] = UNCHANGED  # type: ignore[call-overload]
    decoded = decode(
        record_batch([(RecordKind.UPDATE, update(partial)), (RecordKind.INSERT, insert(row))]),
        schema,
    )
    assert decoded.missing is not None
    assert np.argwhere(decoded.missing).tolist() == [[0, 70], [0, 149]]


def test_pruned_columns_are_not_even_parsed_as_their_type() -> None:
    schema = table_schema([("id", "int64"), ("bad", "int64"), ("s", "text")], key=["id"])
    decoded = decode(
        record_batch([(RecordKind.INSERT, insert(["1", "no number", "x"]))]),
        schema,
        columns=["s", "id"],
    )
    assert decoded.after is not None
    assert decoded.after.to_pylist() == [{"s": "x", "id": 1}]
    with pytest.raises(DecodeError, match="no column nope"):
        decode(record_batch([]), schema, columns=["nope"])


def test_images_can_be_left_out() -> None:
    decoded = decode(
        record_batch([(RecordKind.INSERT, insert(["1", "a", "b"]))]), SCHEMA, after=False
    )
    assert decoded.after is None
    assert decoded.before is not None
    assert decoded.before.null_count == 1


def test_sliced_and_empty_batches() -> None:
    records = record_batch([(RecordKind.INSERT, insert([str(i), "a", "b"])) for i in range(10)])
    decoded = decode(records.slice(3, 4), SCHEMA)
    assert decoded.after is not None
    assert decoded.after.field("id").to_pylist() == [3, 4, 5, 6]
    assert decoded.version.to_pylist() == records.column("offset").to_pylist()[3:7]
    assert len(decode(records.slice(10, 0), SCHEMA)) == 0
    assert len(decode(record_batch([]), SCHEMA)) == 0


@pytest.mark.parametrize(
    ("written", "target", "text", "value"),
    [
        ("int16", "int64", "-7", -7),
        ("int32", "decimal(12,2)", "7", "7.00"),
        ("decimal(10,2)", "decimal(20,4)", "-1.25", "-1.2500"),
        ("decimal(10,4)", "decimal(10,2)", "-1.2350", "-1.24"),
        ("text", "decimal(3,0)", "99.5", "100"),
        ("float32", "float64", "0.1", 0.10000000149011612),
        ("int32", "float64", "3", 3.0),
        ("bool", "text", "t", "true"),
        ("bool", "int32", "t", 1),
        ("timestamptz", "text", "2024-01-01 00:00:00+00", "2024-01-01 00:00:00+00"),
        ("date", "timestamp", "1970-01-02", "1970-01-02 00:00:00"),
        ("binary", "text", "\\x00ff", "\\x00ff"),
    ],
)
def test_rows_of_an_older_version_take_the_types_of_a_newer(
    written: str, target: str, text: str, value: object
) -> None:
    old = table_schema([("id", "int64"), ("v", written)], key=["id"])
    new = table_schema([("v", target), ("added", "date"), ("id", "int64")], key=["id"])
    records = record_batch(
        [(RecordKind.INSERT, insert(["1", text])), (RecordKind.INSERT, insert(["2", None]))]
    )
    decoded = decode(records, old, target=new)
    assert decoded.after is not None
    assert decoded.after.type == pa.struct(project(new).fields)
    first, second = decoded.after.to_pylist()
    assert (str(first["v"]) if isinstance(value, str) else first["v"]) == value
    assert (first["added"], first["id"]) == (None, 1)
    assert second == {"v": None, "added": None, "id": 2}


def test_a_bad_value_is_named_by_table_column_and_version_never_shown() -> None:
    records = record_batch(
        [
            (RecordKind.INSERT, insert(["1", "a", "b"])),
            (RecordKind.INSERT, insert(["secret", "a", "b"])),
        ]
    )
    with pytest.raises(DecodeError) as caught:
        decode(records, SCHEMA)
    message = str(caught.value)
    assert "public.t" in message
    assert "column id" in message
    assert f"version {records.column('offset')[1].as_py()}" in message
    assert "secret" not in message
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "payload",
    [
        insert(["1", "a", "b"]),
        update(["1", UNCHANGED, "b"], ["1", None, None]),
        delete(["1", None, "old"], b"O"),
    ],
)
def test_a_torn_payload_is_an_error_wherever_it_is_cut(payload: bytes) -> None:
    kind = RecordKind(payload[0])
    decode(record_batch([(kind, payload)]), SCHEMA)
    for size in range(len(payload)):
        with pytest.raises(DecodeError, match="version 1000"):
            decode(record_batch([(kind, payload[:size])]), SCHEMA)
    with pytest.raises(DecodeError, match="version 1000"):
        decode(record_batch([(kind, payload + b"n")]), SCHEMA)


def test_other_faults_of_payloads_are_errors() -> None:
    with pytest.raises(DecodeError, match="number of columns"):
        decode(record_batch([(RecordKind.INSERT, insert(["1", "a"]))]), SCHEMA)
    with pytest.raises(DecodeError, match="not a row change"):
        decode(record_batch([(RecordKind.CONTROL, b"{}")]), SCHEMA)
    binary = insert(["1", "a", "b"]).replace(b"t", b"b", 1)
    with pytest.raises(DecodeError, match="well-formed"):
        decode(record_batch([(RecordKind.INSERT, binary)]), SCHEMA)


def test_a_batch_of_another_layout_is_refused() -> None:
    records = record_batch([(RecordKind.INSERT, insert(["1", "a", "b"]))])
    large = records.set_column(7, "payload", records.column("payload").cast(pa.large_binary()))
    with pytest.raises(DecodeError, match="large_binary"):
        decode(large, SCHEMA)
