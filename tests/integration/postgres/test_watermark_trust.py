"""A role that makes the watermark table before capture does gains no rights by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.integration.postgres.conftest import Capture
from tests.support.postgres import PostgresServer
from tests.support.postgres_parts import preflight

from tidelog.errors import ChunkDeniedError, PreflightError
from tidelog.ports import NullRegistry
from tidelog.sources.postgres.catalogue.publication import Publications
from tidelog.sources.postgres.chunks.reader import PostgresChunkReader
from tidelog.sources.postgres.connect import connect

pytestmark = pytest.mark.integration

TABLE = "CREATE TABLE tidelog.watermark (id int PRIMARY KEY, mark text NOT NULL{more});"
CODE = {
    "trigger": TABLE.format(more="") + "CREATE TRIGGER t BEFORE INSERT OR UPDATE ON "
    "tidelog.watermark FOR EACH ROW EXECUTE FUNCTION mallory.fired();",
    "rule": TABLE.format(more="") + "CREATE RULE r AS ON INSERT TO tidelog.watermark "
    "DO ALSO SELECT mallory.ran(1);",
    "row-level security": TABLE.format(more="")
    + "ALTER TABLE tidelog.watermark ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;"
    "CREATE POLICY p ON tidelog.watermark USING (mallory.ran(1) > 0);",
    "a default or generated value of more": TABLE.format(more=", more int DEFAULT mallory.ran(1)"),
    "a default or generated value of made": TABLE.format(
        more=", made int GENERATED ALWAYS AS (mallory.ran(id)) STORED"
    ),
    "a type of somebody's own for own": "CREATE DOMAIN mallory.d AS int "
    "CHECK (mallory.ran(VALUE) > 0);" + TABLE.format(more=", own mallory.d"),
    "the constraint k": TABLE.format(more=", CONSTRAINT k CHECK (mallory.ran(id) > 0)"),
    "an index over an expression": TABLE.format(more="")
    + "CREATE INDEX ON tidelog.watermark (mallory.ran(id));",
    "it is not an ordinary table": "CREATE VIEW tidelog.watermark AS SELECT 1 AS id, 'x' AS mark;"
    "CREATE TRIGGER t INSTEAD OF INSERT ON tidelog.watermark "
    "FOR EACH ROW EXECUTE FUNCTION mallory.fired();",
}


@pytest.fixture
def mallory(database: str, postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A role that may create schemas, and whose functions note as whom they ran."""
    name = "mallory_" + database.rsplit("/", 1)[1]
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute(
            f"CREATE ROLE {name} LOGIN; "
            f"GRANT CREATE ON DATABASE {database.rsplit('/', 1)[1]} TO {name}".encode()
        )
        with psycopg.connect(database, user=name, autocommit=True) as connection:
            connection.execute(
                "CREATE SCHEMA mallory; CREATE TABLE mallory.ran_as (who text);"
                "CREATE FUNCTION mallory.ran(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ "
                "BEGIN PERFORM mallory.note(); RETURN 1; END $$;"
                "CREATE FUNCTION mallory.note() RETURNS void LANGUAGE sql AS "
                "'INSERT INTO mallory.ran_as VALUES (current_user)';"
                "CREATE FUNCTION mallory.fired() RETURNS trigger LANGUAGE plpgsql AS $$ "
                "BEGIN PERFORM mallory.note(); RETURN NEW; END $$"
            )
            yield connection
        sql.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}".encode())


def test_nothing_that_another_role_made_runs(
    database: str,
    make_capture: Callable[..., Capture],
    sql: psycopg.Connection[Any],
    mallory: psycopg.Connection[Any],
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")

    def refused(what: str) -> str:
        """Neither capture nor a reader of chunks writes; the SQL of `check`."""
        publications = Publications("p", ["public.*"], slot="s")
        with connect(database, purpose="test") as own:
            with pytest.raises(PreflightError, match=what):  # as capture does at its start
                publications.sync(own, strict=True)
            assert publications.refused[publications.watermark].all_dumps
        reader = PostgresChunkReader(database, NullRegistry())
        with pytest.raises(ChunkDeniedError, match=what):
            reader.write_watermark("mark")
        reader.close()
        [found] = [f for f in preflight(database).check() if f.name == "watermark table"]
        assert (found.level, what in found.message) == ("error", True)
        return found.fix

    for what, made in CODE.items():
        mallory.execute(f"CREATE SCHEMA tidelog; {made}".encode())
        sql.execute("TRUNCATE mallory.ran_as")
        role = mallory.info.user
        sql.execute(refused(f"schema tidelog is owned by {role}").encode())
        kind = "VIEW" if "VIEW" in made else "TABLE"
        if kind == "TABLE":
            sql.execute(refused(f"it is owned by {role}").encode())
        fix = refused(what)
        # It would have run.
        sql.execute("INSERT INTO tidelog.watermark (id, mark) VALUES (1, 'x')")
        row = sql.execute("SELECT count(*) FROM mallory.ran_as WHERE who = current_user").fetchone()
        assert row is not None
        assert row[0] or what == "row-level security", what
        sql.execute(fix.encode())
        sql.execute("DROP SCHEMA tidelog CASCADE; DROP DOMAIN IF EXISTS mallory.d")
    capture = make_capture()
    capture.start()
    reader = PostgresChunkReader(database, NullRegistry())
    reader.write_watermark("mark")
    capture.until(lambda: capture.watermarks == ["mark"])
    capture.reader.close()
    # Later too: whom the table's owner lets make triggers is looked at.
    sql.execute(f"GRANT USAGE ON SCHEMA tidelog TO {mallory.info.user}".encode())
    sql.execute(f"GRANT TRIGGER ON tidelog.watermark TO {mallory.info.user}".encode())
    mallory.execute(CODE["trigger"].split(";")[1].encode())
    reader.close()
    refused("the trigger t")
