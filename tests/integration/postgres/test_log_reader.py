"""Streaming: what is committed comes out once, in order and complete, from any table."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.integration.postgres.conftest import UNCHANGED, Capture
from tests.support.postgres import PostgresServer

from tidelog.model.records import LogBatch
from tidelog.model.schema import TableName
from tidelog.sources.postgres.catalogue.publication import Publications

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]


def test_insert_update_delete_truncate_arrive_in_commit_order(
    capture: Capture, sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture.start()
    sql.execute("INSERT INTO t VALUES (1, 'a'), (2, NULL)")
    sql.execute("UPDATE t SET v = 'b' WHERE id = 1")
    sql.execute("DELETE FROM t WHERE id = 2")
    sql.execute("TRUNCATE t")
    rows = capture.catch_up(sql)
    assert capture.brief() == [
        ("I", "public.t", None, {"id": "1", "v": "a"}),
        ("I", "public.t", None, {"id": "2", "v": None}),
        ("U", "public.t", None, {"id": "1", "v": "b"}),
        ("D", "public.t", {"id": "2"}, None),
        ("T", "public.t", None, None),
    ]
    places = [(row.position, row.ordinal) for row in rows]
    assert places == sorted(set(places))
    assert rows[0].xid == rows[1].xid < rows[2].xid < rows[3].xid < rows[4].xid


def test_commit_order_not_start_order(capture: Capture, sql: Connection, database: str) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture.start()
    with psycopg.connect(database) as early:
        early.execute("INSERT INTO t VALUES (1)")
        sql.execute("INSERT INTO t VALUES (2)")
        early.commit()
    assert [row.new for row in capture.catch_up(sql)] == [{"id": "2"}, {"id": "1"}]


def test_how_late_changes_come_is_reported(capture: Capture, sql: Connection) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    begin = capture.start()
    capture.reader.close()
    sql.execute("INSERT INTO t VALUES (1)")
    time.sleep(1.2)
    capture.start(begin)
    capture.catch_up(sql)
    late, *_ = [event.behind_s for event in capture.events if isinstance(event, LogBatch)]
    assert late >= 1.2
    sql.execute("INSERT INTO t VALUES (2)")
    capture.catch_up(sql)
    *_, now = [event.behind_s for event in capture.events if isinstance(event, LogBatch)]
    assert 0 <= now < late


def test_unchanged_toast_and_key_change(capture: Capture, sql: Connection) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, big text, n int)")
    sql.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    sql.execute("INSERT INTO t VALUES (1, repeat('x', 10000), 0)")
    capture.start()
    sql.execute("UPDATE t SET n = 1")
    sql.execute("UPDATE t SET id = 2")
    rows = capture.catch_up(sql)
    assert rows[0].new == {"id": "1", "big": UNCHANGED, "n": "1"}
    assert rows[1].old == {"id": "1"}
    assert rows[1].new == {"id": "2", "big": UNCHANGED, "n": "1"}


def test_replica_identities(capture: Capture, sql: Connection) -> None:
    sql.execute("CREATE TABLE full_ (id int PRIMARY KEY, v text)")
    sql.execute("ALTER TABLE full_ REPLICA IDENTITY FULL")
    sql.execute("CREATE TABLE idx (id int PRIMARY KEY, code text NOT NULL, v text)")
    sql.execute("CREATE UNIQUE INDEX idx_code ON idx (code)")
    sql.execute("ALTER TABLE idx REPLICA IDENTITY USING INDEX idx_code")
    capture.start()
    for table in ("full_", "idx"):
        sql.execute(
            f"INSERT INTO {table} (id, v) VALUES (1, 'a')"
            if table == "full_"
            else "INSERT INTO idx VALUES (1, 'c', 'a')"
        )
        sql.execute(f"UPDATE {table} SET v = 'b'")
        sql.execute(f"DELETE FROM {table}")
    capture.catch_up(sql)
    assert capture.brief() == [
        ("I", "public.full_", None, {"id": "1", "v": "a"}),
        ("U", "public.full_", {"id": "1", "v": "a"}, {"id": "1", "v": "b"}),
        ("D", "public.full_", {"id": "1", "v": "b"}, None),
        ("I", "public.idx", None, {"id": "1", "code": "c", "v": "a"}),
        ("U", "public.idx", None, {"id": "1", "code": "c", "v": "b"}),
        ("D", "public.idx", {"code": "c"}, None),
    ]
    schema = capture.schemas.latest(TableName("public", "idx"))
    assert schema is not None
    assert (schema.key, schema.identity, schema.identity_kind) == (("id",), ("code",), "i")
    assert schema.match_key == ("code",)


def test_table_dropped_while_it_is_about_to_be_published_ends_nothing(
    sql: psycopg.Connection[Any], capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = Publications.captured

    def then_dropped(self: Publications, connection: Any) -> Any:
        found = captured(self, connection)
        sql.execute("DROP TABLE IF EXISTS early")
        return found

    sql.execute("CREATE TABLE early (id int PRIMARY KEY)")
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    monkeypatch.setattr(Publications, "captured", then_dropped)
    capture.start()
    sql.execute("INSERT INTO t VALUES (1)")
    assert [row.new for row in capture.catch_up(sql)] == [{"id": "1"}]


def test_update_of_a_table_without_replica_identity_does_not_fail_the_application(
    capture: Capture, sql: Connection
) -> None:
    """Publishing it would make the application's UPDATE fail (invariant 5, gentle)."""
    sql.execute("CREATE TABLE nokey (v text)")
    sql.execute("CREATE TABLE nothing (id int PRIMARY KEY, v text)")
    sql.execute("ALTER TABLE nothing REPLICA IDENTITY NOTHING")
    sql.execute("CREATE TABLE late (id int PRIMARY KEY DEFERRABLE)")
    sql.execute("CREATE TABLE part (id int, v text) PARTITION BY RANGE (id)")
    sql.execute("CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10)")
    capture.start()
    for table in ("nokey", "nothing", "part"):
        columns = "(v)" if table == "nokey" else "(id, v)"
        values = "('a')" if table == "nokey" else "(1, 'a')"
        sql.execute(f"INSERT INTO {table} {columns} VALUES {values}")
        sql.execute(f"UPDATE {table} SET v = 'b'")
        sql.execute(f"DELETE FROM {table}")
        sql.execute(f"TRUNCATE {table}")
    sql.execute("INSERT INTO late VALUES (1)")
    sql.execute("UPDATE late SET id = 2")
    capture.catch_up(sql)
    assert [(row.kind, row.table) for row in capture.rows] == [
        ("I", "public.nokey"),
        ("T", "public.nokey"),
        ("I", "public.nothing"),
        ("T", "public.nothing"),
        ("I", "public.part"),
        ("T", "public.part"),
        ("I", "public.late"),
    ]


def test_table_that_gets_a_key_is_published_whole_after_sync(
    capture: Capture, sql: Connection
) -> None:
    sql.execute("CREATE TABLE t (id int)")
    capture.start()
    sql.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    # Updates that were made before are in no log: it is dumped.
    assert capture.publish() == [TableName("public", "t")]
    assert capture.publish() == []
    sql.execute("INSERT INTO t VALUES (1)")
    sql.execute("UPDATE t SET id = 2")
    assert [row.kind for row in capture.catch_up(sql)] == ["I", "U"]


def test_partitions_are_their_root(capture: Capture, sql: Connection) -> None:
    sql.execute("CREATE TABLE p (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)")
    sql.execute("CREATE TABLE p_a PARTITION OF p FOR VALUES FROM (0) TO (10)")
    # A partition may have its columns in another order.
    sql.execute("CREATE TABLE p_b (v text, id int NOT NULL)")
    sql.execute("ALTER TABLE p ATTACH PARTITION p_b FOR VALUES FROM (10) TO (20)")
    capture.start()
    sql.execute("INSERT INTO p VALUES (1, 'a'), (11, 'b')")
    sql.execute("UPDATE p SET id = 12 WHERE id = 1")  # moves: a delete and an insert
    capture.catch_up(sql)
    assert capture.brief() == [
        ("I", "public.p", None, {"id": "1", "v": "a"}),
        ("I", "public.p", None, {"id": "11", "v": "b"}),
        ("D", "public.p", {"id": "1"}, None),
        ("I", "public.p", None, {"id": "12", "v": "a"}),
    ]


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("via_root", ["true", "false"])
def test_partitions_of_an_excluded_table_are_excluded(
    make_capture: Callable[..., Capture], sql: Connection, via_root: str, dropped: bool
) -> None:
    """Also where somebody's publication, of all tables, shows them by their own names, and where
    nobody can ask any more of which table they were partitions.
    """
    for name in ("p", "q"):
        sql.execute(f"CREATE TABLE {name} (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        sql.execute(f"CREATE TABLE {name}_a PARTITION OF {name} FOR VALUES FROM (0) TO (10)")
    capture = make_capture(tables=("public.*", "!public.p"))
    for name, kinds in (("tidelog", "insert, update"), ("tidelog_inserts", "insert")):
        sql.execute(
            f"CREATE PUBLICATION {name} FOR ALL TABLES WITH "
            f"(publish = '{kinds}', publish_via_partition_root = {via_root})"
        )
    capture.start()
    sql.execute("INSERT INTO p VALUES (1)")
    sql.execute("INSERT INTO q VALUES (1)")
    if dropped:
        sql.execute("DROP TABLE p_a")
    capture.catch_up(sql)
    assert {row.table for row in capture.rows} == {
        "public.q" if via_root == "true" else "public.q_a"
    }


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("via_root", ["true", "false"])
def test_columns_that_a_table_excludes_are_excluded_of_its_partitions(
    make_capture: Callable[..., Capture], sql: Connection, via_root: str, dropped: bool
) -> None:
    """Also where somebody's publication shows them by their own names, and where nobody can ask
    any more of which table they were partitions. A dropped table of that column keeps its key.
    """
    sql.execute("CREATE TABLE p (id int PRIMARY KEY, secret text) PARTITION BY RANGE (id)")
    sql.execute("CREATE TABLE p_a (secret text, id int NOT NULL)")
    sql.execute("CREATE TABLE other (secret text PRIMARY KEY, v text)")
    sql.execute("ALTER TABLE p ATTACH PARTITION p_a FOR VALUES FROM (0) TO (10)")
    for name, kinds in (("tidelog", "insert, update"), ("tidelog_inserts", "insert")):
        sql.execute(
            f"CREATE PUBLICATION {name} FOR ALL TABLES WITH "
            f"(publish = '{kinds}', publish_via_partition_root = {via_root})"
        )
    capture = make_capture(tables=("public.*",), exclude_columns=["public.p.secret"])
    capture.start()
    sql.execute("INSERT INTO p VALUES (1, 'hunter2')")
    sql.execute("INSERT INTO other VALUES ('key', 'v')")
    if dropped:
        sql.execute("DROP TABLE p_a, other")
    capture.catch_up(sql)
    assert [row.new for row in capture.rows] == [{"id": "1"}, {"secret": "key", "v": "v"}]


def test_schemas_quoted_and_non_ascii_names(
    make_capture: Callable[..., Capture], sql: Connection
) -> None:
    sql.execute('CREATE SCHEMA "Ünïcode ""q"""')
    sql.execute(
        'CREATE TABLE "Ünïcode ""q"""."tä.b,le""" ("Schlüssel" int PRIMARY KEY, "a\'b" text)'
    )
    sql.execute("CREATE SCHEMA other")
    sql.execute("CREATE TABLE other.t (id int PRIMARY KEY)")
    sql.execute("CREATE TABLE public.t (id int PRIMARY KEY)")
    capture = make_capture(tables=["Ünï*.*", "other.t"])
    capture.start()
    sql.execute('INSERT INTO "Ünïcode ""q"""."tä.b,le""" VALUES (1, \'é\')')
    sql.execute("INSERT INTO other.t VALUES (2)")
    sql.execute("INSERT INTO public.t VALUES (3)")
    capture.catch_up(sql)
    assert capture.brief() == [
        ("I", 'Ünïcode "q".tä.b,le"', None, {"Schlüssel": "1", "a'b": "é"}),
        ("I", "other.t", None, {"id": "2"}),
    ]


@pytest.mark.parametrize("version", [16, 18])
def test_dropped_and_generated_columns_are_absent(
    version: int, request: pytest.FixtureRequest
) -> None:
    server: PostgresServer = request.getfixturevalue(f"postgres{version}")
    dsn = server.create_database(f"generated_{version}")
    with psycopg.connect(dsn, autocommit=True) as sql:
        capture = Capture(dsn)
        sql.execute(
            "CREATE TABLE t (gone int, id int PRIMARY KEY, v int, "
            "g int GENERATED ALWAYS AS (v * 2) STORED)"
        )
        sql.execute("ALTER TABLE t DROP gone")
        capture.start()
        sql.execute("INSERT INTO t (id, v) VALUES (1, 2)")
        capture.catch_up(sql)
        capture.reader.close()
    server.drop_database(f"generated_{version}")
    assert capture.brief() == [("I", "public.t", None, {"id": "1", "v": "2"})]


def test_each_row_has_the_schema_it_was_written_under(capture: Capture, sql: Connection) -> None:
    sql.execute("CREATE DOMAIN price AS numeric(10, 2)")
    sql.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture.start()
    with sql.transaction():
        sql.execute("INSERT INTO t VALUES (1)")
        sql.execute("ALTER TABLE t ADD p price DEFAULT 1.5, ADD m mood")
        sql.execute("INSERT INTO t VALUES (2, 3, 'ok')")
    sql.execute("ALTER TABLE t DROP p")
    sql.execute("INSERT INTO t VALUES (3, 'sad')")
    rows = capture.catch_up(sql)
    assert [row.new for row in rows] == [
        {"id": "1"},
        {"id": "2", "p": "3.00", "m": "ok"},
        {"id": "3", "m": "sad"},
    ]
    assert [
        [column.logical for column in event.schema.columns] for event in capture.seen_schemas
    ] == [
        ["int32"],
        ["int32", "decimal(10,2)", "text"],
        ["int32", "text"],
    ]
    names = [column.type_name for column in capture.seen_schemas[1].schema.columns]
    assert names == ["integer", "public.price", "public.mood"]
    assert capture.seen_schemas[1].previous == capture.seen_schemas[0].schema


def test_watermarks_and_logical_messages(capture: Capture, sql: Connection) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture.start()
    sql.execute("INSERT INTO tidelog.watermark VALUES (1, 'first')")
    sql.execute("INSERT INTO t VALUES (1)")
    sql.execute("SELECT pg_logical_emit_message(true, 'app', 'hello')")
    sql.execute("SELECT pg_logical_emit_message(false, 'app', 'hello')")
    sql.execute("UPDATE tidelog.watermark SET mark = 'second'")
    sql.execute("INSERT INTO t VALUES (2)")
    capture.catch_up(sql)
    assert capture.watermarks == ["first", "second"]
    assert [row.new for row in capture.rows] == [{"id": "1"}, {"id": "2"}]
    assert capture.messages == [("app", b"hello", True), ("app", b"hello", False)]


def test_empty_and_huge_transactions(make_capture: Callable[..., Capture], sql: Connection) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    sql.execute("CREATE TABLE other (id int PRIMARY KEY)")
    capture = make_capture(tables=["public.t"], buffer_bytes=1 << 20)
    capture.start()
    for _ in range(3):
        sql.execute("INSERT INTO other SELECT coalesce(max(id), 0) + 1 FROM other")
    sql.execute("INSERT INTO t SELECT g, repeat('x', 50) FROM generate_series(1, 60000) g")
    sql.execute("INSERT INTO t VALUES (0, repeat('y', 5000000))")  # larger than the buffer
    rows = capture.catch_up(sql)
    assert [row.ordinal for row in rows[:60000]] == list(range(60000))
    assert len({row.position for row in rows[:60000]}) == 1
    assert len(rows) == 60001
    assert rows[-1].new is not None
    assert rows[-1].new["v"] == "y" * 5_000_000


def test_new_table_is_published_by_sync(capture: Capture, sql: Connection) -> None:
    capture.start()
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    sql.execute("CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)")
    sql.execute("CREATE TABLE child () INHERITS (t)")
    assert [str(table) for table in capture.publish()] == [
        "public.child",
        "public.t",
    ]
    assert capture.publish() == []
    sql.execute("INSERT INTO t VALUES (1)")
    sql.execute("INSERT INTO child VALUES (2)")
    assert [(row.table, row.new) for row in capture.catch_up(sql)] == [
        ("public.t", {"id": "1"}),
        ("public.child", {"id": "2"}),
    ]


def test_xid_is_widened_by_the_epoch(capture: Capture, sql: Connection) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture.start()
    with sql.transaction():
        row = sql.execute("SELECT pg_current_xact_id()::text::int8").fetchone()
        sql.execute("INSERT INTO t VALUES (1)")
    assert row is not None
    assert [r.xid for r in capture.catch_up(sql)] == [row[0]]
