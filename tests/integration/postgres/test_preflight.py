"""`check` names what is wrong, with the SQL that fixes it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.support.postgres import PostgresServer
from tests.support.postgres_parts import preflight

from tidelog.errors import OutputRefusedError
from tidelog.outputs.database.postgres import PostgresSession
from tidelog.sources.findings import Finding, fix_script
from tidelog.sources.postgres.catalogue.identity import not_owned

pytestmark = pytest.mark.integration


def faults(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings if finding.level != "ok"}


def counts(findings: list[Finding]) -> list[str]:
    return [finding.message for finding in findings if finding.name == "tables"]


@pytest.mark.parametrize("version", [16, 18])
def test_sound_source_has_no_failure(version: int, request: pytest.FixtureRequest) -> None:
    server: PostgresServer = request.getfixturevalue(f"postgres{version}")
    dsn = server.create_database("sound")
    server.execute("CREATE TABLE t (id int PRIMARY KEY)", "sound")
    findings = preflight(dsn).check()
    server.execute("CREATE TABLE u (id int PRIMARY KEY)", "sound")
    two = preflight(dsn).check()
    server.drop_database("sound")
    assert [finding for finding in findings if finding.level == "error"] == []
    assert set(faults(findings)) == {"disk", "decoding memory"}
    assert counts(findings) == ["1 table matches"]
    assert counts(two) == ["2 tables match"]


def test_tables_that_need_care_are_named_with_sql(
    sql: psycopg.Connection[Any], database: str
) -> None:
    sql.execute('CREATE TABLE "No Key" (v text)')
    sql.execute("CREATE UNLOGGED TABLE fast (id int PRIMARY KEY)")
    sql.execute("CREATE PUBLICATION tidelog FOR ALL TABLES")
    found = preflight(database, slot="nobody").check()
    messages = [(f.name, f.level, f.fix) for f in found if f.level != "ok"]
    assert ("table public.No Key", "error",
            'ALTER TABLE "public"."No Key" REPLICA IDENTITY FULL; '
            "-- or give it a primary key of plain columns that is not deferrable"
            ) in messages  # fmt: skip
    assert ("table public.fast", "warning", 'ALTER TABLE "public"."fast" SET LOGGED;') in messages
    (fix,) = (fix for name, level, fix in messages if (name, level) == ("publication", "error"))
    assert 'ALTER PUBLICATION "tidelog" SET (publish_via_partition_root = true);' in fix


def test_a_deferrable_primary_key_is_no_key(sql: psycopg.Connection[Any], database: str) -> None:
    """Two rows may have one key for a moment, and the log shows them one after the other."""
    sql.execute(
        'CREATE TABLE moved (b int, a int, CONSTRAINT "The Key" PRIMARY KEY (a, b) DEFERRABLE)'
    )
    sql.execute("ALTER TABLE moved REPLICA IDENTITY FULL")
    (found,) = [f for f in preflight(database).check() if f.name == "table public.moved"]
    assert "its primary key is DEFERRABLE" in found.message
    sql.execute(found.fix.encode())
    assert [f for f in preflight(database).check() if f.name == "table public.moved"] == []
    sql.execute('ALTER TABLE moved DROP CONSTRAINT "moved_pkey"')
    sql.execute("ALTER TABLE moved ADD UNIQUE (a) DEFERRABLE, ALTER a SET NOT NULL")
    (named,) = [
        f
        for f in preflight(database, keys={"public.moved": ["a"]}).check()
        if f.name == "table public.moved"
    ]
    assert "is not unique" in named.message
    sql.execute("CREATE UNIQUE INDEX ON moved (a)")
    (found,) = [f for f in preflight(database).check() if f.name == "table public.moved"]
    assert 'source.keys: {"public.moved": ["a"]}' in found.fix


def test_a_unique_index_becomes_the_replica_identity(
    sql: psycopg.Connection[Any], database: str
) -> None:
    """It is the key then; without one, the whole row identifies."""
    sql.execute("CREATE TABLE audit (a int NOT NULL, b int NOT NULL, n int, at int NOT NULL)")
    sql.execute("CREATE UNIQUE INDEX two ON audit (a, b); CREATE UNIQUE INDEX nulls ON audit (n)")
    sql.execute(
        'CREATE UNIQUE INDEX part ON audit (a) WHERE n > 0; CREATE INDEX "not" ON audit (a)'
    )
    sql.execute('CREATE UNIQUE INDEX "The One" ON audit (at) INCLUDE (n)')
    sql.execute("CREATE TABLE log (at int)")
    found = preflight(database, slot="nobody").check()
    fixes = {f.message.partition(":")[0]: f.fix for f in found if f.name == "table public.audit"}
    identity = 'ALTER TABLE "public"."audit" REPLICA IDENTITY USING INDEX "The One";'
    advice = "-- or give it a primary key"
    assert fixes["only inserts and truncates are captured"].startswith(f"{identity} {advice}")
    assert fixes["no primary key"].endswith('source.keys: {"public.audit": ["at"]}')
    (whole,) = (
        f.fix for f in found if f.name == "table public.log" and "only inserts" in f.message
    )
    assert whole.startswith('ALTER TABLE "public"."log" REPLICA IDENTITY FULL;')
    without = preflight(database, slot="nobody", exclude_columns=["*.audit.at"]).check()
    fixes = {f.message.partition(":")[0]: f.fix for f in without if f.name == "table public.audit"}
    assert 'REPLICA IDENTITY USING INDEX "two";' in fixes["only inserts and truncates are captured"]
    assert fixes["no primary key"].endswith('source.keys: {"public.audit": ["a", "b"]}')
    sql.execute(identity)
    assert "table public.audit" not in faults(preflight(database).check())
    again = preflight(database, keys={"public.audit": ["at"]}).check()
    assert "table public.audit" not in faults(again)


def test_missing_slot_is_an_error_once_an_event_log_needs_it(database: str) -> None:
    for needed, expected in ((False, ("ok", "")), (True, ("error", "tidelog reset CONFIG"))):
        findings = preflight(database, slot="nobody", needs_slot=needed).check()
        [found] = [each for each in findings if each.name == "slot"]
        assert (found.level, found.fix) == expected


def test_slot_of_another_program_is_left_alone(
    sql: psycopg.Connection[Any], database: str, postgres: PostgresServer
) -> None:
    elsewhere = postgres.create_database("elsewhere")
    made = {
        "physical": "SELECT pg_create_physical_replication_slot('theirs')",
        "two-phase": "SELECT pg_create_logical_replication_slot('theirs', 'pgoutput', false, true)",
        "another database": "SELECT pg_create_logical_replication_slot('theirs', 'pgoutput')",
    }
    for kind, statement in made.items():
        with psycopg.connect(elsewhere if kind == "another database" else database) as there:
            there.execute(statement.encode())
        try:
            findings = preflight(database, slot="theirs").check()
        finally:
            with psycopg.connect(elsewhere if kind == "another database" else database) as there:
                there.execute("SELECT pg_drop_replication_slot('theirs')")
        found = faults(findings)["slot"]
        assert (found.level, found.fix) == ("error", "name another one in source.slot"), kind
        assert "pg_drop_replication_slot" not in "\n".join(fix_script(findings)), kind
    postgres.drop_database("elsewhere")


def test_what_a_person_should_weigh_is_a_comment_of_the_script(
    sql: psycopg.Connection[Any], database: str
) -> None:
    sql.execute("CREATE UNLOGGED TABLE fast (id int PRIMARY KEY)")
    lines = list(fix_script(preflight(database, slot="nobody").check()))
    assert '--   ALTER TABLE "public"."fast" SET LOGGED;' in lines
    assert any(line.startswith("--   ALTER SYSTEM SET max_slot_wal_keep_size") for line in lines)
    assert all(line.startswith("--") or not line for line in lines)


def test_columns_that_are_names_of_other_objects_are_named(
    sql: psycopg.Connection[Any], database: str
) -> None:
    """When such an object is renamed, nothing tells of the rows that were read before."""
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, of regclass, n int, by regrole[], a aclitem)")
    sql.execute("CREATE TABLE plain (id int PRIMARY KEY, registry text)")
    found = [f for f in preflight(database).check() if "names of other objects" in f.message]
    assert [(f.name, f.level) for f in found] == [("table public.t", "warning")]
    assert found[0].message.startswith("values of of, by, a are names")


def test_superuser_that_reads_tables_of_others_is_warned(postgres: PostgresServer) -> None:
    """What it is warned of is PostgreSQL's own way: the planner runs the index's function."""
    dsn = postgres.create_database("others")
    postgres.execute("CREATE ROLE others_app LOGIN", "others")
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute("CREATE TABLE ours (id int PRIMARY KEY)")
        assert "role" not in faults(preflight(dsn).check())
        sql.execute("CREATE SCHEMA app AUTHORIZATION others_app; SET ROLE others_app")
        sql.execute("CREATE TABLE app.t (id int PRIMARY KEY)")
        sql.execute(
            "CREATE FUNCTION app.f(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN "
            "IF current_user <> 'others_app' THEN RAISE 'ran as %', current_user; END IF; "
            "RETURN 1; END $$; CREATE INDEX ON app.t (app.f(1))"
        )
    with psycopg.connect(dsn) as sql, pytest.raises(psycopg.Error, match="ran as"):
        sql.execute("SELECT id FROM app.t WHERE id > 0")
    found = faults(preflight(dsn).check())["role"]
    postgres.drop_database("others")
    postgres.execute("DROP ROLE others_app")
    assert (found.level, "others_app" in found.message) == ("warning", True)


def test_role_without_rights_is_shown_each_grant(postgres: PostgresServer) -> None:
    postgres.create_database("rights")
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", "rights")
    postgres.execute("CREATE ROLE poor LOGIN")
    found = faults(preflight(postgres.dsn("rights", user="poor")).check())
    postgres.drop_database("rights")
    postgres.execute("DROP ROLE poor")
    assert found["replication"].fix == 'ALTER ROLE "poor" REPLICATION;'
    assert found["watermark table"].fix == (
        'CREATE SCHEMA "tidelog";\nGRANT CREATE, USAGE ON SCHEMA "tidelog" TO "poor";'
    )
    assert found["table public.t"].level == "error"


def test_partitions_are_to_be_readable_where_a_table_without_a_key_is_read_by_them(
    postgres: PostgresServer,
) -> None:
    postgres.create_database("rights")
    parted = "PARTITION BY LIST (v); CREATE TABLE {0}_1 PARTITION OF {0} DEFAULT"
    postgres.execute(f"CREATE TABLE keyless (v int) {parted.format('keyless')}", "rights")
    postgres.execute(f"CREATE TABLE named (v int) {parted.format('named')}", "rights")
    postgres.execute(f"CREATE TABLE t (v int PRIMARY KEY) {parted.format('t')}", "rights")
    postgres.execute("CREATE ROLE poor LOGIN")
    checks = preflight(postgres.dsn("rights", user="poor"), keys={"public.named": ["v"]})
    found = faults(checks.check())
    assert found["rights"].message == (
        "4 tables can't be read, so they can't be dumped: public.keyless, public.keyless_1, "
        "public.named and 1 more"
    )
    postgres.execute(found["rights"].fix, "rights")
    assert "rights" not in faults(checks.check())
    postgres.execute("REVOKE SELECT ON keyless_1 FROM poor", "rights")
    fix = 'GRANT SELECT ON "public"."keyless_1" TO "poor";'
    assert faults(checks.check())["table public.keyless_1"].fix == fix
    postgres.drop_database("rights")
    postgres.execute("DROP ROLE poor")


def test_rights_to_columns_are_not_enough_and_check_says_why(postgres: PostgresServer) -> None:
    """What it says is PostgreSQL's way."""
    postgres.create_database("rights")
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, secret text)", "rights")
    postgres.execute("CREATE ROLE poor LOGIN; GRANT SELECT (id) ON t TO poor", "rights")
    dsn = postgres.dsn("rights", user="poor")
    found = faults(preflight(dsn, exclude_columns=["public.t.secret"]).check())["table public.t"]
    with psycopg.connect(dsn) as poor:
        poor.execute("SELECT id FROM t")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            poor.execute("LOCK TABLE t IN ACCESS SHARE MODE")
    postgres.drop_database("rights")
    postgres.execute("DROP ROLE poor")
    assert "Rights to single columns are not enough" in found.message
    assert found.fix == 'GRANT SELECT ON "public"."t" TO "poor";'


def test_no_membership_of_a_superuser_is_proposed(postgres: PostgresServer) -> None:
    postgres.create_database("rights")
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", "rights")
    postgres.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY", "rights")
    postgres.execute("CREATE ROLE poor LOGIN")
    dsn = postgres.dsn("rights", user="poor")
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT 't'::regclass::oid::int8").fetchone()
        assert found is not None
        refusal = not_owned(connection, {found[0]: "tidelog"})[found[0]]
    fixes = [each.fix for each in preflight(dsn).check() if "row-level" in each.message]
    postgres.drop_database("rights")
    postgres.execute("DROP ROLE poor")
    assert refusal.remedy == 'ALTER PUBLICATION "tidelog" ADD TABLE "public"."t"; -- as a superuser'
    assert fixes == ['ALTER ROLE "poor" BYPASSRLS;']


def test_row_level_security_that_hides_rows_is_reported_with_what_ends_it(
    postgres: PostgresServer,
) -> None:
    """Each SQL that it prints makes it content."""
    dsn = postgres.create_database("policies")
    postgres.execute("CREATE ROLE keeper LOGIN; CREATE ROLE capturer LOGIN")
    name = "table public.t"
    try:
        with psycopg.connect(dsn, autocommit=True) as sql:
            sql.execute("CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t OWNER TO keeper")
            sql.execute("GRANT SELECT ON t TO capturer")
            sql.execute("GRANT USAGE ON SCHEMA public TO capturer")

            def found() -> Finding | None:
                checked = preflight(postgres.dsn("policies", user="capturer")).check()
                return next(
                    (f for f in checked if f.name == name and "row-level" in f.message), None
                )

            assert found() is None
            sql.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
            sql.execute("CREATE POLICY everything ON t USING (true)")
            before = found()
            assert before is not None
            assert before.level == "error"
            bypass, grant = before.fix.split(" -- or: ")
            sql.execute(bypass)
            assert found() is None
            sql.execute("ALTER ROLE capturer NOBYPASSRLS")
            sql.execute(grant)
            assert found() is None
            sql.execute("ALTER TABLE t FORCE ROW LEVEL SECURITY")
            forced = found()
            assert forced is not None
            sql.execute(forced.fix.split(" -- or, as its owner: ")[1])
            assert found() is None
    finally:
        postgres.drop_database("policies")
        postgres.execute("DROP ROLE keeper; DROP ROLE capturer")


def test_wal_level_and_no_server() -> None:
    with PostgresServer(
        settings={"wal_level": "replica", "max_slot_wal_keep_size": "1GB"}
    ) as server:
        dsn = server.dsn()
        found = faults(preflight(dsn).check())
    assert found["wal_level"].level == "error"
    assert "wal_level = 'logical'" in found["wal_level"].fix
    assert "disk" not in found
    assert [finding.name for finding in preflight(dsn).check()] == ["connection"]


def test_who_is_not_let_in_is_shown_what_lets_them_in() -> None:
    """Each statement is run, as a person completes it; then the connection is accepted."""
    hba = ["local all postgres trust", "host all postgres 127.0.0.1/32 trust"]
    hba.append("host all all 127.0.0.1/32 scram-sha-256")
    with PostgresServer(hba=hba) as server:
        server.create_database("shop")
        server.execute("REVOKE CONNECT ON DATABASE shop FROM PUBLIC")
        server.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int)", "shop")
        url = server.dsn("shop", user="reader", password="s3cret")
        with pytest.raises(OutputRefusedError, match="supplied: put one in the output's url"):
            PostgresSession(server.dsn("shop", user="reader"), "test")

        def fix(**options: Any) -> Finding:
            findings = preflight(url, tables=["public.t"], **options).check()
            assert findings[0].name == "connection"
            return findings[0]

        found = fix()
        assert (found.level, found.by_hand) == ("error", True)
        assert '"u"' not in found.fix
        assert "s3cret" not in found.fix + found.message
        server.execute(found.fix.replace("(...)", "s3cret"), "shop")
        assert fix().level == "ok"
        left = {f.name for f in preflight(url, tables=["public.t"]).check() if f.level == "error"}
        assert left == {"publication"}
        server.execute("REVOKE CONNECT ON DATABASE shop FROM reader; ALTER ROLE reader NOLOGIN")
        for statement in (
            'ALTER ROLE "reader" LOGIN;', 'GRANT CONNECT ON DATABASE "shop" TO "reader";'
        ):  # fmt: skip
            assert fix().fix == statement
            assert not fix().by_hand
            server.execute(statement)
        assert fix().level == "ok"


def test_snapshot_strategy_is_shown_what_to_publish(
    sql: psycopg.Connection[Any], database: str
) -> None:
    """The very SQL that it prints makes it content, and nothing was changed before."""
    sql.execute('CREATE TABLE "My Table" (id int PRIMARY KEY)')
    sql.execute("CREATE TABLE nokey (id int)")
    sql.execute("CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY HASH (id)")
    checks = preflight(database, slot="nobody", strategy="snapshot")
    found = faults(checks.check())
    assert "watermark table" not in found
    assert found["publication"].level == "error"
    assert sql.execute("SELECT FROM pg_publication").fetchall() == []
    sql.execute(found["publication"].fix.encode())
    assert "publication" not in faults(checks.check())
    assert sql.execute("SELECT FROM pg_namespace WHERE nspname = 'tidelog'").fetchall() == []


def test_signal_table_must_exist(sql: psycopg.Connection[Any], database: str) -> None:
    checks = preflight(database, slot="nobody", signal_table="public.signals")
    fault = faults(checks.check())["signal table"]
    assert fault.level == "error"
    sql.execute(fault.fix.encode())
    assert "signal table" not in faults(checks.check())


def test_surrogate_key_must_distinguish_rows(sql: psycopg.Connection[Any], database: str) -> None:
    sql.execute("CREATE TABLE t (a int, b int)")
    checks = preflight(database, slot="nobody", keys={"public.t": ["b", "a"]})

    def keys() -> list[tuple[str, str]]:
        return [(f.level, f.fix) for f in checks.check() if "source.keys" in f.message]

    index = 'CREATE UNIQUE INDEX CONCURRENTLY ON "public"."t" ("b", "a") NULLS NOT DISTINCT;'
    assert keys() == [("error", index)]
    sql.execute("CREATE UNIQUE INDEX plain ON t (a, b)")
    ((level, fix),) = keys()
    assert level == "warning"
    sql.execute(fix.encode())
    assert keys() == []
    sql.execute("DROP INDEX t_b_a_idx")
    sql.execute("ALTER TABLE t ALTER a SET NOT NULL, ALTER b SET NOT NULL")
    assert keys() == []
    sql.execute("DROP TABLE t")
    sql.execute("CREATE TABLE t (a int NOT NULL, b int NOT NULL) PARTITION BY HASH (a)")
    ((_, fix),) = keys()
    sql.execute(fix.encode())
    assert keys() == []
