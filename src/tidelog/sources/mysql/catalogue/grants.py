"""Reads an account's privileges from ``SHOW GRANTS``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidelog.codecs.mysql.flavor import Flavor
from tidelog.sources.mysql.connect import Connection, quote_name

# MariaDB 10.5 renamed some privileges (manual, "GRANT").
_ALIASES = {"BINLOG MONITOR": "REPLICATION CLIENT", "REPLICATION REPLICA": "REPLICATION SLAVE"}

_NAME = r"(\*|`(?:[^`]|``)*`)"
_GRANT = re.compile(rf"(GRANT|REVOKE) (.+?) ON (?:TABLE )?{_NAME}\.{_NAME} (?:TO|FROM) ")


@dataclass(frozen=True, slots=True)
class _Grant:
    """One line of SHOW GRANTS. ``database`` is a LIKE pattern; None means every
    database or table.
    """

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
    return "@".join("'" + part.replace("'", "''") + "'" for part in (user, host))


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
        """The ``privileges`` that the account does not have, on the table, the database or
        globally.
        """
        return [p for p in privileges if not self._has(p, database, table)]

    def statement(
        self, privileges: Sequence[str], database: str | None = None, table: str | None = None
    ) -> str:
        """The GRANT statement that gives the privileges."""
        place = "*.*"
        if database is not None:
            # MySQL takes the name as a pattern in a grant on a whole database.
            name = database if table else re.sub(r"([_%\\])", r"\\\1", database)
            place = f"{quote_name(name)}.{quote_name(table) if table else '*'}"
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
