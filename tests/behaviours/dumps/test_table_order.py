"""Tables of one dump are read small ones first, by the source's own statistics."""

from __future__ import annotations

import pytest
from tests.behaviours.dumps.dumped import Dumped, Make
from tests.behaviours.dumps.ways import TWO, Way, only, ways

from tidelog.capture.dumps.coordinator import smallest_first
from tidelog.model.schema import TableName

pytestmark = pytest.mark.integration

LARGE, SMALL, ALIKE, OTHER = "public.a_large", "public.z_small", "public.b_alike", "public.o"


def analyze(dumped: Dumped, table: str) -> None:
    verb = "ANALYZE" if dumped.on.kind == "postgres" else "ANALYZE TABLE"
    dumped.sql.execute(f"{verb} {table}".encode())


def order(dumped: Dumped, dump: str) -> list[str]:
    return [table["table"] for table in dumped.state(dump)["tables"]]


@ways(TWO)
def test_small_tables_are_read_first(make: Make, way: Way) -> None:
    dumped = make(snapshot="initial", chunk_rows=1000)
    for table, rows in ((LARGE, 4000), (ALIKE, 90), (SMALL, 80), (OTHER, 3000)):
        dumped.table(table, rows=rows)
        analyze(dumped, table)
    dumped.start()
    # Nobody named them: of those that are about as large as each other the first by name.
    dumped.dumped("initial")
    ours = (LARGE, ALIKE, SMALL)
    found = [name for name in order(dumped, "initial") if name in ours]
    assert found == [ALIKE, SMALL, LARGE]
    # As they were named.
    dump = dumped.dump(LARGE, SMALL, ALIKE, OTHER)
    dumped.dumped(dump)
    assert order(dumped, dump) == [SMALL, ALIKE, LARGE, OTHER]
    told = [
        (e.control["type"], e.table or e.control["table"])
        for e in dumped.events()
        if e.control and e.control.get("dump_id") == dump and "type" in e.control
    ]
    ended = [table for what, table in told if what == "dump-completed"]
    assert set(ended[:2]) == {SMALL, ALIKE}
    if way.parallelism == 1:
        assert ended == [SMALL, ALIKE, LARGE, OTHER]
        begins, ends = "dump-started", "dump-completed"
        assert told.index((begins, ALIKE)) < told.index((ends, SMALL)), "small ones ahead"
        assert told.index((ends, LARGE)) < told.index((begins, OTHER)), "others in their turn"
    for table in (LARGE, SMALL, ALIKE, OTHER):
        dumped.check(table)


@ways(only("postgres", TWO))
def test_a_table_without_statistics_comes_last_and_partitions_count(make: Make) -> None:
    dumped = make(chunk_rows=1000)
    dumped.table("a_unknown", rows=3)
    dumped.sql.execute("CREATE TABLE b_parts (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    for low in (0, 2000, 4000):
        dumped.sql.execute(
            f"CREATE TABLE b_parts_{low} PARTITION OF b_parts "
            f"FOR VALUES FROM ({low}) TO ({low + 2000})".encode()
        )
    dumped.sql.execute("INSERT INTO b_parts SELECT generate_series(0, 5999)")
    analyze(dumped, "b_parts")
    dumped.table("c_whole", rows=3000)
    analyze(dumped, "c_whole")
    dumped.start()
    dump = dumped.dump("public.a_unknown", "public.b_parts", "public.c_whole")
    dumped.dumped(dump)
    assert order(dumped, dump) == ["public.c_whole", "public.b_parts", "public.a_unknown"]


def test_the_order_of_tables() -> None:
    names = {name: TableName("p", name) for name in "abcdef"}
    rows = {names[name]: count for name, count in zip("abde", (90_000, 0, 2000, 1), strict=True)}
    found = smallest_first(names.values(), rows)
    assert "".join(table.name for table in found) == "bedacf"
    assert smallest_first([], {}) == []
