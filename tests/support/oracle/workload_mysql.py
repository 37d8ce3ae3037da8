"""The history oracle's tables and writers on MySQL and MariaDB.

Keys are locked by rows of a table that is never written: InnoDB gives row locks up when it commits,
and it commits in the binlog's order.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pymysql
from pymysql.constants import ER
from tests.support.mysql import MySqlFamilyServer
from tests.support.oracle.images import bytes_of_text, canonical, text_of_bytes
from tests.support.oracle.workload import (
    AUDIT,
    BULK_FROM,
    BULK_ROWS,
    LONG_S,
    WIDE_BYTES,
    Table,
    Undo,
    WorkloadWriter,
)
from tests.support.oracle.workload import PARTS as PARTED

LOCKS = 1_000
SETUP = f"""
CREATE DATABASE app CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
CREATE DATABASE truth CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE {AUDIT}
    (id bigint AUTO_INCREMENT PRIMARY KEY, tbl varchar(40), op varchar(20), `key` text, seq bigint);
CREATE TABLE truth.locks (n int PRIMARY KEY);
CREATE TABLE truth.numbers (n int PRIMARY KEY);
CREATE TABLE truth.ticks (id int PRIMARY KEY, n bigint);
CREATE TABLE app.ints (id int PRIMARY KEY, seq bigint, v text);
CREATE TABLE app.pairs (a varchar(40), b int, seq bigint, v text, PRIMARY KEY (a, b));
CREATE TABLE app.folded (a varchar(40) COLLATE utf8mb4_general_ci, b smallint unsigned, seq bigint,
    v text, PRIMARY KEY (a, b));
CREATE TABLE app.nums (n decimal(23,4) PRIMARY KEY, seq bigint, v text);
CREATE TABLE app.uuids (u binary(16) PRIMARY KEY, seq bigint, v text);
CREATE TABLE app.raws (r varbinary(20) PRIMARY KEY, seq bigint, v text);
CREATE TABLE app.latin (id int PRIMARY KEY, c varchar(40) CHARACTER SET latin1, seq bigint,
    v text CHARACTER SET latin1);
CREATE TABLE app.docs (id int PRIMARY KEY, j json, e enum('red','it''s','grün'), seq bigint,
    v text);
CREATE TABLE app.wide (id int PRIMARY KEY, seq bigint, v longtext, w mediumblob);
CREATE TABLE app.big (id bigint unsigned PRIMARY KEY, seq bigint, v text);
CREATE TABLE app.times (t datetime(6) PRIMARY KEY, seq bigint, v text);
CREATE TABLE app.coded (id int, code varchar(30) NOT NULL, seq bigint, v text, UNIQUE (code));
CREATE TABLE app.parts (region varchar(4), id int, seq bigint, v text, PRIMARY KEY (region, id))
    PARTITION BY LIST COLUMNS (region) (PARTITION pn VALUES IN ('n'), PARTITION ps VALUES IN ('s'),
    PARTITION px VALUES IN ('x'));
INSERT INTO truth.ticks VALUES (1, 0);
"""
KEYS = {"app.coded": ["code"]}
"""The option ``source.keys``."""
PADDED = {("app.uuids", "u"): 16}
PARTS = {"pn": '["region", "n"]', "ps": '["region", "s"]'}
JSON_COLUMN = "j"
BINARY = ("u", "r", "w")
"""Columns whose values are bytes."""

_COLOURS = ("red", "it's", "grün")
_EPOCH = datetime(2024, 2, 28, 23, 59, 59)
_HIGHEST = 2**64 - 1


def _number(_rng: random.Random, number: int) -> tuple[Any, ...]:
    return (number,)


def _int(key: Sequence[str]) -> Any:
    return (int(key[0]),)


def _text_and_int(key: Sequence[str]) -> Any:
    return (key[0].encode(), int(key[1]))


def _folded(rng: random.Random, number: int) -> tuple[Any, ...]:
    letters = "abcd"[number % 4] * (1 + number % 3)
    return ("".join(rng.choice((c, c.upper())) for c in letters), number % 7)


def _bytes(key: Sequence[str]) -> Any:
    return (bytes_of_text(key[0]),)


def _uuid(_rng: random.Random, number: int) -> tuple[Any, ...]:
    drawn = random.Random(f"uuid {number}").randbytes(16)
    ends = b"\0" * (number % 4)  # the binlog leaves trailing zeros out
    return (text_of_bytes(drawn[: 16 - len(ends)] + ends),)


def _raw(_rng: random.Random, number: int) -> tuple[Any, ...]:
    drawn = random.Random(f"raw {number // 3}").randbytes(number % 11)
    return (text_of_bytes(drawn + b"\0" * (number % 3)),)


def _time(_rng: random.Random, number: int) -> tuple[Any, ...]:
    at = _EPOCH + timedelta(seconds=number // 4, microseconds=333_333 * (number % 4))
    return (at.isoformat(" ", "microseconds"),)


TABLES = {
    table.name: table
    for table in (
        Table("app.ints", ("id",), _number, _int, ddl=True),
        Table(
            "app.pairs",
            ("a", "b"),
            lambda _rng, n: (f"k{n % 17} '\"\\ü🐬", n),
            _text_and_int,
            ddl=True,
        ),
        Table(
            "app.folded",
            ("a", "b"),
            _folded,
            lambda key: (key[0].lower(), int(key[1])),
            keys=84,
            exact=False,
        ),
        Table(
            "app.nums",
            ("n",),
            lambda rng, n: (rng.choice((f"{n - 100}.5", f"{n - 100}.50")),),
            lambda key: (Decimal(key[0]).normalize(),),
            exact=False,
        ),
        Table("app.uuids", ("u",), _uuid, _bytes, keys=120),
        Table("app.raws", ("r",), _raw, _bytes, keys=99),
        Table("app.latin", ("id",), _number, _int, keys=60),
        Table("app.docs", ("id",), _number, _int, keys=60, ddl=True),
        Table("app.wide", ("id",), _number, _int, wide=True, keys=100, ddl=True),
        Table("app.big", ("id",), lambda _rng, n: (n if n % 2 else _HIGHEST - n,), _int, keys=100),
        Table("app.times", ("t",), _time, lambda key: (key[0],), keys=100),
        Table(
            "app.coded",
            ("code",),
            lambda _rng, n: (f"code-{n}",),
            lambda key: (key[0].encode(),),
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
_NUMBERS = {name: number for number, name in enumerate(TABLES)}


def create(server: MySqlFamilyServer, seed: int) -> tuple[str, int]:
    """Create the tables and fill them; the place in the binlog from where the truth is read."""
    rng = random.Random(seed)
    name, offset = server.binlog_end()
    with server.connect() as connection:
        for statement in SETUP.split(";\n"):
            if statement.strip():
                connection.cursor().execute(statement)
        for table, count in (("locks", LOCKS + len(TABLES)), ("numbers", BULK_ROWS + 1)):
            rows = ", ".join(f"({n})" for n in range(count))
            connection.cursor().execute(f"INSERT INTO truth.{table} VALUES {rows}")
    with MySqlWriters(server, first=1).open(rng, -1) as writer:
        for shape in TABLES.values():
            with writer.transaction():
                for _ in range(shape.keys // 2):
                    writer.put(shape, shape.random_key(rng))
    return str(name), int(offset)


def source_rows(
    server: MySqlFamilyServer, table: Table
) -> dict[tuple[str | None, ...], dict[str, str | None]]:
    """The table's rows now, as texts."""
    with server.connect(conv={}) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table.name}")
        names = [column[0] for column in cursor.description or ()]
        rows = [
            {
                name: _text(name, value, json=server.flavor == "mysql")
                for name, value in zip(names, row, strict=True)
            }
            for row in cursor.fetchall()
        ]
    return {tuple(row[name] for name in table.key): row for row in rows}


def _text(name: str, value: str | bytes | None, *, json: bool) -> str | None:
    if isinstance(value, bytes):
        value = text_of_bytes(value) if name in BINARY else value.decode()
    return as_canonical(value) if json and name == JSON_COLUMN and value is not None else value


def text_of_output(name: str, value: Any, *, json: bool) -> str:
    """A value that a reader of an output found, as `source_rows` has it."""
    if isinstance(value, datetime):
        return value.isoformat(" ", "microseconds")
    if json and name == JSON_COLUMN:
        return as_canonical(value) if isinstance(value, str) else canonical(value)
    return text_of_bytes(bytes(value)) if name in BINARY else str(value)


def as_canonical(text: str) -> str:
    """A JSON text as the oracle's decoders give it."""
    return canonical(json.loads(text))


WRITTEN_FROM = 100_000
"""Rows that are there from the beginning have lower numbers than any that is written later."""


class Sequencer:
    """Numbers that only grow, from ``first``."""

    def __init__(self, first: int) -> None:
        self._lock = threading.Lock()
        self._next = first

    def take(self, count: int = 1) -> int:
        """The first of ``count`` numbers."""
        with self._lock:
            first = self._next
            self._next += count
            return first


class MySqlWriter(WorkloadWriter):
    """Args: an open connection; whose numbers grow; the name of its prepared transactions."""

    _columns = itertools.count(1)

    def __init__(
        self,
        connection: pymysql.Connection[Any],
        rng: random.Random,
        numbers: Sequencer,
        prepared: str,
    ) -> None:
        self.rng = rng
        self._connection = connection
        self._cursor = connection.cursor()
        self._numbers = numbers
        self._prepared = prepared

    # ------------------------------------------------------------ what surrounds writes

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._choose_image()
        self.run("BEGIN")
        try:
            yield
        except BaseException as error:
            if self._connection.open:
                self.run("ROLLBACK")
            if not isinstance(error, Undo):
                raise
        else:
            self.run("COMMIT")

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        self.run("SAVEPOINT s")
        try:
            yield
        except Undo:
            self.run("ROLLBACK TO SAVEPOINT s")
        else:
            self.run("RELEASE SAVEPOINT s")

    def prepare(self, write: Callable[[], None]) -> bool:
        name, rng = f"'{self._prepared}'", self.rng
        self._choose_image()
        self.run(f"XA START {name}")
        try:
            write()
            self.run(f"XA END {name}")
        except pymysql.MySQLError:
            self._connection.close()  # which rolls back, whatever state the transaction is in
            raise
        if rng.random() < 0.2:
            self.run(f"XA COMMIT {name} ONE PHASE")
            return True
        self.run(f"XA PREPARE {name}")
        time.sleep(rng.random() * LONG_S)
        if rng.random() < 0.2:
            self._connection.close()  # another connection decides
            raise pymysql.OperationalError(2013, "closed between the phases")
        if rng.random() < 0.2:
            self.run(f"XA ROLLBACK {name}")
            return False
        self.run(f"XA COMMIT {name}")
        return True

    def _choose_image(self) -> None:
        if self.partial and self.rng.random() < 0.1:
            image = self.rng.choice(("full", "full", "minimal", "noblob"))
            self.run(f"SET SESSION binlog_row_image = {image}")

    # ------------------------------------------------------------ SQL

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        return int(self._cursor.execute(sql, list(parameters) if parameters else None))

    def row(self, sql: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        self.run(sql, parameters)
        row: tuple[Any, ...] | None = self._cursor.fetchone()
        return row

    def lock(self, table: Table, keys: Iterable[Sequence[Any]]) -> None:
        """The table shared with other writers of keys, and the keys for this one."""
        self.run(f"SELECT n FROM truth.locks WHERE n = {_NUMBERS[table.name]} LOCK IN SHARE MODE")
        slots = {zlib.crc32(table.lock(key).encode()) % LOCKS + len(TABLES) for key in keys}
        listed = ", ".join(str(slot) for slot in sorted(slots))
        self.run(f"SELECT n FROM truth.locks WHERE n IN ({listed}) ORDER BY n FOR UPDATE")

    def lock_table(self, table: Table) -> None:
        self.run(f"SELECT n FROM truth.locks WHERE n = {_NUMBERS[table.name]} FOR UPDATE")

    def audit(self, table: Table, op: str, key: Sequence[str], sequence: int) -> None:
        values = [table.name, op, json.dumps(list(key)), sequence]
        self.run(f"INSERT INTO {AUDIT} (tbl, op, `key`, seq) VALUES (%s, %s, %s, %s)", values)

    def stored(self, table: Table, key: Sequence[Any]) -> tuple[str, ...] | None:
        """The key's texts as the table has them."""
        row = self.row(
            f"SELECT {', '.join(table.key)} FROM {table.name} WHERE {_where(table)} FOR UPDATE",
            _values(table, key),
        )
        if row is None:
            return None
        return tuple(_key_text(part) for part in row)

    def _more(self, table: Table) -> dict[str, Any]:
        """Columns beside key and sequence, with new values."""
        rng = self.rng
        size = WIDE_BYTES // 2 if table.wide and rng.random() < 0.8 else 8
        more: dict[str, Any] = {"v": rng.randbytes(size).hex()}
        if table.name == "app.latin":
            more["v"] = f"é€ÿ{more['v']}"
            more["c"] = rng.choice((None, "", "naïve ¤ \\ ' end", "ß" * 40))
        elif table.name == "app.docs":
            more["e"] = rng.choice((*_COLOURS, None))
            more["j"] = json.dumps(_document(rng))
        elif table.name == "app.wide":
            more["w"] = rng.randbytes(size)
        elif table.name == "app.coded":
            more["id"] = rng.randrange(10**6)
        return more

    # ------------------------------------------------------------ writes

    def put(self, table: Table, key: Sequence[Any]) -> None:
        self.lock(table, [key])
        stored = self.stored(table, key)
        sequence = self._numbers.take()
        more = self._more(table)
        if stored is None:
            columns = [*table.key, "seq", *more]
            marks = ", ".join(["%s"] * len(columns))
            self.run(
                f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({marks})",
                [*_values(table, key), sequence, *more.values()],
            )
            stored = self.stored(table, key)
            assert stored is not None
        else:
            changed = {name: value for name, value in more.items() if self.rng.random() < 0.4}
            self._update(table, stored, changed | {"seq": sequence})
        self.audit(table, "put", stored, sequence)

    def _update(self, table: Table, key: Sequence[Any], changes: dict[str, Any]) -> None:
        settings = ", ".join(f"{name} = %s" for name in changes)
        self.run(
            f"UPDATE {table.name} SET {settings} WHERE {_where(table)}",
            [*changes.values(), *_values(table, key)],
        )

    def delete(self, table: Table, key: Sequence[Any]) -> None:
        self.lock(table, [key])
        stored = self.stored(table, key)
        if stored is not None:
            self.run(f"DELETE FROM {table.name} WHERE {_where(table)}", _values(table, stored))
            self.audit(table, "gone", stored, self._numbers.take())

    def move(self, table: Table, key: Sequence[Any], to: Sequence[Any]) -> None:
        """Also to another spelling of the same key."""
        self.lock(table, [key, to])
        if table.place(key) != table.place(to):
            self.delete(table, to)
        old = self.stored(table, key)
        if old is None:
            return
        sequence = self._numbers.take()
        moved = dict(zip(table.key, _values(table, to), strict=True))
        self._update(table, old, moved | {"seq": sequence})
        new = self.stored(table, to)
        assert new is not None
        if new != old:
            self.audit(table, "gone", old, sequence)
        self.audit(table, "put", new, sequence)

    def bulk(self, table: Table) -> None:
        self.lock_table(table)
        name, value = table.name, "repeat(md5(rand()), 6)"
        # A restarted server keeps of a prepared transaction the rows' locks, not those of `locks`:
        # wait for its rows, which an UPDATE of what is committed would pass over.
        self.run(f"SELECT count(*) FROM {name} FOR UPDATE")
        first = self._numbers.take(BULK_FROM + BULK_ROWS + 1)
        row = self.row(f"SELECT 1 FROM {name} WHERE id >= {BULK_FROM} LIMIT 1 FOR UPDATE")
        audit = (
            f"INSERT INTO {AUDIT} (tbl, op, `key`, seq) "
            f"SELECT '{name}', '{{}}', CONCAT('[\"', id, '\"]'), {first} + id FROM {name}"
        )
        if row is None:
            self.run(
                f"INSERT INTO {name} (id, seq, v) SELECT {BULK_FROM} + n, {first + BULK_FROM} + n, "
                f"{value} FROM truth.numbers"
            )
            self.run(f"{audit.format('put')} WHERE id >= {BULK_FROM}")
        elif self.rng.random() < 0.6:
            self.run(f"UPDATE {name} SET seq = {first} + id, v = {value}")
            self.run(audit.format("put"))
        else:
            self.run(f"{audit.format('gone')} WHERE id >= {BULK_FROM}")
            self.run(f"DELETE FROM {name} WHERE id >= {BULK_FROM}")

    def truncate(self, table: Table) -> None:
        """Both commit what is open; the binlog says what was done."""
        if table.name == PARTED and self.rng.random() < 0.5:
            self.run(f"ALTER TABLE {PARTED} TRUNCATE PARTITION {self.rng.choice([*PARTS])}")
        else:
            self.run(f"TRUNCATE TABLE {table.name}")

    def vanish(self) -> None:
        for part in PARTS:
            if self.row(f"SELECT 1 FROM {PARTED} PARTITION ({part}) LIMIT 1"):
                self.run(f"ALTER TABLE {PARTED} TRUNCATE PARTITION {part}")
                return

    def ddl(self, table: Table) -> None:
        namespace, name = table.name.split(".")
        self.run(
            "SELECT column_name, column_type FROM information_schema.columns WHERE table_schema = "
            f"'{namespace}' AND table_name = '{name}' AND column_name LIKE 'x%%'"
        )
        found = sorted(self._cursor.fetchall())
        number = next(self._columns)
        column, choice = f"x{number}", self.rng.random()
        if len(found) < 2 or choice < 0.25:
            default = self.rng.choice(("", f"DEFAULT {number}", f"NOT NULL DEFAULT {number}"))
            where = self.rng.choice(("", "FIRST", "AFTER seq"))
            change = f"ADD COLUMN {column} int {default} {where}"
        elif choice < 0.45:
            change = f"DROP COLUMN {found[0][0]}"
        elif choice < 0.6:
            change = (
                f"ADD COLUMN {column} varchar(20) DEFAULT 'é{number}', DROP COLUMN {found[0][0]}"
            )
        elif choice < 0.8:
            change = f"MODIFY COLUMN {found[-1][0]} bigint"
            if "varchar" in str(found[-1][1]):
                change = f"MODIFY COLUMN {found[-1][0]} varchar(300) DEFAULT 'w'"
        else:
            kind = found[-1][1]
            change = f"CHANGE COLUMN {found[-1][0]} {column} {_word(kind)}"
        self.run(f"ALTER TABLE {table.name} {change}")


class MySqlWriters:
    """See `tests.support.oracle.workload.Writers`. ``port``: of the server; None: its own."""

    lost: tuple[type[BaseException], ...] = (
        pymysql.err.OperationalError,
        pymysql.err.InterfaceError,
    )
    refused: tuple[type[BaseException], ...] = (pymysql.err.IntegrityError,)

    def __init__(
        self, server: MySqlFamilyServer, first: int = WRITTEN_FROM, port: int | None = None
    ) -> None:
        self._server = server
        self._port = port
        self._numbers = Sequencer(first)
        self.tables = TABLES

    @contextmanager
    def open(self, rng: random.Random, number: int) -> Iterator[MySqlWriter]:
        name = f"writer{number}"
        connection = self._connect(read_timeout=60, write_timeout=60)
        try:
            cursor = connection.cursor()
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 5, lock_wait_timeout = 10")
            level = rng.choice(("READ COMMITTED", "READ COMMITTED", "REPEATABLE READ"))
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
            _end_prepared(cursor, name, rng)
            yield MySqlWriter(connection, rng, self._numbers, name)
        finally:
            if connection.open:
                connection.close()

    def end_prepared(self, writers: int) -> None:
        with self._connect() as connection:
            for number in range(writers):
                _end_prepared(connection.cursor(), f"writer{number}", random.Random(0))

    def _connect(self, **options: Any) -> pymysql.Connection[Any]:
        return self._server.connect(port=self._port or self._server.port, **options)


def _end_prepared(cursor: Any, name: str, rng: random.Random) -> None:
    """What a restart, or a lost connection, left between its two phases."""
    cursor.execute("XA RECOVER")
    for row in cursor.fetchall():
        found = row[3].decode() if isinstance(row[3], bytes) else row[3]
        if found != name:
            continue
        how = rng.choice(("COMMIT", "ROLLBACK"))
        for _attempt in range(50):
            try:
                cursor.execute(f"XA {how} '{name}'")
                break
            except pymysql.err.OperationalError as error:
                if error.args[0] == ER.XA_RBROLLBACK and how == "COMMIT":
                    how = "ROLLBACK"  # all that the server takes for it any more
                    continue
                # Its connection may be about to end: XAER_NOTA until then.
                if error.args[0] not in (ER.XAER_NOTA, ER.XA_RBROLLBACK):
                    raise
                time.sleep(0.1)


def _where(table: Table) -> str:
    return " AND ".join(f"{column} = %s" for column in table.key)


def _values(table: Table, key: Sequence[Any]) -> list[Any]:
    return [
        bytes_of_text(part) if column in BINARY else part
        for column, part in zip(table.key, key, strict=True)
    ]


def _key_text(value: Any) -> str:
    if isinstance(value, bytes):
        return text_of_bytes(value)
    return value.isoformat(" ", "microseconds") if isinstance(value, datetime) else str(value)


def _word(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _document(rng: random.Random, depth: int = 0) -> Any:
    choice = rng.random()
    if depth == 0 or (depth < 3 and choice < 0.2):
        return {
            rng.choice(("a", "bé", "c'\"", "longer name")): _document(rng, depth + 1)
            for _ in range(rng.randrange(4))
        }
    if depth < 3 and choice < 0.4:
        return [_document(rng, depth + 1) for _ in range(rng.randrange(4))]
    return rng.choice(
        (
            None,
            True,
            False,
            0,
            -1,
            70_000,
            2**40,
            -(2**63),
            2**64 - 1,
            1.5,
            -2e-7,
            "",
            "tëxt",
            "x" * 300,
        )
    )
