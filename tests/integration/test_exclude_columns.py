"""`source.exclude_columns`: the values are nowhere in what Tidelog writes (invariant 10)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.support.mysql import MariaDbServer, MySqlFamilyServer, MySqlServer
from tests.support.postgres import PostgresServer

from tidelog import Capture
from tidelog.cli import main
from tidelog.config import parse_config

pytestmark = pytest.mark.integration

SECRET = "hunter2-is-secret"
LONG = f"{SECRET}-{'x' * 200}"
LAST = "the last change"
UNAVAILABLE = "__debezium_unavailable_value"


@dataclass
class Source:
    """A database with the tables ``users``, ``full_rows`` and ``keyless``, and its CLI."""

    kind: str
    url: str
    namespace: str
    directory: Path
    execute: Callable[[str], Any]
    capsys: pytest.CaptureFixture[str]
    excluded: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    running: Capture | None = None

    @property
    def config(self) -> str:
        source = {
            "kind": self.kind,
            "url": self.url,
            "tables": [f"{self.namespace}.*"],
            "exclude_columns": self.excluded,
            **self.options,
        }
        return (
            f"source: {json.dumps(source)}\nlog: {{path: log}}\n"
            "state: {url: 'sqlite:///state.db'}\ncapture: {flush_ms: 10}\n"
        )

    def __call__(self, *arguments: str, code: int = 0) -> str:
        path = self.directory / "tidelog.yaml"
        path.write_text(self.config, encoding="utf-8")
        with pytest.raises(SystemExit) as ended:
            main([arguments[0], str(path), *arguments[1:]])
        out, err = self.capsys.readouterr()
        assert (ended.value.code or 0) == code, (arguments, out, err)
        return out + err

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("status", "--json"))
        return found

    def events(self, table: str) -> list[dict[str, Any]]:
        """All events of the table; none before the log has one."""
        if f"{self.namespace}.{table}" not in self.status().get("activity", {}):
            return []
        told = self("log", "--table", f"{self.namespace}.{table}")
        return [json.loads(line) for line in told.splitlines()]

    @contextmanager
    def capture(self) -> Iterator[None]:
        """A capture inside the test."""
        config = parse_config(self.config, "tidelog.yaml", self.directory, {})
        with Capture(config) as self.running:
            yield

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert self.running is not None
            self.running.wait(0.2)  # raises what ended it
            assert time.monotonic() < deadline

    def wait_for(self, table: str, name: str) -> None:
        """Wait until the log has a row of this name."""
        self.wait(lambda: any((e["after"] or {}).get("name") == name for e in self.events(table)))

    def written(self) -> bytes:
        """All bytes of the log and the state, and all payloads without compression."""
        found = []
        for path in self.directory.rglob("*"):
            if path.is_file() and path.name != "tidelog.yaml":
                found.append(path.read_bytes())
            if path.suffix == ".arrow":
                table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
                found += table.column("payload").combine_chunks().to_pylist()
        return b"\n".join(found)


TABLES = (
    "CREATE TABLE users (ssn varchar(255), id int PRIMARY KEY, name text, doc json, note text)",
    "CREATE TABLE full_rows (a text, id int PRIMARY KEY, ssn varchar(255), name text)",
    "CREATE TABLE keyless (name text, ssn text)",
)
ROWS = (
    "INSERT INTO users VALUES ('{long}', {n}1, 'one', '{{\"s\": \"{secret}\"}}', 'n')",
    "INSERT INTO users VALUES (NULL, {n}2, 'two', NULL, '{note}')",
    "INSERT INTO users VALUES ('{secret}', {n}3, NULL, NULL, 'n')",
    "UPDATE users SET ssn = '{secret}' WHERE id = {n}2",
    "UPDATE users SET name = 'TWO' WHERE id = {n}2",
    "UPDATE users SET id = {n}4 WHERE id = {n}1",
    'UPDATE users SET ssn = NULL, doc = \'{{"s": "{secret}", "t": "{long}"}}\' WHERE id = {n}3',
    "DELETE FROM users WHERE id = {n}3",
    "INSERT INTO full_rows VALUES ('a', {n}1, '{secret}', 'b'), ('c', {n}2, NULL, 'd')",
    "UPDATE full_rows SET a = 'e' WHERE id = {n}1",
    "UPDATE full_rows SET ssn = '{secret}' WHERE id = {n}2",
    "DELETE FROM full_rows WHERE id = {n}2",
    "INSERT INTO keyless VALUES ('k', '{secret}')",
    "UPDATE keyless SET ssn = '{long}'",
    "DELETE FROM keyless",
)


def create(source: Source) -> None:
    for statement in TABLES:
        source.execute(statement)
    source.excluded = [
        f"{source.namespace}.*.ssn",
        f"{source.namespace}.users.doc",
        f"!{source.namespace}.nothing.ssn",
    ]


def change(source: Source, n: int, last: str) -> None:
    for statement in ROWS:
        source.execute(statement.format(secret=SECRET, long=LONG, n=n, note="m" * 5000))
    source.execute(f"INSERT INTO users VALUES ('{SECRET}', {n}9, '{last}', NULL, 'n')")


@pytest.fixture
def postgres_source(
    postgres: PostgresServer, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Source]:
    with psycopg.connect(database, autocommit=True) as sql:

        def execute(text: str) -> None:
            sql.execute(text.encode())

        source = Source("postgres", database, "public", tmp_path, execute, capsys)
        create(source)
        for table in ("full_rows", "keyless"):
            execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        # Out of line and not compressed, so that updates of other columns leave it out.
        execute("ALTER TABLE users ALTER note SET STORAGE EXTERNAL")
        yield source


def mysql_family_source(
    server: MySqlFamilyServer, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Source:
    def execute(text: str) -> None:
        server.execute(text, database)

    source = Source(server.flavor, server.url, database, tmp_path, execute, capsys)
    source.options = {"watermark_schema": f"marks_{database}"}
    create(source)
    source.excluded[0] = f"{database}.*.SSN"  # these servers ignore the case
    return source


@pytest.fixture
def mysql_source(
    mysql_server: MySqlServer,
    mysql_database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Source:
    return mysql_family_source(mysql_server, mysql_database, tmp_path, capsys)


@pytest.fixture
def mariadb_source(
    mariadb_server: MariaDbServer,
    mariadb_database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Source:
    return mysql_family_source(mariadb_server, mariadb_database, tmp_path, capsys)


@pytest.fixture
def source(request: pytest.FixtureRequest) -> Source:
    found: Source = request.getfixturevalue(f"{request.param}_source")
    return found


def _given(image: dict[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (image or {}).items() if value != UNAVAILABLE}


def check_capture(source: Source) -> None:
    change(source, 1, "dumped")
    source.execute(f"INSERT INTO keyless VALUES ('dumped', '{SECRET}')")
    checked = source("check")
    assert "not captured, as source.exclude_columns says: ssn, doc" in checked
    assert f"no column of a captured table matches '!{source.namespace}.nothing.ssn'" in checked
    with source.capture():
        source.wait_for("users", "dumped")
        source.wait_for("keyless", "dumped")
        change(source, 2, "before a restart")
        source.wait_for("users", "before a restart")
    change(source, 3, "while down")
    with source.capture():
        change(source, 4, LAST)
        source.wait_for("users", LAST)
        # The server evaluates a condition, so it may use an excluded column.
        where = ("--where", "ssn IS NOT NULL", "--wait", "--json")
        told = source("dump", "--table", f"{source.namespace}.full_rows", *where)
        assert json.loads(told.splitlines()[-1])["tables"][0]["rows_read"] == 4
        state = source.status()
        shown = source("status")
    assert state["excluded_columns"][f"{source.namespace}.users"] == ["ssn", "doc"]
    assert f"excluded columns: {source.namespace}.full_rows (ssn)" in shown

    written = source.written()
    assert SECRET.encode() not in written
    assert LAST.encode() in written
    rows = [e for table in ("users", "full_rows", "keyless") for e in source.events(table)]
    assert {e["op"] for e in rows} >= {"c", "u", "d", "r"}
    images = [image for e in rows for image in (e["before"], e["after"]) if image]
    assert all({"ssn", "doc"}.isdisjoint(image) for image in images)

    folded: dict[int, dict[str, Any]] = {}
    for event in source.events("users"):
        old, new = _given(event["before"]), _given(event["after"])
        key = old.get("id", new.get("id"))
        last = folded.pop(key, {}) if event["op"] in ("u", "d") else {}
        if event["op"] != "d":
            folded[new.get("id", key)] = {**last, **new}
    kept = sorted((row["id"], row["name"], len(row["note"])) for row in folded.values())
    assert kept == sorted(
        row
        for n, last in ((1, "dumped"), (2, "before a restart"), (3, "while down"), (4, LAST))
        for row in ((n * 10 + 2, "TWO", 5000), (n * 10 + 4, "one", 1), (n * 10 + 9, last, 1))
    )


def test_values_of_postgresql_reach_nothing(postgres_source: Source) -> None:
    check_capture(postgres_source)


@pytest.mark.parametrize(
    ("source", "image"),
    [
        ("mysql", "MINIMAL"),
        ("mariadb", "FULL"),
        pytest.param("mysql", "FULL", marks=pytest.mark.thorough),
        pytest.param("mariadb", "MINIMAL", marks=pytest.mark.thorough),
    ],
    indirect=["source"],
)
def test_values_of_mysql_and_mariadb_reach_nothing(source: Source, image: str) -> None:
    partial = source.kind == "mysql" and image == "MINIMAL"
    source.execute(f"SET GLOBAL binlog_row_image = {image}")
    if partial:
        source.execute("SET GLOBAL binlog_row_value_options = PARTIAL_JSON")
    try:
        check_capture(source)
    finally:
        source.execute("SET GLOBAL binlog_row_image = FULL")
        if partial:
            source.execute("SET GLOBAL binlog_row_value_options = ''")


@pytest.mark.parametrize(
    "source", ["postgres", pytest.param("mysql", marks=pytest.mark.thorough)], indirect=True
)
def test_a_column_of_the_key_is_refused_and_one_that_becomes_one_costs_only_its_table(
    source: Source,
) -> None:
    right, name = list(source.excluded), source.namespace
    source.excluded.append(f"{name}.users.i*")
    told = source("check", code=2)
    assert "source.exclude_columns excludes id, by which its rows are matched" in told
    assert f"add '!{name}.users' to source.tables" in told
    assert f"{name}.users: source.exclude_columns excludes id, by" in source("capture", code=2)

    source.excluded = right
    with source.capture():
        source.execute("INSERT INTO users (id, name, note, ssn) VALUES (1, 'a', 'n', 's')")
        source.wait_for("users", "a")
        key = "CONSTRAINT users_pkey" if source.kind == "postgres" else "PRIMARY KEY"
        source.execute(f"ALTER TABLE users DROP {key}, ADD PRIMARY KEY (ssn)")
        source.execute(f"INSERT INTO users (id, name, note, ssn) VALUES (2, 'b', 'n', '{SECRET}')")
        source.execute("INSERT INTO full_rows VALUES ('a', 1, 's', 'other tables go on')")
        source.wait_for("full_rows", "other tables go on")
        source.wait(lambda: bool(source.status().get("refused")))
    with source.capture():  # it starts, too
        source.execute("INSERT INTO full_rows VALUES ('a', 2, 's', 'and also then')")
        source.wait_for("full_rows", "and also then")
        (refused,) = source.status()["refused"]
        assert refused["table"] == f"{name}.users"
        assert "source.exclude_columns excludes ssn, by which" in refused["reason"]
    assert SECRET.encode() not in source.written()


@pytest.mark.parametrize(
    "source", ["postgres", pytest.param("mysql", marks=pytest.mark.thorough)], indirect=True
)
def test_a_misspelled_column_is_an_error_where_its_table_was_not_captured_before(
    source: Source,
) -> None:
    named = f"{source.namespace}.users.docc"
    said = f"source.exclude_columns: '{named}': the table has no such column; did you mean doc?"
    source.excluded.append(named)
    assert f"✗ columns: {said}" in source("check", code=2)
    assert f"-- {said}: " in source("check", "--sql", code=2)
    assert said in source("capture", code=2)
    source.excluded[-1] = f"{named}*"  # may be for columns to come
    assert f"no column of a captured table matches '{named}*'" in source("check")
    with source.capture():
        source.execute("INSERT INTO users (id, name) VALUES (1, 'a')")
        source.wait_for("users", "a")
    source.excluded[-1] = named  # a column is about to be renamed
    with source.capture():
        source.execute("INSERT INTO users (id, name) VALUES (2, 'b')")
        source.wait_for("users", "b")


@pytest.mark.parametrize(
    "source", ["mysql", pytest.param("mariadb", marks=pytest.mark.thorough)], indirect=True
)
def test_rights_to_the_captured_columns_are_enough(
    source: Source, request: pytest.FixtureRequest
) -> None:
    """With one that shows the others. PostgreSQL's LOCK TABLE asks for the whole table."""
    server = request.getfixturevalue(f"{source.kind}_server")
    name = source.namespace
    source.excluded = [f"{name}.*.ssn"]
    source.options |= {"tables": [f"{name}.full_rows"], "watermarks": "gtid"}
    source.execute("CREATE USER 'few'@'%' IDENTIFIED BY 'few'")
    try:
        source.execute("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'few'@'%'")
        source.execute("GRANT SELECT (a, id, name) ON full_rows TO 'few'@'%'")
        source.url = server.dsn(user="few", password="few")
        refused = source("check", code=2)
        assert "the account has rights to single columns of it" in refused
        source.execute(f"GRANT REFERENCES ON `{name}`.`full_rows` TO 'few'@'%'")
        source("check")
        source.execute(f"INSERT INTO full_rows VALUES ('a', 1, '{SECRET}', 'dumped')")
        with source.capture():
            source.wait_for("full_rows", "dumped")
            source.execute(f"INSERT INTO full_rows VALUES ('a', 2, '{SECRET}', 'logged')")
            source.wait_for("full_rows", "logged")
        assert SECRET.encode() not in source.written()
        source.excluded = []
        assert "denied" in source("check", code=2)
    finally:
        source.execute("DROP USER 'few'@'%'")


@pytest.mark.parametrize(
    "source", ["postgres", pytest.param("mariadb", marks=pytest.mark.thorough)], indirect=True
)
def test_a_column_that_is_no_longer_excluded_is_read_with_its_table(source: Source) -> None:
    source.execute("INSERT INTO full_rows VALUES ('a', 1, 'one-secret', 'n')")
    with source.capture():
        source.wait_for("full_rows", "n")
    assert b"one-secret" not in source.written()
    excluded = source.excluded

    def is_read(value: str) -> bool:
        return any((e["after"] or {}).get("ssn") == value for e in source.events("full_rows"))

    source.excluded = [excluded[1]]
    with source.capture():
        source.wait(lambda: is_read("one-secret"))
    assert [e["after"].get("ssn") for e in source.events("full_rows")] == [None, "one-secret"]
    source.excluded = excluded  # again: the table's schemas are known by now
    with source.capture():
        source.execute("INSERT INTO full_rows VALUES ('b', 2, 'two-secret', 'while excluded')")
        source.wait_for("full_rows", "while excluded")
        assert source.status()["excluded_columns"][f"{source.namespace}.full_rows"] == ["ssn"]
    assert b"two-secret" not in source.written()
    source.excluded = [excluded[1]]
    with source.capture():
        source.wait(lambda: is_read("two-secret"))
