"""A rollback takes back what was done to all rows of a table, but no property that says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from tests.integration.iceberg.conftest import IcebergLake
from tests.integration.spark.orders import orders
from tests.support.build_log import BuiltLog

from tidelog.errors import OutputError
from tidelog.outputs.lake.iceberg.output import IcebergOutput
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.system import failpoints

pytestmark = pytest.mark.spark

WHOLE = {"id": "int64", "v": "text"}
HISTORY = {"holds": {"*.*": "history"}}


class Running:
    """Outputs of one pipeline, which begin anew or go on, and a user's rollbacks."""

    def __init__(self, lake: IcebergLake, built: BuiltLog) -> None:
        self._lake, self._built = lake, built
        self._output: IcebergOutput | None = None

    def begin(self, **options: Any) -> None:
        self.end()
        self._output = self._lake.output(options=self._lake.options(**options))
        self._output.prepare(self._built.log.generation)

    def bring(self) -> None:
        """All of the log: what is there already is passed over."""
        self._built.flush()
        log = self._built.log
        assert self._output is not None
        self._output.write(batch_of(log, log.head_offset, log.latest_offset()))

    def snapshots(self, table: str) -> list[int]:
        frame = self._lake.session().table(f"lake.{table}.snapshots").orderBy("committed_at")
        return [int(row["snapshot_id"]) for row in frame.collect()]

    def roll_back(self, table: str, snapshot: int) -> None:
        call = f"CALL lake.system.set_current_snapshot('{table}', {snapshot})"
        self._lake.session().sql(call).collect()

    def end(self) -> None:
        if self._output is not None:
            self._output.close()
            self._output = None


@pytest.fixture
def running(lake: IcebergLake, built: BuiltLog) -> Iterator[Running]:
    found = Running(lake, built)
    yield found
    found.end()


def values(lake: IcebergLake) -> list[tuple[int, str | None]]:
    rows = lake.frame("public.t").where("_current").orderBy("id").collect()
    return [(row["id"], row["v"]) for row in rows]


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("brings", [False, True])
def test_old_values_of_a_column_that_came_again_are_removed_again(
    running: Running, lake: IcebergLake, built: BuiltLog, brings: bool, begins: bool
) -> None:
    """After a rollback to before that; the batch behind it failed, or was committed."""
    running.begin(**HISTORY)
    for columns in (WHOLE, {"id": "int64"}):
        table = built.table("public.t", columns)
        built.insert(table, str(len(columns)), *(["old"] if "v" in columns else []))
        running.bring()
    *_, before = running.snapshots("public.t")
    again = built.table("public.t", WHOLE)
    built.insert(again, "3", "new")

    def fail() -> None:
        raise OutputError("disk full")

    fails = nullcontext() if brings else pytest.raises(OutputError, match="disk full")
    with failpoints.arm({} if brings else {"iceberg.written": fail}), fails:
        running.bring()
    assert values(lake)[:2] == [(1, None), (2, None)]
    running.roll_back("public.t", before)
    assert values(lake) == [(1, None), (2, "old")]
    found = [(1, None), (2, None)]
    if begins:
        running.begin(**HISTORY)
        assert values(lake)[:2] == (found if brings else [(1, None), (2, "old")]), "at that time"
    built.insert(again, "4", "later")
    running.bring()
    assert values(lake) == [*found, (3, "new"), (4, "later")]
    count = len(running.snapshots("public.t"))
    running.begin(**HISTORY)
    assert len(running.snapshots("public.t")) == count, "once"


@pytest.mark.parametrize("begins", [False, True])
def test_marked_rows_that_are_back_are_removed_again(
    running: Running, lake: IcebergLake, built: BuiltLog, begins: bool
) -> None:
    """A row that was marked, and inserted again since, stays."""
    table = orders(built)
    running.begin(soft_deletes=True)
    running.bring()
    for key in "13":
        built.delete(table, key)
    running.bring()
    *_, marked = running.snapshots("public.orders")
    running.begin()
    built.insert(table, "3", "again", "1.5")
    running.bring()
    running.roll_back("public.orders", marked)
    if begins:
        running.begin()
    built.insert(table, "4", "n4", "1.5")
    running.bring()
    rows = lake.frame("public.orders").orderBy("id").collect()
    assert [(row["id"], row["name"]) for row in rows] == [
        (0, "n0"), (2, "n2"), (3, "again"), (4, "n4"),
    ]  # fmt: skip


def test_deletes_that_became_soft_stay_marked_after_a_rollback_to_before_that(
    running: Running, lake: IcebergLake, built: BuiltLog
) -> None:
    """The marks come after it, so that they are removed once deletes are hard again."""
    table = orders(built)
    running.begin()
    running.bring()
    *_, before = running.snapshots("public.orders")
    running.begin(soft_deletes=True)
    built.delete(table, "1")
    running.bring()
    running.roll_back("public.orders", before)
    built.delete(table, "2")
    running.bring()
    rows = lake.frame("public.orders").where("_tidelog_deleted").orderBy("id").collect()
    assert [row["id"] for row in rows] == [1, 2]
    running.begin()
    assert [row["id"] for row in lake.frame("public.orders").orderBy("id").collect()] == [0, 3]
