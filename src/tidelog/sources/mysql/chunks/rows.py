"""Runs a chunk's SELECTs, and converts their results to dump rows.

Requested keys are sent to the server in the log's spelling. The server finds ``7`` by ``007``, and
a datetime with any number of zeros after its point. But a key without a row is compared with the
log's records by text: if the row is created in the meantime, it must be recognized.
"""

from __future__ import annotations

import ipaddress
import re
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pymysql
from pymysql.constants import COMMAND, CR

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.cell_text.charset_texts import bytes_of_exact_text
from tidelog.codecs.mysql.cell_text.columns import inet4_text, inet6_text, uuid_text
from tidelog.codecs.mysql.charsets import BINARY_COLLATION, charset_of
from tidelog.codecs.mysql.rows.dump_rows import ResultError, ResultRows
from tidelog.codecs.mysql.rows.keys import BYTES_LOGICAL, bytes_text
from tidelog.codecs.postgres.tuples import absent_rows, concatenate
from tidelog.errors import ChunkError, ChunkRefusedError
from tidelog.model.records import LogBatch, Snapshot, UInt8s
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.ports import ChunkRequest, ChunkRows
from tidelog.sources.mysql.chunks.sql import Key, KeyIndex, MySqlChunkSql, bytes_value, key_index
from tidelog.sources.mysql.connect import Connection
from tidelog.sources.ranges import KeySteps, Slices, bounded_key, given_keys, may_hold_null

# The log's spelling of requested keys.

_BITS = {types.TINY: 8, types.SHORT: 16, types.INT24: 24, types.LONG: 32, types.LONGLONG: 64}
_TRUTHS = {"t": "1", "true": "1", "f": "0", "false": "0"}
_INTEGER = re.compile(r"([+-]?\d+)(?:\.0*)?")
_DECIMAL = re.compile(r"[+-]?\d+(?:\.\d*)?")
_SCALE = re.compile(r"\((\d+)(?:,(\d+))?\)")
_CLOCK = r"(\d{1,3}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?"
_DATE = r"(\d{4})-(\d{1,2})-(\d{1,2})"
_INSTANT = re.compile(rf"{_DATE}(?:[ T]{_CLOCK})?(?:Z|\+00(?::?00)?)?")
_TIME = re.compile(rf"(-?){_CLOCK}")
_DATES = (types.DATE, types.NEWDATE)
_TIMES = (types.TIME, types.TIME2)
_INSTANTS = (types.DATETIME, types.DATETIME2, types.TIMESTAMP, types.TIMESTAMP2)
_WITH_DIGITS = (types.TIME2, types.DATETIME2, types.TIMESTAMP2)
_NORMALIZERS: dict[str, Callable[[str], bytes]] = {
    "uuid": lambda text: uuid_text(uuid.UUID(text).bytes),
    "inet4": lambda text: inet4_text(ipaddress.IPv4Address(text).packed),
    "inet6": lambda text: inet6_text(ipaddress.IPv6Address(text).packed),
}


def normalize_keys(
    keys: Sequence[Key], schema: TableSchema, columns: Sequence[str]
) -> tuple[Key, ...]:
    """The keys of ``columns`` in the log's spelling, in the same order.

    Text values, for which a collation may match several spellings, and bytes are unchanged.

    Raises:
        ChunkRefusedError: no row can have this key: a value does not fit its column's type.
    """
    of = [schema.columns[schema.column_index(name)] for name in columns]
    return tuple(tuple(map(_value, of, key)) for key in keys)


def _value(column: Column, text: str | None) -> str | None:
    if text is None or column.logical == BYTES_LOGICAL:
        return text
    try:
        return _normalize(column, text)
    except ValueError:
        raise ChunkRefusedError(
            f"no row has such a key: a value is not of column {column.name}'s type"
        ) from None


def _normalize(column: Column, text: str) -> str:
    """Raise ValueError if the column can't hold the value."""
    kind = column.type_id
    if kind in _BITS or kind in (types.YEAR, types.BIT):
        return _integer(column, text)
    if kind == types.NEWDECIMAL:
        return _decimal(column, text)
    if kind in _DATES or kind in _INSTANTS:
        return _instant(column, text)
    if kind in _TIMES:
        sign, hours, minutes, seconds, fraction = _match(_TIME, text)
        clock = _clock(hours, minutes, seconds, _fraction(column, fraction), most=838)
        return sign + clock if sign and clock.strip("0:.") else clock
    if kind == types.SET:
        chosen = set(text.split(",")) if text else set()
        labels = types.labels(column)
        _require(chosen <= set(labels))
        return ",".join(label for label in labels if label in chosen)
    if kind == types.STRING and column.type_name in _NORMALIZERS:
        return _NORMALIZERS[column.type_name](text).decode()
    if kind == types.STRING:
        return text.rstrip(" ")  # CHAR(n) stores no trailing spaces
    return text


def _integer(column: Column, text: str) -> str:
    kind = column.type_id
    number = int(_match(_INTEGER, _TRUTHS.get(text, text))[0])
    if kind == types.YEAR:
        _require(number == 0 or 1901 <= number <= 2155)
        return f"{number:04d}"
    if kind == types.BIT:
        bits = (column.type_mod >> 8) * 8 + (column.type_mod & 0xFF)
        _require(0 <= number < 1 << bits)
        if column.logical == "bool":
            return "t" if number else "f"
    elif types.is_unsigned(column):
        _require(0 <= number < 1 << _BITS[kind])
    else:
        most = 1 << _BITS[kind] - 1
        _require(-most <= number < most)
    return str(number)


def _decimal(column: Column, text: str) -> str:
    _require(_DECIMAL.fullmatch(text) is not None)
    found = _SCALE.search(column.type_name)
    assert found is not None
    digits, scale = int(found[1]), int(found[2] or 0)
    exactly = Context(prec=100, traps=[Inexact, InvalidOperation])
    try:
        number = Decimal(text).quantize(Decimal(1).scaleb(-scale), context=exactly)
    except ArithmeticError:
        raise ValueError from None
    # Not abs, which rounds to the context's 28 digits.
    _require(number.copy_abs() < Decimal(10) ** (digits - scale))
    return f"{number.copy_abs() if number == 0 else number:f}"


def _instant(column: Column, text: str) -> str:
    year, month, day, hours, minutes, seconds, fraction = _match(_INSTANT, text)
    _require(int(month) <= 12 and int(day) <= 31)
    date = f"{year}-{int(month):02d}-{int(day):02d}"
    clock = _clock(hours or "0", minutes or "0", seconds, _fraction(column, fraction), most=23)
    if column.type_id in _DATES:
        _require(not clock.strip("0:."))
        return date
    return f"{date} {clock}"


def _clock(hours: str, minutes: str, seconds: str | None, fraction: str, *, most: int) -> str:
    numbers = int(hours), int(minutes), int(seconds or 0)
    _require(numbers[0] <= most and numbers[1] <= 59 and numbers[2] <= 59)
    return "{:02d}:{:02d}:{:02d}".format(*numbers) + (f".{fraction}" if fraction else "")


def _fraction(column: Column, digits: str | None) -> str:
    """The fraction with as many digits as the column has. Raises ValueError for a text with more
    digits: it is not a value of the column, and is not rounded.
    """
    kept = column.type_mod if column.type_id in _WITH_DIGITS else types.old_digits(column)
    digits = (digits or "").rstrip("0")
    _require(len(digits) <= kept)
    return digits.ljust(kept, "0")


def _match(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    found = pattern.fullmatch(text)
    _require(found is not None)
    assert found is not None
    return found.groups()


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError


# Rows of SELECTs.

BUFFER_BYTES = 1 << 20
_EOF = 0xFE

T = TypeVar("T", bytes, int)


class RowReader:
    """Runs SELECTs over one connection at a time; uses one buffer and the rows' own memory. Used by
    one thread.
    """

    def __init__(self) -> None:
        self._buffer: UInt8s = np.empty(BUFFER_BYTES, dtype=np.uint8)
        # TLS sockets of early Python 3.11 test a buffer's truth value, which arrays do not have.
        self._view = self._buffer.data
        self.cut = False
        """True if the last statement was ended at its limit."""

    def read(
        self,
        connection: Connection,
        query: str,
        schema: TableSchema,
        limit_bytes: int = 0,
        stop: Callable[[], None] | None = None,
    ) -> LogBatch:
        """DUMP_ROW records of the rows, with the schema's columns.

        Once they take ``limit_bytes`` (0: no limit), ``stop`` makes the server end the statement,
        and later rows are dropped (`cut`).

        Raises PyMySQL's error for a server error. ``query`` is a single statement: without
        CLIENT_MULTI_STATEMENTS the server refuses more, so a condition can't smuggle in a second
        one.
        """
        rows = ResultRows(schema)
        source: Any = connection
        source._execute_command(COMMAND.COM_QUERY, query)
        _skip_definitions(source)
        self.cut = False
        kept: LogBatch | None = None
        with _one_result(connection):
            try:
                # The first rows may be in the buffer of the definitions; the rest is read from the
                # socket.
                rows.feed(_receive(source, lambda: source._rfile.read1(BUFFER_BYTES)))
                while not rows.ended:
                    count = _receive(source, lambda: source._sock.recv_into(self._view))
                    rows.feed(self._buffer[:count])
                    if kept is not None:
                        rows.take()
                    elif limit_bytes and rows.payload_bytes >= limit_bytes and not rows.ended:
                        kept, self.cut = rows.take(), True
                        if stop is not None:
                            stop()
            except ResultError:
                if kept is None:  # else it usually says that we or the time limit ended it
                    raise
        return rows.batch() if kept is None else kept


class RowStream:
    """The rows of one SELECT, taken piece by piece while the server waits. Until it has `ended`, or
    failed, the connection can run no other statement. Used by one thread.

    Attributes:
        error: the server's error, by which the SELECT failed.
    """

    def __init__(self, connection: Connection, query: str, schema: TableSchema) -> None:
        self._connection = connection
        self._rows = ResultRows(schema)
        self._buffer: UInt8s = np.empty(BUFFER_BYTES, dtype=np.uint8)
        self._view = self._buffer.data
        self.error: ResultError | None = None
        source: Any = connection
        source._execute_command(COMMAND.COM_QUERY, query)
        _skip_definitions(source)
        with _one_result(connection):
            # The first rows may be in the buffer of the definitions.
            self._rows.feed(_receive(source, lambda: source._rfile.read1(BUFFER_BYTES)))

    @property
    def ended(self) -> bool:
        """Were all rows received?"""
        return self._rows.ended and self.error is None

    def take(self, limit_rows: int, limit_bytes: int) -> LogBatch:
        """The next rows, about as many as the limits say (0 bytes: no limit), and at least one
        unless none follows.

        Raises PyMySQL's error for a server error, again each time: the rows that follow are lost.
        """
        rows = self._rows
        source: Any = self._connection
        with _one_result(self._connection):
            if self.error is not None:
                raise self.error
            try:
                while not rows.ended and (
                    rows.rows < limit_rows and (not limit_bytes or rows.payload_bytes < limit_bytes)
                ):
                    count = _receive(source, lambda: source._sock.recv_into(self._view))
                    rows.feed(self._buffer[:count])
            except ResultError as error:
                self.error = error
                raise
        return rows.take()

    def drain(self) -> None:
        """Drop all rows that follow: the statement was ended, or is not needed."""
        try:
            while not self.ended:
                self.take(1 << 20, BUFFER_BYTES)
        except pymysql.MySQLError:
            pass  # it says that we ended it, or the connection is lost


@contextmanager
def _one_result(connection: Connection) -> Iterator[None]:
    """Raise the server's error as PyMySQL's. A connection with an unread rest is abandoned."""
    try:
        yield
    except ResultError as error:
        # The message is left out: it may hold values.
        raise pymysql.err.OperationalError(error.code, "") from None
    except BaseException:
        connection.abandon()  # the remaining rows would be taken for the next result
        raise


def _receive(source: Any, receive: Callable[[], T]) -> T:
    """The result of ``receive``; raises PyMySQL's error if the connection is lost."""
    try:
        received = receive()
    except (OSError, ValueError, AttributeError):  # the latter: another thread closed it
        received = None
    if not received:
        source._force_close()
        raise pymysql.err.OperationalError(CR.CR_SERVER_LOST, "the connection was lost")
    return received


def _skip_definitions(source: Any) -> None:
    """Read everything before the rows: the number of columns, their definitions, an EOF packet."""
    columns = source._read_packet().read_length_encoded_integer()
    for _ in range(columns + 1):
        packet = source._read_packet()
    if packet.get_all_data()[:1] != bytes([_EOF]):
        raise pymysql.err.InternalError(0, "a result set's definitions do not end")


KEYS_AT_ONCE = (
    500  # MariaDB makes a join of 1000 or more values (in_predicate_conversion_threshold)
)


class MySqlChunkSelect:
    """Reads ranges and keys of tables within the caller's transactions. Used by one thread.

    Args:
        end_statement: makes the server end a connection's current statement, and nothing else.
    """

    def __init__(self, end_statement: Callable[[Connection], None]) -> None:
        self._end_statement = end_statement
        self._rows = RowReader()
        self._widths: dict[TableName, float] = {}  # bytes per row of the last read
        self._indexes: dict[tuple[str, tuple[str, ...]], KeyIndex] = {}

    def forget(self) -> None:
        """Clear the cache of indexes: one may have been dropped."""
        self._indexes.clear()

    def range(
        self,
        connection: Connection,
        request: ChunkRequest,
        schema: TableSchema,
        snapshot: Snapshot,
    ) -> ChunkRows:
        if schema.keyless and request.key_columns is None:
            return self._first_rows(connection, request, schema, snapshot)
        key = bounded_key(request, schema)
        sql = self._sql(connection, schema, key)
        rows, rested_s, cut = self._range(connection, request, schema, sql)
        count = len(rows)
        chunk = ChunkRows(
            schema=schema,
            rows=rows,
            snapshot=snapshot,
            last_key=_key_of(rows, count - 1, schema, key) if count else None,
            exhausted=count < request.limit_rows and not cut,
            rested_s=rested_s,
        )
        if chunk.last_key is not None and may_hold_null(schema, key):
            self._check_ambiguity(connection, request, sql, chunk.last_key)
        return chunk

    def whole(
        self, connection: Connection, request: ChunkRequest, schema: TableSchema
    ) -> RowStream:
        """All rows of a table that has no key, in no order."""
        return RowStream(connection, _keyless_sql(schema).whole(request.where), schema)

    def _first_rows(
        self,
        connection: Connection,
        request: ChunkRequest,
        schema: TableSchema,
        snapshot: Snapshot,
    ) -> ChunkRows:
        """A sample of a table that has no key."""
        query = f"{_keyless_sql(schema).whole(request.where)} LIMIT {request.limit_rows:d}"
        rows = self._read(connection, query, schema, request.limit_bytes)
        exhausted = len(rows) < request.limit_rows and not self._rows.cut
        return ChunkRows(schema, rows, snapshot, None, exhausted)

    def boundary(
        self, connection: Connection, request: ChunkRequest, schema: TableSchema
    ) -> Key | None:
        """The key of the range's ``limit_rows``-th row; None if it has fewer. ``schema`` may have
        no number.
        """
        key = bounded_key(request, schema)
        sql = self._sql(connection, schema, key)
        query = sql.boundary(request.after, request.upto, request.limit_rows, request.where)
        found = self._rows.read(connection, query, sql.key_schema)
        return _key_of(found, 0, sql.key_schema, key) if len(found) else None

    def keys(
        self,
        connection: Connection,
        request: ChunkRequest,
        schema: TableSchema,
        snapshot: Snapshot,
    ) -> ChunkRows:
        columns, _ = given_keys(request, schema)
        request = replace(request, keys=normalize_keys(request.keys or (), schema, columns))
        _, given = given_keys(request, schema)
        sql = self._sql(connection, schema, columns)
        absent = self._unencodable_keys(connection, schema, columns, given)
        found: list[LogBatch] = []
        missing: list[Key] = []
        steps = KeySteps(request, self._widths.get(schema.table, 0.0), KEYS_AT_ONCE)
        while (step := steps.next()) is not None:
            some = [key for key in step.keys or () if key not in absent]
            size = 0
            if some:
                query = sql.of_keys(some, request.where)
                rows = self._read(connection, query, schema, steps.room)
                if self._rows.cut:
                    if steps.note_overflow():
                        continue
                    break
                found.append(rows)
                size = rows.payload_bytes
                unique = sql.index.unique and not any(None in key for key in some)
                if not unique or len(found[-1]) < len(some):
                    present = {int(row[0]) for row in connection.rows(sql.present_keys(some))}
                    absent |= {key for place, key in enumerate(some) if place not in present}
            missing += [key for key in step.keys or () if key in absent]
            steps.count_step(size)
        self._widths[schema.table] = steps.row_bytes
        known = [_cells_of(key, schema, columns) for key in dict.fromkeys(missing)]
        found.append(absent_rows(known, schema, columns if missing else None))
        rows = concatenate(found)
        if len(found) > 2:  # a row may have two spellings of its key, in two batches
            rows = _distinct(rows)
        return ChunkRows(schema, rows, snapshot, None, True, keys_read=steps.read)

    def _range(
        self, connection: Connection, request: ChunkRequest, schema: TableSchema, sql: MySqlChunkSql
    ) -> tuple[LogBatch, float, bool]:
        """The rows, the seconds of pauses between slices, and whether the limit of bytes cut the
        last slice.
        """
        slices = Slices(request, schema, sql.key)
        found: list[LogBatch] = []
        size, after = 0, request.after
        while True:
            query = sql.range(after, request.upto, slices.limit, request.where)
            room = max(request.limit_bytes - size, 1) if request.limit_bytes else 0
            rows = self._read(connection, query, schema, room)
            found.append(rows)
            size += rows.payload_bytes
            more = slices.more(len(rows), size)
            if self._rows.cut or not more:
                self._widths[schema.table] = size / max(slices.count, 1)
                return concatenate(found), slices.rested_s, self._rows.cut
            after = _key_of(rows, len(rows) - 1, schema, sql.key)

    def _read(
        self, connection: Connection, query: str, schema: TableSchema, limit_bytes: int
    ) -> LogBatch:
        stop = partial(self._end_statement, connection)
        return self._rows.read(connection, query, schema, limit_bytes, stop)

    def _check_ambiguity(
        self, connection: Connection, request: ChunkRequest, sql: MySqlChunkSql, last: Key
    ) -> None:
        if connection.rows(sql.shared_keys(request.after, last)):
            raise ChunkRefusedError(
                f"reading a chunk of {sql.schema.table}: rows share a key that holds NULL, and "
                "can't be distinguished: name NOT NULL columns in source.keys"
            )

    def _unencodable_keys(
        self,
        connection: Connection,
        schema: TableSchema,
        columns: Sequence[str],
        keys: Sequence[Key],
    ) -> set[Key]:
        """Keys with characters that a column's character set does not have: no row has such a key,
        and comparing with it is an error.
        """
        found: set[Key] = set()
        for place, name in enumerate(columns):
            column = schema.columns[schema.column_index(name)]
            collation = types.collation(column)
            charset = charset_of(collation)
            if column.type_id not in types.CHARACTER or collation in (0, BINARY_COLLATION):
                continue
            if charset is None or charset == "utf8mb4":
                continue
            texts = [key[place] for key in keys]
            odd = [t for t in dict.fromkeys(texts) if t is not None and not t.isascii()]
            odd = [t for t in odd if bytes_of_exact_text(charset, t) is None]
            for at in range(0, len(odd), KEYS_AT_ONCE):
                some = odd[at : at + KEYS_AT_ONCE]
                tests = ", ".join(_round_trip_sql(text, charset) for text in some)
                row = connection.row(f"SELECT {tests}")
                lost = {text for text, kept in zip(some, row or (), strict=True) if not kept}
                found |= {key for key in keys if key[place] in lost}
        return found

    def _sql(
        self, connection: Connection, schema: TableSchema, key: tuple[str, ...]
    ) -> MySqlChunkSql:
        if not key:
            raise ChunkError(
                f"{schema.table} has no primary key and can't be dumped: add one, or name a "
                "unique key of it in source.keys"
            )
        known = (schema.fingerprint, key)
        if known not in self._indexes:
            self._indexes[known] = key_index(connection, schema.table, key)
        return MySqlChunkSql(schema, key, self._indexes[known])


def _keyless_sql(schema: TableSchema) -> MySqlChunkSql:
    return MySqlChunkSql(schema, (), KeyIndex(None, (), ordered=False, unique=False))


def _cells_of(key: Key, schema: TableSchema, columns: Sequence[str]) -> Key:
    """The texts of a row's cells; a cell of bytes holds the bytes with their padding."""
    return tuple(
        text
        if text is None or column.logical != BYTES_LOGICAL
        else bytes_value(column, text).decode("utf-8", "surrogateescape")
        for column, text in zip(
            (schema.columns[schema.column_index(name)] for name in columns), key, strict=True
        )
    )


def _round_trip_sql(text: str, charset: str) -> str:
    value = f"_utf8mb4 X'{text.encode().hex()}'"
    converted = f"CONVERT(CONVERT({value} USING {charset}) USING utf8mb4)"
    return f"{converted} = {value} COLLATE utf8mb4_bin"


def _key_of(rows: LogBatch, place: int, schema: TableSchema, key: Sequence[str]) -> Key:
    texts = row_texts(rows, place)
    return tuple(_key_text(schema.columns[at], texts[at]) for at in map(schema.column_index, key))


def _key_text(column: Column, text: str | None) -> str | None:
    if text is None or column.logical != BYTES_LOGICAL:
        return text
    return bytes_text(text.encode("utf-8", "surrogateescape"))


def row_texts(rows: LogBatch, place: int) -> list[str | None]:
    """The texts of one dump row."""
    start, end = rows.payload_offsets[place], rows.payload_offsets[place + 1]
    data = rows.payload[start:end].tobytes()
    texts: list[str | None] = []
    at = 8  # after tag, relation, tuple tag and the number of columns
    while at < len(data):
        tag = data[at : at + 1]
        at += 1
        if tag == b"n":
            texts.append(None)
            continue
        (size,) = struct.unpack_from("!I", data, at)
        at += 4
        texts.append(data[at : at + size].decode("utf-8", "surrogateescape"))
        at += size
    return texts


def _distinct(rows: LogBatch) -> LogBatch:
    """Remove duplicate rows."""
    bounds = rows.payload_offsets.tolist()
    data = rows.payload.tobytes()
    seen: set[bytes] = set()
    keep = np.ones(len(rows), np.bool_)
    for place in range(len(rows)):
        payload = data[bounds[place] : bounds[place + 1]]
        keep[place] = payload not in seen
        seen.add(payload)
    return rows if keep.all() else rows.filter(keep)
