"""Keys of all kinds, in the order the source has them, in chunks that end inside equal prefixes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.behaviours.dumps.dumped import Make, gate
from tests.behaviours.dumps.sources import N, series, values
from tests.behaviours.dumps.ways import STRATEGIES, TWO, Way, only, ways
from tests.integration.windows.live import replay

from tidelog import app

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Keyed:
    """A table, its rows, its key, and what is done to it while it is dumped."""

    name: str
    columns: str
    rows: str
    key: tuple[str, ...]
    change: str
    before: str = "SELECT 1"

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


MYSQL_KEYED = [
    Keyed(
        "four columns",
        "n bigint NOT NULL, d varchar(9) COLLATE utf8mb4_bin, b int, a int, c binary(4), "
        "PRIMARY KEY (a, b, c, d)",
        "SELECT 1, d, y.i, x.i, unhex(concat('0000000', y.i)) FROM aside.series x, aside.series y, "
        "(SELECT 'x' AS d UNION SELECT 'Y' UNION SELECT 'é' UNION SELECT '') z "
        "WHERE x.i BETWEEN 1 AND 2 AND y.i BETWEEN 1 AND 3",
        ("a", "b", "c", "d"),
        f"UPDATE t SET n = {N}, b = b + 10 WHERE a = 1 AND d = 'x'",
    ),
    Keyed(
        "enum",
        "mood enum('zz', 'mm', 'aa', 'Z', '', 'b', 'é') PRIMARY KEY, n bigint NOT NULL",
        values("'zz'", "'mm'", "'aa'", "'Z'", "''", "'b'", "'é'"),
        ("mood",),
        f"UPDATE t SET n = {N} WHERE mood IN ('zz', 'aa', '')",
    ),
    Keyed(
        "decimal",
        "id decimal(30, 10) PRIMARY KEY, n bigint NOT NULL",
        values("0", "-0.5", "12345678901234567890.5", "-7", "1e-10", "1.10", "-1e19"),
        ("id",),
        f"UPDATE t SET n = {N} WHERE id IN (1.1, -7)",
    ),
    Keyed(
        "unsigned",
        "id bigint unsigned PRIMARY KEY, n bigint NOT NULL",
        values("0", "18446744073709551615", "9223372036854775808", "7", "9223372036854775807"),
        ("id",),
        f"UPDATE t SET n = {N} WHERE id >= 9223372036854775808",
    ),
    Keyed(
        "text in its collation's order",
        "id varchar(20) COLLATE utf8mb4_general_ci PRIMARY KEY, n bigint NOT NULL",
        values(
            "'a'", "'B'", "'Z'", "'é'", "''", "'a b'", "'it''s'", "'back\\\\slash'", "'ß'", "'%'"
        ),
        ("id",),
        f"UPDATE t SET n = {N} WHERE id IN ('A', 'é', '')",
    ),
    Keyed(
        "another character set",
        "id varchar(20) CHARACTER SET latin1 COLLATE latin1_german2_ci PRIMARY KEY, n bigint "
        "NOT NULL",
        values("'a'", "'ä'", "'Z'", "'é'", "'af'", "'ß'"),
        ("id",),
        f"UPDATE t SET n = {N} WHERE id IN ('ä', 'ß')",
    ),
    Keyed(
        "time",
        "id datetime(6) PRIMARY KEY, n bigint NOT NULL",
        values("'1000-01-01'", "'9999-12-31 23:59:59.999999'", "'2024-01-01 00:00:00.000001'"),
        ("id",),
        f"UPDATE t SET n = {N} WHERE id > '9000-01-01'",
    ),
    Keyed(
        "bytes",
        "id varbinary(9) PRIMARY KEY, n bigint NOT NULL",
        values("x''", "x'00'", "x'ff'", "x'0001'", "x'5c27'", "x'c3a9'"),
        ("id",),
        f"UPDATE t SET n = {N} WHERE id IN (x'00', x'', x'ff')",
    ),
    Keyed(
        "order of its own",
        "b varchar(9) NOT NULL, a int NOT NULL, n bigint NOT NULL, PRIMARY KEY (a, b)",
        series(21, "concat(i % 7), i % 3, 1"),
        ("a", "b"),
        f"UPDATE t SET n = {N} WHERE a = 1",
    ),
]
MYSQL_TWO = [Way("table", 4, "mysql"), Way("gtid", 1, "mariadb")]
EVERY_KIND = [(keyed, way) for keyed in KEYED for way in only("postgres", TWO)]
EVERY_KIND += [(keyed, MYSQL_TWO[i % 2]) for i, keyed in enumerate(MYSQL_KEYED)]
EVERY_KIND += [(keyed, Way("gtid", 1, "mysql")) for keyed in MYSQL_KEYED if "order" in keyed.name]


@pytest.mark.parametrize(("keyed", "way"), EVERY_KIND, ids=str)
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
        dumped.reach(held)
        dumped.do(keyed.change)
        held.open()
        dumped.dumped(dump)
    dumped.check(key=keyed.key)
    again = dumped.dump()
    dumped.dumped(again)
    rows = dumped.rows_of(again)
    assert sorted(map(str, rows)) == sorted(map(str, dumped.source("t", keyed.key)))
    if dumped.parallelism == 1:
        columns, ordered = dumped.on.texts(dumped.sql, "t", keyed.key)
        places = [columns.index(name) for name in keyed.key]
        assert rows == [tuple(row[place] for place in places) for row in ordered]
    dumped.check(key=keyed.key)


@ways(TWO)
def test_surrogate_key_with_nulls(make: Make) -> None:
    """Debezium: insertsWithoutPks, insertsWithoutPksAndNull, snapshotWithSurrogateKey. Rows whose
    key holds NULL are dumped too; they are matched by it.
    """
    dumped = make(chunk_rows=3, source_lines='keys: {"public.t": [a, b]}')
    dumped.table(
        columns="a int, b varchar(9), n bigint NOT NULL",
        rows=series(11, "nullif(i, 4), nullif(concat(i % 5), '0'), 1") + " "
        "UNION ALL SELECT NULL, NULL, 1 UNION ALL SELECT NULL, 'x', 1",
        key=("a", "b"),
    )
    dumped.do(*dumped.on.unique_key("t", "a, b"))
    dumped.start()
    with gate("chunk.after_read", hit=2) as held:
        dump = dumped.dump()
        dumped.reach(held)
        dumped.do(f"UPDATE t SET n = {N} WHERE a IS NULL")
        dumped.do(f"UPDATE t SET n = {N} WHERE a IN (2, 10)", "DELETE FROM t WHERE a = 5")
        held.open()
        dumped.dumped(dump)
    dumped.check(key=("a", "b"))
    assert len(dumped.source("t", ("a", "b"))) == 12


@ways(TWO)
def test_lines_that_check_proposes_give_a_table_its_key(make: Make) -> None:
    """Those of a unique index whose columns are never NULL: `source.keys`, and PostgreSQL's replica
    identity, without which its updates are not logged. The key of rows changes too.
    """
    dumped = make(snapshot="initial")
    dumped.sql.execute(
        "CREATE TABLE t (code varchar(9) NOT NULL, part int NOT NULL, n bigint NOT NULL)"
    )
    dumped.sql.execute("ALTER TABLE t ADD CONSTRAINT by_code UNIQUE (code, part)")
    dumped.sql.execute("INSERT INTO t " + series(20, "concat('c', i % 7), i, 1"))
    dumped.start()
    dumped.dumped("initial")
    fixes = [each.fix for each in app.check(dumped.config) if each.check == "table public.t"]
    lines = [line for fix in fixes for line in fix.splitlines()]
    (proposed,) = [line for line in lines if "set source.keys: " in line]
    for line in lines:
        if line.startswith("ALTER TABLE"):
            dumped.sql.execute(line)
    dumped.wait_for(lambda: not dumped.seen["inserts_only"], "its updates are logged")
    dumped.stop()
    dumped.source_lines = f"keys: {proposed.partition('set source.keys: ')[2]}"
    before = len(dumped.completions())
    dumped.start()
    dumped.wait_for(lambda: len(dumped.completions()) > before, "it is dumped by its key")
    dumped.do(f"UPDATE t SET n = {N} WHERE part < 5", "DELETE FROM t WHERE part = 6")
    dumped.do(f"UPDATE t SET code = 'moved', n = {N} WHERE part IN (7, 8)")
    dumped.do(f"INSERT INTO t VALUES ('c6', 6, {N})")
    with gate("chunk.after_read", hit=2) as held:
        dump = dumped.dump()
        dumped.reach(held)
        dumped.do(f"UPDATE t SET part = part + 100, n = {N} WHERE part IN (1, 20)")
        held.open()
        dumped.dumped(dump)
    dumped.catch_up()
    found = replay(dumped.events("public.t"))
    assert found == dumped.source("t", ("code", "part"))
    assert not app.status(dumped.config).document["inserts_only"]


def test_key_that_is_no_column_is_its_tables_trouble_alone(make: Make) -> None:
    """Debezium: shouldNotGetStuckOnInvalidSurrogateKey."""
    dumped = make(snapshot="initial", source_lines='keys: {"public.t*": [k]}')
    dumped.table("t", "k int NOT NULL, n int", "SELECT 1, 1", key=("k",))
    dumped.do("ALTER TABLE t ADD UNIQUE (k)")
    dumped.sql.execute("CREATE TABLE tu (a int, n int)")
    dumped.sql.execute("INSERT INTO tu VALUES (1, 1)")
    dumped.start()
    dumped.wait_for(dumped.completions, "the other table is dumped")
    (told,) = dumped.seen["refused"]
    assert told["table"] == "public.tu"
    assert "source.keys names columns that it does not have: k" in told["reason"]
    dumped.do("INSERT INTO tu VALUES (2, 2)", "INSERT INTO t VALUES (2, 2)")
    dumped.catch_up()
    assert [e.op for e in dumped.events("public.tu") if e.op != "c"] == ["I"]
    dumped.do("ALTER TABLE tu ADD k int", "UPDATE tu SET k = a, n = 3")
    dumped.wait_for(lambda: dumped.completions("public.tu"), "it is dumped")
    dumped.wait_for(lambda: not dumped.seen["refused"], "it is refused no more")
    notices = [(n.dump_id, str(n.type)) for n in dumped.notices if n.aggregate_type == "Table"]
    assert notices == [("public.tu", "SKIPPED"), ("public.tu", "RESUMED")]
    dumped.wait_for(
        lambda: (
            replay([e for e in dumped.events("public.tu") if e.key != ()])
            == {(k,): {"a": k, "n": "3", "k": k} for k in ("1", "2")}
        ),
        "its rows are in the event log",
    )


@ways(STRATEGIES)
def test_partitioned_table_is_dumped_as_one(make: Make) -> None:
    """Debezium: snapshotPartitionedTable."""
    dumped = make()
    for statement in dumped.on.partitioned("t", range(0, 40, 10)):
        dumped.sql.execute(statement)
    dumped.sql.execute("INSERT INTO t " + series(25))
    dumped.note("t")
    dumped.start()
    with gate("chunk.after_read", hit=2) as held:
        dump = dumped.dump()
        dumped.reach(held)
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
    """Debezium: ignoreGeneratedColumn. Rows of a dump have them where records have: PostgreSQL's
    have none, those of MySQL and MariaDB have virtual ones too.
    """
    dumped = make()
    logged = dumped.on.kind != "postgres"
    virtual = ", v bigint GENERATED ALWAYS AS (n * 3) VIRTUAL" if logged else ""
    dumped.table(
        columns="id int PRIMARY KEY, n bigint NOT NULL, "
        f"g int GENERATED ALWAYS AS (n % 7) STORED{virtual}",
        rows="(id, n) " + series(12),
    )
    dumped.start()
    with gate("chunk.after_read", hit=2) as held:
        dump = dumped.dump()
        dumped.reach(held)
        dumped.do(f"UPDATE t SET n = {N} WHERE id IN (2, 7)")
        held.open()
        dumped.dumped(dump)
    dumped.ledgers.clear()
    dumped.catch_up()
    shapes = {tuple(e.row) for e in dumped.events("public.t") if e.row is not None}
    assert shapes == {("id", "n", "g", "v") if logged else ("id", "n")}
    if logged:
        dumped.check()


@ways(only("mysql", TWO) + only("mariadb", TWO))
def test_keys_that_change_their_case_alone(make: Make) -> None:
    """To the source the key is the same one, to the event log it moves."""
    dumped = make(chunk_rows=3)
    dumped.table(
        columns="id varchar(20) COLLATE utf8mb4_general_ci PRIMARY KEY, n bigint NOT NULL",
        rows=series(20, "concat('k', i), 1", first=10),
    )
    dumped.start()
    with gate("chunk.after_read", hit=2) as held:
        dump = dumped.dump()
        dumped.reach(held)
        dumped.do(f"UPDATE t SET id = upper(id), n = {N} WHERE id IN ('k11', 'k14', 'k19')")
        dumped.do("DELETE FROM t WHERE id = 'K15'", f"INSERT INTO t VALUES ('K15', {N})")
        dumped.do(f"UPDATE t SET id = 'k14', n = {N} WHERE id = 'k14'")
        held.open()
        dumped.dumped(dump)
    dumped.check()
    given = dumped.dump(keys=[("K11",), ("k12",), ("K13",), ("nothing",)])
    done = dumped.dumped(given)
    assert done["tables"][0]["keys_absent"] == 1, "the source compares"
    dumped.check()
