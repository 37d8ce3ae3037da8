"""Foreign keys that change rows without row events: refused, or their tables dumped again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.history_run import CaptureProcess
from tests.integration.mysql.log_capture import LogCapture
from tests.integration.mysql.test_log_reader import run
from tests.support.mysql import MySqlFamilyServer, MySqlServer
from tests.support.oracle.history import SourceHistory
from tests.support.oracle.log import read_event_log

from tidelog import app
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.config import load_config
from tidelog.eventlog.reader import EventLog
from tidelog.model.schema import TableName
from tidelog.sources.findings import Finding
from tidelog.sources.mysql.catalogue.cascades import all_cascades, cascades
from tidelog.sources.mysql.connect import Connection, connect
from tidelog.sources.mysql.preflight.checks import MySqlPreflight

pytestmark = pytest.mark.integration

Make = Callable[..., LogCapture]
Sql = Any

TABLES = (
    "CREATE TABLE parent (id INT PRIMARY KEY, code VARCHAR(9) UNIQUE, v INT)",
    "CREATE TABLE child (id INT PRIMARY KEY, p INT, c VARCHAR(9) UNIQUE, "
    "CONSTRAINT follows FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE, "
    "CONSTRAINT named FOREIGN KEY (c) REFERENCES parent (code) ON UPDATE CASCADE)",
    "CREATE TABLE grandchild (id INT PRIMARY KEY, p INT, c VARCHAR(9), "
    "FOREIGN KEY (p) REFERENCES child (id) ON DELETE SET NULL, "
    "FOREIGN KEY (c) REFERENCES child (c) ON UPDATE CASCADE)",
    "INSERT INTO parent VALUES (1, 'a', 0), (2, 'b', 0), (3, 'c', 0), (4, 'd', 0)",
    "INSERT INTO child VALUES (10, 1, NULL), (20, 2, NULL), (30, 3, 'c'), (40, NULL, 'd')",
    "INSERT INTO grandchild VALUES (100, 10, NULL), (200, 20, NULL), (400, 40, 'd')",
)


def reported_tables(capture: LogCapture) -> list[str]:
    """The tables that the log reader told of since the last call."""
    found = [event.table.name for event in capture.unlogged]
    capture.events.clear()
    return found


class Newer(Connection):
    """A session of a server that says it is MySQL 9.6."""

    native: str | None = "OFF"
    replicates = False

    def rows(self, sql: str, arguments: Any = None) -> list[tuple[Any, ...]]:
        if sql == "SHOW REPLICA STATUS":
            return [("Waiting",)] if self.replicates else []
        return super().rows(sql, arguments)

    def row(self, sql: str, arguments: Any = None) -> tuple[Any, ...] | None:
        if "innodb_native_foreign_keys" in sql:
            return None if self.native is None else ("innodb_native_foreign_keys", self.native)
        return super().row(sql, arguments)


@pytest.mark.parametrize(
    ("version", "native", "replicates", "silent"),
    [
        ((9, 6, 0), "OFF", False, False),
        ((9, 6, 0), "ON", False, True),
        ((9, 6, 0), "OFF", True, True),  # it does as its source did
        ((27, 1, 0), None, False, False),
        ((9, 5, 0), None, False, True),
    ],
)
def test_servers_that_log_what_foreign_keys_do_need_no_watch(
    mysql_server: MySqlServer,
    mysql_database: str,
    version: tuple[int, ...],
    native: str | None,
    replicates: bool,
    silent: bool,
) -> None:
    for statement in TABLES[:2]:
        mysql_server.execute(statement, mysql_database)
    with connect(mysql_server.url, purpose="test") as connection:
        connection.__class__ = Newer
        assert isinstance(connection, Newer)
        connection.version, connection.native, connection.replicates = version, native, replicates
        found = [c for c in all_cascades(connection) if c.child.namespace == mysql_database]
    assert bool(found) == silent


@pytest.mark.usefixtures("unlogged")
@pytest.mark.parametrize("image", ["FULL", "MINIMAL"])
def test_tables_below_are_reported_when_a_parents_rows_go_or_change_their_keys(
    image: str, make_capture: Make, sql: Sql, mysql_family_database: str
) -> None:
    database = mysql_family_database
    run(sql, *TABLES, f"SET SESSION binlog_row_image = {image}")
    # The parent and the child in between are not captured.
    below = make_capture(tables=(f"{database}.grandchild",), name="below")
    both = make_capture(tables=(f"{database}.*",))
    captures = (below, both)
    for capture in captures:
        capture.start()

    def after(*statements: str) -> tuple[list[str], list[str]]:
        run(sql, *statements)
        for capture in captures:
            capture.catch_up()
        return reported_tables(below), reported_tables(both)

    nothing: tuple[list[str], list[str]] = ([], [])
    assert after("INSERT INTO parent VALUES (5, 'e', 0)") == nothing
    assert after("UPDATE parent SET v = v + 1") == nothing
    assert after("UPDATE child SET p = NULL WHERE id = 20") == nothing
    assert after("DELETE FROM grandchild WHERE id = 200") == nothing
    assert after("DELETE FROM parent WHERE id = 1") == (["grandchild"], ["child", "grandchild"])
    assert after("UPDATE parent SET code = 'D' WHERE id = 4") == (
        ["grandchild"], ["child", "grandchild"],
    )  # fmt: skip
    assert after("DELETE FROM child WHERE id = 20") == (["grandchild"], ["grandchild"])
    # REPLACE deletes, whatever the new row is.
    assert after("REPLACE INTO parent VALUES (3, 'c', 9)")[0] == ["grandchild"]


@pytest.mark.usefixtures("unlogged")
def test_what_a_key_did_that_is_gone_by_now_is_reported_at_its_end(
    make_capture: Make, sql: Sql
) -> None:
    capture = make_capture()
    run(sql, "CREATE TABLE parent (id INT PRIMARY KEY)")
    resume = capture.start()
    run(
        sql,
        "CREATE TABLE child (id INT PRIMARY KEY, p INT, "
        "CONSTRAINT follows FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO child VALUES (10, 1)",
        "DELETE FROM parent",
        "ALTER TABLE child DROP FOREIGN KEY follows",
    )
    late = make_capture(name="late")
    late.start(resume)
    late.catch_up()
    assert reported_tables(late) == ["child"]


@pytest.mark.usefixtures("unlogged")
def test_a_key_that_is_made_later_is_heeded(capture: LogCapture, sql: Sql) -> None:
    run(
        sql,
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        "CREATE TABLE child (id INT PRIMARY KEY, p INT)",
        "INSERT INTO parent VALUES (1), (2)",
        "INSERT INTO child VALUES (10, 1), (20, 2)",
    )
    capture.start()
    run(sql, "UPDATE child SET id = id + 1")  # both tables are known before
    run(sql, "INSERT INTO parent VALUES (3)")
    capture.catch_up()
    assert reported_tables(capture) == []
    run(sql, "ALTER TABLE child ADD FOREIGN KEY (p) REFERENCES parent (id) ON DELETE SET NULL")
    run(sql, "DELETE FROM parent WHERE id = 1")
    capture.catch_up()
    assert reported_tables(capture) == ["child"]


@pytest.mark.usefixtures("unlogged")
def test_xa_transactions_count_once_they_commit(capture: LogCapture, sql: Sql) -> None:
    run(sql, *TABLES)
    capture.start()
    run(sql, "XA START 'x'", "DELETE FROM parent WHERE id = 1", "XA END 'x'", "XA PREPARE 'x'")
    for _ in range(10):
        capture.poll()
    assert reported_tables(capture) == []
    run(sql, "XA COMMIT 'x'")
    capture.catch_up()
    assert reported_tables(capture) == ["child", "grandchild"]


@pytest.mark.usefixtures("unlogged")
def test_keys_are_seen_by_an_account_that_may_only_select(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, sql: Sql
) -> None:
    """MariaDB hides their rules from it in information_schema."""
    server, database = mysql_family, mysql_family_database
    run(sql, *TABLES)
    run(
        sql,
        "CREATE TABLE `o``dd` (id INT PRIMARY KEY, `a)b` INT COMMENT 'CONSTRAINT', CONSTRAINT "
        "`c``d` FOREIGN KEY (`a)b`) REFERENCES parent (id) ON UPDATE SET NULL)",
    )
    url = server.create_user(f"seer_{database}", "", privileges=["SELECT"])
    with connect(url, purpose="test") as connection:
        found = [c for c in all_cascades(connection) if c.child.namespace == database]
    assert {(c.child.name, c.parent.name, c.rules, c.columns, c.referenced) for c in found} == {
        ("child", "parent", ("ON DELETE CASCADE",), ("p",), ("id",)),
        ("child", "parent", ("ON UPDATE CASCADE",), ("c",), ("code",)),
        ("grandchild", "child", ("ON DELETE SET NULL",), ("p",), ("id",)),
        ("grandchild", "child", ("ON UPDATE CASCADE",), ("c",), ("c",)),
        ("o`dd", "parent", ("ON UPDATE SET NULL",), ("a)b",), ("id",)),
    }


@pytest.mark.parametrize("gone", ["TABLE `{}`.grandchild", "DATABASE `{}`"])
def test_a_table_may_go_while_keys_are_read(
    mariadb_server: MySqlFamilyServer, mariadb_database: str, gone: str
) -> None:
    """A database was made anew while capture read its keys one by one: capture ended."""
    server, database = mariadb_server, mariadb_database
    for statement in TABLES[:3]:
        server.execute(statement, database)
    url = server.create_user(f"late_{database}", "", privileges=["SELECT"])

    class Late(Connection):
        """It goes before its rules are read: newer MariaDB tells them by SHOW CREATE TABLE only."""

        def rows(self, sql: str, arguments: Any = None) -> list[tuple[Any, ...]]:
            if "REFERENTIAL_CONSTRAINTS" in sql:
                server.execute(f"DROP {gone.format(database).replace(' ', ' IF EXISTS ', 1)}")
            return super().rows(sql, arguments)

    with connect(url, purpose="test") as connection:
        connection.__class__ = Late
        found = [c for c in all_cascades(connection) if c.child.namespace == database]
        server.execute(f"CREATE DATABASE IF NOT EXISTS `{database}`")
        for statement in TABLES[:3]:
            server.execute(
                statement.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"), database
            )
        lacking = cascades(connection, {TableName(database, "grandchild")})
    server.execute(f"CREATE DATABASE IF NOT EXISTS `{database}`")
    assert {c.rules for c in found if c.child.name == "grandchild"} == {
        ("ON DELETE CASCADE", "ON UPDATE CASCADE")  # what it did is not known any more
    }
    assert not lacking, "a table that is gone is no reason to refuse the others"


@pytest.mark.usefixtures("unlogged")
def test_a_table_in_between_that_the_account_cannot_see_is_named(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, sql: Sql
) -> None:
    server, database = mysql_family, mysql_family_database
    run(sql, *TABLES)
    user = f"blind_{database}"
    url = server.create_user(user, "", privileges=["REPLICATION SLAVE", "REPLICATION CLIENT"])
    server.execute(f"GRANT SELECT ON `{database}`.grandchild TO `{user}`")

    def found() -> dict[str, Finding]:
        checked = MySqlPreflight(
            url,
            server_id=77,
            kind=Flavor(server.flavor),
            tables=[f"{database}.*"],
            cascades="dump",
        ).check()
        return {f.name: f for f in checked if f.level == "warning" and f.name.startswith("table ")}

    (finding,) = found().values()
    assert finding.name == f"table {database}.child"
    assert "may not see it" in finding.message
    server.execute(finding.fix)
    assert list(found()) == [f"table {database}.parent"]


# ---------------------------------------------------------------- whole captures


class Source:
    """A configuration and the captures of it."""

    def __init__(self, server: MySqlFamilyServer, database: str, directory: Path) -> None:
        self.server, self.database, self.directory = server, database, directory
        self.captures: list[CaptureProcess] = []

    def configure(
        self, cascades: str | None = None, tables: str = "*", marks: str = "table"
    ) -> None:
        told = f", cascades: {cascades}" if cascades else ""
        self.file = self.directory / "tidelog.yaml"
        self.file.write_text(
            f"source: {{kind: {self.server.flavor}, url: '{self.server.dsn()}', "
            f"tables: ['{self.database}.{tables}'], watermarks: {marks}, "
            f"watermark_schema: marks_{self.database}{told}}}\n"
            f"log: {{path: {self.directory}/log}}\n"
            f"state: {{url: 'sqlite:///{self.directory}/state.db'}}\n"
            "capture: {flush_ms: 10, lease_ms: 1500}\ndump: {chunk_rows: 2}\n"
        )
        self.config = load_config(self.file, {})

    def start(self, failpoint: str = "") -> CaptureProcess:
        log_file = self.directory / f"capture-{len(self.captures)}.log"
        self.captures.append(CaptureProcess(self.file, log_file, failpoint))
        return self.captures[-1]

    def do(self, *statements: str) -> None:
        for statement in statements:
            self.server.execute(statement, self.database)

    def replayed(self, table: str) -> list[dict[str, Any]]:
        if not EventLog.exists(self.config.log.path):
            return []
        log = EventLog.open(self.config.log.path)
        records = read_event_log(log, log.head_offset, log.latest_offset())
        rows = SourceHistory([], records, 0, lambda a, b: True).replay(
            f"{self.database}.{table}", 0
        )
        return sorted(rows.values(), key=lambda row: int(row["id"] or 0))

    def rows(self, table: str) -> list[dict[str, Any]]:
        with self.server.connect(self.database) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table} ORDER BY id")
            names = [column[0] for column in cursor.description]
            return [
                {n: None if v is None else str(v) for n, v in zip(names, row, strict=True)}
                for row in cursor.fetchall()
            ]

    def wait_equal(self, *tables: str) -> None:
        self.wait_for(lambda: all(self.replayed(t) == self.rows(t) for t in tables), tables)

    def wait_for(self, what: Callable[[], Any], why: Any = "") -> None:
        deadline = time.monotonic() + 60
        while not what():
            tails = [capture.tail for capture in self.captures]
            assert time.monotonic() < deadline, (why, tails)
            time.sleep(0.1)

    def wait_settled(self) -> None:
        """Until no dump is on its way."""
        self.wait_for(
            lambda: (
                (dumps := app.status(self.config).document.get("dumps"))
                and all(dump["status"] == "completed" for dump in dumps)
            )
        )


@pytest.fixture
def source(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, tmp_path: Path
) -> Iterator[Source]:
    made = Source(mysql_family, mysql_family_database, tmp_path)
    made.do(*TABLES)
    yield made
    for capture in made.captures:
        if not capture.died:
            capture.kill()
    mysql_family.execute(f"DROP DATABASE IF EXISTS marks_{mysql_family_database}")


@pytest.mark.parametrize("marks", ["table", "gtid"])
@pytest.mark.parametrize("tables", ["*", "*child"])
def test_copies_below_stay_right(source: Source, tables: str, marks: str) -> None:
    source.configure("dump", tables, marks)
    capture = source.start()
    source.wait_equal("child", "grandchild")
    source.wait_settled()
    source.do("DELETE FROM parent WHERE id = 1")
    source.wait_equal("child", "grandchild")
    source.do("UPDATE parent SET code = 'dd' WHERE id = 4", "DELETE FROM parent WHERE id = 2")
    source.wait_equal("child", "grandchild")
    source.wait_settled()
    assert [row["id"] for row in source.replayed("child")] == ["30", "40"]
    assert source.replayed("grandchild")[-1]["c"] == "dd"
    assert capture.stop() == 0


@pytest.mark.parametrize("point", ["noticed", "down"])
def test_copies_below_are_right_after_a_crash(source: Source, point: str) -> None:
    source.configure("dump", "*child")
    capture = source.start()
    source.wait_equal("child", "grandchild")
    source.wait_settled()
    if point == "down":
        capture.kill()
        source.do("DELETE FROM parent WHERE id IN (1, 3)")
    else:
        # Killed as soon as capture has noticed, before the dump can be through.
        source.do("DELETE FROM parent WHERE id IN (1, 3)", "INSERT INTO child VALUES (50, 4, 'b')")
        source.wait_for(lambda: any(r["id"] == "50" for r in source.replayed("child")))
        capture.kill()
    capture = source.start()
    source.wait_equal("child", "grandchild")
    assert [row["id"] for row in source.rows("grandchild")] == ["100", "200", "400"]
    assert source.rows("grandchild")[0]["p"] is None
    # The first capture may have done all, and the second not have got to handling signals.
    assert capture.stop() in (0, -signal.SIGTERM)


@pytest.mark.usefixtures("unlogged")
def test_such_keys_are_refused_unless_configured_otherwise(source: Source) -> None:
    source.configure()
    capture = source.start()
    assert capture.wait(60) == 2
    assert "follows of" in capture.tail
    assert "source.cascades: dump" in capture.tail
    (finding, *_) = [
        f for f in [each.to_dict() for each in app.check(source.config)] if f["level"] == "error"
    ]
    assert finding["check"] == f"table {source.database}.child"
    assert "source.cascades: dump" in finding["fix"]
    source.configure("dump")
    assert [f for f in app.check(source.config) if f.level == "error"] == []


@pytest.mark.usefixtures("unlogged")
def test_a_key_that_is_made_while_capture_runs_is_refused(source: Source) -> None:
    """And what it did before capture noticed is mended once it is gone."""
    source.do("DROP TABLE grandchild", "DROP TABLE child")
    source.do("CREATE TABLE child (id INT PRIMARY KEY, p INT)", "INSERT INTO child VALUES (1, 1)")
    source.configure()
    capture = source.start()
    source.wait_equal("child", "parent")
    source.do(
        "ALTER TABLE child ADD CONSTRAINT late FOREIGN KEY (p) REFERENCES parent (id) "
        "ON DELETE CASCADE",
        "DELETE FROM parent WHERE id = 1",
    )
    assert capture.wait(30) == 2
    assert f"late of {source.database}.child (ON DELETE CASCADE)" in capture.tail
    assert "source.cascades: dump" in capture.tail
    assert source.start().wait(30) == 2
    source.do("ALTER TABLE child DROP FOREIGN KEY late")
    capture = source.start()
    source.wait_equal("child", "parent")
    assert source.rows("child") == []
    assert capture.stop() in (0, -signal.SIGTERM)  # it may have had nothing to mend and to wait for
