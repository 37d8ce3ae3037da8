"""`tidelog init`: the file it writes is checked and captures, as it says."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import psycopg
import pytest
from psycopg import sql as names
from tests.support.mysql import MySqlFamilyServer

from tidelog.app.sources.first_config import PASSWORD, default_patterns, find_tables, read_source
from tidelog.config import load_config
from tidelog.config.loading import ConfigError

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


def test_the_documented_command_writes_what_it_says(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "first-capture.md"
    [line] = re.findall(r"^\$ tidelog (init --url .*)$", page.read_text("utf-8"), re.MULTILINE)
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute("CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE audit (what text)")
    parts, lake = urlsplit(database), tmp_path / "lake"
    place = f"{parts.netloc.rpartition('@')[2]}{parts.path}"
    for documented, here in (
        ("tidelog:", "postgres:"),
        ("db:5432/shop", place),
        ("/srv", tmp_path),
    ):
        assert documented in line
        line = line.replace(documented, str(here))
    monkeypatch.setenv("PGPASSWORD", "any")
    monkeypatch.chdir(tmp_path)
    done = run(*shlex.split(line))
    assert done.returncode == 0, done.stdout + done.stderr
    config = load_config(tmp_path / "tidelog.yaml", {"PGPASSWORD": "any"})
    assert config.source.tables == ["public.*", "!public.audit"]
    assert [(each.kind, str(getattr(each, "path", ""))) for each in config.outputs] == [
        ("delta", str(lake))
    ]


def test_an_existing_file_is_left_alone(database: str, tmp_path: Path) -> None:
    file = tmp_path / "tidelog.yaml"
    file.write_text("mine")
    done = run("init", str(file), "--url", database)
    assert (done.returncode, file.read_text()) == (2, "mine")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("oracle://x", "expected postgresql://"),
        ("nonsense", "expected postgresql://"),
        ("postgresql://u@127.0.0.1:1/x?password=hunter2", "before the @"),
        ("postgresql:///x?host=127.0.0.1&user=u&password=hunter2", "before the @"),
        ("postgresql://u@127.0.0.1:1/x?sslmode=require&SSLPASSWORD=hunter2", "before the @"),
    ],
)
def test_a_url_that_can_not_be_used_writes_nothing(url: str, words: str, tmp_path: Path) -> None:
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


def test_a_database_that_does_not_answer_is_no_reason_to_write_nothing(tmp_path: Path) -> None:
    file = tmp_path / "tidelog.yaml"
    url = "postgresql://nobody:hunter2@127.0.0.1:1/x"
    done = run("init", str(file), "--url", url, "--table", "!public.audit")
    assert done.returncode == 2
    assert "nothing answers there" in done.stderr
    assert "correct source.url" in done.stdout
    assert f"tidelog check {file}" in done.stdout
    assert "hunter2" not in done.stdout + done.stderr + file.read_text()
    config = load_config(file, {PASSWORD: "x"})
    assert config.source.tables == ["*.*", "!public.audit"]


def test_a_password_in_the_environment_is_the_missing_one_of_the_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an account that does not exist yet gets a script that grants no database of the server's
    own.
    """
    monkeypatch.setenv(PASSWORD, "s3cret")
    file = tmp_path / "tidelog.yaml"
    done = run("init", str(file), "--url", "mariadb://tidelog@127.0.0.1:1")
    written = file.read_text()
    assert f"mariadb://tidelog:${{{PASSWORD}}}@127.0.0.1:1" in written
    assert f"export {PASSWORD}." in written
    assert f"export {PASSWORD}=" in done.stdout
    assert load_config(file, {PASSWORD: "s3cret"})


def test_options_say_all_and_the_script_says_who_runs_it(shop: str, tmp_path: Path) -> None:
    with psycopg.connect(shop, autocommit=True) as sql:
        sql.execute("DROP ROLE IF EXISTS init_reader")
        sql.execute("CREATE ROLE init_reader LOGIN PASSWORD 'hunter2'")
    parts = urlsplit(shop)
    host = parts.netloc.rpartition("@")[2]
    file = tmp_path / "tidelog.yaml"
    file.write_text("mine")
    done = run(
        *("init", str(file), "--force", "--table", "public.*", "--table", "!public.b"),
        *("--url", parts._replace(netloc=f"init_reader:hunter2@{host}").geturl()),
        *("-o", "files=./files", "-o", f"postgres={parts._replace(path='/postgres').geturl()}"),
    )
    assert done.returncode == 2, done.stderr
    assert "1 table in public" in done.stdout
    script = done.stdout.partition("-- as ")[2]
    assert "ALTER ROLE" in script
    assert "tidelog check" in script
    assert done.stdout.count('CREATE PUBLICATION "tidelog_inserts"') == 1
    assert done.stdout.endswith(f"  tidelog run {file}\n")
    written = load_config(file, {PASSWORD: "hunter2"})
    assert [output.kind for output in written.outputs] == ["files", "postgres"]
    with psycopg.connect(shop, autocommit=True) as sql:
        sql.execute("DROP ROLE init_reader")


ODD = "my.sh'o\"p`s"
"""A name with a dot and each kind of quote."""


def script_of(printed: str) -> list[str]:
    """The lines of SQL that init printed, also those for a person to review."""
    script = re.sub("^--   (?=[A-Z]+ )", "", printed.partition("next:")[0], flags=re.MULTILINE)
    lines = script[re.search("^-- (as|by hand)", script, re.MULTILINE).start() :].splitlines()
    ignored = ("--", "ALTER SYSTEM")  # the second names nothing, and must be alone
    return [
        each.replace("(...)", "hunter2")
        for each in filter(None, lines)
        if not each.startswith(ignored)
    ]


@pytest.mark.parametrize("exists", [False, True], ids=["no role", "a role without rights"])
def test_the_script_for_names_with_dots_and_quotes_runs_as_printed(
    database: str, tmp_path: Path, exists: bool
) -> None:
    role = names.Identifier(ODD)
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute(names.SQL("CREATE SCHEMA {}").format(role))
        for table in ("a.b", "c\"d'e"):
            name = names.Identifier(ODD, table)
            sql.execute(names.SQL("CREATE TABLE {} (id int PRIMARY KEY)").format(name))
        if exists:
            sql.execute(names.SQL("CREATE ROLE {} LOGIN PASSWORD 'hunter2'").format(role))
        parts = urlsplit(database)
        user, place = quote(ODD, safe=""), parts.netloc.rpartition("@")[2]
        url = parts._replace(netloc=f"{user}:hunter2@{place}").geturl()
        file = tmp_path / "tidelog.yaml"
        pattern = '"my.sh\'o""p`s".*'
        try:
            for _ in range(4):
                done = run("init", str(file), "--force", "--url", url, "--table", pattern)
                if not done.returncode:
                    break
                script = script_of(done.stdout)
                assert script, done.stdout + done.stderr
                sql.execute("\n".join(script).encode())
            assert done.returncode == 0, done.stdout + done.stderr
            assert "2 tables" in done.stdout
        finally:
            if sql.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ODD]).fetchone():
                sql.execute(names.SQL("DROP OWNED BY {}; DROP ROLE {}").format(role, role))


def test_the_script_for_a_database_with_a_dot_and_quotes_runs_as_printed(
    mysql_family: MySqlFamilyServer, tmp_path: Path
) -> None:
    """For an account that does not exist, then for one that may not read."""
    database, user = f"`{ODD.replace('`', '``')}`", "o'd\\.o"
    account = r"'o\'d\\.o'@'%'"
    mysql_family.execute(f"CREATE DATABASE {database}")
    try:
        mysql_family.execute(f"CREATE TABLE {database}.`a.b` (id int PRIMARY KEY)")
        parts = urlsplit(mysql_family.dsn(ODD))
        netloc = f"{quote(user)}:hunter2@{parts.netloc.rpartition('@')[2]}"
        url = parts._replace(netloc=netloc, path=f"/{quote(ODD, safe='')}").geturl()
        file = tmp_path / "tidelog.yaml"
        for _ in range(4):
            done = run("init", str(file), "--force", "--url", url)
            if not done.returncode:
                break
            script = script_of(done.stdout)
            assert script, done.stdout + done.stderr
            for statement in script:
                mysql_family.execute(statement.removesuffix(";"))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 table in" in done.stdout
    finally:
        mysql_family.execute(f"DROP DATABASE {database}")
        mysql_family.execute(f"DROP USER IF EXISTS {account}")


class Terminal:
    """A pseudo-terminal with `tidelog init` in it, by a user who answers questions."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        # Python ignores Ctrl-C where its parent does, as a job in a shell's background does.
        heeded = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
        program = [sys.executable, "-c", f"{heeded}; from tidelog.cli import main; main()"]
        self._process = subprocess.Popen(
            [*program, "init", *arguments],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.screen = ""

    def answer(self, question: str, text: str) -> None:
        """Wait for the question, and type a line."""
        seen = len(self.screen)
        while question not in self.screen[seen:]:
            self.screen += self._read()
        os.write(self._ours, f"{text}\n".encode())

    def interrupt(self, question: str, reaction: str) -> None:
        """Wait for the question, and press Ctrl-C until it shows the reaction.

        Python misses one that comes just after it has written the question, until the next key.
        """
        while question not in self.screen:
            self.screen += self._read()
        deadline = time.monotonic() + 60
        while reaction not in self.screen:
            assert time.monotonic() < deadline, self.screen
            self._process.send_signal(signal.SIGINT)
            if select.select([self._ours], [], [], 5)[0]:
                self.screen += self._read()

    def end(self) -> int:
        """Return the exit code."""
        try:
            while True:
                self.screen += self._read()
        except EOFError:
            return self._process.wait(60)
        finally:
            os.close(self._ours)

    def _read(self) -> str:
        if not select.select([self._ours], [], [], 60)[0]:
            self._process.kill()
            raise TimeoutError(self.screen)
        try:
            data = os.read(self._ours, 4096)
        except OSError:  # Linux's way of saying that the other end is closed
            data = b""
        if not data:
            raise EOFError(self.screen)
        return data.decode()


def test_answers_on_a_terminal_lead_to_a_check_that_passes(shop: str, tmp_path: Path) -> None:
    parts = urlsplit(shop)
    host = parts.netloc.rpartition("@")[2]
    file = tmp_path / "tidelog.yaml"
    screen = Terminal(str(file))
    screen.answer("Its URL: ", "oracle://x")
    screen.answer("Its URL: ", parts._replace(netloc=f"postgres@{host}").geturl())
    screen.answer("empty: none): ", "s3cret/")  # what is typed before the last blank is dropped
    screen.answer("excludes [", "public.%")
    screen.answer("excludes [", "public.*, !public.b")
    screen.answer("Output [delta]: ", "")
    screen.answer("Its path [./data/lake]: ", "")
    screen.answer("Another output", "files")
    screen.answer("Its path [./data/activity]: ", "")
    screen.answer("Another output", "")
    assert screen.end() == 0, screen.screen
    assert "Error: expected postgresql://" in screen.screen
    assert "any text is *, not %" in screen.screen
    assert "s3cret" not in screen.screen + file.read_text()
    assert f"export {PASSWORD}=" in screen.screen
    assert "to fix" not in screen.screen
    assert screen.screen.rstrip().endswith(f"tidelog run {file}")
    written = load_config(file, {PASSWORD: "s3cret/"})
    assert written.source.tables == ["public.*", "!public.b"]
    assert [output.kind for output in written.outputs] == ["delta", "files"]


def test_ctrl_c_at_a_question_writes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "tidelog.yaml"
    screen = Terminal(str(file))
    screen.interrupt("Its URL: ", "nothing is written")
    assert screen.end() == 130, screen.screen
    assert not file.exists()


def test_mysql_and_mariadb_are_captured_by_database(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    mysql_family.execute("CREATE TABLE t (id int PRIMARY KEY)", mysql_family_database)
    source = read_source(mysql_family.dsn(mysql_family_database))
    tables = find_tables(source)
    assert list(map(str, tables)) == [f"{mysql_family_database}.t"]
    assert default_patterns(source, tables) == [f"{mysql_family_database}.*"]


def test_an_empty_database_is_not_taken_for_all_of_the_server(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    source = read_source(mysql_family.dsn(mysql_family_database))
    assert find_tables(source) == []
    assert default_patterns(source, []) == [f"{mysql_family_database}.*"]
