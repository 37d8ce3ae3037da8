"""Publications are read in full if, and only if, something changed that matters to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.support.postgres import PostgresServer

from tidelog.model.schema import TableName
from tidelog.sources.postgres.catalogue.publication import Publications
from tidelog.sources.postgres.catalogue.publication_plan import PublicationPlanner
from tidelog.sources.postgres.connect import connect

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]
A = TableName("public", "a")
ROLES = ("looker", "maker", "foreigner")

TABLES = """
CREATE SCHEMA s;
GRANT ALL ON SCHEMA public, s TO maker, foreigner, looker;
SET ROLE maker;
CREATE TABLE public.a (id int PRIMARY KEY, v int);
CREATE TABLE public.b (id int PRIMARY KEY, v int);
CREATE TABLE public.p (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE public.p1 PARTITION OF public.p FOR VALUES FROM (0) TO (9);
CREATE TABLE public.p2 PARTITION OF public.p FOR VALUES FROM (9) TO (99);
CREATE TABLE s.other (id int PRIMARY KEY);
RESET ROLE;
"""

# One after the other, by another role; each is seen.
MATTERS = [
    "CREATE TABLE c (id int PRIMARY KEY); ALTER TABLE c OWNER TO maker",
    "ALTER PUBLICATION shared DROP TABLE a",
    "ALTER PUBLICATION shared ADD TABLE s.other",
    "ALTER PUBLICATION shared SET (publish = 'insert')",
    "ALTER PUBLICATION shared SET (publish_via_partition_root = false)",
    "ALTER PUBLICATION shared SET TABLE a WHERE (id > 1)",
    "ALTER PUBLICATION shared SET TABLE a (id), b",
    "ALTER PUBLICATION shared ADD TABLES IN SCHEMA s",
    "ALTER PUBLICATION shared DROP TABLES IN SCHEMA s",
    "ALTER PUBLICATION shared OWNER TO postgres",
    "ALTER PUBLICATION shared OWNER TO looker",
    "COMMENT ON PUBLICATION shared IS 'mine'",
    "COMMENT ON PUBLICATION shared IS 'managed by tidelog for slot other'",
    "COMMENT ON PUBLICATION shared IS 'managed by tidelog for slot one'",
    "DROP PUBLICATION shared_inserts",
    "ALTER TABLE a REPLICA IDENTITY NOTHING",
    "ALTER TABLE a REPLICA IDENTITY FULL",
    "ALTER TABLE a REPLICA IDENTITY DEFAULT",
    "ALTER TABLE a DROP CONSTRAINT a_pkey",
    "ALTER TABLE a ADD PRIMARY KEY (id) DEFERRABLE",
    "ALTER TABLE a DROP CONSTRAINT a_pkey, ADD PRIMARY KEY (id)",
    "CREATE UNIQUE INDEX by_v ON a (v); ALTER TABLE a ALTER v SET NOT NULL;"
    "ALTER TABLE a REPLICA IDENTITY USING INDEX by_v",
    "DROP INDEX by_v",
    "ALTER TABLE a REPLICA IDENTITY DEFAULT",
    "ALTER TABLE a ADD g int GENERATED ALWAYS AS (1) STORED; ALTER TABLE a REPLICA IDENTITY FULL",
    "ALTER TABLE a ALTER g DROP EXPRESSION",
    "ALTER TABLE a RENAME id TO number",
    "ALTER TABLE a RENAME TO z",
    "ALTER TABLE z SET SCHEMA s",
    "ALTER TABLE s.z RENAME TO a",
    "ALTER TABLE s.a SET SCHEMA public",
    "ALTER TABLE p DETACH PARTITION p1",
    "ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (9)",
    "ALTER TABLE p2 REPLICA IDENTITY NOTHING",
    "ALTER TABLE p2 REPLICA IDENTITY DEFAULT",
    "ALTER TABLE s.other REPLICA IDENTITY NOTHING",
    "ALTER SCHEMA s RENAME TO r",
    "ALTER TABLE b OWNER TO foreigner",
    "ALTER PUBLICATION shared DROP TABLE b",
    "ALTER TABLE b OWNER TO maker",
    "REVOKE maker FROM looker",
    "GRANT maker TO looker",
    "REVOKE ALL ON SCHEMA public FROM PUBLIC, looker, maker",
    "GRANT ALL ON SCHEMA public TO looker, maker",
    "REVOKE CREATE ON DATABASE {database} FROM looker",
    "GRANT CREATE ON DATABASE {database} TO looker",
    "ALTER TABLE c OWNER TO postgres",
    "ALTER ROLE looker SUPERUSER",
    "ALTER ROLE looker NOSUPERUSER",
    "DROP TABLE b",
]
MATTERS_NOT = [
    "ALTER TABLE a ADD w text DEFAULT 'x'",
    "ALTER TABLE a ALTER v SET STATISTICS 500",
    "ALTER TABLE a RENAME w TO x",
    "COMMENT ON TABLE a IS 'mine'",
    "CREATE INDEX ON a (v)",
    "GRANT SELECT ON a TO foreigner",
    "CREATE TEMP TABLE brief (id int PRIMARY KEY)",
    "CREATE VIEW seen AS SELECT 1",
    "CREATE SEQUENCE numbers",
    "INSERT INTO a SELECT i, i FROM generate_series(1, 99) i; ANALYZE a",
    "TRUNCATE a",
]


class Counted(Publications):
    """Counts what it does."""

    looks = 0

    def planner(self, connection: Connection) -> PublicationPlanner:
        self.looks += 1
        return super().planner(connection)

    def looked(self, connection: Connection) -> bool:
        self.looks = 0
        self.sync(connection)
        return self.looks > 0


@pytest.fixture(params=[16, 18])
def server(request: pytest.FixtureRequest) -> PostgresServer:
    found: PostgresServer = request.getfixturevalue(f"postgres{request.param}")
    return found


@pytest.fixture
def database(server: PostgresServer) -> Iterator[str]:
    dsn = server.create_database("inputs")
    for role in ROLES:
        server.execute(f"CREATE ROLE {role} LOGIN")
    server.execute("GRANT maker TO looker")
    server.execute("GRANT CREATE ON DATABASE inputs TO looker")
    yield dsn
    server.drop_database("inputs")
    for role in ROLES:
        server.execute(f"DROP ROLE {role}")


@pytest.fixture
def sql(database: str) -> Iterator[Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
        yield connection


@pytest.fixture
def looker(server: PostgresServer, sql: Connection) -> Iterator[Connection]:
    with connect(server.dsn("inputs", user="looker"), purpose="test") as connection:
        yield connection


def settled(publications: Counted, connection: Connection) -> bool:
    """What a look changes itself calls for one more."""
    return any(not publications.looked(connection) for _ in range(3))


def test_what_matters_is_seen(sql: Connection, looker: Connection) -> None:
    kept = Counted("shared", ["public.*"], slot="one")
    assert A in kept.sync(looker)
    assert settled(kept, looker)
    for statement in MATTERS:
        sql.execute(statement.format(database="inputs").encode())
        assert kept.looked(looker), statement
        assert settled(kept, looker), statement
        fresh = Counted("shared", ["public.*"], slot="one")
        fresh.sync(looker)
        assert fresh.refused == kept.refused, statement
        assert fresh.inserts_only == kept.inserts_only, statement
        assert not kept.looked(looker), f"{statement}: a look had left something to do"


def test_what_does_not_matter_costs_no_look(sql: Connection, looker: Connection) -> None:
    kept = Counted("shared", ["public.*"], slot="one")
    kept.sync(looker)
    assert settled(kept, looker)
    for statement in MATTERS_NOT:
        sql.execute(statement.encode())
        assert not kept.looked(looker), statement


def test_table_that_is_locked_is_tried_again(sql: Connection, looker: Connection) -> None:
    """Nothing in the catalogue tells that the lock is gone."""
    kept = Counted("shared", ["public.*"], slot="one")
    kept.sync(looker)
    assert settled(kept, looker)
    sql.execute("CREATE TABLE c (id int PRIMARY KEY)")
    sql.execute("ALTER TABLE c OWNER TO maker")
    with sql.transaction():
        sql.execute("LOCK TABLE c IN ACCESS EXCLUSIVE MODE")
        assert kept.sync(looker) == []
        assert kept.looked(looker)
        assert "lock" in kept.refused[TableName("public", "c")].reason
    assert kept.sync(looker) == [TableName("public", "c")]
    assert kept.refused == {}


def test_what_was_published_at_the_start_is_reported_at_the_next_poll(
    sql: Connection, looker: Connection
) -> None:
    kept = Counted("shared", ["public.*"], slot="one")
    kept.sync(looker)
    sql.execute("ALTER PUBLICATION shared DROP TABLE a")
    kept.sync(looker, report=False)
    kept.sync(looker, report=False)
    assert kept.sync(looker) == [A]
