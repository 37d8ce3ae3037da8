"""Delta tables of history: each state of a row, with the time for which it held."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.integration.spark.lake_of_orders import NAME, LakeOfOrders
from tests.integration.spark.orders import (
    COLUMNS,
    DROPPED_AND_ADDED,
    drop_and_add_columns,
    orders,
)
from tests.integration.spark.test_delta import CrashAfterWrite
from tests.support.build_log import BuiltLog
from tests.support.delta_readers import by_delta_rs, by_duckdb, rows_of
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.errors import OutputRefusedError
from tidelog.model.schema import TableName
from tidelog.outputs.lake import output as lake_module
from tidelog.outputs.lake.settling.rows import is_closed, is_open
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.transforms import Step

pytestmark = pytest.mark.spark

ORDER = "_valid_from_version, id"
FIRST = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)  # of logs that tests build


class History(LakeOfOrders):
    """A lake of history, or of other contents."""

    holds = "history"

    def states(self) -> list[dict[str, Any]]:
        """All rows, which each reader finds."""
        rows = rows_of(by_duckdb(self.place, ORDER))
        assert rows_of(by_delta_rs(self.place, ORDER)) == rows
        return rows


def brief(row: dict[str, Any]) -> tuple[Any, ...]:
    """The key, a value, and from which record of the log to which it held."""
    return row["id"], row["name"], number(row["_valid_from"]), number(row["_valid_to"])


def number(time: datetime | None) -> int | str | None:
    """Records are a microsecond apart, and those about dumps have the time of the test."""
    if time is None:
        return None
    found = (time - FIRST) // timedelta(microseconds=1) - 1001
    return found if found < 10**9 else "dump"


@pytest.fixture
def history(spark: Any, built: BuiltLog, tmp_path: Path) -> History:
    return History(spark, built, tmp_path)


def test_each_state_of_a_row_is_a_row(history: History, built: BuiltLog) -> None:
    """However batches are cut. A dump adds none where nothing changed."""
    table = orders(built, rows=3)
    built.update(table, "1", UNCHANGED, "2.00")
    built.update(table, "50", "moved", "9.00", key=["2"])
    built.delete(table, "0")
    built.flush()
    first = built.dump_started(NAME).first
    built.chunk(table, [["1", "n1", "2.00"]], absent=[["7"]])
    end = built.dump_completed(NAME, first)
    built.insert(table, "0", "again", None)
    built.flush()
    history.bring()
    rows = history.states()
    assert [brief(row) for row in rows] == [
        (0, "n0", 0, 5), (1, "n1", 1, 3), (2, "n2", 2, 4), (1, "n1", 3, None),
        (50, "moved", 4, "dump"), (0, "again", 6, None),
    ]  # fmt: skip
    assert [str(row["amount"]) for row in rows[:4]] == ["1.50", "1.50", "1.50", "2.00"]
    of_one = [row for row in rows if row["id"] == 1]
    assert [row["_current"] for row in of_one] == [False, True]
    assert of_one[1]["_version"] > first, "the dump has seen it"
    assert of_one[0]["_valid_to_version"] == of_one[1]["_valid_from_version"]
    assert of_one[1]["_valid_to_version"] is None
    assert rows[4]["_valid_to_version"] == end.first
    other = History(history.spark, built, history.root / "other")
    cuts = {first, end.first, end.next, *(row["_valid_from_version"] for row in rows)}
    other.bring(*sorted(cuts))
    assert other.states() == rows


def test_a_crash_behind_the_commit_brings_no_state_twice(history: History, built: BuiltLog) -> None:
    table = orders(built)
    history.run(output=CrashAfterWrite(history.output()))
    built.update(table, "1", "changed", "2.00")
    built.flush()
    history.run(name="another", output=history.output())
    rows = history.states()
    assert [brief(row)[2:] for row in rows if row["id"] == 1] == [(1, 4), (4, None)]
    commits = history.commits(NAME)
    history.bring(3)
    assert history.states() == rows
    assert history.commits(NAME) == commits


def test_many_changes_and_steps_are_read_by_spark(
    history: History, built: BuiltLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each key's by one task, and rows that a truncate or a dump removed by another one."""
    table = orders(built, rows=30)
    history.bring()
    for number in range(30):
        built.update(table, str(number % 7), f"v{number}", UNCHANGED)
        if number == 20:
            built.truncate(table)
        built.insert(table, str(100 + number), "new", None)
        built.flush()
    other = History(history.spark, built, history.root / "other")
    other.bring()
    monkeypatch.setattr(lake_module, "_HISTORY_BYTES", 100)
    history.bring()
    rows = history.states()
    assert len(rows) > 60
    assert [brief(row) for row in rows] == [brief(row) for row in other.states()]
    assert not {row["id"] for row in rows if row["_current"]} & set(range(30))
    filtered = History(history.spark, built, history.root / "filtered")
    steps = (
        Step("filter", "name <> 'v7'", ("public.*",)),
        Step("drop", ["amount"], ("public.*",)),
    )
    filtered.bring(output=filtered.output(steps=steps))
    of_zero = [brief(row) for row in filtered.states() if row["id"] == 0]
    assert of_zero[:2] == [(0, "n0", 0, 30), (0, "v0", 30, 44)], "v7 does not pass"
    assert of_zero[2][1:3] == ("v14", 58)


def test_a_batch_has_what_a_task_takes_of_histories(
    history: History, built: BuiltLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More goes through a shuffle by Spark. Tables of which a copy is kept do not count."""
    monkeypatch.setattr(lake_module, "_HISTORY_BYTES", 250)
    orders(built, rows=2)
    middle = built.log.latest_offset()
    other = built.table("public.others", COLUMNS)
    built.insert(other, "1", "other", "1.00")
    built.flush()
    last = built.log.latest_offset()
    orders(built, rows=2)
    end = built.log.latest_offset()
    output = history.output(holds={"public.others": "copy", "*.*": "history"})
    assert output.end_of_batch(0, end) == last
    assert output.end_of_batch(0, middle) == middle
    assert history.output(holds={"*.*": "copy"}).end_of_batch(0, end) == end


@pytest.mark.parametrize("holds", ["copy", "history"])
def test_the_end_of_a_dump_comes_alone_where_there_are_steps(
    history: History, built: BuiltLog, holds: str
) -> None:
    table = orders(built, rows=2)
    first = built.dump_started(NAME).first
    end = built.chunk(table, [["1", "n1", "1.50"]]).next
    built.dump_completed(NAME, first)
    history.holds = holds
    history.bring(end, output=history.output(steps=(Step("drop", ["amount"], ("public.*",)),)))
    rows = rows_of(by_duckdb(history.place, "id"))
    assert [row["id"] for row in rows if row.get("_current", True)] == [1]


def test_columns_are_followed(history: History, built: BuiltLog) -> None:
    """Ended states keep their values of a column that is dropped and added again."""
    drop_and_add_columns(built)
    history.bring()
    rows = sorted(history.states(), key=lambda row: (row["id"], row["_valid_from_version"]))
    states = [(row["id"], row["name"], str(row["amount"]), row["more"]) for row in rows]
    assert states == DROPPED_AND_ADDED


@pytest.mark.parametrize("policy", ["ignore", "fail"])
def test_policies_hold(history: History, built: BuiltLog, policy: str) -> None:
    orders(built, rows=1)
    history.bring()
    more = built.table(NAME, {**COLUMNS, "more": "int32"})
    built.update(more, "0", "c", "3.00", "7")
    built.flush()
    output = history.output(on_schema_change=policy)
    if policy == "fail":
        with pytest.raises(OutputRefusedError, match="columns more of public"):
            history.bring(output=output)
        return
    history.bring(output=output)
    rows = history.states()
    assert [row["name"] for row in rows] == ["n0", "c"]
    assert "more" not in rows[0]


@pytest.mark.thorough
def test_a_restored_table_gets_each_state_once(history: History, built: BuiltLog) -> None:
    """With the columns of its time."""
    table = orders(built)
    cuts = [built.log.latest_offset()]
    for number in range(3):
        built.update(table, "1", f"v{number}", "2.00")
        cuts.append(built.flush().next)
    fewer = built.table(NAME, {"id": "int64", "name": "text"})
    built.update(fewer, "1", "v3")
    built.delete(fewer, "2")
    built.flush()
    history.bring(*cuts)
    before = history.states()
    history.spark.sql(f"RESTORE TABLE {history.name(NAME)} TO VERSION AS OF 2")
    assert len(history.states()) < len(before)
    history.run(output=history.output())
    assert history.states() == before


def test_compacted_rows_of_ended_states_have_files_of_their_own(
    history: History, built: BuiltLog
) -> None:
    """They are not searched for keys."""
    table = orders(built)
    output = history.output()
    for number in range(10):
        built.update(table, "1", f"v{number}", "2.00")
        built.flush()
        output.write(batch_of(built.log, 0, built.log.latest_offset()))
    found = history.table
    layout = found.files().layout
    files = found.state.files.values()
    assert len(files) < 7, "they were put together"
    assert any(is_closed(file, layout) for file in files)
    assert any(is_open(file, layout) for file in files)
    assert [row["name"] for row in history.states() if row["id"] == 1] == [
        "n1", *(f"v{number}" for number in range(10))
    ]  # fmt: skip
    known = output._targets[TableName.parse(NAME)]
    sources = output.row_sources(known, (None, None))
    assert sources is not None
    now = [row for source in sources for batch in source.batches() for row in batch.to_pylist()]
    assert {row["id"]: row["name"] for row in now} == {0: "n0", 1: "v9", 2: "n2", 3: "n3"}
    assert len(now) == 4, "for verify"
    output.close()


def test_a_table_keeps_what_it_contains(history: History, built: BuiltLog) -> None:
    orders(built)
    history.bring()
    output = history.output(holds={})
    with pytest.raises(OutputRefusedError, match=r"contains the history of public\.orders.*move"):
        output.prepare(built.log.generation)
    output.close()


def test_a_table_without_a_key_has_its_changes_appended(history: History, built: BuiltLog) -> None:
    keyless = built.table(NAME, COLUMNS, ())
    built.insert(keyless, "4", "d", "4")
    built.flush()
    output = history.output(keyless="append", state=history.kept())
    output.write(batch_of(built.log, 0, built.log.latest_offset()))
    assert "has no key" in output.keyless_tables()[NAME]
    assert [row["op"] for row in rows_of(by_duckdb(history.place, "version"))] == ["c"]
    output.close()


def test_the_sql_of_the_docs_says_the_same_of_all_three(history: History, built: BuiltLog) -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/copy-changes-history.md").read_text()
    blocks = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    table = orders(built)
    built.update(table, "1", "second", "2.00")
    built.flush()
    built.delete(table, "2")
    version = built.flush().first
    built.update(table, "3", "late", None)
    built.flush()
    answers: dict[str, list[Any]] = {}
    for holds in ("copy", "changes", "history"):
        lake = History(history.spark, built, history.root / holds)
        lake.holds = holds
        lake.bring()
        for block in blocks:
            if f"lake/{holds}/" not in block:
                continue
            title, query = block.replace(f"lake/{holds}/public/orders", lake.place).split("\n", 1)
            # The middle of the log: after the delete, before the last update.
            at = FIRST + timedelta(microseconds=1006)
            query = query.replace("2026-11-01 12:00:00+00:00", f"{at:%Y-%m-%d %H:%M:%S.%f}+00:00")
            query = query.replace("2026-11-01 00:00:00+00:00", "2023-11-14 00:00:00+00:00")
            query = query.replace("4711", str(version))
            found = history.spark.sql(query.rstrip().rstrip(";")).collect()
            told = sorted(tuple(row) for row in found)
            answers.setdefault(title, []).append(told)
    assert {title: len(found) for title, found in answers.items()} == {
        "-- newest": 3, "-- as of a time": 2, "-- as of a version": 2, "-- changes between": 2,
        "-- each state and the one before": 1,
    }  # fmt: skip
    for title, found in answers.items():
        assert all(each == found[0] for each in found), title
    assert [row[1] for row in answers["-- newest"][0]] == ["n0", "second", "late"]
    assert [row[1] for row in answers["-- as of a time"][0]] == ["n0", "second", "n3"]
