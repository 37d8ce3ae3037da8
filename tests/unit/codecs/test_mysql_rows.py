"""Result sets of the text protocol become dump rows, in whatever pieces they arrive."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.binlog_values import schema_of

from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.rows.dump_rows import ResultError, ResultRows
from tidelog.codecs.mysql.types import binlog_column
from tidelog.errors import DecodeError
from tidelog.model.records import RecordKind

EOF = struct.pack("<I", 5)[:3] + b"\x09\xfe\0\0\2\0"
OK = struct.pack("<I", 7)[:3] + b"\x09\xfe\0\0\2\0\0\0"


def schema(*kinds: str):
    return schema_of(
        [
            binlog_column(f"c{i}", k.split("(")[0].split(" ")[0], k, flavor=Flavor.MYSQL)
            for i, k in enumerate(kinds)
        ]
    )


def packed(value: bytes | None) -> bytes:
    if value is None:
        return b"\xfb"
    if len(value) < 251:
        return bytes([len(value)]) + value
    return b"\xfd" + struct.pack("<I", len(value))[:3] + value


def packet(row: list[bytes | None]) -> bytes:
    body = b"".join(map(packed, row))
    return struct.pack("<I", len(body))[:3] + b"\0" + body


def tuples(rows: ResultRows) -> list[list[bytes | None]]:
    batch = rows.batch()
    assert set(batch.kind) <= {RecordKind.DUMP_ROW}
    found = []
    for i in range(len(batch)):
        payload = batch.payload[batch.payload_offsets[i] : batch.payload_offsets[i + 1]].tobytes()
        tag, relation, image, columns = struct.unpack_from("!cIcH", payload)
        assert (tag, relation, image) == (b"I", 0, b"N")
        at, row = 8, []
        for _ in range(columns):
            if payload[at : at + 1] == b"n":
                row.append(None)
                at += 1
                continue
            (size,) = struct.unpack_from("!I", payload, at + 1)
            row.append(payload[at + 5 : at + 5 + size])
            at += 5 + size
        assert at == len(payload)
        found.append(row)
    return found


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.none() | st.binary(max_size=600), min_size=2, max_size=2), max_size=20
    ),
    cuts=st.lists(st.integers(0, 5000)),
    end=st.sampled_from([EOF, OK]),
)
def test_rows_survive_any_pieces(
    rows: list[list[bytes | None]], cuts: list[int], end: bytes
) -> None:
    stream = b"".join(map(packet, rows)) + end + b"rest"
    result = ResultRows(schema("longblob", "longblob"))
    last = 0
    for cut in [*sorted(c for c in cuts if c < len(stream)), len(stream)]:
        result.feed(stream[last:cut])
        last = cut
    assert result.ended
    assert result.rest == b"rest"
    assert tuples(result) == rows


def test_texts_become_those_of_the_log() -> None:
    kinds = ("int(5) unsigned zerofill", "decimal(8,2) zerofill", "bit(1)", "bit(64)", "point")
    result = ResultRows(schema(*kinds))
    for row in (
        [b"00042", b"000000.10", b"\1", b"\xff" * 8, b"\0\0\0\0wkb"],
        [b"00000", b"-000001.50", b"\0", b"\0" * 8, None],
    ):
        result.feed(packet(row))
    result.feed(EOF)
    assert tuples(result) == [
        [b"42", b"0.10", b"t", str(2**64 - 1).encode(), b"wkb"],
        [b"0", b"-1.50", b"f", b"0", None],
    ]


def test_an_error_of_the_server_names_its_code_and_not_its_text() -> None:
    result = ResultRows(schema("longblob"))
    body = b"\xff" + struct.pack("<H", 3024) + b"#HY000secret was interrupted"
    with pytest.raises(ResultError, match="3024") as caught:
        result.feed(packet([b"x"]) + struct.pack("<I", len(body))[:3] + b"\1" + body)
    assert caught.value.code == 3024
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "row", [[b"a"], [b"a", b"b", b"c"], [b"a", b"bc"]], ids=["fewer", "more", "torn"]
)
def test_a_row_of_another_number_of_columns_is_refused(row: list[bytes | None]) -> None:
    data = packet(row)
    if row[-1] == b"bc":
        data = struct.pack("<I", len(data) - 5)[:3] + data[3:-1]
    with pytest.raises(DecodeError, match="2 columns"):
        ResultRows(schema("longblob", "longblob")).feed(data + EOF)
