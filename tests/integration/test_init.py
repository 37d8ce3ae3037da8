"""`tidelog init`: the file it writes is checked and captures, as it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psycopg
import pytest
from psycopg import sql as names

from tidelog.app.first_config import PASSWORD, first_config
from tidelog.config import load_config
from tidelog.config.loading import ConfigError
from tidelog.demo.servers.mysql import MySqlFamilyServer
from tidelog.errors import UsageError

pytestmark = pytest.mark.integration


@pytest.fixture
def shop(database: str) -> str:
    """A database with four tables in three schemas."""
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
        for schema in ("Sales 2024", "odd*[x].y"):
            name = names.Identifier(schema)
            sql.execute(names.SQL("CREATE SCHEMA {}").format(name))
            sql.execute(names.SQL("CREATE TABLE {}.t (id int PRIMARY KEY)").format(name))
    return database


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from tidelog.cli import main; main()"]
    return subprocess.run(
        [*program, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_file_holds_no_password_and_captures_all_tables(
    shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = urlsplit(shop)
    host = parts.netloc.rpartition("@")[2]
    url = parts._replace(netloc=f"postgres:s3cret%2F@{host}").geturl()
    file = tmp_path / "tidelog.yaml"
    done = run("init", str(file), "--url", url)
    assert done.returncode == 0, done.stderr
    assert "4 tables" in done.stdout
    assert f"export {PASSWORD}=" in done.stdout
    written = file.read_text()
    assert "s3cret" not in written + done.stdout + done.stderr
    schema = written.splitlines()[0].partition("$schema=file://")[2]
    assert json.loads(Path(unquote(schema)).read_text())["title"] == "Config"
    with pytest.raises(ConfigError, match=PASSWORD):
        load_config(file, {})
    monkeypatch.setenv(PASSWORD, "s3cret/")
    checked = run("check", str(file), "--json")
    found = {each["check"]: each for each in json.loads(checked.stdout)["findings"]}
    assert json.loads(checked.stdout)["ok"], found
    assert "4 tables" in found["tables"]["message"]


def test_an_existing_file_is_left_alone(database: str, tmp_path: Path) -> None:
    file = tmp_path / "tidelog.yaml"
    file.write_text("mine")
    done = run("init", str(file), "--url", database)
    assert (done.returncode, file.read_text()) == (2, "mine")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("oracle://x", "expected postgresql://"),
        ("postgresql://nobody:hunter2@127.0.0.1:1/x", "nothing answers there"),
        ("nonsense", "expected postgresql://"),
        ("postgresql://u@127.0.0.1:1/x?password=hunter2", "before the @"),
        ("postgresql:///x?host=127.0.0.1&user=u&password=hunter2", "before the @"),
        ("postgresql://u@127.0.0.1:1/x?sslmode=require&SSLPASSWORD=hunter2", "before the @"),
    ],
)
def test_a_url_that_does_not_serve_writes_nothing(url: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "tidelog.yaml"
    done = run("init", str(file), "--url", url)
    assert done.returncode != 0
    assert words in done.stderr
    assert "hunter2" not in done.stderr
    assert not file.exists()


def test_without_a_terminal_the_url_is_asked_for_by_name(tmp_path: Path) -> None:
    done = run("init", str(tmp_path / "t.yaml"))
    assert done.returncode == 2
    assert "--url is missing" in done.stderr


def test_mysql_and_mariadb_are_captured_by_database(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    mysql_family.execute("CREATE TABLE t (id int PRIMARY KEY)", mysql_family_database)
    found = first_config(mysql_family.dsn(mysql_family_database))
    assert found.schemas == {mysql_family_database: 1}
    assert f'tables: ["{mysql_family_database}.*"]' in found.text


def test_an_empty_database_is_not_taken_for_all_of_the_server(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    found = first_config(mysql_family.dsn(mysql_family_database))
    assert found.schemas == {}
    assert f'tables: ["{mysql_family_database}.*"]' in found.text


def test_no_kind_is_guessed() -> None:
    with pytest.raises(UsageError):
        first_config("sqlite:///x")
