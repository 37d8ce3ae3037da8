"""`check` names what is wrong, with the SQL that mends it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tidelog.sources.postgres.preflight import Finding, Preflight
from tidelog.testing.postgres import PostgresServer

pytestmark = pytest.mark.integration


def faults(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings if finding.level != "ok"}


@pytest.mark.parametrize("version", [16, 18])
def test_sound_source_has_no_failure(version: int, request: pytest.FixtureRequest) -> None:
    server: PostgresServer = request.getfixturevalue(f"postgres{version}")
    dsn = server.create_database("sound")
    server.execute("CREATE TABLE t (id int PRIMARY KEY)", "sound")
    findings = Preflight(dsn).check()
    server.drop_database("sound")
    assert [finding for finding in findings if finding.level == "fail"] == []
    assert set(faults(findings)) == {"disk", "decoding memory"}


def test_tables_that_need_care_are_named_with_sql(
    sql: psycopg.Connection[Any], database: str
) -> None:
    sql.execute('CREATE TABLE "No Key" (v text)')
    sql.execute("CREATE UNLOGGED TABLE fast (id int PRIMARY KEY)")
    sql.execute("CREATE PUBLICATION tidelog FOR ALL TABLES")
    found = Preflight(database, slot="nobody").check()
    messages = [(f.name, f.level, f.fix) for f in found if f.level != "ok"]
    assert ("table public.No Key", "warn",
            'ALTER TABLE "public"."No Key" REPLICA IDENTITY FULL; -- or give it a primary key'
            ) in messages  # fmt: skip
    assert ("table public.fast", "warn", 'ALTER TABLE "public"."fast" SET LOGGED;') in messages
    assert ("publication", "fail",
            'ALTER PUBLICATION "tidelog" SET (publish_via_partition_root = true);'
            ) in messages  # fmt: skip


def test_role_without_rights_is_told_each_grant(postgres: PostgresServer) -> None:
    postgres.create_database("rights")
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", "rights")
    postgres.execute("CREATE ROLE poor LOGIN")
    found = faults(Preflight(postgres.dsn("rights", user="poor")).check())
    postgres.drop_database("rights")
    postgres.execute("DROP ROLE poor")
    assert found["replication"].fix == 'ALTER ROLE "poor" REPLICATION;'
    assert found["watermark table"].fix == 'GRANT CREATE ON DATABASE "rights" TO "poor";'
    assert found["table public.t"].level == "fail"


def test_wal_level_and_no_server() -> None:
    with PostgresServer(
        settings={"wal_level": "replica", "max_slot_wal_keep_size": "1GB"}
    ) as server:
        dsn = server.dsn()
        found = faults(Preflight(dsn).check())
    assert found["wal_level"].level == "fail"
    assert "wal_level = 'logical'" in found["wal_level"].fix
    assert "disk" not in found
    assert [finding.name for finding in Preflight(dsn).check()] == ["connection"]
