"""Values of the binlog, written in plain Python and scanned, come out as the texts and types they
stand for.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.support.binlog_values import Stored, delete, insert, schema_of, update

from tidelog.codecs.columns import times
from tidelog.codecs.decode import decode
from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.cell_text.json_texts import double_text
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.types import binlog_column
from tidelog.codecs.wire_formats import parse
from tidelog.errors import DecodeError
from tidelog.eventlog.segments import RECORD_SCHEMA
from tidelog.model.records import Int32s, RecordKind
from tidelog.model.schema import Column, TableSchema

FAST = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
_UTF8 = 255


def column(text: str, name: str = "c", octets: int | None = None, collation: int = 0) -> Column:
    kind = text.split("(")[0].split(" ")[0]
    return binlog_column(
        name, kind, text, flavor=Flavor.MYSQL, octet_length=octets, collation_id=collation or None
    )


def records(
    payloads: list[bytes], kind: RecordKind = RecordKind.INSERT, around: bytes = b""
) -> pa.RecordBatch:
    """A batch whose payloads lie between the bytes ``around``."""
    n = len(payloads)
    values = {"offset": range(1, n + 1), "kind": [int(kind)] * n, "schema_id": [1] * n}
    arrays = {f.name: pa.array(list(values.get(f.name, range(n))), f.type)
              for f in RECORD_SCHEMA if f.name != "payload"}  # fmt: skip
    bounds = np.cumsum([len(around), *map(len, payloads)]).astype(np.int32)
    data = around + b"".join(payloads) + around
    arrays["payload"] = pa.Array.from_buffers(
        pa.binary(), n, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    return pa.RecordBatch.from_arrays([arrays[f.name] for f in RECORD_SCHEMA], schema=RECORD_SCHEMA)


def texts(
    schema: TableSchema, payloads: list[bytes], kind: RecordKind = RecordKind.INSERT
) -> list[Any]:
    cells = parse(records(payloads, kind), schema, range(len(schema.columns)), old=True)

    def cell(start: Int32s, length: Int32s, i: int) -> bytes | None:
        return cells.data[start[i] : start[i] + length[i]].tobytes() if length[i] >= 0 else None

    image = cells.old if kind == RecordKind.DELETE else cells.new
    assert image is not None
    return [cell(image.start[0], image.length[0], i) for i in range(len(payloads))]


def typed(schema: TableSchema, payloads: list[bytes]) -> list[Any]:
    after = decode(records(payloads), schema).after
    assert after is not None
    return [row["c"] for row in after.to_pylist()]


def both(of: Column, values: list[Any]) -> tuple[list[bytes | None], list[Any]]:
    schema = schema_of([of])
    payloads = [insert(schema, {"c": value}) for value in values]
    return texts(schema, payloads), typed(schema, payloads)


@pytest.mark.parametrize("kind", ["tinyint", "smallint", "mediumint", "int", "bigint"])
@pytest.mark.parametrize("sign", ["", " unsigned"])
@FAST
@given(data=st.data())
def test_integers_keep_their_value(kind: str, sign: str, data: st.DataObject) -> None:
    bits = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}[kind]
    low, high = (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    values = data.draw(st.lists(st.integers(low, high) | st.sampled_from([low, high]), min_size=1))
    found, numbers = both(column(kind + sign), [*values, None])
    assert found == [*(str(value).encode() for value in values), None]
    assert numbers == [*values, None]


@FAST
@given(data=st.data(), precision=st.integers(1, 65))
def test_decimals_keep_every_digit(data: st.DataObject, precision: int) -> None:
    scale = data.draw(st.integers(0, min(precision, 30)))
    digits = st.integers(-(10**precision) + 1, 10**precision - 1)
    values = [
        Decimal(f"{number}E-{scale}")
        for number in data.draw(st.lists(digits, min_size=1, max_size=8))
    ]
    found, numbers = both(column(f"decimal({precision},{scale})"), values)
    assert found == [f"{value:.{scale}f}".encode() for value in values]
    if precision <= types.MAX_DECIMAL_DIGITS:
        assert numbers == values


@pytest.mark.parametrize("digits", range(7))
@FAST
@given(moments=st.lists(st.datetimes(dt.datetime(1, 1, 1)), min_size=1))
def test_datetimes_keep_their_fractions(digits: int, moments: list[dt.datetime]) -> None:
    cut = [m.replace(microsecond=m.microsecond // 10 ** (6 - digits) * 10 ** (6 - digits))
           for m in moments]  # fmt: skip
    suffix = f"({digits})" if digits else ""
    found, values = both(column("datetime" + suffix), cut)
    assert values == cut
    expected = [m.isoformat(" ", "microseconds")[: 19 + digits + (digits > 0)] for m in cut]
    assert found == [text.encode() for text in expected]


@pytest.mark.parametrize("digits", [0, 1, 3, 6])
@FAST
@given(
    moments=st.lists(
        st.datetimes(dt.datetime(1970, 1, 1, 0, 0, 1), dt.datetime(2106, 2, 7)), min_size=1
    )
)
def test_timestamps_are_utc(digits: int, moments: list[dt.datetime]) -> None:
    cut = [m.replace(microsecond=m.microsecond // 10 ** (6 - digits) * 10 ** (6 - digits))
           for m in moments]  # fmt: skip
    _, values = both(column(f"timestamp({digits})"), cut)
    assert values == [moment.replace(tzinfo=dt.UTC) for moment in cut]


@pytest.mark.parametrize("digits", range(7))
@FAST
@given(micros=st.integers(-838 * 3600 * 10**6, 838 * 3600 * 10**6))
def test_times_are_negative_with_their_fractions(digits: int, micros: int) -> None:
    unit = 10 ** (6 - digits)
    micros = abs(micros) // unit * unit * (1 if micros >= 0 else -1)
    found, _ = both(column(f"time({digits})"), [dt.timedelta(microseconds=micros)])
    seconds, rest = divmod(abs(micros), 10**6)
    text = f"{'-' if micros < 0 else ''}{seconds // 3600:02}:{seconds // 60 % 60:02}"
    text += f":{seconds % 60:02}" + (f".{rest // unit:0{digits}}" if digits else "")
    assert found == [text.encode()]


_DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=30,
)


def printed(document: Any) -> str:
    if isinstance(document, dict):
        keys = sorted(document, key=lambda k: (len(k.encode()), k.encode()))
        return "{" + ", ".join(f"{printed(k)}: {printed(document[k])}" for k in keys) + "}"
    if isinstance(document, list):
        return "[" + ", ".join(printed(item) for item in document) + "]"
    return json.dumps(document, ensure_ascii=False)


@FAST
@given(document=_DOCUMENTS, extra=st.booleans())
def test_documents_print_as_the_server_prints_them(document: Any, extra: bool) -> None:
    assume("\x7f" not in printed(document))  # json.dumps escapes nothing there, nor does MySQL
    # A double sends the whole document the slow way: both ways must agree.
    given_document = [document, 0.5] if extra else [document]
    found, _ = both(column("json"), [given_document])
    assert found == [printed(given_document).encode()]


@FAST
@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_of_documents_come_back(value: float) -> None:
    assert float(double_text(value)) == value


def test_doubles_have_an_exponent_where_the_server_gives_them_one() -> None:
    for text in ("1668694028178401.2", "999999999999999.0", "1.25e15", "1e16", "1e-16", "0.5"):
        assert double_text(float(text)) == text.encode()


def test_unreal_dates_are_null_but_keep_their_text() -> None:
    schema = schema_of([column("date")])
    payloads = []
    for year, month, day in ((0, 0, 0), (2024, 0, 0), (2024, 2, 31), (2024, 2, 29)):
        number = day | month << 5 | year << 9
        payloads.append(insert(schema, {"c": Stored(number.to_bytes(3, "little"))}))
    assert texts(schema, payloads) == [b"0000-00-00", b"2024-00-00", b"2024-02-31", b"2024-02-29"]
    assert typed(schema, payloads) == [None, None, None, dt.date(2024, 2, 29)]


def test_binary_is_padded_and_text_is_not() -> None:
    assert both(column("binary(4)", octets=4), [b"a\0b", b""])[1] == [b"a\0b\0", b"\0\0\0\0"]
    text = column("char(4)", octets=16, collation=_UTF8)
    assert both(text, ["é", ""])[1] == ["é", ""]


def test_bits_are_truth_or_numbers() -> None:
    assert both(column("bit(1)"), [0, 1])[1] == [False, True]
    assert both(column("bit(9)"), [0, 511])[1] == [0, 511]
    assert both(column("bit(64)"), [2**64 - 1])[1] == [Decimal(2**64 - 1)]


def test_labels_are_names() -> None:
    assert both(column("enum('a','it''s')"), [0, 2])[1] == ["", "it's"]
    assert both(column("set('a','b','c')"), [0, 5, 7])[1] == ["", "a,c", "a,b,c"]


def test_unchanged_columns_come_from_the_before_image() -> None:
    columns = [column("int", "id"), column("int"), column("int", "d")]
    schema = schema_of(columns, ["id"])
    payloads = [
        update(schema, {"id": 1, "c": 2}, {"d": 3}),
        update(schema, {"id": 1}, {"c": 5}),
    ]
    decoded = decode(records(payloads, RecordKind.UPDATE), schema)
    assert decoded.after is not None
    assert decoded.before is not None
    assert decoded.after.to_pylist() == [
        {"id": 1, "c": 2, "d": 3}, {"id": 1, "c": 5, "d": None},
    ]  # fmt: skip
    assert decoded.missing is not None
    assert decoded.missing.tolist() == [[False, False, False], [False, False, True]]
    assert decoded.before.to_pylist()[1] == {"id": 1, "c": None, "d": None}
    gone = decode(records([delete(schema, {"id": 9})], RecordKind.DELETE), schema)
    assert gone.after is None or gone.after.to_pylist() == [None]


def test_a_widened_column_is_given_in_the_newer_version() -> None:
    schema = schema_of([column("int")])
    wide = schema_of([column("bigint"), column("varchar(9)", "new", 36, _UTF8)])
    rows = decode(records([insert(schema, {"c": -5})]), schema, target=wide)
    assert rows.after is not None
    assert rows.after.to_pylist() == [{"c": -5, "new": None}]


ODD = [
    column("int", "id"), column("decimal(12,4)", "m"), column("datetime(6)", "t"),
    column("varchar(40)", "v", 160, _UTF8), column("text", "l", 65535, 8), column("json", "j"),
    column("enum('a','b')", "e"), column("set('a','b')", "s"), column("time(2)", "h"),
    column("float", "f"), column("bit(12)", "b"), column("text", "g", 65535, 28),
]  # fmt: skip


def outcome(payload: bytes, kind: RecordKind, around: bytes) -> Any:
    """What decoding gives: rows, or the error's text."""
    try:
        decoded = decode(records([payload], kind, around), schema_of(ODD, ["id"]))
    except DecodeError as error:
        return str(error)
    return plain(decoded.after), plain(decoded.before)


def plain(rows: pa.StructArray | None) -> list[Any]:
    """The columns' values; texts as bytes, for a broken payload may hold what is no UTF-8."""
    if rows is None:
        return []
    columns = [rows.field(i) for i in range(rows.type.num_fields)]
    return [(c.cast(pa.binary()) if c.type == pa.string() else c).to_pylist() for c in columns]


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_malformed_payloads_are_reported_and_never_read_past(data: st.DataObject) -> None:
    row = {
        "id": 7, "m": Decimal("-1.25"), "t": dt.datetime(2024, 2, 3, 4, 5, 6, 789), "v": "secret",
        "l": b"caf\xe9", "j": {"secret": [1, "two", {"x": None}]}, "e": 1, "s": 3,
        "h": dt.timedelta(seconds=-5), "f": 1.5, "b": 99, "g": b"\x81\x40",
    }  # fmt: skip
    schema = schema_of(ODD, ["id"])
    kind = data.draw(st.sampled_from([RecordKind.INSERT, RecordKind.UPDATE, RecordKind.DELETE]))
    whole = {
        RecordKind.INSERT: insert(schema, row), RecordKind.DELETE: delete(schema, row),
        RecordKind.UPDATE: update(schema, {"id": 1, "j": [1]}, row),
    }[kind]  # fmt: skip
    payload = bytearray(whole[: data.draw(st.integers(0, len(whole)))] if data.draw(
        st.booleans()) else whole)  # fmt: skip
    for _ in range(data.draw(st.integers(0, 4))):
        if payload:
            at = data.draw(st.integers(0, len(payload) - 1))
            payload[at] = data.draw(st.sampled_from([0, 1, 4, 127, 128, 250, 255]))
    zeros = outcome(bytes(payload), kind, b"\0" * 70)
    assert repr(outcome(bytes(payload), kind, b"\xff" * 70)) == repr(zeros)
    if isinstance(zeros, str):
        assert zeros.startswith("shop.orders: ")
        assert "version 1" in zeros
        assert "secret" not in zeros


def test_unreal_dates_of_a_key_are_dates_of_their_own() -> None:
    """Each of a few years' numbers: no two are one, all come back as they are spelled."""
    plain = schema_of([column("date")])
    schema = dataclasses.replace(plain, key=("c",), identity=("c",))
    payloads, spelled = [], []
    for year, month, day in product((0, 1, 1900, 2023, 2024, 9999), range(13), range(32)):
        number = day | month << 5 | year << 9
        payloads.append(insert(plain, {"c": Stored(number.to_bytes(3, "little"))}))
        spelled.append(f"{year:04}-{month:02}-{day:02}")
    after = decode(records(payloads), schema).after
    assert after is not None
    found = after.field("c")
    assert len(found.unique()) == len(payloads)
    assert times.texts_with_invalid_dates(found).to_pylist() == spelled
    days = found.view(pa.int32()).to_pylist()
    for text, number in zip(spelled, days, strict=True):
        try:
            wanted = (dt.date.fromisoformat(text) - dt.date(1970, 1, 1)).days
        except ValueError:
            assert number < -719_162
            assert times.invalid_date_value(text, pa.date32()).view(pa.int32()).to_pylist() == [
                number
            ]
        else:
            assert number == wanted
            assert times.invalid_date_value(text, pa.date32()) is None
