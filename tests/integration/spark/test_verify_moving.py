"""Verify while writers run: what was falsified is found to the row, and no row that only moves is
called different, however fast it does.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.mysql import MySqlFamilyServer
from tests.support.postgres import PostgresServer

import tidelog
from tidelog import app
from tidelog.app.verification import ComparedSource
from tidelog.config import Config, load_config
from tidelog.errors import TableLeftOutError
from tidelog.eventlog.reader import EventLog
from tidelog.model.schema import TableName
from tidelog.verify import compare
from tidelog.verify.model import Copy, Range

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(900)]

ROWS = 3_000
QUIET = range(1_000, 2_000)  # no writer touches these
HOT = range(1, 6)
MOVING = 9
COLUMNS = "n int, total decimal(10,2), at {time}(6), note varchar(50), code {number}"
ROW = "({id}, {id}, {id}.50, '2024-01-01 00:00:00.000001', 'note {id}', {id}.50)"

# What is done to the copy's row → what verify has to say of which keys.
FALSIFIED = {
    1001: {"n": "n + 1"},
    1003: {"id": "-1003"},
    1004: {"note": "NULL"},
    1005: {"note": "''"},
    # Two rows that have swapped a value: sums of columns would not tell.
    1006: {"n": "1007"},
    1007: {"n": "1006"},
    1008: {"total": "total + 0.01"},
    1009: {"code": "'1009.5'"},  # the same number of another scale
    1010: {"at": "at + INTERVAL '0.000001' SECOND"},
    1011: {"note": "note || ' '"},
}
GONE = 1002
EXPECTED = {
    "missing": {GONE, 1003},
    "surplus": {-1003},
    "different": FALSIFIED.keys() - {1003},
}


class Writers:
    """Sessions that change the table all the time, and never rows of `QUIET`."""

    def __init__(self, run: Callable[[], Callable[[str], Any]]) -> None:
        self._run = run
        self._stop = threading.Event()
        self.failures: list[Exception] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (self._hammer, self._mixed)
        ]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def _guarded(self, work: Callable[[Callable[[str], Any]], None]) -> None:
        try:
            work(self._run())
        except Exception as failure:  # noqa: BLE001 - looked at by the test
            self.failures.append(failure)

    def _hammer(self, run: Callable[[str], Any]) -> None:
        while not self._stop.wait(0.02):
            run(f"UPDATE items SET n = n + 1 WHERE id BETWEEN {HOT[0]} AND {HOT[-1]}")

    def _mixed(self, run: Callable[[str], Any]) -> None:
        chance, last = random.Random(1), ROWS
        while not self._stop.wait(0.05):
            last += 1
            run(f"INSERT INTO items VALUES {ROW.format(id=last)}")
            run(f"UPDATE items SET id = -id WHERE id = {chance.randrange(QUIET[-1] + 1, ROWS)}")
            run(f"UPDATE items SET total = 0 WHERE id = {chance.randrange(10, QUIET[0])}")
            run(f"DELETE FROM items WHERE id = {chance.randrange(10, QUIET[0])}")


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several ranges, in more than one go; what never rests is given up soon."""
    monkeypatch.setattr(compare, "RANGE_ROWS", 500)
    monkeypatch.setattr(compare, "RANGES_AT_ONCE", 4)
    monkeypatch.setattr(compare, "ROUNDS", 2)


def create(run: Callable[[str], Any], time_type: str, number: str) -> None:
    columns = COLUMNS.format(time=time_type, number=number)
    run(f"CREATE TABLE items (id int PRIMARY KEY, {columns})")
    run(f"INSERT INTO items VALUES {', '.join(ROW.format(id=i) for i in range(1, ROWS + 1))}")


@pytest.mark.thorough
def test_falsified_rows_are_found_among_moving_ones_of_postgres(
    spark: Any, postgres16: PostgresServer, tmp_path: Path
) -> None:
    dsn = postgres16.create_database("moving")

    def connected() -> Callable[[str], Any]:
        return psycopg.connect(dsn, autocommit=True).execute

    create(connected(), "timestamp", "numeric")
    try:
        with Writers(connected) as writers:
            check(spark, f"{{kind: postgres, url: '{dsn}', slot: moving}}", "public", tmp_path)
        assert not writers.failures
    finally:
        postgres16.drop_database("moving")


@pytest.mark.thorough
def test_falsified_rows_are_found_among_moving_ones_of_mysql(
    spark: Any, mysql_family: MySqlFamilyServer, mysql_family_database: str, tmp_path: Path
) -> None:
    name = mysql_family_database

    def connected() -> Callable[[str], Any]:
        connection = mysql_family.connect(name)

        def run(sql: str) -> None:
            with connection.cursor() as cursor:
                cursor.execute(sql)

        return run

    create(connected(), "datetime", "decimal(60,2)")
    source = f"{{kind: {mysql_family.flavor}, url: '{mysql_family.dsn(name)}', tables: [{name}.*]}}"
    with Writers(connected) as writers:
        check(spark, source, name, tmp_path)
    assert not writers.failures


def test_a_copy_that_is_written_to_just_when_it_is_looked_at(
    spark: Any, postgres16: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its frame was made, of which state it is then; and after both sides were read, where a
    frame that Spark caches would be read again.
    """
    dsn = postgres16.create_database("moving")
    connection = psycopg.connect(dsn, autocommit=True)
    create(connection.execute, "timestamp", "numeric")
    inserted = f"INSERT INTO items VALUES {ROW.format(id=MOVING)}"
    statements = itertools.cycle([f"DELETE FROM items WHERE id = {MOVING}", inserted])
    watch = ComparedSource.watch

    def move(source: ComparedSource, copy: Copy) -> None:
        connection.execute(next(statements))
        assert source.caught_up([copy]) == [True]

    def watched(self: ComparedSource, table: TableName, copy: Copy) -> Any:
        judge = watch(self, table, copy)

        def moved(session: Any) -> Any:
            changed = judge(session)
            move(self, copy)
            return changed

        return moved

    def verified(session: Any, copies: Iterable[Copy], source: ComparedSource) -> Any:
        def looked_at(copy: Copy) -> Copy:
            def frame(part: Range) -> Any:
                found = copy.frame(part)
                assert found is not None
                pinned = found.where(f"id = {MOVING}").localCheckpoint()
                move(source, copy)
                return found.where(f"id <> {MOVING}").unionByName(pinned)

            return replace(copy, frame=frame)

        return verify_tables(session, map(looked_at, copies), source)

    verify_tables = compare.verify_tables
    config = configured(f"{{kind: postgres, url: '{dsn}', slot: moving}}", "public", tmp_path)
    try:
        with connection, running(config):
            told: list[Any] = []
            assert app.verify(config, on_progress=told.append).to_dict()["equal"]
            stages = [step["stage"] for step in told if "stage" in step]
            done = next(
                stage for stage in stages if stage.endswith(" rows summed up on both sides")
            )
            assert stages[stages.index(done) - 1] == "rows are summed up on both sides"
            monkeypatch.setattr(compare, "verify_tables", verified)
            monkeypatch.setattr(ComparedSource, "watch", watched)
            spark.sql(f"UPDATE delta.`{tmp_path}/lake/public/items` SET n = 0 WHERE id = 7")
            [report] = app.verify(config).to_dict()["tables"]
    finally:
        postgres16.drop_database("moving")
    assert counts(report) == (0, 0, 1), report["keys"]
    assert report["keys"] == [["7"]]
    assert report["unsettled"] == 1


def test_rows_are_those_of_a_copy_that_has_caught_up_meanwhile(
    spark: Any, postgres16: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was behind when its rows were summed up, and had all when they were looked at by key."""
    dsn = postgres16.create_database("late")
    sql = psycopg.connect(dsn, autocommit=True)
    sql.execute("CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items VALUES (1), (2)")
    config = configured(f"{{kind: postgres, url: '{dsn}', slot: late}}", "public", tmp_path)
    caught_up = ComparedSource.caught_up
    looks = itertools.count()

    def late(self: ComparedSource, copies: Sequence[Copy]) -> list[bool]:
        if next(looks) == 0:
            return [False]
        app.run_pipeline(config, once=True, stop_event=threading.Event())
        return caught_up(self, copies)

    try:
        with sql, tidelog.CaptureGroup([config], pipelines=False):
            wait_for(lambda: dumped(config))
            app.run_pipeline(config, once=True, stop_event=threading.Event())
            sql.execute("INSERT INTO items VALUES (3), (4), (5)")
            monkeypatch.setattr(ComparedSource, "caught_up", late)
            [report] = app.verify(config).to_dict()["tables"]
            begun = EventLog.open(f"{tmp_path}/log").latest_offset()
            sql.execute("ALTER TABLE items ADD _version int; INSERT INTO items VALUES (6, 6)")
            wait_for(lambda: EventLog.open(f"{tmp_path}/log").latest_offset() > begun)
            with pytest.raises(TableLeftOutError):
                app.run_pipeline(config, once=True, stop_event=threading.Event())
            told: list[Any] = []
            [left_out] = app.verify(config, on_progress=told.append).to_dict()["tables"]
    finally:
        postgres16.drop_database("late")
    assert (report["equal"], report["rows"]) == (True, 5), report
    assert not left_out["equal"]
    assert left_out["note"].startswith("the output leaves it out: public.items has ")
    assert not [step for step in told if "waits" in step.get("stage", "")], told


def test_copies_with_rows_to_read_again_are_waited_for_together(
    spark: Any, postgres16: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, many copies under load took minutes."""
    dsn = postgres16.create_database("together")
    sql = psycopg.connect(dsn, autocommit=True)
    for table in ("a", "b", "c"):
        sql.execute(f"CREATE TABLE {table} (id int PRIMARY KEY); INSERT INTO {table} VALUES (1)")
    config = configured(
        f"{{kind: postgres, url: '{dsn}', slot: together}}", "public", tmp_path, "*"
    )
    waits: list[int] = []
    caught_up = ComparedSource.caught_up

    def counted(self: ComparedSource, copies: Sequence[Copy]) -> list[bool]:
        waits.append(len(copies))
        if len(waits) == 1:
            return [False] * len(copies)
        if len(waits) == 2:
            app.run_pipeline(config, once=True, stop_event=threading.Event())
        return caught_up(self, copies)

    monkeypatch.setattr(ComparedSource, "caught_up", counted)
    try:
        with sql, tidelog.CaptureGroup([config], pipelines=False):
            wait_for(lambda: dumped(config))
            app.run_pipeline(config, once=True, stop_event=threading.Event())
            for table in ("a", "b", "c"):
                sql.execute(f"INSERT INTO {table} VALUES (2), (3)".encode())
            reports = app.verify(config).to_dict()["tables"]
    finally:
        postgres16.drop_database("together")
    assert [(each["equal"], each["rows"]) for each in reports] == [(True, 3)] * 3, reports
    assert waits == [3, 3]


def configured(source: str, namespace: str, directory: Path, tables: str = "items") -> Config:
    file = directory / "tidelog.yaml"
    file.write_text(
        f"source: {source}\n"
        f"log: {{path: {directory}/log}}\n"
        f"state: {{url: 'sqlite:///{directory}/state.db'}}\n"
        f"outputs: [{{kind: delta, path: {directory}/lake, tables: ['{namespace}.{tables}']}}]\n"
        f"pipeline: {{checkpoint: {directory}/checkpoint}}\n"
    )
    return load_config(file)


def check(spark: Any, source: str, namespace: str, directory: Path) -> None:
    config = configured(source, namespace, directory)
    with running(config):
        [before] = app.verify(config).to_dict()["tables"]
        assert before["method"] == "checksum", before
        assert counts(before) == (0, 0, 0), before["keys"]
        assert before["ranges"] > 4
        assert before["rows"] >= ROWS - len(QUIET)
    falsify(spark, f"delta.`{directory}/lake/{namespace}/items`")
    with running(config):
        [after] = app.verify(config).to_dict()["tables"]
    assert {int(key) for (key,) in after["keys"]} == set().union(*EXPECTED.values())
    assert counts(after) == tuple(len(keys) for keys in EXPECTED.values())
    assert not after["equal"]


def counts(table: dict[str, Any]) -> tuple[int, ...]:
    return table["missing"], table["surplus"], table["different"]


def falsify(spark: Any, copy: str) -> None:
    changes = []
    for name in sorted({name for change in FALSIFIED.values() for name in change}):
        cases = [f"WHEN {id_} THEN {c[name]}" for id_, c in FALSIFIED.items() if name in c]
        changes.append(f"{name} = CASE id {' '.join(cases)} ELSE {name} END")
    keys = ", ".join(map(str, FALSIFIED))
    spark.sql(f"UPDATE {copy} SET {', '.join(changes)} WHERE id IN ({keys})")
    spark.sql(f"DELETE FROM {copy} WHERE id = {GONE}")


@contextmanager
def running(config: Config) -> Iterator[None]:
    """Capture and pipeline on threads; begins once the table is there and was dumped."""
    with tidelog.Capture(config):
        wait_for(lambda: EventLog.exists(str(config.log.path)))
        with tidelog.Pipeline(config):
            wait_for(lambda: dumped(config))
            yield


def dumped(config: Config) -> bool:
    return any(
        dump["status"] == "completed" for dump in app.status(config).document.get("dumps", ())
    )


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
