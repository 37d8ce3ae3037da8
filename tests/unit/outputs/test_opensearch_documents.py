"""Ids and bodies of bulk requests."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("opensearchpy")

from tidelog.outputs.opensearch import documents
from tidelog.outputs.opensearch.indices import index_name
from tidelog.outputs.opensearch.writer import _body, _parts

_TEXTS = st.one_of(
    st.none(),
    st.text("a|\\N0#", max_size=6),
    st.text(max_size=400),
    st.text("ab", min_size=500, max_size=520),
)


@given(st.lists(st.tuples(_TEXTS, _TEXTS), min_size=1, max_size=20, unique=True))
def test_no_two_keys_have_one_id(keys: list[tuple[str | None, str | None]]) -> None:
    columns = [pa.array([key[i] for key in keys], pa.string()) for i in (0, 1)]
    found = documents.ids(pa.RecordBatch.from_arrays(columns, names=["a", "b"]), ("a", "b"))
    texts = found.to_pylist()
    assert len(set(texts)) == len(keys)
    assert all(0 < len(text.encode()) <= documents.ID_MAX_BYTES for text in texts)


@given(st.lists(_TEXTS, min_size=1, max_size=20, unique=True))
def test_no_two_keys_of_one_column_have_one_id(keys: list[str | None]) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(keys, pa.string())], names=["a"])
    texts = documents.ids(batch, ("a",)).to_pylist()
    assert len(set(texts)) == len(keys)
    assert all(0 < len(text.encode()) <= documents.ID_MAX_BYTES for text in texts)


def test_ids_are_what_one_would_ask_for() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "n": pa.array([-7]),
            "t": pa.array(["a|b"]),
            "d": pa.array([dt.date(2026, 1, 31)]),
            "i": pa.array([dt.datetime(2026, 1, 31, 12)], pa.timestamp("us", tz="UTC")),
            "m": pa.array([Decimal("1.50")]),
            "b": pa.array([b"\x00\xff"]),
        }
    )
    assert documents.ids(batch, ("n",)).to_pylist() == ["-7"]
    assert documents.ids(batch, ("n", "t", "d", "i", "m", "b")).to_pylist() == [
        "-7|a\\|b|2026-01-31|2026-01-31T12:00:00.000000Z|1.50|00ff"
    ]


@given(
    st.lists(st.tuples(st.text(), st.one_of(st.none(), st.text())), min_size=1, max_size=30),
    st.integers(1, 500),
    st.integers(0, 3),
)
def test_a_bulk_request_s_lines_are_json_of_the_rows(
    rows: list[tuple[str, str | None]], bulk_bytes: int, skipped: int
) -> None:
    batch = pa.RecordBatch.from_pydict(
        {"id": pa.array([r[0] for r in rows]), 'a "b"': pa.array([r[1] for r in rows], pa.string())}
    )
    version = pa.array(range(100, 100 + len(rows)), pa.int64())
    bodies = documents.documents(batch, batch.schema.names, version)
    lines = documents.index_lines(documents.ids(batch, ("id",)), version, bodies)[skipped:]
    sent = b"".join(_body(lines[part]) for part in _parts(lines, bulk_bytes)).split(b"\n")
    assert sent.pop() == b""
    assert len(sent) == 2 * max(0, len(rows) - skipped)
    for number, (action, document) in enumerate(zip(sent[::2], sent[1::2], strict=True), skipped):
        told = json.loads(action)["index"]
        assert (told["version"], told["version_type"]) == (100 + number, "external_gte")
        expected = dict(zip(batch.schema.names, rows[number], strict=True))
        assert json.loads(document) == expected | {"_tidelog": {"version": 100 + number}}


@pytest.mark.parametrize(
    ("text", "name"),
    [("Public_Orders", "public_orders"), ("-a b/c", "a_b_c"), ("..", "_"), ("ü" * 300, "ü" * 124)],
)
def test_names_of_indices_follow_opensearch_s_rules(text: str, name: str) -> None:
    assert index_name(text) == name
