"""Copies that somebody sets back to an older state."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.integration.spark.conftest import Lake
from tests.integration.spark.orders import orders
from tests.support.build_log import BuiltLog

from tidelog.errors import OutputBusyError, OutputRefusedError
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.system import failpoints

pytestmark = pytest.mark.spark


HISTORY = {"holds": {"*.*": "history"}, "deletion_vectors": False}  # delta-rs restores no other


def bring(lake: Lake, built: BuiltLog, **options: Any) -> None:
    """All of the log, as a pipeline's first batch after a start without its checkpoint."""
    output = lake.output(options=lake.options(**options))
    try:
        output.prepare(built.log.generation)
        output.write(batch_of(built.log, built.log.head_offset, built.log.latest_offset()))
    finally:
        output.close()


def test_a_restored_table_gets_what_it_lacks(
    lake: Lake, built: BuiltLog, caplog: pytest.LogCaptureFixture
) -> None:
    """RESTORE leaves the transaction version by which we know what is there."""
    table = orders(built)
    bring(lake, built)  # versions 0, which makes it, and 1
    built.update(table, "1", "changed", None)
    built.delete(table, "0")
    wider = built.table("public.orders", {"id": "int64", "name": "text", "more": "text"})
    built.insert(wider, "9", "new", "m")
    built.flush()
    bring(lake, built)
    name = lake.name("public.orders")

    def restore(to: str) -> None:
        lake.spark.sql(f"RESTORE TABLE {name} TO {to}")

    def names() -> list[tuple[Any, ...]]:
        rows = lake.frame("public.orders").orderBy("id").collect()
        return [(row["id"], row["name"], row["more"]) for row in rows]

    whole = [(1, "changed", None), (2, "n2", None), (3, "n3", None), (9, "new", "m")]
    assert names() == whole
    restore("VERSION AS OF 1")
    assert [row["id"] for row in lake.frame("public.orders").orderBy("id").collect()] == [
        0,
        1,
        2,
        3,
    ]
    bring(lake, built)  # there is nothing new in the log
    assert names() == whole
    assert "was restored to an older state" in caplog.text
    commits = lake.commits("public.orders")
    bring(lake, built)
    assert lake.commits("public.orders") == commits, "once"

    # Amid a run, and of a RESTORE of a RESTORE, by a time.
    output = lake.output()
    output.prepare(built.log.generation)
    when = lake.spark.sql(f"DESCRIBE HISTORY {name}").where("version = 1").first()["timestamp"]
    restore(f"TIMESTAMP AS OF '{when}'")
    version = lake.spark.sql(f"DESCRIBE HISTORY {name} LIMIT 1").first()["version"]
    restore(f"VERSION AS OF {version}")
    built.delete(wider, "2")
    built.insert(wider, "10", "later", None)
    following = built.flush()
    output.write(batch_of(built.log, following.first, following.next))
    output.close()
    whole = [row for row in whole if row[0] != 2] + [(10, "later", None)]
    assert names() == whole

    # What the log holds no more can't come again.
    built.insert(wider, "11", None, None)
    built.flush()
    bring(lake, built)
    assert EventLogMaintenance(built.path).retain(0, now_ms=4_000_000_000_000)
    restore("VERSION AS OF 1")
    with pytest.raises(OutputRefusedError, match=r"RESTORE.*Restore it to the version before"):
        bring(lake, built)
    last = lake.spark.sql(f"DESCRIBE HISTORY {name} LIMIT 1").first()["version"]
    restore(f"VERSION AS OF {last - 1}")
    bring(lake, built)
    assert names() == [*whole, (11, None, None)]


def test_a_restore_beside_a_column_that_comes_back_brings_no_old_values(
    lake: Lake, built: BuiltLog
) -> None:
    """It strikes when they have just been removed."""
    whole = {"id": "int64", "v": "text"}
    for columns in (whole, {"id": "int64"}):
        table = built.table("public.t", columns)
        built.insert(table, str(len(columns)), *(["old"] if "v" in columns else []))
        built.flush()
        bring(lake, built)
    built.insert(built.table("public.t", whole), "3", "new")
    built.flush()
    name, last = lake.name("public.t"), lake.commits("public.t") - 1
    to_come = [lambda: lake.spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF {last}"), list]

    def restore() -> None:
        if to_come:
            to_come.pop()()

    with failpoints.arm({"delta.commit.before": restore}), suppress(OutputBusyError):
        bring(lake, built)
    assert not to_come
    bring(lake, built)
    assert lake.rows("public.t") == [(1, None), (2, None), (3, "new")]


@pytest.mark.parametrize("point", ["delta.commit.before", "lake.table.write"])
def test_a_restore_beside_a_batch_neither_loses_nor_doubles_a_state(
    lake: Lake, built: BuiltLog, point: str
) -> None:
    """It takes rows away while a column comes back; or brings back what is just written again."""
    whole = {"id": "int64", "v": "text"}
    for columns in (whole, {"id": "int64"}):
        table = built.table("public.t", columns)
        built.insert(table, str(len(columns)), *(["old"] if "v" in columns else []))
        built.delete(table, str(len(columns)))
        built.flush()
        bring(lake, built, **HISTORY)
    name = lake.name("public.t").split("`")[1]
    repairs = point == "lake.table.write"
    before, last = 2, lake.commits("public.t") - 1  # before: without the row of key 1
    if repairs:
        DeltaTable(name).restore(before)
    else:
        built.insert(built.table("public.t", whole), "3", "new")
        built.flush()
    to_come = [lambda: DeltaTable(name).restore(last if repairs else before)]
    armed = {point: lambda: to_come.pop()() if to_come else None}
    with failpoints.arm(armed), suppress(OutputBusyError):
        bring(lake, built, **HISTORY)
    assert not to_come
    bring(lake, built, **HISTORY)
    found = [row["id"] for row in lake.frame("public.t").orderBy("id").collect()]
    assert found == ([1, 2] if repairs else [1, 2, 3])


@pytest.mark.parametrize("begins", [False, True])
def test_marked_rows_that_a_restore_brings_back_are_removed_again(
    lake: Lake, built: BuiltLog, begins: bool
) -> None:
    """A row that was marked, and inserted again since, stays."""
    table = orders(built)
    bring(lake, built, soft_deletes=True)
    for key in "13":
        built.delete(table, key)
    built.flush()
    bring(lake, built, soft_deletes=True)
    marked = lake.commits("public.orders") - 1
    bring(lake, built)
    built.insert(table, "3", "again", "1.5")
    built.flush()
    output = lake.output()
    output.prepare(built.log.generation)
    output.write(batch_of(built.log, built.log.head_offset, built.log.latest_offset()))
    lake.spark.sql(f"RESTORE TABLE {lake.name('public.orders')} TO VERSION AS OF {marked}")
    if begins:
        output.prepare(built.log.generation)
    built.insert(table, "4", "n4", "1.5")
    following = built.flush()
    output.write(batch_of(built.log, following.first, following.next))
    output.close()
    rows = lake.frame("public.orders").orderBy("id").collect()
    assert [(row["id"], row["name"]) for row in rows] == [
        (0, "n0"), (2, "n2"), (3, "again"), (4, "n4"),
    ]  # fmt: skip
