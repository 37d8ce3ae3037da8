"""Whose a publication is, and what captures do about one that is not as it should be."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.integration.postgres.conftest import Capture
from tests.support.postgres import PostgresServer
from tests.support.postgres_parts import preflight, publication_sql

from tidelog.errors import PreflightError
from tidelog.model.schema import TableName
from tidelog.sources.findings import Finding
from tidelog.sources.postgres.catalogue.publication import Publications

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]
A, B, P = TableName("public", "a"), TableName("public", "b"), TableName("public", "p")


@pytest.fixture(params=[16, 18])
def server(request: pytest.FixtureRequest) -> PostgresServer:
    found: PostgresServer = request.getfixturevalue(f"postgres{request.param}")
    return found


@pytest.fixture
def database(server: PostgresServer) -> Iterator[str]:
    yield server.create_database("publications")
    server.drop_database("publications")


def publications(pattern: str, slot: str, name: str = "shared") -> Publications:
    return Publications(name, [pattern], slot=slot)


def held(sql: Connection, name: str = "shared") -> set[str]:
    rows = sql.execute(
        "SELECT tablename FROM pg_publication_tables WHERE pubname = %s AND schemaname = 'public'",
        (name,),
    )
    return {row[0] for row in rows}


def comment(sql: Connection, name: str = "shared") -> str:
    row = sql.execute(
        "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %s",
        (name,),
    ).fetchone()
    assert row is not None
    return str(row[0])


def findings(dsn: str, pattern: str, slot: str, **options: Any) -> list[Finding]:
    names = {"publication", "table public.a", "table public.b", "table public.p"}
    check = preflight(
        dsn,
        slot=slot,
        publication=options.pop("publication", "shared"),
        tables=[pattern],
        **options,
    ).check()
    return [finding for finding in check if finding.name in names and finding.level != "ok"]


@pytest.fixture
def two_tables(sql: Connection) -> None:
    sql.execute("CREATE TABLE a (id int PRIMARY KEY, v int)")
    sql.execute("CREATE TABLE b (id int PRIMARY KEY, v int)")


@pytest.mark.usefixtures("two_tables")
def test_two_captures_share_a_publication_and_lose_nothing(
    sql: Connection, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = publications("public.a", "one"), publications("public.b", "two")
    assert one.sync(sql) == [A]
    for _ in range(2):
        assert two.sync(sql) in ([B], [])
        assert one.sync(sql) == []
        assert held(sql) == {"a", "b"}
    assert comment(sql) == "managed by tidelog for slot one"
    said = [record.message for record in caplog.records if "belongs to" in record.message]
    assert len(said) == 2  # each publication once, however often it is looked at
    assert "publication shared belongs to the capture of slot one" in said[0]
    assert findings(database, "public.a", "one") == []
    told = findings(database, "public.b", "two")
    assert {finding.level for finding in told} == {"warning"}
    assert {finding.fix for finding in told} == {"source.publication: two"}


@pytest.mark.usefixtures("two_tables")
def test_publication_of_an_older_tidelog_is_claimed_and_nothing_taken_out(sql: Connection) -> None:
    sql.execute("CREATE PUBLICATION shared FOR TABLE a, b WITH (publish_via_partition_root)")
    sql.execute("COMMENT ON PUBLICATION shared IS 'managed by tidelog'")
    publications("public.a", "one").sync(sql)
    publications("public.b", "two").sync(sql)
    assert held(sql) == {"a", "b"}
    assert comment(sql) == "managed by tidelog for slot one"


@pytest.mark.usefixtures("two_tables")
def test_what_breaks_the_application_is_moved_by_the_owner_alone(sql: Connection) -> None:
    one, two = publications("public.a", "one"), publications("public.b", "two")
    one.sync(sql)
    two.sync(sql)
    sql.execute("ALTER TABLE b DROP CONSTRAINT b_pkey")
    sql.execute("INSERT INTO b VALUES (1)")
    assert two.sync(sql) == []
    assert held(sql) == {"a", "b"}
    assert one.sync(sql) == []
    assert (held(sql), held(sql, "shared_inserts")) == ({"a"}, {"b"})
    sql.execute("UPDATE b SET v = 1")


LOSSY = [
    pytest.param(
        "ALTER PUBLICATION shared SET (publish = 'insert')",
        [A, P],
        "publication shared does not publish update, delete, truncate",
        id="kinds",
    ),
    pytest.param(
        "ALTER PUBLICATION shared SET (publish_via_partition_root = false)",
        [P],
        "publication shared publishes partitions instead of their root",
        id="partitions",
    ),
    pytest.param(
        "ALTER PUBLICATION shared SET TABLE a WHERE (id > 5), p",
        [A],
        "publication shared holds public.a with a row filter",
        id="row-filter",
    ),
    pytest.param(
        "ALTER PUBLICATION shared SET TABLE a (id), p",
        [A],
        "publication shared holds public.a with a column list",
        id="column-list",
    ),
    pytest.param(
        "ALTER PUBLICATION shared DROP TABLE a", [A], "public.a is not published", id="dropped"
    ),
    pytest.param(
        "ALTER PUBLICATION shared DROP TABLE a; ALTER PUBLICATION shared_inserts ADD TABLE a",
        [A],
        "public.a: its updates and deletes are not published",
        id="inserts",
    ),
]


@pytest.fixture
def shared(sql: Connection) -> Publications:
    sql.execute("CREATE TABLE a (id int PRIMARY KEY, v int)")
    sql.execute("CREATE TABLE p (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)")
    sql.execute("CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    found = Publications("shared", ["public.*"], strategy="message", slot="one")
    assert found.sync(sql) == [A, P]
    return found


@pytest.mark.parametrize(("statements", "lost", "why"), LOSSY)
def test_owner_fixes_what_loses_changes_and_dumps_the_tables(
    shared: Publications,
    sql: Connection,
    caplog: pytest.LogCaptureFixture,
    statements: str,
    lost: list[TableName],
    why: str,
) -> None:
    sql.execute(statements.encode())
    assert shared.sync(sql) == lost
    assert shared.sync(sql) == []
    assert publication_sql(shared, sql) == []
    if not why.endswith("is not published"):
        assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == [
            f"{why}: fixed"
        ]


@pytest.mark.parametrize(("statements", "lost", "why"), LOSSY)
def test_others_publication_is_reported_and_its_tables_are_dumped_once_it_is_fixed(
    shared: Publications,
    sql: Connection,
    database: str,
    caplog: pytest.LogCaptureFixture,
    statements: str,
    lost: list[TableName],
    why: str,
) -> None:
    options = {"strategy": "snapshot"}  # changes nothing, whoever owns it
    watcher = Publications("shared", ["public.*"], strategy="snapshot", slot="one")
    assert watcher.sync(sql, strict=True) == []
    assert findings(database, "public.*", "one", **options) == []
    sql.execute(statements.encode())
    caplog.clear()
    for _ in range(2):
        assert watcher.sync(sql) == []
    (said,) = [record.message for record in caplog.records]
    assert said.startswith(f"{why}; this capture may not change it: ALTER PUBLICATION")
    with pytest.raises(PreflightError, match="let the owner run"):
        Publications("shared", ["public.*"], strategy="snapshot").sync(sql, strict=True)
    (finding,) = findings(database, "public.*", "one", **options)
    assert (finding.level, finding.message) == ("error", why)
    sql.execute(finding.fix.encode())
    assert findings(database, "public.*", "one", **options) == []
    assert watcher.sync(sql) == lost
    assert watcher.sync(sql) == []


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        (
            "ALTER PUBLICATION shared DROP TABLE a; ALTER PUBLICATION shared_inserts ADD TABLE a",
            "its updates and deletes are not published",
        ),
        (
            "ALTER TABLE a DROP CONSTRAINT a_pkey",
            "its updates and deletes fail: it has no primary key",
        ),
    ],
)
@pytest.mark.usefixtures("shared")
def test_status_has_a_table_whose_updates_others_must_publish(
    sql: Connection, statements: str, why: str
) -> None:
    watcher = Publications("shared", ["public.*"], strategy="snapshot", slot="one")
    watcher.sync(sql)
    assert A not in watcher.inserts_only
    sql.execute(statements.encode())
    watcher.sync(sql)
    found = watcher.inserts_only[A]
    assert found.reason == why
    assert found.remedy is not None
    sql.execute(found.remedy.encode())
    watcher.sync(sql)
    assert (A in watcher.inserts_only) == ("no primary key" in why), "it stays without a key"
    assert "fail" not in str(watcher.inserts_only.get(A))


@pytest.mark.usefixtures("shared")
def test_what_start_fixes_is_news_to_the_next_poll(
    make_capture: Callable[..., Capture], sql: Connection
) -> None:
    capture = make_capture(publication="own", tables=["public.a"])
    begin = capture.start()
    capture.reader.close()
    sql.execute("ALTER PUBLICATION own DROP TABLE a")
    sql.execute("UPDATE a SET v = 1")
    assert capture.start(begin) == begin
    assert held(sql, "own") == {"a"}
    assert capture.publish() == [A]
    assert capture.publish() == []


def test_all_tables_of_a_database_are_shown_what_breaks(sql: Connection, database: str) -> None:
    """A table can't be taken out of such a publication; its identity can be mended."""
    sql.execute("CREATE TABLE a (id int)")
    sql.execute("INSERT INTO a VALUES (1)")
    sql.execute("CREATE PUBLICATION shared FOR ALL TABLES WITH (publish_via_partition_root)")
    with pytest.raises(psycopg.Error, match="replica identity"):
        sql.execute("UPDATE a SET id = 2")
    told = [f for f in findings(database, "public.*", "one") if f.name == "table public.a"]
    assert [(f.level, f.role) for f in told if "fail" in f.message] == [("error", "postgres")]
    sql.execute(told[-1].fix.encode())
    sql.execute("UPDATE a SET id = 2")
    assert [f for f in findings(database, "public.*", "one") if f.level == "error"] == []


def test_publications_of_others_on_the_same_tables_do_not_matter(
    make_capture: Callable[..., Capture], sql: Connection
) -> None:
    sql.execute("CREATE TABLE a (id int PRIMARY KEY, v int, w int)")
    sql.execute("CREATE PUBLICATION theirs FOR TABLE a (id, v) WHERE (id > 5)")
    sql.execute("CREATE PUBLICATION inserts FOR TABLE a WITH (publish = 'insert')")
    capture = make_capture()
    capture.start()
    sql.execute("INSERT INTO a VALUES (1, 2, 3)")
    sql.execute("UPDATE a SET w = 4")
    sql.execute("DELETE FROM a")
    assert [row.new or row.old for row in capture.catch_up(sql)] == [
        {"id": "1", "v": "2", "w": "3"},
        {"id": "1", "v": "2", "w": "4"},
        {"id": "1"},
    ]


class Counting(psycopg.Connection[Any]):
    """Counts the statements that it runs."""

    statements = 0

    def execute(self, *arguments: Any, **options: Any) -> Any:
        self.statements += 1
        return super().execute(*arguments, **options)


def test_a_look_costs_as_many_queries_however_many_tables_are_refused(
    database: str, sql: psycopg.Connection[Any]
) -> None:
    role = "looker_" + database.rsplit("/", 1)[1]
    sql.execute(f"CREATE ROLE {role} LOGIN REPLICATION".encode())
    sql.execute(f"GRANT CREATE ON DATABASE {database.rsplit('/', 1)[1]} TO {role}".encode())
    counts = []
    with Counting.connect(database, user=role, autocommit=True) as connection:
        assert isinstance(connection, Counting)
        for number in range(12):
            sql.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY)".encode())
            if number in (0, 1, 11):
                Publications("p", ["public.*"], slot="s").sync(connection)  # makes what is missing
                publications = Publications("p", ["public.*"], slot="s")
                before = connection.statements
                publications.sync(connection)
                counts.append(connection.statements - before)
                publications.sync(connection)  # of what stands nothing is forgotten
                assert len(publications.refused) == number + 1
                remedies = [refusal.remedy or "" for refusal in publications.refused.values()]
                assert all("ALTER PUBLICATION" in remedy for remedy in remedies)
    sql.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}".encode())
    assert len(set(counts)) == 1
