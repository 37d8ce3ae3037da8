"""docs/sources/postgresql.md, step by step on real servers."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import psycopg
import pytest
from tests.support.logged_rows import logged_rows
from tests.support.postgres import PostgresServer
from tools import type_tables

from tidelog import app
from tidelog.app.sources.preflight import check
from tidelog.config import parse_config
from tidelog.model.schema import TableName, struct_of
from tidelog.sources.postgres.catalogue.schemas import PostgresSchemaFinder

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).parents[3] / "docs" / "sources" / "postgresql.md").read_text("utf-8")


def section(heading: str) -> str:
    return re.split(r"\n## ", PAGE[PAGE.index(f"\n## {heading}\n") + 4 :])[0]


def blocks(text: str, language: str) -> list[str]:
    """The blocks of a page; its reader puts a password in place of (...)."""
    found = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return [block.replace("(...)", "'a password'") for block in found]


def run(server: PostgresServer, *scripts: str) -> None:
    for script in scripts:
        for statement in script.split(";"):
            if statement.strip():
                server.execute(statement, "shop")


@pytest.mark.parametrize("version", [16, 18])
def test_page_leads_to_a_capture(version: int, tmp_path: Path) -> None:
    role, publications, surrogate = blocks(section("An account with just what is needed"), "sql")
    with PostgresServer(version) as server:
        server.create_database("shop")
        for table in ("orders", "customers"):
            server.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int)", "shop")
        server.execute("CREATE TABLE audit (event_id int)", "shop")
        server.execute("INSERT INTO orders SELECT g, 0 FROM generate_series(1, 100) g", "shop")
        run(server, *blocks(section("Set up the server"), "sql"))
        server.restart()
        server.execute("CREATE ROLE app", "shop")
        server.execute("GRANT CREATE ON SCHEMA public TO app", "shop")
        run(server, role, publications, surrogate)
        server.execute("SET ROLE app; CREATE TABLE later (id int PRIMARY KEY)", "shop")
        readable = "SELECT has_table_privilege('tidelog', 'later', 'SELECT')"
        assert server.execute(readable, "shop") == [(True,)]
        server.execute("DROP TABLE later", "shop")
        run(server, "ALTER PUBLICATION tidelog ADD TABLE audit")
        (yaml,) = blocks(section("Configure"), "yaml")
        url = server.dsn("shop", user="tidelog")
        text = re.sub(r'url: "postgresql://[^"]*"', f'url: "{url}"', yaml)
        text = re.sub(r"path: /var/lib/tidelog/log", "path: ./log", text)
        text = text.replace("sqlite:////var/lib/tidelog/state.db", "sqlite:///state.db")
        text = text.replace("tables:", "snapshot: initial_only\n  tables:").split("outputs:")[0]
        config = parse_config(text, "page", tmp_path, {})
        findings = [each.to_dict() for each in check(config)]
        assert [f for f in findings if f["level"] == "error"] == []
        app.run_capture(config, stop_event=threading.Event())  # initial_only: ends by itself
        assert logged_rows(config, "public.orders") >= 100
        run(server, *blocks(section("Configure"), "sql"))
        assert server.execute("SELECT 1 FROM pg_replication_slots", "shop") == []


def test_types_of_the_pages_are_what_the_catalogue_has(database: str) -> None:
    """Also those that users define, whose structures are read."""
    known = {each.name: each for each in type_tables.POSTGRES}
    place = struct_of([("street", "text"), ("number", "int32")])
    defined = {
        "place": place,
        "place[]": f"array({place})",
        "home": struct_of([("at", place), ("since", "range(timestamp)"), ("tags", "text")]),
        "span": "range(float64)",
        "spans": "multirange(float64)",
        "odd": None,
        "lost": None,
        "lost[]": None,
        "mood": None,
        "mood[]": None,
    }
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute("CREATE TYPE place AS (street text, number integer)")
        sql.execute("CREATE DOMAIN lived AS tsrange")
        sql.execute("CREATE TYPE home AS (at place, since lived, tags text[])")
        sql.execute("CREATE TYPE span AS RANGE (subtype = float8, multirange_type_name = spans)")
        sql.execute('CREATE TYPE odd AS ("a b" text)')
        sql.execute("CREATE TYPE lost AS (a text, b int)")
        sql.execute("ALTER TYPE lost DROP ATTRIBUTE b, ADD ATTRIBUTE c int")
        sql.execute("CREATE TYPE mood AS ENUM ('calm')")
        columns = ", ".join(f'"{name}" {name}' for name in (*known, *defined))
        sql.execute(f"CREATE TABLE t ({columns})")
        found = PostgresSchemaFinder().find(sql, TableName("public", "t"))
    assert found is not None
    structures = dict(found.schema.structures)
    for column in found.schema.columns:
        assert structures.get(column.name) == defined.get(column.name), column.name
        if column.name in known:
            expected = known[column.name]
            assert (column.type_id, column.type_mod, column.type_name, column.logical) == (
                expected.oid,
                expected.mod,
                expected.name,
                expected.schema().columns[0].logical,
            )
