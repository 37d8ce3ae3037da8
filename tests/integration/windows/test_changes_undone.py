"""What is changed while a table is out of the log's sight, and undone before the next poll.

Polls of the catalogue don't see it: what was altered is as it was. The replaced rows of the
catalogue still show it, and the log does by a relation's number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration.windows import mutations
from tests.integration.windows.live import Live, replay
from tests.integration.windows.rules import Make, rule
from tests.support.postgres import PostgresServer

from tidelog import app
from tidelog.capture.capture_scope import RELATIONS_KEY
from tidelog.capture.catalogue_watch import SHAPES_KEY
from tidelog.capture.dumps.automatic import UNLOGGED_KEY
from tidelog.sources.postgres.catalogue.ddl_trigger import install_sql
from tidelog.sources.postgres.catalogue.publication import Publications
from tidelog.state.sqlite import SqliteState

pytestmark = pytest.mark.integration

PLAIN = "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL, v text)"
FILL = "INSERT INTO t SELECT i, 1, 'v' FROM generate_series(1, 9) i"
PARTITIONED = (
    "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL) PARTITION BY RANGE (id)",
    "CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM (0) TO (5)",
    "CREATE TABLE t_5 PARTITION OF t FOR VALUES FROM (5) TO (10)",
    "INSERT INTO t SELECT i, 1 FROM generate_series(1, 9) i",
)
CHANGE = "UPDATE t SET n = 2 WHERE id < 4"
REMOVE = "DELETE FROM t WHERE id = 9"


@dataclass(frozen=True)
class Case:
    """What is done in and before the capture's time; ``again``: statements of one change each."""

    name: str
    steps: tuple[str, ...]
    setup: tuple[str, ...] = (PLAIN, FILL)

    def __str__(self) -> str:
        return self.name


CASES = [
    Case(
        "renamed",
        (
            "ALTER TABLE t RENAME TO t_aside",
            "UPDATE t_aside SET n = 2 WHERE id < 4",
            "DELETE FROM t_aside WHERE id = 9",
            "ALTER TABLE t_aside RENAME TO t",
        ),
    ),
    Case(
        "truncated under another name",
        (
            "ALTER TABLE t RENAME TO t_aside",
            "TRUNCATE t_aside",
            "ALTER TABLE t_aside RENAME TO t",
        ),
    ),
    Case(
        "in another schema",
        (
            "ALTER TABLE t SET SCHEMA aside",
            "UPDATE aside.t SET n = 2 WHERE id < 4",
            "DELETE FROM aside.t WHERE id = 9",
            "ALTER TABLE aside.t SET SCHEMA public",
        ),
    ),
    Case(
        "another table bears its name",
        (
            "ALTER TABLE t RENAME TO t_old",
            "ALTER TABLE other RENAME TO t",
            "UPDATE t SET n = 7 WHERE id < 4",
            "INSERT INTO t VALUES (77, 7, 'other')",
            "ALTER TABLE t RENAME TO other",
            "ALTER TABLE t_old RENAME TO t",
        ),
        (
            PLAIN,
            FILL,
            "CREATE TABLE other (LIKE t INCLUDING ALL)",
            "INSERT INTO other SELECT i, 5, 'other' FROM generate_series(1, 5) i",
        ),
    ),
    Case(
        "partition detached",
        (
            "ALTER TABLE t DETACH PARTITION t_5",
            "DELETE FROM t_5 WHERE id = 9",
            "UPDATE t_5 SET n = 2 WHERE id = 7",
            "ALTER TABLE t ATTACH PARTITION t_5 FOR VALUES FROM (5) TO (10)",
        ),
        PARTITIONED,
    ),
    Case(
        "not published",
        (
            "ALTER PUBLICATION tidelog DROP TABLE t",
            CHANGE,
            REMOVE,
            "ALTER PUBLICATION tidelog ADD TABLE t",
        ),
    ),
    Case(
        "inserts alone published",
        (
            "ALTER PUBLICATION tidelog SET (publish = 'insert')",
            CHANGE,
            REMOVE,
            "ALTER PUBLICATION tidelog SET (publish = 'insert, update, delete, truncate')",
        ),
    ),
    Case(
        "generated column that keeps its values",
        ("ALTER TABLE t ALTER g DROP EXPRESSION",),
        (PLAIN, "ALTER TABLE t ADD g int GENERATED ALWAYS AS (id * 2) STORED", FILL),
    ),
    Case(
        "label of an enum",
        ("ALTER TYPE mood RENAME VALUE 'good' TO 'fine'",),
        (
            PLAIN,
            "CREATE TYPE mood AS ENUM ('good', 'bad')",
            "ALTER TABLE t ADD m mood[]",
            FILL,
            "UPDATE t SET m = '{good,bad}'",
        ),
    ),
    Case(
        "label of an enum and back",
        (
            "ALTER TYPE mood RENAME VALUE 'good' TO 'fine'",
            "UPDATE t SET n = 2, m = '{fine}' WHERE id < 4",
            "ALTER TYPE mood RENAME VALUE 'fine' TO 'good'",
        ),
        (
            PLAIN,
            "CREATE TYPE mood AS ENUM ('good', 'bad')",
            "ALTER TABLE t ADD m mood[]",
            FILL,
        ),
    ),
    Case(
        "attribute of a composite",
        ("ALTER TYPE pair ADD ATTRIBUTE c int",),
        (
            PLAIN,
            "CREATE TYPE pair AS (a int, b int)",
            "ALTER TABLE t ADD p pair",
            FILL,
            "UPDATE t SET p = (1, 2)",
        ),
    ),
]


def captured(live: Live, case: Case) -> Live:
    live.snapshot = "initial"
    live.sql.execute("CREATE SCHEMA aside")
    for statement in case.setup:
        live.sql.execute(statement.encode())
    live.start()
    live.wait_for(live.completions, "the initial dump")
    live.sql.execute("UPDATE t SET n = 2 WHERE id = 5")
    live.catch_up()
    return live


def with_event_trigger(live: Live) -> None:
    live.sql.execute(install_sql(Publications("tidelog", ["public.*"])).encode())


def agrees(live: Live) -> None:
    """The event log comes to give the table."""

    def same() -> bool:
        return replay(live.events("public.t")) == live.source("t", ("id",))

    live.catch_up()
    live.wait_for(same, "the event log gives the table")
    live.sql.execute("UPDATE t SET n = 9 WHERE id = 2")
    live.catch_up()
    live.wait_for(same, "the event log still gives the table")


def in_one_transaction(live: Live, case: Case) -> None:
    with live.connect(autocommit=False) as session:
        for step in case.steps:
            session.execute(step.encode())


def in_steps(live: Live, case: Case) -> None:
    for step in case.steps:
        live.sql.execute(step.encode())


def while_down(live: Live, case: Case) -> None:
    live.stop()
    in_steps(live, case)
    live.start()


def while_down_in_one_transaction(live: Live, case: Case) -> None:
    live.stop()
    in_one_transaction(live, case)
    live.start()


WAYS = (in_steps, while_down, while_down_in_one_transaction, in_one_transaction)


def cases_and_ways() -> Iterator[object]:
    """Each case in one way in `make test-all`, where all are done in one transaction on 18, a
    third of them with the event trigger.
    """
    for at, case in enumerate(CASES):
        for number, way in enumerate(WAYS):
            marks = () if number == at % 3 else (pytest.mark.thorough,)
            yield pytest.param(case, way, marks=marks, id=f"{case}-{way.__name__}")


@pytest.mark.parametrize(("case", "way"), list(cases_and_ways()))
def test_change_that_was_undone_is_noticed(
    live: Make, case: Case, way: Callable[[Live, Case], None]
) -> None:
    capture = captured(live(poll_interval_s=0.5), case)
    way(capture, case)
    agrees(capture)


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_change_that_was_undone_is_noticed_beside_the_event_trigger(
    live: Make, case: Case, way: Callable[[Live, Case], None]
) -> None:
    """It moves tables between publications, and has capture look at other moments."""
    capture = captured(live(poll_interval_s=0.5), case)
    with_event_trigger(capture)
    way(capture, case)
    agrees(capture)


@pytest.fixture
def live18(
    postgres18: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Live]:
    capture = Live(postgres18.create_database("undone"), tmp_path, monkeypatch)
    try:
        yield capture
    finally:
        capture.close()
        postgres18.drop_database("undone")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_change_that_was_undone_is_noticed_on_postgresql_18(live18: Live, case: Case) -> None:
    captured(live18, case)
    if CASES.index(case) % 3 == 0:
        with_event_trigger(live18)
    in_one_transaction(live18, case)
    agrees(live18)


def test_key_that_goes_and_comes_back_on_postgresql_18(live18: Live) -> None:
    captured(live18, CASES[0])
    with_event_trigger(live18)
    live18.stop()
    with live18.connect(autocommit=False) as application:
        application.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
        application.execute(CHANGE)
        application.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    live18.start()
    agrees(live18)


@rule(mutations.names_not_known)
def test_name_of_another_table_is_noticed(make: Make) -> None:
    live = captured(make(), CASES[3])
    in_one_transaction(live, CASES[3])
    agrees(live)


@rule(mutations.traces_not_looked_at)
def test_partition_that_was_away_is_noticed(make: Make) -> None:
    live = captured(make(), CASES[4])
    in_one_transaction(live, CASES[4])
    agrees(live)


@pytest.mark.parametrize("aside", ["public.t_aside", "aside.t"])
def test_table_that_is_continued_under_another_name_for_a_while(live: Make, aside: str) -> None:
    """Its dump waits until it is back; what bears its name meanwhile is dumped as another."""
    capture = captured(live(), CASES[0])
    schema, name = aside.split(".")
    capture.sql.execute(f"ALTER TABLE t SET SCHEMA {schema}".encode() if name == "t" else b"")
    capture.sql.execute(f"ALTER TABLE {schema}.t RENAME TO {name}".encode() if name != "t" else b"")
    capture.sql.execute(f"UPDATE {aside} SET n = 3 WHERE id = 3".encode())
    capture.catch_up()
    capture.restart()
    capture.one("SELECT pg_sleep(1)")
    assert len(capture.completions()) == 1
    capture.sql.execute(f"UPDATE {aside} SET n = 4 WHERE id = 4".encode())
    if name == "t":
        capture.sql.execute(f"ALTER TABLE {aside} SET SCHEMA public".encode())
    else:
        capture.sql.execute(f"ALTER TABLE {aside} RENAME TO t".encode())
    agrees(capture)


def test_table_that_was_away_is_dumped_without_any_dump_at_the_start(live: Make) -> None:
    """What became of its rows meanwhile is in no log, nor are a new table's first ones."""
    capture = captured(live(), CASES[0])
    capture.snapshot = "no_data"
    capture.restart()
    state = SqliteState(capture.directory / "state.db")

    def looked(at: str, is_there: bool) -> bool:
        shapes = state.get(SHAPES_KEY)
        return shapes is not None and bool(shapes.value.get(at)) == is_there

    for gone, back in (
        (
            ["ALTER TABLE t SET SCHEMA aside", "ALTER PUBLICATION tidelog DROP TABLE aside.t"],
            ["DELETE FROM aside.t WHERE id > 7", "ALTER TABLE aside.t SET SCHEMA public"],
        ),
        (["DROP TABLE t"], [PLAIN + "; INSERT INTO t VALUES (5, 5, 'new')"]),
    ):
        dumps = len(capture.completions())
        for statement in gone:
            capture.sql.execute(statement.encode())
        capture.wait_for(lambda: looked("public.t", False), "it is away at a look")
        if dumps == 1:
            capture.restart()
        for statement in back:
            capture.sql.execute(statement.encode())
        capture.wait_for(lambda n=dumps: len(capture.completions()) > n, "it is dumped")
        capture.check()
    state.close()
    capture.sql.execute("CREATE TABLE u (id int PRIMARY KEY, n int)")
    capture.sql.execute("INSERT INTO u VALUES (1, 1)")
    capture.wait_for(lambda: capture.completions("public.u"), "a new table is dumped")
    capture.check("public.u")


def test_table_that_is_renamed_for_good_leaves_nothing_behind(live: Make) -> None:
    capture = captured(live(), CASES[0])
    capture.sql.execute("ALTER TABLE t RENAME TO u")
    capture.sql.execute("UPDATE u SET n = 3 WHERE id = 3")
    capture.wait_for(lambda: capture.completions("public.u"), "the new name is dumped")
    state = SqliteState(capture.directory / "state.db")

    def kept() -> set[str]:
        documents = [state.get(key) for key in (RELATIONS_KEY, UNLOGGED_KEY)]
        return {name for document in documents if document for name in document.value}

    capture.wait_for(lambda: kept() == {"public.u", "public.tick"}, "the old name is forgotten")
    state.close()
    [renamed] = app.status(capture.config).document["renamed"]
    assert (renamed["table"], renamed["now"]) == ("public.t", "public.u")
    capture.check("public.u")


@pytest.mark.parametrize("when", ["running", "down"])
def test_table_that_is_renamed_to_what_is_not_captured_is_reported(live: Make, when: str) -> None:
    """Until a table has its name again."""
    capture = captured(live(), CASES[0])

    def renamed() -> list[tuple[str, str, bool]]:
        found = app.status(capture.config).document["renamed"]
        return [(each["table"], each["now"], each["captured"]) for each in found]

    if when == "down":
        capture.stop()
    capture.sql.execute("ALTER TABLE t SET SCHEMA aside")
    if when == "down":
        capture.start()
    capture.wait_for(lambda: renamed() == [("public.t", "aside.t", False)], "it is reported")
    capture.sql.execute(PLAIN.encode())
    capture.wait_for(lambda: not renamed(), "a table has its name")


@pytest.mark.parametrize("copy", ["public.t_new", "aside.t_new"], ids=["captured", "not captured"])
def test_table_that_changes_places_with_its_copy(live: Make, copy: str) -> None:
    """pgroll, pg_repack and people do so. The copy of the name has what the other one held before,
    also if that was never captured. MySQL: tests/behaviours/dumps/test_rows_without_events.py.
    """
    capture = captured(live(), CASES[0])
    capture.sql.execute(f"CREATE TABLE {copy} (LIKE t INCLUDING ALL)".encode())
    capture.sql.execute(f"INSERT INTO {copy} SELECT id + 3, n, 'w' FROM t".encode())
    with capture.connect(autocommit=False) as application:
        application.execute("ALTER TABLE t RENAME TO t_old")
        if copy.startswith("aside."):
            application.execute(f"ALTER TABLE {copy} SET SCHEMA public".encode())
        application.execute("ALTER TABLE t_new RENAME TO t")
        application.execute("UPDATE t SET n = 2 WHERE id = 5")
        application.execute("UPDATE t_old SET n = 2 WHERE id = 5")
    capture.sql.execute("DELETE FROM t WHERE id = 9")
    agrees(capture)
    capture.wait_for(lambda: capture.completions("public.t_old"), "the old table is a new one")
    capture.check("public.t_old")
    reported = {each["table"] for each in app.status(capture.config).document["renamed"]}
    assert "public.t" not in reported, "a table has its name"


@pytest.mark.parametrize(
    "statements",
    [
        "GRANT SELECT ON t TO public; GRANT UPDATE (n) ON t TO public",
        "COMMENT ON TABLE t IS 'x'; COMMENT ON COLUMN t.n IS 'y'; COMMENT ON SCHEMA public IS 'z'",
        "ALTER TABLE t ALTER n SET STATISTICS 500; ANALYZE t; VACUUM t",
        "VACUUM FULL pg_class; VACUUM FULL pg_attribute; VACUUM (FREEZE)",
        "CREATE INDEX ON t (n); CREATE TABLE u (m mood, id int PRIMARY KEY)",
        "ALTER TYPE mood ADD VALUE 'ok'; UPDATE t SET n = 3, m = '{ok}' WHERE id = 3",
        "ALTER TABLE t OWNER TO pg_database_owner",
    ],
)
def test_what_changes_no_row_dumps_nothing(live: Make, statements: str) -> None:
    capture = captured(live(), CASES[8])
    for statement in statements.split("; "):
        capture.sql.execute(statement.encode())
    capture.sql.execute(CHANGE)
    capture.one("SELECT pg_sleep(2)")  # several looks
    capture.catch_up()
    assert replay(capture.events("public.t")) == capture.source("t", ("id",))
    assert len(capture.completions()) == 1
