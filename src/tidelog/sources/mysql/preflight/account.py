"""Checks an account's privileges for `tidelog check`; every missing one comes with its GRANT.

Privileges are those of ``SHOW GRANTS``. An account that may not even connect gets the SQL that lets
it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Literal

import pymysql

from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.server_urls import ServerUrl
from tidelog.errors import ConfigError, TidelogError
from tidelog.model.dump_options import DumpMode
from tidelog.model.patterns import EXCLUDE
from tidelog.model.schema import TableName, backticked
from tidelog.sources.findings import ADMINISTRATOR, Finding
from tidelog.sources.mysql.chunks.watermarks import VIEW, WATERMARK_TABLE, is_view
from tidelog.sources.mysql.connect import Connection
from tidelog.sources.mysql.errors import number_of
from tidelog.sources.mysql.stream.positions import log_status

# The data that each check of `tidelog check` reads.


@dataclass(frozen=True)
class CheckContext:
    """The server to check, and the configuration, whose options are those of `MySqlPreflight`.

    Attributes:
        url: the server, with the password.
        connection: a connection to it.
        variables: the server's global variables, as text.
        server_id: Tidelog's own id.
        database_is_refused: whether the account may not use the URL's database.
    """

    url: str = field(repr=False)
    connection: Connection
    variables: Mapping[str, str]
    server_id: int
    kind: Flavor
    tables: tuple[str, ...]
    watermark_schema: str
    strategy: Literal["table", "gtid"]
    signal_table: str | None
    keys: Mapping[str, Sequence[str]]
    exclude_columns: Sequence[str]
    cascades: Literal["refuse", "dump", "accept"]
    snapshot_mode: DumpMode
    database_is_refused: bool = False

    @property
    def mysql(self) -> bool:
        return self.connection.flavor is Flavor.MYSQL

    def on(self, name: str) -> bool:
        """Return True if a variable is ON; False if it does not exist."""
        return self.variables.get(name, "OFF").upper() in ("ON", "1", "TRUE")


Check = Callable[[CheckContext], Iterator[Finding]]


# Privileges.

# MariaDB 10.5 renamed some privileges (manual, "GRANT").
_ALIASES = {"BINLOG MONITOR": "REPLICATION CLIENT", "REPLICATION REPLICA": "REPLICATION SLAVE"}

_NAME = r"(\*|`(?:[^`]|``)*`)"
_GRANT = re.compile(rf"(GRANT|REVOKE) (.+?) ON (?:TABLE )?{_NAME}\.{_NAME} (?:TO|FROM) ")


@dataclass(frozen=True, slots=True)
class _Grant:
    """One line of SHOW GRANTS. ``database`` is a LIKE pattern; None: every database or table."""

    privileges: frozenset[str]
    database: str | None
    table: str | None

    def holds(self, privilege: str, database: str | None, table: str | None) -> bool:
        named = privilege in self.privileges or "ALL PRIVILEGES" in self.privileges
        if not named or (self.table is not None and self.table != table):
            return False
        return self.database is None or (
            database is not None and _like(self.database).fullmatch(database) is not None
        )


def account_name(user: str, host: str) -> str:
    """Return the account as SQL writes it."""
    quoted = (re.sub(r"(['\\])", r"\1\1", part) for part in (user, host))
    return "@".join(f"'{part}'" for part in quoted)


class Grants:
    """The privileges of one account.

    Args:
        account: the account as SQL writes it, e.g. ``'tidelog'@'%'``.
        lines: the lines of SHOW GRANTS.
    """

    def __init__(self, account: str, lines: Iterable[str]) -> None:
        self.account = account
        self._given: list[_Grant] = []
        self._revoked: list[_Grant] = []  # partial_revokes of MySQL
        for line in lines:
            found = _GRANT.match(line)
            if found is not None:
                kind, listed, database, table = found.groups()
                grant = _Grant(_privileges(listed), _unquoted(database), _unquoted(table))
                (self._given if kind == "GRANT" else self._revoked).append(grant)

    @classmethod
    def of(cls, connection: Connection) -> Grants:
        """Read the privileges of the session's account and its roles."""
        (current,) = connection.row("SELECT CURRENT_USER()") or ("",)
        user, _, host = str(current).rpartition("@")
        statement = "SHOW GRANTS"
        if connection.flavor is Flavor.MYSQL and connection.version >= (8,):
            roles = str(connection.value("SELECT CURRENT_ROLE()") or "NONE")
            if roles != "NONE":
                statement = f"SHOW GRANTS FOR CURRENT_USER() USING {roles}"
        lines = [str(row[0]) for row in connection.rows(statement)]
        return cls(account_name(user, host), lines)

    def missing(
        self, privileges: Sequence[str], database: str | None = None, table: str | None = None
    ) -> list[str]:
        """The ``privileges`` that the account lacks, on the table, the database or globally."""
        return [p for p in privileges if not self._has(p, database, table)]

    def statement(
        self, privileges: Sequence[str], database: str | None = None, table: str | None = None
    ) -> str:
        """The GRANT statement that gives the privileges."""
        place = "*.*"
        if database is not None:
            # MySQL takes the name as a pattern in a grant on a whole database.
            name = database if table else re.sub(r"([_%\\])", r"\\\1", database)
            place = f"{backticked(name)}.{backticked(table) if table else '*'}"
        return f"GRANT {', '.join(privileges)} ON {place} TO {self.account};"

    def _has(self, privilege: str, database: str | None, table: str | None) -> bool:
        if any(grant.holds(privilege, database, table) for grant in self._revoked):
            # A privilege revoked on a database can be granted again only on single tables of it.
            return any(
                grant.table is not None and grant.holds(privilege, database, table)
                for grant in self._given
            )
        return any(grant.holds(privilege, database, table) for grant in self._given)


def _privileges(listed: str) -> frozenset[str]:
    """The privileges on whole objects, without those on single columns (in parentheses)."""
    names = re.findall(r"([A-Z][A-Z_ ]*[A-Z])(\s*\([^)]*\))?(?:,|$)", listed)
    return frozenset(_ALIASES.get(name, name) for name, columns in names if not columns)


def _unquoted(name: str) -> str | None:
    return None if name == "*" else name[1:-1].replace("``", "`")


def _like(pattern: str) -> re.Pattern[str]:
    """Compile a LIKE pattern."""
    pieces = re.findall(r"\\.|.", pattern, re.DOTALL)
    spelled = {"_": ".", "%": ".*"}
    return re.compile(
        "".join(spelled.get(p) or re.escape(p[1:] if len(p) > 1 else p) for p in pieces), re.DOTALL
    )


# Checks of the privileges.

_DENIED = (1044, 1142, 1227)
WATERMARK_PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "CREATE")


def privilege_checks() -> list[Callable[[CheckContext], Iterator[Finding]]]:
    """The checks, each after those that it depends on."""
    return [_replication, _watermark_table, _blocking_dumps]


def _replication(context: CheckContext) -> Iterator[Finding]:
    """Try the statements that change nothing.

    Registering as a replica without reading the log is not tried: MySQL keeps the registration when
    the connection ends, and shows it from freed memory.
    """
    grants = Grants.of(context.connection)
    missing = []
    if context.mysql:  # there, unlike in MariaDB, it needs REPLICATION SLAVE
        unreadable = _is_denied(lambda: context.connection.rows("SHOW BINLOG EVENTS LIMIT 1"))
    else:
        unreadable = bool(grants.missing(["REPLICATION SLAVE"]))
    if unreadable:
        missing.append("REPLICATION SLAVE")
    if _is_denied(lambda: log_status(context.connection)):
        modern = not context.mysql and context.connection.version >= (10, 5, 2)
        missing.append("BINLOG MONITOR" if modern else "REPLICATION CLIENT")
    if missing:
        text = f"{grants.account} lacks {' and '.join(missing)}"
        yield Finding("replication", "error", text, grants.statement(missing), ADMINISTRATOR)
    else:
        yield Finding("replication", "ok", f"{grants.account} may read the binlog")


def _is_denied(run: Callable[[], object]) -> bool:
    """Return True if the account lacks the right to run the statement."""
    try:
        run()
    except pymysql.MySQLError as error:
        return number_of(error) in _DENIED
    return False


def _watermark_table(context: CheckContext) -> Iterator[Finding]:
    if context.strategy != "table":
        return
    grants = Grants.of(context.connection)
    schema = context.watermark_schema
    exists = bool(
        context.connection.rows(
            "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            (schema, "watermark"),
        )
    )
    if is_view(context.connection, schema):
        fix = f"DROP VIEW {backticked(schema, WATERMARK_TABLE)};"
        text = VIEW.format(table=f"{schema}.{WATERMARK_TABLE}")
        yield Finding("watermark table", "error", text, fix, ADMINISTRATOR, by_hand=True)
        return
    needed = [p for p in WATERMARK_PRIVILEGES if not (exists and p == "CREATE")]
    table = "watermark" if exists else None
    missing = grants.missing(needed, schema, table)
    if missing:
        text = f"{schema}.watermark can't be {'written' if exists else 'created and written'}"
        fix = grants.statement(needed, schema, table)
        yield Finding("watermark table", "error", text, fix, ADMINISTRATOR)
    else:
        text = f"{schema}.watermark {'exists' if exists else 'will be created'}"
        yield Finding("watermark table", "ok", text)


def _blocking_dumps(context: CheckContext) -> Iterator[Finding]:
    """FLUSH TABLES WITH READ LOCK needs RELOAD; MariaDB's snapshots have their position anyway."""
    if not context.mysql:
        return
    grants = Grants.of(context.connection)
    missing = grants.missing(["RELOAD"])
    if not missing:
        yield Finding("blocking dumps", "ok", f"{grants.account} may make them")
        return
    asked = context.snapshot_mode == "blocking"
    text = f"{grants.account} may make them while writes pause; without a pause they need RELOAD"
    fix = grants.statement(missing) if asked else ""
    yield Finding("blocking dumps", "warning" if asked else "ok", text, fix, ADMINISTRATOR)


# Findings of a refused connection, and their SQL.


def narrowest_grant(pattern: str) -> tuple[str | None, str | None]:
    """Return database and table of a grant for what the pattern matches; None: every one."""
    database, table = _names_in(pattern)
    if "*" in database:
        return None, None
    return database, None if "*" in table else table


def _names_in(pattern: str) -> tuple[str, str]:
    try:
        return astuple(TableName.parse(pattern.removeprefix(EXCLUDE)))
    except ValueError:  # "*"
        return "*", "*"


def open_grants(grants: Grants, patterns: Sequence[str]) -> list[str]:
    """Return a statement, to be completed, for each pattern that names no database: a grant on all
    of them would show the server's own, too.
    """
    tables = dict.fromkeys(
        name if "*" not in name else None
        for database, name in (_names_in(each) for each in patterns if not each.startswith(EXCLUDE))
        if "*" in database
    )
    if not tables:
        return []
    return [
        "-- for each database to capture, with its name in place of (...):",
        *(grants.statement(["SELECT"], "(...)", table) for table in tables),
    ]


def read_grants(grants: Grants, database: str, patterns: Sequence[str]) -> list[str]:
    """Return the statements that let the account use ``database``, and read in each database that
    a pattern names.
    """
    places = [narrowest_grant(pattern) for pattern in patterns if not pattern.startswith(EXCLUDE)]
    named = [place for place in places if place[0] is not None]
    if database and database not in {place[0] for place in named}:
        named.append((database, None))
    return list(dict.fromkeys(grants.statement(["SELECT"], *place) for place in named))


def refused_database(error: TidelogError, fix: str) -> Finding:
    """The finding for a login that failed only at the URL's database.

    Args:
        error: of the login with the database.
        fix: the statements that let the account use it; empty: it does not exist.
    """
    return Finding("connection", "error", str(error), fix, ADMINISTRATOR if fix else "")


def refused_connection(
    error: TidelogError, url: ServerUrl, *, tables: Sequence[str], watermark_schema: str | None
) -> Finding:
    """The finding for a connection that failed; if the account may be missing, with the SQL that
    creates it, for a person to review.

    Args:
        error: of the connection.
        url: the server, the user and the database.
        tables: patterns of the tables to capture.
        watermark_schema: database of the watermark table; None: capture writes none.
    """
    if not (isinstance(error, ConfigError) and error.refused == "login" and url.user):
        return Finding("connection", "error", str(error))
    grants = Grants(account_name(url.user, "%"), ())
    statements = [
        "-- if there is no such account, with a password of yours in place of (...):",
        f"CREATE USER {grants.account} IDENTIFIED BY '(...)';",
        grants.statement(["REPLICATION SLAVE", "REPLICATION CLIENT"]),
        *read_grants(grants, url.database, tables),
        *open_grants(grants, tables),
    ]
    if watermark_schema is not None:
        statements.append(grants.statement(WATERMARK_PRIVILEGES, watermark_schema))
    fix = "\n".join(statements)
    return Finding("connection", "error", str(error), fix, ADMINISTRATOR, by_hand=True)
