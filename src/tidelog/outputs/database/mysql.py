"""MySQL and MariaDB: what goes where, and UPDATE and INSERT of what is not there.

Not INSERT … ON DUPLICATE KEY UPDATE, which takes a row for the same if any unique index says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tidelog.codecs import invalid_dates
from tidelog.codecs.mysql.texts import exact_texts
from tidelog.codecs.mysql.types import WIRE_FORMAT as BINLOG
from tidelog.errors import ConfigError
from tidelog.model.mysql_urls import parse_url
from tidelog.model.schema import Column, TableSchema
from tidelog.outputs.database import merging
from tidelog.outputs.database.dialect import with_digits
from tidelog.outputs.database.layout import (
    DELETED,
    SHAPE,
    VERSION,
    FoundColumn,
    FoundTargetTable,
    TableLayout,
)
from tidelog.outputs.database.mysql_session import MySqlSession

_TYPES = {
    "bool": "boolean",
    "int8": "smallint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "double": "double",
    "date32[day]": "date",
    "timestamp[us]": "datetime(6)",
    "timestamp[us, tz=UTC]": "datetime(6)",
    "binary": "longblob",
    "string": "longtext CHARACTER SET utf8mb4",
}
# Source's types, by kind of source → ours, which read that very text.
_EXACT: Mapping[str, Mapping[str, str]] = {
    "postgres": {
        "uuid": "varchar(36) CHARACTER SET utf8mb4",
        "time without time zone": "time(6)",
    },
    "mysql": {
        "json": "json",
        "time": "time(6)",
        "timestamp": "timestamp(6)",
        "bigint unsigned": "bigint unsigned",
    },
}
# A column's type → Arrow types that it takes every value of; of any other, text alone.
_INTEGERS = ("bool", "int8", "int16", "int32", "int64")
_TAKES: Mapping[str, tuple[str, ...]] = {
    "tinyint": _INTEGERS[:2],
    "smallint": _INTEGERS[:3],
    "mediumint": _INTEGERS[:3],
    "int": _INTEGERS[:4],
    "bigint": _INTEGERS,
    "float": (*_INTEGERS[:3], "float"),
    "double": (*_INTEGERS[:4], "float", "double"),
    "decimal": ("string",),
    "date": ("date32[day]",),
    "datetime": ("date32[day]", "timestamp[us]", "timestamp[us, tz=UTC]"),
    "timestamp": ("timestamp[us]", "timestamp[us, tz=UTC]"),
    **dict.fromkeys(
        ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), ("binary",)
    ),
}
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_KEY_LENGTH, _LONGEST_KEY = 255, 768  # characters: of a key's texts; 3072 bytes an index
_LONG_KEYS, _SHORT_KEYS = 740, 240  # of all texts of a key beside other columns; of 1024 bytes
_MAX_SCALE = 30
_NAME_LENGTH = 64

_TABLE = """
SELECT table_type, engine, (SELECT MIN(constraint_name) FROM information_schema.key_column_usage k
  WHERE k.referenced_table_name IS NOT NULL
  AND ((k.table_schema = t.table_schema AND k.table_name = t.table_name)
    OR (k.referenced_table_schema = t.table_schema AND k.referenced_table_name = t.table_name)))
FROM information_schema.tables t WHERE table_schema = %s AND table_name = %s
"""
_COLUMNS = """
SELECT column_name, column_type, data_type, is_nullable, column_default, extra, character_set_name,
  collation_name
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s
ORDER BY ordinal_position
"""
_UNIQUE = """
SELECT index_name, column_name, sub_part FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND non_unique = 0 ORDER BY index_name, seq_in_index
"""


@dataclass(frozen=True)
class MySql:
    """`tidelog.outputs.database.dialect.Dialect`; ``url`` as `tidelog.model.mysql_urls` reads
    it.
    """

    url: str = field(repr=False)
    share_lock = "LOCK IN SHARE MODE"
    version_type = "bigint"
    ignores_case = True
    exact_text = " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    digits = 0

    def spelled(
        self, rows: pa.RecordBatch, key: Sequence[str], source: TableSchema
    ) -> pa.RecordBatch:
        if source.wire_format != BINLOG:
            return rows
        for name in key:
            values = rows.column(name)
            if pa.types.is_temporal(values.type) and invalid_dates.any_unreal(values):
                place = rows.schema.get_field_index(name)
                rows = rows.set_column(place, name, invalid_dates.texts(values))
        return rows

    def connect(self, purpose: str) -> MySqlSession:
        try:
            return MySqlSession(parse_url(self.url), purpose)
        except ConfigError as error:
            raise ConfigError(str(error).replace("source.url", "the output's url")) from None

    def quoted(self, *names: str) -> str:
        return ".".join("`" + name.replace("`", "``") + "`" for name in names)

    def type_of(
        self,
        session: MySqlSession,
        field: pa.Field,
        source: Column | None,
        kind: str,
        *,
        key: Sequence[pa.Field],
    ) -> str | None:
        named = "" if source is None else source.type_name.lower()
        bare = re.sub(r"\([^)]*\)", "", named).strip()
        exact = _EXACT.get("mysql" if kind == "mariadb" else kind, {}).get(bare)
        if exact is not None:
            return exact
        field = with_digits(field, source)
        if pa.types.is_decimal(field.type):
            if field.type.scale <= _MAX_SCALE:
                return f"decimal({field.type.precision},{field.type.scale})"
            return "varchar(100) CHARACTER SET utf8mb4"
        if key and (pa.types.is_string(field.type) or pa.types.is_binary(field.type)):
            length = re.search(r"\((\d+)\)", named)
            wanted = int(length[1]) if length else 0
            if len(key) == 1 and source is not None and kind in ("mysql", "mariadb"):
                wanted = max(wanted, exact_texts.longest(source))
            size = _key_length(wanted, key, long=session.long_keys)
            if pa.types.is_binary(field.type):
                return f"varbinary({size})"
            return f"varchar({size}) CHARACTER SET utf8mb4 COLLATE {session.key_collation}"
        return _TYPES.get(str(field.type))

    def holds(self, base: str, sql_type: str, field: pa.Field) -> bool:
        if base in _TEXTS:
            return not pa.types.is_binary(field.type)
        numbers = [int(each) for each in re.findall(r"\d+", sql_type)]
        if base == "decimal":
            precision, scale = numbers[0], numbers[1]
            kind = field.type
            if pa.types.is_decimal(kind):
                fits = scale >= kind.scale and precision - scale >= kind.precision - kind.scale
                return bool(fits)
            if pa.types.is_integer(kind):
                return precision - scale >= len(str(2 ** (kind.bit_width - 1)))
        if base == "bigint" and "unsigned" in sql_type and str(field.type) == "decimal128(20, 0)":
            return True
        return str(field.type) in _TAKES.get(base, ("string",))

    def folds_tables(self, session: MySqlSession) -> bool:
        return session.folds_tables

    def name_fault(self, session: MySqlSession, name: str) -> str | None:
        """See the manual, "Schema Object Names"."""
        if len(name) > _NAME_LENGTH:
            return f"has more than {_NAME_LENGTH} characters, which {session.product} refuses"
        if name.endswith(" "):
            return f"ends in a space, which {session.product} refuses"
        if any(character > "\uffff" for character in name):
            return f"has characters beyond U+FFFF, which {session.product} refuses in names"
        return None

    def default_namespace(self, session: MySqlSession) -> str:
        found = parse_url(self.url).database
        if not found:
            raise ConfigError(
                "a step routes a table to a name without a database, and neither the output's url "
                "nor its `database` names one"
            )
        return found

    def create_namespace(self, session: MySqlSession, name: str) -> None:
        known = "SELECT 1 FROM information_schema.schemata WHERE schema_name = %s"
        if not session.rows(known, (name,)):
            quoted = self.quoted(name)
            session.rows(f"CREATE DATABASE IF NOT EXISTS {quoted} CHARACTER SET utf8mb4")

    def found(self, session: MySqlSession, namespace: str, name: str) -> FoundTargetTable | None:
        table = session.rows(_TABLE, (namespace, name))
        if not table:
            return None
        kind, engine, foreign_key = table[0]
        obstacle = None
        if kind != "BASE TABLE":
            obstacle = "is no table but another kind of relation"
        elif engine.lower() != "innodb":
            obstacle = f"is of the engine {engine}; only InnoDB has the transactions that we need"
        elif foreign_key is not None:
            obstacle = (
                f"is part of the foreign key {foreign_key}, which rows that come in another order "
                "than in the source would break. Drop it, and create it again when the output has "
                "ended"
            )
        unique: dict[str, tuple[str, ...]] = {}
        special = set()
        for index, column, part in session.rows(_UNIQUE, (namespace, name)):
            unique[index] = (*unique.get(index, ()), column)
            if column is None or part is not None:
                special.add(index)
        return FoundTargetTable(
            tuple(
                _column(session.key_collation, *row)
                for row in session.rows(_COLUMNS, (namespace, name))
            ),
            tuple(() if index in special else columns for index, columns in unique.items()),
            obstacle,
        )

    def rename(self, session: MySqlSession, column: FoundColumn, name: str) -> str:
        former, wanted = self.quoted(column.name), self.quoted(name)
        if session.renames_columns:
            return f"RENAME COLUMN {former} TO {wanted}"
        null = "NOT NULL" if column.needed else "NULL"
        return f"CHANGE COLUMN {former} {wanted} {column.sql_type} {null}"

    def widen(self, column: str, sql_type: str) -> str:
        return f"MODIFY COLUMN {column} {sql_type}"

    def convert(self, column: str, base: str, sql_type: str) -> str:
        return self.widen(column, sql_type)

    def upsert(self, layout: TableLayout, told: Sequence[str], stage: str) -> list[str]:
        table = self.quoted(layout.namespace, layout.name)
        gone = self.quoted(layout.own, layout.gone)
        whole = f"s.{SHAPE} = {merging.WHOLE}"
        changes = merging.changed(self, [name for name in told if name not in layout.key])
        columns = [*(self.quoted(name) for name in told), VERSION]
        values = [f"s.{name}" for name in columns]
        if layout.soft:
            changes.append((DELETED, "false"))
            columns.append(DELETED)
            values.append("false")
        return [
            self.update(layout, changes, stage, f"{whole} AND {merging.NEWER}"),
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)} "
            f"FROM {stage} s LEFT JOIN {table} t ON {merging.by_key(self, layout, 't', 's')} "
            f"LEFT JOIN {gone} g ON {merging.by_key(self, layout, 'g', 's')} "
            f"WHERE {whole} AND t.{self.quoted(layout.key[0])} IS NULL "
            f"AND (g.{VERSION} IS NULL OR g.{VERSION} < s.{VERSION})",
        ]

    def update(
        self, layout: TableLayout, changes: Sequence[tuple[str, str]], stage: str, where: str
    ) -> str:
        listed = ", ".join(f"t.{name} = {value}" for name, value in changes)
        return f"UPDATE {self._joined(layout, stage)} SET {listed} WHERE {where}"

    def delete(self, layout: TableLayout, stage: str, where: str) -> str:
        return f"DELETE t FROM {self._joined(layout, stage)} WHERE {where}"

    def write_tombstones(self, layout: TableLayout, stage: str) -> str:
        key = ", ".join(self.quoted(name) for name in layout.key)
        return (
            f"INSERT INTO {self.quoted(layout.own, layout.gone)} ({key}, {VERSION}) "
            f"SELECT {key}, {VERSION} FROM {stage} s WHERE {SHAPE} = {merging.DELETE} "
            f"ON DUPLICATE KEY UPDATE {VERSION} = GREATEST({self.quoted(layout.gone)}.{VERSION}, "
            f"s.{VERSION})"
        )

    def _joined(self, layout: TableLayout, stage: str) -> str:
        """In this order: the stage is small and has no index, the table is looked up by key."""
        table = self.quoted(layout.namespace, layout.name)
        return f"{stage} s STRAIGHT_JOIN {table} t ON {merging.by_key(self, layout, 't', 's')}"


def _key_length(wanted: int, key: Sequence[pa.Field], *, long: bool) -> int:
    """Characters of a text or bytes of the key; all of its columns must fit an index."""
    several: int = sum(pa.types.is_string(f.type) or pa.types.is_binary(f.type) for f in key)
    if not long:
        return _KEY_LENGTH if len(key) == 1 else _SHORT_KEYS // several
    if several > 2:
        return min(_KEY_LENGTH, _LONG_KEYS // several)
    most = _LONGEST_KEY if len(key) == 1 else _LONG_KEYS - (several - 1) * _KEY_LENGTH
    return max(_KEY_LENGTH, min(most, wanted))


def _column(
    best: str, name: str, sql_type: str, base: str, nullable: str, default: str | None, extra: str,
    charset: str | None, collation: str | None,
) -> FoundColumn:  # fmt: skip
    if charset is not None:
        sql_type += f" CHARACTER SET {charset} COLLATE {collation}"
    extra = extra.lower()
    # MySQL 8 says "DEFAULT_GENERATED" of an expression that is a default.
    computed = "generated" in extra.replace("default_generated", "")
    given = default is not None or "auto_increment" in extra or "default_generated" in extra
    needed = nullable == "NO" and not given and not computed
    alike = collation is not None and not collation.endswith("_bin")
    # A server whose best collation pads has nothing that would tell such texts apart.
    padded = collation is not None and (base.lower() == "char" or _pads(collation))
    padded = padded and not _pads(best)
    return FoundColumn(name, sql_type, base.lower(), needed, computed, alike, padded)


def _pads(collation: str) -> bool:
    """Does it compare texts as if they ended in any number of spaces?"""
    return re.search(r"_(0900|nopad)_", collation) is None and collation != "binary"
