"""What administrators do to a server while it is captured, and files that are loaded into it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.integration.mysql.test_preflight import setting
from tests.integration.mysql.test_source_docs import capturing
from tests.support.mysql import MariaDbServer, MySqlFamilyServer, MySqlServer

from tidelog import app
from tidelog.app.capture import maintenance
from tidelog.app.sources.preflight import check_script
from tidelog.capture.catalogue_watch import CatalogueWatch
from tidelog.config import Config, parse_config
from tidelog.control.commands import StartDump
from tidelog.errors import LogResetError, PreflightError, SourceChangedError
from tidelog.sources.mysql.stream.log_tables import LogTables

pytestmark = pytest.mark.integration

PASSWORD = "a password"
PATIENCE_S = 180.0  # on a machine that is busy with other things


def test_files_that_are_loaded_are_rows(
    mysql_family: MySqlFamilyServer,
    mysql_family_database: str,
    make_capture: Callable[..., LogCapture],
    tmp_path: Path,
) -> None:
    """LOAD DATA, by the client and by the server, with what it replaces and passes over."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("".join(f"{i},row {i} é\n" for i in range(1, 2001)))
    second.write_text("".join(f"{i},again {i}\n" for i in range(1901, 2101)))
    tmp_path.chmod(0o755)
    into = "INTO TABLE t CHARACTER SET utf8mb4 FIELDS TERMINATED BY ',' (a, b)"
    name = mysql_family_database
    capture = make_capture()
    with mysql_family.connect(name, local_infile=True) as session, session.cursor() as sql:
        sql.execute("CREATE TABLE t (a int PRIMARY KEY, b varchar(20), c int)")
        capture.start()
        sql.execute(f"LOAD DATA LOCAL INFILE '{first}' {into}")
        sql.execute(f"LOAD DATA LOCAL INFILE '{second}' REPLACE {into} SET c = a + 1")
        sql.execute(f"LOAD DATA LOCAL INFILE '{first}' IGNORE {into} SET c = 7")
        capture.catch_up()
        sql.execute("SELECT a, b, c FROM t ORDER BY a")
        rows = [dict(zip("abc", row, strict=True)) for row in sql.fetchall()]
    assert len(rows) == 2100
    copy: dict[Any, Any] = {}
    for row in capture.rows:
        if row.old is not None:
            assert copy.pop(row.old["a"]) == row.old
        if row.new is not None:
            assert copy.setdefault(row.new["a"], row.new) is row.new
    assert [copy[key] for key in sorted(copy)] == rows


def test_sessions_outlive_the_servers_timeouts(
    mysql_family: MySqlFamilyServer,
    mysql_family_database: str,
    make_capture: Callable[..., LogCapture],
) -> None:
    mysql_family.execute("CREATE TABLE t (a int PRIMARY KEY)", mysql_family_database)
    names = ("wait_timeout", "interactive_timeout", "net_write_timeout", "net_read_timeout")
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(setting(mysql_family, name, 1))
        capture = make_capture()
        capture.start()
        capture.poll()
        time.sleep(3)
        mysql_family.execute("INSERT INTO t VALUES (1)", mysql_family_database)
        capture.catch_up()
    assert [row.new for row in capture.rows] == [{"a": 1}]


# ---------------------------------------------------------------- rights that are taken away


@contextmanager
def reader(server: MySqlFamilyServer, database: str) -> Iterator[str]:
    """The name of an account with just what is needed, for two tables and no more."""
    user = f"reader_{database}"
    server.create_user(user, PASSWORD, privileges=["REPLICATION SLAVE", "REPLICATION CLIENT"])
    for table in "tu":
        server.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int)", database)
        server.execute(f"INSERT INTO {table} VALUES (1, 1), (2, 2)", database)
        server.execute(f"GRANT SELECT ON `{database}`.`{table}` TO `{user}`")
    server.execute(f"GRANT SELECT, INSERT, UPDATE, CREATE ON `marks_{database}`.* TO `{user}`")
    try:
        yield user
    finally:
        server.execute(f"DROP USER `{user}`")
        server.execute(f"DROP DATABASE IF EXISTS `marks_{database}`")


def configured(server: MySqlFamilyServer, user: str, database: str, directory: Path) -> Config:
    text = f"""
source:
  kind: {server.flavor}
  url: "{server.dsn(user=user, password=PASSWORD)}"
  tables: ["{database}.*"]
  watermark_schema: marks_{database}
log: {{path: log}}
state: {{url: "sqlite:///state.db"}}
"""
    return parse_config(text, "test", directory, {})


def wait_for(
    condition: Callable[[], Any], what: str, failures: Sequence[BaseException] = ()
) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert not failures, failures
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def dump_of(config: Config, dump_id: str) -> dict[str, dict[str, Any]]:
    """Tables of a dump that has ended; {} before."""
    for dump in app.status(config).document.get("dumps", ()):
        if dump["dump_id"] == dump_id and dump["status"] in ("completed", "aborted"):
            return {table["table"]: table for table in dump["tables"]}
    return {}


def ids(config: Config, table: str) -> list[int]:
    """Of inserts in the event log."""
    return [e["after"]["id"] for e in app.read_log(config, table=table) if e["op"] == "c"]


def test_lost_right_to_one_table_is_reported_and_its_log_continues(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, tmp_path: Path
) -> None:
    server, name = mysql_family, mysql_family_database
    tables = (f"{name}.t", f"{name}.u")
    with reader(server, name) as user:
        config = configured(server, user, name, tmp_path)

        def ask(dump_id: str) -> list[str]:
            """Tables that can't be dumped."""
            command = StartDump(dump_id=dump_id, tables=("*.t", "*.u"), signal_id=dump_id)
            outcome = app.send_command(config, command, timeout_s=60).to_dict()
            assert outcome["error"] is None, outcome
            return [each["table"] for each in outcome["details"].get("rejected", ())]

        with capturing(config) as failures:
            wait_for(lambda: dump_of(config, "initial"), "the initial dump", failures)
            server.execute(f"REVOKE SELECT ON `{name}`.u FROM `{user}`")
            server.execute("INSERT INTO t VALUES (3, 3)", name)
            server.execute("INSERT INTO u VALUES (3, 3)", name)
            assert len(ask("without")) == 1
            wait_for(lambda: dump_of(config, "without"), "the dump of the other table", failures)
            server.execute(f"GRANT SELECT ON `{name}`.u TO `{user}`")
            assert ask("with") == []
            wait_for(lambda: dump_of(config, "with"), "the dump of both", failures)
            found = {each: table["status"] for each, table in dump_of(config, "with").items()}
            assert found == dict.fromkeys(tables, "done")
            wait_for(
                lambda: [ids(config, table) for table in tables] == [[3], [3]], "the log", failures
            )
            assert not failures, failures


def test_tables_that_the_account_may_no_longer_see_are_reported_with_the_grant(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, tmp_path: Path
) -> None:
    """They are not listed then, as if they were dropped; what is dropped is no problem."""
    server, name = mysql_family, mysql_family_database
    with reader(server, name) as user:
        server.execute("CREATE TABLE v (id int PRIMARY KEY)", name)
        for table in "tu":
            server.execute(f"REVOKE SELECT ON `{name}`.{table} FROM `{user}`")
        server.execute(f"GRANT SELECT ON `{name}`.* TO `{user}`")
        config = configured(server, user, name, tmp_path)

        def seen(table: str) -> dict[str, Any]:
            tables = app.status(config).document["overview"]["tables"]
            return next((each for each in tables if each["table"] == f"{name}.{table}"), {})

        def refused() -> list[dict[str, Any]]:
            problems = app.status(config).document.get("overview", {}).get("problems", ())
            return [each for each in problems if each["kind"] == "table-refused"]

        with capturing(config) as failures:
            wait_for(lambda: dump_of(config, "initial"), "the initial dump", failures)
            server.execute("DROP TABLE v", name)
            wait_for(lambda: not seen("v"), "the dropped table is forgotten", failures)
            assert not refused()
            server.execute(f"REVOKE SELECT ON `{name}`.* FROM `{user}`")
            server.execute("ALTER TABLE t ADD x int", name)
            server.execute("INSERT INTO t VALUES (3, 3, 3)", name)
            why = "t and 1 more table are not captured: the account may no longer see it"
            wait_for(lambda: any(why in each["sentence"] for each in refused()), why, failures)
            [problem] = refused()
            assert problem["remedy"].startswith("GRANT SELECT ON `")
            assert seen("t")["state"] == seen("u")["state"] == "refused"
            [found] = [each for each in app.check(config) if "no longer see" in each.message]
            assert (found.level, found.fix) == ("error", problem["remedy"])
            server.execute(problem["remedy"])
            wait_for(lambda: not refused(), "the end of it", failures)

            def is_whole() -> bool:
                newest = {
                    each["after"]["id"]: each["after"].get("x")
                    for each in app.read_log(config, table=f"{name}.t")
                    if each.get("after")
                }
                return newest == {1: None, 2: None, 3: 3}

            wait_for(is_whole, "the dump of what was missed", failures)
            assert not failures, failures


def test_only_what_is_captured_and_not_dropped_is_missed_and_hides_no_other_finding(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, tmp_path: Path
) -> None:
    """A server denies before it says that a table does not exist."""
    server, name = mysql_family, mysql_family_database
    with reader(server, name) as user:
        server.execute("CREATE TABLE w (id int PRIMARY KEY)", name)
        server.execute(f"GRANT SELECT ON `{name}`.w TO `{user}`")
        config = configured(server, user, name, tmp_path)
        with capturing(config) as failures:
            wait_for(lambda: dump_of(config, "initial"), "the initial dump", failures)
        for table in "tu":
            server.execute(f"REVOKE SELECT ON `{name}`.{table} FROM `{user}`")

        def errors(**changes: Any) -> list[tuple[str, str]]:
            source = config.source.model_copy(update=changes)
            changed = config.model_copy(update={"source": source})
            return [
                (each.check, each.message.partition(f"{name}.")[2].partition(" ")[0].strip("':"))
                for each in app.check(changed)
                if each.level == "error" and each.check in ("tables", "columns")
            ]

        wrong = {"exclude_columns": (f"{name}.w.idd",)}
        assert errors() == [("tables", "t")]
        assert errors(**wrong) == [("tables", "t"), ("columns", "w.idd")]
        script, _ = check_script(config)
        assert not any("no longer see" in line for line in script)  # it is no part of this
        assert errors(tables=(f"{name}.*", f"!{name}.t")) == [("tables", "u")]
        assert errors(tables=(f"{name}.w",)) == []
        state = tmp_path / "state.db"
        kept = state.rename(tmp_path / "kept.db")
        state.write_text("no database")
        assert errors(**wrong) == [("columns", "w.idd")]
        kept.replace(state)
        server.execute("DROP TABLE t", name)
        server.execute("DROP TABLE u", name)

        def refused() -> list[dict[str, Any]]:
            problems = app.status(config).document.get("overview", {}).get("problems", ())
            return [each for each in problems if each["kind"] == "table-refused"]

        with capturing(config) as failures:
            server.execute("INSERT INTO w VALUES (1)", name)
            wait_for(lambda: ids(config, f"{name}.w") == [1], "the log", failures)
            wait_for(lambda: not errors() and not refused(), "the end of it", failures)
            assert not failures, failures


def test_what_check_would_refuse_is_reported_soon_after_the_start_until_it_is_fixed(
    mysql_family: MySqlFamilyServer,
    mysql_family_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Here the dump's marks can't be written, which no table of its own is to blame for."""
    monkeypatch.setattr(maintenance, "AGAIN_AFTER_S", 0.2)
    monkeypatch.setattr(maintenance, "EVERY_S_WITH_ERRORS", 0.5)
    monkeypatch.setattr(maintenance, "MAX_TIME_SHARE_WITH_ERRORS", 1.0)
    caplog.set_level(logging.INFO, maintenance.__name__)
    server, name = mysql_family, mysql_family_database
    with reader(server, name) as user:
        marks = f"SELECT, INSERT, UPDATE, CREATE ON `marks_{name}`.*"
        server.execute(f"REVOKE {marks} FROM `{user}`")
        config = configured(server, user, name, tmp_path)

        def check_problems() -> list[dict[str, Any]]:
            problems = app.status(config).document.get("overview", {}).get("problems", ())
            return [each for each in problems if each["kind"] == "check-error"]

        with capturing(config) as failures:
            wait_for(check_problems, "what check finds", failures)
            [problem] = check_problems()
            assert problem["about"] == "watermark table"
            assert "can't be created and written" in problem["sentence"]
            assert "GRANT SELECT, INSERT, UPDATE, CREATE ON" in problem["remedy"]
            server.execute(f"GRANT {marks} TO `{user}`")
            wait_for(lambda: not check_problems(), "the end of it", failures)
            wait_for(lambda: dump_of(config, "initial"), "the dump", failures)
            assert not failures, failures
    lines = [each.getMessage() for each in caplog.records if each.name == maintenance.__name__]
    assert [line.partition(" in ")[0] for line in lines] == [
        "check finds an error",
        "over: check finds an error",
    ]
    assert "GRANT SELECT, INSERT" in lines[0]
    assert PASSWORD not in caplog.text


def test_lost_right_to_the_log_ends_capture_with_the_grant(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, tmp_path: Path
) -> None:
    """At the next connection: the server asks for it only then."""
    server, name = mysql_family, mysql_family_database
    with reader(server, name) as user:
        config = configured(server, user, name, tmp_path)
        with capturing(config) as failures:
            wait_for(lambda: dump_of(config, "initial"), "the initial dump", failures)
            server.execute(f"REVOKE REPLICATION SLAVE ON *.* FROM `{user}`")
            server.execute("INSERT INTO t VALUES (3, 3)", name)
            for row in server.execute("SHOW PROCESSLIST"):
                if row[4] == "Binlog Dump" and row[1] == user:
                    server.execute(f"KILL {row[0]}")
            wait_for(lambda: failures, "capture ends")
        assert isinstance(failures[0], PreflightError), failures
        assert "GRANT REPLICATION SLAVE ON *.*" in str(failures[0])
        server.execute(f"GRANT REPLICATION SLAVE ON *.* TO `{user}`")
        with capturing(config) as failures:
            wait_for(lambda: 3 in ids(config, f"{name}.t"), "nothing is lost", failures)
            assert not failures, failures


@pytest.mark.parametrize("while_it_runs", [False, True])
def test_after_reset_master_what_is_printed_leads_to_equal_copies(
    while_it_runs: bool, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    """With changes of which the log has nothing."""
    with MariaDbServer() as server:
        server.create_database("d")
        with reader(server, "d") as user:
            config = configured(server, user, "d", tmp_path)

            def lose() -> None:
                server.execute("FLUSH BINARY LOGS")
                server.execute("DELETE FROM t WHERE id = 1", "d")
                server.execute("INSERT INTO t VALUES (4, 4)", "d")
                server.reset_binlog()
                server.execute("INSERT INTO t VALUES (5, 5)", "d")

            with capturing(config) as failures:
                wait_for(lambda: dump_of(config, "initial"), "the initial dump", failures)
                server.execute("INSERT INTO t VALUES (3, 3)", "d")
                wait_for(lambda: 3 in ids(config, "d.t"), "the log", failures)
                if while_it_runs:
                    lose()
                    wait_for(lambda: failures, "capture ends")
            if not while_it_runs:
                lose()
                with capturing(config) as failures:
                    wait_for(lambda: failures, "capture ends")
            assert isinstance(failures[0], LogResetError), failures
            assert "RESET MASTER" in str(failures[0])
            assert "run `tidelog reset CONFIG`" in str(failures[0])
            [problem] = [
                each
                for each in app.status(config).document["overview"]["problems"]
                if each["kind"] == "no-leader"
            ]
            assert problem["remedy"].startswith("tidelog reset CONFIG\n")
            [found] = [each for each in app.check(config) if each.check == "position"]
            assert (found.level, found.fix) == ("error", "tidelog reset CONFIG")
            app.reset(config)

            def copy() -> dict[int, int]:
                found: dict[int, int] = {}
                for event in app.read_log(config, table="d.t"):
                    if event["op"] in "ucr":
                        found[event["after"]["id"]] = event["after"]["n"]
                return found

            with capturing(config) as failures:

                def gap() -> dict[str, Any]:
                    dumps = app.status(config).document.get("dumps", ())
                    return next(
                        (
                            each
                            for each in dumps
                            if each["dump_id"].startswith("gap-") and each["status"] == "completed"
                        ),
                        {},
                    )

                wait_for(gap, "the dump", failures)
                server.execute("INSERT INTO t VALUES (6, 6)", "d")
                wait_for(lambda: 6 in ids(config, "d.t"), "the log flows again", failures)
            assert copy() == {n: n for n in range(1, 7)}  # a copy deletes 1, as the dump lacks it
            with capturing(config) as failures:
                server.execute("INSERT INTO t VALUES (7, 7)", "d")
                wait_for(lambda: 7 in ids(config, "d.t"), "the next start", failures)


# ---------------------------------------------------------------- a replica that takes over


@pytest.mark.parametrize("kind", [MySqlServer, MariaDbServer])
def test_a_captured_replica_that_is_promoted_continues_and_its_old_source_is_reported(
    kind: type[MySqlFamilyServer], tmp_path: Path
) -> None:
    with kind() as primary:
        primary.create_database("d")
        primary.execute("CREATE TABLE d.t (a int PRIMARY KEY)")
        with kind.replica_of(primary) as replica:
            primary.execute("INSERT INTO d.t VALUES (1)")
            replica.caught_up()
            capture = LogCapture(replica, ("d.*",))
            capture.start()
            primary.execute("INSERT INTO d.t VALUES (2)")
            replica.caught_up()
            capture.catch_up()
            primary.stop()
            replica.follow_no_more()
            replica.execute("SET GLOBAL read_only = OFF")
            replica.execute("INSERT INTO d.t VALUES (3)")
            capture.catch_up()
            source = capture.reader.identify()
            resume = capture.resumes[-1]
            capture.reader.close()
            again = LogCapture(
                replica, ("d.*",), schemas=capture.schemas, options={"expected": source}
            )
            again.start(resume)
            replica.execute("INSERT INTO d.t VALUES (4)")
            again.catch_up()
            again.reader.close()
            found = [row.new["a"] for row in capture.rows + again.rows if row.new]
            assert found == [2, 3, 4]
            primary.start()
            wrong = LogCapture(primary, ("d.*",), options={"expected": source})
            with pytest.raises(SourceChangedError):
                wrong.start(resume)
            wrong.reader.close()


def test_refused_tables_are_captured_again_soon_though_looks_take_long(
    mariadb_server: MariaDbServer,
    mariadb_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log refuses them just after a look at the catalogue that took 0.4 s, as on a loaded
    host: the next one would be due 40 s later.
    """
    server, name = mariadb_server, mariadb_database
    look, bind = CatalogueWatch.poll, LogTables.bind
    looked = threading.Event()

    def slow_look(watch: CatalogueWatch) -> Any:
        found = look(watch)
        if not looked.is_set():
            time.sleep(0.4)
        looked.set()
        return found

    def late_bind(tables: LogTables, *arguments: Any) -> Any:
        assert looked.wait(PATIENCE_S)
        return bind(tables, *arguments)

    def refused() -> list[str]:
        return [each["table"] for each in app.status(config).document.get("refused", ())]

    with reader(server, name) as user, setting(server, "binlog_row_metadata", "NO_LOG"):
        config = configured(server, user, name, tmp_path)
        with capturing(config) as failures:
            wait_for(lambda: dump_of(config, "initial"), "the initial dump", failures)
        for table in "tu":
            server.execute(f"INSERT INTO {table} VALUES (3, 3)", name)
            server.execute(f"ALTER TABLE {table} ADD c int DEFAULT 7 FIRST, DROP n", name)
            server.execute(f"INSERT INTO {table} VALUES (1, 4)", name)
            server.execute(f"ALTER TABLE {table} MODIFY c bigint", name)
        monkeypatch.setattr(CatalogueWatch, "poll", slow_look)
        monkeypatch.setattr(LogTables, "bind", late_bind)
        with capturing(config) as failures:
            wait_for(lambda: len(refused()) == 2, "both are refused", failures)
            began = time.monotonic()
            wait_for(lambda: not refused(), "they are captured again", failures)
            assert time.monotonic() - began < 60
            assert not failures, failures
