"""What fold() keeps of a batch: the newest state of every key."""

from __future__ import annotations

from typing import Any

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

from tidelog.codecs.fold import KeyedChanges, fold
from tidelog.errors import DecodeError
from tidelog.model.records import RecordKind

SCHEMA = table_schema([("id", "int64"), ("a", "text"), ("b", "text")], key=["id"])


def states(changes: KeyedChanges) -> list[tuple[Any, ...]]:
    """(op, row values…, missing) of each change."""
    changes.to_batch().validate(full=True)
    rows = [tuple(row.values()) for row in changes.rows.to_pylist()]
    ops, missing = changes.op.to_pylist(), changes.missing.to_pylist()
    return [(op, *row, gone) for op, row, gone in zip(ops, rows, missing, strict=True)]


def test_the_last_state_of_each_key_survives() -> None:
    records = record_batch(
        [
            (RecordKind.INSERT, insert(["1", "a", "b"])),
            (RecordKind.INSERT, insert(["2", "a", "b"])),
            (RecordKind.UPDATE, update(["1", "A", "b"])),
            (RecordKind.DUMP_ROW, insert(["3", "dump", None])),
            (RecordKind.DELETE, delete(["2", None, None])),
            (RecordKind.ABSENT, delete(["9", None, None])),
        ]
    )
    changes = fold(records, SCHEMA)
    versions = records.column("offset").to_pylist()
    assert states(changes) == [
        ("u", 1, "A", "b", None),
        ("u", 3, "dump", None, None),
        ("d", 2, None, None, None),
        ("d", 9, None, None, None),
    ]
    assert changes.version.to_pylist() == [versions[i] for i in (2, 3, 4, 5)]
    assert changes.truncated_at is None
    assert changes.to_batch().schema.names == ["_op", "_version", "id", "a", "b", "_missing"]


def test_a_key_change_deletes_the_old_key_and_sets_the_new_one() -> None:
    records = record_batch(
        [
            (RecordKind.INSERT, insert(["1", "a", "b"])),
            (RecordKind.UPDATE, update(["2", "a", "c"], old=["1", None, None])),
        ]
    )
    changes = fold(records, SCHEMA)
    assert states(changes) == [("d", 1, None, None, None), ("u", 2, "a", "c", None)]
    assert len(set(changes.version.to_pylist())) == 1


def test_a_deleted_key_can_come_back_and_a_moved_row_can_be_moved_again() -> None:
    records = record_batch(
        [
            (RecordKind.UPDATE, update(["2", "x", "x"], old=["1", None, None])),
            (RecordKind.UPDATE, update(["3", "y", "y"], old=["2", None, None])),
            (RecordKind.INSERT, insert(["1", "new", None])),
            (RecordKind.DELETE, delete(["3", None, None])),
        ]
    )
    assert states(fold(records, SCHEMA)) == [
        ("d", 2, None, None, None),
        ("u", 1, "new", None, None),
        ("d", 3, None, None, None),
    ]


def test_an_old_image_with_the_same_key_is_no_key_change() -> None:
    schema = table_schema([("id", "int64"), ("a", "text")], ["id"], None, "f")
    records = record_batch([(RecordKind.UPDATE, update(["1", UNCHANGED], ["1", "kept"], b"O"))])
    assert states(fold(records, schema)) == [("u", 1, "kept", None)]


def test_truncate_drops_what_came_before() -> None:
    records = record_batch(
        [
            (RecordKind.INSERT, insert(["1", "a", "b"])),
            (RecordKind.TRUNCATE, truncate()),
            (RecordKind.UPDATE, update(["1", UNCHANGED, "c"])),
        ]
    )
    changes = fold(records, SCHEMA)
    assert changes.truncated_at == records.column("offset")[1].as_py()
    # Impossible in a real log, but nothing from before the truncate may leak.
    assert states(changes) == [("u", 1, None, "c", [1])]
    only = fold(records.slice(0, 2), SCHEMA)
    assert (len(only), only.truncated_at) == (0, changes.truncated_at)


def test_a_missing_column_takes_its_last_present_value() -> None:
    records = record_batch(
        [
            (RecordKind.INSERT, insert(["1", "big", "0"])),
            (RecordKind.UPDATE, update(["1", UNCHANGED, "1"])),
            (RecordKind.UPDATE, update(["2", UNCHANGED, "9"])),
            (RecordKind.UPDATE, update(["1", UNCHANGED, "2"])),
            (RecordKind.UPDATE, update(["2", "late", UNCHANGED])),
            (RecordKind.UPDATE, update(["3", UNCHANGED, UNCHANGED])),
        ]
    )
    assert states(fold(records, SCHEMA)) == [
        ("u", 1, "big", "2", None),
        ("u", 2, "late", "9", None),
        ("u", 3, None, None, [1, 2]),
    ]


def test_a_moved_partial_row_takes_missing_columns_from_its_old_key() -> None:
    moved = update(["2", UNCHANGED, "1"], old=["1", None, None])
    known = record_batch(
        [(RecordKind.INSERT, insert(["1", "big", "0"])), (RecordKind.UPDATE, moved)]
    )
    assert states(fold(known, SCHEMA))[1] == ("u", 2, "big", "1", None)
    unknown = record_batch(
        [(RecordKind.UPDATE, moved), (RecordKind.UPDATE, update(["2", UNCHANGED, "2"]))]
    )
    assert states(fold(unknown, SCHEMA))[1] == ("u", 2, None, "2", [1])


def test_a_partial_row_takes_nothing_from_an_earlier_life_of_its_key() -> None:
    records = record_batch(
        [
            (RecordKind.INSERT, insert(["1", "first life", "0"])),
            (RecordKind.DELETE, delete(["1", None, None])),
            (RecordKind.UPDATE, update(["1", UNCHANGED, "1"], old=["2", None, None])),
        ]
    )
    assert states(fold(records, SCHEMA)) == [
        ("d", 2, None, None, None),
        ("u", 1, None, "1", [1]),
    ]


def test_keys_are_compared_by_their_bytes() -> None:
    schema = table_schema([("k1", "text"), ("k2", "text")], key=["k2", "k1"])
    records = record_batch(
        [
            (RecordKind.INSERT, insert(["ab", "c"])),
            (RecordKind.INSERT, insert(["a", "bc"])),
            (RecordKind.INSERT, insert(["", "abc"])),
            (RecordKind.INSERT, insert(["abc", ""])),
            (RecordKind.INSERT, insert(["AB", "c"])),
            (RecordKind.DELETE, delete(["a", "bc"])),
        ]
    )
    changes = fold(records, schema)
    assert changes.op.to_pylist() == ["u", "u", "u", "u", "d"]


def test_the_identity_index_is_the_match_key() -> None:
    schema = table_schema([("id", "int64"), ("code", "text"), ("v", "text")], ["id"], ["code"], "i")
    records = record_batch(
        [
            (RecordKind.INSERT, insert(["1", "x", "v"])),
            (RecordKind.UPDATE, update(["2", "x", "w"])),
            (RecordKind.DELETE, delete([None, "x", None])),
        ]
    )
    assert states(fold(records, schema)) == [("d", None, "x", None, None)]


def test_rows_are_given_in_a_newer_version() -> None:
    target = table_schema([("b", "text"), ("new", "int32"), ("id", "decimal(20,0)")], key=["id"])
    records = record_batch(
        [
            (RecordKind.UPDATE, update(["1", "a", UNCHANGED])),
            (RecordKind.DELETE, delete(["2", None, None])),
        ]
    )
    changes = fold(records, SCHEMA, target)
    assert states(changes) == [("u", None, None, 1, [0]), ("d", None, None, 2, None)]


def test_records_that_do_not_carry_the_key_are_an_error() -> None:
    schema = table_schema([("id", "int64"), ("v", "text")], ["id"], ["v"], "d")
    with pytest.raises(DecodeError, match=r"version 1000.*lacks.*\(id\)"):
        fold(record_batch([(RecordKind.DELETE, delete([None, "x"]))]), schema)
    with pytest.raises(DecodeError, match="lacks"):
        fold(record_batch([(RecordKind.UPDATE, update([UNCHANGED, "x"]))]), SCHEMA_TWO)
    with pytest.raises(DecodeError, match="has none"):
        fold(record_batch([]), table_schema([("id", "int64")]))


SCHEMA_TWO = table_schema([("id", "int64"), ("v", "text")], key=["id"])


def test_an_empty_batch_folds_to_nothing() -> None:
    assert len(fold(record_batch([]), SCHEMA)) == 0


def test_a_column_that_is_named_like_ours_needs_another_prefix() -> None:
    schema = table_schema([("id", "int64"), ("_op", "text")], key=["id"])
    changes = fold(record_batch([(RecordKind.INSERT, insert(["1", "x"]))]), schema)
    with pytest.raises(DecodeError, match="prefix"):
        changes.to_batch()
    assert changes.to_batch("__").schema.names == ["__op", "__version", "id", "_op", "__missing"]


def test_zero_and_negative_zero_are_one_key() -> None:
    """As the databases say; an update from the one to the other is of one row."""
    schema = table_schema([("id", "float64"), ("a", "text")], key=["id"])
    records = record_batch(
        [
            (RecordKind.INSERT, insert(["0", "a"])),
            (RecordKind.UPDATE, update(["-0", "b"], old=["0", None])),
            (RecordKind.INSERT, insert(["-1", "c"])),
        ]
    )
    changes = fold(records, schema)
    assert states(changes) == [("u", 0.0, "b", None), ("u", -1.0, "c", None)]
    assert str(changes.rows.column("id")[0].as_py()) == "0.0"
