"""Composite types that are altered while their values are captured: the log does not show it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration.event_messages import capturing, events, wait_for
from tests.integration.postgres.conftest import Capture, rows_of

from tidelog.capture.catalogue_watch import changes_rows
from tidelog.errors import ChunkBusyError
from tidelog.model.records import LogBatch
from tidelog.model.schema import TableName, struct_of
from tidelog.ports import ChunkRequest, NullRegistry
from tidelog.sources.postgres.chunks.reader import PostgresChunkReader

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]

TYPES = (
    "CREATE TYPE pair AS (a int, b int)",
    "CREATE DOMAIN pairs AS pair[]",
    "CREATE TYPE box_of_pairs AS (name text, held pairs)",
)
DROP_AND_ADD = ("ALTER TYPE pair DROP ATTRIBUTE a", "ALTER TYPE pair ADD ATTRIBUTE c int")


def struct(*names: str) -> str:
    return struct_of([(name, "int32") for name in names])


def structures(capture: Capture) -> list[str]:
    """What each row's schema version says of its composite."""
    found = []
    for batch in (event for event in capture.events if isinstance(event, LogBatch)):
        for row, schema_id in zip(rows_of(batch, capture.schemas), batch.schema_id, strict=False):
            assert row.table == "public.t"
            found.append(dict(capture.schemas.get(int(schema_id)).structures).get("p", "text"))
    return found


@pytest.mark.parametrize(
    ("kind", "value", "statements", "before", "after"),
    [
        ("pair", "(1,2)", DROP_AND_ADD, struct("a", "b"), "text"),
        (
            "pair",
            "(1,2)",
            ("ALTER TYPE pair RENAME ATTRIBUTE a TO c",),
            struct("a", "b"),
            struct("c", "b"),
        ),
        (
            "pairs",
            '{"(1,2)"}',
            ("ALTER TYPE pair ADD ATTRIBUTE c int",),
            f"array({struct('a', 'b')})",
            f"array({struct('a', 'b', 'c')})",
        ),
        (
            "box_of_pairs",
            '(x,"{""(1,2)""}")',
            DROP_AND_ADD,
            struct_of([("name", "text"), ("held", f"array({struct('a', 'b')})")]),
            struct_of([("name", "text"), ("held", "text")]),
        ),
    ],
    ids=["dropped and added", "renamed", "array", "nested"],
)
def test_rows_have_the_attributes_that_their_type_had(
    capture: Capture,
    sql: Connection,
    kind: str,
    value: str,
    statements: Sequence[str],
    before: str,
    after: str,
) -> None:
    """Nothing is polled between the statements but the log."""
    for statement in TYPES:
        sql.execute(statement.encode())
    sql.execute(f"CREATE TABLE t (id int PRIMARY KEY, p {kind})".encode())
    capture.start()
    sql.execute("INSERT INTO t VALUES (1, %s)", (value,))
    capture.catch_up(sql)
    with sql.transaction():
        for statement in statements:
            sql.execute(statement.encode())
        sql.execute("INSERT INTO t SELECT 2, p FROM t")
    sql.execute("INSERT INTO t SELECT 3, p FROM t WHERE id = 1")
    capture.catch_up(sql)
    assert structures(capture) == [before, after, after]
    *_, seen = capture.seen_schemas
    assert changes_rows(seen) == "attributes of a composite type changed"


def test_chunk_whose_composite_was_altered_behind_its_snapshot_is_read_again(
    database: str, sql: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server writes texts of the attributes of now, not of the snapshot's."""
    sql.execute(TYPES[0].encode())
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, p pair)")
    sql.execute("INSERT INTO t VALUES (1, '(1,2)')")
    reader = PostgresChunkReader(database, NullRegistry())
    read = reader._select.range

    def after_ddl(*arguments: Any) -> Any:
        monkeypatch.undo()
        for statement in DROP_AND_ADD:
            sql.execute(statement.encode())
        return read(*arguments)

    request = ChunkRequest(TableName("public", "t"), limit_rows=10)
    monkeypatch.setattr(reader._select, "range", after_ddl)
    try:
        with pytest.raises(ChunkBusyError, match="a composite type was altered"):
            reader.read(request)
        reader.release()
        assert reader.read(request).schema.structures == ()
    finally:
        reader.close()


def test_copies_follow_a_type_that_is_altered(
    database: str, sql: Connection, tmp_path: Path
) -> None:
    """As outputs read them: each row is dumped again, and one from before has the new name."""
    sql.execute(TYPES[0].encode())
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, p pair)")
    sql.execute("INSERT INTO t VALUES (1, '(1,2)')")
    with capturing(tmp_path, "postgres", database) as config:
        wait_for(config, 1)
        sql.execute("ALTER TYPE pair RENAME ATTRIBUTE b TO d")
        sql.execute("ALTER TYPE pair ADD ATTRIBUTE c int")
        sql.execute("INSERT INTO t VALUES (2, '(1,2,3)')")
        wait_for(config, 4)
        _, batches = events(config, types='{"composites": "struct"}')
    rows = [(row["id"], row["p"]) for batch in batches for row in batch.to_pylist()]
    values = {1: {"a": 1, "d": 2, "c": None}, 2: {"a": 1, "d": 2, "c": 3}}
    assert rows == [(number, values[number]) for number, _ in rows]
    assert [number for number, _ in rows[:2]] == [1, 2]
