"""Says for `tidelog check` what an account needs that the server refused."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.codecs.mysql.server_urls import ServerUrl
from tidelog.errors import ConfigError, TidelogError
from tidelog.model.patterns import EXCLUDE
from tidelog.sources.findings import ADMINISTRATOR, Finding
from tidelog.sources.mysql.catalogue.grants import Grants, account_name
from tidelog.sources.mysql.preflight.privileges import WATERMARK_PRIVILEGES


def narrowest(pattern: str) -> tuple[str | None, str | None]:
    """Return database and table of a grant for what the pattern matches; None: every one."""
    database, _, table = pattern.partition(".")
    if "*" in database:
        return None, None
    return database, None if "*" in table else table


def read_grants(grants: Grants, database: str, patterns: Sequence[str]) -> list[str]:
    """Return the statements that let the account use ``database``, and read in each database that
    a pattern names.
    """
    places = [narrowest(pattern) for pattern in patterns if not pattern.startswith(EXCLUDE)]
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
    return Finding("connection", "fail", str(error), fix, ADMINISTRATOR if fix else "")


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
        return Finding("connection", "fail", str(error))
    grants = Grants(account_name(url.user, "%"), ())
    statements = [
        "-- if there is no such account, with a password of yours in place of (...):",
        f"CREATE USER {grants.account} IDENTIFIED BY '(...)';",
        grants.statement(["REPLICATION SLAVE", "REPLICATION CLIENT"]),
        *read_grants(grants, url.database, tables),
    ]
    if watermark_schema is not None:
        statements.append(grants.statement(WATERMARK_PRIVILEGES, watermark_schema))
    fix = "\n".join(statements)
    return Finding("connection", "fail", str(error), fix, ADMINISTRATOR, by_hand=True)
