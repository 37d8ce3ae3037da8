"""docs/sources/mysql.md, mariadb.md and the page about replicas, step by step on real servers."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.logged_rows import logged_rows
from tests.support.mysql import MariaDbServer, MySqlFamilyServer, MySqlServer
from tools import type_tables

from tidelog import app
from tidelog.app.sources.preflight import check
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.config import Config, parse_config
from tidelog.model.schema import TableName
from tidelog.sources.mysql.catalogue.schemas import MySqlSchemaFinder
from tidelog.sources.mysql.connect import connect

pytestmark = pytest.mark.integration

DOCS = Path(__file__).parents[3] / "docs"
SHARED = DOCS / "sources" / "mysql.md"
REPLICA = DOCS / "how-to" / "capture-from-a-replica.md"
PASSWORD = "a password"
SERVERS = {"mysql": MySqlServer, "mariadb": MariaDbServer}
# Of MySQL 9 and MariaDB 11.7 on: no server of these is to be had.
NEWER = {"vector(3)"}


def section(page: Path, heading: str) -> str:
    text = page.read_text(encoding="utf-8")
    return re.split(r"\n## ", text[text.index(f"\n## {heading}\n") + 4 :])[0]


def blocks(text: str, language: str) -> list[str]:
    """The blocks of a page; its reader puts a password in place of (...)."""
    found = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return [block.replace("(...)", f"'{PASSWORD}'") for block in found]


def settings(ini: str) -> dict[str, str]:
    found = re.findall(r"^(\w+) = (\S+)$", ini, re.MULTILINE)
    assert found
    return dict(found)


def run(server: MySqlFamilyServer, *scripts: str) -> None:
    for script in scripts:
        for statement in re.sub(r"--.*", "", script).split(";"):
            if statement.strip():
                server.execute(statement)


def configured(server: MySqlFamilyServer, yaml: str, directory: Path) -> Config:
    """The page's configuration, for this server."""
    url = server.dsn(user="tidelog", password=PASSWORD)
    text = re.sub(r'url: "[^"]*"', f'url: "{url}"', yaml)
    text = re.sub(r"ssl_ca: \S+", f"ssl_ca: {server.ca_file}", text)
    return parse_config(text, "page", directory, {})


def create_shop(server: MySqlFamilyServer) -> None:
    server.create_database("shop")
    server.execute("CREATE TABLE shop.orders (id int PRIMARY KEY, n int)")
    server.execute("INSERT INTO shop.orders VALUES " + ",".join(f"({i}, 0)" for i in range(100)))


@contextmanager
def capturing(config: Config) -> Iterator[list[BaseException]]:
    stop = threading.Event()
    failures: list[BaseException] = []

    def capture() -> None:
        try:
            app.run_capture(config, stop_event=stop)
        except BaseException as failure:  # noqa: BLE001 - asserted by the caller
            failures.append(failure)

    thread = threading.Thread(target=capture)
    thread.start()
    try:
        yield failures
    finally:
        stop.set()
        thread.join(30)


def rows(config: Config) -> int:
    return logged_rows(config, "shop.orders")


def wait_for_rows(config: Config, count: int, failures: list[BaseException]) -> None:
    done = threading.Event()
    for _ in range(300):
        if rows(config) >= count or failures:
            break
        done.wait(0.1)
    assert not failures, failures
    assert rows(config) >= count


def assert_sound(config: Config) -> None:
    findings: list[dict[str, Any]] = [each.to_dict() for each in check(config)]
    assert [f for f in findings if f["level"] != "ok" and f["check"] != "clock"] == []


def assert_captures(config: Config, primary: MySqlFamilyServer) -> None:
    with capturing(config) as failures:
        wait_for_rows(config, 100, failures)
        primary.execute("INSERT INTO shop.orders VALUES (100, 1)")
        wait_for_rows(config, 101, failures)


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_page_leads_to_a_capture(kind: str, tmp_path: Path) -> None:
    page = DOCS / "sources" / f"{kind}.md"
    set_up = section(page, "Set up the server")
    (ini,) = blocks(set_up, "ini")
    account, *others = blocks(section(page, "An account with just what is needed"), "sql")
    (yaml,) = blocks(section(page, "TLS"), "yaml")
    with SERVERS[kind](settings=settings(ini)) as server:
        create_shop(server)
        run(server, *blocks(set_up, "sql"), account)
        if others and server.offers("ed25519"):  # "where the server has that plugin"
            server.execute("INSTALL SONAME 'auth_ed25519'")
            run(server, *others)
        config = configured(server, yaml, tmp_path)
        assert_sound(config)
        assert_captures(config, server)
        for both in ("Configure", "When something fails"):
            run(server, *blocks(section(SHARED, both), "sql"))
        run(server, *blocks(section(page, "When something fails"), "sql"))
        assert server.execute("SHOW DATABASES LIKE 'tidelog'") == []


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_page_about_replicas_leads_to_a_capture(kind: str, tmp_path: Path) -> None:
    text = REPLICA.read_text(encoding="utf-8")
    ini = blocks(text, "ini")[0 if kind == "mysql" else 1]
    account = blocks(
        section(DOCS / "sources" / f"{kind}.md", "An account with just what is needed"), "sql"
    )[0]
    account = "\n".join(line for line in account.splitlines() if "`tidelog`" not in line)
    (yaml,) = blocks(text, "yaml")
    with SERVERS[kind]() as primary, SERVERS[kind].replica_of(primary, settings(ini)) as replica:
        create_shop(primary)
        run(primary, account)
        replica.wait_for(primary.gtid_position())
        yaml = yaml.replace("kind: mysql", f"kind: {kind}")
        config = configured(replica, yaml, tmp_path)
        assert_sound(config)
        assert_captures(config, primary)
        refused = [
            each.to_dict()
            for each in check(configured(replica, yaml.replace("gtid", "table"), tmp_path))
        ]
        assert [f["check"] for f in refused if f["level"] == "error"] == [
            "read only", "watermark table",
        ]  # fmt: skip


def test_account_of_the_replica_page_needs_no_watermark_table() -> None:
    for kind in SERVERS:
        account = blocks(
            section(DOCS / "sources" / f"{kind}.md", "An account with just what is needed"), "sql"
        )[0]
        assert account.count("`tidelog`") == 1


def test_types_of_the_page_are_what_the_catalogue_becomes(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    flavor = Flavor(mysql_family.flavor)
    table = TableName(mysql_family_database, "t")
    finder = MySqlSchemaFinder()
    with connect(mysql_family.url, purpose="test") as connection:
        for row in type_tables.rows_of(flavor):
            for name in set(row.types) - NEWER:
                mysql_family.execute(f"CREATE TABLE t (c {name})", table.namespace)
                found = finder.find(connection, table)
                assert found is not None
                logical = found.schema.columns[0].logical
                assert logical == type_tables.logical(name, flavor), name
                mysql_family.execute("DROP TABLE t", table.namespace)


def test_settings_of_managed_servers_exist(mysql_server: MySqlServer) -> None:
    page = section(SHARED, "Set up the server")
    named = {
        name.replace("-", "_")
        for block in blocks(page, "ini")
        for name in re.findall(r"^([\w-]+) = ", block, re.MULTILINE)
    }
    assert len(named) >= 6
    known = {row[0] for row in mysql_server.execute("SHOW GLOBAL VARIABLES")}
    assert named - known == set()
