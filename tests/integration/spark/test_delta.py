"""The Delta output on real Delta tables: exactness across replays, crashes and schema changes."""

from __future__ import annotations

import itertools
import logging
import re
import threading
import time
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from tests.integration.spark.conftest import Lake
from tests.integration.spark.orders import orders
from tests.support.build_log import BuiltLog
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.errors import OutputError, TableLeftOutError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.model.schema import TableName
from tidelog.outputs.lake import output as lake_module
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.folding import fold_parts
from tidelog.spark.formats import shapes
from tidelog.spark.pipeline import BatchProgress, run_output_loops
from tidelog.spark.transforms import Step
from tidelog.system.processes import unix_ms

pytestmark = pytest.mark.spark


def test_changes_reach_the_table_and_versions_are_kept(lake: Lake, built: BuiltLog) -> None:
    table = orders(built)
    seen: list[BatchProgress] = []
    end = lake.run(on_progress=seen.append)
    assert end == built.log.latest_offset()
    assert seen[-1].end == end
    assert seen[-1].rows_by_table == {"public.orders": 4}
    built.update(table, "1", "changed", "2.00")
    built.delete(table, "3")
    built.delete(table, "77")  # a row that the table never had
    built.insert(table, "9", "new", None)
    built.update(table, "9", "newer", None)
    first = built.flush().first
    lake.run()
    assert lake.rows("public.orders") == [
        (0, "n0", Decimal("1.50")),
        (1, "changed", Decimal("2.00")),
        (2, "n2", Decimal("1.50")),
        (9, "newer", None),
    ]
    versions = {row["id"]: row["_version"] for row in lake.frame("public.orders").collect()}
    assert versions[0] < versions[2] < first <= versions[1] < versions[9]


def test_a_lost_checkpoint_changes_nothing(lake: Lake, built: BuiltLog) -> None:
    """Invariant 2, no time travel: replaying everything must not bring older states back."""
    table = orders(built)
    lake.run()
    built.update(table, "1", "changed", "2.00")
    built.delete(table, "2")
    built.flush()
    lake.run()
    before, commits = lake.rows("public.orders"), lake.commits("public.orders")
    lake.run(name="another")
    assert lake.rows("public.orders") == before
    assert lake.commits("public.orders") == commits


def test_a_replay_cut_differently_brings_only_the_rest(lake: Lake, built: BuiltLog) -> None:
    table = orders(built)
    lake.run()
    built.update(table, "1", "changed", "2.00")
    built.flush()
    lake.run(name="another")  # one batch holds what is there and what is not
    assert lake.rows("public.orders")[1] == (1, "changed", Decimal("2.00"))
    assert lake.commits("public.orders") == 3  # create, append, one merge


class CrashAfterWrite:
    """An output that dies once, after its tables are committed and before Spark knows."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.name = inner.name
        self.crashed = False

    def prepare(self, generation: str) -> None:
        self.inner.prepare(generation)

    def write(self, batch: Any) -> None:
        self.inner.write(batch)
        if not self.crashed:
            self.crashed = True
            raise KeyError("a bug between the merge and the checkpoint")

    def committed(self, table: Any) -> int | None:
        committed: int | None = self.inner.committed(table)
        return committed

    def close(self) -> None:
        self.inner.close()


def test_a_crash_between_merge_and_checkpoint_applies_the_batch_once(
    lake: Lake, built: BuiltLog
) -> None:
    """Invariant 8, crash anywhere (the pipeline's part), and 1, exactly once."""
    table = orders(built)
    lake.run()
    built.update(table, "1", "changed", "2.00")
    built.flush()
    output = CrashAfterWrite(lake.output())
    commits = lake.commits("public.orders")
    assert lake.run(output=output) == built.log.latest_offset()  # retried by the loop
    assert output.crashed
    assert lake.commits("public.orders") == commits + 1
    assert lake.rows("public.orders")[1] == (1, "changed", Decimal("2.00"))


def test_partial_rows_keep_what_they_do_not_tell(lake: Lake, built: BuiltLog) -> None:
    table = orders(built)
    lake.run()
    built.update(table, "1", UNCHANGED, "7.00")  # base in the table
    built.insert(table, "5", "five", "5.00")
    built.update(table, "5", UNCHANGED, "6.00")  # base in the batch
    built.update(table, "99", UNCHANGED, "1.00")  # base nowhere: never inserted
    built.flush()
    lake.run()
    rows = {row[0]: row[1:] for row in lake.rows("public.orders")}
    assert rows[1] == ("n1", Decimal("7.00"))
    assert rows[5] == ("five", Decimal("6.00"))
    assert 99 not in rows


def test_a_key_change_moves_the_row(lake: Lake, built: BuiltLog) -> None:
    table = orders(built)
    lake.run()
    built.update(table, "50", "moved", "9.00", key=["2"])
    built.insert(table, "2", "again", "1.00")
    built.flush()
    lake.run()
    rows = {row[0]: row[1] for row in lake.rows("public.orders")}
    assert rows == {0: "n0", 1: "n1", 2: "again", 3: "n3", 50: "moved"}


def test_truncate_empties_and_later_rows_stay(lake: Lake, built: BuiltLog) -> None:
    table = orders(built)
    lake.run()
    built.update(table, "1", "lost", "9.00")
    built.flush()
    built.truncate(table)
    built.insert(table, "7", "after", "1.00")
    built.flush()
    lake.run()
    assert lake.rows("public.orders") == [(7, "after", Decimal("1.00"))]
    built.truncate(table)
    built.flush()
    lake.run()
    assert lake.rows("public.orders") == []


def test_a_completed_dump_deletes_absent_rows(lake: Lake, built: BuiltLog) -> None:
    """Invariant 3, complete: rows that vanished without row events are gone after a full dump."""
    table = orders(built)
    lake.run()
    built.update(table, "3", "in the log", "3.00")
    first = built.flush().first
    built.chunk(table, [["0", "dumped", "1.00"]])
    built.dump_completed("public.orders", first)
    lake.run()
    rows = {row[0]: row[1] for row in lake.rows("public.orders")}
    assert rows == {0: "dumped", 3: "in the log"}


def test_an_empty_table_is_there_after_its_dump(lake: Lake, built: BuiltLog) -> None:
    built.table("public.empty", {"id": "int64", "v": "text"})
    first = built.writer.next_offset
    built.dump_completed("public.empty", first)
    lake.run()
    assert lake.rows("public.empty") == []
    lake.run()


def test_a_dump_that_completes_in_a_later_batch_deletes_too(lake: Lake, built: BuiltLog) -> None:
    table = orders(built)
    lake.run()
    first = built.writer.next_offset
    built.chunk(table, [["0", "dumped", "1.00"]])
    lake.run()
    built.dump_completed("public.orders", first)
    lake.run()
    assert [row[0] for row in lake.rows("public.orders")] == [0]


def test_an_output_of_another_name_removes_what_a_dump_removes(lake: Lake, built: BuiltLog) -> None:
    """It brings rows over again that are there in the same version."""

    def bring_all(output: Any) -> None:
        output.prepare(built.log.generation)
        output.write(batch_of(built.log, built.log.head_offset, built.log.latest_offset()))
        output.close()

    table = orders(built)
    bring_all(lake.output())
    first = built.dump_started("public.orders").first
    built.chunk(table, [["0", "dumped", "1.00"]])
    built.dump_completed("public.orders", first)
    bring_all(lake.output(name="renamed"))
    assert lake.rows("public.orders") == [(0, "dumped", Decimal("1.00"))]


def test_added_columns_and_widened_types_evolve_the_table(lake: Lake, built: BuiltLog) -> None:
    old = built.table("public.t", {"id": "int32", "n": "int32", "d": "decimal(8,2)"})
    built.insert(old, "1", "10", "1.25")
    built.flush()
    lake.run()
    new = built.table(
        "public.t", {"id": "int64", "n": "int64", "d": "decimal(12,2)", "added col": "text"}
    )
    built.insert(old, "2", "20", "2.25")  # both versions in one batch
    built.insert(new, "5000000000", "6000000000", "1234567890.25", "x")
    built.update(new, "1", "11", "1.50", "y")
    built.flush()
    lake.run()
    assert lake.rows("public.t") == [
        (1, 11, Decimal("1.50"), "y"),
        (2, 20, Decimal("2.25"), None),
        (5_000_000_000, 6_000_000_000, Decimal("1234567890.25"), "x"),
    ]
    dropped = built.table("public.t", {"id": "int64", "d": "decimal(12,2)", "added col": "text"})
    built.insert(dropped, "3", "3.00", None)
    built.flush()
    lake.run()
    assert lake.rows("public.t")[2][:3] == (3, None, Decimal("3.00"))
    again = built.table(
        "public.t", {"id": "int64", "d": "decimal(12,2)", "added col": "text", "n": "int64"}
    )
    built.insert(again, "4", "4.00", None, "44")
    built.flush()
    lake.run()
    values = {row["id"]: row["n"] for row in lake.frame("public.t").collect()}
    assert values == {1: None, 2: None, 3: None, 4: 44, 5_000_000_000: None}


def test_an_impossible_change_of_type_says_what_to_do(lake: Lake, built: BuiltLog) -> None:
    old = built.table("public.t", {"id": "int64", "n": "text"})
    built.insert(old, "1", "a")
    built.flush()
    lake.run()
    new = built.table("public.t", {"id": "int64", "n": "int64"})
    built.insert(new, "2", "3")
    built.flush()
    output = lake.output()
    try:
        output.prepare(built.log.generation)
        from tidelog.ports import OutputBatch, TableRange

        batch = OutputBatch(
            built.log.generation,
            built.log.head_offset,
            built.log.latest_offset(),
            (TableRange(old.table, frozenset({1, 2}), 2, 100),),
        )
        with pytest.raises(OutputError, match=r"column n of public.t is bigint now and was string"):
            output.write(batch)
    finally:
        output.close()


def test_many_tables_and_patterns(lake: Lake, built: BuiltLog) -> None:
    orders(built)
    for number in range(3):
        table = built.table(
            f"app.t{number}", {"a": "text", "b": "int32", "v": "text"}, ("b", "a"), relation_id=9
        )
        built.insert(table, "é/x", "1", f"v{number}")
    built.flush()
    lake.run(output=lake.output(tables=("app.*",)))
    assert [lake.rows(f"app.t{n}", "a") for n in range(3)] == [
        [("é/x", 1, f"v{n}")] for n in range(3)
    ]
    assert not (lake.root / "lake" / "public").exists()


def test_tables_of_a_batch_have_commits_of_their_own(lake: Lake, built: BuiltLog) -> None:
    tables = [
        built.table(f"app.t{number}", {"a": "int32", "v": "text"}, ("a",), relation_id=number)
        for number in range(5)
    ]
    output = lake.output()
    output.prepare(built.log.generation)
    ends = []
    for values in ("one", "two"):
        start = built.log.latest_offset()
        for table in tables[: len(tables) if values == "one" else 2]:
            built.insert(table, str(len(ends)), values)
        built.flush()
        ends.append(built.log.latest_offset())
        output.write(batch_of(built.log, start, ends[-1]))
    names = [TableName("app", f"t{number}") for number in range(5)]
    assert [output.committed(name) for name in names] == [ends[1]] * 2 + [ends[0]] * 3
    output.close()


def test_folds_in_parts_and_blocks_give_the_same(
    lake: Lake, built: BuiltLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch folded by several tasks, then by Spark, equals the batch folded by one."""
    monkeypatch.setattr(lake_module, "_PART_BYTES", 300)
    table = orders(built)
    lake.run()
    assert len(lake.rows("public.orders")) == 4
    for step in range(6):
        built.update(table, "1", UNCHANGED if step % 2 else f"step {step}", f"{step}.00")
        built.update(table, "2", f"two {step}", "1.00")
        built.insert(table, str(20 + step), f"x{step}", "1.00")
        if step == 3:
            built.delete(table, "2")
            built.insert(table, "2", "born again", "3.00")
        built.flush()
    built.update(table, "2", UNCHANGED, "8.00")
    built.delete(table, "21")
    built.flush()
    lake.run()
    rows = {row[0]: row[1:] for row in lake.rows("public.orders")}
    assert rows[1] == ("step 4", Decimal("5.00"))
    assert rows[2] == ("two 5", Decimal("8.00"))
    assert sorted(rows) == [0, 1, 2, 3, 20, 22, 23, 24, 25]


@pytest.mark.parametrize("partial", [False, True], ids=["whole rows", "partial rows"])
@pytest.mark.parametrize("complete", [True, False], ids=["known to be whole", "not known"])
def test_columns_of_any_name_are_folded(
    spark: Any, built: BuiltLog, partial: bool, complete: bool
) -> None:
    columns = {"_n": "int64", "_op": "text", "_v": "text", "_since": "text", "_c3": "text"}
    schema = built.table("public.t", columns, ("_n", "_op", "_v"))
    key = (1, "k", "k")
    rows = [("u", 5, *key, "old", "kept", None), ("u", 9, *key, "new", "new", None)]
    if partial:
        rows[1] = ("u", 9, *key, "new", None, [4])  # type: ignore[assignment]
    frame = spark.createDataFrame(rows, shapes.changes(schema))
    found = fold_parts(frame, schema, complete=complete and not partial).collect()
    assert [tuple(row) for row in found] == [
        ("u", 9, *key, "new", "kept" if partial else "new", None)
    ]


def test_a_foreign_table_and_another_generation_are_refused(
    lake: Lake, built: BuiltLog, spark: Any
) -> None:
    table = orders(built)
    spark.range(3).write.format("delta").save(f"{lake.path}/public/orders")
    with pytest.raises(OutputError, match="Tidelog did not create"):
        lake.run()
    spark.sql(
        f"ALTER TABLE delta.`{lake.path}/public/orders` "
        "SET TBLPROPERTIES ('tidelog.generation' = 'older')"
    )
    with pytest.raises(OutputError, match="filled from generation older"):
        lake.run()
    assert table.table.name == "orders"


def test_a_table_without_key_is_refused_with_its_name(lake: Lake, built: BuiltLog) -> None:
    table = built.table("public.nokey", {"x": "text"}, key=())
    built.insert(table, "1")
    built.flush()
    with pytest.raises(OutputError, match=r"public.nokey has no key"):
        lake.run()


def test_a_rename_that_was_taken_back_lets_steps_name_the_column(
    lake: Lake, built: BuiltLog
) -> None:
    """Its columns are those of the last record, not of the shape that was numbered last."""
    old = built.table("public.t", {"id": "int64", "a": "text"})
    built.table("public.t", {"id": "int64", "b": "text"})
    built.insert(old, "1", "x")
    built.flush()
    output = lake.output(options=lake.options(steps=(Step("mask", {"a": "***"}),)))
    output.prepare(built.log.generation)
    output.close()


def test_an_undecodable_value_leaves_out_its_table_alone_and_stays_private(
    lake: Lake, built: BuiltLog
) -> None:
    """Invariant 10, private; and a record that can't be decoded is not retried for ever."""
    table = built.table("public.t", {"id": "int64", "n": "int32"})
    well = built.table("public.well", {"id": "int64", "v": "text"}, relation_id=2)
    built.insert(table, "1", "secret-value")
    built.insert(well, "1", "a")
    built.flush()
    output = lake.output(state=lake.kept())
    with suppress(TableLeftOutError):  # at the end of the run
        lake.run(output=output)
    [(name, why)] = output.left_out_tables().items()
    assert name == "public.t"
    assert re.search("column n.*version", why)
    assert "secret-value" not in why
    assert lake.rows("public.well") == [(1, "a")]


def test_the_stream_follows_the_log_and_stops(lake: Lake, built: BuiltLog, spark: Any) -> None:
    """Streaming, not --once; and the pipeline is a consumer that retention waits for: where Spark's
    checkpoint stands, also when the stop comes while a batch is being committed.
    """
    table = orders(built)
    stop, caught_up = threading.Event(), threading.Event()
    seen: list[BatchProgress] = []

    def progress(done: BatchProgress) -> None:
        seen.append(done)
        caught_up.set()
        if done.rows == 1:  # the late one; the batch ends only when the pipeline has seen the stop
            stop.set()
            time.sleep(0.5)

    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100")
    output = lake.output()
    thread = threading.Thread(
        target=run_output_loops,
        args=(spark, built.path, [output]),
        kwargs={"on_progress": progress, "stop": stop, "name": "lake"},
    )
    thread.start()
    try:
        assert caught_up.wait(120)
        caught_up.clear()
        time.sleep(2)  # idle queries report the number of the batch that comes next
        built.insert(table, "8", "late", None)
        built.flush()
        assert caught_up.wait(120)
    finally:
        stop.set()
        thread.join(120)
        output.close()
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
    assert not thread.is_alive()
    assert lake.rows("public.orders")[-1] == (8, "late", None)
    consumer = next(c for c in Consumers(built.log.storage).all() if c.name == "lake")
    assert consumer.offset == built.log.latest_offset() == seen[-1].end
    built.insert(table, "9", "later", None)
    end = built.flush().next
    later_ms = unix_ms() + 10_000_000
    assert EventLogMaintenance(built.path).retain(1.0, now_ms=later_ms) == seen[-1].end
    assert lake.run(name="lake") == end
    assert lake.rows("public.orders")[-2:] == [(8, "late", None), (9, "later", None)]


def test_infinite_times_survive(lake: Lake, built: BuiltLog) -> None:
    table = built.table("public.t", {"id": "int64", "at": "timestamptz", "day": "date"})
    built.insert(table, "1", "infinity", "infinity")
    built.insert(table, "2", "-infinity", "-infinity")
    built.insert(table, "3", "0044-03-15 12:00:00+00 BC", "0044-03-15 BC")
    built.flush()
    lake.run()
    stored = lake.frame("public.t").selectExpr("id", "unix_micros(at) a", "unix_date(day) d")
    read = lake.spark.read.format("tidelog").option("path", built.path)
    sent = read.option("table", "public.t").load()
    sent = sent.selectExpr("key.id", "unix_micros(after.at) a", "unix_date(after.day) d")
    assert sorted(map(tuple, stored.collect())) == sorted(map(tuple, sent.collect()))


def test_what_others_commit_meanwhile_is_settled_with(
    lake: Lake, built: BuiltLog, caplog: pytest.LogCaptureFixture
) -> None:
    """Another program's commits come before ours: the batch is settled with what it left."""
    table = orders(built)
    lake.run()
    done = threading.Event()

    def write() -> None:
        name = lake.name("public.orders")
        for number in itertools.count():
            if done.is_set():
                return
            lake.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('n' = '{number}')")

    other = threading.Thread(target=write)
    caplog.set_level(logging.INFO, "tidelog.outputs.lake")
    output = lake.output()
    output.prepare(built.log.generation)
    other.start()
    try:
        for number in range(30):
            start = built.log.latest_offset()
            built.update(table, "1", f"changed {number}", "2.00")
            built.flush()
            output.write(batch_of(built.log, start, built.log.latest_offset()))
            if number > 2 and "settled again" in caplog.text:
                break
    finally:
        done.set()
        other.join()
        output.close()
    assert "settled again" in caplog.text
    assert lake.rows("public.orders")[1] == (1, f"changed {number}", Decimal("2.00"))
