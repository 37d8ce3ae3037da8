"""Finds captured tables that a statement may have changed without row events in the log.

A statement names one table and may change others: by triggers, views, stored functions, foreign
keys. Two things prove that none of them is captured:

- MySQL logs the databases that a statement used, including those of its triggers, views and
  functions.
- Otherwise the catalogue: the only table that the statement writes is a base table without
  triggers, and nothing that it reads can call a stored function. The catalogue is the current one,
  so the log from the statement to its end must hold no statement that removed such an object. The
  account must be able to see all of it: a server hides triggers from accounts without TRIGGER.

Everything else counts as a change of captured tables.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidelog.codecs.mysql.binlog.events import first_words
from tidelog.codecs.mysql.binlog.items import Alter, QuerySeen, RolledBackSeen
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.server_urls import ServerUrl
from tidelog.model.schema import TableName
from tidelog.ports import (
    LogEvent,
    RowsUnlogged,
    SchemaRegistry,
    SchemaSeen,
    TableRenamed,
    UnsupportedReason,
    UnsupportedTableSeen,
)
from tidelog.sources.mysql.catalogue.cascades import CascadeGraph, CascadeWatch, all_cascades
from tidelog.sources.mysql.connect import Connection
from tidelog.sources.mysql.ddl import Effect, Statement, TableEffect, Token, read_statement, tokens
from tidelog.sources.mysql.errors import translate_errors
from tidelog.sources.mysql.preflight.account import Grants
from tidelog.sources.mysql.stream.log_parts import queries, read_part
from tidelog.sources.mysql.stream.log_tables import CapturedTables, LogTables
from tidelog.sources.mysql.stream.positions import log_end, log_files
from tidelog.sources.mysql.stream.prepared_transactions import PreparedGroups
from tidelog.sources.mysql.stream.schema_history import SchemaHistory
from tidelog.sources.mysql.stream.temporary_tables import StatementPosition, TemporaryTables

WRITES = frozenset({Effect.WRITTEN, Effect.EMPTIED})
_NO_TRIGGERS_IN = "mysql"  # the servers refuse to create them there
_BASE_TABLES = ("BASE TABLE", "SYSTEM VERSIONED")
# A table of these engines has its own rows; a MERGE or FEDERATED table changes those of others.
_ENGINES = frozenset(
    "INNODB MYISAM ARIA MEMORY ARCHIVE CSV BLACKHOLE ROCKSDB TOKUDB COLUMNSTORE NDBCLUSTER".split()
)
_TABLE = """
SELECT TABLE_TYPE, ENGINE FROM information_schema.TABLES
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
"""
_TRIGGERS = """
SELECT TRIGGER_NAME FROM information_schema.TRIGGERS
WHERE EVENT_OBJECT_SCHEMA = %s AND EVENT_OBJECT_TABLE = %s
"""
_ALL_TABLES = """
SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES
WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')
"""
_VIEWS = """
SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE = 'VIEW'
"""
_KEPT_S = 1.0
"""How long tables and foreign keys are kept that were read: statements come by the thousand. A
change of them that is in the log is seen at once."""
_BY_SERVER = re.compile(r"DELETE FROM `(?:[^`]|``)+`\.`(?:[^`]|``)+`")
_CHANGES_CATALOGUE = frozenset({"CREATE", "ALTER", "DROP", "RENAME", "GRANT", "REVOKE"})
_HIDES = re.compile(r"\b(?:TRIGGER|VIEW|FUNCTION|FOREIGN|CONSTRAINT)\b", re.IGNORECASE)
_REPLACES = re.compile(r"\bOR\s+REPLACE\b", re.IGNORECASE)
_BEFORE_TABLE = frozenset(
    "INTO INSERT REPLACE IGNORE DELAYED LOW_PRIORITY HIGH_PRIORITY TABLE EXISTS".split()
)
_READS = frozenset({"SELECT", "TABLE", "WITH"})
# Words before a bracket that are no stored function: words of the grammar, and common functions of
# both servers. Any other function counts as a stored one.
# ruff: noqa: SIM905
_NOT_STORED = frozenset(
    """
    ALL AND ANY AS BETWEEN BY CASE DISTINCT DIV DUPLICATE ELSE EXCEPT EXISTS FROM HAVING IN
    INTERSECT INTERVAL JOIN KEY LIKE LIMIT MOD NOT ON OR OVER PARTITION RETURNING REGEXP RLIKE
    SELECT SET SOME THEN UNION USING VALUE VALUES WHEN WHERE WITH XOR BINARY ROW CHAR VARCHAR
    DECIMAL NUMERIC DATETIME TIME TIMESTAMP DATE YEAR INT INTEGER TINYINT SMALLINT MEDIUMINT
    BIGINT FLOAT DOUBLE BIT VARBINARY TEXT BLOB ENUM PRIMARY UNIQUE INDEX CHECK LINES ROWS ABS
    ACOS ADDDATE ADDTIME AES_DECRYPT AES_ENCRYPT ASCII ASIN ATAN ATAN2 AVG BIN BIT_AND BIT_COUNT
    BIT_LENGTH BIT_OR BIT_XOR CAST CEIL CEILING CHARACTER_LENGTH CHARSET CHAR_LENGTH COALESCE
    COERCIBILITY COLLATION COMPRESS CONCAT CONCAT_WS CONNECTION_ID CONV CONVERT CONVERT_TZ COS
    COT COUNT CRC32 CURDATE CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP CURRENT_USER CURTIME
    DATABASE DATEDIFF DATE_ADD DATE_FORMAT DATE_SUB DAY DAYNAME DAYOFMONTH DAYOFWEEK DAYOFYEAR
    DEFAULT DEGREES DENSE_RANK ELT EXP EXPORT_SET EXTRACT FIELD FIND_IN_SET FIRST_VALUE FLOOR
    FORMAT FOUND_ROWS FROM_BASE64 FROM_DAYS FROM_UNIXTIME GET_FORMAT GREATEST GROUP_CONCAT HEX
    HOUR IF IFNULL INET6_ATON INET6_NTOA INET_ATON INET_NTOA INSERT INSTR ISNULL JSON_ARRAY
    JSON_ARRAYAGG JSON_ARRAY_APPEND JSON_CONTAINS JSON_DEPTH JSON_EXTRACT JSON_INSERT JSON_KEYS
    JSON_LENGTH JSON_MERGE JSON_MERGE_PATCH JSON_MERGE_PRESERVE JSON_OBJECT JSON_OBJECTAGG
    JSON_QUOTE JSON_REMOVE JSON_REPLACE JSON_SEARCH JSON_SET JSON_TABLE JSON_TYPE JSON_UNQUOTE
    JSON_VALID JSON_VALUE LAG LAST_DAY LAST_INSERT_ID LAST_VALUE LCASE LEAD LEAST LEFT LENGTH LN
    LOCALTIME LOCALTIMESTAMP LOCATE LOG LOG10 LOG2 LOWER LPAD LTRIM MAKEDATE MAKETIME MAKE_SET
    MAX MD5 MICROSECOND MID MIN MINUTE MONTH MONTHNAME NAME_CONST NOW NTH_VALUE NTILE NULLIF OCT
    OCTET_LENGTH ORD PERCENT_RANK PERIOD_ADD PERIOD_DIFF PI POSITION POW POWER QUARTER QUOTE
    RADIANS RAND RANDOM_BYTES RANK REGEXP_INSTR REGEXP_LIKE REGEXP_REPLACE REGEXP_SUBSTR REPEAT
    REPLACE REVERSE RIGHT ROUND ROW_COUNT ROW_NUMBER RPAD RTRIM SCHEMA SECOND SEC_TO_TIME SHA
    SHA1 SHA2 SIGN SIN SOUNDEX SPACE SQRT STD STDDEV STDDEV_POP STDDEV_SAMP STRCMP STR_TO_DATE
    SUBDATE SUBSTR SUBSTRING SUBSTRING_INDEX SUBTIME SUM SYSDATE TAN TIMEDIFF TIMESTAMPADD
    TIMESTAMPDIFF TIME_FORMAT TIME_TO_SEC TO_BASE64 TO_DAYS TO_SECONDS TRIM TRUNCATE UCASE
    UNCOMPRESS UNHEX UNIX_TIMESTAMP UPPER USER UTC_DATE UTC_TIME UTC_TIMESTAMP UUID UUID_SHORT
    VARIANCE VAR_POP VAR_SAMP VERSION WEEK WEEKDAY WEEKOFYEAR YEARWEEK
    """.split()
)


@dataclass(frozen=True, slots=True)
class TouchedTables:
    """The tables that a statement may have changed besides those that it names.

    Attributes:
        objection: why captured tables can't be ruled out; None if they can.
        cascaded: captured tables whose rows foreign keys change with those of the named tables.
    """

    objection: str | None = None
    cascaded: tuple[TableName, ...] = ()


class AffectedTables:
    """Finds the tables that statements affect, for one log reader. Used by one thread.

    Args:
        url: the server, to read the log ahead.
        connected: returns an SQL connection.
        captured: the captured tables.
        cascades: report tables that foreign keys change.
    """

    def __init__(
        self,
        url: ServerUrl,
        connected: Callable[[], Connection],
        captured: CapturedTables,
        *,
        cascades: bool,
    ) -> None:
        self._url = url
        self._get_connection = connected
        self._captured = captured
        self._cascades = cascades
        self._tables: dict[TableName, TouchedTables] = {}
        self._views: frozenset[TableName] | None = None
        self._all: tuple[TableName, ...] | None = None  # captured tables
        self._graph: CascadeGraph | None = None
        self._read_at = 0.0  # when the earlier one of these two was read
        self._grants: Grants | None = None
        self._end = 0  # the log's end when `_catalogue_changes` was read
        self._catalogue_changes: list[tuple[int, Statement, bool]] = []

    def note(self, seen: QuerySeen) -> None:
        """Clear the cached catalogue if a statement of the stream changes the catalogue."""
        if seen.keyword in _CHANGES_CATALOGUE:
            self._all = self._graph = None
            if seen.end > self._end:
                self.forget()

    def forget(self) -> None:
        """Read the catalogue and the log again, e.g. when the stream starts at another position."""
        self._tables.clear()
        self._views = self._grants = self._all = self._graph = None
        self._end = 0
        self._catalogue_changes = []

    def by_statement(
        self, seen: QuerySeen, named: Statement, permanent: Statement
    ) -> TouchedTables:
        """The tables that a statement may have changed besides those that it names.

        Args:
            seen: the statement.
            named: its effects on the tables that it names.
            permanent: its effects on permanent tables.
        """
        if self._emptied_by_restart(seen):
            return TouchedTables()
        targets = [
            e.table
            for e in permanent.effects
            if e.effect in WRITES and e.table.namespace != _NO_TRIGGERS_IN
        ]
        if self._databases_are_not_captured(seen):  # MySQL does not count those of foreign keys
            with translate_errors("reading the foreign keys of a statement's tables"):
                return TouchedTables(None, self._cascaded_from(targets))
        if named.unclear:
            return TouchedTables("which tables it writes is not known from its text")
        objection = self._function_objection(seen, named)
        if objection is not None:
            return TouchedTables(objection)
        cascaded: list[TableName] = []
        for table in targets:
            found = self._tables.get(table)
            if found is None:
                with translate_errors(f"finding what writes of {table} change"):
                    found = self._tables[table] = self._read_table(table)
                self._search(seen.position)
            hidden = self._catalogue_objection(seen, table)
            if found.objection is not None or hidden is not None:
                return TouchedTables(found.objection or hidden)
            cascaded += found.cascaded
        return TouchedTables(None, tuple(cascaded))

    def all_captured(self) -> tuple[TableName, ...]:
        """All captured tables of the catalogue; one renamed or created since has its own report."""
        self._drop_old()
        if self._all is None:
            with translate_errors("reading which tables a statement may have changed"):
                rows = self._get_connection().rows(_ALL_TABLES)
            names = (TableName(str(schema), str(name)) for schema, name in rows)
            self._all = tuple(sorted(name for name in names if name in self._captured))
        return self._all

    def _drop_old(self) -> None:
        now = time.monotonic()
        if now - self._read_at >= _KEPT_S:
            self._all, self._graph, self._read_at = None, None, now

    # ------------------------------------------------------------------ by the log

    def _databases_are_not_captured(self, seen: QuerySeen) -> bool:
        return bool(seen.databases) and not any(
            map(self._captured.may_include, seen.databases or ())
        )

    def _emptied_by_restart(self, seen: QuerySeen) -> bool:
        """Return True for the DELETE that MySQL logs when it finds a MEMORY table empty after a
        restart. A session's statement would carry the databases that it used.
        """
        mysql = self._get_connection().flavor is Flavor.MYSQL
        return mysql and seen.databases is None and _BY_SERVER.fullmatch(seen.sql) is not None

    # ------------------------------------------------------------------ by the catalogue

    def _read_table(self, table: TableName) -> TouchedTables:
        sql = self._get_connection()
        pair = (table.namespace, table.name)
        row = sql.row(_TABLE, pair)
        missing = self._get_grants().missing(["TRIGGER"], *pair)
        if row is None and not missing:
            return TouchedTables(f"{table} no longer exists")
        if row is not None and str(row[0]) not in _BASE_TABLES:
            return TouchedTables(f"{table} is a {str(row[0]).lower()}")
        if missing:
            grant = self._get_grants().statement(missing, *pair)
            return TouchedTables(
                f"whether {table} has triggers is hidden from this account ({grant})"
            )
        assert row is not None
        engine = str(row[1]).upper()
        if engine not in _ENGINES:
            return TouchedTables(
                f"{table} is of the engine {row[1]}, which changes rows of other tables"
            )
        triggers = sorted(str(name) for (name,) in sql.rows(_TRIGGERS, pair))
        if triggers:
            return TouchedTables(f"{table} has the trigger {triggers[0]}")
        return TouchedTables(None, self._cascaded_from([table]))

    def _cascaded_from(self, tables: Sequence[TableName]) -> tuple[TableName, ...]:
        """The captured tables whose rows foreign keys change with those of ``tables``."""
        if not self._cascades or not tables:
            return ()
        self._drop_old()
        if self._graph is None:
            found = all_cascades(self._get_connection(), logged_too=True)
            self._graph = CascadeGraph(tuple(found))
        children = {
            child
            for table in tables
            for child in self._graph.affected_tables(table, deleted=True, updated=True)
        }
        return tuple(sorted(child for child in children if child in self._captured))

    def _function_objection(self, seen: QuerySeen, named: Statement) -> str | None:
        """Why the statement's reads may call a stored function, which may write any table."""
        words = list(tokens(seen.sql, seen.sql_mode))
        called = _first_call(words, _lower_names(named))
        if called is not None:
            return f"{called} may be a stored function that writes"
        if not any(token.kind == "word" and token.upper in _READS for token in words):
            return None
        names = {token.text for token in words if token.kind in ("word", "name")}
        if self._captured.fold:
            names |= {name.lower() for name in names}
        qualified = any(token.text == "." for token in words)
        database = None if qualified or not seen.database else seen.database
        missing = self._get_grants().missing(["SELECT"], database)
        if missing:
            return "which views it reads is hidden from this account"
        if self._views is None:
            with translate_errors("reading which views there are"):
                rows = self._get_connection().rows(_VIEWS)
            self._views = frozenset(
                TableName(str(schema), str(name))
                for schema, name in rows
                if str(schema) not in ("sys", "information_schema", "performance_schema")
            )
            self._search(seen.position)
        for view in sorted(self._views):
            if view.name in names and database in (None, view.namespace):
                return f"it may read the view {view}, which may call a stored function"
        return self._catalogue_objection(seen, None)

    def _get_grants(self) -> Grants:
        if self._grants is None:
            with translate_errors("reading what the account may do"):
                self._grants = Grants.of(self._get_connection())
        return self._grants

    # ------------------------------------------------------------------ from then to now

    def _catalogue_objection(self, seen: QuerySeen, table: TableName | None) -> str | None:
        """Why the catalogue may have been different when the statement ran."""
        for at, statement, hides in self._catalogue_changes:
            if at > seen.end and (
                hides
                or statement.database is not None
                or (table is not None and statement.reshapes(table))
            ):
                return "tables, views, triggers or stored functions were changed since"
        return None

    def _search(self, position: int) -> None:
        """Search the log from ``position`` to its current end, after the catalogue was read."""
        with translate_errors("reading the log ahead of a statement"):
            sql = self._get_connection()
            files, self._end = log_files(sql), log_end(sql).position
        self._catalogue_changes = []
        if self._end > position:
            for _, part in read_part(self._url, files, position, self._end):
                for at, _, query in queries(part):
                    self._note_ahead(at, query.text(), query.database, query.status.sql_mode)

    def _note_ahead(self, at: int, sql: str, database: str, sql_mode: int) -> None:
        keyword, _ = first_words(sql)
        if keyword not in ("DROP", "ALTER", "RENAME", "CREATE"):
            return
        statement = read_statement(sql, database, fold=self._captured.fold, sql_mode=sql_mode)
        replaces = keyword != "CREATE" or _REPLACES.search(sql) is not None
        hides = replaces and _HIDES.search(sql) is not None
        if hides or statement.effects or statement.database is not None:
            self._catalogue_changes.append((at, statement, hides))


def _first_call(words: list[Token], written: set[str]) -> str | None:
    """The first name before a bracket that is neither a written table nor a known word."""
    for at, (token, following) in enumerate(pairwise(words)):
        if following.text != "(" or following.kind != "mark" or token.kind not in ("word", "name"):
            continue
        qualified = at > 0 and words[at - 1].text == "."
        if token.kind == "word" and token.upper in _NOT_STORED and not qualified:
            continue
        begin = at - 2 if qualified else at
        names_table = begin > 0 and words[begin - 1].upper in _BEFORE_TABLE
        if not (names_table and token.text.lower() in written):  # INSERT INTO t (columns)
            return token.text
    return None


def _lower_names(statement: Statement) -> set[str]:
    """The names of the statement's tables, in lower case."""
    return {effect.table.name.lower() for effect in statement.effects}


# The statements of a stream.

TEMPORARY_OR_NOT = (
    "the binlog holds statements of this name that use temporary tables: whether they changed this "
    "table can't be known, so it is dumped"
)
EMPTIED = "the log holds a DELETE of all its rows as a statement, which may have been rolled back"
ROLLED_BACK = "a transaction was rolled back that the log holds rows of"
ONE_ENGINE = (
    "In a transaction that may roll back, create no temporary table, and write to no table of an "
    "engine without transactions, such as MyISAM (ALTER TABLE … ENGINE = InnoDB)."
)
ROW_FORMAT = "SET GLOBAL binlog_format = 'ROW'; -- sessions that are open keep theirs"


class LogStatements:
    """Processes the statements of one log. Used by one thread.

    Args:
        captured: the captured tables.
        tables: the tables that the stream has shown.
        registry: the tables' versions.
        history: the version of each table by position.
        temporary: the temporary tables of each session.
        cascades: receives DDL, if foreign keys are watched.
        affected: finds tables that statements change besides those that they name.
        prepared: receives the statements, for rows that are committed after them.
    """

    def __init__(
        self,
        captured: CapturedTables,
        tables: LogTables,
        registry: SchemaRegistry,
        history: SchemaHistory,
        temporary: TemporaryTables,
        cascades: CascadeWatch | None,
        affected: AffectedTables,
        prepared: PreparedGroups,
    ) -> None:
        self._captured = captured
        self._tables = tables
        self._registry = registry
        self._history = history
        self._temporary = temporary
        self._cascades = cascades
        self._affected = affected
        self._prepared = prepared

    def start(self) -> None:
        """Clear caches: the stream starts, possibly at another position."""
        self._affected.forget()

    def read(self, scanner: BinlogScanner, seen: QuerySeen) -> Iterator[LogEvent]:
        """The events of one statement of the stream."""
        if seen.alter in (Alter.START, Alter.ROLLBACK):
            return  # the statement has no effect yet, or was abandoned
        named = read_statement(
            seen.sql, seen.database, fold=self._captured.fold, sql_mode=seen.sql_mode
        )
        place = StatementPosition(
            seen.server_id, seen.thread, seen.end, seen.uses_temporary, seen.keyword
        )
        statement = self._temporary.permanent_effects(named, place)
        self._affected.note(seen)
        schemas = self._tables.schemas
        schemas.note_statement(statement, seen.end)
        self._prepared.note_statement(statement, seen.end)
        if not seen.durable:
            yield from self._unlogged_writes(seen, named, statement)
        if self._cascades is not None:
            yield from self._cascades.statement(scanner, statement, seen)
        if statement.database is not None:
            self._history.note_dropped(statement.database, seen.position)
        for effect in statement.effects:
            table = effect.table
            if table not in self._captured:
                continue
            if effect.effect is Effect.TRUNCATED:
                schema = schemas.any_version(table)
                batch = None if schema is None else scanner.truncate(schema.schema_id)
                if batch is not None and schema is not None:
                    self._temporary.save()
                    if self._tables.current.get(table) is None:
                        yield SchemaSeen(schema, schema)
                    yield batch
                continue
            reason = self._unlogged(effect, seen.position)
            if reason is not None and not seen.durable:
                yield RowsUnlogged(table, reason, seen.position)
        yield from self._renamed(statement)

    def _renamed(self, statement: Statement) -> Iterator[TableRenamed]:
        """The captured names that the statement took from their tables, or gave to others."""
        former: dict[TableName, TableName] = {}  # new name → name before the statement
        old, there = None, set[TableName]()
        for effect in statement.effects:
            table, kind = effect.table, effect.effect
            if kind is Effect.RENAMED_AWAY:
                old = former.pop(table, table)
            elif kind is Effect.RENAMED_HERE and old is not None:
                former[table] = old
            elif kind in (Effect.CREATED, Effect.CREATED_IF_MISSING, Effect.REPLACED):
                there.add(table)
        for table in there | former.keys():
            if table in self._captured:
                yield TableRenamed(table, None)
        for now, table in former.items():
            if table in self._captured and table not in former:
                yield TableRenamed(table, now, now in self._captured)

    def _unlogged(self, effect: TableEffect, position: int) -> str | None:
        """Why the table's rows may have changed without row events."""
        table, kind = effect.table, effect.effect
        if kind in (Effect.DROPPED, Effect.RENAMED_AWAY):
            self._history.note_dropped(table, position)
            return None
        created = kind in (Effect.CREATED, Effect.CREATED_IF_MISSING)
        again = False
        if created or kind in (Effect.REPLACED, Effect.RENAMED_HERE):
            again = self._history.note_created(table, position)
        if created:
            known = kind is Effect.CREATED and self._registry.latest(table) is not None
            return "the table was dropped and recreated" if again or known else effect.unlogged
        if effect.unlogged is None and self._had_column(table, effect.added):
            return "a column was dropped and added again"
        return effect.unlogged

    def _had_column(self, table: TableName, columns: Sequence[str]) -> bool:
        """Return True if any version of the table had one of these columns.

        This includes versions that a chunk has read ahead of the log, so an unneeded dump follows
        where a chunk reads a column before the log adds it.
        """
        if not columns:
            return False
        wanted = {name.lower() for name in columns}
        return any(
            name.lower() in wanted
            for version in self._registry.versions(table)
            for name in version.whole.column_names
        )

    def _unlogged_writes(
        self, seen: QuerySeen, named: Statement, statement: Statement
    ) -> Iterator[LogEvent]:
        """Report rows that a statement may have changed when the log holds only the statement."""
        filled = any(effect.filled for effect in named.effects)
        if not seen.changes_rows and not filled:
            return
        written = [effect for effect in statement.effects if effect.effect in WRITES]
        what = ", ".join(str(effect.table) for effect in written) or "tables"
        affected = self._affected.by_statement(seen, named, statement)
        if affected.objection is not None:
            reason = (
                f"the log has a {seen.keyword} of {what} as a statement, not as rows, which may "
                f"have changed it: {affected.objection}"
            )
            for table in self._affected.all_captured():
                yield RowsUnlogged(table, reason, seen.position, ROW_FORMAT)
            return
        for table in affected.cascaded:
            reason = f"a foreign key changes its rows with those of {what}"
            yield RowsUnlogged(table, reason, seen.position)
        for effect in written:
            if effect.table not in self._captured:
                continue
            if seen.uses_temporary:
                # Possibly a temporary table of that name, created before the log was read: reported
                # with the same text each time, and fixed by a dump.
                why = UnsupportedReason(TEMPORARY_OR_NOT, ROW_FORMAT)
                yield UnsupportedTableSeen(effect.table, why)
            elif effect.effect is Effect.EMPTIED:
                # Part of its transaction may have been rolled back, so this is no TRUNCATE.
                yield RowsUnlogged(effect.table, EMPTIED, seen.position)
            else:
                reason = f"the log has a {seen.keyword} of it as a statement, not as rows"
                yield RowsUnlogged(effect.table, reason, seen.position, ROW_FORMAT)

    def report_rollback(self, seen: RolledBackSeen) -> Iterator[LogEvent]:
        """Report tables whose rows were yielded before a rollback of them: they need a dump."""
        if seen.durable:
            return
        for database, name in seen.tables:
            table = TableName(database, name)
            if table in self._captured:
                yield RowsUnlogged(table, ROLLED_BACK, seen.position, ONE_ENGINE)
