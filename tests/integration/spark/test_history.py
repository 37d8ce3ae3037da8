"""Where reads start and end, the versions of one key, and tables as they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from tests.integration.spark.test_source import stream
from tests.support.build_log import BuiltLog
from tests.support.pgoutput_messages import UNCHANGED
from tests.unit.spark.dumped import dump, moments

from tidelog.errors import ConfigError
from tidelog.spark import as_of
from tidelog.spark import folding as replaying
from tidelog.spark.sessions.errors import find_error

pytestmark = pytest.mark.spark


@pytest.fixture
def four(built: BuiltLog) -> list[tuple[int, datetime]]:
    """Four changes in two segments; their versions and times."""
    table = built.table("public.t", {"id": "int64"})
    for row in (1, 2):
        built.insert(table, str(row))
    built.flush()
    for row in (3, 4):
        built.insert(table, str(row))
    built.flush()
    return moments(built)


def ids(rows: Any) -> list[int]:
    return [row.key.id for row in rows]


def test_a_batch_is_bounded_by_versions_and_times(
    four: list[tuple[int, datetime]], read: Callable[..., Any]
) -> None:
    (_, _), (second, at_second), (third, at_third), _ = four
    bounds: list[tuple[dict[str, Any], list[int]]] = [
        ({"startingVersion": second, "endingVersion": third}, [2, 3]),
        ({"startingTimestamp": at_second.isoformat(), "endingTimestamp": str(at_third)}, [2, 3]),
        ({"startingTimestamp": "2100-01-01"}, []),
    ]
    for options, wanted in bounds:
        assert ids(read(table="public.t", **options).collect()) == wanted, options


def test_a_stream_starts_at_the_given_offset(
    four: list[tuple[int, datetime]], spark: Any, built: BuiltLog, tmp_path: Path
) -> None:
    _, _, (third, at_third), _ = four
    starts = [("startingVersion", third), ("startingTimestamp", at_third.isoformat())]
    for number, (name, value) in enumerate(starts):
        found = stream(spark, built, tmp_path / str(number), table="public.t", **{name: value})
        assert [i for batch in found for i in ids(batch)] == [3, 4]
    late = tmp_path / "late"
    assert stream(spark, built, late, table="public.t", startingVersion="latest") == []
    table = built.log.schemas.versions(built.log.schemas.tables()[0])[0]
    built.insert(table, "5")
    built.flush()
    [batch] = stream(spark, built, late, table="public.t", startingVersion="latest")
    assert ids(batch) == [5]


def test_a_read_starts_at_a_dump(
    spark: Any, built: BuiltLog, read: Callable[..., Any], tmp_path: Path
) -> None:
    table = built.table("public.t", {"id": "int64"})
    other = built.table("public.u", {"id": "int64"}, relation_id=2)
    built.insert(table, "1")
    built.flush()
    dump(built, other, [["9"]], "of-u")
    dump(built, table, [["1"], ["2"]], "first")
    built.insert(table, "3")
    built.flush()
    dump(built, table, [["1"], ["2"], ["3"]], "second")
    read_t = {"table": "public.t"}
    assert ids(read(startingDump="first", **read_t).collect()) == [1, 2, 3, 1, 2, 3]
    assert ids(read(startingDump="second", **read_t).collect()) == [1, 2, 3]
    assert ids(read(startingDump="latest", **read_t).collect()) == [1, 2, 3]
    both = read(startingDump="latest").collect()
    assert [row.table for row in both][:1] == ["public.u"]
    [batch] = stream(spark, built, tmp_path / "c", startingDump="second", **read_t)
    assert ids(batch) == [1, 2, 3]


@pytest.fixture
def orders(built: BuiltLog) -> Any:
    table = built.table(
        "public.orders", {"shop": "text", "id": "int64", "v": "text"}, ("shop", "id")
    )
    for row in range(50):
        built.insert(table, "a" if row % 2 else "b", str(row), f"v{row}")
    built.update(table, "a", "7", "again")
    built.update(table, "a", "700", "moved", key=["a", "7"])
    built.flush()
    built.delete(table, "a", "9")
    built.truncate(table)
    built.insert(table, "a", "7", "new")
    built.flush()
    return table


def test_all_versions_of_a_key(orders: Any, read: Callable[..., Any]) -> None:
    found = read(table="public.orders", key=json.dumps({"shop": "a", "id": 7})).collect()
    assert [(row.op, row.after and row.after.v) for row in found] == [
        ("c", "v7"),
        ("u", "again"),
        ("u", "moved"),  # away from this key
        ("t", None),
        ("c", "new"),
    ]
    values = read(table="public.orders", shape="envelope", key='{"id": "9", "shop": "a"}').collect()
    assert [row.op for row in values] == ["c", "d", "t"]


def test_only_records_of_wanted_keys_are_decoded(built: BuiltLog, read: Callable[..., Any]) -> None:
    table = built.table("public.t", {"id": "int64", "n": "int32"})
    built.insert(table, "7", "1")
    built.insert(table, "8", "not a number")
    built.update(table, "7", "2")
    built.flush()
    assert len(read(table="public.t", key='{"id": 7}').collect()) == 2
    with pytest.raises(PySparkException, match="column n"):
        read(table="public.t").where("key.id = 7").collect()


def test_a_stream_has_no_end_and_a_wrong_key_is_not_shown(
    orders: Any, spark: Any, built: BuiltLog, read: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match="for batch reads only"):
        stream(spark, built, tmp_path / "c", endingVersion=1)
    with pytest.raises(PySparkException, match="'id' is not of type int64") as caught:
        read(table="public.orders", key='{"id": "secret"}').collect()
    assert "secret" not in str(find_error(str(caught.value)))


def state(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.drop("_version").collect())


def test_tables_as_of_one_place(
    spark: Any, built: BuiltLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "PART_BYTES", 1)  # each segment is folded by itself
    t = built.table("public.t", {"id": "int64", "v": "text"})
    u = built.table("public.u", {"id": "int64"}, relation_id=2)
    built.insert(t, "7", "of before the dump, and gone")
    built.flush()
    dump(built, t, [["1", "one"], ["2", "two"], ["3", "three"]])
    dump(built, u, [["10"]])
    dumped = built.log.latest_offset()
    built.update(t, "1", UNCHANGED)
    built.update(t, "4", "moved", key=["2"])
    built.insert(u, "11")
    first = built.flush()
    built.delete(t, "3")
    built.update(t, "4", "later")
    second = built.flush()
    built.truncate(u)
    built.insert(u, "12")
    built.insert(t, "2", "new")
    third = built.flush()
    begin = as_of(spark, built.path, version=dumped - 1)
    assert begin.tables == ["public.t", "public.u"]
    assert state(begin.table("public.t")) == [(1, "one"), (2, "two"), (3, "three")]
    assert state(begin.table("public.u")) == [(10,)]
    one = as_of(spark, built.path, version=first.next - 1)
    assert state(one.table("public.t")) == [(1, "one"), (3, "three"), (4, "moved")]
    assert state(one.table("public.u")) == [(10,), (11,)]
    two = as_of(spark, built.path, timestamp=moments(built)[-4][1])
    assert two.end == second.next
    assert state(two.table("public.t")) == [(1, "one"), (4, "later")]
    now = as_of(spark, built.path)
    assert now.end == third.next
    assert state(now.table("public.t")) == [(1, "one"), (2, "new"), (4, "later")]
    assert state(now.table("public.u")) == [(12,)]
    versions = {row.id: row._version for row in now.table("public.t").collect()}
    assert versions[2] >= third.first > versions[4]


def test_a_table_as_of_a_place_has_the_columns_of_then(spark: Any, built: BuiltLog) -> None:
    table = built.table("public.t", {"id": "int64", "v": "int32"})
    dump(built, table, [["1", "5"]])
    before = built.log.latest_offset() - 1
    wider = built.table("public.t", {"id": "int64", "v": "int64", "w": "text"})
    built.insert(wider, "2", "6", "x")
    built.flush()
    then = as_of(spark, built.path, version=before).table("public.t")
    assert then.columns == ["id", "v", "_version"]
    assert state(then) == [(1, 5)]
    assert state(as_of(spark, built.path).table("public.t")) == [(1, 5, None), (2, 6, "x")]
    built.insert(wider, "3", "7", "y")
    built.insert(built.table("public.t", {"id": "int64", "v": "int64"}), "4", "8")
    both = built.flush()  # one segment with a place between the two
    between = as_of(spark, built.path, version=both.first).table("public.t")
    assert state(between) == [(1, 5, None), (2, 6, "x"), (3, 7, "y")]
    assert as_of(spark, built.path).table("public.t").columns == ["id", "v", "_version"]


def test_a_place_inside_a_transaction_is_its_end(spark: Any, built: BuiltLog) -> None:
    table = built.table("public.t", {"id": "int64"})
    dump(built, table, [["1"]])
    transaction = built.transaction()
    for row in ("2", "3"):
        built.insert(table, row)
    first = built.flush(transaction, whole=False)
    built.insert(table, "4")
    second = built.flush(transaction)
    built.insert(table, "5")
    built.flush()
    found = as_of(spark, built.path, version=first.first)
    assert found.end == second.next
    assert state(found.table("public.t")) == [(1,), (2,), (3,), (4,)]


def test_a_transaction_that_is_not_whole_yet_is_left_out(spark: Any, built: BuiltLog) -> None:
    table = built.table("public.t", {"id": "int64"})
    dump(built, table, [["1"]])
    built.insert(table, "2")
    complete = built.flush()
    transaction = built.transaction()
    for row in ("3", "4"):
        built.insert(table, row)
        built.flush(transaction, whole=False)
    found = as_of(spark, built.path)
    assert found.end == complete.next
    assert state(found.table("public.t")) == [(1,), (2,)]


def test_a_table_without_a_complete_dump_has_no_state(spark: Any, built: BuiltLog) -> None:
    table = built.table("public.t", {"id": "int64"})
    built.insert(table, "1")
    first = built.flush()
    with pytest.raises(ConfigError, match=r"no dump of public.t was complete.*tidelog dump"):
        as_of(spark, built.path).table("public.t")
    dump(built, table, [["1"]])
    with pytest.raises(ConfigError, match="the first position with one is version"):
        as_of(spark, built.path, version=first.first).table("public.t")
    with pytest.raises(ConfigError, match="exclude one another"):
        as_of(spark, built.path, version=1, timestamp="2024-01-01")
