"""Random schemas and rows: what was put into payloads comes out of decode()."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.payloads import (
    UNCHANGED,
    Cell,
    delete,
    insert,
    record_batch,
    table_schema,
    update,
)

from tidelog.codecs.columns.values import arrow_type
from tidelog.codecs.decode import decode
from tidelog.errors import DecodeError
from tidelog.model.records import RecordKind

_EPOCH = dt.datetime(1970, 1, 1)


def _float_text(value: float, digits: int) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value) if digits > 9 else str(np.float32(value))


def _decimal_cells(precision: int, scale: int) -> st.SearchStrategy[tuple[str, Any]]:
    def cell(unscaled: int) -> tuple[str, Any]:
        value = Decimal(unscaled).scaleb(-scale, Context(prec=60))
        return format(value, f".{scale}f"), value

    limit = 10**precision - 1
    return st.integers(-limit, limit).map(cell)


def _timestamp_cell(micros: int, suffix: str, zone: dt.tzinfo | None) -> tuple[str, Any]:
    value = _EPOCH + dt.timedelta(microseconds=micros)
    return value.isoformat(" ") + suffix, value.replace(tzinfo=zone)


_LOW = (dt.datetime(1, 1, 1) - _EPOCH) // dt.timedelta(microseconds=1)
_HIGH = (dt.datetime(9999, 12, 31, 23) - _EPOCH) // dt.timedelta(microseconds=1)
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
CELLS: dict[str, st.SearchStrategy[tuple[str, Any]]] = {
    "bool": st.booleans().map(lambda v: ("t" if v else "f", v)),
    **{
        f"int{bits}": st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).map(
            lambda v: (str(v), v)
        )
        for bits in (16, 32, 64)
    },
    "float32": st.floats(width=32).map(lambda v: (_float_text(v, 9), v)),
    "float64": st.floats().map(lambda v: (_float_text(v, 17), v)),
    "date": st.dates().map(lambda v: (v.isoformat(), v)),
    "timestamp": st.integers(_LOW, _HIGH).map(lambda m: _timestamp_cell(m, "", None)),
    "timestamptz": st.integers(_LOW, _HIGH).map(lambda m: _timestamp_cell(m, "+00", dt.UTC)),
    "binary": st.binary(max_size=30).map(lambda v: ("\\x" + v.hex(), v)),
    "text": _TEXT.map(lambda v: (v, v)),
}


@st.composite
def _tables(draw: st.DrawFn) -> tuple[list[tuple[str, str]], list[list[tuple[str, Any] | None]]]:
    columns, strategies = [], []
    for number in range(draw(st.integers(1, 8))):
        logical = draw(st.sampled_from([*CELLS, "decimal"]))
        strategy = CELLS.get(logical)
        if strategy is None:
            precision = draw(st.integers(1, 38))
            scale = draw(st.integers(0, precision))
            logical, strategy = f"decimal({precision},{scale})", _decimal_cells(precision, scale)
        columns.append((f"c{number}", logical))
        strategies.append(st.none() | strategy)
    rows = draw(st.lists(st.tuples(*strategies).map(list), min_size=1, max_size=12))
    return columns, rows


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (
            a == b and math.copysign(1, a) == math.copysign(1, b)
        )
    return bool(a == b)


@settings(max_examples=300, deadline=None)
@given(_tables(), st.data())
def test_decoding_inverts_encoding(
    table: tuple[list[tuple[str, str]], list[list[tuple[str, Any] | None]]], data: st.DataObject
) -> None:
    columns, rows = table
    schema = table_schema(columns, identity_kind="f")
    records, befores, afters, missing = [], [], [], []
    for row in rows:
        cells: list[Cell] = [None if cell is None else cell[0] for cell in row]
        values = [None if cell is None else cell[1] for cell in row]
        kind = data.draw(st.sampled_from(["I", "r", "D", "U", "O", "partial"]))
        gone = [False] * len(row)
        before = after = None
        if kind == "D":
            records.append((RecordKind.DELETE, delete(cells, b"O")))
            before = values
        elif kind == "O":
            kept = [data.draw(st.sampled_from([cell, UNCHANGED])) for cell in cells]
            records.append((RecordKind.UPDATE, update(kept, cells, b"O")))
            before = after = values
        elif kind == "partial":
            gone = [data.draw(st.booleans()) for _ in row]
            kept = [UNCHANGED if g else c for g, c in zip(gone, cells, strict=True)]
            records.append((RecordKind.UPDATE, update(kept)))
            after = [None if g else v for g, v in zip(gone, values, strict=True)]
        else:
            code = {"I": RecordKind.INSERT, "r": RecordKind.DUMP_ROW, "U": RecordKind.UPDATE}[kind]
            records.append((code, update(cells) if kind == "U" else insert(cells)))
            after = values
        befores.append(before)
        afters.append(after)
        missing.append(gone)
    cut = data.draw(st.integers(0, len(records) - 1))
    decoded = decode(record_batch(records).slice(cut), schema)
    for struct, expected in ((decoded.before, befores[cut:]), (decoded.after, afters[cut:])):
        assert struct is not None
        struct.validate(full=True)
        assert struct.type == pa.struct([pa.field(n, arrow_type(kind)) for n, kind in columns])
        for got, want in zip(struct.to_pylist(), expected, strict=True):
            assert (got is None) == (want is None)
            if want is not None:
                assert all(_same(g, w) for g, w in zip(got.values(), want, strict=True)), (
                    got,
                    want,
                )
    flags = np.zeros((len(records) - cut, len(columns)), dtype=bool)
    got_missing = flags if decoded.missing is None else decoded.missing
    assert got_missing.tolist() == missing[cut:]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.binary(max_size=60), min_size=1, max_size=5),
    st.sampled_from([RecordKind.INSERT, RecordKind.UPDATE, RecordKind.DELETE]),
)
def test_arbitrary_bytes_give_a_clear_error_or_a_row(tails: list[bytes], kind: RecordKind) -> None:
    schema = table_schema([("a", "text"), ("b", "int32")], key=["a"])
    header = bytes([kind]) + b"\0\0\0\1"
    try:
        decoded = decode(record_batch([(kind, header + tail) for tail in tails]), schema)
    except DecodeError:
        return
    assert len(decoded) == len(tails)
