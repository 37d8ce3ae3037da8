"""Every statement that `check` prints is run, in order, by the role that it names; then nothing
fails any more, and capture begins.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from tests.integration.postgres.conftest import Capture
from tests.support.postgres import PostgresServer
from tests.support.postgres_parts import preflight

from tidelog.sources.findings import CAPTURE, SUPERUSER, Finding, fix_script

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]

SCHEMA = """
CREATE TABLE plain (id int PRIMARY KEY, v int);
CREATE TABLE "No Key" (v text);
CREATE TABLE nothing (id int PRIMARY KEY, v int);
ALTER TABLE nothing REPLICA IDENTITY NOTHING;
CREATE TABLE late (id int PRIMARY KEY DEFERRABLE, v int);
CREATE TABLE whole (id int PRIMARY KEY, v int, g int GENERATED ALWAYS AS (v * 2) STORED);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE parted (id int PRIMARY KEY, code text NOT NULL) PARTITION BY HASH (id);
CREATE TABLE p0 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE p1 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE UNIQUE INDEX by_code ON p1 (code);
ALTER TABLE p1 REPLICA IDENTITY USING INDEX by_code;
CREATE TABLE audit (event int, v text);
CREATE TABLE log (kind text, v int) PARTITION BY LIST (kind);
CREATE TABLE log_a PARTITION OF log FOR VALUES IN ('a');
CREATE TABLE log_b PARTITION OF log FOR VALUES IN ('b');
INSERT INTO log VALUES ('a', 1), ('b', 1);
INSERT INTO plain VALUES (1, 1);
INSERT INTO "No Key" VALUES ('a');
INSERT INTO nothing VALUES (1, 1);
INSERT INTO late VALUES (1, 1);
INSERT INTO whole VALUES (1, 1);
INSERT INTO parted VALUES (1, 'a'), (2, 'b');
"""
APPLICATION = (
    "UPDATE plain SET v = 1",
    "UPDATE \"No Key\" SET v = 'b'",
    "UPDATE nothing SET v = 2",
    "UPDATE late SET v = 2",
    "UPDATE whole SET v = 2",
    "UPDATE parted SET code = code || 'x'",
    "UPDATE log SET v = 2",
)
PATIENCE_S = 60.0
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Shop:
    """A database whose tables are an application's, on a server that nobody prepared."""

    server: PostgresServer
    name: str

    def dsn(self, role: str) -> str:
        user = role if role == "postgres" else f"{self.name}_{role}"
        return self.server.dsn(self.name, user=user)

    def run(self, role: str, *statements: str) -> None:
        with psycopg.connect(self.dsn(role), autocommit=True) as sql:
            for statement in statements:
                sql.execute(statement.encode())

    def work(self) -> None:
        self.run("app", *APPLICATION)


@pytest.fixture(scope="module", params=[16, 18])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with PostgresServer(request.param) as found:
        yield found


@pytest.fixture
def shop(server: PostgresServer) -> Iterator[Shop]:
    shop = Shop(server, f"shop_{next(_numbers)}")
    server.execute("ALTER SYSTEM RESET ALL")
    server.execute("SELECT pg_reload_conf()")
    server.create_database(shop.name)
    for role in ("capture", "app"):
        server.execute(f"CREATE ROLE {shop.name}_{role} LOGIN")
    server.execute(f"GRANT CREATE ON SCHEMA public TO {shop.name}_app", shop.name)
    shop.run("app", SCHEMA)
    yield shop
    server.drop_database(shop.name)


def statements(finding: Finding) -> list[str]:
    """The SQL of a fix; none of a sentence."""
    text = re.sub(r"-- .*", "", finding.fix)
    return [part.strip() for part in text.split(";")[:-1]]


def applied(shop: Shop, findings: list[Finding]) -> list[str]:
    """Run what was printed; what the application is about must work at any moment. What an ``ok``
    finding offers is not printed: the event trigger has tests of its own.
    """
    done = []
    for finding in findings:
        if finding.level == "ok":
            continue
        role = {SUPERUSER: "postgres", "": "capture"}.get(finding.role)
        role = role or finding.role.removeprefix(f"{shop.name}_")
        for statement in statements(finding):
            shop.run(role, statement)
            shop.work()
            done.append(statement)
    return done


def not_sound(findings: list[Finding]) -> list[Finding]:
    """What is left; a table without any key stays one, and says so, and so does one with columns
    that the server does not log.
    """
    lasting = (
        "no primary key",
        "its primary key is DEFERRABLE",
        "captured and dumped without 1 generated column: g",
    )
    return [
        finding
        for finding in findings
        if finding.level != "ok" and not any(text in finding.message for text in lasting)
    ]


def not_mended(findings: list[Finding]) -> list[Finding]:
    """What is left, and no matter of a person's."""
    return [finding for finding in not_sound(findings) if not finding.by_hand]


PREPARED = {
    "nothing": (),
    # As an administrator makes them who has not read the manual.
    "publications": (
        "CREATE PUBLICATION tidelog FOR TABLE plain (id), parted WITH (publish = 'insert')",
    ),
    "all-tables": (
        'ALTER TABLE "No Key" REPLICA IDENTITY FULL',
        "ALTER TABLE late REPLICA IDENTITY FULL",
        "ALTER TABLE audit REPLICA IDENTITY FULL",
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("log", "log_a", "log_b")),
        "ALTER TABLE whole REPLICA IDENTITY DEFAULT",
        "ALTER TABLE nothing REPLICA IDENTITY DEFAULT",
        "ALTER TABLE p1 REPLICA IDENTITY DEFAULT",
        "CREATE PUBLICATION tidelog FOR ALL TABLES",
    ),
    "schema": (
        'ALTER TABLE "No Key" REPLICA IDENTITY FULL',
        "ALTER TABLE late REPLICA IDENTITY FULL",
        "ALTER TABLE audit REPLICA IDENTITY FULL",
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("log", "log_a", "log_b")),
        "ALTER TABLE whole REPLICA IDENTITY DEFAULT",
        "ALTER TABLE nothing REPLICA IDENTITY DEFAULT",
        "ALTER TABLE p1 REPLICA IDENTITY DEFAULT",
        "CREATE PUBLICATION tidelog FOR TABLES IN SCHEMA public",
    ),
    "keyless": (
        "CREATE PUBLICATION tidelog FOR TABLE audit, plain",
        "COMMENT ON PUBLICATION tidelog IS 'managed by tidelog'",
    ),
}


@pytest.mark.parametrize("prepared", list(PREPARED))
@pytest.mark.parametrize("strategy", ["table", "message", "snapshot"])
def test_what_check_prints_leads_to_a_capture(shop: Shop, strategy: Any, prepared: str) -> None:
    shop.run("postgres", *PREPARED[prepared])
    options: dict[str, Any] = {
        "strategy": strategy,
        "signal_table": "public.signals",
        "keys": {"public.audit": ["event"]},
    }
    capture = Capture(shop.dsn("capture"), tables=["public.*"], options=options)
    checks = preflight(shop.dsn("capture"), slot=capture.slot, tables=["public.*"], **options)
    findings = checks.check()
    assert [finding for finding in findings if finding.level == "error"]
    assert applied(shop, findings)
    deadline = time.monotonic() + PATIENCE_S
    while any(finding.name == "disk" for finding in not_sound(checks.check())):
        assert time.monotonic() < deadline  # the server reads its settings again
    assert not_sound(checks.check()) == []
    capture.start()
    capture.publish()
    shop.work()
    assert not_sound(checks.check()) == []
    with psycopg.connect(shop.dsn("postgres"), autocommit=True) as sql:
        capture.catch_up(sql)
    assert {row.table for row in capture.rows if row.kind == "U"} == {
        "public.plain",
        "public.No Key",
        "public.nothing",
        "public.late",
        "public.whole",
        "public.parted",
        "public.log",
    }
    capture.reader.close()


def run_as_printed(shop: Shop, lines: list[str]) -> list[str]:
    """Each part of the script through psql, by the role that its first line names."""
    parts = "\n".join(lines).split("\n-- as ")[1:]
    for part in parts:
        role, _, text = part.partition(":\n")
        role = {SUPERUSER: "postgres", CAPTURE: "capture"}.get(role, role)
        url = shop.dsn(role.removeprefix(f"{shop.name}_"))
        psql = [str(shop.server.binary("psql")), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url]
        done = subprocess.run(psql, input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        shop.work()
    return [part.partition(":\n")[0] for part in parts]


def test_the_script_runs_as_it_is_printed_and_leads_to_a_green_check(shop: Shop) -> None:
    options: dict[str, Any] = {
        "signal_table": "public.signals",
        "keys": {"public.audit": ["event"]},
    }
    capture = Capture(shop.dsn("capture"), tables=["public.*"], options=options)
    checks = preflight(shop.dsn("capture"), slot=capture.slot, tables=["public.*"], **options)
    lines = list(fix_script(checks.check()))
    assert lines[0].startswith("-- Fixes for what tidelog check found")
    assert set(run_as_printed(shop, lines)) >= {SUPERUSER, f"{shop.name}_app"}
    assert not_mended(checks.check()) == []
    assert {finding.name for finding in not_sound(checks.check())} == {"disk", "decoding memory"}
    again = list(fix_script(checks.check()))
    assert run_as_printed(shop, again) == []
    assert all(line.startswith("--") or not line for line in again)


def test_fresh_database_of_a_superuser_needs_nothing(server: PostgresServer) -> None:
    dsn = server.create_database("fresh")
    server.execute(SCHEMA, "fresh")
    findings = preflight(dsn).check()
    server.drop_database("fresh")
    assert [finding.name for finding in findings if finding.level == "error"] == []
    assert [finding.level for finding in findings if finding.name == "publication"] == ["ok", "ok"]
