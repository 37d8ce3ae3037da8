"""Partitions whose replica identity is not the root's: what the log has of old rows is decoded."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.integration.postgres.conftest import Capture

from tidelog.codecs.decode import Decoded, decode
from tidelog.model.records import LogBatch
from tidelog.spark.source_rows import records_of

pytestmark = pytest.mark.integration


def decoded(capture: Capture) -> list[Decoded]:
    batches = [event for event in capture.events if isinstance(event, LogBatch)]
    parts = [batch.slice(i, i + 1) for batch in batches for i in range(len(batch))]
    return [
        decode(records_of(part), capture.schemas.get(int(part.schema_id[0])))
        for part in parts
        if part.schema_id[0]
    ]


def test_old_rows_of_a_partition_with_identity_full(
    sql: psycopg.Connection[Any], capture: Capture
) -> None:
    """It had no key when it was given that identity, and was attached then: fkpart11 of
    PostgreSQL's own tests. Its columns have another order besides.
    """
    sql.execute("CREATE TABLE pk (a int PRIMARY KEY, b text, c text) PARTITION BY LIST (a)")
    sql.execute("CREATE TABLE pk1 (b text, c text, a int NOT NULL)")
    sql.execute("ALTER TABLE pk1 ALTER c SET STORAGE EXTERNAL, REPLICA IDENTITY FULL")
    sql.execute("ALTER TABLE pk ATTACH PARTITION pk1 FOR VALUES IN (1, 2)")
    capture.start()
    sql.execute("INSERT INTO pk VALUES (1, 'xxx', repeat('y', 5000))")
    sql.execute("UPDATE pk SET a = 2")
    sql.execute("UPDATE pk SET b = NULL")
    sql.execute("DELETE FROM pk")
    capture.catch_up(sql)
    insert, moved, changed, gone = decoded(capture)
    large = "y" * 5000
    assert insert.before is not None
    assert insert.before.to_pylist() == [None]
    for record, before, after in (
        (moved, {"a": 1, "b": "xxx", "c": large}, {"a": 2, "b": "xxx", "c": large}),
        (changed, {"a": 2, "b": "xxx", "c": large}, {"a": 2, "b": None, "c": large}),
        (gone, {"a": 2, "b": None, "c": large}, None),
    ):
        assert record.before is not None
        assert record.after is not None
        assert record.before.to_pylist() == [before]
        assert record.after.to_pylist() == [after]
        assert record.missing is None
