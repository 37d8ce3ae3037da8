"""What can be chosen of Delta copies: transforms, deletes, layout in files, schema policies."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.integration.spark.conftest import Lake
from tests.integration.spark.orders import COLUMNS, orders
from tests.support.build_log import BuiltLog
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.errors import ConfigError, OutputError, OutputRefusedError
from tidelog.outputs.lake import output as lake_module
from tidelog.outputs.lake.table import FILES_OF_A_TIER
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.transforms import Step

pytestmark = pytest.mark.spark


def run(lake: Lake, **options: Any) -> None:
    lake.run(output=lake.output(options=lake.options(**options)))


def soft(lake: Lake) -> dict[int, tuple[str, bool]]:
    return {
        row["id"]: (row["name"], row[lake.deleted]) for row in lake.frame("public.orders").collect()
    }


@pytest.mark.thorough
def test_steps_shape_route_and_filter_the_copy(lake: Lake, built: BuiltLog) -> None:
    """The paper's migration: another name, other columns, some of the rows; deletes follow."""
    table = orders(built)
    steps = (
        Step("rename", {"id": "order_id", "name": "label"}),
        Step("compute", {"cents": "CAST(amount * 100 AS BIGINT)", "loud": "upper(label)"}),
        Step("drop", ["amount"]),
        Step("filter", "label <> 'n2'"),
        Step("route", "sales.{name}_v2"),
    )
    run(lake, steps=steps)
    assert lake.rows("sales.orders_v2", "order_id") == [
        (0, "n0", 150, "N0"),
        (1, "n1", 150, "N1"),
        (3, "n3", 150, "N3"),
    ]
    built.update(table, "1", "n2", "9.00")  # meets the condition no longer
    built.update(table, "3", UNCHANGED, "2.00")  # the label is not told, what it decides stays
    built.delete(table, "0")
    built.insert(table, "7", "n7", "7.00")
    built.flush()
    run(lake, steps=steps)
    assert lake.rows("sales.orders_v2", "order_id") == [(3, "n3", 200, "N3"), (7, "n7", 700, "N7")]
    assert not (Path(lake.path) / "public").exists()


def test_steps_that_do_not_fit_stop_before_anything_is_written(lake: Lake, built: BuiltLog) -> None:
    orders(built)
    with pytest.raises(ConfigError, match=r"take id away from public\.orders"):
        run(lake, steps=(Step("drop", ["id"]),))
    assert not Path(lake.path).exists()


def test_two_tables_are_not_routed_to_one_copy(lake: Lake, built: BuiltLog) -> None:
    orders(built)
    other = built.table("public.invoices", COLUMNS, relation_id=2)
    built.insert(other, "1", "i", "1")
    built.flush()
    with pytest.raises(OutputRefusedError, match="route"):
        run(lake, steps=(Step("route", "sales.all"),))


def test_soft_deletes_keep_the_last_state_until_the_row_comes_back(
    lake: Lake, built: BuiltLog
) -> None:
    table = orders(built)
    run(lake, soft_deletes=True)
    built.delete(table, "1")
    built.delete(table, "2")
    built.delete(table, "99")  # never there
    built.flush()
    run(lake, soft_deletes=True)
    assert soft(lake) == {
        0: ("n0", False), 1: ("n1", True), 2: ("n2", True), 3: ("n3", False)
    }  # fmt: skip
    built.insert(table, "1", "back", "3.00")
    built.update(table, "2", UNCHANGED, "5.00")  # of a row that is gone, not all is known
    built.flush()
    run(lake, soft_deletes=True)
    assert soft(lake)[1] == ("back", False)
    assert soft(lake)[2] == ("n2", True)
    built.truncate(table)
    built.insert(table, "3", "after", "1.00")
    built.flush()
    run(lake, soft_deletes=True)
    assert {key: gone for key, (_, gone) in soft(lake).items()} == {
        0: True, 1: True, 2: True, 3: False
    }  # fmt: skip
    first = built.writer.next_offset
    built.chunk(table, [["8", "dumped", "1.00"]])
    built.dump_completed("public.orders", first)
    run(lake, soft_deletes=True)
    assert {key for key, (_, gone) in soft(lake).items() if not gone} == {8}


def test_rows_that_came_again_behind_a_truncate_are_not_marked_by_other_tasks(
    lake: Lake, built: BuiltLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of a batch are settled by several tasks, and one of them marks what a truncate took."""
    monkeypatch.setattr(lake_module, "_PART_BYTES", 300)
    table = orders(built)
    run(lake, soft_deletes=True)
    built.truncate(table)
    for key in ("1", "2", "8", "9"):
        built.insert(table, key, "again", "1.00")
        built.flush()
    run(lake, soft_deletes=True)
    rows = lake.frame("public.orders").collect()
    assert len(rows) == len(soft(lake)) == 6
    assert {key for key, (_, gone) in soft(lake).items() if gone} == {0, 3}


def test_hard_deletes_may_become_soft(lake: Lake, built: BuiltLog) -> None:
    table = orders(built)
    run(lake)
    built.delete(table, "1")
    built.flush()
    run(lake, soft_deletes=True)
    assert soft(lake) == {0: ("n0", None), 1: ("n1", True), 2: ("n2", None), 3: ("n3", None)}


def test_soft_deletes_may_become_hard(lake: Lake, built: BuiltLog) -> None:
    table = orders(built)
    run(lake, soft_deletes=True)
    built.delete(table, "1")
    built.flush()
    run(lake, soft_deletes=True)
    run(lake)
    assert [row[0] for row in lake.rows("public.orders")] == [0, 2, 3]
    built.insert(table, "1", "back", "3.00")
    built.delete(table, "2")
    built.flush()
    run(lake)
    built.delete(table, "3")
    built.flush()
    run(lake, soft_deletes=True)
    found = {key: (name, bool(gone)) for key, (name, gone) in soft(lake).items()}
    assert found == {0: ("n0", False), 1: ("back", False), 3: ("n3", True)}


def test_partitions_are_kept_and_can_not_be_changed(lake: Lake, built: BuiltLog) -> None:
    table = orders(built)
    chosen = {"public.*": ["name"]}
    run(lake, partition_by=chosen)
    assert (Path(lake.path) / "public" / "orders" / "name=n1").is_dir()
    built.update(table, "1", "moved", "2.00")
    built.flush()
    run(lake, partition_by=chosen)
    assert lake.rows("public.orders")[1] == (1, "moved", Decimal("2.00"))
    with pytest.raises(OutputRefusedError, match=r"partitioned by name, and .* says nothing"):
        run(lake)
    lake.path += "2"
    with pytest.raises(OutputRefusedError, match="has no such column"):
        run(lake, partition_by={"public.orders": ["other"]})


def test_clustering_follows_the_configuration(lake: Lake, built: BuiltLog) -> None:
    table = orders(built)
    run(lake, cluster_by={"public.orders": ["name"]})

    def clusters() -> list[str]:
        name = f"delta.`{lake.path}/public/orders`"
        found = lake.spark.sql(f"DESCRIBE DETAIL {name}").first()["clusteringColumns"]
        return list(found)

    assert clusters() == ["name"]
    built.update(table, "1", "changed", "2.00")
    built.flush()
    run(lake, cluster_by={"public.orders": ["id"]})
    assert clusters() == ["id"]
    assert lake.rows("public.orders")[1] == (1, "changed", Decimal("2.00"))


def test_small_files_are_put_together(lake: Lake, built: BuiltLog) -> None:
    """Eight of about one size, between two batches; a reader sees no change by it."""
    table = orders(built)
    output = lake.output()
    output.prepare(built.log.generation)
    counts = []
    for number in range(10, 10 + FILES_OF_A_TIER):
        start = built.log.head_offset if number == 10 else built.log.latest_offset()
        built.insert(table, str(number), f"n{number}", "1")
        built.flush()
        output.write(batch_of(built.log, start, built.log.latest_offset()))
        found = lake.spark.sql(f"DESCRIBE DETAIL {lake.name('public.orders')}").first()
        counts.append(int(found["numFiles"]))
    output.close()
    assert counts == [*range(1, FILES_OF_A_TIER), 1]
    assert len(lake.rows("public.orders")) == 4 + FILES_OF_A_TIER
    history = lake.spark.sql(f"DESCRIBE HISTORY {lake.name('public.orders')}")
    assert history.where("operation = 'OPTIMIZE'").count() == 1
    built.delete(table, "10")
    built.flush()
    run(lake)  # what is committed is known still
    assert len(lake.rows("public.orders")) == 3 + FILES_OF_A_TIER


def test_files_that_can_not_be_put_together_stop_nothing(
    lake: Lake, built: BuiltLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tidelog.outputs.lake.table.FILES_OF_A_TIER", 1)

    def fails(_: Any) -> list[Any]:
        raise OSError("no room")

    monkeypatch.setattr("tidelog.outputs.lake.settling.tasks.rewrite_or_error", fails)
    table = orders(built)
    run(lake)
    built.insert(table, "9", "n9", "1")
    built.flush()
    run(lake)
    assert len(lake.rows("public.orders")) == 5
    assert "small files were not compacted" in caplog.text


def test_a_table_that_lost_files_does_not_keep_those_of_others_apart(
    lake: Lake, built: BuiltLog, caplog: pytest.LogCaptureFixture
) -> None:
    """One job puts the small files of all tables together."""
    tables = [
        built.table(f"app.t{number}", {"a": "int32"}, ("a",), relation_id=number)
        for number in range(2)
    ]
    output = lake.output()
    output.prepare(built.log.generation)
    for number in range(FILES_OF_A_TIER + 1):
        start = built.log.latest_offset() if number else built.log.head_offset
        for table in tables:
            built.insert(table, str(number))
        built.flush()
        if number == FILES_OF_A_TIER - 1:
            for file in (lake.root / "lake" / "app" / "t0").glob("*.parquet"):
                file.unlink()
        output.write(batch_of(built.log, start, built.log.latest_offset()))
    output.close()
    sizes = [
        lake.spark.sql(f"DESCRIBE DETAIL {lake.name(f'app.t{number}')}").first()["numFiles"]
        for number in range(2)
    ]
    assert sizes == [FILES_OF_A_TIER + 1, 2]
    told = [each for each in caplog.messages if "app/t0: small files were not compacted" in each]
    assert len(told) == 1, "they are not read again for each batch"
    assert ".parquet" in told[0]


@pytest.mark.parametrize(
    ("policy", "values"),
    [
        ("evolve", None),
        ("lenient", {1: ("1", None), 2: (None, "added")}),
        ("ignore", {1: ("1",), 2: (None,)}),
        ("fail", None),
    ],
)
def test_what_becomes_of_changed_columns_is_chosen(
    lake: Lake, built: BuiltLog, policy: str, values: Any
) -> None:
    old = built.table("public.t", {"id": "int64", "n": "text"})
    built.insert(old, "1", "1")
    built.flush()
    run(lake, on_schema_change=policy)
    new = built.table("public.t", {"id": "int64", "n": "int64", "more": "text"})
    built.insert(new, "2", "3", "added")
    built.flush()
    if values is None:
        with pytest.raises(OutputError, match="n"):
            run(lake, on_schema_change=policy)
        return
    run(lake, on_schema_change=policy)
    names = [c for c in lake.frame("public.t").columns if c not in ("id", "_version")]
    assert {
        row["id"]: tuple(row[name] for name in names) for row in lake.frame("public.t").collect()
    } == values
