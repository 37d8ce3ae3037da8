"""Checks the captured tables and the signal table for `tidelog check`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pymysql

from tidelog.codecs.mysql.formats import BINLOG
from tidelog.codecs.wire_formats import add_key_sql
from tidelog.errors import SourceError, UnsupportedTableError
from tidelog.model.patterns import (
    EXCLUDE,
    exclusion,
    matches,
    matching_columns,
    patterns_without_table,
)
from tidelog.model.schema import TableName, backticked
from tidelog.model.units import printable
from tidelog.sources.findings import ADMINISTRATOR, Finding, matching_message
from tidelog.sources.mysql.catalogue.cascades import Cascade, cascades
from tidelog.sources.mysql.catalogue.schemas import (
    SHOW_COLUMNS,
    MySqlSchemaFinder,
    check_all_columns_shown,
    expression_indexes,
    hidden_columns,
)
from tidelog.sources.mysql.catalogue.storage import TRANSACTIONAL, check_row_image
from tidelog.sources.mysql.errors import number_of, server_message
from tidelog.sources.mysql.preflight.account import (
    Grants,
    narrowest_grant,
    open_grants,
    read_grants,
)
from tidelog.sources.table_settings import KEYLESS, excluded_finding, proposed_key

if TYPE_CHECKING:
    from tidelog.sources.mysql.preflight.account import CheckContext

SYSTEM_DATABASES = ("mysql", "information_schema", "performance_schema", "sys")
SIGNAL_COLUMNS = {"id", "type", "data"}
LAST_THAT_LOGS_HIDDEN = (8, 0, 15)  # the last known MySQL version that does

_TABLES = (
    "SELECT table_schema, table_name, engine FROM information_schema.tables "
    "WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') AND table_schema NOT IN %s "
    "ORDER BY 1, 2"
)
_UNIQUE = (
    "SELECT table_schema, table_name, index_name, column_name, nullable "
    "FROM information_schema.statistics WHERE non_unique = 0 AND table_schema NOT IN %s "
    "ORDER BY seq_in_index"
)
_COLUMNS = (
    "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
)
_DATES = (
    "SELECT table_schema, table_name, column_name FROM information_schema.columns "
    "WHERE data_type IN ('date', 'datetime', 'timestamp') AND table_schema NOT IN %s "
    "ORDER BY table_schema, table_name, ordinal_position"
)
_NO_ZERO_DATES = ("NO_ZERO_DATE", "NO_ZERO_IN_DATE")


@dataclass(frozen=True, slots=True)
class _Table:
    name: TableName
    engine: str | None
    unique: dict[str, dict[str, bool]]  # index → its columns → nullable?


def table_checks() -> list[Callable[[CheckContext], Iterator[Finding]]]:
    """The checks, each after those that it depends on."""
    return [_signal_table, _tables, _zero_dates, _foreign_keys]


def _signal_table(context: CheckContext) -> Iterator[Finding]:
    if context.signal_table is None:
        return
    table = TableName.parse(context.signal_table)
    rows = context.connection.rows(
        "SELECT lower(column_name) FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s",
        (table.namespace, table.name),
    )
    lacking = SIGNAL_COLUMNS - {str(row[0]) for row in rows}
    if not lacking:
        yield Finding("signal table", "ok", f"{table} exists")
        return
    if rows:
        text = f"{table} lacks columns: {', '.join(sorted(lacking))}"
        fix = "name another table in source.signal_table, or give it these"
        yield Finding("signal table", "error", text, fix)
        return
    fix = (
        f"CREATE TABLE IF NOT EXISTS {backticked(table.namespace, table.name)} "
        "(id varchar(42) PRIMARY KEY, type varchar(32) NOT NULL, data varchar(2048));"
    )
    grants = Grants.of(context.connection)
    if grants.missing(["SELECT"], table.namespace, table.name):
        fix += "\n" + grants.statement(["SELECT"], table.namespace, table.name)
    text = f"{table} does not exist, or the account may not see it"
    yield Finding("signal table", "error", text, fix, ADMINISTRATOR)


def _tables(context: CheckContext) -> Iterator[Finding]:
    """Check that each captured table can be read and dumped."""
    captured = _captured(context)
    if not captured and context.database_is_refused:
        return  # already reported, with the grant
    if not captured:
        text = f"no table matches {', '.join(context.tables)}, of those that the account may see"
        grants = Grants.of(context.connection)
        fix = "\n".join(
            (
                "-- correct source.tables, create the tables, or let the account read them:",
                *read_grants(grants, "", context.tables),
                *open_grants(grants, context.tables),
            )
        )
        yield Finding("tables", "warning", text, fix, ADMINISTRATOR, by_hand=True)
        return
    text = f"{matching_message(len(captured))}{_hidden_tables(context)}"
    yield Finding("tables", "ok", text)
    yield from _unseen_patterns(context, [table.name for table in captured])
    finder = MySqlSchemaFinder(context.keys, context.exclude_columns)
    for table in captured:
        reported = [*_table(context, table), *_hidden_columns(context, table.name)]
        yield from reported
        try:
            check_row_image(context.connection, table.name, finder.surrogate)
            found = finder.find(context.connection, table.name)
        except UnsupportedTableError as error:
            if any(each.level == "error" for each in reported):
                continue
            fix = error.remedy or ""
            yield Finding(
                f"table {table.name}", "error", error.reason, fix, ADMINISTRATOR, by_hand=True
            )
        except SourceError as error:  # e.g. a type
            yield Finding(f"table {table.name}", "error", str(error))
        else:
            if found is not None and found.unfit is not None:
                yield Finding(f"table {table.name}", "error", found.unfit)
            if found is not None and found.schema.excluded:
                yield excluded_finding(found.schema)


def _unseen_patterns(context: CheckContext, captured: Sequence[TableName]) -> Iterator[Finding]:
    """Report patterns that match no table, as the account has no right to what they name."""
    grants = Grants.of(context.connection)
    for pattern in patterns_without_table(context.tables, captured):
        place = narrowest_grant(pattern)
        if pattern.startswith(EXCLUDE) or not place[0] or not grants.missing(["SELECT"], *place):
            continue
        text = f"no table matches '{printable(pattern)}', of those that the account may see"
        fix = grants.statement(["SELECT"], *place)
        yield Finding("tables", "warning", text, fix, ADMINISTRATOR, by_hand=True)


def _hidden_tables(context: CheckContext) -> str:
    """Says which databases, of which patterns name many tables, may have tables that the account
    does not see; "" if it sees all.
    """
    places = [narrowest_grant(each) for each in context.tables if not each.startswith(EXCLUDE)]
    names = list(dict.fromkeys(name for name, table in places if name and table is None))
    grants = Grants.of(context.connection) if names else None
    hidden = [
        name
        for name in names
        if grants and grants.missing(SHOW_COLUMNS, name) == list(SHOW_COLUMNS)
    ]
    if not hidden:
        return ""
    return f"; the account sees no others in {', '.join(hidden)}, as it has rights to single tables"


def _hidden_columns(context: CheckContext, table: TableName) -> Iterator[Finding]:
    connection = context.connection
    if connection.version <= LAST_THAT_LOGS_HIDDEN and (
        indexes := expression_indexes(connection, table)
    ):
        yield Finding(f"table {table}", "error", hidden_columns(table, indexes))


def _table(context: CheckContext, table: _Table) -> Iterator[Finding]:
    name = f"table {table.name}"
    quoted = backticked(table.name.namespace, table.name.name)
    yield from _unreadable(context, table.name)
    if table.engine not in TRANSACTIONAL:
        text = (
            f"its engine {table.engine} has no transactions: a dump during writes may have rows "
            "that the log does not have, and vice versa"
        )
        fix = f"ALTER TABLE {quoted} ENGINE = InnoDB;"
        yield Finding(name, "warning", text, fix, ADMINISTRATOR, by_hand=True)
    wanted = next(
        (columns for pattern, columns in context.keys.items() if matches([pattern], table.name)),
        None,
    )
    if "PRIMARY" in table.unique:
        return
    if wanted is None:
        text = KEYLESS
        unique = [
            list(each)
            for each in table.unique.values()
            if not any(each.values()) and not _excluded(context, table.name, each)
        ]
        if (proposed := proposed_key(table.name, unique)) is not None:
            yield Finding(name, "warning", text, proposed)
            return
        yield Finding(name, "warning", text, add_key_sql(table.name, BINLOG))
        return
    listed = ", ".join(backticked(column) for column in wanted)
    fitting = [columns for columns in table.unique.values() if set(columns) == set(wanted)]
    if not fitting:
        place = (table.name.namespace, table.name.name)
        names = {str(name) for (name,) in context.connection.rows(_COLUMNS, place)}
        if not set(wanted) <= names:
            return  # reported where the table's columns are read
        text = "the key in source.keys is not unique: rows with the same key overwrite another"
        fix = f"ALTER TABLE {quoted} ADD UNIQUE KEY ({listed});"
        yield Finding(name, "error", text, fix, ADMINISTRATOR)
    elif all(any(nullable.values()) for nullable in fitting):
        text = (
            "the key in source.keys may hold NULL in several rows, which can't be distinguished: "
            "its dump is refused then"
        )
        yield Finding(name, "warning", text, f"make {listed} NOT NULL")


def _unreadable(context: CheckContext, table: TableName) -> Iterator[Finding]:
    """Check that the account may read the columns that are captured, and sees the others, which the
    log's rows have too.
    """
    place = (table.namespace, table.name)
    error = _read_error(context, table, "*")
    if error is None:
        return
    found = [str(name) for (name,) in context.connection.rows(_COLUMNS, place)]
    captured = [name for name in found if not _excluded(context, table, [name])]
    grants = Grants.of(context.connection)
    error = _read_error(context, table, ", ".join(map(backticked, captured)) or "*")
    if error is not None:
        denied = number_of(error) in (1142, 1143)
        text = f"can't be read: {server_message(number_of(error), str(error.args[-1]))}"
        fix = grants.statement(["SELECT"], *place) if denied else ""
        yield Finding(f"table {table}", "error", text, fix, ADMINISTRATOR)
        return
    try:
        check_all_columns_shown(context.connection, table)
    except UnsupportedTableError as refused:
        yield Finding(
            f"table {table}", "error", refused.reason, refused.remedy or "", ADMINISTRATOR
        )


def _read_error(context: CheckContext, table: TableName, columns: str) -> pymysql.MySQLError | None:
    """The server's error for a SELECT of these columns, without rows; None if it runs."""
    quoted = backticked(table.namespace, table.name)
    try:
        context.connection.rows(f"SELECT {columns} FROM {quoted} LIMIT 0")  # noqa: S608 - quoted
    except pymysql.MySQLError as error:
        return error
    return None


def _excluded(context: CheckContext, table: TableName, columns: Iterable[str]) -> bool:
    """Return True if one of the columns is excluded."""
    return bool(matching_columns(context.exclude_columns, table, columns, ignore_case=True))


def _zero_dates(context: CheckContext) -> Iterator[Finding]:
    """Name the tables whose columns may have dates that no calendar has. Their rows are not read.

    A session may have another sql_mode, and rows may be older than the mode.
    """
    modes = context.variables.get("sql_mode", "").upper().split(",")
    missing = [mode for mode in _NO_ZERO_DATES if mode not in modes]
    if not missing:
        return
    captured = {table.name for table in _captured(context)}
    found = context.connection.rows(_DATES, (SYSTEM_DATABASES,))
    columns = [
        f"{table}.{column}"
        for namespace, name, column in found
        if (table := TableName(namespace, name)) in captured
        and not _excluded(context, table, [column])
    ]
    if columns:
        more = f" and {len(columns) - 1:,} more" if len(columns) > 1 else ""
        text = (
            f"without {' and '.join(missing)} in sql_mode, dates like 0000-00-00 may be stored; "
            "outputs get NULL for them, in a key a date before Christ of its own: "
            f"{columns[0]}{more}"
        )
        yield Finding("zero dates", "ok", text)


def _foreign_keys(context: CheckContext) -> Iterator[Finding]:
    captured = {table.name for table in _captured(context)}
    for found in cascades(context.connection, captured):
        name = f"table {found.child}"
        text = f"{describe_cascade(found)} changes rows without a trace in the binlog"
        if context.cascades == "dump":
            text += (
                f"; the table is dumped again when rows of {found.parent} are deleted or change "
                "their key"
            )
            yield Finding(name, "ok", text)
            continue
        if context.cascades == "accept":
            text += "; source.cascades accepts it: dump the table again now and then"
            yield Finding(name, "warning", text)
            continue
        fix = (
            f"ALTER TABLE {backticked(found.child.namespace, found.child.name)} DROP FOREIGN KEY "
            f"{backticked(found.constraint)};  -- add it without {' and '.join(found.rules)}; or "
            f"set source.cascades: dump, or {exclusion(found.child)}"
        )
        yield Finding(name, "error", text, fix, ADMINISTRATOR, by_hand=True)
    if context.cascades == "dump":
        yield from _unseen_parents(context, captured)


def _unseen_parents(context: CheckContext, captured: set[TableName]) -> Iterator[Finding]:
    """Report parent tables whose own foreign keys the account can't see: cascades through them are
    missed.
    """
    rows = context.connection.rows("SELECT table_schema, table_name FROM information_schema.tables")
    seen = {TableName(str(schema), str(table)) for schema, table in rows}
    parents = {found.parent for found in cascades(context.connection, captured)}
    for parent in sorted(parents - seen):
        text = (
            "captured tables refer to it, and the account may not see it: changes by its own "
            "foreign keys, and their effects on these tables, are not noticed"
        )
        grants = Grants.of(context.connection)
        fix = grants.statement(["SELECT"], parent.namespace, parent.name)
        yield Finding(f"table {parent}", "warning", text, fix, ADMINISTRATOR)


def describe_cascade(cascade: Cascade) -> str:
    """The constraint's name and rules, e.g. ``orders_of_customers (ON DELETE CASCADE)``."""
    return f"{cascade.constraint} ({', '.join(cascade.rules)})"


def _captured(context: CheckContext) -> list[_Table]:
    connection = context.connection
    hidden = (*SYSTEM_DATABASES, context.watermark_schema)
    unique: dict[TableName, dict[str, dict[str, bool]]] = defaultdict(lambda: defaultdict(dict))
    for schema, table, index, column, nullable in connection.rows(_UNIQUE, (hidden,)):
        columns = unique[TableName(str(schema), str(table))][str(index)]
        columns[str(column)] = nullable == "YES"
    found = []
    fold = str if context.variables.get("lower_case_table_names", "0") == "0" else str.lower
    wanted = [fold(pattern) for pattern in context.tables]
    signal_table = fold(context.signal_table or "")
    for schema, table, engine in connection.rows(_TABLES, (hidden,)):
        name = TableName(str(schema), str(table))
        folded = TableName(fold(name.namespace), fold(name.name))
        if matches(wanted, folded) and str(folded) != signal_table:
            found.append(_Table(name, engine, unique.get(name, {})))
    return found
