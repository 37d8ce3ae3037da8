"""The dialect of PostgreSQL: column types, and INSERT … ON CONFLICT."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tidelog.codecs.postgres.session_settings import PINNED, set_statements
from tidelog.codecs.wire_formats import nan_key
from tidelog.errors import ConfigError, OutputError, OutputRefusedError, TidelogError
from tidelog.model.schema import Column, TableName, TableSchema, backticked, double_quoted
from tidelog.outputs.database import dialect
from tidelog.outputs.database.dialect import (
    DELETED,
    SHAPE,
    STILL_S,
    VERSION,
    DatabaseSession,
    FoundColumn,
    FoundTargetTable,
    RowsRefusedError,
    TableLayout,
    with_plain_names,
    without_nullability,
)

_SETTINGS: Mapping[str, str] = {
    "lock_timeout": "20s",
    "temp_buffers": "32MB",
    "client_min_messages": "error",
}
_COPY_S = 600
_DEFAULTS: Mapping[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}


class PostgresSession:
    """`tidelog.outputs.database.dialect.DatabaseSession` of PostgreSQL."""

    product = "PostgreSQL"

    def __init__(self, url: str, purpose: str) -> None:
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            raise ConfigError(
                "the output's url is not a valid PostgreSQL connection string: expected "
                "postgresql://user:password@host:port/database, with special characters in the "
                "password percent-encoded (@ is %40, / is %2F)"
            ) from None
        named: dict[str, Any] = {
            "application_name": f"tidelog-{purpose}",
            "client_encoding": PINNED["client_encoding"],
        }
        info = make_conninfo(**{**_DEFAULTS, **given, **named})
        try:
            self._connection = psycopg.connect(info, autocommit=True, prepare_threshold=None)
            version = self._connection.info.server_version
            idle = {"idle_in_transaction_session_timeout": f"{STILL_S}s"}
            self._connection.execute(set_statements({**_SETTINGS, **idle}, version))
        except psycopg.Error as error:
            raise _failed("can't connect", error) from None

    @property
    def usable(self) -> bool:
        return self._connection.info.transaction_status == pq.TransactionStatus.IDLE

    def rows(self, sql: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            statement = with_plain_names(sql) if arguments else sql
            cursor = self._connection.execute(statement.encode(), arguments or None)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise _failed(sql.split(" ", 1)[0], error) from None

    def holds_text(self, text: str) -> bool:
        """Can the database's encoding represent the text?"""
        try:
            self.rows("SELECT %s", (text,))
        except RowsRefusedError:
            return False
        return True

    def load(self, table: str, columns: Sequence[str], rows: pa.RecordBatch) -> None:
        from tidelog.outputs.database import texts  # compiled kernels, needed to write only

        written = []
        for column in rows.columns:
            text = texts.text(column)
            if pa.types.is_binary(column.type):
                text = texts.prefixed("\\\\x", text)
            written.append(text)
        names = ", ".join(map(double_quoted, columns))
        try:
            # To the server, a session that waits for rows is not idle.
            self._connection.execute(f"SET LOCAL statement_timeout = '{_COPY_S}s'".encode())
            with (
                self._connection.cursor() as cursor,
                cursor.copy(f"COPY {table} ({names}) FROM STDIN".encode()) as copy,
            ):
                copy.write(texts.lines(written))
            self._connection.execute(b"SET LOCAL statement_timeout = 0")
        except psycopg.Error as error:
            if error.sqlstate == _NO_CHARACTER:
                _check_zero_bytes(columns, rows)
            raise _failed("COPY", error, columns) from None

    def stage(self, layout: TableLayout, columns: Sequence[str]) -> str:
        listed = ", ".join(f"{double_quoted(name)} {layout.types[name]}" for name in columns)
        number = hashlib.sha256(listed.encode()).hexdigest()[:16]
        name = f"pg_temp.tidelog_{number}"
        self.rows(
            f"CREATE TEMP TABLE IF NOT EXISTS tidelog_{number} "
            f"({listed}, {VERSION} bigint, {SHAPE} smallint) ON COMMIT DELETE ROWS"
        )
        return name

    def lock(self, name: str) -> None:
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
        self.rows("SELECT pg_catalog.pg_advisory_xact_lock(%s)", (number,))

    def begin(self) -> None:
        self.rows("BEGIN")

    def commit(self) -> None:
        self.rows("COMMIT")

    def close(self) -> None:
        self._connection.close()


# SQLSTATE classes (manual, "PostgreSQL Error Codes").
_NO_CHARACTER = "22021"
_TOO_LONG = "54000"  # of an index's key or a page
_READ_ONLY = "25006"
_RAISED = "P0001"  # by a trigger of the user's
_OF_VALUES = ("22", "23", _TOO_LONG, _RAISED)
_OF_RIGHTS_AND_NAMES = ("0A", "28", "3D", "3F", "42")


def _copied_column(error: psycopg.Error, columns: Sequence[str]) -> str | None:
    """Return the column whose value COPY refused. The context is `COPY t, line 1, column c: "…"`;
    None where the server's messages are translated.
    """
    context = error.diag.context or ""
    start = re.match(r"COPY \S+, line \d+, column ", context)
    rest = context[start.end() :] if start else ""
    return max((name for name in columns if rest.startswith(f"{name}: ")), key=len, default=None)


def _check_zero_bytes(columns: Sequence[str], rows: pa.RecordBatch) -> None:
    for name, column in zip(columns, rows.columns, strict=True):
        if pa.types.is_string(column.type) and pc.any(pc.match_substring(column, "\0")).as_py():
            raise RowsRefusedError(
                f"column {name} has a text with a zero byte (U+0000), which PostgreSQL can't "
                f"store: replace it by a step, {{compute: {{{json.dumps(name)}: "
                f"\"replace({backticked(name)}, char(0), '')\"}}}}, or exclude the column by "
                "source.exclude_columns"
            ) from None


def _failed(what: str, error: psycopg.Error, copied: Sequence[str] = ()) -> TidelogError:
    """Return our error, without cell values: for errors of values only the name.

    ``copied``: the columns of a COPY.
    """
    state = error.sqlstate or ""
    if state.startswith(_OF_VALUES):
        where = [
            f"{part} {name}"
            for part, name in (
                ("column", error.diag.column_name or _copied_column(error, copied)),
                ("constraint", error.diag.constraint_name),
            )
            if name
        ]
        kind = "too long" if state == _TOO_LONG else type(error).__name__
        return RowsRefusedError(" ".join([f"{kind} ({state})", *where]))
    said = error.diag.message_primary or (str(error).strip() if not state else "")
    text = f"PostgreSQL: {what}: {said or type(error).__name__}"
    if state.startswith(_OF_RIGHTS_AND_NAMES):
        return OutputRefusedError(text)
    # libpq gives the reason of a failed connection only as text.
    if not state and "no password supplied" in said:
        return OutputRefusedError(
            f"{text}: put one in the output's url, such as ${{NAME}} from the environment"
        )
    if not state and re.search(r"authentication failed|does not exist|no pg_hba", said):
        return OutputRefusedError(text)
    if state == _READ_ONLY:
        text += (
            ". It is a standby, or default_transaction_read_only is on for the database, the role "
            "or the server: rows are written once it is not"
        )
    return OutputError(text)


# Arrow type → ours, for columns that we create.
_TYPES = {
    "bool": "boolean",
    "int8": "smallint",
    "int16": "smallint",
    "int32": "integer",
    "int64": "bigint",
    "float": "real",
    "double": "double precision",
    "date32[day]": "date",
    "timestamp[us]": "timestamp without time zone",
    "timestamp[us, tz=UTC]": "timestamp with time zone",
    "binary": "bytea",
    "string": "text",
}
# Source's types that are delivered as text, by kind of source → ours, which parse that very text.
# Lengths and fields (of intervals) are omitted: a source may widen them without a change in the
# log's types.
_SAME = [
    "uuid", "json", "jsonb", "jsonpath", "pg_lsn", "xml",
    "inet", "cidr", "macaddr", "macaddr8", "interval", "numeric", "tsvector", "tsquery",
    "time without time zone", "time with time zone", "bit varying",
    "point", "line", "lseg", "box", "path", "polygon", "circle",
    "int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange",
    "int4multirange", "int8multirange", "nummultirange", "datemultirange", "tsmultirange",
    "tstzmultirange",
]  # fmt: skip
_ELEMENTS = [
    "boolean", "smallint", "integer", "bigint", "real", "double precision", "date", "bytea", "text",
    "timestamp without time zone", "timestamp with time zone",
]  # fmt: skip
_EXACT: Mapping[str, Mapping[str, str]] = {
    "postgres": {
        **{name: name for name in _SAME},
        **{f"{name}[]": f"{name}[]" for name in (*_SAME, *_ELEMENTS)},
        "bit": "bit varying",
        "bit[]": "bit varying[]",
        **dict.fromkeys(("character varying[]", "character[]", "name[]"), "text[]"),
    },
    "mysql": {"json": "json", "decimal": "numeric"},
    "mariadb": {"decimal": "numeric", "uuid": "uuid", "inet4": "inet", "inet6": "inet"},
}
_OPTIONAL = re.compile(r"\([^)]*\)|(?<=^interval) [a-z ]+")
# A column's type → Arrow types all of whose values it stores; for any other type, only text.
_INTEGERS = ("int8", "int16", "int32", "int64")
_TAKES: Mapping[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "int2": _INTEGERS[:2],
    "int4": _INTEGERS[:3],
    "int8": _INTEGERS,
    "float4": ("int8", "int16", "float"),
    "float8": (*_INTEGERS[:3], "float", "double"),
    "numeric": (*_INTEGERS, "float", "double", "string"),
    "date": ("date32[day]",),
    "timestamp": ("date32[day]", "timestamp[us]", "timestamp[us, tz=UTC]"),
    "timestamptz": ("date32[day]", "timestamp[us]", "timestamp[us, tz=UTC]"),
    "bytea": ("binary",),
}
_TEXTS = ("text", "varchar", "bpchar", "citext")
_NUMBER_BASES = ("int2", "int4", "int8", "float4", "float8", "numeric")
_NAME_BYTES = 63
_WHOLE_NUMBERS = ("smallint", "integer", "bigint")
# Values of these types are equal only if they are written alike.
_EXACT_KEYS = (*_WHOLE_NUMBERS, "text", "character varying", "uuid", "bytea", "date", "boolean")
_NUMBERS = ("smallint", "integer", "bigint", "real", "double precision", "numeric")

_HSTORE = """
SELECT n.nspname, t.typname FROM pg_catalog.pg_extension e
JOIN pg_catalog.pg_type t ON t.typname = e.extname AND t.typnamespace = e.extnamespace
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
WHERE e.extname = 'hstore' AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
"""
_TABLE = """
SELECT c.oid::bigint, c.relkind::text, (SELECT conname FROM pg_catalog.pg_constraint
  WHERE contype = 'f' AND c.oid IN (conrelid, confrelid) ORDER BY conname LIMIT 1)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""
_RIGHTS = """
SELECT n.nspname, c.relname, pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
  ARRAY(SELECT p FROM unnest(%s::text[]) WITH ORDINALITY u(p, place)
    WHERE NOT pg_catalog.has_table_privilege(c.oid, p) ORDER BY place),
  pg_catalog.pg_has_role(c.relowner, 'USAGE'), quote_ident(current_user)
FROM unnest(%s::text[], %s::text[]) t(namespace, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = t.namespace
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.name
ORDER BY 1, 2
"""
_COLUMNS = """
SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), coalesce(b.typname, t.typname),
  a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', a.attgenerated <> '',
  coalesce(b.typname, t.typname) = 'citext' OR coalesce(NOT l.collisdeterministic, false),
  coalesce(b.typname, t.typname) = 'bpchar'
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_type b ON b.oid = t.typbasetype AND t.typtype = 'd'
LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE = """
SELECT array_agg(a.attname::text ORDER BY k.place), bool_or(i.indpred IS NOT NULL
  OR NOT i.indimmediate OR a.attname IS NULL)
FROM pg_catalog.pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY k(n, place)
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.n
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND k.place <= i.indnkeyatts
GROUP BY i.indexrelid
"""


@dataclass(frozen=True)
class Postgres:
    """`tidelog.outputs.database.dialect.Dialect` of PostgreSQL; ``url`` as libpq reads it."""

    url: str = field(repr=False)
    share_lock = "FOR SHARE"
    version_type = "bigint"
    ignores_case = False
    exact_text = ""
    own_values = "OVERRIDING SYSTEM VALUE "
    texts = _TEXTS
    digits = 6

    def key_as_text(
        self, rows: pa.RecordBatch, key: Sequence[str], source: TableSchema
    ) -> pa.RecordBatch:
        for name in key if nan_key(source) else ():
            values = rows.column(name)
            if pa.types.is_decimal(values.type) and values.null_count:
                place = rows.schema.get_field_index(name)
                rows = rows.set_column(place, name, pc.fill_null(values.cast(pa.string()), "NaN"))
        return rows

    def connect(self, purpose: str) -> PostgresSession:
        return PostgresSession(self.url, purpose)

    def quoted(self, *names: str) -> str:
        return double_quoted(*names)

    def type_of(
        self,
        session: PostgresSession,
        field: pa.Field,
        source: Column | None,
        kind: str,
        *,
        key: Sequence[pa.Field],
    ) -> str | None:
        if pa.types.is_decimal(field.type):
            return f"numeric({field.type.precision},{field.type.scale})"
        if source is not None and pa.types.is_string(field.type):
            name = _OPTIONAL.sub("", source.type_name.lower()).strip()
            if kind == "postgres" and (name == "hstore" or name.endswith(".hstore")):
                found = session.rows(_HSTORE)
                return self.quoted(*found[0]) if found else "text"
            return _EXACT.get(kind, {}).get(name, "text")
        return _TYPES.get(str(field.type))

    def holds(self, base: str, sql_type: str, field: pa.Field) -> bool:
        if base in _TEXTS:
            return not pa.types.is_binary(field.type)
        limits = re.search(r"\((\d+),(-?\d+)\)", sql_type) if base == "numeric" else None
        if limits is not None and pa.types.is_floating(field.type):
            return False
        if base == "numeric" and pa.types.is_decimal(field.type):
            if limits is None:
                return True
            precision, scale = int(limits[1]), int(limits[2])
            kind = field.type
            fits = scale >= kind.scale and precision - scale >= kind.precision - kind.scale
            return bool(fits)
        return str(field.type) in _TAKES.get(base, ("string",))

    def folds_tables(self, session: PostgresSession) -> bool:
        return False

    def name_fault(self, session: PostgresSession, name: str) -> str | None:
        """Return why PostgreSQL can't have the name. It cuts long names silently: two tables or
        columns would be one.
        """
        if len(name.encode()) > _NAME_BYTES:
            return f"has more than {_NAME_BYTES} bytes, which PostgreSQL would cut"
        if name.isascii() or session.holds_text(name):
            return None
        return "has characters that the database's encoding does not have"

    def default_namespace(self, session: PostgresSession) -> str:
        return "public"

    def create_namespace(self, session: PostgresSession, name: str) -> None:
        # IF NOT EXISTS requires the right to create a schema even if it exists.
        if not session.rows("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s", (name,)):
            if missing := self.missing_grants(session, {name}):
                raise OutputRefusedError(
                    f"the output's role may not create the schema {name}. Let the owner of the "
                    f"database run: {missing[0].rstrip(';')}"
                )
            session.rows(f"CREATE SCHEMA IF NOT EXISTS {self.quoted(name)}")

    def find_table(
        self, session: PostgresSession, namespace: str, name: str
    ) -> FoundTargetTable | None:
        table = session.rows(_TABLE, (namespace, name))
        if not table:
            return None
        oid, kind, foreign_key = table[0]
        obstacle = None
        if kind not in ("r", "p"):
            obstacle = "is no table but another kind of relation"
        elif foreign_key is not None:
            obstacle = (
                f"is part of the foreign key {foreign_key}, which rows that come in another order "
                "than in the source would break. Drop it, and create it again when the output has "
                "ended"
            )
        unique = session.rows(_UNIQUE, (oid,))
        return FoundTargetTable(
            tuple(FoundColumn(*row) for row in session.rows(_COLUMNS, (oid,))),
            tuple(() if special else tuple(names) for names, special in unique),
            obstacle,
        )

    def rename(self, session: PostgresSession, column: FoundColumn, name: str) -> str:
        return f"RENAME COLUMN {self.quoted(column.name)} TO {self.quoted(name)}"

    def widen(self, column: str, sql_type: str) -> str:
        return f"ALTER COLUMN {column} TYPE {without_nullability(sql_type)}"

    def convert(self, column: str, base: str, sql_type: str) -> str:
        """Return the ALTER TABLE action. PostgreSQL by itself only makes conversions that need no
        explicit cast.
        """
        plain = without_nullability(sql_type)
        to_number = plain.startswith(_NUMBERS)
        if base.startswith("timestamp") and plain.startswith("timestamp"):
            value = f"{column} AT TIME ZONE 'UTC'"
        elif plain == "bytea":
            value = column if base == "bytea" else f"convert_to({column}::text, 'UTF8')"
        elif base == "bytea":
            value = f"convert_from({column}, 'UTF8')::{plain}"
        elif base == "bool" and to_number:
            value = f"{column}::integer::{plain}"
        elif base.startswith("_") and plain in ("json", "jsonb"):  # an array
            value = f"to_json({column})::{plain}"
        elif base in _NUMBER_BASES and plain == "boolean":
            value = f"{column} <> 0"
        elif base in _TEXTS or plain == "text" or (base in _NUMBER_BASES and to_number):
            value = f"{column}::{plain}"
        else:
            value = f"{column}::text::{plain}"
        return f"{self.widen(column, sql_type)} USING {value}"

    def missing_grants(self, session: DatabaseSession, schemas: Collection[str]) -> list[str]:
        """Return the GRANTs without which the role can't create tables in these schemas, nor the
        schemas that are missing.
        """
        found = session.rows(
            "SELECT n.oid IS NULL, quote_ident(s.name), quote_ident(current_database()), "
            "quote_ident(current_user) FROM unnest(%s::text[]) s(name) "
            "LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = s.name "
            "WHERE NOT coalesce(has_schema_privilege(n.oid, 'USAGE') AND "
            "has_schema_privilege(n.oid, 'CREATE'), "
            "has_database_privilege(current_database(), 'CREATE')) ORDER BY s.name",
            (sorted(schemas),),
        )
        grants = [
            f"GRANT CREATE ON DATABASE {database} TO {role};"
            if missing
            else f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {role};"
            for missing, schema, database, role in found
        ]
        return list(dict.fromkeys(grants))

    def missing_table_grants(
        self,
        session: DatabaseSession,
        tables: Mapping[TableName, Sequence[str]],
        privileges: Sequence[str],
    ) -> list[str]:
        """Return the statements without which the role can't write these tables of other owners.

        Args:
            session: the role's.
            tables: existing ones, each with the columns that it lacks, as ALTER TABLE adds them.
            privileges: what the role needs of each.
        """
        names = [table.namespace for table in tables], [table.name for table in tables]
        found = session.rows(_RIGHTS, (list(privileges), *names))
        statements: list[str] = []
        for namespace, name, usage, missing, owns, role in found:
            table = self.quoted(namespace, name)
            if not usage:
                statements.append(f"GRANT USAGE ON SCHEMA {self.quoted(namespace)} TO {role};")
            if missing:
                statements.append(f"GRANT {', '.join(missing)} ON {table} TO {role};")
            columns = tables[TableName(namespace, name)]
            if columns and not owns:
                added = ", ".join(f"ADD COLUMN {column}" for column in columns)
                statements.append(f"ALTER TABLE {table} {added};")
        return list(dict.fromkeys(statements))

    def upsert(self, layout: TableLayout, present: Sequence[str], stage: str) -> list[str]:
        table = self.quoted(layout.namespace, layout.name)
        tombstones = self.quoted(layout.own, layout.deleted_keys)
        key = ", ".join(self.quoted(name) for name in layout.key)
        names = [self.quoted(name) for name in present]
        columns = [*names, VERSION]
        values = [f"s.{name}" for name in columns]
        # 1.5 and 1.50 are one key. No two integers are, and those may be identities.
        kept = [name for name in layout.key if layout.types[name].startswith(_WHOLE_NUMBERS)]
        changes = dialect.assignments(self, [name for name in present if name not in kept])
        updates = [f"{name} = {value.replace('s.', 'excluded.', 1)}" for name, value in changes]
        newer = f"t.{VERSION} IS NULL OR t.{VERSION} < excluded.{VERSION}"
        if layout.soft:
            columns.append(DELETED)
            values.append("false")
            updates.append(f"{DELETED} = false")
            newer += f" OR (t.{DELETED} AND t.{VERSION} = excluded.{VERSION})"
        # An update from 1.5 to 1.50 is a delete and a write of one version, in any order.
        return [
            f"INSERT INTO {table} AS t ({', '.join(columns)}) {self.own_values}"
            f"SELECT {', '.join(values)} FROM {self._newest(layout, stage, dialect.WHOLE)} s "
            f"WHERE NOT EXISTS (SELECT FROM {tombstones} g "
            f"WHERE {dialect.same_key(self, layout, 'g', 's')} "
            f"AND g.{VERSION} > s.{VERSION}) "
            f"ON CONFLICT ({key}) DO UPDATE SET {', '.join(updates)} "
            f"WHERE {newer}"
        ]

    def update(
        self, layout: TableLayout, changes: Sequence[tuple[str, str]], stage: str, where: str
    ) -> str:
        listed = ", ".join(f"{name} = {value}" for name, value in changes)
        return (
            f"UPDATE {self.quoted(layout.namespace, layout.name)} AS t SET {listed} "
            f"FROM {stage} s WHERE {dialect.same_key(self, layout, 't', 's')} AND {where}"
        )

    def delete(self, layout: TableLayout, stage: str, where: str) -> str:
        return (
            f"DELETE FROM {self.quoted(layout.namespace, layout.name)} AS t "
            f"USING {stage} s WHERE {dialect.same_key(self, layout, 't', 's')} AND {where}"
        )

    def write_tombstones(self, layout: TableLayout, stage: str) -> str:
        key = ", ".join(self.quoted(name) for name in layout.key)
        return (
            f"INSERT INTO {self.quoted(layout.own, layout.deleted_keys)} AS g ({key}, {VERSION}) "
            f"SELECT {key}, {VERSION} FROM {self._newest(layout, stage, dialect.DELETE)} s "
            f"ON CONFLICT ({key}) DO UPDATE SET {VERSION} = excluded.{VERSION} "
            f"WHERE g.{VERSION} < excluded.{VERSION}"
        )

    def _newest(self, layout: TableLayout, stage: str, shape: int) -> str:
        """Return a query of the staged rows of a shape, the newest of each key: 1.5 and 1.50 come
        as two keys and are one here, and an INSERT must not meet a row twice.
        """
        key = ", ".join(self.quoted(name) for name in layout.key)
        exact = all(layout.types[name].startswith(_EXACT_KEYS) for name in layout.key)
        first = "" if exact else f"DISTINCT ON ({key}) "
        order = "" if exact else f" ORDER BY {key}, {VERSION} DESC"
        return f"(SELECT {first}* FROM {stage} WHERE {SHAPE} = {shape}{order})"
