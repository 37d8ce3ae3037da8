"""The truth of MySQL and MariaDB: the binlog as python-mysql-replication decodes it, over its own
connection. Where the server does not log full metadata, names and labels are the tables' of today.

Transactions stand where their GTID event begins; those of two phases where their decision's does.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pymysql
from tests.support.oracle.images import canonical, completed, labels, plain, text_of_bytes
from tests.support.oracle.values import UNCHANGED, Change, Row, Transaction, Value

from tidelog.codecs.mysql.binlog.items import pack_position, parse_file_name

_UTF8MB4 = 45
_MICROSECONDS = (1 << 55) - 1
_NAME = r"`?(\w+)`?(?:\s*\.\s*`?(\w+)`?)?"
_TRUNCATE = re.compile(rf"\s*TRUNCATE\s+(?:TABLE\s+)?{_NAME}", re.IGNORECASE)
_TRUNCATE_PART = re.compile(
    rf"\s*ALTER\s+TABLE\s+{_NAME}\s+TRUNCATE\s+PARTITION\s+(\w+)", re.IGNORECASE
)
_XA = re.compile(
    r"\s*XA\s+(START|BEGIN|END|COMMIT|ROLLBACK)\s+(.*?)\s*$", re.IGNORECASE | re.DOTALL
)


class BinlogTruth:
    """Reads a binlog from a place to its end.

    Args:
        connect: arguments for PyMySQL.
        keys: table → columns that its rows are matched by.
        audit: the table whose inserts say what the application did.
        padded: table and column → bytes of a ``BINARY(n)``.
        binary: names of columns of bytes.
        json: names of columns that hold JSON in binary form.
        parts: the partitions of tables that may be truncated: name → what a row of it has, as
            the audit tells it.
        columns: where the log lacks names: of each table, names and types (`COLUMN_TYPE`).
    """

    def __init__(
        self,
        connect: Mapping[str, Any],
        keys: Mapping[str, tuple[str, ...]],
        audit: str,
        *,
        padded: Mapping[tuple[str, str], int],
        binary: Collection[str],
        json: Collection[str],
        parts: Mapping[str, str],
        columns: Mapping[str, Sequence[tuple[str, str]]] | None = None,
    ) -> None:
        self._connect = dict(connect)
        self._keys = keys
        self._audit = audit
        self._padded = padded
        self._binary = binary
        self._json = json
        self._parts = parts
        self._columns = columns
        self._open: Transaction | None = None
        self._xa = ""
        self._prepared: dict[str, Transaction] = {}
        self._position = self._commit_us = 0

    def read(self, name: str, offset: int) -> list[Transaction]:
        """Transactions that touch the tables or the audit, from a place between two."""
        from pymysqlreplication import BinLogStreamReader, row_event

        _pass_over_unknown_variables()

        class Metadata(row_event.OptionalMetaData):  # type: ignore[misc]
            """MySQL 8.0.12 leaves the character sets of enums out: they are the tables'."""

            def __init__(self) -> None:
                super().__init__()
                self.enum_and_set_collation_list = [_UTF8MB4] * 4096

        row_event.OptionalMetaData = Metadata
        if self._columns and not hasattr(row_event.TableMapEvent, "_logged_column_info"):
            row_event.TableMapEvent._logged_column_info = row_event.TableMapEvent._sync_column_info
        if self._columns:
            row_event.TableMapEvent._sync_column_info = _with_names(self._columns)
        elif hasattr(row_event.TableMapEvent, "_logged_column_info"):
            row_event.TableMapEvent._sync_column_info = row_event.TableMapEvent._logged_column_info
        stream = BinLogStreamReader(
            connection_settings=self._connect,
            pymysql_wrapper=_connect,
            server_id=4_000_000_000,
            log_file=name,
            log_pos=offset,
            resume_stream=True,
            blocking=False,
            enable_logging=False,
            filter_non_implemented_events=True,
        )
        found: list[Transaction] = []
        try:
            for event in stream:
                found += self._event(event, stream.log_file)
        finally:
            stream.close()
        return [transaction for transaction in found if transaction.changes or transaction.audit]

    def _event(self, event: Any, file: str) -> Iterator[Transaction]:
        kind = type(event).__name__
        if kind in ("GtidEvent", "MariadbGtidEvent"):
            self._position = pack_position(
                parse_file_name(file)[1], event.packet.log_pos - _size(event)
            )
            self._commit_us = event.timestamp * 1_000_000
            if kind == "GtidEvent" and event.lt_type == 2:
                stamp = int.from_bytes(event.packet.read(7), "little") & _MICROSECONDS
                self._commit_us = stamp or self._commit_us
            self._open = Transaction(self._position, self._position, self._commit_us)
            self._xa = ""
        elif kind in ("WriteRowsEvent", "UpdateRowsEvent", "DeleteRowsEvent"):
            self._rows(event, kind)
        elif kind == "XidEvent":
            yield from self._close()
        elif kind == "XAPrepareEvent":
            assert self._open is not None
            if event.one_phase:
                yield from self._close()
            else:
                self._prepared[self._xa] = self._open
                self._open = None
        elif kind == "QueryEvent":
            yield from self._query(event)

    def _close(self) -> Iterator[Transaction]:
        if self._open is not None:
            yield self._open
        self._open = None

    def _query(self, event: Any) -> Iterator[Transaction]:
        sql = event.query
        word = sql.split(None, 1)[0].upper() if sql.split() else ""
        if word in ("BEGIN", "SAVEPOINT", "ROLLBACK"):
            return
        if word == "COMMIT":
            yield from self._close()
        elif match := _XA.match(sql):
            how, xid = match[1].upper(), match[2]
            if how in ("START", "BEGIN", "END"):
                self._xa = xid
                return
            prepared = self._prepared.pop(xid.removesuffix(" ONE PHASE"), None)
            if how == "COMMIT" and prepared is not None:
                yield self._decided(prepared)
            self._open = None
        else:
            self._statement(sql, event.schema.decode())
            yield from self._close()

    def _decided(self, prepared: Transaction) -> Transaction:
        position, commit_us = self._position, self._commit_us
        changes = [
            Change(c.op, c.table, c.payload, position, position, commit_us, c.new, c.old, c.key)
            for c in prepared.changes
        ]
        return Transaction(position, position, commit_us, changes, prepared.audit)

    def _statement(self, sql: str, database: str) -> None:
        if match := _TRUNCATE.match(sql):
            table = f"{match[1] if match[2] else database}.{match[2] or match[1]}"
            for prepared in self._prepared.values():
                # Only MySQL 8.0.12 truncates it then: their commit changes nothing in it.
                prepared.changes[:] = [c for c in prepared.changes if c.table != table]
                prepared.audit[:] = [each for each in prepared.audit if each["tbl"] != table]
            if table in self._keys:
                self._add("T", table, None, None)
        elif match := _TRUNCATE_PART.match(sql):
            table = f"{match[1] if match[2] else database}.{match[2] or match[1]}"
            assert self._open is not None
            self._open.audit.append(
                {"tbl": table, "op": "truncate-leaf", "key": self._parts[match[3]], "seq": "0"}
            )

    def _rows(self, event: Any, kind: str) -> None:
        table = f"{event.schema}.{event.table}"
        if table != self._audit and table not in self._keys:
            return
        assert self._open is not None
        for row in event.rows:
            if kind == "UpdateRowsEvent":
                old = self._row(table, row["before_values"], row["before_none_sources"])
                new = self._row(table, row["after_values"], row["after_none_sources"])
                self._add("U", table, completed(new, old), old)
                continue
            image = self._row(table, row["values"], row["none_sources"])
            if table == self._audit:
                self._open.audit.append(image)
            elif kind == "WriteRowsEvent":
                self._add("I", table, image, None)
            else:
                self._add("D", table, None, image)

    def _add(self, op: str, table: str, new: Row | None, old: Row | None) -> None:
        assert self._open is not None
        place = (self._open.position, self._open.xid, self._open.commit_us)
        self._open.changes.append(Change(op, table, b"", *place, new, old, self._keys[table]))

    def _row(self, table: str, values: Mapping[str, Any], absent: Mapping[str, str]) -> Row:
        return {
            name: UNCHANGED
            if absent.get(name) == "cols bitmap"
            else self._text(table, name, value, absent.get(name))
            for name, value in values.items()
        }

    def _text(self, table: str, name: str, value: Any, why: str | None) -> Value:
        if name in self._json and not (value is None and why == "null"):
            return canonical(plain(value))
        if value is None:
            return None
        if name in self._binary or isinstance(value, bytes):
            value = value or b""  # it has "" for no bytes
            return text_of_bytes(value.ljust(self._padded.get((table, name), 0), b"\0"))
        if isinstance(value, Decimal):
            return format(value, "f")
        if isinstance(value, datetime.datetime):
            return value.isoformat(" ", "microseconds")
        return str(value)


def _pass_over_unknown_variables() -> None:
    """MariaDB 11 has status variables of statements that python-mysql-replication does not know."""
    from pymysqlreplication.event import QueryEvent
    from pymysqlreplication.exceptions import StatusVariableMismatch

    if hasattr(QueryEvent, "_read_known_variable"):
        return
    QueryEvent._read_known_variable = QueryEvent._read_status_vars_value_for_key

    def read(event: Any, key: int) -> None:
        if not hasattr(event, "_variables_end"):
            event._variables_end = event.packet.read_bytes - 1 + event.status_vars_length
        try:
            event._read_known_variable(key)
        except StatusVariableMismatch:  # no length is told: the rest of them
            event.packet.advance(event._variables_end - event.packet.read_bytes)

    QueryEvent._read_status_vars_value_for_key = read


def _with_names(columns: Mapping[str, Sequence[tuple[str, str]]]) -> Callable[[Any], None]:
    def sync(event: Any) -> None:
        known, metadata = columns.get(f"{event.schema}.{event.table}"), event.optional_metadata
        if known is not None:
            metadata.column_name_list = [name for name, _ in known]
            metadata.set_enum_str_value_list = [
                labels(kind) for _, kind in known if kind.startswith("enum")
            ]
            event._TableMapEvent__optional_meta_data = True  # it would pass over what is logged
        event._logged_column_info()

    return sync


def _connect(*, db: str | None = None, **options: Any) -> Any:
    """PyMySQL's, with the argument's name of today."""
    return pymysql.connect(database=db, **options)


def _size(event: Any) -> int:
    return int(event.packet.event_size)
