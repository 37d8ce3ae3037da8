"""Delta tables that hold the changes of a table: each once, as a row of the shape `typed`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.integration.spark.lake_of_orders import NAME, LakeOfOrders
from tests.integration.spark.orders import COLUMNS, change_orders, orders
from tests.integration.spark.test_delta import CrashAfterWrite
from tests.support import pgoutput_messages as messages
from tests.support.build_log import BuiltLog
from tests.support.delta_readers import by_delta_rs, by_duckdb, by_spark, rows_of

from tidelog.errors import OutputRefusedError
from tidelog.model.records import RecordKind
from tidelog.model.schema import TableName
from tidelog.outputs.lake import jobs as lake_jobs
from tidelog.outputs.lake import output as lake_module
from tidelog.outputs.lake.delta.table import path_of
from tidelog.outputs.lake.settling.tasks import RewriteWork, rewrite_files
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.transforms import Step

pytestmark = pytest.mark.spark

ORDER = "version, op"


class Changes(LakeOfOrders):
    """A lake of changes."""

    holds = "changes"

    def typed(self, **options: Any) -> list[dict[str, Any]]:
        """What the source gives."""
        reader = self.spark.read.format("tidelog").option("path", self.built.path)
        found = reader.options(table=NAME, shape="typed", **options).load()
        return rows_of(found.orderBy("version").toArrow())

    def check(self) -> list[dict[str, Any]]:
        """The rows are the source's, to each reader; those of dumps aside. All of them."""
        rows = rows_of(by_duckdb(self.place, ORDER))
        assert rows_of(by_spark(self.spark, self.place, ORDER)) == rows
        # delta-rs 1.6 does not know type widening.
        if "typeWidening" not in self.table.protocol.writer_features:
            assert rows_of(by_delta_rs(self.place, ORDER)) == rows
        assert [row for row in rows if row["op"] != "s"] == self.typed()
        return rows


@pytest.fixture
def changes(spark: Any, built: BuiltLog, tmp_path: Path) -> Changes:
    return Changes(spark, built, tmp_path)


def test_every_change_is_a_row_as_the_source_gives_it(changes: Changes, built: BuiltLog) -> None:
    table = orders(built)
    first = change_orders(built, table)
    built.truncate(table)
    built.insert(table, "1", "again", None)
    built.flush()
    assert changes.run(output=changes.output()) == built.log.latest_offset()
    rows = changes.check()
    assert [row["op"] for row in rows] == list("ccccuudrsdtc")
    assert rows[4]["missing"] == ["name"]
    assert (rows[5]["before"]["id"], rows[5]["key"]) == (2, {"id": 50})
    assert (rows[6]["key"], rows[6]["after"]) == ({"id": 3}, None)
    assert [row["source"]["origin"] for row in rows[7:10]] == ["dump"] * 3
    dump = {"op": "s", "version": first, "source": {"table": NAME, "origin": "dump"}}
    assert {name: value for name, value in rows[8].items() if value is not None} == {
        **dump, "source": {**dict.fromkeys(rows[0]["source"]), **dump["source"]},
    }  # fmt: skip


def test_a_replay_or_a_crash_behind_the_commit_brings_no_change_twice(
    changes: Changes, built: BuiltLog
) -> None:
    """Exactly once, whatever the batches are."""
    table = orders(built)
    changes.run(output=changes.output())
    end = built.dump_completed(NAME, built.chunk(table, [["1", "d", "1"]]).first).next
    changes.run(output=CrashAfterWrite(changes.output()))
    built.update(table, "1", "changed", "2.00")
    built.flush()
    changes.run(name="another", output=changes.output())
    rows, commits = changes.check(), changes.commits(NAME)
    changes.bring()
    changes.bring(2, end - 1, end + 1)
    assert changes.check() == rows
    assert [row["op"] for row in rows] == list("ccccrsu")
    assert changes.commits(NAME) == commits


def test_a_long_range_is_read_by_several_tasks_of_one_job_for_all_tables(
    changes: Changes, built: BuiltLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = built.table("public.other", {"id": "int64"}, relation_id=2)
    for _ in range(3):
        orders(built)
    built.insert(other, "1")
    built.flush()
    monkeypatch.setattr(lake_module, "_PART_BYTES", 1)
    jobs: list[list[Any]] = []
    run = lake_jobs.run_on_executors

    def counted(spark: Any, function: Any, works: Any, **how: Any) -> Any:
        jobs.extend([works] if works else [])
        return run(spark, function, works, **how)

    monkeypatch.setattr(lake_jobs, "run_on_executors", counted)
    changes.bring(output=changes.output(holds={"public.orders": "changes"}))
    assert len(jobs) == 1
    assert len([work for works in jobs[0] for work in works]) == 4
    assert [row["op"] for row in changes.check()] == ["c"] * 12
    assert changes.frame("public.other").count() == 1, "the other one is a copy"


class Columns:
    """The columns of a table, which change."""

    def __init__(self, built: BuiltLog) -> None:
        self.built = built
        self.columns = dict(COLUMNS)
        orders(built)

    def change(self, **columns: str | None) -> None:
        """A row of other columns, in a batch of its own; None: drop it."""
        self.columns |= {name: kind for name, kind in columns.items() if kind}
        for name, kind in columns.items():
            if kind is None:
                del self.columns[name]
        table = self.built.table(NAME, self.columns)
        self.built.insert(table, *map(str, range(1, len(self.columns) + 1)))
        self.built.update(table, "9", *map(str, range(1, len(self.columns))), key=["1"])
        self.built.flush()


def test_columns_are_followed_within_rows(changes: Changes, built: BuiltLog) -> None:
    """Added, widened, dropped and added again, with names that files can't have."""
    table = Columns(built)
    output = changes.output(plain_names=False)
    for altered in (
        {"n": "int16"},
        {"n": "int32", "amount": "decimal(12,2)"},
        {"amount": None},
        {"a b,{}": "text"},
        {"n": "int64", "amount": "decimal(12,2)", "ü": "float32"},
        {"ü": "float64"},
    ):
        table.change(**altered)
        output.write(batch_of(built.log, 0, built.log.latest_offset()))
    output.close()
    rows = changes.check()
    assert [row["after"]["amount"] is None for row in rows].count(True) > 2
    assert rows[0]["after"]["amount"] is not None, "what it was stays"
    copy = changes.table
    copy.commit_compaction([rewrite_files(RewriteWork(copy.files()))])
    assert len(copy.state.files) == 1
    changes.check()


def test_changes_keep_a_column_that_is_dropped_in_the_same_batch(
    changes: Changes, built: BuiltLog
) -> None:
    """Whatever batches are, each change is told under its own schema."""
    table = Columns(built)
    table.change(more="int32")
    table.change(amount=None, more=None)
    table.change(more="int64")
    changes.bring()
    told = [row["after"] for row in rows_of(by_duckdb(changes.place, ORDER))[-6:]]
    assert [row["amount"] for row in told] == [3, 2, None, None, None, None]
    assert [row["more"] for row in told] == [4, 3, None, None, 3, 2]


def test_the_key_follows_its_columns(changes: Changes, built: BuiltLog) -> None:
    output = changes.output()
    for columns, key in (
        ({"id": "int16", "b": "text"}, ["id"]),
        ({"id": "int32", "b": "text"}, ["id"]),
        ({"id": "int64", "b": "text"}, ["id", "b"]),
        ({"id": "int32", "b": "text"}, ["b"]),
    ):
        table = built.table(NAME, columns, key=key)
        built.insert(table, "1", "one")
        built.flush()
        output.write(batch_of(built.log, 0, built.log.latest_offset()))
    output.close()
    rows = rows_of(by_spark(changes.spark, changes.place, ORDER))
    assert rows_of(by_duckdb(changes.place, ORDER)) == rows
    assert [row["key"] for row in rows] == [
        {"id": 1, "b": None},
        {"id": 1, "b": None},
        {"id": 1, "b": "one"},
        {"id": None, "b": "one"},
    ]


@pytest.mark.parametrize("policy", ["lenient", "ignore", "fail"])
def test_policies_hold_for_changes(changes: Changes, built: BuiltLog, policy: str) -> None:
    table = Columns(built)
    changes.bring()
    table.change(name="int64", more="text")
    output = changes.output(on_schema_change=policy)
    if policy == "fail":
        with pytest.raises(OutputRefusedError, match=r"more, name of public\.orders changed"):
            changes.bring(output=output)
        return
    changes.bring(output=output)
    row = rows_of(by_duckdb(changes.place, ORDER))[-1]["after"]
    more = {"more": "3"} if policy == "lenient" else {}
    assert row == {"id": 9, "name": None, "amount": row["amount"], **more}
    assert row["amount"] is not None


@pytest.mark.parametrize("by", ["version", pytest.param("timestamp", marks=pytest.mark.thorough)])
def test_a_restored_table_gets_each_change_once(changes: Changes, built: BuiltLog, by: str) -> None:
    """With the columns of its time."""
    table = orders(built)
    cuts = [built.log.latest_offset()]
    for number in range(3):
        built.update(table, "1", f"v{number}", "2.00")
        cuts.append(built.flush().next)
    wider = built.table(NAME, {**COLUMNS, "more": "text"})
    built.insert(wider, "8", "wider", "1.5", "m")
    narrower = built.table(NAME, {"id": "int64", "name": "text"})
    built.insert(narrower, "9", "narrower")
    built.flush()
    built.dump_completed(NAME, cuts[1])
    changes.bring(*cuts)
    before = rows_of(by_duckdb(changes.place, ORDER))
    assert [row["after"]["more"] for row in before if row["op"] == "c"][-2:] == ["m", None]
    if by == "version":
        target = "VERSION AS OF 2"
    else:
        (at,) = (
            changes.spark.sql(f"DESCRIBE HISTORY {changes.name(NAME)}")
            .where("version = 2")
            .selectExpr("CAST(timestamp AS STRING)")
            .first()
        )
        target = f"TIMESTAMP AS OF '{at}'"
    changes.spark.sql(f"RESTORE TABLE {changes.name(NAME)} TO {target}")
    built.update(narrower, "1", "last")
    built.flush()
    changes.run(output=changes.output())
    rows = rows_of(by_duckdb(changes.place, ORDER))
    assert rows[:-1] == before
    changes.run(name="again", output=changes.output())
    assert rows_of(by_duckdb(changes.place, ORDER)) == rows


def test_small_files_are_put_together_for_no_reader_to_see(
    changes: Changes, built: BuiltLog
) -> None:
    table = orders(built)
    output = changes.output()
    for number in range(9):
        built.update(table, "1", f"v{number}", "2.00")
        built.flush()
        output.write(batch_of(built.log, 0, built.log.latest_offset()))
    output.close()
    assert len(changes.check()) == 13
    found = changes.table
    assert len(found.state.files) < 4
    for version in range(found.state.version + 1):
        text = (Path(changes.place) / f"_delta_log/{version:020}.json").read_text()
        actions = [json.loads(line) for line in text.splitlines()]
        removed = [each["remove"] for each in actions if "remove" in each]
        assert not any(each["dataChange"] for each in removed)
    stream = changes.spark.readStream.format("delta").option("startingVersion", 0)
    stream = stream.load(changes.place)
    query = stream.writeStream.format("memory").queryName("read_changes").trigger(availableNow=True)
    query.option("checkpointLocation", str(changes.root / "reader")).start().awaitTermination()
    assert changes.spark.table("read_changes").count() == 13


def test_what_a_table_holds_is_for_good(changes: Changes, built: BuiltLog) -> None:
    orders(built)
    changes.bring()
    for holds in ({}, {"public.*": "copy"}):
        output = changes.output(holds=holds)
        with pytest.raises(
            OutputRefusedError, match=r"contains the changes of public\.orders.*move"
        ):
            output.prepare(built.log.generation)
        output.close()


def test_the_changes_of_a_table_without_a_key_are_appended_beside_copies(
    changes: Changes, built: BuiltLog
) -> None:
    """And go on to be, once it has one: what a table holds is for good. A copy that lost its key
    stays as it is.
    """
    orders(built)
    audit = built.table("public.audit", {"v": "text"}, (), relation_id=2)
    built.insert(audit, "one")
    built.flush()
    output = changes.output(holds={}, keyless="append", state=changes.kept())
    output.prepare(built.log.generation)
    output.write(batch_of(built.log, 0, built.log.latest_offset()))
    copied = rows_of(by_duckdb(changes.place, "id"))
    assert [row["name"] for row in copied] == ["n0", "n1", "n2", "n3"]
    place = path_of(changes.path, TableName("public", "audit"), "public.audit")
    told = output.keyless_tables()["public.audit"]
    assert "appends its changes" in told
    output.close()
    output = changes.output(holds={}, keyless="append", state=changes.kept())
    assert output.keyless_tables() == {"public.audit": told}, "also after a start"
    audit = built.table("public.audit", {"id": "int64", "v": "text"}, relation_id=2)
    built.insert(audit, "1", "two")
    keyless = built.table(NAME, COLUMNS, ())
    built.insert(keyless, "4", "d", "4")
    built.flush()
    output.close()
    output = changes.output(holds={}, keyless="append", state=changes.kept())
    output.prepare(built.log.generation)
    output.write(batch_of(built.log, 0, built.log.latest_offset()))
    rows = rows_of(by_duckdb(place, ORDER))
    assert rows_of(by_delta_rs(place, ORDER)) == rows
    assert [(row["op"], row["after"], row["key"]) for row in rows] == [
        ("c", {"v": "one", "id": None}, None), ("c", {"v": "two", "id": 1}, {"id": 1})
    ]  # fmt: skip
    assert rows_of(by_duckdb(changes.place, "id")) == copied
    told = output.keyless_tables()
    assert "has a key now" in told["public.audit"]
    assert "keeps a copy at " in told[NAME]
    assert output.left_out_tables() == {}
    output.close()


def test_the_state_of_a_table_without_a_key_by_the_documented_query(
    changes: Changes, built: BuiltLog
) -> None:
    """Rows of a dump that was begun anew, or is not complete, do not count; equal rows do."""
    names = ("v", "n")
    audit = built.table(
        "public.audit", dict.fromkeys(names, "text"), (), identity=names, identity_kind="f",
        relation_id=2,
    )  # fmt: skip
    place = path_of(changes.path, TableName("public", "audit"), "public.audit")
    page = Path(__file__).parents[3] / "docs/outputs/delta.md"
    [query] = re.findall(r"-- the state of a table without a key\n(.*?)```", page.read_text(), re.S)
    query = query.replace("data/lake/public/audit", place)

    def state() -> list[tuple[str, int]]:
        changes.bring()
        return sorted((row["v"], row["copies"]) for row in changes.spark.sql(query).collect())

    built.insert(audit, "is in the dump", "1")
    built.flush()
    first = built.dump_started("public.audit").first
    built.chunk(audit, [["a", "1"]], ordinal=first)  # a crash ended it
    built.insert(audit, "later", "1")
    since = built.flush().first
    begun = built.dump_started("public.audit").first
    built.add(RecordKind.DELETE, audit, messages.delete(2, old=["a", "1"]))
    built.flush()
    built.chunk(audit, [["a", "1"], ["a", "1"], ["is in the dump", "1"]], ordinal=begun)
    assert state() == []
    built.keyless_dump_completed("public.audit", since, begun)
    change = messages.update(2, ["is changed", "1"], old=["is in the dump", "1"])
    built.add(RecordKind.UPDATE, audit, change)
    built.flush()
    built.chunk(audit, [["a", "1"]], ordinal=built.dump_started("public.audit").first)
    assert state() == [("a", 1), ("is changed", 1), ("later", 1)]
    built.truncate(audit)
    built.insert(audit, "b", "2")
    built.insert(audit, "b", "2")
    built.flush()
    assert state() == [("b", 2)]


def test_steps_that_alter_rows_are_refused(changes: Changes, built: BuiltLog) -> None:
    orders(built)
    steps = (Step("drop", ["amount"], ("public.*",)),)
    output = changes.output(steps=steps)
    with pytest.raises(OutputRefusedError, match=r"step drop would alter rows: remove public\.ord"):
        output.prepare(built.log.generation)
    output.close()
    routed = (Step("route", "raw.{name}_changes", ("public.*",)),)
    changes.bring(output=changes.output(steps=routed))
    place = path_of(changes.path, TableName.parse(NAME), "raw.orders_changes")
    assert rows_of(by_duckdb(place, ORDER)) == changes.typed()


@pytest.mark.parametrize(
    ("option", "columns"), [("partition_by", ["op"]), ("cluster_by", ["ts", "op"])]
)
def test_a_table_is_laid_out_by_its_own_columns(
    changes: Changes, built: BuiltLog, option: str, columns: Sequence[str]
) -> None:
    table = orders(built)
    built.delete(table, "1")
    built.flush()
    changes.bring(output=changes.output(**{option: {"public.*": columns}}))
    changes.check()
    lacking = changes.output(**{option: {"public.*": ["amount"]}})
    with pytest.raises(OutputRefusedError, match="laid out by amount"):
        lacking.prepare(built.log.generation)
    lacking.close()


def test_the_sql_of_the_docs_gives_the_latest_state(changes: Changes, built: BuiltLog) -> None:
    page = (Path(__file__).parents[3] / "docs/outputs/delta.md").read_text()
    (block,) = re.findall(r"```sql\n(-- the changes of a day.*?)```", page, re.DOTALL)
    of_a_day, latest = block.replace("data/lake/public/payments", changes.place).split(";")[:2]
    table = orders(built)
    first = built.chunk(table, [["1", "n1", "2"], ["0", "n0", "1.5"]]).first
    built.dump_completed(NAME, first)
    built.update(table, "50", "moved", None, key=["0"])
    built.insert(table, "0", "again", None)
    built.insert(table, "9", "new", None)
    built.delete(table, "9")
    built.flush()
    changes.bring()
    rows = changes.spark.sql(latest).select("id", "name").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(0, "again"), (1, "n1"), (50, "moved")]
    day = of_a_day.replace("2026-11-01", "2023-11-14").replace("2026-11-02", "2023-11-15")
    assert changes.spark.sql(day).count() == 10
