"""Keys from JSON, CSV and Parquet."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.control.key_files import parse_keys
from tidelog.errors import UsageError


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
