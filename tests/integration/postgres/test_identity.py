"""Which tables' updates are published: never one that makes the application's UPDATE fail, and
never one whose deletes can't say which row is gone. PostgreSQL 16 and 18 differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
from tests.integration.postgres.conftest import Capture, rows_of
from tests.support.payloads import record_batch
from tests.support.postgres import PostgresServer
from tests.support.postgres_parts import preflight

from tidelog.codecs.decode import decode
from tidelog.codecs.postgres.tuples import PgoutputKeys
from tidelog.model.records import KeyEffect, LogBatch, RecordKind
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import ChunkRequest
from tidelog.sources.postgres.catalogue.identity import IdentityTrouble, identities
from tidelog.sources.postgres.catalogue.publication import Publications
from tidelog.sources.postgres.catalogue.schemas import PostgresSchemaFinder
from tidelog.sources.postgres.chunks.reader import PostgresChunkReader

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]
T = TableName("public", "t")
NAMES = ("tidelog", "tidelog_inserts")

PLAIN = "CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL, v int{generated})"
PARTED = (
    "CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL, v int{generated}) "
    "PARTITION BY RANGE (id)",
    "CREATE TABLE p1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE p2 PARTITION OF t FOR VALUES FROM (10) TO (20)",
)
ROOT_INDEX = (
    "CREATE UNIQUE INDEX by_code ON t (id, code)",
    "ALTER TABLE t REPLICA IDENTITY USING INDEX by_code",
)
STORED = ", g int GENERATED ALWAYS AS (v * 2) STORED"
VIRTUAL = ", g int GENERATED ALWAYS AS (v * 2) VIRTUAL"


@pytest.fixture(params=[16, 18])
def version(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture
def dsn(version: int, request: pytest.FixtureRequest) -> Iterator[str]:
    server: PostgresServer = request.getfixturevalue(f"postgres{version}")
    yield server.create_database("identity")
    server.drop_database("identity")


@pytest.fixture
def sql(dsn: str) -> Iterator[Connection]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def capture(dsn: str) -> Iterator[Capture]:
    capture = Capture(dsn)
    yield capture
    capture.reader.close()


def run(sql: Connection, *statements: str) -> None:
    for statement in statements:
        sql.execute(statement.encode())


def change(sql: Connection) -> None:
    """What the application does; none of it may fail."""
    run(
        sql,
        "INSERT INTO t (id, code, v) VALUES (1, 'a', 1), (2, 'b', 2), (11, 'c', 3)",
        "UPDATE t SET v = 4",
        "UPDATE t SET code = 'd' WHERE id = 1",
        "UPDATE t SET id = 3 WHERE id = 2",
        "UPDATE t SET id = 12 WHERE id = 3",
        "DELETE FROM t WHERE id = 11",
    )


def replayed(capture: Capture) -> dict[tuple[Any, ...], dict[str, str | None]]:
    """The table as the log's consumer has it: rows by the schema's match key."""
    schema = capture.schemas.latest(T)
    assert schema is not None
    rows: dict[tuple[Any, ...], dict[str, str | None]] = {}
    for row in capture.rows:
        if row.old is not None:
            rows.pop(tuple(row.old[name] for name in schema.match_key), None)
        if row.new is not None:
            rows[tuple(row.new[name] for name in schema.match_key)] = row.new
    return rows


def dumped(dsn: str, capture: Capture) -> list[dict[str, str | None] | None]:
    """The table as a dump has it, under the schema that the log showed."""
    reader = PostgresChunkReader(
        dsn, capture.schemas, strategy="snapshot", finder=PostgresSchemaFinder(publications=NAMES)
    )
    try:
        chunk = reader.read(ChunkRequest(T))
        assert set(chunk.rows.schema_id.tolist()) == {latest(capture).schema_id}
        return [row.new for row in rows_of(chunk.rows, capture.schemas)]
    finally:
        reader.close()


def latest(capture: Capture) -> TableSchema:
    schema = capture.schemas.latest(T)
    assert schema is not None
    return schema


def warnings(dsn: str) -> list[tuple[str, str]]:
    """Without those of left out columns."""
    found = preflight(dsn, slot="slot_" + dsn.rsplit("/", 1)[1]).check()
    found = [f for f in found if not f.message.startswith("captured and dumped without")]
    return [(f.message, f.fix) for f in found if f.name == "table public.t"]


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param((PLAIN,), id="default"),
        pytest.param((PLAIN, "ALTER TABLE t REPLICA IDENTITY FULL"), id="full"),
        pytest.param(PARTED, id="partitions"),
        pytest.param((*PARTED, "ALTER TABLE t REPLICA IDENTITY FULL"), id="root-full"),
        pytest.param((*PARTED, "ALTER TABLE p1 REPLICA IDENTITY FULL"), id="leaf-full"),
        pytest.param((*PARTED, "ALTER TABLE t REPLICA IDENTITY NOTHING"), id="root-nothing"),
        pytest.param((*PARTED, *ROOT_INDEX), id="root-index"),
        pytest.param(
            (
                *PARTED,
                *ROOT_INDEX,
                "ALTER TABLE p1 REPLICA IDENTITY USING INDEX p1_id_code_idx",
                "ALTER TABLE p2 REPLICA IDENTITY USING INDEX p2_id_code_idx",
            ),
            id="all-index",
        ),
    ],
)
@pytest.mark.parametrize("generated", ["", STORED], ids=["plain", "stored"])
def test_log_and_dump_agree_whatever_the_identity(
    dsn: str, sql: Connection, capture: Capture, statements: Sequence[str], generated: str
) -> None:
    run(sql, *(statement.format(generated=generated) for statement in statements))
    capture.start()
    assert warnings(dsn) == []
    change(sql)
    capture.catch_up(sql)
    rows = sorted(replayed(capture).values(), key=lambda row: int(row["id"] or 0))
    assert [(row["id"], row["code"], row["v"]) for row in rows] == [
        ("1", "d", "4"),
        ("12", "b", "4"),
    ]
    assert sorted(dumped(dsn, capture), key=lambda row: int((row or {})["id"] or 0)) == rows


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        pytest.param(
            (
                *PARTED,
                "CREATE UNIQUE INDEX l ON p1 (code)",
                "ALTER TABLE p1 REPLICA IDENTITY USING INDEX l",
            ),
            "1 of its partitions have a replica identity that leaves out columns of the table's "
            "own, public.p1 for one",
            id="leaf-index",
        ),
        pytest.param(
            (*PARTED, "ALTER TABLE p2 REPLICA IDENTITY NOTHING"),
            "public.p2: its replica identity is NOTHING",
            id="leaf-nothing",
        ),
        pytest.param(
            (PLAIN, "ALTER TABLE t REPLICA IDENTITY NOTHING"),
            "its replica identity is NOTHING",
            id="nothing",
        ),
        pytest.param(
            (
                PLAIN,
                "CREATE UNIQUE INDEX l ON t (code)",
                "ALTER TABLE t REPLICA IDENTITY USING INDEX l",
                "DROP INDEX l",
            ),
            "the index that was its replica identity is gone",
            id="index-gone",
        ),
        pytest.param(
            (
                "CREATE TABLE t (id int, code text NOT NULL, v int, "
                "PRIMARY KEY (id) DEFERRABLE{generated})",
            ),
            "its primary key is deferrable",
            id="deferrable",
        ),
        pytest.param(
            (
                PARTED[0].replace(" PRIMARY KEY", " NOT NULL"),
                *PARTED[1:],
                "ALTER TABLE p1 ADD PRIMARY KEY (id)",
                "ALTER TABLE p2 ADD PRIMARY KEY (id)",
            ),
            "the partitioned table itself has no primary key and no replica identity",
            id="keys-of-leaves",
        ),
        pytest.param(
            (
                PARTED[0].replace(" PRIMARY KEY", " NOT NULL"),
                *PARTED[1:],
                "ALTER TABLE t REPLICA IDENTITY FULL",
                "ALTER TABLE p1 REPLICA IDENTITY FULL",
                "ALTER TABLE p2 ADD PRIMARY KEY (id)",
            ),
            "1 of its partitions have a replica identity that leaves out columns of the table's "
            "own, public.p2 for one",
            id="keyless-root-full",
        ),
    ],
)
def test_what_deletes_can_not_tell_is_published_as_inserts_until_fixed(
    dsn: str, sql: Connection, capture: Capture, statements: Sequence[str], why: str
) -> None:
    run(sql, *(statement.format(generated="") for statement in statements))
    capture.start()
    change(sql)
    capture.catch_up(sql)
    # Of an update that moves a row to another partition, the insert.
    assert {row.kind for row in capture.rows} == {"I"}
    assert (
        {"1", "2", "11"}
        <= {(row.new or {})["id"] for row in capture.rows}
        <= {"1", "2", "11", "12"}
    )
    said = [(message, fix) for message, fix in warnings(dsn) if "inserts" in message]
    assert [message for message, _ in said] == [f"only inserts and truncates are captured: {why}"]
    run(sql, said[0][1])
    assert capture.publish() == [T]  # what was not published is dumped
    assert [message for message, _ in warnings(dsn) if "inserts" in message] == []
    capture.rows.clear()
    run(sql, "UPDATE t SET v = 5 WHERE id = 1", "DELETE FROM t WHERE id = 1")
    capture.catch_up(sql)
    assert [row.kind for row in capture.rows] == ["U", "D"]
    assert (capture.rows[-1].old or {})["id"] == "1"


GENERATED_KEYS = [
    pytest.param(
        ("CREATE TABLE t (id int, code text, v int, g int GENERATED ALWAYS AS (id) STORED "
         "PRIMARY KEY)",),
        id="primary-key",
    ),
    pytest.param(
        (
            PLAIN.format(generated=", g int GENERATED ALWAYS AS (id) STORED NOT NULL"),
            "CREATE UNIQUE INDEX l ON t (g)",
            "ALTER TABLE t REPLICA IDENTITY USING INDEX l",
        ),
        id="index",
    ),
]  # fmt: skip


@pytest.mark.parametrize("statements", GENERATED_KEYS)
def test_generated_keys(
    version: int, dsn: str, sql: Connection, capture: Capture, statements: Sequence[str]
) -> None:
    """18 can publish them; 16 does not log them, so that deletes would tell nothing."""
    run(sql, *statements)
    capture.start()
    change(sql)
    capture.catch_up(sql)
    if version == 18:
        assert sorted(replayed(capture)) == [("1",), ("12",)]
        assert latest(capture).match_key == ("g",)
        assert sorted(dumped(dsn, capture), key=lambda row: int((row or {})["id"] or 0)) == sorted(
            replayed(capture).values(), key=lambda row: int(row["id"] or 0)
        )
    else:
        assert {row.kind for row in capture.rows} == {"I"}
        said = [fix for message, fix in warnings(dsn) if "generated column" in message]
        assert said == [
            'ALTER TABLE "public"."t" REPLICA IDENTITY FULL; '
            "-- or give it a primary key of plain columns that is not deferrable"
        ]


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param((PLAIN, "ALTER TABLE t REPLICA IDENTITY FULL"), id="table"),
        pytest.param((*PARTED, "ALTER TABLE p2 REPLICA IDENTITY FULL"), id="leaf"),
    ],
)
def test_virtual_columns_under_full_can_not_be_published(
    postgres18: PostgresServer, statements: Sequence[str]
) -> None:
    dsn = postgres18.create_database("virtual")
    capture = Capture(dsn)
    with psycopg.connect(dsn, autocommit=True) as sql:
        run(sql, *(statement.format(generated=VIRTUAL) for statement in statements))
        capture.start()
        change(sql)
        capture.catch_up(sql)
        assert {row.kind for row in capture.rows} == {"I"}
        ((_, fix),) = [w for w in warnings(dsn) if "virtual" in w[0]]
        run(sql, fix)
        assert capture.publish() == [T]
        capture.rows.clear()
        run(sql, "DELETE FROM t")
        assert {row.kind for row in capture.catch_up(sql)} == {"D"}
    capture.reader.close()
    postgres18.drop_database("virtual")


def test_table_that_comes_to_need_its_generated_columns(postgres18: PostgresServer) -> None:
    """All tables that have some are dumped again: their earlier records lack them."""
    dsn = postgres18.create_database("later")
    capture = Capture(dsn)
    with psycopg.connect(dsn, autocommit=True) as sql:
        run(
            sql,
            PLAIN.format(generated=STORED),
            "CREATE TABLE other (id int PRIMARY KEY, h int GENERATED ALWAYS AS (id + 1) STORED)",
            "CREATE TABLE plain (id int PRIMARY KEY)",
        )
        capture.start()
        run(sql, "INSERT INTO t VALUES (1, 'a', 1)", "INSERT INTO other VALUES (1)")
        assert [row.new for row in capture.catch_up(sql)] == [
            {"id": "1", "code": "a", "v": "1"},
            {"id": "1"},
        ]
        run(sql, "ALTER TABLE t REPLICA IDENTITY FULL")
        assert capture.publish() == [TableName("public", "other"), T]
        capture.rows.clear()
        run(sql, "UPDATE t SET v = 2", "UPDATE other SET id = 2")
        assert [row.new for row in capture.catch_up(sql)] == [
            {"id": "1", "code": "a", "v": "2", "g": "4"},
            {"id": "2", "h": "3"},
        ]
        assert dumped(dsn, capture) == [{"id": "1", "code": "a", "v": "2", "g": "4"}]
    capture.reader.close()
    postgres18.drop_database("later")


def test_unchanged_toast_is_no_null_where_only_the_root_is_full(
    sql: Connection, capture: Capture
) -> None:
    """The old tuple of such a partition is marked as full and holds no more than the key: taken at
    its word, it would fill in NULLs.
    """
    run(
        sql,
        *(statement.format(generated="") for statement in PARTED),
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "ALTER TABLE p1 ALTER code SET STORAGE EXTERNAL",
        "INSERT INTO t VALUES (1, repeat('x', 10000), 1)",
    )
    capture.start()
    run(sql, "UPDATE t SET id = 2")
    capture.catch_up(sql)
    (batch,) = [
        event
        for event in capture.events
        if isinstance(event, LogBatch) and event.kind[0] == RecordKind.UPDATE
    ]
    assert batch.payload[5] == ord("O")
    schema = latest(capture)
    entries = PgoutputKeys().keys(batch, PgoutputKeys().key_changes(batch), schema)
    assert entries.effect.tolist() == [KeyEffect.GONE, KeyEffect.MOVED_PARTIAL]
    decoded = decode(record_batch([(RecordKind.UPDATE, batch.payload.tobytes())]), schema)
    assert decoded.before is not None
    assert decoded.before.to_pylist() == [{"id": 1, "code": None, "v": None}]
    assert decoded.missing is not None
    assert decoded.missing.tolist() == [[False, True, False]]


def test_one_query_says_it_of_many_tables(dsn: str, sql: Connection) -> None:
    for number in range(20):
        run(sql, f"CREATE TABLE t{number} (id int{' PRIMARY KEY' if number % 2 else ''})")

    def troubles() -> dict[str, IdentityTrouble]:
        captured = Publications("tidelog", ["public.*"]).captured(sql)
        assert len(captured) == 20
        return {str(t.table): t.identity.trouble for t in captured if t.identity.trouble}

    found = troubles()
    assert sorted(found) == sorted(f"public.t{number}" for number in range(0, 20, 2))
    assert {trouble.why for trouble in found.values()} == {"it has no primary key"}
    for trouble in found.values():
        run(sql, *trouble.fix)
    assert troubles() == {}
    assert identities(sql, [0]) == {}
