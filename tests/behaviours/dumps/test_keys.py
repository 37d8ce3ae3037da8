"""Keys of all kinds, in the order the source has them, in chunks that end inside equal prefixes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.behaviours.dumps.dumped import Make, gate
from tests.behaviours.dumps.ways import STRATEGIES, TWO, ways

from tidelog.errors import ConfigError

pytestmark = pytest.mark.integration

N = "nextval('aside.ns')"


@dataclass(frozen=True)
class Keyed:
    """A table, its rows, its key, and what is done to it while it is dumped."""

    name: str
    columns: str
    rows: str
    key: tuple[str, ...]
    change: str
    before: str = "SELECT"

    def __str__(self) -> str:
        return self.name


KEYED = [
    Keyed(
        "four columns",
        "n int NOT NULL, d text, b int, a int, c uuid, PRIMARY KEY (a, b, c, d)",
        "SELECT 1, d, b, a, md5(b::text)::uuid FROM generate_series(1, 2) a, "
        "generate_series(1, 3) b, unnest(ARRAY['x', 'Y', 'é', '']) d",
        ("a", "b", "c", "d"),
        f"UPDATE t SET n = {N}, b = b + 10 WHERE a = 1 AND d = 'x'",
    ),
    Keyed(
        "enum",
        "mood aside.mood PRIMARY KEY, n int NOT NULL",
        "SELECT unnest(enum_range(NULL::aside.mood)), 1",
        ("mood",),
        f"UPDATE t SET n = {N} WHERE mood IN ('zz', 'aa')",
        "CREATE TYPE aside.mood AS ENUM ('zz', 'mm', 'aa', 'ZZ', '', 'b', 'é')",
    ),
    Keyed(
        "numeric with NaN",
        "id numeric PRIMARY KEY, n int NOT NULL",
        "SELECT v::numeric, 1 FROM unnest(ARRAY['NaN', 'Infinity', '-Infinity', '0', '-0.5', "
        "'1e20', '1.10', '99999999999999999999.5', '-7', '1e-20']) v",
        ("id",),
        f"UPDATE t SET n = {N} WHERE id IN ('NaN', '-Infinity', 1.1)",
    ),
    Keyed(
        "float with NaN",
        "id float8 PRIMARY KEY, n int NOT NULL",
        "SELECT v::float8, 1 FROM unnest(ARRAY['NaN', 'Infinity', '-Infinity', '0', '0.1', "
        "'1e300', '5e-324', '-1.5']) v",
        ("id",),
        f"UPDATE t SET n = {N} WHERE id IN ('NaN', 0.1)",
    ),
    Keyed(
        "text",
        "id text PRIMARY KEY, n int NOT NULL",
        "SELECT v, 1 FROM unnest(ARRAY['a', 'B', 'ä', 'Z', 'é', 'e', '', ' ', 'a b', '\U0001f600'])"
        " v",
        ("id",),
        f"UPDATE t SET n = {N} WHERE id IN ('ä', '')",
    ),
    Keyed(
        "time with infinity",
        "id timestamptz PRIMARY KEY, n int NOT NULL",
        "SELECT v::timestamptz, 1 FROM unnest(ARRAY['infinity', '-infinity', '2024-01-01', "
        "'0001-01-01 BC', '1999-12-31 23:59:59.999999+14', '2024-01-01 00:00:00.000001']) v",
        ("id",),
        f"UPDATE t SET n = {N} WHERE id IN ('infinity', '-infinity')",
    ),
    Keyed(
        "bytes",
        "id bytea PRIMARY KEY, n int NOT NULL",
        "SELECT v::bytea, 1 FROM unnest(ARRAY['', '\\x00', '\\xff', '\\x0001', '\\x5c27']) v",
        ("id",),
        f"UPDATE t SET n = {N} WHERE id IN ('\\x00', '')",
    ),
    Keyed(
        "order of its own",
        "b text NOT NULL, a int NOT NULL, n int NOT NULL, PRIMARY KEY (a, b)",
        "SELECT (i % 7)::text, i % 3, 1 FROM generate_series(1, 21) i",
        ("a", "b"),
        f"UPDATE t SET n = {N} WHERE a = 1",
    ),
]


@pytest.mark.parametrize("keyed", KEYED, ids=str)
@ways(TWO)
def test_every_kind_of_key(make: Make, keyed: Keyed) -> None:
    """Debezium: inserts4Pks, insertsEnumPk, insertsNumericPk, insertsNumericPkWithSpecialValues,
    incrementalSnapshotMustRespectMessageKeyColumnsOrder.
    """
    dumped = make(chunk_rows=3)
    dumped.sql.execute(keyed.before.encode())
    dumped.table("t", keyed.columns, keyed.rows, key=keyed.key)
    dumped.start()
    with gate("chunk.after_read", hit=1) as held:
        dump = dumped.dump()
        assert held.reached.wait(10)
        dumped.do(keyed.change)
        held.open()
        dumped.dumped(dump)
    dumped.check(key=keyed.key)
    again = dumped.dump()
    dumped.dumped(again)
    rows = dumped.rows_of(again)
    assert sorted(map(str, rows)) == sorted(map(str, dumped.source("t", keyed.key)))
    if dumped.parallelism == 1:
        ordered = dumped.sql.execute(
            f"SELECT {', '.join(f'{k}::text' for k in keyed.key)} FROM t AS s "
            f"ORDER BY {', '.join(f's.{k}' for k in keyed.key)}".encode()
        )
        assert rows == list(ordered)
    dumped.check(key=keyed.key)


@ways(TWO)
def test_surrogate_key_with_nulls(make: Make) -> None:
    """Debezium: insertsWithoutPks, insertsWithoutPksAndNull, snapshotWithSurrogateKey. Rows whose
    key holds NULL are dumped too; they are matched by it.
    """
    dumped = make(chunk_rows=3, source_lines='keys: {"public.t": [a, b]}')
    dumped.table(
        columns="a int, b text, n int NOT NULL",
        rows="SELECT NULLIF(i, 4), NULLIF((i % 5)::text, '0'), 1 FROM generate_series(1, 11) i "
        "UNION ALL SELECT NULL, NULL, 1 UNION ALL SELECT NULL, 'x', 1",
        key=("a", "b"),
    )
    dumped.do(
        "CREATE UNIQUE INDEX ON t (a, b) NULLS NOT DISTINCT",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    dumped.start()
    with gate("chunk.after_read", hit=2) as held:
        dump = dumped.dump()
        assert held.reached.wait(10)
        dumped.do(f"UPDATE t SET n = {N} WHERE a IS NULL")
        dumped.do(f"UPDATE t SET n = {N} WHERE a IN (2, 10)", "DELETE FROM t WHERE a = 5")
        held.open()
        dumped.dumped(dump)
    dumped.check(key=("a", "b"))
    assert len(dumped.source("t", ("a", "b"))) == 12


def test_key_that_is_no_column_is_refused_at_start(make: Make) -> None:
    """Debezium: shouldNotGetStuckOnInvalidSurrogateKey."""
    dumped = make(source_lines='keys: {"public.t": [nothing]}')
    dumped.table("t", "a int, n int", "SELECT 1, 1", key=("a",))
    dumped.start(wait=False)
    failure = dumped.ended()
    assert isinstance(failure, ConfigError)
    assert "public.t" in str(failure)
    assert "nothing" in str(failure)


@ways(STRATEGIES)
def test_partitioned_table_is_dumped_as_one(make: Make) -> None:
    """Debezium: snapshotPartitionedTable."""
    dumped = make()
    dumped.sql.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL) PARTITION BY RANGE (id)"
    )
    for low in range(0, 40, 10):
        dumped.sql.execute(
            f"CREATE TABLE t_{low} PARTITION OF t FOR VALUES FROM ({low}) TO ({low + 10})".encode()
        )
    dumped.sql.execute("INSERT INTO t SELECT i, 1 FROM generate_series(1, 25) i")
    dumped.note("t")
    dumped.start()
    with gate("chunk.after_read", hit=2) as held:
        dump = dumped.dump()
        assert held.reached.wait(10)
        dumped.do(f"UPDATE t SET id = 35, n = {N} WHERE id = 3")  # to another partition
        dumped.do(f"UPDATE t SET n = {N} WHERE id IN (8, 25)", f"INSERT INTO t VALUES (30, {N})")
        held.open()
        dumped.dumped(dump)
    assert {e.table for e in dumped.events() if e.op in "rIUD"} <= {"public.t", "public.tick"}
    assert dumped.completions()
    # To its triggers the row that moved was deleted and inserted; so it is to the log.
    dumped.check()


@ways(TWO)
def test_generated_columns(make: Make) -> None:
    """Debezium: ignoreGeneratedColumn. The log has none, so rows of a dump have none."""
    dumped = make()
    dumped.table(
        columns="id int PRIMARY KEY, n int NOT NULL, g int GENERATED ALWAYS AS (n * 2) STORED",
        rows="SELECT i, 1 FROM generate_series(1, 12) i",
    )
    dumped.start()
    with gate("chunk.after_read", hit=2) as held:
        dump = dumped.dump()
        assert held.reached.wait(10)
        dumped.do(f"UPDATE t SET n = {N} WHERE id IN (2, 7)")
        held.open()
        dumped.dumped(dump)
    dumped.ledgers.clear()
    dumped.catch_up()
    shapes = {tuple(e.row) for e in dumped.events("public.t") if e.row is not None}
    assert shapes == {("id", "n")}
