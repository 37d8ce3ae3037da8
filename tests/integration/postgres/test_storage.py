"""What counts as a change of rows that the log does not show, and what does not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.postgres import PostgresServer

from tidelog.capture.catalogue_watch import CatalogueWatch
from tidelog.capture.unsupported_tables import UnsupportedTables
from tidelog.errors import UnsupportedTableError
from tidelog.model.schema import TableName
from tidelog.ports import Published, Retention, UnsupportedReason
from tidelog.sources.postgres.catalogue.publication import Publications
from tidelog.sources.postgres.catalogue.schemas import PostgresSchemaFinder
from tidelog.sources.postgres.catalogue.storage import rows_may_differ
from tidelog.sources.postgres.catalogue.tables import PostgresCatalogue
from tidelog.sources.postgres.chunks.watermarks import PgSnapshot
from tidelog.sources.postgres.connect import lsn_value
from tidelog.state.sqlite import SqliteState

pytestmark = pytest.mark.integration
T = TableName("public", "t")
Differs = Callable[..., bool]


@pytest.fixture(params=[16, 18])
def server(request: pytest.FixtureRequest) -> PostgresServer:
    found: PostgresServer = request.getfixturevalue(f"postgres{request.param}")
    return found


@pytest.fixture
def sql(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server.create_database("storage"), autocommit=True) as connection:
        yield connection
    server.drop_database("storage")


@pytest.fixture
def differs(server: PostgresServer, sql: psycopg.Connection[Any]) -> Iterator[Differs]:
    """After these statements, may rows have changed without an event?"""
    publications = Publications("tidelog", ["public.*"])
    catalogue = PostgresCatalogue(
        server.dsn("storage"), finder=PostgresSchemaFinder(publications=publications.names)
    )

    def compare(*statements: str) -> bool:
        publications.sync(sql)
        before, version, stamp = catalogue.shape(T), catalogue.versions([str(T)]), catalogue.stamp()
        assert (catalogue.versions([str(T)]), catalogue.stamp()) == (version, stamp)
        for statement in statements:
            sql.execute(statement.encode())
        after, version_now = catalogue.shape(T), catalogue.versions([str(T)])
        assert before is not None
        assert after is not None
        assert " " not in after.storage
        if (before.schema, before.storage) != (after.schema, after.storage):
            assert version_now != version, "the version shows it"
            assert catalogue.stamp() != stamp, "so does the stamp"
        return catalogue.rows_may_differ(before.storage, after.storage)

    yield compare
    catalogue.close()


TABLE = "CREATE TABLE t (id int PRIMARY KEY, n int, s varchar(5), v text)"


def test_transactions_that_only_write_rows_leave_the_stamp(
    server: PostgresServer, sql: psycopg.Connection[Any]
) -> None:
    """Rows of the catalogue that initdb wrote have no age that could be reckoned with."""
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    catalogue = PostgresCatalogue(server.dsn("storage"))
    try:
        stamp, versions = catalogue.stamp(), catalogue.versions(["public.*"])
        for number in range(3):
            sql.execute("INSERT INTO t VALUES (%s)", (number,))
        assert catalogue.stamp() == stamp
        assert catalogue.versions(["public.*"]) == versions
        sql.execute("ALTER TABLE t ADD n int")
        assert catalogue.stamp() != stamp
    finally:
        catalogue.close()


@pytest.mark.parametrize(
    "statement",
    [
        'ALTER TABLE t ADD " a  name\n" text',
        "INSERT INTO t SELECT g, g FROM generate_series(1, 1000) g",
        "VACUUM FULL t",
        "CLUSTER t USING t_pkey",
        "TRUNCATE t",
        "REINDEX TABLE t",
        "ANALYZE t",
        "ALTER TABLE t ADD plain int",
        "ALTER TABLE t ADD g int GENERATED ALWAYS AS (n + 1) STORED",
        "ALTER TABLE t DROP v",
        "ALTER TABLE t ALTER n SET NOT NULL",
        "ALTER TABLE t ALTER n SET DEFAULT 7",
        "ALTER TABLE t ALTER n SET STATISTICS 500",
        "ALTER TABLE t ALTER s TYPE varchar(9)",
        "GRANT SELECT (n) ON t TO public",
        "ALTER TABLE t SET (fillfactor = 50)",
        "CREATE INDEX ON t (n)",
        "CREATE PUBLICATION another FOR TABLE t",
    ],
)
def test_what_keeps_rows_or_stands_in_the_log_is_no_change(
    sql: psycopg.Connection[Any], differs: Differs, statement: str
) -> None:
    sql.execute(TABLE)
    sql.execute("INSERT INTO t VALUES (0, 1, 'a', 'b')")
    assert not differs(statement)


@pytest.mark.parametrize(
    "statement",
    [
        'ALTER TABLE t ADD " a  name\n" text DEFAULT 1',
        "ALTER TABLE t ALTER v TYPE text USING v || 'x'",
        "ALTER TABLE t ALTER n TYPE int USING n * 2",
        "ALTER TABLE t ALTER n TYPE bigint",
        "ALTER TABLE t RENAME v TO w",
        "ALTER TABLE t DROP v; ALTER TABLE t ADD v text",
        "ALTER TABLE t ADD d int DEFAULT 5",
        "ALTER TABLE t ADD d int NOT NULL DEFAULT 5",
        "ALTER TABLE t ADD d float8 DEFAULT random()",
        "ALTER TABLE t ADD d timestamptz DEFAULT clock_timestamp()",
        "ALTER TABLE t ADD d bigserial",
        "ALTER TABLE t ADD d int GENERATED BY DEFAULT AS IDENTITY",
        "DROP TABLE t; " + TABLE,
    ],
)
def test_what_changes_rows_without_events_is_noticed(
    sql: psycopg.Connection[Any], differs: Differs, statement: str
) -> None:
    sql.execute(TABLE)
    sql.execute("INSERT INTO t VALUES (0, 1, 'a', 'b')")
    assert differs(statement)


TYPES = """
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE TYPE pair AS (a int, m mood);
CREATE TABLE other (a int, b int);
CREATE DOMAIN moods AS mood[];
CREATE TYPE spot AS (x int);
CREATE DOMAIN spots AS spot[];
CREATE TYPE bound AS (x int);
CREATE TYPE bounds AS RANGE (subtype = bound);
CREATE TABLE t (id int PRIMARY KEY, n int, p pair[], m moods, o other, s spots, r bounds,
  "a b" int GENERATED ALWAYS AS (n + 1) STORED)
"""


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TYPE mood ADD VALUE 'worse'",
        "ALTER TYPE mood ADD VALUE 'ok' BEFORE 'bad'",
        "CREATE TYPE another AS ENUM ('a')",
        "ALTER DOMAIN moods SET NOT NULL",
        "ALTER TABLE t ADD another mood",
        "GRANT UPDATE ON t, other TO public; GRANT UPDATE (n) ON t TO public",
        "COMMENT ON TABLE t IS 'x'; COMMENT ON COLUMN t.n IS 'y'",
        "ALTER TABLE t OWNER TO pg_database_owner",
        "CREATE STATISTICS s ON n, id FROM t; ANALYZE t",
        "ALTER TABLE t CLUSTER ON t_pkey; ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE TABLE more (m mood, p pair); DROP TABLE more",
        "COMMENT ON PUBLICATION tidelog IS 'x'",
    ],
)
def test_what_leaves_the_texts_of_values_is_no_change(
    sql: psycopg.Connection[Any], differs: Differs, statement: str
) -> None:
    sql.execute(TYPES)
    assert not differs(*statement.split("; "))


@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TYPE mood RENAME VALUE 'good' TO 'fine'",),
        (
            "ALTER TYPE mood RENAME VALUE 'good' TO 'fine'",
            "ALTER TYPE mood RENAME VALUE 'fine' TO 'good'",
        ),
        ("ALTER TYPE pair ADD ATTRIBUTE c int",),
        ("ALTER TYPE pair RENAME ATTRIBUTE a TO b",),
        ("ALTER TYPE spot ADD ATTRIBUTE y int",),
        ("ALTER TYPE bound RENAME ATTRIBUTE x TO y",),
        ("ALTER TYPE pair ADD ATTRIBUTE c int; ALTER TYPE pair DROP ATTRIBUTE c",),
        ("ALTER TABLE other ADD c int",),
        ('ALTER TABLE t ALTER "a b" DROP EXPRESSION',),
        ("ALTER PUBLICATION tidelog DROP TABLE t; ALTER PUBLICATION tidelog ADD TABLE t",),
        ("ALTER PUBLICATION tidelog SET TABLE other", "ALTER PUBLICATION tidelog ADD TABLE t"),
        (
            "ALTER PUBLICATION tidelog SET (publish = 'insert')",
            "ALTER PUBLICATION tidelog SET (publish = 'insert, update, delete, truncate')",
        ),
        (
            "DROP PUBLICATION tidelog",
            "CREATE PUBLICATION tidelog FOR TABLE t WITH (publish_via_partition_root)",
        ),
    ],
)
def test_what_was_undone_leaves_a_trace(
    sql: psycopg.Connection[Any], differs: Differs, statements: Sequence[str]
) -> None:
    sql.execute(TYPES)
    assert differs(*statements)


def test_table_whose_updates_were_not_published_for_a_while_is_noticed(
    server: PostgresServer, sql: psycopg.Connection[Any]
) -> None:
    """Tidelog itself moved it to the publication of inserts, and back."""
    publications = Publications("tidelog", ["public.*"])
    sql.execute(TABLE)
    publications.sync(sql)
    sql.execute("ALTER TABLE t REPLICA IDENTITY NOTHING")
    publications.sync(sql)
    sql.execute("UPDATE t SET n = 1")
    sql.execute("ALTER TABLE t REPLICA IDENTITY DEFAULT")
    with opened(server, publications) as catalogue:
        before = catalogue.shape(T)
        publications.sync(sql)
        after = catalogue.shape(T)
        assert before is not None
        assert after is not None
        assert catalogue.rows_may_differ(before.storage, after.storage)


@contextmanager
def opened(server: PostgresServer, publications: Publications) -> Iterator[PostgresCatalogue]:
    catalogue = PostgresCatalogue(
        server.dsn("storage"), finder=PostgresSchemaFinder(publications=publications.names)
    )
    yield catalogue
    catalogue.close()


def test_table_that_left_a_published_schema_for_a_while_is_noticed(
    server: PostgresServer, sql: psycopg.Connection[Any]
) -> None:
    sql.execute(TABLE + "; CREATE SCHEMA aside")
    sql.execute("CREATE PUBLICATION tidelog FOR TABLES IN SCHEMA public")
    with opened(server, Publications("tidelog", ["public.*"])) as catalogue:
        shapes = [catalogue.shape(T)]
        for statements in (
            "GRANT SELECT ON t TO public; ALTER TABLE t OWNER TO pg_database_owner",
            "ALTER TABLE t SET SCHEMA aside; ALTER TABLE aside.t SET SCHEMA public",
        ):
            sql.execute(statements.encode())
            shapes.append(catalogue.shape(T))
        storages = [shape.storage for shape in shapes if shape]
        assert not catalogue.rows_may_differ(storages[0], storages[1])
        assert catalogue.rows_may_differ(storages[1], storages[2])


def test_what_an_earlier_release_stored_is_understood() -> None:
    """Of its traces there are none yet, which is no difference."""
    now = {
        "oid": 1, "file": 2, "parts": "", "columns": {"1": ["id", "9", 0]}, "missing": {},
        "published": [7], "members": [[5, "4", 7]], "types": {},
    }  # fmt: skip
    after = json.dumps(now)
    assert not rows_may_differ('[1,2,{"1":["id","9"]},{},[7],[]]', after)
    assert rows_may_differ('[1,2,{"1":["old","9"]},{},[7],[]]', after)
    assert rows_may_differ('[3,2,{"1":["id","9"]},{},[7],[]]', after)
    assert rows_may_differ("0123456789abcdef", after)


def test_missing_values_that_a_rewrite_fills_in_count_once(
    sql: psycopg.Connection[Any], differs: Differs
) -> None:
    sql.execute(TABLE)
    sql.execute("INSERT INTO t VALUES (0, 1, 'a', 'b')")
    assert differs("ALTER TABLE t ADD d int DEFAULT 5")
    assert differs("VACUUM FULL t")  # not to be told from ALTER d TYPE int USING f(d)
    assert not differs("VACUUM FULL t")


def test_table_made_unlogged_and_logged_again_is_noticed(
    server: PostgresServer, sql: psycopg.Connection[Any], differs: Differs
) -> None:
    """A publication that names the table prevents that; one for all tables does not."""
    sql.execute(TABLE)
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        differs("ALTER TABLE t SET UNLOGGED")
    sql.execute("DROP PUBLICATION tidelog")
    sql.execute("CREATE PUBLICATION tidelog FOR ALL TABLES WITH (publish_via_partition_root)")
    assert differs(
        "ALTER TABLE t SET UNLOGGED", "INSERT INTO t VALUES (1)", "ALTER TABLE t SET LOGGED"
    )


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE t_1",
        "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (10) TO (20)",
        "ALTER TABLE t DETACH PARTITION t_1",
        "ALTER TABLE t DETACH PARTITION t_1; DELETE FROM t_1; "
        "ALTER TABLE t ATTACH PARTITION t_1 FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE t ADD d int DEFAULT 5",
    ],
)
def test_partitions_that_come_go_or_are_rewritten_are_noticed(
    sql: psycopg.Connection[Any], differs: Differs, statement: str
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    sql.execute("CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)")
    assert not differs("INSERT INTO t VALUES (1)")
    assert not differs("ALTER TABLE t ADD plain int", "GRANT SELECT ON t, t_1 TO public")
    assert differs(statement)


def test_table_that_left_a_publication_of_others_and_came_back_is_noticed(
    server: PostgresServer, sql: psycopg.Connection[Any]
) -> None:
    sql.execute(TABLE)
    sql.execute("CREATE TABLE other (id int PRIMARY KEY)")
    sql.execute("CREATE PUBLICATION theirs FOR TABLE t")
    catalogue = PostgresCatalogue(
        server.dsn("storage"),
        finder=PostgresSchemaFinder(publications=["theirs"]),
        published_by_others=True,
    )
    assert catalogue.tables(["*.*"]) == [T]
    before = catalogue.shape(T)
    sql.execute("ALTER PUBLICATION theirs DROP TABLE t")
    assert catalogue.tables(["*.*"]) == []
    sql.execute("ALTER PUBLICATION theirs ADD TABLE t")
    after = catalogue.shape(T)
    catalogue.close()
    assert before is not None
    assert after is not None
    assert catalogue.rows_may_differ(before.storage, after.storage)


def test_what_other_tables_undergo_leaves_a_tables_version_as_it_was(
    server: PostgresServer, sql: psycopg.Connection[Any]
) -> None:
    catalogue = PostgresCatalogue(server.dsn("storage"), metadata_tables=["public.signals"])
    sql.execute(TABLE)
    sql.execute("CREATE TABLE u (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    sql.execute("CREATE TABLE u_1 PARTITION OF u FOR VALUES FROM (0) TO (10)")
    sql.execute("CREATE TABLE signals (id int); CREATE SCHEMA tidelog; CREATE TABLE tidelog.x ()")
    before = catalogue.versions(["*.*"])
    assert list(before) == catalogue.tables(["*.*"]) == [T, TableName("public", "u")]
    sql.execute("INSERT INTO t SELECT g FROM generate_series(1, 1000) g")
    sql.execute("VACUUM ANALYZE")
    sql.execute("ALTER TABLE u_1 ADD CONSTRAINT c CHECK (id > 0); DROP TABLE signals")
    sql.execute("ALTER TABLE u_1 ALTER id SET STATISTICS 500")
    after = catalogue.versions(["*.*"])
    assert after[T] == before[T]
    assert after[TableName("public", "u")] != before[TableName("public", "u")]
    assert catalogue.versions(["public.t"]) == {T: before[T]}
    catalogue.close()


def test_look_reads_nothing_but_the_stamp_while_nothing_changes(
    server: PostgresServer,
    sql: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    sql.execute(TABLE)
    catalogue = PostgresCatalogue(server.dsn("storage"))
    publications = Publications("tidelog", ["public.*"])
    publications.sync(sql)
    read: list[str] = []
    for name in ("stamp", "versions", "shapes"):
        monkeypatch.setattr(catalogue, name, noted(read, name, getattr(catalogue, name)))
    state = SqliteState(tmp_path / "state.db")
    watch = CatalogueWatch(
        catalogue,
        state,
        ["public.*"],
        unsupported=UnsupportedTables(state, lambda notification: None),
        publish=lambda: Published(publications.sync(sql)),
        snapshot=lambda: PgSnapshot.from_text("1:1:"),
        request_dump=lambda table, reason: False,
        dump_new=False,
    )
    watch.poll()
    read.clear()
    watch.poll()
    assert read == ["stamp"]
    sql.execute("GRANT SELECT ON t TO public")
    watch.poll()
    assert read == ["stamp", "stamp", "versions", "shapes"]
    sql.execute("ALTER TABLE t ADD d int DEFAULT 5")
    read.clear()
    for _ in range(3):  # it is asked for until it is granted
        watch.poll()
        assert read == ["stamp", "versions", "shapes"]
        read.clear()
    catalogue.close()


def noted(calls: list[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def noting(*arguments: Any) -> Any:
        calls.append(name)
        return call(*arguments)

    return noting


def test_load_tells_the_logs_length_and_no_lag_without_replicas(
    server: PostgresServer, sql: psycopg.Connection[Any]
) -> None:
    catalogue = PostgresCatalogue(server.dsn("storage"))
    begin = catalogue.position()
    sql.execute("CREATE TABLE t (id int)")
    load = catalogue.load(begin)
    assert load.replica_lag_s is None
    assert 0 < load.lag_bytes <= catalogue.position() - begin
    catalogue.close()


def test_load_tells_what_the_slot_keeps_and_how_much_more_it_may(
    server: PostgresServer, sql: psycopg.Connection[Any]
) -> None:
    catalogue = PostgresCatalogue(server.dsn("storage"), slot="kept")
    assert catalogue.load(0x208C0C0).reached == "0/208C0C0"
    assert catalogue.load(0).retention == Retention()  # there is no such slot yet
    sql.execute("SELECT pg_create_logical_replication_slot('kept', 'pgoutput')")
    try:
        before = catalogue.load(0).retention
        assert before.retained_bytes is not None
        assert before.spare_bytes is None  # max_slot_wal_keep_size is -1
        sql.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1GB'")
        sql.execute("SELECT pg_reload_conf()")
        sql.execute(
            "CREATE TABLE much AS SELECT i, repeat('x', 200) FROM generate_series(1, 9999) i"
        )
        deadline = time.monotonic() + 20
        while (after := catalogue.load(0).retention).spare_bytes is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert after.retained_bytes is not None
        assert after.retained_bytes > before.retained_bytes + 1_000_000
        assert 0 < after.spare_bytes < 2 << 30  # in whole files
    finally:
        sql.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        sql.execute("SELECT pg_reload_conf()")
        sql.execute("SELECT pg_drop_replication_slot('kept')")
        sql.execute("DROP TABLE IF EXISTS much")
        catalogue.close()


def test_new_expression_of_a_published_generated_column_is_noticed(
    postgres18: PostgresServer,
) -> None:
    """It rewrites the column's values; where they are not published no row changes for us."""
    dsn = postgres18.create_database("expression")
    catalogue = PostgresCatalogue(
        dsn, finder=PostgresSchemaFinder(publications=["tidelog", "tidelog_inserts"])
    )
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute("CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id) STORED)")
        for full, noticed in ((False, False), (True, True)):
            if full:
                sql.execute("ALTER TABLE t REPLICA IDENTITY FULL")
            Publications("tidelog", ["public.*"]).sync(sql)
            before = catalogue.shape(T)
            sql.execute(f"ALTER TABLE t ALTER g SET EXPRESSION AS (id + {1 + full})")
            after = catalogue.shape(T)
            assert before is not None
            assert after is not None
            assert catalogue.rows_may_differ(before.storage, after.storage) is noticed
    catalogue.close()
    postgres18.drop_database("expression")


def test_queries_of_many_tables_are_prepared_and_see_each_change(
    server: PostgresServer, sql: psycopg.Connection[Any]
) -> None:
    catalogue = PostgresCatalogue(server.dsn("storage"))
    sql.execute(TABLE.encode())
    for number in range(12):
        sql.execute(f"ALTER TABLE t ADD c{number} int".encode())
        shape = catalogue.shape(T)
        assert shape is not None
        assert shape.schema.column_names[-1] == f"c{number}"
    assert catalogue._connection is not None
    [(prepared,)] = catalogue._connection.execute("SELECT count(*) FROM pg_prepared_statements")
    catalogue.close()
    assert prepared > 3


def test_shapes_of_many_tables_are_those_of_each_with_its_own_error(
    server: PostgresServer, sql: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sql.execute(
        "CREATE TYPE color AS ENUM ('red'); CREATE TYPE place AS (x int, y color);"
        "CREATE TABLE a (id int PRIMARY KEY, c color DEFAULT 'red');"
        "ALTER TABLE a ADD n int DEFAULT 7;"
        "CREATE TABLE b (id numeric(9, 2) PRIMARY KEY, p place, s varchar(5));"
        "CREATE TABLE c (id int, n int);"
        "CREATE TABLE d (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part);"
        "CREATE TABLE d_1 PARTITION OF d FOR VALUES IN (1);"
        "CREATE TABLE d_2 PARTITION OF d FOR VALUES IN (2);"
        "CREATE TABLE e (secret int PRIMARY KEY);"
        "CREATE TABLE f (id int PRIMARY KEY, secret color[]);"
        "CREATE TABLE hidden (id int PRIMARY KEY);"
        'CREATE ROLE "some reader" LOGIN;'
        'GRANT SELECT ON ALL TABLES IN SCHEMA public TO "some reader";'
        'REVOKE ALL ON hidden FROM "some reader"'
    )
    Publications("tidelog", ["public.*"]).sync(sql)
    finder = PostgresSchemaFinder(
        {"public.c": ["no"]}, ["tidelog", "tidelog_inserts"], ["public.*.secret"]
    )
    catalogue = PostgresCatalogue(server.dsn("storage", user="some reader"), finder=finder)
    tables = [TableName("public", name) for name in ("a", "gone", "hidden", *"bcdef")]
    single: dict[TableName, Any] = {}
    for table in tables:
        try:
            single[table] = catalogue.shape(table)
        except UnsupportedTableError as error:
            single[table] = UnsupportedReason(
                error.reason, error.remedy, only_dumps=error.only_dumps
            )
    monkeypatch.setattr("tidelog.sources.postgres.catalogue.tables._TABLES_AT_ONCE", 3)
    some = catalogue.shapes(tables)
    monkeypatch.undo()
    for shapes in (some, catalogue.shapes(tables), catalogue.shapes(tables[::-1])):
        assert shapes == {table: shape for table, shape in single.items() if shape is not None}
    assert single[TableName("public", "gone")] is None
    for name, reason in (("hidden", "GRANT"), ("c", "source.keys"), ("e", "exclude_columns")):
        assert reason in str(single[TableName("public", name)]), name
    assert [c.name for c in single[TableName("public", "f")].schema.columns] == ["id"]
    assert json.loads(single[TableName("public", "d")].storage)["parts"]
    assert len(json.loads(single[TableName("public", "b")].storage)["types"]) == 2
    assert catalogue.shapes([]) == {}
    catalogue.close()
    sql.execute('DROP OWNED BY "some reader"; DROP ROLE "some reader"')


def test_a_record_that_is_not_whole_is_no_lag(database: str) -> None:
    """The server flushes the pages of a large record that an open transaction has written."""
    size = 200_000
    with (
        psycopg.connect(database) as writer,
        psycopg.connect(database, autocommit=True) as other,
        closing(PostgresCatalogue(database)) as catalogue,
    ):
        other.execute("CREATE TABLE written (id int)")
        before = lsn_value(other.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()[0])
        writer.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', %s))", (size,))
        deadline = time.monotonic() + 20
        while (flushed := catalogue.load(0).end) < before + size // 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        if flushed % 8192:  # something else was committed
            pytest.skip("the server flushed the end of the record")
        load = catalogue.load(before)
        assert (load.lag_bytes, load.end) == (0, before)
        other.execute("INSERT INTO written VALUES (1)")
        assert catalogue.load(before).lag_bytes > size
