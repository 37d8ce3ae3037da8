"""Keys from JSON, CSV and Parquet."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidelog.codecs.mysql.rows.keys import bytes_of_text
from tidelog.control.key_files import parse_keys, read_key_file
from tidelog.errors import UsageError
from tidelog.sources.mysql.chunks.sql import key_texts as mysql_key_texts
from tidelog.sources.postgres.chunks.sql import key_texts


@pytest.mark.parametrize(
    ("text", "keys", "columns"),
    [
        ("[1, 2]", (("1",), ("2",)), None),
        ("7", (("7",),), None),
        ('[["a", 1], ["b", 2]]', (("a", "1"), ("b", "2")), None),
        ('[{"a": 1, "b": "x"}, {"b": "y", "a": 2}]', (("1", "x"), ("2", "y")), ("a", "b")),
        ('{"id": 1}', (("1",),), ("id",)),
        ('{"id": 1}\n\n{"id": 2}\n', (("1",), ("2",)), ("id",)),
        ("[12345678901234567890.10, true]", (("12345678901234567890.10",), ("t",)), None),
    ],
)
def test_keys_are_parsed_to_texts(text: str, keys: Any, columns: Any) -> None:
    assert parse_keys(text) == (keys, columns)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not JSON"),
        ("1\n{", "neither a JSON list nor JSON lines"),
        ("[null]", "never null"),
        ('[{"a": 1}, 2]', "either all keys name"),
        ('[{"a": 1}, {"b": 2}]', "same columns"),
        ("[[[1]]]", "a key column is"),
    ],
)
def test_bad_keys_are_refused(text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        parse_keys(text)


# ---------------------------------------------------------------- files


def choose(*key: str) -> Callable[[Sequence[str]], Sequence[str]]:
    """The key's columns, if they are all there."""

    def chosen(names: Sequence[str]) -> Sequence[str]:
        if not set(key) <= set(names):
            raise UsageError("no such columns")
        return key

    return chosen


def read(path: Path, *key: str) -> tuple[Any, list[Any]]:
    given = read_key_file(path, key_texts, choose(*key))
    return given.columns, list(given.keys)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("k.csv", "v,b,a\nx,2,1\n\ny,4,3\n"),
        ("k.csv", "\ufeffa,b\r\n1,2\r\n3,4"),
        ("k.tsv", "a\tb\n1\t2\n3\t4\n"),
        ("k.jsonl", '{"a": 1, "b": 2, "v": [null]}\n\n{"b": 4, "a": 3}\n'),
        ("k.json", '[{"a": 1, "b": 2, "v": null}, {"b": 4, "a": 3}]'),
        ("k", '{"a": 1, "b": 2}\n{"b": 4, "a": 3}'),
    ],
)
def test_columns_are_found_by_name_and_others_ignored(
    tmp_path: Path, name: str, content: str
) -> None:
    found = read(write(tmp_path / name, content), "a", "b")
    assert found == (("a", "b"), [("1", "2"), ("3", "4")])


@pytest.mark.parametrize(
    ("name", "content"), [("k.jsonl", "[1, 2]\n[3, 4]\n"), ("k.json", "[[1, 2], [3, 4]]")]
)
def test_json_without_names_is_in_the_keys_own_order(
    tmp_path: Path, name: str, content: str
) -> None:
    assert read(write(tmp_path / name, content), "a") == (None, [("1", "2"), ("3", "4")])


def test_csv_fields_are_texts_as_they_stand(tmp_path: Path) -> None:
    content = 'a\n007\n" quoted ""text"", with\na line"\n""\nNULL\n'
    _, keys = read(write(tmp_path / "k.csv", content), "a")
    assert keys == [("007",), (' quoted "text", with\na line',), ("",), ("NULL",)]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("k.xlsx", "", r"k\.xlsx: a file of keys is one of \.csv, \.tsv, \.parquet"),
        ("k.csv", "", "is empty"),
        ("k.csv", "b\n1\n", "no such columns"),
        ("k.csv", "a,b\n1,2\n3\n", r"line 3: 1 fields, the first line names 2 columns"),
        ("k.csv", "a,a\n1,2\n", "names the column a more than once"),
        ("k.csv", 'a\n"s3cret"x\n', "line 2: "),
        ("k.csv", b"a\n\xff\xfe\n", "not UTF-8"),
        ("k.json", b"\xff\xfe", "not UTF-8"),
        ("k.jsonl", '"s3cret"\n{\n', r"k\.jsonl line 2: "),
        ("k.jsonl", '{"a": 1}\n{"b": "s3cret"}\n', "a key lacks the column a"),
        ("k.jsonl", '{"a": 1}\n7\n', "either all keys name"),
        ("k.jsonl", '7\n{"a": "s3cret"}\n', "either all keys name"),
        ("k.jsonl", '{"a": null}\n', "never null"),
        ("k.parquet", "s3cret", "not a Parquet file"),
    ],
)
def test_bad_file_is_refused_without_its_values(
    tmp_path: Path, name: str, content: str | bytes, expected: str
) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        read(write(tmp_path / name, content), "a")
    assert "s3cret" not in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.csv cannot be read: No such file"):
        read(tmp_path / "none.csv", "a")


BERLIN = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        (pa.int8(), [-7], ["-7"]),
        (pa.uint64(), [2**64 - 1], ["18446744073709551615"]),
        (pa.decimal128(38, 2), [Decimal("-12345678901234567890.10")], ["-12345678901234567890.10"]),
        (pa.bool_(), [True, False], ["t", "f"]),
        (pa.float32(), [0.1], ["0.1"]),
        (pa.float64(), [0.1, 1e300, float("nan")], ["0.1", "1e+300", "nan"]),
        (pa.date32(), [date(2024, 2, 29)], ["2024-02-29"]),
        (pa.time64("us"), [time(1, 2, 3, 4)], ["01:02:03.000004"]),
        (pa.timestamp("ms"), [datetime(1969, 12, 31, 23, 59, 59, 999000)], None),
        (
            pa.timestamp("us", tz="Europe/Berlin"),
            [datetime(2024, 7, 1, 2, 0, 0, 1, tzinfo=BERLIN)],
            ["2024-07-01 00:00:00.000001+00"],
        ),
        (pa.timestamp("ns"), [1_000], ["1970-01-01 00:00:00.000001"]),
        (pa.binary(), [b"\x00\xff"], ["\\x00ff"]),
        (pa.binary(2), [b"ab"], ["\\x6162"]),
        (pa.large_string(), ["ä"], ["ä"]),
        (pa.dictionary(pa.int8(), pa.string()), ["x", "x"], ["x", "x"]),
        (pa.uuid(), [UUID(int=1).bytes], ["00000000-0000-0000-0000-000000000001"]),
    ],
    ids=str,
)
def test_parquets_types_become_texts(
    tmp_path: Path, kind: pa.DataType, values: list[Any], texts: list[str] | None
) -> None:
    table = pa.table({"v": pa.nulls(len(values)), "a": pa.array(values, kind)})
    pq.write_table(table, tmp_path / "k.parquet")
    expected = texts or ["1969-12-31 23:59:59.999000"]
    assert read(tmp_path / "k.parquet", "a") == (("a",), [(text,) for text in expected])


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(3)])
def test_bytes_for_mysql_are_texts_or_hexadecimal_digits(kind: pa.DataType) -> None:
    values = [b"\0\xff\x80", b"a\0b", b"0xf", "aé".encode()]
    texts = mysql_key_texts(pa.array(values, kind)).to_pylist()
    assert texts == ["0x00ff80", "0x610062", "0x307866", "aé"]
    assert [bytes_of_text(text) for text in texts] == values
    assert mysql_key_texts(pa.array([None], kind)).to_pylist() == [None]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([["s3cret"]]), "column a: values of type list"),
        (pa.array([timedelta(1)]), "column a: values of type duration"),
        (pa.array(["s3cret", None]), "column a holds NULL"),
    ],
)
def test_what_is_no_key_in_parquet_is_refused(
    tmp_path: Path, column: pa.Array, expected: str
) -> None:
    pq.write_table(pa.table({"a": column}), tmp_path / "k.parquet")
    with pytest.raises(UsageError, match=expected) as caught:
        read(tmp_path / "k.parquet", "a")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_file_is_read_as_its_keys_are_asked_for(tmp_path: Path, suffix: str) -> None:
    count, path = 60_000, tmp_path / f"k.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.table({"a": [f"{i:0300}" for i in range(count)]}), path)
    else:
        with path.open("w") as file:
            file.write("a\n" if suffix == "csv" else "")
            file.writelines(
                f"{i:0300}\n" if suffix == "csv" else f'{{"a": "{i:0300}"}}\n' for i in range(count)
            )
    given = read_key_file(path, key_texts, choose("a"))
    tracemalloc.start()
    try:
        assert sum(1 for _ in given.keys) == count
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
