"""Tables that change their shape during their dump: each change has a defined outcome."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
from tests.behaviours.dumps.dumped import Dumped, Make, gate
from tests.behaviours.dumps.sources import N, series
from tests.behaviours.dumps.ways import TWO, ways
from tests.integration.windows.live import replay

pytestmark = pytest.mark.integration

COLUMNS = "id int PRIMARY KEY, n bigint NOT NULL, v varchar(40), w int"
ROWS = series(30, "i, 1, concat('v', i), i")


@dataclass(frozen=True)
class Changed:
    """A change, what is written behind it, and what the event log shows in the end.

    ``again``: the table is dumped once more, because rows changed without records. ``mysql``: the
    change in the words of MySQL and MariaDB, if they have others.
    """

    name: str
    ddl: tuple[str, ...]
    write: str
    again: bool
    key: tuple[str, ...] = ("id",)
    mysql: tuple[str, ...] = ()

    def spelled(self, kind: str) -> tuple[str, ...]:
        return self.mysql if self.mysql and kind != "postgres" else self.ddl

    def __str__(self) -> str:
        return self.name


CHANGES = [
    Changed(
        "column added",
        ("ALTER TABLE t ADD x text",),
        f"INSERT INTO t VALUES (41, {N}, 'a', 1, 'x')",
        again=False,
    ),
    Changed(
        "column with a default added",
        ("ALTER TABLE t ADD x varchar(9) DEFAULT 'd'",),
        f"UPDATE t SET n = {N} WHERE id = 2",
        again=True,
    ),
    Changed(
        "column dropped",
        ("ALTER TABLE t DROP v",),
        f"UPDATE t SET n = {N} WHERE id IN (2, 29)",
        again=False,
    ),
    Changed(
        "column renamed",
        ("ALTER TABLE t RENAME COLUMN v TO vv",),
        f"UPDATE t SET n = {N} WHERE id IN (2, 29)",
        again=True,
    ),
    Changed(
        "type changed",
        ("ALTER TABLE t ALTER w TYPE text USING (w * 2)::text",),
        f"UPDATE t SET n = {N} WHERE id IN (2, 29)",
        again=True,
        mysql=("ALTER TABLE t MODIFY w varchar(20)",),
    ),
    Changed(
        "nullability changed",
        ("ALTER TABLE t ALTER w SET NOT NULL", "ALTER TABLE t ALTER v SET NOT NULL"),
        f"UPDATE t SET n = {N} WHERE id IN (2, 29)",
        again=False,
        mysql=("ALTER TABLE t MODIFY w int NOT NULL, MODIFY v varchar(40) NOT NULL",),
    ),
    Changed(
        "default changed",
        ("ALTER TABLE t ALTER w SET DEFAULT 5",),
        f"INSERT INTO t (id, n) VALUES (41, {N})",
        again=False,
    ),
    Changed(
        "primary key changed",
        (
            "ALTER TABLE t DROP CONSTRAINT t_pkey",
            "ALTER TABLE t ALTER v SET NOT NULL",
            "ALTER TABLE t ADD PRIMARY KEY (v)",
        ),
        f"UPDATE t SET n = {N}, id = 50 WHERE id IN (2)",
        again=True,
        key=("v",),
        mysql=(
            "ALTER TABLE t DROP PRIMARY KEY, MODIFY v varchar(40) NOT NULL, ADD PRIMARY KEY (v)",
        ),
    ),
    Changed(
        "truncated",
        ("TRUNCATE TABLE t",),
        "INSERT INTO t " + series(40, f"i, {N}, 'new', 1", first=3, step=4),
        again=False,
    ),
]


def in_the_middle(dumped: Dumped, *statements: str) -> str:
    """Act between the chunks of a dump, of which the third waits to be read; the dump's id."""
    with gate("chunk.after_low", hit=3) as held:
        dump = dumped.dump()
        dumped.reach(held)
        for statement in statements:
            dumped.do(statement)
        held.open()
        dumped.wait_for(
            lambda: dumped.state(dump)["status"] in ("completed", "aborted"), "the dump ends"
        )
    return dump


def at_rest(dumped: Dumped) -> None:
    """Both log and catalogue may ask for a dump again: wait until no other one comes."""
    quiet_since, known = time.monotonic(), 0

    def is_quiet() -> bool:
        nonlocal quiet_since, known
        dumps = dumped.seen["dumps"]
        if len(dumps) != known or any(d["status"] in ("queued", "running") for d in dumps):
            quiet_since, known = time.monotonic(), len(dumps)
        return time.monotonic() - quiet_since > 1.0

    dumped.wait_for(is_quiet, "no dump is under way or comes")


@pytest.mark.parametrize("changed", CHANGES, ids=str)
@ways(TWO)
def test_shape_changes_in_the_middle(make: Make, changed: Changed) -> None:
    """Debezium: schemaChanges, columnNullabilityChanges, columnDefaultChanges. Whatever becomes of
    the dump under way, in the end the event log gives the table.
    """
    dumped = make(snapshot="initial")
    dumped.table(columns=COLUMNS, rows=ROWS)
    if changed.key != ("id",):
        dumped.ledgers.clear()
        dumped.on.unnote(dumped.sql, "t")
    dumped.start()
    dumped.dumped("initial")
    dumped.do(f"UPDATE t SET n = {N} WHERE id = 30")
    dumped.catch_up()
    dump = in_the_middle(dumped, *changed.spelled(dumped.on.kind), changed.write)
    if changed.again:
        dumped.wait_for(
            lambda: any(
                d["dump_id"].startswith("auto-") and d["status"] == "completed"
                for d in dumped.seen["dumps"]
            ),
            "it is dumped again",
        )
    elif changed.name != "truncated":
        assert dumped.state(dump)["status"] == "completed", dumped.state(dump)
    at_rest(dumped)
    gives_the_table(dumped, changed.key)
    if changed.again:
        dumped.ledgers.clear()
        if changed.key == ("id",):
            dumped.check()


def test_renamed_column_of_a_table_that_no_record_has_shown(make: Make) -> None:
    """Chunks meet the new name before the log does: rows read before must come again."""
    dumped = make(snapshot="initial")
    dumped.table(columns=COLUMNS, rows=ROWS)
    dumped.start()
    dumped.dumped("initial")
    in_the_middle(dumped, "ALTER TABLE t RENAME COLUMN v TO vv")
    dumped.do(f"UPDATE t SET n = {N} WHERE id = 29")
    dumped.wait_for(lambda: len(dumped.completions()) > 2, "it is dumped again")
    gives_the_table(dumped, ("id",))


def test_column_that_is_dropped_and_added_again(make: Make) -> None:
    dumped = make(snapshot="initial")
    dumped.table(columns=COLUMNS, rows=ROWS)
    dumped.start()
    dumped.dumped("initial")
    dumped.do("ALTER TABLE t DROP w", "ALTER TABLE t ADD w int")
    dumped.do(f"UPDATE t SET n = {N} WHERE id = 29")
    dumped.wait_for(lambda: len(dumped.completions()) > 1, "it is dumped again")
    gives_the_table(dumped, ("id",))


def gives_the_table(dumped: Dumped, key: tuple[str, ...]) -> None:
    """Replay from the last dump on; a column that a row lacks is NULL, one that went is left."""
    dumped.catch_up()
    last = dumped.completions()[-1].control
    assert last is not None
    later = [e for e in dumped.events("public.t") if e.offset >= last["first_offset"]]
    now = dumped.source("t", key)
    columns = list(next(iter(now.values())))
    shown = {k: {c: row.get(c) for c in columns} for k, row in replay(later).items()}
    assert shown == now, {k for k in {*shown, *now} if shown.get(k) != now.get(k)}
    for _chunk, events in dumped.chunks():
        assert len({e.schema_id for e in events}) <= 1, "a chunk of two versions of the schema"


@ways(TWO)
def test_dump_right_behind_a_schema_change(make: Make) -> None:
    """Debezium: snapshotPreceededBySchemaChange."""
    dumped = make()
    dumped.table(columns=COLUMNS, rows=ROWS)
    dumped.start()
    for statement in ("ALTER TABLE t ADD x int", "ALTER TABLE t DROP v", "ALTER TABLE t DROP w"):
        dumped.do(statement)
        dumped.dumped(dumped.dump())
        gives_the_table(dumped, ("id",))


@pytest.mark.parametrize("gone", ["dropped", "elsewhere"])
@ways(TWO)
def test_table_that_goes_away_fails_alone(make: Make, gone: str) -> None:
    dumped = make(dump_lines="delay_ms: 20")
    dumped.table(rows=30)
    dumped.table("u", rows=30)
    dumped.start()
    with gate("chunk.after_low", hit=3) as held:
        dump = dumped.dump("public.t", "public.u")
        dumped.reach(held)
        dumped.on.unnote(dumped.sql, "t")
        dumped.do("DROP TABLE t" if gone == "dropped" else dumped.on.moves_away("t"))
        held.open()
        dumped.dumped(dump)
    assert dumped.progress(dump)["status"] == "failed"
    assert "does not exist" in dumped.progress(dump)["reason"]
    assert dumped.progress(dump, "public.u")["status"] == "done"
    assert not dumped.completions()
    dumped.check("public.u")


@ways(TWO)
def test_renamed_table_fails_and_its_new_name_is_dumped(make: Make) -> None:
    """Debezium: renameTable."""
    dumped = make(snapshot="initial")
    dumped.table(rows=30)
    dumped.start()
    dumped.dumped("initial")
    in_the_middle(dumped, "ALTER TABLE t RENAME TO renamed")
    dumped.do(f"UPDATE renamed SET n = {N} WHERE id = 7")
    dumped.wait_for(lambda: dumped.completions("public.renamed"), "it is dumped")
    dumped.do(f"UPDATE renamed SET n = {N} WHERE id = 8")
    dumped.ledgers.clear()
    dumped.check("public.renamed")


@ways(TWO)
def test_ddl_waits_for_no_dump_and_no_dump_for_ddl(make: Make) -> None:
    """A chunk that can't have its lock is read later; the log and other tables go on."""
    dumped = make()
    dumped.table(rows=20)
    dumped.table("u", rows=20)
    dumped.start()
    dumped.on.unnote(dumped.sql, "t")  # what triggers write to is locked with the table
    with dumped.connect(autocommit=False) as ddl:
        ddl.execute(dumped.on.locks("t"))
        locked = dumped.dump("public.t")
        dumped.wait_for(
            lambda: dumped.chunk_reader_waits() or dumped.seen["chunks_unanswered"],
            "its read waits",
        )
        dumped.do(f"UPDATE u SET n = {N} WHERE id = 3")
        dumped.catch_up()
        if dumped.parallelism > 1:
            dumped.dumped(dumped.dump("public.u"))
    dumped.dumped(locked)
    dumped.check()
