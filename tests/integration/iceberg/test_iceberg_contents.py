"""Iceberg tables of changes and of history: the rows that Delta's have, for readers of others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.integration.iceberg.conftest import IcebergLake
from tests.integration.spark.lake_of_orders import NAME, LakeOfOrders
from tests.integration.spark.orders import (
    COLUMNS,
    DROPPED_AND_ADDED,
    change_orders,
    drop_and_add_columns,
    orders,
)
from tests.support import delta_readers
from tests.support.build_log import BuiltLog
from tests.support.delta_readers import rows_of
from tests.support.iceberg_readers import by_duckdb
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.model.schema import TableName
from tidelog.outputs.lake import table as lake_table
from tidelog.outputs.lake.iceberg.output import IcebergOutput
from tidelog.outputs.lake.settling.rows import is_closed, is_open
from tidelog.outputs.lake.settling.tasks import CopyFiles
from tidelog.spark.datasource.segment_rows import batch_of

pytestmark = pytest.mark.spark

ORDERS = {"changes": "version, op", "history": "_valid_from_version, id"}


class Contents:
    """The same log in an Iceberg table and a Delta table that hold the same."""

    def __init__(self, lake: IcebergLake, holds: str) -> None:
        self.lake, self._holds, self._order = lake, holds, ORDERS[holds]
        self._delta = LakeOfOrders(lake.spark, lake.built, lake.root / "delta")
        self._delta.holds = holds
        self._copies = [self.output(), self._delta.output()]
        self._end = 0

    def output(self, **options: Any) -> IcebergOutput:
        return self.lake.output(options=self.lake.options(holds={"*.*": self._holds}, **options))

    def bring(self, cuts: Sequence[int] = ()) -> None:
        """All that is new: into Iceberg in batches that end at these offsets and at the end, into
        Delta in one.
        """
        log = self.lake.built.log
        for output, ends in zip(self._copies, (cuts, ()), strict=True):
            output.prepare(log.generation)
            for start, end in pairwise([self._end, *ends, log.latest_offset()]):
                output.write(batch_of(log, start, end))
        self._end = log.latest_offset()

    def rows(self) -> list[dict[str, Any]]:
        """By Iceberg's library for Spark, which DuckDB agrees with. They are Delta's rows."""
        found = rows_of(self.lake.frame(NAME).orderBy(*self._order.split(", ")).toArrow())
        assert found == rows_of(delta_readers.by_duckdb(self._delta.place, self._order))
        return found

    def files(self) -> CopyFiles:
        """The Iceberg table's, with the layout that tasks have."""
        table = self._copies[0]._table(TableName.parse(NAME))
        assert table.exists()
        return table.files()

    def now(self) -> list[dict[str, Any]]:
        """The source's rows, as `tidelog verify` reads them."""
        output = self._copies[0]
        found = output.row_sources(output._targets[TableName.parse(NAME)], (None, None))
        assert found is not None
        return [row for each in found for batch in each.batches() for row in batch.to_pylist()]

    def close(self) -> None:
        for output in self._copies:
            output.close()


@pytest.fixture
def changes(lake: IcebergLake) -> Any:
    found = Contents(lake, "changes")
    yield found
    found.close()


@pytest.fixture
def history(lake: IcebergLake) -> Any:
    found = Contents(lake, "history")
    yield found
    found.close()


def test_every_change_is_a_row(changes: Contents, built: BuiltLog) -> None:
    """With columns that come and are widened within rows, and however batches are cut."""
    table = orders(built)
    cut = built.log.latest_offset()
    change_orders(built, table)
    built.truncate(table)
    more = built.table(NAME, {**COLUMNS, "id": "int64", "more": "int32"})
    built.insert(more, "1", "again", None, "7")
    wider = built.table(NAME, {**COLUMNS, "more": "int64"})
    built.insert(wider, "2", "again", None, str(2**40))
    built.flush()
    changes.bring([cut])
    rows = changes.rows()
    assert [row["op"] for row in rows] == list("ccccuudrsdtcc")
    assert rows[4]["missing"] == ["name"]
    assert (rows[5]["before"]["id"], rows[5]["key"]) == (2, {"id": 50})
    assert [row["after"]["more"] for row in rows[-2:]] == [7, 2**40]
    metadata = max(
        (Path(changes.lake.path) / "public/orders/metadata").glob("v*.metadata.json"),
        key=lambda path: int(path.name[1:].split(".")[0]),
    )
    by_other = by_duckdb(str(metadata), "version")
    assert [(row["op"], row["after"] and row["after"]["id"]) for row in by_other] == [
        (row["op"], row["after"] and row["after"]["id"]) for row in rows
    ]


def test_each_state_is_a_row(
    history: Contents, built: BuiltLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small files are compacted; ended states are not searched then."""
    monkeypatch.setattr(lake_table, "FILES_OF_A_TIER", 3)
    table = orders(built)
    cuts = []
    for number in range(4):
        cuts.append(built.log.latest_offset())
        built.update(table, "1", f"v{number}", UNCHANGED)
        built.flush()
    built.delete(table, "2")
    built.update(table, "3", "n3", "1.50")
    built.flush()
    history.bring(cuts)
    rows = history.rows()
    of_one = [row for row in rows if row["id"] == 1]
    assert [row["name"] for row in of_one] == ["n1", *(f"v{number}" for number in range(4))]
    for before, after in pairwise(of_one):
        assert before["_valid_to_version"] == after["_valid_from_version"]
    assert [row["id"] for row in rows if row["_current"]] == [0, 3, 1]
    now = history.now()
    assert {row["id"]: row["name"] for row in now} == {0: "n0", 1: "v3", 3: "n3"}
    assert len(now) == 3, "for verify"
    files = history.files()
    assert len(files.files) < 5
    assert any(is_closed(file, files.layout) for file in files.files)
    assert any(is_open(file, files.layout) for file in files.files)


@pytest.mark.parametrize("holds", ["changes", "history"])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.thorough
def test_after_a_rollback_each_row_is_written_once(
    lake: IcebergLake, built: BuiltLog, holds: str, known: bool
) -> None:
    """Also where no snapshot is left that tells how far the table was: its rows do."""
    contents = Contents(lake, holds)
    table = orders(built)
    contents.bring()
    session = lake.session()
    snapshots = session.table("lake.public.orders.snapshots").orderBy("committed_at")
    first = snapshots.first()["snapshot_id"]
    if not known:
        session.sql(
            "CALL lake.system.rewrite_data_files(table => 'public.orders', "
            "options => map('rewrite-all', 'true'))"
        ).collect()
        of_others = snapshots.collect()[-1]["snapshot_id"]
        session.sql(
            f"CALL lake.system.expire_snapshots(table => 'public.orders', "
            f"snapshot_ids => ARRAY({first}))"
        ).collect()
        assert of_others != first
        first = of_others
    cuts = []
    for number in range(3):
        cuts.append(built.log.latest_offset())
        built.update(table, "1", f"v{number}", "2.00")
        built.flush()
    contents.bring(cuts[1:])
    before = contents.rows()
    session.sql(f"CALL lake.system.set_current_snapshot('public.orders', {first})").collect()
    assert len(rows_of(lake.frame(NAME).toArrow())) < len(before)
    contents.bring()
    assert contents.rows() == before
    contents.close()


@pytest.mark.thorough
def test_a_compacted_table_still_knows_its_batches(
    changes: Contents, built: BuiltLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when somebody rolls back to it, and the snapshots of the batches are gone."""
    monkeypatch.setattr(lake_table, "FILES_OF_A_TIER", 2)
    table = orders(built)
    cut = built.log.latest_offset()
    first = built.chunk(table, [["0", "n0", "1.50"]]).first
    built.dump_completed(NAME, first)  # its row has a version of before
    changes.bring([cut])
    session = changes.lake.session()
    session.sql(
        "CALL lake.system.expire_snapshots(table => 'public.orders', retain_last => 1, "
        "older_than => TIMESTAMP '2100-01-01 00:00:00')"
    ).collect()
    (left,) = session.table("lake.public.orders.snapshots").collect()
    assert left["operation"] == "replace"
    for number in "45":
        built.insert(table, number, "new", "1.50")
        built.flush()
        changes.bring()
        session.sql(
            f"CALL lake.system.set_current_snapshot('public.orders', {left['snapshot_id']})"
        ).collect()
    changes.bring()
    assert [row["op"] for row in changes.rows()] == list("ccccrscc")


@pytest.mark.thorough
def test_columns_of_a_history_are_followed(history: Contents, built: BuiltLog) -> None:
    """Ended states keep their values of a column that is dropped and added again."""
    drop_and_add_columns(built)
    history.bring()
    rows = sorted(history.rows(), key=lambda row: (row["id"], row["_valid_from_version"]))
    states = [(row["id"], row["name"], str(row["amount"]), row["more"]) for row in rows]
    assert states == DROPPED_AND_ADDED


@pytest.mark.thorough
def test_changes_need_no_key_and_get_one(changes: Contents, built: BuiltLog) -> None:
    """A struct is added then, and members of it later."""
    keyless = built.table(NAME, COLUMNS, ())
    built.insert(keyless, "1", "n1", "1.5")
    built.flush()
    changes.bring()
    assert "key" not in changes.rows()[0]
    one = built.table(NAME, COLUMNS)
    built.insert(one, "2", "n2", "1.5")
    built.flush()
    changes.bring()
    two = built.table(NAME, COLUMNS, ("id", "name"))
    built.insert(two, "3", "n3", "1.5")
    built.flush()
    changes.bring()
    keys = [row["key"] for row in changes.rows()]
    assert keys[1:] == [{"id": 2, "name": None}, {"id": 3, "name": "n3"}]


def test_the_changes_of_a_table_without_a_key_are_appended_beside_copies(
    lake: IcebergLake, built: BuiltLog
) -> None:
    """And go on to be, once it has one; so are the rows of a dump, once."""

    def opened() -> IcebergOutput:
        output = lake.output(options=lake.options(keyless="append"), state=lake.kept())
        output.prepare(built.log.generation)
        return output

    orders(built)
    audit = built.table("public.audit", {"v": "text"}, (), relation_id=2)
    built.insert(audit, "one")
    built.flush()
    first = built.dump_started("public.audit").first
    built.chunk(audit, [["one"]], ordinal=7)
    built.keyless_dump_completed("public.audit", first, 7)
    output = opened()
    output.write(batch_of(built.log, 0, built.log.latest_offset()))
    assert "appends its changes" in output.keyless_tables()["public.audit"]
    output.close()
    audit = built.table("public.audit", {"id": "int64", "v": "text"}, relation_id=2)
    built.insert(audit, "1", "two")
    built.flush()
    output = opened()
    output.write(batch_of(built.log, 0, built.log.latest_offset()))
    assert "has a key now" in output.keyless_tables()["public.audit"]
    assert output.left_out_tables() == {}
    output.close()
    assert [row["name"] for row in lake.frame(NAME).orderBy("id").collect()] == [
        "n0", "n1", "n2", "n3"
    ]  # fmt: skip
    rows = rows_of(lake.frame("public.audit").orderBy("version", "op").toArrow())
    assert [(row["op"], row["key"]) for row in rows] == [
        ("c", None), ("s", None), ("r", None), ("c", {"id": 1})
    ]  # fmt: skip
    assert rows[3]["after"] == {"id": 1, "v": "two"}
