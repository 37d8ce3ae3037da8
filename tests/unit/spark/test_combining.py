"""Folded blocks combined by Arrow kernels against a plain model of the same rules."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.spark.datasource.executor import merge_batches
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION

SCHEMA = TableSchema(
    TableName("public", "t"),
    1,
    tuple(Column(name, 25, -1, "text", "text") for name in ("k", "a", "b")),
    ("k",),
    ("k",),
    "d",
    "pgoutput",
    1,
)
ARROW = pa.schema(
    [
        (CHANGE_OP, pa.string()),
        (CHANGE_VERSION, pa.int64()),
        ("k", pa.string()),
        ("a", pa.string()),
        ("b", pa.string()),
        (CHANGE_MISSING, pa.list_(pa.int16())),
    ]
)

KEYS = st.sampled_from(["1", "2", "3"])
# a change: (key, deleted, a, b), where "?" means that the record does not tell
CHANGES = st.tuples(
    KEYS, st.booleans(), st.sampled_from(["x", "y", None, "?"]), st.sampled_from(["z", None, "?"])
)
# a block: the newest change of each key
BLOCKS = st.lists(st.lists(CHANGES, max_size=3, unique_by=lambda change: change[0]), max_size=5)


def batch(block: list[Any], version: int) -> pa.RecordBatch:
    rows = []
    for index, (key, deleted, a, b) in enumerate(block):
        unknown = [i for i, v in ((1, a), (2, b)) if v == "?" and not deleted]
        told = [None if v == "?" or deleted else v for v in (a, b)]
        op = "d" if deleted else "u"
        rows.append((op, version + index, key, *told, unknown or None))
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(ARROW)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW)


def model(blocks: list[list[Any]]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for block in blocks:
        for key, deleted, a, b in block:
            if deleted:
                state[key] = "deleted", None, None
                continue
            known = state.get(key)
            old = ("?", "?") if known is None or known[0] == "deleted" else known[1:]
            state[key] = (
                "upserted",
                *(o if n == "?" else n for n, o in zip((a, b), old, strict=True)),
            )
    return state


@given(BLOCKS)
def test_combining_blocks_gives_the_last_known_value_of_every_column(
    blocks: list[list[Any]],
) -> None:
    batches = [batch(block, 100 * index) for index, block in enumerate(blocks)]
    combined = merge_batches(batches, SCHEMA)
    found = {}
    for row in [] if combined is None else combined.to_pylist():
        unknown = row[CHANGE_MISSING] or []
        values = ["?" if i in unknown else row[n] for i, n in ((1, "a"), (2, "b"))]
        deleted = row[CHANGE_OP] == "d"
        found[row["k"]] = ("deleted", None, None) if deleted else ("upserted", *values)
    assert found == model(blocks)


def test_versions_are_the_newest() -> None:
    blocks = [[("1", False, "x", "z")], [("1", False, "y", "?")], [("2", False, "x", "z")]]
    combined = merge_batches([batch(b, 10 * i) for i, b in enumerate(blocks)], SCHEMA)
    assert combined is not None
    assert combined.column(CHANGE_VERSION).to_pylist() == [10, 20]
