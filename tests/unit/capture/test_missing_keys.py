"""What an output advises for a table without a key."""

from __future__ import annotations

import pytest

from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base.left_out import key_line


@pytest.mark.parametrize(
    ("wire_format", "statement"),
    [
        (
            "pgoutput",
            'ALTER TABLE "Shop One"."no""key`" ADD PRIMARY KEY (COLUMN, …), '
            "or ADD COLUMN row_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY; ",
        ),
        (
            "binlog",
            'ALTER TABLE `Shop One`.`no"key``` ADD PRIMARY KEY (COLUMN, …), '
            "or ADD COLUMN row_id BIGINT AUTO_INCREMENT PRIMARY KEY; ",
        ),
    ],
)
def test_advice_has_the_statement_as_the_source_quotes_it(wire_format: str, statement: str) -> None:
    table = TableName("Shop One", 'no"key`')
    line = key_line(TableSchema(table, 1, (), (), (), "d", wire_format))
    assert line.startswith(f"Give it a key: {statement}")
    assert "source.keys: {'Shop One.no\"key`': [COLUMN, …]}" in line
