"""Random transactions for the history oracle, by several writers over tables of many shapes.

Every write of a key takes the key's advisory lock and then a number from one sequence, so that the
numbers of a key grow in commit order. What a transaction did goes to an audit table in the same
transaction, which is not captured.
"""

# ruff: noqa: S608 - names come from the tables below

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

AUDIT = "truth.audit"
WIDE_BYTES = 10_000

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


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the workload. ``key``: the columns that Tidelog matches rows by.

    ``wide``: values that PostgreSQL stores out of line; ``keys``: how many there are at most.
    """

    name: str
    key: tuple[str, ...]
    wide: bool = False
    keys: int = 200
    ddl: bool = False

    @property
    def sql(self) -> str:
        namespace, name = self.name.split(".")
        return f'{namespace}."{name}"'

    @property
    def where(self) -> str:
        return " AND ".join(f"{column} = %s" for column in self.key)

    @property
    def key_json(self) -> str:
        """SQL for the key's texts."""
        return f"json_build_array({', '.join(f'{c}::text' for c in self.key)})::text"

    def random_key(self, rng: random.Random) -> tuple[Any, ...]:
        number = rng.randrange(self.keys)
        if self.name == "app.pairs":
            return (f"k{number % 17} '\"\\ü", number)
        if self.name == "app.nums":  # equal numbers that are spelled differently
            return (rng.choice((f"{number}.5", f"{number}.50")),)
        if self.name == "app.coded":
            return (f"code-{number}",)
        if self.name == "app.parts":
            return (rng.choice("nsx"), number)
        return (number,)

    def lock(self, key: Sequence[Any]) -> str:
        """What names the key for a lock; keys that PostgreSQL takes for equal have one name."""
        if self.name == "app.nums":
            key = (str(key[0]).rstrip("0"),)
        return f"{self.name} {json.dumps([str(part) for part in key])}"


TABLES = {
    table.name: table
    for table in (
        Table("app.ints", ("id",), ddl=True),
        Table("app.pairs", ("a", "b"), ddl=True),
        Table("app.nums", ("n",)),
        Table("app.wide", ("id",), wide=True, keys=100, ddl=True),
        Table("app.full", ("id",), wide=True, keys=40),
        Table("app.coded", ("code",), wide=True, keys=160),
        Table("app.parts", ("region", "id"), keys=60),
    )
}
BULK_FROM, BULK_ROWS = 10_000, 1_500


@dataclass(frozen=True, slots=True)
class Mix:
    """What the writers do besides single writes.

    With ``prepared`` transactions beside truncates the server now and then failed to decode its log
    (``could not map filenumber … to relation OID``), also for a slot of the test's own. This was
    seen with PostgreSQL 16.14; the cause is not known.
    """

    tables: tuple[str, ...] = tuple(TABLES)
    bulk: bool = True
    truncate: bool = True
    ddl: bool = True
    key_changes: bool = True
    prepared: bool = False
    long: bool = True


LONG_S = 0.4


def create(dsn: str, seed: int) -> None:
    """Create the tables, the truth slot, then fill the tables."""
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SETUP.encode())
        connection.execute("SELECT pg_create_logical_replication_slot('truth', 'pgoutput')")
        for table in TABLES.values():
            writer = Writer(connection, rng)
            with connection.transaction():
                for _ in range(table.keys // 2):
                    writer.put(table, table.random_key(rng))


def truth_messages(dsn: str) -> list[bytes]:
    """What the truth slot holds."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes('truth', NULL, NULL, "
            "'proto_version', '1', 'publication_names', 'truth')"
        )
        return [bytes(row[0]) for row in rows]


def source_rows(dsn: str, table: Table) -> dict[tuple[str | None, ...], dict[str, str | None]]:
    """The table's rows now, as texts."""
    with psycopg.connect(dsn) as connection:
        cursor = connection.execute(f"SELECT * FROM {table.sql} LIMIT 0".encode())
        names = [column.name for column in cursor.description or ()]
        texts = ", ".join(f'"{name}"::text' for name in names)
        rows = [
            dict(zip(names, row, strict=True))
            for row in connection.execute(f"SELECT {texts} FROM {table.sql}".encode())
        ]
    return {tuple(row[name] for name in table.key): row for row in rows}


class Writer:
    """Single writes inside the caller's transaction, each with its audit entry."""

    def __init__(self, connection: psycopg.Connection[Any], rng: random.Random) -> None:
        self.connection = connection
        self.rng = rng

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
        self.run("INSERT INTO truth.audit (tbl, op, key, seq) VALUES (%s, %s, %s, %s)", values)

    def value(self, table: Table) -> str:
        size = WIDE_BYTES // 2 if table.wide and self.rng.random() < 0.8 else 8
        return self.rng.randbytes(size).hex()

    def number(self) -> int:
        return int(self.one("SELECT nextval('truth.seq')"))

    def put(self, table: Table, key: Sequence[Any]) -> None:
        """Insert, or update all or only some columns, whatever is there."""
        self.lock(table, [key])
        stored = self.one(f"SELECT {table.key_json} FROM {table.sql} WHERE {table.where}", [*key])
        sequence = self.number()
        if stored is None:
            columns, values = [*table.key, "seq", "v"], [*key, sequence, self.value(table)]
            if table.name == "app.coded":
                columns, values = ["id", *columns], [self.rng.randrange(10**6), *values]
            marks = ", ".join(["%s"] * len(values))
            self.run(f"INSERT INTO {table.sql} ({', '.join(columns)}) VALUES ({marks})", values)
            self.audit(table, "put", key, sequence)
            return
        if self.rng.random() < 0.4:
            settings, values = "seq = %s, v = %s", [sequence, self.value(table)]
        else:
            settings, values = "seq = %s", [sequence]
        if table.name == "app.coded" and self.rng.random() < 0.3:
            settings += ", id = %s"  # the primary key changes, the key that rows are matched by not
            values.append(self.rng.randrange(10**6))
        self.run(f"UPDATE {table.sql} SET {settings} WHERE {table.where}", [*values, *key])
        self.audit(table, "put", json.loads(stored), sequence)

    def delete(self, table: Table, key: Sequence[Any]) -> None:
        self.lock(table, [key])
        stored = self.one(
            f"DELETE FROM {table.sql} WHERE {table.where} RETURNING {table.key_json}", [*key]
        )
        if stored is not None:
            self.audit(table, "gone", json.loads(stored), self.number())

    def move(self, table: Table, key: Sequence[Any], to: Sequence[Any]) -> None:
        """Change a key; what was under the new one is deleted first."""
        if table.lock(key) == table.lock(to):
            return
        self.lock(table, [key, to])
        self.delete(table, to)
        sequence = self.number()
        old = self.one(f"SELECT {table.key_json} FROM {table.sql} WHERE {table.where}", [*key])
        if old is None:
            return
        settings = ", ".join(f"{column} = %s" for column in table.key)
        self.run(
            f"UPDATE {table.sql} SET {settings}, seq = %s WHERE {table.where}",
            [*to, sequence, *key],
        )
        self.audit(table, "gone", json.loads(old), sequence)
        self.audit(table, "put", to, sequence)

    def bulk(self, table: Table) -> None:
        """Thousands of rows of app.ints, which no other writer of the table may interleave."""
        self.run("SELECT pg_advisory_xact_lock(hashtext(%s))", [table.name])
        audit = (
            "INSERT INTO truth.audit (tbl, op, key, seq) "
            f"SELECT '{table.name}', '{{op}}', json_build_array(id::text)::text, s FROM c"
        )
        there = self.one(f"SELECT count(*) FROM {table.sql} WHERE id >= {BULK_FROM}")
        value = "repeat(md5(id::text || random()), 6)"
        if not there:
            changes = (
                f"INSERT INTO {table.sql} (id, seq, v) SELECT id, nextval('truth.seq'), {value} "
                f"FROM generate_series({BULK_FROM}, {BULK_FROM + BULK_ROWS}) id "
                "RETURNING id, seq AS s"
            )
        elif self.rng.random() < 0.6:
            changes = (
                f"UPDATE {table.sql} SET seq = nextval('truth.seq'), v = {value} "
                "RETURNING id, seq AS s"
            )
        else:
            changes = (
                f"DELETE FROM {table.sql} WHERE id >= {BULK_FROM} "
                "RETURNING id, nextval('truth.seq') AS s"
            )
        op = "gone" if changes.startswith("DELETE") else "put"
        self.run(f"WITH c AS ({changes}) {audit.format(op=op)}")

    def truncate(self, table: Table) -> None:
        self.run("SELECT pg_advisory_xact_lock(hashtext(%s))", [table.name])
        if table.name == "app.parts" and self.rng.random() < 0.5:
            region, part = self.rng.choice([("n", "parts_n"), ("s", "parts_s")])
            self.run(f"TRUNCATE app.{part}")
            self.audit(table, "truncate-leaf", ["region", region], self.number())
            return
        self.run(f"TRUNCATE {table.sql}")
        self.audit(table, "truncate", [], self.number())


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


class Workload:
    """Writers that commit random transactions until stopped; they survive a server's restart."""

    def __init__(
        self, dsn: str, seed: int, mix: Mix, *, writers: int = 3, pause_s: float = 0.004
    ) -> None:
        self._dsn = dsn
        self._mix = mix
        self._tables = [TABLES[name] for name in mix.tables]
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._columns = 0
        self.committed = 0
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed} {i}"), i), daemon=True)  # noqa: S311
            for i in range(writers)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let the open transactions end, prepared ones too. Raises what made a writer fail."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        if self._failure is not None:
            raise self._failure
        with psycopg.connect(self._dsn) as connection:
            for number in range(len(self._threads)):
                _end_prepared(connection, _prepared_name(connection, number), random.Random(0))  # noqa: S311

    def _run(self, rng: random.Random, number: int) -> None:
        while not self._stop.is_set() and self._failure is None:
            try:
                with psycopg.connect(self._dsn) as connection:
                    connection.execute("SET lock_timeout = '10s'")
                    connection.commit()
                    _end_prepared(connection, _prepared_name(connection, number), rng)
                    while not self._stop.is_set():
                        self._transaction(connection, rng, number)
                        time.sleep(rng.random() * 2 * self._pause_s)
            except (psycopg.OperationalError, psycopg.Rollback):
                # The server restarts, or it chose us to break a deadlock. psycopg swallows a
                # Rollback only if it could still tell the server.
                time.sleep(0.1)
            except BaseException as failure:  # noqa: BLE001 - raised by stop
                self._failure = failure

    def _transaction(
        self, connection: psycopg.Connection[Any], rng: random.Random, number: int
    ) -> None:
        writer = Writer(connection, rng)
        choice = rng.random()
        try:
            if choice > 0.985 and self._mix.prepared:
                self._prepare(writer, _prepared_name(connection, number))
                return
            with connection.transaction():
                if choice < 0.010 and self._mix.ddl and number == 0:
                    self._ddl(writer)
                elif choice < 0.018 and self._mix.bulk and "app.ints" in self._mix.tables:
                    writer.bulk(TABLES["app.ints"])
                elif choice < 0.023 and self._mix.truncate:
                    writer.truncate(rng.choice(self._tables))
                else:
                    self._writes(writer, rng)
                    if choice < 0.03 and self._mix.long:
                        time.sleep(rng.random() * LONG_S)
                if rng.random() < 0.05:
                    raise psycopg.Rollback
            self.committed += 1
        except (
            psycopg.errors.DeadlockDetected,
            psycopg.errors.UniqueViolation,
            psycopg.errors.LockNotAvailable,
        ):
            connection.rollback()

    def _prepare(self, writer: Writer, name: str) -> None:
        """A transaction that is prepared, and after a while committed or rolled back."""
        connection = writer.connection
        connection.tpc_begin(name)
        try:
            for _ in range(writer.rng.choice((1, 2, 5))):
                self._write(writer, writer.rng)
            connection.tpc_prepare()
            time.sleep(writer.rng.random() * LONG_S)
        except psycopg.Error:
            if not connection.closed:
                connection.tpc_rollback()
            raise
        if writer.rng.random() < 0.2:
            connection.tpc_rollback()
        else:
            connection.tpc_commit()
            self.committed += 1

    def _writes(self, writer: Writer, rng: random.Random) -> None:
        for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
            if rng.random() < 0.1:
                with writer.connection.transaction():
                    self._write(writer, rng)
                    if rng.random() < 0.5:
                        raise psycopg.Rollback
            else:
                self._write(writer, rng)

    def _write(self, writer: Writer, rng: random.Random) -> None:
        table = rng.choice(self._tables)
        key, choice = table.random_key(rng), rng.random()
        if choice < 0.62:
            writer.put(table, key)
        elif choice < 0.75:
            writer.delete(table, key)
        elif choice < 0.85:
            writer.delete(table, key)
            writer.put(table, key)
        elif self._mix.key_changes:
            writer.move(table, key, table.random_key(rng))

    def _ddl(self, writer: Writer) -> None:
        """Change a table's shape: columns come, with and without a default, widen and go."""
        tables = [table for table in self._tables if table.ddl]
        if not tables:
            return
        table = writer.rng.choice(tables)
        writer.run("SELECT pg_advisory_xact_lock(hashtext(%s))", [table.name])
        found = writer.connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attnum > 0 "
            "AND attrelid = %s::regclass AND NOT attisdropped AND attname LIKE 'x%%'",
            [table.sql],
        ).fetchall()
        self._columns += 1
        name = f"x{self._columns}"
        choice = writer.rng.random()
        if len(found) < 2 or choice < 0.25:
            default = writer.rng.choice(("", f"DEFAULT {self._columns}"))
            change = f"ADD COLUMN {name} int {default}"
        elif choice < 0.5:
            change = f"DROP COLUMN {found[0][0]}"
        elif choice < 0.75:
            narrow = [column for column, kind in found if kind == "integer"]
            if not narrow:
                return
            change = f"ALTER COLUMN {narrow[0]} TYPE bigint"
        else:
            writer.run(f"ALTER TABLE {table.sql} RENAME COLUMN {found[-1][0]} TO {name}")
            return
        writer.run(f"ALTER TABLE {table.sql} {change}")
