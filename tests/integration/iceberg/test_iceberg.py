"""The Iceberg output on real tables: exactness by Iceberg's commits, and what is its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pytest
from py4j.clientserver import ClientServerConnection
from tests.integration.iceberg import killing
from tests.integration.iceberg.conftest import IcebergLake
from tests.integration.spark.orders import COLUMNS, orders
from tests.integration.spark.test_delta import (  # noqa: F401
    test_infinite_times_survive,
    test_partial_rows_keep_what_they_do_not_tell,
)
from tests.integration.spark.test_delta_layouts import (  # noqa: F401
    run,
    test_soft_deletes_keep_the_last_state_until_the_row_comes_back,
)
from tests.support.build_log import BuiltLog

from tidelog.app.pipeline.run import run_pipeline
from tidelog.app.verification import copies_of
from tidelog.config import load_config
from tidelog.errors import NameRefusedError, OutputBusyError, OutputError, OutputRefusedError
from tidelog.outputs.lake.iceberg.state import IcebergState
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.transforms import Step
from tidelog.system import failpoints

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
NAMES = ["n0", "n1", "n2", "n3"]
BATCHES = 3


def written(lake: IcebergLake, *, empty: bool) -> int:
    """Four orders, brought over unless the table is to be empty; where that ends."""
    orders(lake.built)
    end = lake.built.log.latest_offset()
    if empty:
        built = lake.built.log
        lake.built.truncate(built.schemas.latest(built.schemas.tables()[0]))
        lake.built.flush()
        end = built.latest_offset()
    lake.run()
    return end


def names(lake: IcebergLake) -> dict[int, str]:
    return {row["id"]: row["name"] for row in lake.frame("public.orders").collect()}


@pytest.mark.parametrize("empty", [False, True], ids=["merge", "append"])
@pytest.mark.parametrize("place", ["lake.table.write", "iceberg.written"])
def test_a_driver_that_hung_brings_no_older_state_back(
    lake: IcebergLake, built: BuiltLog, place: str, empty: bool
) -> None:
    """Invariant 2. One reads what is committed and hangs; another goes on; the first wakes up."""
    start = written(lake, empty=empty)
    table = built.log.schemas.latest(built.log.schemas.tables()[0])
    built.insert(table, "1", "older", "1")
    built.insert(table, "8", "older", "1")
    middle = built.flush().next
    built.insert(table, "1", "newer", "2")
    built.delete(table, "8")
    end = built.flush().next
    hung, other = lake.output(), lake.output()
    for output in (hung, other):
        output.prepare(built.log.generation)

    def go_on() -> None:
        with failpoints.arm({place: lambda: None}):
            other.write(batch_of(built.log, start, end))

    with failpoints.arm({place: go_on}), pytest.raises(OutputError, match="another pipeline"):
        hung.write(batch_of(built.log, start, middle))
    after = names(lake)
    assert after == {**({} if empty else dict(enumerate(NAMES))), 1: "newer"}
    commits = lake.commits("public.orders")
    hung.write(batch_of(built.log, start, middle))  # again: it sees that all is there
    assert names(lake) == after
    assert lake.commits("public.orders") == commits
    for output in (hung, other):
        output.close()


@pytest.mark.thorough
def test_drivers_killed_in_the_middle_lose_and_double_nothing(
    lake: IcebergLake, built: BuiltLog
) -> None:
    """Invariants 1 and 8: killed before what was written is seen, and after, before Spark knows."""
    table = orders(built)
    built.update(table, "1", "changed", "2.00")
    built.delete(table, "3")
    built.flush()

    def killed(place: str) -> int:
        environment = os.environ | {failpoints.ENVIRONMENT_VARIABLE: f"iceberg.{place}:kill"}
        arguments = [built.path, lake.path]
        done = subprocess.run(
            [sys.executable, "-m", killing.__name__, *arguments],
            cwd=ROOT,
            env=environment,
            timeout=280,
            check=False,
        )
        return done.returncode

    assert killed("written") == -9
    assert names(lake) == {}
    assert killed("published") == -9
    assert names(lake) == {0: "n0", 1: "changed", 2: "n2"}
    seen = lake.commits("public.orders")
    lake.run()
    assert names(lake) == {0: "n0", 1: "changed", 2: "n2"}
    assert lake.commits("public.orders") == seen


def test_executors_killed_in_the_middle_lose_and_double_nothing(
    lake: IcebergLake, built: BuiltLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(lake, empty=False)
    table = built.log.schemas.latest(built.log.schemas.tables()[0])
    built.update(table, "1", "changed", "2.00")
    built.delete(table, "3")
    built.flush()
    monkeypatch.setenv("TIDELOG_TEST_MARK", str(lake.root / "died"))
    steps = (Step("python", f"{killing.__name__}:die_once"),)
    with pytest.raises(OutputError, match="writing offsets"):
        run(lake, steps=steps)
    assert (lake.root / "died").exists()
    assert names(lake) == dict(enumerate(NAMES))
    run(lake, steps=steps)
    assert names(lake) == {0: "n0", 1: "changed", 2: "n2"}


@pytest.mark.thorough
def test_an_executor_killed_in_the_middle_loses_and_doubles_nothing(
    lake: IcebergLake, built: BuiltLog
) -> None:
    table = orders(built)
    built.update(table, "1", "changed", "2.00")
    built.delete(table, "3")
    built.flush()
    mark = lake.root / "died"
    arguments = [built.path, lake.path, str(mark)]
    command = [sys.executable, "-m", killing.__name__, *arguments]
    subprocess.run(command, cwd=ROOT, timeout=280, check=True)
    assert mark.exists()
    assert names(lake) == {0: "n0", 1: "changed", 2: "n2"}


def test_columns_are_followed_by_their_identity(lake: IcebergLake, built: BuiltLog) -> None:
    old = built.table("public.t", {"id": "int32", "n": "int32", "d": "decimal(8,2)", "x.y": "text"})
    built.insert(old, "1", "10", "1.25", "a")
    built.flush()
    lake.run()
    columns = {"id": "int64", "n": "int64", "d": "decimal(12,2)", "x.y": "text", "added": "text"}
    new = built.table("public.t", columns)
    built.insert(old, "2", "20", "2.25", "b")  # both versions in one batch
    built.insert(new, "5000000000", "6000000000", "1234567890.25", "c", "x")
    built.update(new, "1", "11", "1.50", "d", "y")
    built.flush()
    lake.run()
    assert lake.rows("public.t") == [
        (1, 11, Decimal("1.50"), "d", "y"),
        (2, 20, Decimal("2.25"), "b", None),
        (5_000_000_000, 6_000_000_000, Decimal("1234567890.25"), "c", "x"),
    ]
    columns.pop("n")
    dropped = built.table("public.t", columns)
    built.insert(dropped, "3", "3.00", "e", None)
    built.flush()
    lake.run()
    values = {row["id"]: row["n"] for row in lake.frame("public.t").collect()}
    assert values == {1: 11, 2: 20, 3: None, 5_000_000_000: 6_000_000_000}
    again = built.table("public.t", columns | {"n": "int64"})
    built.insert(again, "4", "4.00", "f", None, "44")
    built.flush()
    lake.run()
    values = {row["id"]: row["n"] for row in lake.frame("public.t").collect()}
    assert values == {1: None, 2: None, 3: None, 4: 44, 5_000_000_000: None}


@pytest.mark.parametrize(("policy", "what"), [("fail", "on_schema_change is fail"), ("evolve", "")])
def test_a_change_that_can_not_be_followed_stops(
    lake: IcebergLake, built: BuiltLog, policy: str, what: str
) -> None:
    """Also when the batch comes again."""
    built.insert(built.table("public.t", {"id": "int64", "d": "decimal(8,2)"}), "1", "1")
    built.flush()
    run(lake, on_schema_change=policy)
    built.insert(built.table("public.t", {"id": "int64", "d": "decimal(12,4)"}), "2", "3")
    built.flush()
    output = lake.output(options=lake.options(on_schema_change=policy))
    output.prepare(built.log.generation)
    batch = batch_of(built.log, built.log.head_offset, built.log.latest_offset())
    for _ in range(2):
        with pytest.raises(
            OutputError, match=what or r"decimal\(12,4\) now and was decimal\(8,2\)"
        ):
            output.write(batch)
    output.close()


VALUES = {
    "a": ("int16", "-7"),
    "b": ("int32", "70000"),
    "c": ("int64", "-9000000000"),
    "e": ("float32", "1.5"),
    "f": ("float64", "NaN"),
    "g": ("bool", "t"),
    "h": ("decimal(38,10)", "-1234567890123456789012345678.0123456789"),
    "i": ("text", "é\n🙂"),
    "j": ("binary", "\\x00ff"),
    "k": ("date", "1999-12-31"),
    "l": ("timestamp", "1999-12-31 23:59:59.123456"),
    "m": ("timestamptz", "1999-12-31 23:59:59.123456+02"),
}


@pytest.mark.parametrize("version", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_every_type_survives(lake: IcebergLake, built: BuiltLog, version: int) -> None:
    """As a copy holds it, a value is what the source `tidelog` gives; in keys, too."""
    table = built.table("public.t", {n: kind for n, (kind, _) in VALUES.items()}, ("c", "i", "m"))
    texts = [text for _, text in VALUES.values()]
    built.insert(table, *texts)
    nulls = [text if n in ("c", "i", "m") else None for n, text in zip(VALUES, texts, strict=True)]
    nulls[2] = "1"
    built.insert(table, *nulls)
    built.flush()
    run(lake, format_version=version)
    built.update(table, *texts)
    built.flush()
    run(lake)
    read = lake.spark.read.format("tidelog").option("path", built.path).option("table", "public.t")
    sent = read.load().where("op = 'u' OR after.c = 1").select("after.*")
    kept = lake.frame("public.t").drop("_version").select(*sent.columns)
    assert kept.exceptAll(sent).count() == sent.exceptAll(kept).count() == 0
    assert kept.count() == 2
    greatest = sent.selectExpr("max(m)").first()  # Spark takes that of the table from its metadata
    assert kept.selectExpr("max(m)").first() == greatest
    kinds = dict(kept.dtypes)
    assert kinds.pop("a") == "int"  # Iceberg's smallest
    expected = dict(sent.dtypes)
    expected.pop("a")
    assert kinds == expected


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_partitions_are_made_of_columns_and_kept(
    lake: IcebergLake, built: BuiltLog, mode: str
) -> None:
    columns = {"id": "int64", "at": "timestamp", "name.x": "text"}
    table = built.table("public.t", columns)
    for day in "123":
        for number in ("", "1", "2", "3"):  # few of a file's rows are marked as deleted
            built.insert(table, day + number, f"2026-01-0{day} 10:00:00", f"n{day}")
    built.flush()
    chosen = {"public.*": ["day(at)", "bucket(4, name.x)"]}
    run(lake, partition_by=chosen, mode=mode)
    built.update(table, "1", "2026-01-03 10:00:00", "moved")
    built.delete(table, "2")
    built.flush()
    run(lake, partition_by=chosen, mode=mode)

    def rows() -> list[tuple[int, str, str]]:
        found = lake.frame("public.t").where("id < 10").orderBy("id")
        found = found.select("id", "`name.x`", "_partition.at_day")
        return [(row[0], row[1], str(row[2])) for row in found.collect()]

    assert rows() == [
        (1, "moved", "2026-01-03"),
        (3, "n3", "2026-01-03"),
    ]
    deletes = lake.session().table(f"{lake.name('public.t')}.delete_files").count()
    assert (deletes > 0) == (mode == "merge-on-read")
    built.delete(table, "3")
    built.flush()
    run(lake)  # the table says how
    assert rows() == [(1, "moved", "2026-01-03")]
    with pytest.raises(OutputRefusedError, match="has no such column"):
        run(lake, partition_by={"public.t": ["days(other)"]})


@pytest.mark.parametrize("version", [2, 3])
def test_small_files_are_compacted_and_old_snapshots_removed(
    lake: IcebergLake, built: BuiltLog, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr("tidelog.outputs.lake.table.FILES_OF_A_TIER", BATCHES)
    table = orders(built)
    run(lake, format_version=version)

    def count(of: str) -> int:
        return int(lake.session().table(f"{lake.name('public.orders')}.{of}").count())

    built.update(table, "0", "changed", "2.00")
    for number in range(10, 10 + BATCHES):
        built.insert(table, str(number), "new", "2.00")
        built.flush()
        run(lake)
        if number == 10:
            assert count("delete_files") == 1
    assert (count("data_files"), count("delete_files")) == (2, 0)
    assert "replace" in {
        row["operation"] for row in lake.session().table("lake.public.orders.snapshots").collect()
    }
    expected = dict(enumerate(NAMES)) | {0: "changed"}
    expected |= dict.fromkeys(range(10, 10 + BATCHES), "new")
    assert names(lake) == expected
    built.update(table, "3", "changed", "2.00")
    built.flush()
    run(lake, vacuum_after_s=0.0)
    assert count("snapshots") == 1
    before = names(lake)
    assert before == expected | {3: "changed"}
    assert len(list((lake.root / "lake/public/orders/data").glob("*deletes*"))) <= 1
    commits = count("history")
    lake.run(name="another")  # everything again
    assert names(lake) == before
    assert count("history") == commits


@pytest.mark.parametrize("version", [2, 3])
def test_old_snapshots_are_thinned_but_for_named_ones_and_those_of_others(
    lake: IcebergLake, built: BuiltLog, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr("tidelog.outputs.lake.iceberg.state.LEAST_THINNED", 2)
    session, table = lake.session(), orders(built)

    def snapshots() -> list[int]:
        rows = session.sql("SELECT snapshot_id FROM lake.public.orders.snapshots").collect()
        return [row["snapshot_id"] for row in rows]

    def change(key: str) -> int:
        built.update(table, key, "changed", "2.00")
        built.flush()
        before = snapshots()
        run(lake)
        return next(each for each in snapshots() if each not in before)

    run(lake, format_version=version)
    (first,) = snapshots()
    spark = session._jvm.org.apache.iceberg.spark.Spark3Util
    loaded = spark.loadIcebergTable(session._jsparkSession, "lake.public.orders")
    loaded.manageSnapshots().createTag("first", first).commit()
    change("1"), change("2")
    session.sql("DELETE FROM lake.public.orders WHERE id = 0")
    theirs = snapshots()[-1]
    assert len(snapshots()) == 4
    monkeypatch.setattr("tidelog.outputs.lake.iceberg.output.THIN_AFTER_S", -60.0)
    session.sql("ALTER TABLE lake.public.orders SET TBLPROPERTIES ('gc.enabled' = 'false')")
    change("2")
    assert len(snapshots()) == 5
    session.sql("ALTER TABLE lake.public.orders SET TBLPROPERTIES ('gc.enabled' = 'true')")
    newest = change("3")
    left = snapshots()
    assert {first, theirs, newest} <= {*left}
    assert len(left) <= 4, "three, and the newest of an hour that ended amid this test"
    assert names(lake) == {1: "changed", 2: "changed", 3: "changed"}
    tagged = session.sql("SELECT * FROM lake.public.orders VERSION AS OF 'first'").collect()
    assert {row["id"]: row["name"] for row in tagged} == dict(enumerate(NAMES))
    change("1")
    assert names(lake) == {1: "changed", 2: "changed", 3: "changed"}


def test_a_table_that_is_not_ours_is_refused(lake: IcebergLake, built: BuiltLog) -> None:
    orders(built)
    session = lake.session()
    session.sql("CREATE TABLE lake.public.orders (id BIGINT) USING iceberg")
    with pytest.raises(OutputError, match="an Iceberg table that Tidelog did not create"):
        lake.run()


def test_rows_that_another_writer_deletes_by_a_vector_stay_deleted(
    lake: IcebergLake, built: BuiltLog
) -> None:
    """And its rows, whatever its files are called: the next batch is settled with both."""
    table = built.table("public.t", {"id": "int64", "v": "text"})
    for number in range(20):
        built.insert(table, str(number), "ours")
    built.flush()
    run(lake)
    session = lake.session()
    session.sql("DELETE FROM lake.public.t WHERE id IN (3, 4)")
    session.sql("INSERT INTO lake.public.t VALUES (50, 'theirs', NULL)")
    built.update(table, "5", "changed")
    built.delete(table, "6")
    built.flush()
    run(lake)
    expected = {number: "ours" for number in range(20) if number not in (3, 4, 6)}
    found = {row["id"]: row["v"] for row in lake.frame("public.t").collect()}
    assert found == expected | {5: "changed", 50: "theirs"}
    built.insert(table, "50", "from the source")
    built.flush()
    run(lake)
    assert {row["v"] for row in lake.frame("public.t").where("id = 50").collect()} == {
        "from the source"
    }


def test_what_a_rollback_took_away_is_written_again(lake: IcebergLake, built: BuiltLog) -> None:
    table = orders(built)
    session = lake.session()
    lake.run()
    first = session.table("lake.public.orders.snapshots").orderBy("committed_at").first()
    built.update(table, "1", "changed", "2.00")
    built.flush()
    lake.run()
    session.sql(
        f"CALL lake.system.set_current_snapshot('public.orders', {first['snapshot_id']})"
    ).collect()
    assert names(lake)[1] == "n1"
    built.delete(table, "0")
    built.flush()
    lake.run()
    assert names(lake) == {1: "changed", 2: "n2", 3: "n3"}
    commits = lake.commits("public.orders")
    lake.run(name="another")
    assert lake.commits("public.orders") == commits


def test_a_rollback_beside_a_new_column_loses_nothing(
    lake: IcebergLake, built: BuiltLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The column is committed, and what is read of the table then is not what was checked."""
    table = orders(built)
    session = lake.session()
    lake.run()
    first = session.table("lake.public.orders.snapshots").first()["snapshot_id"]
    built.update(table, "1", "changed", "2.00")
    built.flush()
    lake.run()
    built.update(built.table("public.orders", COLUMNS | {"added": "text"}), "2", "n2", "1.5", "x")
    built.flush()
    refresh = IcebergState.refresh

    def rolled_back(state: IcebergState) -> None:
        monkeypatch.setattr(IcebergState, "refresh", refresh)
        session.sql(f"CALL lake.system.set_current_snapshot('public.orders', {first})").collect()
        refresh(state)

    monkeypatch.setattr(IcebergState, "refresh", rolled_back)
    with pytest.raises(OutputBusyError, match="at the same time"):
        lake.run()
    assert names(lake) == dict(enumerate(NAMES))
    lake.run()
    assert names(lake) == dict(enumerate(NAMES)) | {1: "changed"}


class _AnswerLost:
    """A catalog whose client sends each commit again, as the answer to it got lost."""

    def __init__(self, operations: Any) -> None:
        self._operations = operations

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operations, name)

    def commit(self, base: Any, metadata: Any) -> None:
        self._operations.commit(base, metadata)
        self._operations.commit(base, metadata)


def test_a_commit_whose_answer_got_lost_keeps_its_files(
    lake: IcebergLake, built: BuiltLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog refuses it when it comes again, since it is there."""
    written(lake, empty=False)
    begin = IcebergState.__init__

    def init(state: IcebergState, jvm: Any, table: Any) -> None:
        begin(state, jvm, table)
        state._operations = _AnswerLost(state._operations)

    monkeypatch.setattr(IcebergState, "__init__", init)
    built.update(built.log.schemas.latest(built.log.schemas.tables()[0]), "1", "changed", "2.00")
    built.flush()
    lake.run()
    assert names(lake) == dict(enumerate(NAMES)) | {1: "changed"}


@pytest.mark.parametrize("version", [2, 3])
def test_a_driver_continues_with_the_deletes_that_it_wrote(
    lake: IcebergLake, built: BuiltLog, version: int
) -> None:
    """It keeps the table's files between batches, and does not read them again."""
    table, start = orders(built, rows=20), built.log.head_offset
    output = lake.output(options=lake.options(format_version=version))
    output.prepare(built.log.generation)
    for number in range(4):  # few of the 20 rows
        if number:
            built.update(table, str(number), "changed", "2.00")
            built.flush()
        output.write(batch_of(built.log, start, built.log.latest_offset()))
        start = built.log.latest_offset()
    output.close()
    expected = [(n, "changed" if n in (1, 2, 3) else f"n{n}") for n in range(20)]
    found = lake.frame("public.orders").collect()
    assert sorted((row["id"], row["name"]) for row in found) == expected
    assert lake.session().table("lake.public.orders.delete_files").count() == 1


def faults_of_ended_processes(jvm: int) -> int:
    """Page faults of its child processes (`man proc_pid_stat`, cminflt): each has some."""
    return int(Path(f"/proc/{jvm}/stat").read_text().rpartition(")")[2].split()[8])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_commit_is_few_calls_of_the_jvm_and_starts_no_process(
    lake: IcebergLake, built: BuiltLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many files it has: each call costs as much as some rows; each of Hadoop's files, two
    processes.
    """
    calls = []
    jvm = next(each.pid for each in psutil.Process().children(True) if each.name() == "java")
    send = ClientServerConnection.send_command

    def counted(connection: Any, command: str) -> Any:
        if not command.startswith("m\n"):  # releases objects, whenever Python collects garbage
            calls.append(command)
        return send(connection, command)

    commit = IcebergState.commit_files

    def committed(state: IcebergState, *args: Any, **how: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(ClientServerConnection, "send_command", counted)
            before = faults_of_ended_processes(jvm)
            found = commit(state, *args, **how)
            assert faults_of_ended_processes(jvm) == before
            return found

    table, many = built.table("public.t", {"id": "int64", "day": "text"}), 40
    for number in range(many):
        built.insert(table, str(number), str(number))
    built.flush()
    monkeypatch.setattr(IcebergState, "commit_files", committed)
    run(lake, partition_by={"public.t": ["day"]})
    place = lake.root / "lake/public/t"
    assert len(list(place.glob("data/*.parquet"))) == many
    assert 0 < len(calls) < many
    assert list(place.glob("metadata/*.avro"))
    assert not list(place.glob("metadata/.*.avro.crc"))


def test_vectors_of_another_writer_stay_while_one_of_their_file_is_replaced(
    lake: IcebergLake, built: BuiltLog
) -> None:
    table = orders(built, rows=20)
    run(lake, format_version=3)
    for number in range(20, 40):
        built.insert(table, str(number), f"n{number}", "1.5")
    built.flush()
    run(lake)
    session = lake.session()
    session.sql("DELETE FROM lake.public.orders WHERE id IN (1, 21)")
    vectors = session.table("lake.public.orders.delete_files").collect()
    assert (len(vectors), len({each["file_path"] for each in vectors})) == (2, 1)
    for number in ("2", "3"):
        built.update(table, number, "changed", "2.00")
        built.flush()
        run(lake, vacuum_after_s=0.0)
    assert session.table("lake.public.orders.snapshots").count() == 1
    expected = {number: f"n{number}" for number in range(40) if number not in (1, 21)}
    assert names(lake) == expected | {2: "changed", 3: "changed"}


def test_names_of_iceberg_s_own_columns_are_refused(lake: IcebergLake, built: BuiltLog) -> None:
    table = built.table("public.t", {"id": "int64", "_pos": "int64"})
    built.insert(table, "1", "1")
    built.flush()
    with pytest.raises(NameRefusedError, match=r"_pos.*Rename it by a step"):
        lake.run()


def test_the_documented_example_runs_and_can_be_compared(
    lake: IcebergLake, built: BuiltLog, tmp_path: Path
) -> None:
    table = orders(built)
    built.delete(table, "3")
    built.flush()
    page = (ROOT / "docs/outputs/iceberg.md").read_text()
    outputs = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0]
    (tmp_path / "tidelog.yaml").write_text(
        f"source: {{kind: postgres, url: 'postgresql://u@h/d'}}\nlog: {{path: ./log}}\n{outputs}"
    )
    config = load_config(tmp_path / "tidelog.yaml", {})
    run_pipeline(config, once=True, stop_event=threading.Event())
    kept = copies_of(config, config.outputs[0], lake.spark)
    copy = kept.of(table)
    frame = copy.frame((None, None))
    assert frame is not None
    assert sorted(row["id"] for row in frame.collect()) == [0, 1, 2]
    assert copy.committed() == built.log.latest_offset()
    kept.close()
