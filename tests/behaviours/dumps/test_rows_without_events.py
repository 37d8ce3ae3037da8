"""Rows that change in MySQL and MariaDB without row events: the table is dumped again.

PostgreSQL's ways are in tests/integration/windows/test_rows_without_events.py.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from tests.behaviours.dumps.dumped import PLAIN, Dumped, Make
from tests.behaviours.dumps.sources import N, series
from tests.behaviours.dumps.sources_mysql import MySqlSource
from tests.behaviours.dumps.test_schema_changes import at_rest, gives_the_table, in_the_middle
from tests.behaviours.dumps.ways import BINLOG, Way, only, ways
from tests.integration.windows.live import PATIENCE_S, at, crash, replay

from tidelog.errors import PreflightError

pytestmark = pytest.mark.integration
EVERY_BINLOG = [*BINLOG, Way("table", 1, "mysql"), Way("gtid", 1, "mariadb")]


def again(dumped: Dumped, table: str = "public.t", times: int = 2) -> None:
    """The table was dumped by itself, once more."""
    dumped.wait_for(lambda: len(dumped.completions(table)) >= times, "it is dumped again")
    at_rest(dumped)
    last = dumped.completions(table)[-1].control
    assert last is not None
    assert last["delete_absent"], "what is gone is deleted"


def partitioned(make: Make, **options: object) -> Dumped:
    dumped = make(snapshot="initial", **options)
    for statement in dumped.on.partitioned("t", range(0, 40, 10)):
        dumped.sql.execute(statement)
    dumped.sql.execute("INSERT INTO t " + series(35))
    dumped.sql.execute(f"CREATE TABLE aside.other ({PLAIN})")
    dumped.sql.execute("INSERT INTO aside.other " + series(19, first=12))
    dumped.start()
    dumped.dumped("initial")
    return dumped


PARTITIONS = [
    "ALTER TABLE t DROP PARTITION p10",
    "ALTER TABLE t TRUNCATE PARTITION p10, p20",
    "ALTER TABLE t EXCHANGE PARTITION p10 WITH TABLE aside.other",
]


@pytest.mark.parametrize("ddl", PARTITIONS, ids=["drop", "truncate", "exchange"])
@ways(BINLOG)
def test_partitions_that_lose_or_gain_rows(make: Make, ddl: str) -> None:
    dumped = partitioned(make)
    dumped.sql.execute(ddl)  # without autocommit MariaDB's EXCHANGE waits for itself
    dumped.do(f"UPDATE t SET n = {N} WHERE id IN (3, 33)")
    again(dumped)
    dumped.check()


@ways(BINLOG)
def test_partition_dropped_in_the_midst_of_a_dump(make: Make) -> None:
    dumped = partitioned(make)
    in_the_middle(dumped, "ALTER TABLE t DROP PARTITION p0")
    dumped.do(f"INSERT INTO t VALUES (4, {N}), (36, {N})")
    dumped.wait_for(lambda: len(dumped.completions()) >= 2, "it is dumped again")
    at_rest(dumped)
    dumped.check()


@ways(BINLOG)
def test_partition_dropped_while_capture_was_down(make: Make) -> None:
    dumped = partitioned(make)
    dumped.catch_up()
    dumped.stop()
    dumped.do("ALTER TABLE t TRUNCATE PARTITION p0")
    dumped.start()
    again(dumped)
    dumped.check()


@ways(BINLOG)
def test_rebuilds_that_keep_rows_dump_nothing(make: Make) -> None:
    dumped = partitioned(make)
    for statement in (
        "ALTER TABLE t ENGINE = InnoDB",
        "OPTIMIZE TABLE t",
        "ALTER TABLE t ADD INDEX by_n (n)",
        "ALTER TABLE t ADD PARTITION (PARTITION p40 VALUES LESS THAN (50))",
        "ALTER TABLE t REORGANIZE PARTITION p0, p10 INTO (PARTITION p19 VALUES LESS THAN (20))",
        "ALTER TABLE t COMMENT 'TRUNCATE TABLE t'",
    ):
        dumped.sql.execute(statement)
        dumped.do(f"UPDATE t SET n = {N} WHERE id IN (3, 33)")
    at_rest(dumped)
    dumped.check()
    whole = [d for d in dumped.seen["dumps"] if d["dump_id"] != "initial"]
    assert [d["reason"] for d in whole] in ([], ["its rows may have changed without row events"])


# ---------------------------------------------------------------- swapped by name


@dataclass(frozen=True)
class Swap:
    """How a tool changes a table on line: a copy is filled, and takes the table's name."""

    name: str
    copy: str
    captured: tuple[str, ...]
    columns: str = "id int PRIMARY KEY, n bigint NOT NULL"
    into: str = "SELECT id, n FROM t"

    def __str__(self) -> str:
        return self.name


SWAPS = [
    Swap("copy captured", "_t_new", ("public.*",)),
    Swap("copy not captured", "_t_gho", ("public.t", "public.tick")),
    Swap(
        "with another shape",
        "_t_new",
        ("public.t", "public.tick"),
        "id bigint PRIMARY KEY, n bigint NOT NULL, more varchar(20) DEFAULT 'x'",
        "SELECT id, n, concat('more ', id) FROM t",
    ),
    Swap(
        "with other rows",
        "_t_new",
        ("public.t", "public.tick"),
        into="SELECT id + 3, n FROM t WHERE id > 5",
    ),
]


def swapped(dumped: Dumped, swap: Swap) -> Sequence[str]:
    return (
        f"CREATE TABLE {swap.copy} ({swap.columns})",
        f"INSERT INTO {swap.copy} {swap.into}",
        f"RENAME TABLE t TO _t_old, {swap.copy} TO t",
        f"UPDATE t SET n = {N} WHERE id IN (9, 29)",
        f"UPDATE _t_old SET n = {N} WHERE id IN (9, 29)",
    )


@pytest.mark.parametrize("when", ["at rest", "in a dump", "while down"])
@pytest.mark.parametrize("swap", SWAPS, ids=str)
@ways(BINLOG)
def test_table_that_changes_places_with_its_copy(make: Make, swap: Swap, when: str) -> None:
    """pt-online-schema-change and gh-ost end so. The name is what is captured."""
    dumped = make(snapshot="initial", tables=swap.captured)
    dumped.sql.execute(f"CREATE TABLE t ({PLAIN})")
    dumped.sql.execute("INSERT INTO t " + series(30))
    dumped.start()
    dumped.dumped("initial")
    dumped.do(f"UPDATE t SET n = {N} WHERE id = 30")
    dumped.catch_up()
    if when == "in a dump":
        in_the_middle(dumped, *swapped(dumped, swap))
    else:
        if when == "while down":
            dumped.stop()
        for statement in swapped(dumped, swap):
            dumped.do(statement)
        if when == "while down":
            dumped.do("DROP TABLE _t_old")
            dumped.start()
    again(dumped)
    gives_the_table(dumped, ("id",))
    assert replay(dumped.events("public.t")).keys() == dumped.source("t", ("id",)).keys()
    if when == "at rest" and swap.name == "copy captured":
        dumped.wait_for(lambda: dumped.completions("public._t_old"), "a new name is dumped")
        at_rest(dumped)
        dumped.check("public._t_old")


@ways(BINLOG)
def test_two_tables_that_swap_names(make: Make) -> None:
    """Each copy is its name's; nothing is reported as renamed, for both names are in use."""
    dumped = make(snapshot="initial", tables=("public.t", "public.u", "public.tick"))
    for table, last in (("t", 12), ("u", 5)):
        dumped.sql.execute(f"CREATE TABLE {table} ({PLAIN})")
        dumped.sql.execute(f"INSERT INTO {table} {series(last, f'i, {last}')}")
    dumped.start()
    dumped.dumped("initial")
    dumped.do("RENAME TABLE t TO aside.tmp, u TO t, aside.tmp TO u")
    dumped.do(f"UPDATE t SET n = {N} WHERE id = 2", "DELETE FROM u WHERE id = 3")
    for table, rows in (("t", 5), ("u", 11)):
        again(dumped, f"public.{table}")
        dumped.catch_up()
        replayed = replay(dumped.events(f"public.{table}"))
        assert replayed == dumped.source(table, ("id",))
        assert len(replayed) == rows
    assert not dumped.seen["renamed"]


@pytest.mark.parametrize(
    ("statement", "now", "reported"),
    [
        ("RENAME TABLE t TO u", "public.u", "public.u is captured as a table of its own"),
        ("ALTER TABLE t ADD x int, RENAME TO aside.t", "aside.t", "aside.t is not captured"),
    ],
)
@ways(BINLOG)
def test_table_that_is_renamed_for_good_is_reported(
    make: Make, caplog: pytest.LogCaptureFixture, statement: str, now: str, reported: str
) -> None:
    """Until a table has its name again. PostgreSQL: test_changes_undone.py of windows."""
    dumped = make(snapshot="initial")
    dumped.sql.execute(f"CREATE TABLE t ({PLAIN})")
    dumped.sql.execute("INSERT INTO t " + series(9))
    dumped.start()
    dumped.dumped("initial")
    dumped.do(statement, f"UPDATE {now} SET n = {N} WHERE id = 3")
    dumped.wait_for(lambda: dumped.seen["renamed"], "it is reported")
    [renamed] = dumped.seen["renamed"]
    assert (renamed["table"], renamed["now"]) == ("public.t", now)
    assert f"public.t was renamed to {now}: copies of public.t stay as they are" in caplog.text
    assert reported in caplog.text
    dumped.catch_up()
    assert {e.row["n"] for e in dumped.events("public.t") if e.row} == {"1"}, "under another name"
    assert (now in {e.table for e in dumped.events()}) == renamed["captured"]
    if renamed["captured"]:
        again(dumped, now, times=1)
        assert replay(dumped.events(now)) == dumped.source(now, ("id",))
    dumped.restart()
    assert dumped.seen["renamed"] == [renamed]
    dumped.do(f"CREATE TABLE t ({PLAIN})")
    dumped.wait_for(lambda: not dumped.seen["renamed"], "the name is in use again")


@pytest.mark.parametrize("tables", [("public.*",), ("public.t", "public.tick")], ids=str)
@ways(BINLOG)
def test_table_that_bears_another_name_for_a_while(make: Make, tables: tuple[str, ...]) -> None:
    """PostgreSQL: tests/integration/windows/test_changes_undone.py."""
    dumped = make(snapshot="initial", tables=tables)
    dumped.sql.execute(f"CREATE TABLE t ({PLAIN})")
    dumped.sql.execute("INSERT INTO t " + series(30))
    dumped.start()
    dumped.dumped("initial")
    dumped.do(f"UPDATE t SET n = {N} WHERE id = 30")
    dumped.catch_up()
    for statement in (
        "RENAME TABLE t TO _aside",
        f"UPDATE _aside SET n = {N} WHERE id IN (9, 29)",
        "DELETE FROM _aside WHERE id = 3",
        "RENAME TABLE _aside TO t",
    ):
        dumped.do(statement)
    again(dumped)
    gives_the_table(dumped, ("id",))
    assert replay(dumped.events("public.t")).keys() == dumped.source("t", ("id",)).keys()


@pytest.mark.parametrize(
    "point",
    [
        "unlogged.due",
        pytest.param("unlogged.requested", marks=pytest.mark.thorough),
        pytest.param("chunk.after_read", marks=pytest.mark.thorough),
    ],
)
@ways(BINLOG)
def test_statement_is_made_good_although_capture_dies_before_its_dump_is_read(
    make: Make, point: str
) -> None:
    """The log is durable past it by then, so that it is not read again."""
    dumped = make(snapshot="initial", tables=("public.t", "public.tick"))
    dumped.sql.execute(f"CREATE TABLE t ({PLAIN})")
    dumped.sql.execute("INSERT INTO t " + series(9))
    dumped.start()
    dumped.dumped("initial")
    dies = threading.Event()

    def die() -> None:
        dies.wait(PATIENCE_S)
        crash()

    with at(point, die), dumped.connect() as session:
        session.execute("SET SESSION binlog_format = 'STATEMENT'")
        session.execute("DELETE FROM t WHERE id = 3")
        session.commit()
        dumped.catch_up()
        dies.set()
        dumped.crashes()
    assert len(replay(dumped.events("public.t"))) == 9
    dumped.start()
    again(dumped)
    assert replay(dumped.events("public.t")) == dumped.source("t", ("id",))


@ways(only("mariadb", EVERY_BINLOG))
def test_replaced_table(make: Make) -> None:
    """MariaDB: CREATE OR REPLACE."""
    dumped = make(snapshot="initial")
    dumped.table(rows=12)
    dumped.start()
    dumped.dumped("initial")
    dumped.sql.execute(f"CREATE OR REPLACE TABLE t ({PLAIN}) {series(7, 'i AS id, 5 AS n')}")
    again(dumped)
    dumped.ledgers.clear()
    dumped.check()


@ways(BINLOG)
def test_table_dropped_and_made_anew(make: Make) -> None:
    dumped = make(snapshot="initial")
    dumped.table(rows=12)
    dumped.start()
    dumped.dumped("initial")
    dumped.do("DROP TABLE t", f"CREATE TABLE t ({PLAIN})", "INSERT INTO t " + series(7, f"i, {N}"))
    again(dumped)
    dumped.ledgers.clear()
    dumped.check()


# ---------------------------------------------------------------- below the log


@ways(BINLOG)
def test_imported_tablespace(make: Make) -> None:
    dumped = make(snapshot="initial")
    dumped.table(rows=12)
    dumped.sql.execute(f"CREATE TABLE aside.other ({PLAIN})")
    dumped.sql.execute("INSERT INTO aside.other " + series(30, "i, 7", first=8))
    dumped.start()
    dumped.dumped("initial")
    assert isinstance(dumped.on, MySqlSource)
    data = dumped.on.server.data_dir
    dumped.sql.execute("ALTER TABLE t DISCARD TABLESPACE")
    with dumped.connect() as exporting:
        exporting.execute("FLUSH TABLES aside.other FOR EXPORT")
        owner = (data / "aside" / "other.ibd").stat()
        for ending in ("ibd", "cfg"):
            target = data / "public" / f"t.{ending}"
            shutil.copyfile(data / "aside" / f"other.{ending}", target)
            shutil.chown(target, owner.st_uid, owner.st_gid)
        exporting.execute("UNLOCK TABLES")
    dumped.sql.execute("ALTER TABLE t IMPORT TABLESPACE")
    again(dumped)
    dumped.ledgers.clear()
    dumped.check()
    assert len(dumped.source("t", ("id",))) == 23


def related(dumped: Dumped) -> None:
    dumped.sql.execute(f"CREATE TABLE parent ({PLAIN})")
    dumped.sql.execute("INSERT INTO parent " + series(3))
    dumped.sql.execute(
        "CREATE TABLE child (id int PRIMARY KEY, n bigint NOT NULL, parent int, "
        "CONSTRAINT of_parent FOREIGN KEY (parent) REFERENCES parent (id) ON DELETE CASCADE)"
    )
    dumped.sql.execute("INSERT INTO child " + series(12, "i, 1, i % 3 + 1"))


@ways(BINLOG)
def test_foreign_key_that_cascades_is_refused(make: Make) -> None:
    dumped = make(snapshot="initial")
    related(dumped)
    dumped.start(wait=False)
    failure = dumped.ended()
    assert isinstance(failure, PreflightError)
    assert "of_parent of public.child (ON DELETE CASCADE)" in str(failure)
    assert "source.cascades" in str(failure)


@ways(BINLOG)
def test_cascades_that_were_accepted_are_made_good_by_a_dump(make: Make) -> None:
    dumped = make(snapshot="initial", source_lines="cascades: accept")
    related(dumped)
    dumped.start()
    dumped.dumped("initial")
    dumped.do("DELETE FROM parent WHERE id = 2")
    dumped.check("public.parent")
    before = replay(dumped.events("public.child"))
    assert len(before) == 12, "the log says nothing of it"
    dumped.dumped(dumped.dump("public.child"))
    dumped.check("public.child")
    assert len(dumped.source("child", ("id",))) == 8
