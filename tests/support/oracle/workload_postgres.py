"""The history oracle's tables and writers on PostgreSQL; keys are locked by advisory locks."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import psycopg
from tests.support.oracle.workload import (
    AUDIT,
    BULK_FROM,
    BULK_ROWS,
    LONG_S,
    PARTS,
    WIDE_BYTES,
    Table,
    Undo,
    WorkloadWriter,
)

SETUP = """
CREATE SCHEMA app; CREATE SCHEMA truth;
CREATE SEQUENCE truth.seq;
CREATE TABLE truth.audit (id bigserial PRIMARY KEY, tbl text, op text, key text, seq bigint);
CREATE PUBLICATION truth FOR TABLES IN SCHEMA app, TABLE truth.audit
    WITH (publish_via_partition_root = true);
CREATE TABLE app.ints (id int PRIMARY KEY, seq bigint, v text);
CREATE TABLE app.pairs (a text, b int, seq bigint, v text, PRIMARY KEY (a, b));
CREATE TABLE app.nums (n numeric PRIMARY KEY, seq bigint, v text);
CREATE TABLE app.wide (id int PRIMARY KEY, seq bigint, v text);
CREATE TABLE app."full" (id int PRIMARY KEY, seq bigint, v text);
ALTER TABLE app."full" REPLICA IDENTITY FULL;
CREATE TABLE app.coded (id int PRIMARY KEY, code text NOT NULL UNIQUE, seq bigint, v text);
ALTER TABLE app.coded REPLICA IDENTITY USING INDEX coded_code_key;
CREATE TABLE app.parts (region text, id int, seq bigint, v text, PRIMARY KEY (region, id))
    PARTITION BY LIST (region);
CREATE TABLE app.parts_n PARTITION OF app.parts FOR VALUES IN ('n');
CREATE TABLE app.parts_s PARTITION OF app.parts FOR VALUES IN ('s');
CREATE TABLE app.parts_x PARTITION OF app.parts DEFAULT;
"""


LEAVES = ("n", "s")
"""Regions of ``app.parts`` whose partitions are truncated."""


def _number(_rng: random.Random, number: int) -> tuple[Any, ...]:
    return (number,)


def _int(key: Sequence[str]) -> Any:
    return (int(key[0]),)


def _text_and_int(key: Sequence[str]) -> Any:
    return (key[0].encode(), int(key[1]))  # the server's collation is C


TABLES = {
    table.name: table
    for table in (
        Table("app.ints", ("id",), _number, _int, ddl=True),
        Table(
            "app.pairs",
            ("a", "b"),
            lambda _rng, n: (f"k{n % 17} '\"\\ü", n),
            _text_and_int,
            ddl=True,
        ),
        Table(
            "app.nums",
            ("n",),
            lambda rng, n: (rng.choice((f"{n}.5", f"{n}.50")),),
            lambda key: (Decimal(key[0]).normalize(),),
            exact=False,
        ),
        Table("app.wide", ("id",), _number, _int, wide=True, keys=100, ddl=True),
        Table("app.full", ("id",), _number, _int, wide=True, keys=40),
        Table(
            "app.coded",
            ("code",),
            lambda _rng, n: (f"code-{n}",),
            lambda key: (key[0].encode(),),
            wide=True,
            keys=160,
        ),
        Table(
            "app.parts",
            ("region", "id"),
            lambda rng, n: (rng.choice("nsx"), n),
            _text_and_int,
            keys=60,
        ),
    )
}


TRUTH = "truth"
"""The slot."""


def set_up(dsn: str, *, copied: bool = False) -> None:
    """Create the tables, and the truth slot. ``copied``: to standbys, too; since PostgreSQL 17."""
    options = ", failover => true" if copied else ""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SETUP.encode())
        connection.execute(
            f"SELECT pg_create_logical_replication_slot('{TRUTH}', 'pgoutput'{options})".encode()
        )


def fill(dsn: str, seed: int) -> None:
    rng = random.Random(seed)
    with psycopg.connect(dsn, autocommit=True) as connection:
        writer = PostgresWriter(connection, rng)
        for table in TABLES.values():
            with writer.transaction():
                for _ in range(table.keys // 2):
                    writer.put(table, table.random_key(rng))


def truth_messages(dsn: str) -> list[bytes]:
    """What the truth slot holds."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, "
            "'proto_version', '1', 'publication_names', 'truth')",
            [TRUTH],
        )
        return [bytes(row[0]) for row in rows]


def source_rows(dsn: str, table: Table) -> dict[tuple[str | None, ...], dict[str, str | None]]:
    """The table's rows now, as texts."""
    name = _sql(table)
    with psycopg.connect(dsn) as connection:
        cursor = connection.execute(f"SELECT * FROM {name} LIMIT 0".encode())
        names = [column.name for column in cursor.description or ()]
        texts = ", ".join(f'"{column}"::text' for column in names)
        rows = [
            dict(zip(names, row, strict=True))
            for row in connection.execute(f"SELECT {texts} FROM {name}".encode())
        ]
    return {tuple(row[name] for name in table.key): row for row in rows}


def _sql(table: Table) -> str:
    namespace, name = table.name.split(".")
    return f'{namespace}."{name}"'


def _where(table: Table) -> str:
    return " AND ".join(f"{column} = %s" for column in table.key)


def _key_json(table: Table) -> str:
    """SQL for the key's texts."""
    return f"json_build_array({', '.join(f'{c}::text' for c in table.key)})::text"


class PostgresWriter(WorkloadWriter):
    """Args: an open connection; the name of its prepared transactions."""

    _columns = itertools.count(1)

    def __init__(
        self, connection: psycopg.Connection[Any], rng: random.Random, prepared: str = ""
    ) -> None:
        self.connection = connection
        self.rng = rng
        self._prepared = prepared

    # ------------------------------------------------------------ what surrounds writes

    @contextmanager
    def transaction(self) -> Iterator[None]:
        try:
            with self.connection.transaction():
                yield
        except Undo:
            pass
        except psycopg.Error:
            if not self.connection.closed:
                self.connection.rollback()
            raise

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        try:
            with self.connection.transaction():
                yield
        except Undo:
            pass

    def prepare(self, write: Callable[[], None]) -> bool:
        connection = self.connection
        connection.tpc_begin(self._prepared)
        try:
            write()
            connection.tpc_prepare()
            time.sleep(self.rng.random() * LONG_S)
        except psycopg.Error:
            if not connection.closed:
                connection.tpc_rollback()
            raise
        if self.rng.random() < 0.2:
            connection.tpc_rollback()
            return False
        connection.tpc_commit()
        return True

    # ------------------------------------------------------------ SQL

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        return self.connection.execute(sql.encode(), parameters).rowcount

    def one(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        row = self.connection.execute(sql.encode(), parameters).fetchone()
        return None if row is None else row[0]

    def lock(self, table: Table, keys: Collection[Sequence[Any]]) -> None:
        self.run("SELECT pg_advisory_xact_lock_shared(hashtext(%s))", [table.name])
        for name in sorted({table.lock(key) for key in keys}):
            self.run("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [name])

    def audit(self, table: Table, op: str, key: Sequence[Any], sequence: int) -> None:
        texts = json.dumps([str(part) for part in key])
        values = [table.name, op, texts, sequence]
        self.run(f"INSERT INTO {AUDIT} (tbl, op, key, seq) VALUES (%s, %s, %s, %s)", values)

    def value(self, table: Table) -> str:
        size = WIDE_BYTES // 2 if table.wide and self.rng.random() < 0.8 else 8
        return self.rng.randbytes(size).hex()

    def number(self) -> int:
        return int(self.one("SELECT nextval('truth.seq')"))

    # ------------------------------------------------------------ writes

    def put(self, table: Table, key: Sequence[Any]) -> None:
        self.lock(table, [key])
        name, where = _sql(table), _where(table)
        stored = self.one(f"SELECT {_key_json(table)} FROM {name} WHERE {where}", [*key])
        sequence = self.number()
        if stored is None:
            columns, values = [*table.key, "seq", "v"], [*key, sequence, self.value(table)]
            if table.name == "app.coded":
                columns, values = ["id", *columns], [self.rng.randrange(10**6), *values]
            marks = ", ".join(["%s"] * len(values))
            self.run(f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({marks})", values)
            self.audit(table, "put", key, sequence)
            return
        if self.rng.random() < 0.4:
            settings, values = "seq = %s, v = %s", [sequence, self.value(table)]
        else:
            settings, values = "seq = %s", [sequence]
        if table.name == "app.coded" and self.rng.random() < 0.3:
            settings += ", id = %s"  # the primary key changes, the key that rows are matched by not
            values.append(self.rng.randrange(10**6))
        self.run(f"UPDATE {name} SET {settings} WHERE {where}", [*values, *key])
        self.audit(table, "put", json.loads(stored), sequence)

    def delete(self, table: Table, key: Sequence[Any]) -> None:
        self.lock(table, [key])
        stored = self.one(
            f"DELETE FROM {_sql(table)} WHERE {_where(table)} RETURNING {_key_json(table)}", [*key]
        )
        if stored is not None:
            self.audit(table, "gone", json.loads(stored), self.number())

    def move(self, table: Table, key: Sequence[Any], to: Sequence[Any]) -> None:
        if table.place(key) == table.place(to):
            return
        self.lock(table, [key, to])
        self.delete(table, to)
        sequence = self.number()
        where = _where(table)
        old = self.one(f"SELECT {_key_json(table)} FROM {_sql(table)} WHERE {where}", [*key])
        if old is None:
            return
        settings = ", ".join(f"{column} = %s" for column in table.key)
        self.run(
            f"UPDATE {_sql(table)} SET {settings}, seq = %s WHERE {where}", [*to, sequence, *key]
        )
        self.audit(table, "gone", json.loads(old), sequence)
        self.audit(table, "put", to, sequence)

    def bulk(self, table: Table) -> None:
        self.run("SELECT pg_advisory_xact_lock(hashtext(%s))", [table.name])
        name = _sql(table)
        audit = (
            f"INSERT INTO {AUDIT} (tbl, op, key, seq) "
            f"SELECT '{table.name}', '{{op}}', json_build_array(id::text)::text, s FROM c"
        )
        there = self.one(f"SELECT count(*) FROM {name} WHERE id >= {BULK_FROM}")
        value = "repeat(md5(id::text || random()), 6)"
        if not there:
            changes = (
                f"INSERT INTO {name} (id, seq, v) SELECT id, nextval('truth.seq'), {value} "
                f"FROM generate_series({BULK_FROM}, {BULK_FROM + BULK_ROWS}) id "
                "RETURNING id, seq AS s"
            )
        elif self.rng.random() < 0.6:
            changes = (
                f"UPDATE {name} SET seq = nextval('truth.seq'), v = {value} RETURNING id, seq AS s"
            )
        else:
            changes = (
                f"DELETE FROM {name} WHERE id >= {BULK_FROM} "
                "RETURNING id, nextval('truth.seq') AS s"
            )
        op = "gone" if changes.startswith("DELETE") else "put"
        self.run(f"WITH c AS ({changes}) {audit.format(op=op)}")

    def truncate(self, table: Table) -> None:
        self.run("SELECT pg_advisory_xact_lock(hashtext(%s))", [table.name])
        if table.name == PARTS and self.rng.random() < 0.5:
            self._truncate_leaf(self.rng.choice(LEAVES))
            return
        self.run(f"TRUNCATE {_sql(table)}")
        self.audit(table, "truncate", [], self.number())

    def vanish(self) -> None:
        for region in LEAVES:
            if self.one(f"SELECT 1 FROM {PARTS} WHERE region = '{region}' LIMIT 1"):
                self._truncate_leaf(region)
                return

    def _truncate_leaf(self, region: str) -> None:
        self.run(f"TRUNCATE {PARTS}_{region}")
        self.audit(TABLES[PARTS], "truncate-leaf", ["region", region], self.number())

    def ddl(self, table: Table) -> None:
        self.run("SELECT pg_advisory_xact_lock(hashtext(%s))", [table.name])
        found = self.connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attnum > 0 "
            "AND attrelid = %s::regclass AND NOT attisdropped AND attname LIKE 'x%%'",
            [_sql(table)],
        ).fetchall()
        number = next(self._columns)
        name = f"x{number}"
        choice = self.rng.random()
        if len(found) < 2 or choice < 0.25:
            default = self.rng.choice(("", f"DEFAULT {number}"))
            change = f"ADD COLUMN {name} int {default}"
        elif choice < 0.5:
            change = f"DROP COLUMN {found[0][0]}"
        elif choice < 0.75:
            narrow = [column for column, kind in found if kind == "integer"]
            if not narrow:
                return
            change = f"ALTER COLUMN {narrow[0]} TYPE bigint"
        else:
            change = f"RENAME COLUMN {found[-1][0]} TO {name}"
        self.run(f"ALTER TABLE {_sql(table)} {change}")


class PostgresWriters:
    """See `tests.support.oracle.workload.Writers`."""

    lost: tuple[type[BaseException], ...] = (psycopg.OperationalError,)
    refused: tuple[type[BaseException], ...] = (
        psycopg.errors.DeadlockDetected,
        psycopg.errors.UniqueViolation,
        psycopg.errors.LockNotAvailable,
    )

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.tables = TABLES

    @contextmanager
    def open(self, rng: random.Random, number: int) -> Iterator[PostgresWriter]:
        with psycopg.connect(self._dsn) as connection:
            connection.execute("SET lock_timeout = '10s'")
            connection.commit()
            name = _prepared_name(connection, number)
            _end_prepared(connection, name, rng)
            yield PostgresWriter(connection, rng, name)

    def end_prepared(self, writers: int) -> None:
        with psycopg.connect(self._dsn) as connection:
            for number in range(writers):
                _end_prepared(connection, _prepared_name(connection, number), random.Random(0))


def _prepared_name(connection: psycopg.Connection[Any], number: int) -> str:
    """Of the writer's prepared transaction; unique in the whole server."""
    return f"{connection.info.dbname}-{number}"


def _end_prepared(connection: psycopg.Connection[Any], name: str, rng: random.Random) -> None:
    """What the server's restart, or the lost connection, left between its two phases."""
    database = connection.info.dbname
    rows = connection.execute(
        "SELECT gid FROM pg_prepared_xacts WHERE database = %s AND gid = %s", [database, name]
    ).fetchall()
    connection.commit()
    connection.autocommit = True
    for (found,) in rows:
        how = rng.choice(("COMMIT", "ROLLBACK"))
        connection.execute(f"{how} PREPARED '{found}'".encode())
    connection.autocommit = False
