"""Chunks of MySQL and MariaDB tables: what is read, in which order, by which index."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pymysql
import pytest
from tests.integration.postgres.conftest import Row, rows_of
from tests.support.mysql import MariaDbServer, MySqlFamilyServer

from tidelog.codecs.mysql.rows.keys import BinlogKeys
from tidelog.errors import (
    ChunkBusyError,
    ChunkError,
    ChunkLostError,
    ChunkRefusedError,
    ChunkTooSlowError,
    ChunkVoidError,
)
from tidelog.model.records import RecordKind
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest, ChunkRows, NullRegistry
from tidelog.sources.mysql.catalogue.schemas import MySqlSchemaFinder
from tidelog.sources.mysql.chunks.blocking import MySqlBlockingReader
from tidelog.sources.mysql.chunks.reader import SQL_MODE, MySqlChunkReader
from tidelog.sources.mysql.chunks.rows import row_texts
from tidelog.sources.mysql.chunks.sql import MySqlChunkSql, key_index
from tidelog.sources.mysql.connect import connect

pytestmark = pytest.mark.integration


@dataclass
class Source:
    """A database with a table ``t``, and a reader of its chunks."""

    server: MySqlFamilyServer
    database: str
    sql: pymysql.Connection[Any]
    chunks: MySqlChunkReader
    schemas: NullRegistry = field(default_factory=NullRegistry)

    @property
    def table(self) -> TableName:
        return TableName(self.database, "t")

    def run(self, *statements: str) -> tuple[tuple[Any, ...], ...]:
        with self.sql.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()

    def read(self, **request: Any) -> ChunkRows:
        try:
            return self.chunks.read(ChunkRequest(self.table, **request))
        finally:
            self.chunks.release()

    def rows(self, **request: Any) -> list[Row]:
        return rows_of(self.read(**request).rows, self.schemas)

    def column(self, column: str, **request: Any) -> list[str | None]:
        return [(row.new or row.old or {})[column] for row in self.rows(**request)]

    def boundaries(self, count: int, **request: Any) -> list[tuple[str | None, ...]]:
        return self.chunks.boundaries(ChunkRequest(self.table, **request), count)


@pytest.fixture
def source(mysql_family: MySqlFamilyServer, mysql_family_database: str) -> Iterator[Source]:
    schemas = NullRegistry()
    chunks = MySqlChunkReader(
        mysql_family.url,
        schemas,
        lock_timeout_ms=300,
        statement_timeout_ms=2_000,
        finder=MySqlSchemaFinder({"*.t": ["a", "b"]}),
    )
    with mysql_family.connect(mysql_family_database) as sql:
        found = Source(mysql_family, mysql_family_database, sql, chunks, schemas)
        found.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
        found.run("INSERT INTO t VALUES " + ", ".join(f"({n}, 'old')" for n in range(1, 101)))
        yield found
    chunks.close()


def test_ranges_walk_the_whole_table_and_boundaries_foretell_them(source: Source) -> None:
    after, found, last_keys = None, [], []
    foretold = source.boundaries(10, limit_rows=30)
    while True:
        chunk = source.read(after=after, limit_rows=30)
        found += [row.new["id"] for row in rows_of(chunk.rows, source.schemas) if row.new]
        if chunk.exhausted:
            break
        after = chunk.last_key
        last_keys.append(after)
    assert found == [str(n) for n in range(1, 101)]
    assert foretold == last_keys == [("30",), ("60",), ("90",)]
    assert source.boundaries(2, limit_rows=30) == foretold[:2]
    inside = {"after": ("10",), "upto": ("20",), "where": "id % 2 = 0"}
    assert source.column("id", **inside) == ["12", "14", "16", "18", "20"]
    assert source.boundaries(1, limit_rows=30, **inside) == []


def test_chunk_is_read_again_whose_column_is_dropped_behind_its_snapshot(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``information_schema`` shows the column under the snapshot, the table has it no more."""
    begin = source.chunks._begin

    def begin_then_alter(connection: Any) -> Any:
        begun = begin(connection)
        source.run("ALTER TABLE t DROP COLUMN v")
        return begun

    with monkeypatch.context() as patch:
        patch.setattr(source.chunks, "_begin", begin_then_alter)
        with suppress(ChunkBusyError):  # not on MariaDB, which shows columns as they are
            source.read()
    assert len(source.rows()) == 100
    with pytest.raises(ChunkRefusedError, match="condition"):
        source.read(where="w = 1")


def test_a_read_that_is_spread_gives_the_same_rows(source: Source) -> None:
    source.run("INSERT INTO t SELECT 1000 + a.id * 100 + b.id, 'x' FROM t a, t b WHERE a.id <= 30")
    at_once = source.read(limit_rows=2_500)
    begun = time.monotonic()
    spread = source.read(limit_rows=2_500, spread_s=0.4)
    assert 0 < spread.rested_s <= time.monotonic() - begun
    assert spread.rows.payload.tobytes() == at_once.rows.payload.tobytes()
    assert spread.last_key == at_once.last_key
    assert not spread.exhausted


def test_rows_larger_than_expected_end_a_range_early(source: Source) -> None:
    source.run("ALTER TABLE t MODIFY v longtext")
    source.run("INSERT INTO t SELECT 100 + id, repeat('x', 400000) FROM t WHERE id <= 40")
    after, found, cut = None, [], 0
    while True:
        chunk = source.chunks.read(ChunkRequest(source.table, after=after, limit_bytes=1 << 20))
        assert chunk.rows.payload_bytes <= (2 << 20) + 400_000  # what arrives at once comes as well
        found += [row.new["id"] for row in rows_of(chunk.rows, source.schemas) if row.new]
        if not chunk.exhausted and not cut:
            cut += 1
            source.run("SET SESSION lock_wait_timeout = 1")
            with pytest.raises(pymysql.OperationalError):  # the lock outlives the cut
                source.run("ALTER TABLE t ADD c int")
        source.chunks.release()
        if chunk.exhausted:
            break
        after = chunk.last_key
    assert cut
    assert found == [str(n) for n in range(1, 141)]
    keys = [(str(n),) for n in (*range(90, 141), 900)]
    read: list[Row] = []
    while keys:
        chunk = source.read(keys=tuple(keys), limit_bytes=1 << 20)
        assert chunk.keys_read
        assert chunk.rows.payload_bytes <= (2 << 20) + 400_000
        read += rows_of(chunk.rows, source.schemas)
        del keys[: chunk.keys_read]
    kinds = sorted((row.kind, (row.new or row.old or {})["id"]) for row in read)
    assert kinds == sorted([*(("r", str(n)) for n in range(90, 141)), ("a", "900")])


def test_given_keys_come_as_rows_or_as_absent(source: Source) -> None:
    rows = source.rows(keys=(("3",), ("900",), ("1",), ("3",)))
    assert [(row.kind, (row.new or row.old or {})["id"]) for row in rows] == [
        ("r", "1"), ("r", "3"), ("a", "900"),
    ]  # fmt: skip
    many = tuple((str(n),) for n in range(50, 1_300))
    assert len(source.column("id", keys=many)) == 1_250
    assert source.column("id", keys=(("3",), ("4",)), where="id = 4") == ["4"]


def test_given_texts_are_compared_as_the_column_compares(source: Source) -> None:
    source.run(
        "DROP TABLE t",
        "CREATE TABLE t (k varchar(20) CHARACTER SET latin1 COLLATE latin1_swedish_ci PRIMARY KEY)",
        "INSERT INTO t VALUES ('Abc'), ('ü'), ('?')",
    )
    rows = source.rows(keys=(("aBC",), ("ж",), ("Ü",), ("it's -- \\",)))
    assert [(row.kind, (row.new or row.old or {})["k"]) for row in rows] == [
        ("r", "Abc"), ("r", "ü"), ("a", "ж"), ("a", "it's -- \\"),
    ]  # fmt: skip


ODDLY_SPELLED = {
    "tinyint unsigned": "+007",
    "bigint": "-0012.0",
    "decimal(10,2)": "01.5",
    "decimal(6,0)": "-7.",
    "date": "2026-1-31",
    "datetime": "2026-01-31T12:00:00.000000Z",
    "datetime(3)": "2026-01-31 12:00",
    "timestamp(6)": "2026-01-31 12:00:00.5",
    "time(2)": "-1:02:03.5",
    "year": "2026",
    "bit(1)": "true",
    "bit(9)": "0256",
    "set('x','y','z')": "z,x",
    "char(4)": "ab  ",
    "double": "1.50e1",
}


def test_an_absent_key_is_spelled_as_its_row_would_be(source: Source) -> None:
    """Else a row that is created meanwhile is another one's, and its delete comes behind it."""
    types = dict(ODDLY_SPELLED)
    if isinstance(source.server, MariaDbServer):
        types["uuid"] = "6CCD780C-BABA-1026-9564-5B8C656024DB"
        types["inet6"] = "2001:DB8:0:0:0:0:0:1"
        del types["decimal(6,0)"], types["double"]  # 16 columns at most
    columns = [f"c{n:02d} {kind}" for n, kind in enumerate(types)]
    key = ", ".join(f"c{n:02d}" for n in range(len(types)))
    source.run("DROP TABLE t", f"CREATE TABLE t ({', '.join(columns)}, PRIMARY KEY ({key}))")
    given = tuple(types.values())
    (absent,) = source.rows(keys=(given, given))
    source.run(
        "INSERT INTO t VALUES (7, -12, 1.5, "
        + ("" if "uuid" in types else "-7, ")
        + "'2026-01-31', '2026-01-31 12:00:00', '2026-01-31 12:00:00', '2026-01-31 12:00:00.5', "
        "'-01:02:03.5', 2026, 1, 256, 'x,z', 'ab'"
        + (f", '{types['uuid']}', '{types['inet6']}')" if "uuid" in types else ", 15)")
    )
    (there,) = source.rows(keys=(given,))
    assert (absent.kind, there.kind) == ("a", "r")
    assert absent.old == {**(there.new or {}), **({} if "uuid" in types else {"c14": "1.50e1"})}
    entries = [
        BinlogKeys().keys(chunk.rows, np.zeros(1, np.int32), chunk.schema).key(0)
        for chunk in (source.read(keys=(given,)),)
    ]
    source.run("DELETE FROM t")
    chunk = source.read(keys=(given,))
    entries.append(BinlogKeys().keys(chunk.rows, np.zeros(1, np.int32), chunk.schema).key(0))
    assert entries[0] == entries[1]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("tinyint", "128"),
        ("int", "7.5"),
        ("decimal(4,2)", "1.555"),
        ("decimal(4,2)", "100"),
        ("datetime", "2026-01-31 12:00:00.9"),
        ("date", "2026-01-31 12:00:00"),
        ("year", "1900"),
        ("bit(2)", "4"),
    ],
)
def test_a_key_that_no_row_can_have_is_refused(source: Source, kind: str, value: str) -> None:
    """It is not rounded to one that a row may have."""
    source.run("DROP TABLE t", f"CREATE TABLE t (k {kind} PRIMARY KEY)")
    with pytest.raises(ChunkRefusedError, match=r"not of column k's type|condition"):
        source.rows(keys=((value,),))


@pytest.mark.parametrize(("kind", "padding"), [("binary(6)", "00"), ("varbinary(6)", "")])
def test_keys_of_bytes_are_hexadecimal_digits_or_texts(
    source: Source, kind: str, padding: str
) -> None:
    """And Tidelog itself tells bytes that look like hexadecimal digits from such."""
    source.run(
        "DROP TABLE t",
        f"CREATE TABLE t (k {kind} PRIMARY KEY)",
        "INSERT INTO t VALUES (X'00FF80'), ('0xff'), (X'FF'), ('abc')",
    )

    def stored(value: bytes) -> bytes:
        return value.ljust(6, b"\0") if padding else value

    def read(*keys: str) -> list[tuple[str, bytes]]:
        rows = source.read(keys=tuple((key,) for key in keys)).rows
        found = [row_texts(rows, place)[0] or "" for place in range(len(rows))]
        kinds = [RecordKind(kind).name for kind in rows.kind.tolist()]
        values = [text.encode("utf-8", "surrogateescape") for text in found]
        return list(zip(kinds, values, strict=True))

    assert read("0x00fF80", "abc", "0x") == [
        ("DUMP_ROW", stored(b"\x00\xff\x80")), ("DUMP_ROW", stored(b"abc")),
        ("ABSENT", stored(b"")),
    ]  # fmt: skip
    assert read("0xff") == [("DUMP_ROW", stored(b"\xff"))]
    assert read("0x30786666") == [("DUMP_ROW", stored(b"0xff"))]
    walked: list[tuple[str | None, ...]] = []
    while not (chunk := source.read(after=walked[-1] if walked else None, limit_rows=1)).exhausted:
        assert chunk.last_key is not None
        walked.append(chunk.last_key)
        entries = BinlogKeys().keys(chunk.rows, np.zeros(1, np.int32), chunk.schema)
        assert BinlogKeys().texts(entries.key(0), chunk.schema) == chunk.last_key
    values = [stored(value) for value in (b"\x00\xff\x80", b"0xff", b"abc", b"\xff")]
    assert walked == [(f"0x{value.hex()}",) for value in values]
    assert [kind for kind, _ in read(*[str(key) for (key,) in walked])] == ["DUMP_ROW"] * 4
    for wrong in ("0xf", "0xgg", "0x00 ff"):
        with pytest.raises(ChunkRefusedError, match="pairs of hexadecimal digits"):
            read(wrong)


def test_ddl_waits_until_release_and_writers_do_not(source: Source) -> None:
    source.chunks.read(ChunkRequest(source.table))
    source.run("INSERT INTO t VALUES (101, 'new')", "SET lock_wait_timeout = 1")
    with pytest.raises(pymysql.err.OperationalError, match="Lock wait timeout"):
        source.run("ALTER TABLE t ADD w int")
    source.chunks.write_watermark("high")
    source.chunks.release()
    source.run("ALTER TABLE t ADD w int")
    source.boundaries(2, limit_rows=10)
    source.run("ALTER TABLE t ADD x int")


def test_rows_of_a_chunk_have_the_schema_they_were_read_under(source: Source) -> None:
    before = source.read(limit_rows=1)
    source.run("ALTER TABLE t ADD w int DEFAULT 5")
    after = source.read(limit_rows=1)
    assert before.schema.schema_id != after.schema.schema_id
    assert rows_of(before.rows, source.schemas)[0].new == {"id": "1", "v": "old"}
    assert rows_of(after.rows, source.schemas)[0].new == {"id": "1", "v": "old", "w": "5"}


def test_bounds_of_another_key_void_the_chunk(source: Source) -> None:
    request = {"after": ("5",), "key_columns": ("v",)}
    with pytest.raises(ChunkVoidError, match="has changed since the dump began"):
        source.read(**request)
    with pytest.raises(ChunkVoidError, match="has changed since the dump began"):
        source.boundaries(1, **request)
    assert len(source.read(after=("5",), key_columns=("id",)).rows) == 95


def test_failures_say_what_may_help_and_the_next_read_works(source: Source) -> None:
    source.run("LOCK TABLES t WRITE")
    for ask in (source.read, lambda: source.boundaries(1)):
        with pytest.raises(ChunkBusyError, match="lock"):
            ask()
    source.run("UNLOCK TABLES")
    with pytest.raises(ChunkTooSlowError, match="chunk_rows"):
        source.read(where="SLEEP(0.1) = 0")
    for condition in ("secret = 'x'", "id = 'secret", "(", "id = 1; DROP TABLE t"):
        with pytest.raises(ChunkRefusedError) as refused:
            source.read(where=condition)
        assert "DROP" not in str(refused.value)
    with pytest.raises(ChunkRefusedError, match="column id's type"):
        source.read(keys=(("1 OR 1=1",),))
    with pytest.raises(ChunkError, match="does not exist"):
        source.chunks.read(ChunkRequest(TableName(source.database, "none")))
    source.chunks.release()
    assert len(source.read().rows) == 100


def test_an_error_behind_the_first_rows_of_a_table_without_a_key_is_no_end_of_the_table(
    source: Source,
) -> None:
    """However often it is read on; another table can be read under the same snapshot, and in the
    time limit that a table without a key has not.
    """
    source.run("CREATE TABLE heap (n int unsigned NOT NULL, w text)")
    rows = ", ".join(f"({n}, repeat('w', 9000))" for n in range(900, 0, -1))
    source.run(f"INSERT INTO heap VALUES {rows}", "INSERT INTO heap VALUES (0, 'w')")
    heap = ChunkRequest(TableName(source.database, "heap"), where="n - 1 >= 0", limit_rows=10)
    reached = [heap]
    blocking = MySqlBlockingReader(source.server.url, source.schemas, statement_timeout_ms=1_000)

    def read_on() -> None:
        while not (read := blocking.read(reached[-1])).exhausted:
            reached.append(replace(heap, after=read.last_key))

    try:
        blocking.begin(10)
        for _ in range(3):
            with pytest.raises(ChunkError, match="can't compute a value"):
                read_on()
        assert len(reached) > 1
        for condition in ("n > 0", "nosuch = 1"):  # the second fails at once
            with suppress(ChunkRefusedError):
                blocking.read(replace(heap, where=condition))
            with pytest.raises(ChunkTooSlowError):
                blocking.read(ChunkRequest(source.table, where="SLEEP(0.1) = 0"))
        assert len(blocking.read(ChunkRequest(source.table)).rows) == 100
    finally:
        blocking.close()


def test_closing_from_another_thread_ends_what_is_being_read(source: Source) -> None:
    failures: list[BaseException] = []

    def read() -> None:
        try:
            source.read(where="SLEEP(0.05) = 0")
        except ChunkError as failure:
            failures.append(failure)

    reading = threading.Thread(target=read)
    reading.start()
    time.sleep(0.3)
    began = time.monotonic()
    source.chunks.close()
    reading.join(10)
    assert isinstance(failures[0], ChunkLostError)
    assert time.monotonic() - began < 0.6
    source.run("SET lock_wait_timeout = 1", "ALTER TABLE t ADD w int")  # the server ended it too
    with pytest.raises(ChunkLostError):
        source.chunks.current_snapshot()


def test_a_mark_makes_what_came_before_it_visible(source: Source) -> None:
    source.run("UPDATE t SET v = 'seen' WHERE id = 7")
    begun = source.chunks.current_snapshot()
    source.run("UPDATE t SET v = 'later' WHERE id = 8")
    source.chunks.write_watermark("low")
    chunk = source.chunks.read(ChunkRequest(source.table))
    source.chunks.write_watermark("high")
    source.chunks.release()
    now = source.chunks.current_snapshot()
    assert now.follows(begun)
    assert not begun.follows(now)
    assert chunk.snapshot.follows(begun)
    ranges = chunk.snapshot.invisible_ranges(now.position)
    assert ranges.tolist() == [[chunk.snapshot.position, now.position + 1]]  # type: ignore[attr-defined]
    assert chunk.snapshot.visible(np.array([begun.position, now.position])).tolist() == [
        True,
        False,
    ]
    assert chunk.emit_at is None


def test_commits_out_of_order_are_refused(source: Source) -> None:
    if source.server.flavor == "mariadb":
        pytest.skip("MariaDB has no such switch")
    source.run("SET GLOBAL binlog_order_commits = OFF")
    try:
        with pytest.raises(ChunkRefusedError, match="SET GLOBAL binlog_order_commits = ON"):
            source.chunks.write_watermark("low")
        with pytest.raises(ChunkRefusedError, match="binlog_order_commits"):
            source.read()
    finally:
        source.run("SET GLOBAL binlog_order_commits = ON")


def test_rows_that_share_a_null_key_are_refused(source: Source) -> None:
    source.run(
        "DROP TABLE t",
        "CREATE TABLE t (a int, b int, v int, UNIQUE (a, b))",
        "INSERT INTO t VALUES (NULL, 1, 1), (NULL, 2, 2), (1, NULL, 3), (1, 1, 4), (2, NULL, 5)",
    )
    walked, after = [], None
    for _ in range(5):
        chunk = source.read(after=after, limit_rows=1)
        walked += [row.new["v"] for row in rows_of(chunk.rows, source.schemas) if row.new]
        after = chunk.last_key
    assert walked == ["1", "2", "3", "4", "5"]
    assert source.column("v", after=(None, "1"), upto=("1", None)) == ["2", "3"]
    assert source.column("v", keys=((None, "2"), ("2", None), ("3", None))) == ["2", "5", None]
    source.run("INSERT INTO t VALUES (2, NULL, 6)")
    with pytest.raises(ChunkRefusedError, match="share a key that holds NULL"):
        source.read()


# ---------------------------------------------------------------- keys of every type

_INTS = ["-5", "0", "7", "2147483647"]
KEYS: list[tuple[str, list[str]]] = [
    ("int", _INTS),
    ("bigint unsigned", ["0", "9223372036854775808", "18446744073709551615"]),
    ("int unsigned zerofill", ["0", "42", "4294967295"]),
    ("decimal(20,3)", ["-1.500", "0.000", "12345678901234567.125"]),
    ("float", ["-3.5", "0.10000000149011612", "3.3999999521443642e+38"]),
    ("double", ["-1e-300", "0.1", "1e300"]),
    ("bit(9)", ["0", "5", "300"]),
    ("bit(1)", ["f", "t"]),
    ("year", ["1999", "2001", "2155"]),
    ("date", ["0000-00-00", "2020-02-00", "2020-02-29", "9999-12-31"]),
    ("datetime(6)", ["2020-01-01 00:00:00.000000", "2020-01-01 00:00:00.000001"]),
    ("timestamp(3)", ["2020-01-01 00:00:00.000", "2020-01-01 00:00:00.001"]),
    ("time(2)", ["-838:59:59.00", "-00:00:01.50", "00:00:00.00", "800:00:00.25"]),
    ("varchar(20) COLLATE utf8mb4_unicode_ci", ["", "a", "B", "ç", "d' OR 1=1 -- \\", "😀"]),
    ("varchar(20) COLLATE utf8mb4_bin", ["", "B", "a", "é"]),
    ("varchar(20) CHARACTER SET latin1", ["", "a", "B", "ÿ"]),
    ("varchar(20) CHARACTER SET utf16", ["", "a", "B", "日本"]),
    ("char(8) CHARACTER SET utf8mb4", ["", "a", "B"]),
    ("binary(4)", ["\0\0\0\0", "a\0\0\0", "\udcff\udcfe\0\0"]),
    ("varbinary(20)", ["", "\0", "a", "\udcff'"]),
    ("enum('z','a','it''s','m')", ["z", "a", "it's", "m"]),
    ("set('z','a','m')", ["", "z", "a", "z,a", "m", "z,a,m"]),
]
MARIADB_KEYS = [
    ("uuid", ["ba07b849-e5b9-11f1-a9eb-02fc00000001", "6ccd780c-baba-1026-9564-5b8c656024db"]),
    ("inet6", ["::1", "::ffff:1.2.3.4", "2001:db8::1"]),
    ("inet4", ["1.2.3.4", "10.0.0.1"]),
]


def _walk(source: Source, limit_rows: int) -> list[tuple[str | None, ...]]:
    after, found = None, []
    for _ in range(200):
        chunk = source.read(after=after, limit_rows=limit_rows)
        found += [tuple(row_texts(chunk.rows, place)) for place in range(len(chunk.rows))]
        if chunk.exhausted:
            return found
        after = chunk.last_key
    raise AssertionError("the walk does not end")


def _key_tables() -> list[tuple[str, list[str]]]:
    return KEYS + MARIADB_KEYS


@pytest.mark.parametrize(("kind", "values"), _key_tables(), ids=[k for k, _ in _key_tables()])
@pytest.mark.parametrize("place", ["first", "last"])
def test_no_row_is_skipped_or_read_twice(
    source: Source, kind: str, values: list[str], place: str
) -> None:
    if (kind, values) in MARIADB_KEYS and source.server.flavor == "mysql":
        pytest.skip("a type of MariaDB alone")
    key = "k, n" if place == "first" else "n, k"
    source.run(
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        "DROP TABLE t",
        f"CREATE TABLE t (k {kind} NOT NULL, n int NOT NULL, PRIMARY KEY ({key}))",
    )
    for value in values:
        given = value.encode("utf-8", "surrogateescape")
        if kind.startswith("bit"):
            literal = {"t": "1", "f": "0"}.get(value, value)
        elif "binary" in kind:
            literal = f"X'{given.hex()}'"
        elif kind in ("float", "double"):
            literal = value
        else:
            literal = f"_utf8mb4 X'{given.hex()}'" if given else "''"
        source.run(f"INSERT INTO t VALUES ({literal}, 1), ({literal}, 2), ({literal}, 3)")
    every = _walk(source, 1_000)
    assert len(every) == len(set(every)) == 3 * len(values)
    for limit_rows in (1, 2, 4):
        assert _walk(source, limit_rows) == every
    keys = tuple((k, n) if place == "first" else (n, k) for k, n in every)
    for bound in (1, len(keys) // 2):
        upto = source.read(upto=keys[bound])
        assert len(upto.rows) == bound + 1
    found = source.read(keys=keys).rows
    assert set(found.kind.tolist()) == {RecordKind.DUMP_ROW}
    assert len(found) == len(keys)


# ---------------------------------------------------------------- the index


def _plans(source: Source, key: tuple[str, ...], bounds: dict[str, Any]) -> list[dict[str, Any]]:
    """EXPLAIN of the statements for the first range, the middle and its boundary."""
    schema = source.read(limit_rows=1).schema
    connection = connect(source.server.url, purpose="test", settings=SQL_MODE)
    try:
        index = key_index(connection, source.table, key)
        sql = MySqlChunkSql(schema, key, index)
        statements = [sql.range(bounds["after"], bounds.get("upto"), 100, None)]
        statements.append(sql.boundary(bounds["after"], bounds.get("upto"), 100, None))
        # MySQL 9 explains as a tree unless it is told otherwise; MariaDB knows no such word.
        how = "" if source.server.flavor == "mariadb" else "FORMAT=TRADITIONAL "
        return [row for each in statements for row in connection.named(f"EXPLAIN {how}{each}")]
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("columns", "key", "after", "upto"),
    [
        ("a int", "a", ("9000",), None),
        ("a int", "a", ("4000",), ("4200",)),
        ("a int, b int", "a, b", ("90", "50"), None),
        ("a int, b int", "a, b", ("50", "50"), ("52", "10")),
        ("a int, b int, c int", "a, b, c", ("90", "5", "5"), ("95", "3", "2")),
        ("a varchar(20) COLLATE utf8mb4_unicode_ci", "a", ("9",), None),
        ("a varchar(20) CHARACTER SET latin1, b int", "a, b", ("90", "5"), ("95", "1")),
        ("a int, b int", "a DESC, b", ("10", "50"), None),
        ("a int, b int", "a DESC, b", ("10", "50"), ("8", "20")),
        ("a enum('0','1','2','3','4','5','6','7','8','9'), b int", "a, b", ("8", "900"), None),
    ],
)
def test_ranges_are_walked_by_the_keys_index(
    source: Source, columns: str, key: str, after: tuple[str, ...], upto: tuple[str, ...] | None
) -> None:
    names = [part.split()[0] for part in columns.replace("','", "").split(", ")]
    each = {1: "{n}", 2: "{n} DIV 100, {n} % 100", 3: "{n} DIV 100, {n} DIV 10 % 10, {n} % 10"}
    values = each[len(names)]
    if "enum" in columns:
        values = "1 + {n} DIV 1000, {n} % 1000"
    digits = " UNION ALL ".join(f"SELECT {digit} AS d" for digit in range(10))
    source.run(
        "DROP TABLE t",
        f"CREATE TABLE t ({columns}, w char(100) DEFAULT 'w', PRIMARY KEY ({key}))",
        f"CREATE TEMPORARY TABLE ten {digits.replace(' UNION', ' UNION', 1)}",
    )
    numbers = "".join(f"({n}), " for n in range(10_000))[:-2]
    source.run("CREATE TEMPORARY TABLE n (n int)", f"INSERT INTO n VALUES {numbers}")
    source.run(
        f"INSERT INTO t ({', '.join(names)}) SELECT {values.format(n='n')} FROM n ORDER BY n",
        "ANALYZE TABLE t",
    )
    for plan in _plans(source, tuple(names), {"after": after, "upto": upto}):
        assert plan["key"] == "PRIMARY", plan
        assert plan["type"] == "range", plan
        assert "filesort" not in (plan["Extra"] or ""), plan
        assert int(plan["rows"]) < 3_000, plan
