"""A condition can't end the parentheses that it is put into, as MySQL reads it."""

from __future__ import annotations

import pytest

from tidelog.errors import ChunkRefusedError
from tidelog.sources.mysql.chunks.sql import checked_condition


@pytest.mark.parametrize(
    "condition",
    [
        "id > 5 AND (a = 'it''s' OR b IN (1, 2))",
        r"""name = 'a\')' AND note = "x\")" """.strip(),
        r"name = '\') OR (x = '",
        "`od)d` = 1",
        "a = 5--1",
        'note LIKE "%;%"',
        "v ->> '$.a' = 'b#c'",
    ],
)
def test_one_expression_is_taken(condition: str) -> None:
    assert checked_condition(condition) == condition


@pytest.mark.parametrize(
    "condition",
    [
        r"name = '\' AND b = ' OR 1=1) -- '",
        "id = 1) OR (1 = 1",
        "(id = 1",
        "id = 1; DROP TABLE t",
        "id = 1 # rest",
        "id = 1 -- rest",
        "id = 1 --",
        "id = /*! 1 */ 1",
        "a = 'open",
        'a = "open',
        "`a = 1",
    ],
)
def test_what_ends_early_is_refused_without_showing_it(condition: str) -> None:
    with pytest.raises(ChunkRefusedError) as caught:
        checked_condition(condition)
    assert condition not in str(caught.value)
