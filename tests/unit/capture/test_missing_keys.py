"""What an output advises for a table without a key."""

from __future__ import annotations

from tidelog.model.schema import TableName
from tidelog.outputs.base.left_out import key_line


def test_advice_has_no_sql_which_each_source_quotes_otherwise() -> None:
    line = key_line(TableName("Shop One", "nokey"))
    assert "ALTER TABLE" not in line
    assert "source.keys: {'Shop One.nokey': [COLUMN, …]}" in line
