"""Random histories of a table: fold() gives what a dictionary gives, row by row."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.payloads import (
    UNCHANGED,
    delete,
    insert,
    record_batch,
    table_schema,
    truncate,
    update,
)

from tidelog.codecs.fold import fold
from tidelog.model.records import RecordKind

SCHEMA = table_schema([("k", "text"), ("a", "text"), ("b", "text")], key=["k"])
_KEYS = ["", "a", "aa", "b", "ab"]
_ABSENT = object()  # a column's value that the batch does not tell


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_fold_equals_applying_the_records_one_by_one(data: st.DataObject) -> None:
    alive = set(data.draw(st.sets(st.sampled_from(_KEYS))))  # rows that were there before
    model: dict[str, tuple[str, int, list[Any]]] = {}
    records: list[tuple[RecordKind, bytes]] = []
    truncated = None
    for step in range(data.draw(st.integers(0, 25))):
        version = step  # replaced by the record's own below
        what = data.draw(st.sampled_from("IIUUUUMDTra"))
        key = data.draw(st.sampled_from(_KEYS))
        a, b = f"a{step}", data.draw(st.sampled_from([None, f"b{step}"]))
        if what in "Ir":
            if what == "I" and key in alive:
                continue
            kind = RecordKind.INSERT if what == "I" else RecordKind.DUMP_ROW
            records.append((kind, insert([key, a, b])))
            alive.add(key)
            model[key] = ("u", len(records) - 1, [a, b])
        elif what in "UM":
            to = data.draw(st.sampled_from(_KEYS)) if what == "M" else key
            if key not in alive or (to != key and to in alive):
                continue
            state = model[key][2] if key in model else [_ABSENT, _ABSENT]
            cells = [data.draw(st.sampled_from([value, UNCHANGED])) for value in (a, b)]
            new = [s if c is UNCHANGED else c for c, s in zip(cells, state, strict=True)]
            old = [key, None, None] if what == "M" else None
            records.append((RecordKind.UPDATE, update([to, *cells], old)))
            if to != key:
                alive.remove(key)
                model[key] = ("d", len(records) - 1, [None, None])
            alive.add(to)
            model[to] = ("u", len(records) - 1, new)
        elif what in "Da":
            if (key in alive) == (what == "a"):
                continue
            kind = RecordKind.DELETE if what == "D" else RecordKind.ABSENT
            records.append((kind, delete([key, None, None])))
            alive.discard(key)
            model[key] = ("d", len(records) - 1, [None, None])
        else:
            records.append((RecordKind.TRUNCATE, truncate()))
            model.clear()
            alive.clear()
            truncated = len(records) - 1
        assert version == step
    batch = record_batch(records)
    versions = batch.column("offset").to_pylist()
    changes = fold(batch, SCHEMA)
    changes.to_batch().validate(full=True)
    got = {}
    for row in changes.to_batch().to_pylist():
        assert row["k"] not in got
        missing = row["_missing"] or []
        values = [_ABSENT if i in missing else row[n] for i, n in ((1, "a"), (2, "b"))]
        got[row["k"]] = (row["_op"], row["_version"], values)
    assert got == {key: (op, versions[at], new) for key, (op, at, new) in model.items()}
    assert changes.truncated_at == (None if truncated is None else versions[truncated])
    assert changes.version.to_pylist() == sorted(changes.version.to_pylist())
