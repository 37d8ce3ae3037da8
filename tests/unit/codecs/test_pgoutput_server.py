"""What a real server sends, so that the builders of the other tests can't agree on a mistake."""

from __future__ import annotations

import struct
import time
from itertools import pairwise
from typing import Any

import numpy as np
import psycopg
import pytest
from tests.support import pgoutput_messages as pg
from tests.support.oracle.pgoutput import parse_stream
from tests.support.postgres import PostgresServer

from tidelog.codecs.postgres.pgoutput import LogicalMessage, PgoutputScanner, RelationSeen
from tidelog.codecs.postgres.tuples import PgoutputKeys, copy_text_rows
from tidelog.model.records import KeyEffect, LogBatch
from tidelog.model.schema import Column, TableName, TableSchema

pytestmark = pytest.mark.integration

COMPLETE, PARTIAL, GONE, MOVED_PARTIAL = KeyEffect
LONG = "repeat(md5('{}'), 300)"  # 9,600 bytes, stored out of line

DDL = """
CREATE TABLE plain (id text PRIMARY KEY, big text, n int);
CREATE TABLE whole (id text PRIMARY KEY, big text, n int);
CREATE TABLE other (id text PRIMARY KEY, big text, code int NOT NULL UNIQUE);
ALTER TABLE plain ALTER big SET STORAGE EXTERNAL;
ALTER TABLE plain ALTER id SET STORAGE EXTERNAL;
ALTER TABLE whole ALTER big SET STORAGE EXTERNAL;
ALTER TABLE other ALTER big SET STORAGE EXTERNAL;
ALTER TABLE whole REPLICA IDENTITY FULL;
ALTER TABLE other REPLICA IDENTITY USING INDEX other_code_key;
CREATE PUBLICATION p FOR ALL TABLES;
"""
SLOT = "SELECT pg_create_logical_replication_slot(current_database() || '_s', 'pgoutput')"


def changes(connection: psycopg.Connection[tuple[object, ...]]) -> list[bytes]:
    rows = connection.execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes(current_database() || '_s', NULL,"
        " NULL, 'proto_version', '1', 'publication_names', 'p', 'messages', 'true')"
    ).fetchall()
    return [bytes(row[0]) for row in rows]  # type: ignore[call-overload]


def schema_of(seen: RelationSeen, schema_id: int) -> TableSchema:
    flagged = tuple(name for flags, name, _, _ in seen.columns if flags & 1)
    return TableSchema(
        table=TableName(seen.namespace, seen.name),
        relation_id=seen.relation_id,
        columns=tuple(Column(name, oid, mod, "", "text") for _, name, oid, mod in seen.columns),
        key=("id",),
        identity=flagged,
        identity_kind="i" if seen.replica_identity == "i" else seen.replica_identity,
        wire_format="pgoutput",
        schema_id=schema_id,
    )


@pytest.mark.parametrize("version", ["postgres16", "postgres18"])
def test_a_servers_stream(version: str, request: pytest.FixtureRequest) -> None:
    server: PostgresServer = request.getfixturevalue(version)
    name = f"wire_{version}"
    dsn = server.create_database(name)
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            check_stream(connection)
    finally:
        server.drop_database(name)


def check_stream(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    connection.execute(DDL)
    connection.execute(SLOT)
    toasted_key = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 80) i)"
    with connection.transaction():
        connection.execute(f"INSERT INTO plain VALUES ('a', {LONG.format(1)}, 1), ('b', NULL, 2)")
        connection.execute("SELECT pg_logical_emit_message(true, 'app', 'inside')")
        connection.execute("UPDATE plain SET n = n + 1 WHERE id = 'a'")
        connection.execute("UPDATE plain SET id = 'c' WHERE id = 'a'")
        connection.execute("DELETE FROM plain WHERE id = 'b'")
    connection.execute("SELECT pg_logical_emit_message(false, 'app', 'outside')")
    connection.execute(f"INSERT INTO whole VALUES ('a', {LONG.format(2)}, 1)")
    connection.execute("UPDATE whole SET n = 2")
    connection.execute("UPDATE whole SET id = 'b'")
    connection.execute("DELETE FROM whole")
    connection.execute("INSERT INTO other VALUES ('a', NULL, 7)")
    connection.execute("UPDATE other SET id = 'b'")
    connection.execute("DELETE FROM other")
    # a key of 2,560 bytes, out of line: sent as unchanged, with the old key before it
    connection.execute(f"INSERT INTO plain VALUES ({toasted_key}, {LONG.format(3)}, 1)")
    connection.execute("UPDATE plain SET n = 5 WHERE length(id) > 1000")
    connection.execute("TRUNCATE plain, whole")

    (base,) = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() or (0,)
    assert isinstance(base, int)
    scanner = PgoutputScanner(None, base)
    schemas: dict[int, TableSchema] = {}
    seen: list[object] = []
    long_key = (connection.execute(f"SELECT {toasted_key}").fetchone() or ("",))[0]
    keys = PgoutputKeys()
    last = (0, -1)
    for item in scanner.feed(*pg.packed(changes(connection))):
        if isinstance(item, RelationSeen):
            schemas[len(schemas) + 1] = schema_of(item, len(schemas) + 1)
            scanner.bind(item.relation_id, len(schemas))
        elif isinstance(item, LogicalMessage):
            seen.append((item.transactional, item.prefix, item.content))
            last = max(last, (item.position, item.ordinal))
        elif isinstance(item, LogBatch):
            for index in range(len(item)):
                here = (int(item.position[index]), int(item.ordinal[index]))
                assert here > last
                last = here
                assert 0 <= base - item.xid[index] < 1000
                table = schemas[int(item.schema_id[index])]
                kind = chr(item.kind[index])
                if kind == "T":
                    seen.append((table.table.name, kind))
                found = keys.keys(item, np.array([index], dtype=np.int32), table)
                for i in range(len(found)):
                    (text,) = keys.texts(found.key(i), table)
                    text = "LONG" if text == long_key else text
                    seen.append((table.table.name, kind, text, KeyEffect(int(found.effect[i]))))
    assert seen == [
        ("plain", "I", "a", COMPLETE),
        ("plain", "I", "b", COMPLETE),
        (True, "app", b"inside"),
        ("plain", "U", "a", PARTIAL),
        ("plain", "U", "a", GONE),
        ("plain", "U", "c", MOVED_PARTIAL),
        ("plain", "D", "b", GONE),
        (False, "app", b"outside"),
        ("whole", "I", "a", COMPLETE),
        ("whole", "U", "a", COMPLETE),
        ("whole", "U", "a", GONE),
        ("whole", "U", "b", COMPLETE),
        ("whole", "D", "b", GONE),
        ("other", "I", "7", COMPLETE),
        ("other", "U", "7", COMPLETE),
        ("other", "D", "7", GONE),
        ("plain", "I", "LONG", COMPLETE),
        ("plain", "U", "LONG", PARTIAL),
        ("plain", "T"),
        ("whole", "T"),
    ]
    assert not scanner.in_transaction
    position = scanner.resume.acknowledge
    assert 0 < scanner.resume.position < position


@pytest.mark.parametrize("version", ["postgres16", "postgres18"])
def test_builders_make_what_a_server_sends(version: str, request: pytest.FixtureRequest) -> None:
    """Every message that other tests build, but for what `stream_abort` does: see below."""
    server: PostgresServer = request.getfixturevalue(version)
    name = f"builders_{version}"
    dsn = server.create_database(name)
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            check_builders(connection)
    finally:
        server.drop_database(name)


def check_builders(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    def one(sql: str) -> Any:
        return (connection.execute(sql).fetchone() or (None,))[0]

    connection.execute(DDL)
    connection.execute("CREATE TYPE mood AS ENUM ('glad')")
    connection.execute("CREATE TABLE moods (id int PRIMARY KEY, m mood, v varchar(9))")
    connection.execute(SLOT)
    outside = one("SELECT pg_logical_emit_message(false, 'app', 'outside')::text")
    connection.execute("SELECT pg_replication_origin_create(current_database() || '_o')")
    connection.execute("SELECT pg_replication_origin_session_setup(current_database() || '_o')")
    big = one(f"SELECT {LONG.format(1)}")
    with connection.transaction():
        connection.execute("SELECT pg_replication_origin_xact_setup('0/ABCDEF', now())")
        xid = one("SELECT pg_current_xact_id()::text::bigint % 4294967296")
        connection.execute(f"INSERT INTO plain VALUES ('a', {LONG.format(1)}, 1), ('b', NULL, 2)")
        inside = one("SELECT pg_logical_emit_message(true, 'app', 'inside')::text")
        connection.execute("UPDATE plain SET n = n + 1 WHERE id = 'a'")
        connection.execute("UPDATE plain SET id = 'c' WHERE id = 'a'")
        connection.execute("DELETE FROM plain WHERE id = 'b'")
        connection.execute(f"INSERT INTO whole VALUES ('é', {LONG.format(1)}, 1)")
        connection.execute("UPDATE whole SET n = 2")
        connection.execute("DELETE FROM whole")
        connection.execute("INSERT INTO other VALUES ('', NULL, 7)")
        connection.execute("UPDATE other SET code = 8")
        connection.execute("DELETE FROM other")
        connection.execute("INSERT INTO moods VALUES (1, 'glad', 'v')")
        connection.execute("TRUNCATE plain, whole RESTART IDENTITY CASCADE")
    connection.execute("SELECT pg_replication_origin_session_reset()")
    messages = list(dict.fromkeys(changes(connection)))  # TRUNCATE has a Relation sent once more
    connection.execute("SELECT pg_replication_origin_drop(current_database() || '_o')")
    plain, whole, other, moods, mood = (
        one(f"SELECT '{kind}'::{cast}::oid::bigint")
        for kind, cast in (
            ("plain", "regclass"), ("whole", "regclass"), ("other", "regclass"),
            ("moods", "regclass"), ("mood", "regtype"),
        )
    )  # fmt: skip
    text, integer, same = 25, 23, pg.UNCHANGED

    def columns(*flags: int, last: str = "n") -> list[tuple[int, str, int, int]]:
        listed = zip(flags, ("id", "big", last), (text, text, integer), strict=True)
        return [(flag, column, oid, -1) for flag, column, oid in listed]

    final, sent, seen = struct.unpack_from("!qqI", messages[1], 1)
    assert seen == xid
    committed = sent + pg.POSTGRES_EPOCH_US
    assert abs(committed / 1e6 - time.time()) < 600
    commit = next(each for each in messages if each[:1] == b"C")
    _, end, _ = struct.unpack_from("!qqq", commit, 2)
    assert end > final
    assert messages == [
        pg.message(lsn(outside), "app", b"outside", transactional=False),
        pg.begin(final, committed, xid),
        pg.origin(0xABCDEF, f"{connection.info.dbname}_o"),
        pg.relation(plain, "public", "plain", columns(1, 0, 0)),
        pg.insert(plain, ["a", big, "1"]),
        pg.insert(plain, ["b", None, "2"]),
        pg.message(lsn(inside), "app", b"inside", transactional=True),
        pg.update(plain, ["a", same, "2"]),
        pg.update(plain, ["c", same, "2"], key=["a", None, None]),
        pg.delete(plain, key=["b", None, None]),
        pg.relation(whole, "public", "whole", columns(1, 1, 1), "f"),
        pg.insert(whole, ["é", big, "1"]),
        pg.update(whole, ["é", same, "2"], old=["é", big, "1"]),
        pg.delete(whole, old=["é", big, "2"]),
        pg.relation(other, "public", "other", columns(0, 0, 1, last="code"), "i"),
        pg.insert(other, ["", None, "7"]),
        pg.update(other, ["", None, "8"], key=[None, None, "7"]),
        pg.delete(other, key=[None, None, "8"]),
        pg.type_(mood, "public", "mood"),
        pg.relation(
            moods,
            "public",
            "moods",
            [(1, "id", integer, -1), (0, "m", mood, -1), (0, "v", 1043, 13)],
        ),
        pg.insert(moods, ["1", "glad", "v"]),
        pg.truncate(plain, whole, options=3),
        pg.commit(final, end, committed),
    ]


def lsn(text: str) -> int:
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def test_rows_read_by_copy_equal_those_of_the_log(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(DDL)
        connection.execute(SLOT)
        every = "".join(chr(code) for code in range(1, 300))
        rows = [("a", every, 1), ("\\N", "\\", None), ("", None, -7), ("\\.", "\t\n\r", 0)]
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO plain VALUES (%s, %s, %s)", rows)
        scanner = PgoutputScanner()
        batches = []
        for item in scanner.feed(*pg.packed(changes(connection))):
            if isinstance(item, RelationSeen):
                scanner.bind(item.relation_id, 1)
                relation_id = item.relation_id
            elif isinstance(item, LogBatch):
                batches.append(item)
        with connection.cursor().copy("COPY plain TO STDOUT") as copy:
            text = b"".join(bytes(part) for part in copy)
        read = copy_text_rows(text, relation_id, 1, 3)
        logged = [payload for batch in batches for payload in payloads(batch)]
        assert payloads(read) == logged
        assert len(logged) == len(rows)


def payloads(batch: LogBatch) -> list[bytes]:
    return [batch.payload[a:b].tobytes() for a, b in pairwise(batch.payload_offsets)]


@pytest.mark.parametrize(("version", "aborts"), [("postgres16", 0), ("postgres18", 1)])
def test_an_aborted_transaction_leaves_no_trace_also_where_the_server_announces_it(
    version: str, aborts: int, request: pytest.FixtureRequest
) -> None:
    """PostgreSQL 18 sends Stream Abort although nobody asked for streaming.

    src/backend/replication/logical/reorderbuffer.c: ReorderBufferCheckMemoryLimit is about to spill
    the largest transaction, ReorderBufferCheckAndTruncateAbortedTXN finds it aborted,
    ReorderBufferTruncateTXN marks those of its subtransactions that hold changes in memory as
    streamed, and at the abort record ReorderBufferAbort calls stream_abort for each of them. So it
    takes a top-level transaction of more than logical_decoding_work_mem, itself larger than its
    subtransaction, that is aborted before it is decoded.
    """
    server: PostgresServer = request.getfixturevalue(version)
    name = f"aborted_{version}"
    dsn = server.create_database(name)
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(DDL)
            connection.execute(SLOT)
            connection.execute("INSERT INTO plain VALUES ('before', NULL, 1)")
            with connection.transaction(force_rollback=True):
                with connection.transaction():  # a savepoint, released
                    connection.execute("INSERT INTO plain VALUES ('sub', NULL, 1)")
                connection.execute(
                    "INSERT INTO plain SELECT i, repeat('x', 200) FROM generate_series(1, 1000) i"
                )
            connection.execute("INSERT INTO plain VALUES ('after', NULL, 2)")
            connection.execute("SET logical_decoding_work_mem = '64kB'")
            messages = changes(connection)
    finally:
        server.drop_database(name)
    told = [message for message in messages if message[:1] == b"A"]
    assert len(told) == aborts
    for message in told:
        xid, subxid = struct.unpack_from("!II", message, 1)
        assert xid < subxid
        assert message == pg.stream_abort(xid, subxid)
    scanner = PgoutputScanner()
    rows = []
    for item in scanner.feed(*pg.packed(messages)):
        if isinstance(item, RelationSeen):
            scanner.bind(item.relation_id, 1)
        elif isinstance(item, LogBatch):
            rows += list(zip(item.kind.tobytes().decode(), item.ordinal.tolist(), strict=True))
    assert rows == [("I", 0), ("I", 0)]
    (committed,) = parse_stream(messages, {}, "")[1:]
    assert [change.new and change.new["id"] for change in committed.changes] == ["after"]
