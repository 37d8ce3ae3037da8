"""`check` names what is wrong with a MySQL or MariaDB server, with the SQL that fixes it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.support.mysql import MariaDbServer, MySqlFamilyServer, MySqlServer

from tidelog.codecs.mysql.flavor import Flavor
from tidelog.errors import PreflightError
from tidelog.sources.findings import ADMINISTRATOR, Finding, fix_script
from tidelog.sources.mysql.connect import Connection, connect
from tidelog.sources.mysql.preflight.account import CheckContext, Grants
from tidelog.sources.mysql.preflight.checks import MySqlPreflight, _retention, _retention_size

pytestmark = pytest.mark.integration

OUR_ID = 54_321


def logs_cascades(server: MySqlFamilyServer) -> bool:
    """Does the server log the rows that its foreign keys change, if it is nobody's replica?"""
    return server.flavor == "mysql" and server.version >= (9, 6)


def check(server: MySqlFamilyServer, database: str, **options: Any) -> list[Finding]:
    options = {
        "server_id": OUR_ID,
        "kind": Flavor(server.flavor),
        "tables": [f"{database}.*"],
    } | options
    url = options.pop("url", server.url)
    return MySqlPreflight(url, **options).check()


def faults(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings if finding.level != "ok"}


@contextmanager
def setting(server: MySqlFamilyServer, name: str, value: Any) -> Iterator[None]:
    """The server's global variable has the value inside."""
    ((before,),) = server.execute(f"SELECT @@GLOBAL.{name}")
    server.execute(f"SET GLOBAL {name} = %s", arguments=(value,))
    try:
        yield
    finally:
        server.execute(f"SET GLOBAL {name} = %s", arguments=(before,))


def test_sound_source_has_no_failure(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    mysql_family.execute("CREATE TABLE t (id int PRIMARY KEY)", mysql_family_database)
    with setting(mysql_family, "binlog_row_metadata", "FULL"):
        for strategy in ("table", "gtid"):
            findings = check(mysql_family, mysql_family_database, strategy=strategy)
            assert faults(findings) == {}
            assert {finding.name for finding in findings} >= {
                "connection", "version", "log_bin", "binlog_format", "row image", "row metadata",
                "retention", "server id", "GTID", "commit order", "sessions", "time zone",
                "charset", "clock", "replication", "tables",
            }  # fmt: skip
            counts = [finding.message for finding in findings if finding.name == "tables"]
            assert counts == ["1 table matches"]


@pytest.mark.parametrize(
    ("variable", "value", "name", "level", "message"),
    [
        ("binlog_format", "MIXED", "binlog_format", "error", "binlog_format is MIXED"),
        ("binlog_row_image", "MINIMAL", "row image", "warning", "records lack columns"),
        ("binlog_row_metadata", "MINIMAL", "row metadata", "warning", "no names of columns"),
    ],
)
def test_setting_that_keeps_rows_out_of_the_log_is_named(
    mysql_family: MySqlFamilyServer,
    mysql_family_database: str,
    variable: str,
    value: str,
    name: str,
    level: str,
    message: str,
) -> None:
    with setting(mysql_family, variable, value):
        found = faults(check(mysql_family, mysql_family_database))[name]
        assert found.level == level
        assert message in found.message
        statement, _, _ = found.fix.partition(";")
        mysql_family.execute(statement)
        assert name not in faults(check(mysql_family, mysql_family_database))


def test_short_retention_is_named(
    mysql_server: MySqlServer, mysql_database: str, mariadb_server: MariaDbServer
) -> None:
    for server, value in ((mysql_server, 3600), (mariadb_server, 7200)):
        with setting(server, "binlog_expire_logs_seconds", value):
            found = faults(check(server, mysql_database))["retention"]
            assert f"purged after {value / 3600:.1f} h" in found.message
            assert "SET GLOBAL binlog_expire_logs_seconds = 604800;" in found.fix


@pytest.mark.parametrize(
    ("hours", "level", "message"),
    [
        (None, "warning", "binlog retention hours is not set"),
        ("3", "warning", "RDS keeps binlogs for 3 h: a capture down for longer"),
        ("168", "ok", "RDS keeps binlogs for 7.0 days"),
    ],
)
@pytest.mark.parametrize("may_read", [True, False], ids=["table", "procedure"])
def test_retention_of_rds_is_its_own(
    mysql_server: MySqlServer,
    mysql_database: str,
    hours: str | None,
    level: str,
    message: str,
    may_read: bool,
) -> None:
    """Its table and procedure, as its manual shows them."""
    name = "rds_configuration" if may_read else "configuration_of_others"
    execute = mysql_server.execute
    try:
        execute(
            f"CREATE TABLE mysql.{name} (name varchar(40), value varchar(40), description text)"
        )
        execute(
            f"INSERT INTO mysql.{name} VALUES ('binlog retention hours', %s, ''), ('x', '1', '')",
            arguments=(hours,),
        )
        execute(
            "CREATE PROCEDURE mysql.rds_show_configuration() "
            f"SELECT name, value, description FROM mysql.{name}"
        )
        found = {f.name: f for f in check(mysql_server, mysql_database)}["retention"]
        assert (found.level, found.message[: len(message)]) == (level, message)
        assert ("rds_set_configuration" in found.fix) == (level == "warning")
    finally:
        execute("DROP PROCEDURE IF EXISTS mysql.rds_show_configuration")
        execute(f"DROP TABLE IF EXISTS mysql.{name}")


def examined(server: MySqlFamilyServer, connection: Connection, **changes: Any) -> CheckContext:
    """What `check` knows of a server, with some of it as it would be elsewhere."""
    variables = {name: str(value) for name, value in connection.rows("SHOW GLOBAL VARIABLES")}
    return CheckContext(
        url=changes.pop("url", server.url),
        connection=connection,
        variables=variables | changes,
        server_id=OUR_ID,
        kind=Flavor(server.flavor),
        tables=("*.*",),
        watermark_schema="tidelog",
        strategy="table",
        signal_table=None,
        keys={},
        exclude_columns=(),
        cascades="refuse",
        snapshot_mode="incremental",
    )


def test_retention_that_other_servers_have_is_named(mysql_server: MySqlServer) -> None:
    """Azure's 0 is not the server's 0; Percona's server has a limit of its own."""
    azure = "mysql://u@shop.mysql.database.azure.com/"
    with connect(mysql_server.url, purpose="test") as connection:
        here = examined(mysql_server, connection, binlog_expire_logs_seconds="0", url=azure)
        (found,) = _retention(here)
        assert (found.level, "Azure purges" in found.message) == ("warning", True)
        here = examined(mysql_server, connection, binlog_expire_logs_seconds="604800", url=azure)
        assert [f.level for f in _retention(here)] == ["ok"]
        assert list(_retention_size(here)) == []
        here = examined(mysql_server, connection, binlog_space_limit=str(5 << 30))
        (found,) = _retention_size(here)
        assert "beyond 5,120 MiB (binlog_space_limit)" in found.message


def test_settings_of_mysql_alone_are_named(mysql_server: MySqlServer, mysql_database: str) -> None:
    with setting(mysql_server, "binlog_order_commits", 0):
        found = faults(check(mysql_server, mysql_database))["commit order"]
        assert (found.level, found.fix[:38]) == ("error", "SET GLOBAL binlog_order_commits = ON; ")
    with setting(mysql_server, "binlog_row_value_options", "PARTIAL_JSON"):
        assert "partial JSON" not in faults(check(mysql_server, mysql_database))
        with setting(mysql_server, "binlog_row_image", "MINIMAL"):
            assert faults(check(mysql_server, mysql_database))["partial JSON"].level == "warning"


def test_mysql_without_gtids_is_refused_only_for_gtid_watermarks(
    mysql_server: MySqlServer, mysql_database: str
) -> None:
    mysql_server.execute("SET GLOBAL gtid_mode = ON_PERMISSIVE")
    try:
        assert faults(check(mysql_server, mysql_database))["GTID"].level == "warning"
        found = faults(check(mysql_server, mysql_database, strategy="gtid"))["GTID"]
        assert found.level == "error"
    finally:
        mysql_server.execute("SET GLOBAL gtid_mode = ON")
    assert "SET GLOBAL gtid_mode = ON;" in found.fix


def test_server_id_that_is_taken_is_named(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    ((own,),) = mysql_family.execute("SELECT @@server_id")
    found = faults(check(mysql_family, mysql_family_database, server_id=own))["server id"]
    assert (found.level, found.fix) == ("error", "another number in source.server_id")
    with type(mysql_family).replica_of(mysql_family, {"server_id": OUR_ID}):
        found = _until_named(mysql_family, mysql_family_database, "server id")
    assert (found.level, "is connected" in found.message) == ("warning", True)


def _until_named(server: MySqlFamilyServer, database: str, name: str) -> Finding:
    deadline = time.monotonic() + 20
    while name not in (found := faults(check(server, database))):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found[name]


def test_kind_that_the_server_is_not_is_named(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    other = Flavor.MARIADB if mysql_family.flavor == "mysql" else Flavor.MYSQL
    found = faults(check(mysql_family, mysql_family_database, kind=other))["kind"]
    assert (found.level, found.fix) == ("error", f"source.kind: {mysql_family.flavor}")


def test_account_without_rights_is_shown_each_grant_and_they_suffice(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    server, database = mysql_family, mysql_family_database
    server.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", database)
    user = f"poor_{database}"
    url = server.create_user(user, "s3cret'", privileges=["INSERT"], on=f"`{database}`.*")
    schema = f"marks_{database}"
    options: dict[str, Any] = {
        "url": url, "watermark_schema": schema, "snapshot_mode": "blocking",
    }  # fmt: skip
    try:
        found = faults(check(server, database, **options))
        expected = {"replication", "watermark table", f"table {database}.t", "row metadata"}
        if server.flavor == "mysql":
            expected.add("blocking dumps")
        assert set(found) == expected
        status = "REPLICATION CLIENT" if server.flavor == "mysql" else "BINLOG MONITOR"
        lacks = f"'{user}'@'%' lacks REPLICATION SLAVE and {status}"
        assert found["replication"].message == lacks
        pattern = schema.replace("_", "\\_")
        assert found["watermark table"].fix == (
            f"GRANT SELECT, INSERT, UPDATE, CREATE ON `{pattern}`.* TO '{user}'@'%';"
        )
        for name in expected - {"row metadata"}:
            assert found[name].level == ("warning" if name == "blocking dumps" else "error")
            assert found[name].fix.startswith("GRANT ")
            server.execute(found[name].fix)
        assert set(faults(check(server, database, **options))) == {"row metadata"}
    finally:
        server.execute(f"DROP USER `{user}`")


def test_who_is_not_let_in_is_shown_what_lets_them_in(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    """Each statement is run, as a person completes it; then the connection is accepted."""
    server, database = mysql_family, mysql_family_database
    server.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", database)
    user = f"poor_{database}"
    options = {
        "url": server.dsn(database, user=user, password="s3cret"),
        "tables": [f"{database}.t"],
        "watermark_schema": f"marks_{database}",
    }
    try:
        found = check(server, database, **options)
        assert [finding.name for finding in found] == ["connection"]
        assert (found[0].level, found[0].by_hand) == ("error", True)
        assert "s3cret" not in found[0].fix + found[0].message
        create, *grants = [line for line in found[0].fix.splitlines() if line[0] != "-"]
        server.execute(create.replace("(...)", "s3cret"))

        found = check(server, database, **options)
        assert found[0].name == "connection"
        assert found[0].fix == f"GRANT SELECT ON `{database}`.`t` TO '{user}'@'%';"
        assert {"replication", "watermark table"} <= set(faults(found))
        assert "tables" not in faults(found)  # the GRANT is told once
        assert found[0].fix in list(fix_script(found))

        nowhere = check(server, database, **options | {"url": server.dsn("nowhere")})
        assert (nowhere[0].level, nowhere[0].fix) == ("error", "")
        assert "-- connection: " + nowhere[0].message in list(fix_script(nowhere))

        for grant in grants:
            server.execute(grant)
        assert set(faults(check(server, database, **options))) == {"row metadata"}
    finally:
        server.execute(f"DROP USER IF EXISTS `{user}`")


def test_the_script_runs_as_it_is_printed_and_leads_to_a_green_check(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    """By whom it names; what is to be weighed first is left."""
    server, database = mysql_family, mysql_family_database
    server.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", database)
    server.execute("CREATE TABLE audit (event int NOT NULL, v int)", database)
    server.execute("CREATE TABLE old (id int PRIMARY KEY) ENGINE = MyISAM", database)
    server.execute("CREATE TABLE parent (id int PRIMARY KEY)", database)
    server.execute(
        "CREATE TABLE child (id int PRIMARY KEY, p int, CONSTRAINT follows FOREIGN KEY (p) "
        "REFERENCES parent (id) ON DELETE CASCADE)",
        database,
    )
    user = f"poor_{database}"
    options: dict[str, Any] = {
        "url": server.create_user(user, "s3cret'", privileges=["INSERT"], on=f"`{database}`.*"),
        "watermark_schema": f"marks_{database}",
        "snapshot_mode": "blocking",
        "signal_table": f"{database}.signals",
        "keys": {f"{database}.audit": ["event"]},
    }
    try:
        with setting(server, "binlog_format", "MIXED"):
            parts = "\n".join(fix_script(check(server, database, **options))).split("\n-- as ")[1:]
            assert [part.partition(":\n")[0] for part in parts] == [ADMINISTRATOR]
            client = [str(server.program("mariadb", "mysql")), f"--socket={server.socket}"]
            done = subprocess.run(
                [*client, "--user=root"], input=parts[0].partition("\n")[2], text=True,
                capture_output=True,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            left = check(server, database, **options)
        child = set() if logs_cascades(server) else {f"table {database}.child"}
        assert {f.name for f in left if f.level != "ok"} == {
            "row metadata", f"table {database}.old", *child,
        }  # fmt: skip
        assert all(line.startswith("--") or not line for line in fix_script(left))
        assert f"--   ALTER TABLE `{database}`.`old` ENGINE = InnoDB;" in list(fix_script(left))
    finally:
        server.execute(f"DROP USER `{user}`")
        server.execute(f"DROP DATABASE IF EXISTS `marks_{database}`")


def test_tables_that_the_account_may_not_see_are_thought_of(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    """The server lists only tables to which it has a right."""
    server, database = mysql_family, mysql_family_database
    for name in "ab":
        server.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)", database)
    url = server.create_user("narrow", "s3cret", privileges=["SELECT"], on=f"`{database}`.a")

    def said(pattern: str) -> str:
        found = check(server, database, url=url, tables=[f"{database}.{pattern}"])
        return next(each.message for each in found if each.name == "tables")

    hidden = f"the account sees no others in {database}, as it has rights to single tables"
    try:
        assert said("*") == f"1 table matches; {hidden}"
        assert said("a") == "1 table matches"
        server.execute(f"GRANT SELECT ON `{database}`.* TO 'narrow'@'%'")
        assert said("*") == "2 tables match"
    finally:
        server.execute("DROP USER 'narrow'@'%'")


def test_rights_of_a_role_count(mysql_family: MySqlFamilyServer) -> None:
    server = mysql_family
    url = server.create_user("actor", "s3cret")
    server.execute("CREATE ROLE scribe")
    server.execute("GRANT SELECT, INSERT, UPDATE, CREATE ON `tidelog`.* TO scribe")
    host = "@'%'" if server.flavor == "mysql" else ""
    server.execute(f"GRANT scribe{host} TO 'actor'@'%'")
    try:
        assert faults(check(server, "none", url=url))["watermark table"].level == "error"
        if server.flavor == "mysql":
            server.execute("SET DEFAULT ROLE ALL TO 'actor'@'%'")
        else:
            server.execute("SET DEFAULT ROLE scribe FOR 'actor'@'%'")
        assert "watermark table" not in faults(check(server, "none", url=url))
    finally:
        server.execute("DROP USER 'actor'@'%'")
        server.execute("DROP ROLE scribe")


def test_tables_that_need_care_are_named_with_sql(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    server, database = mysql_family, mysql_family_database
    for statement in (
        "CREATE TABLE `No Key` (v int)",
        "CREATE TABLE old (id int PRIMARY KEY) ENGINE = MyISAM",
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int PRIMARY KEY, p int, CONSTRAINT follows FOREIGN KEY (p) "
        "REFERENCES parent (id) ON DELETE CASCADE)",
        "CREATE TABLE still (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES parent (id))",
        "CREATE TABLE twice (a int NOT NULL, b int NOT NULL)",
        "CREATE TABLE once (a int NOT NULL, b int NOT NULL, UNIQUE (b, a))",
        "CREATE TABLE perhaps (a int, b int NOT NULL, UNIQUE (b, a))",
    ):
        server.execute(statement, database)
    keys = {f"{database}.{name}": ["a", "b"] for name in ("twice", "once", "perhaps")}
    found = faults(check(server, database, keys=keys))
    del found["row metadata"]
    child = {} if logs_cascades(server) else {"child": "error"}
    assert {name.removeprefix(f"table {database}."): f.level for name, f in found.items()} == {
        "No Key": "warning", "old": "warning", "twice": "error", "perhaps": "warning", **child,
    }  # fmt: skip
    assert f"ALTER TABLE `{database}`.`No Key` ADD PRIMARY KEY" in found[
        f"table {database}.No Key"
    ].fix  # fmt: skip
    [proposed] = [f for f in check(server, database) if f.name.endswith(".once")]
    assert proposed.fix.endswith(f'source.keys: {{"{database}.once": ["b", "a"]}}')
    hidden = check(server, database, exclude_columns=[f"{database}.*.B"])
    [made] = [f for f in hidden if f.name.endswith(".once") and f.level == "warning"]
    assert f"ALTER TABLE `{database}`.`once` ADD PRIMARY KEY" in made.fix
    if child:
        assert "follows (ON DELETE CASCADE)" in found[f"table {database}.child"].message
        accepted = faults(check(server, database, keys=keys, cascades="accept"))
        assert accepted[f"table {database}.child"].level == "warning"
        server.execute(found[f"table {database}.child"].fix, database)
    server.execute(found[f"table {database}.old"].fix, database)
    misspelled = check(server, database, keys={f"{database}.once": ["B", "w"]})
    [wrong] = [each for each in misspelled if each.name == f"table {database}.once"]
    assert "columns that it does not have: B (did you mean b?), w;" in wrong.message
    left = set(faults(check(server, database, keys=keys)))
    assert left.isdisjoint({f"table {database}.child", f"table {database}.old"})


def test_columns_that_may_hold_zero_dates_are_named_in_one_note(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    server, database = mysql_family, mysql_family_database
    server.execute("CREATE TABLE a (id int PRIMARY KEY, d date, t time)", database)
    server.execute("CREATE TABLE b (id int PRIMARY KEY, `At` datetime, y year)", database)
    found: dict[str, list[str]] = {}
    for mode in ("NO_ZERO_DATE", "NO_ZERO_DATE,NO_ZERO_IN_DATE"):
        with setting(server, "sql_mode", mode):
            for hidden in ("none", "a.d"):
                findings = check(server, database, exclude_columns=[f"{database}.{hidden}"])
                found[f"{mode} {hidden}"] = [
                    each.message for each in findings if each.name == "zero dates"
                ]
                assert not [each for each in findings if "date" in each.name and each.level != "ok"]
    text = (
        "without NO_ZERO_IN_DATE in sql_mode, dates like 0000-00-00 may be stored; outputs get "
        "NULL for them, in a key a date before Christ of its own:"
    )
    assert list(found.values()) == [
        [f"{text} {database}.a.d and 1 more"],
        [f"{text} {database}.b.At"],
        [],
        [],
    ]


def test_no_table_and_no_signal_table_are_named(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    server, database = mysql_family, mysql_family_database
    found = faults(check(server, database, signal_table=f"{database}.signals"))
    assert found["tables"].level == "warning"
    grants = [
        [line.partition(" TO ")[0] for line in finding.fix.splitlines() if line[0] != "-"]
        for patterns in (
            [f"{database}.*", f"!{database}.z"],
            [f"{database}.a", f"{database}.b"],
            ["no*.x"],
        )
        for finding in check(server, database, tables=patterns)
        if finding.name == "tables"
    ]
    escaped = database.replace("_", "\\_")
    assert grants == [  # each as narrow as what it is for
        [f"GRANT SELECT ON `{escaped}`.*"],
        [f"GRANT SELECT ON `{database}`.`a`", f"GRANT SELECT ON `{database}`.`b`"],
        ["GRANT SELECT ON `(...)`.`x`"],  # of the pattern no*.x
    ]
    assert found["signal table"].level == "error"
    server.execute(found["signal table"].fix)
    assert "signal table" not in faults(check(server, database, signal_table=f"{database}.signals"))


def test_server_that_writes_no_binlog_and_a_replica_that_logs_nothing_are_named() -> None:
    with MariaDbServer() as primary:
        replica = MariaDbServer.replica_of(primary, {"log_slave_updates": False})
        with replica:
            found = faults(check(replica, "shop"))
            assert found["replica"].fix.startswith("log_slave_updates = ON")
            assert found["read only"].fix.startswith("source.watermarks: gtid")
            assert "read only" not in faults(check(replica, "shop", strategy="gtid"))
            replica.restart({"log_slave_updates": True})
            assert "replica" not in faults(check(replica, "shop", strategy="gtid"))
        primary.restart(
            {
                "log_bin": None,
                "binlog_ignore_db": None,
                "log_slave_updates": False,
                "binlog_format": "MIXED",
            }
        )
        found = faults(check(primary, "shop"))
        assert found["log_bin"].level == "error"
        assert found["binlog_format"].fix.startswith("binlog_format = ROW  #")  # it must restart
        primary.restart({"log_bin": "binlog", "binlog_ignore_db": "shop"})
        assert "binlog_ignore_db" in faults(check(primary, "shop"))["log filter"].message
        primary.stop()
        findings = check(primary, "shop")
    assert [(f.name, f.level) for f in findings] == [("connection", "error")]


def test_session_that_is_not_logged_is_named(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    name = f"unlogged_{mysql_family_database}"
    right = "SYSTEM_VARIABLES_ADMIN" if mysql_family.flavor == "mysql" else "BINLOG ADMIN"
    url = mysql_family.create_user(name, "s3cret", privileges=[right])
    try:
        with setting(mysql_family, "init_connect", "SET SESSION sql_log_bin = 0"):
            found = faults(check(mysql_family, mysql_family_database, url=url))
            with pytest.raises(PreflightError, match=r"sql_log_bin 0.*init_connect"):
                connect(url, purpose="test")
    finally:
        mysql_family.execute(f"DROP USER {name}")
    assert "sql_log_bin 0" in found["sessions"].message


@pytest.mark.parametrize("autocommit", [True, False])
def test_sessions_have_their_own_modes_whatever_the_servers_defaults(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, autocommit: bool
) -> None:
    """What writes marks must be allowed to write, and what commits must do so by itself."""
    mysql = mysql_family.flavor == "mysql"
    name = f"modes_{mysql_family_database}"
    url = mysql_family.create_user(
        name, "s3cret", privileges=["SELECT", "CREATE", "INSERT"], on=f"{mysql_family_database}.*"
    )
    read_only = "transaction_read_only" if mysql else "tx_read_only"
    mysql_family.execute("CREATE TABLE t (a INT PRIMARY KEY)", mysql_family_database)
    try:
        with (
            setting(mysql_family, "init_connect", f"SET autocommit = {int(not autocommit)}"),
            setting(mysql_family, read_only, "ON"),
            connect(url, purpose="test", autocommit=autocommit) as ours,
        ):
            ours.rows(f"INSERT INTO {mysql_family_database}.t VALUES (1)")
            assert bool(ours.value("SELECT @@session.autocommit")) is autocommit
            found = faults(check(mysql_family, mysql_family_database, url=url))
    finally:
        mysql_family.execute(f"DROP USER {name}")
    assert "sessions" not in found


def test_grants_are_read_as_the_servers_spell_them() -> None:
    grants = Grants(
        "'u'@'%'",
        [
            "GRANT USAGE ON *.* TO `u`@`%`",
            "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO `u`@`%` WITH GRANT OPTION",
            "GRANT `role`@`%` TO `u`@`%`",
            r"GRANT SELECT, INSERT ON `a\_b%`.* TO `u`@`%`",
            "GRANT SELECT (`x`), UPDATE ON `c`.`t``t` TO `u`@`%`",
            "GRANT EXECUTE ON PROCEDURE `c`.`p` TO `u`@`%`",
            "GRANT SELECT ON `d`.* TO `u`@`%`",
            "REVOKE SELECT ON `d`.* FROM `u`@`%`",
        ],
    )
    assert grants.missing(["REPLICATION SLAVE", "REPLICATION CLIENT", "RELOAD"]) == ["RELOAD"]
    assert grants.missing(["SELECT"], "a_bc") == []
    assert grants.missing(["SELECT"], "axb") == ["SELECT"]
    assert grants.missing(["SELECT", "UPDATE"], "c", "t`t") == ["SELECT"]
    assert grants.missing(["UPDATE"], "c") == ["UPDATE"]
    assert grants.missing(["SELECT"], "d", "t") == ["SELECT"]
