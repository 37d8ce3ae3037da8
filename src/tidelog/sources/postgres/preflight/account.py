"""Says for `tidelog check` what a role needs that the server refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from psycopg.conninfo import conninfo_to_dict

from tidelog.errors import ConfigError, TidelogError
from tidelog.model.patterns import EXCLUDE
from tidelog.sources.findings import SUPERUSER, Finding
from tidelog.sources.postgres.connect import quote_ident

_NAMED = re.compile(r'(?P<schema>[^!"*.][^*.]*)\.(?P<table>\*|[^*.]+)')
"""A pattern of one table, or of all tables of one schema."""


def refused_connection(
    error: TidelogError, dsn: str, *, tables: Sequence[str], watermark_schema: str | None
) -> Finding:
    """The finding for a connection that failed, with SQL if a statement can help; if the role may
    be missing, with the SQL that creates it, for a person to review.

    Args:
        error: of the connection.
        dsn: the server, the user and the database.
        tables: patterns of the tables to capture.
        watermark_schema: schema of the watermark table; None: capture writes none.
    """
    refused = error.refused if isinstance(error, ConfigError) else ""
    parameters = conninfo_to_dict(dsn) if refused else {}
    user = str(parameters.get("user") or "")
    database = quote_ident(str(parameters.get("dbname") or user))
    role = quote_ident(user)
    fixes = {
        "blocked": f"ALTER ROLE {role} LOGIN;",
        "database": f"GRANT CONNECT ON DATABASE {database} TO {role};",
        "login": "\n".join(_create_role(role, database, tables, watermark_schema)),
    }
    fix = fixes.get(refused, "") if user else ""
    by_hand = refused == "login"
    return Finding("connection", "fail", str(error), fix, SUPERUSER if fix else "", by_hand=by_hand)


def _create_role(
    role: str, database: str, tables: Sequence[str], watermark_schema: str | None
) -> Iterator[str]:
    """The statements; those for tables whose names are not known come with the next check."""
    yield "-- if there is no such role, with a password of yours in place of (...):"
    yield f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '(...)';"
    yield f"GRANT CONNECT ON DATABASE {database} TO {role};"
    excluding = any(pattern.startswith(EXCLUDE) for pattern in tables)
    schemas = set()
    for pattern in tables:
        named = _NAMED.fullmatch(pattern)
        if named is None or (named["table"] == "*" and excluding):
            continue
        schema, table = named["schema"], named["table"]
        if schema not in schemas:
            schemas.add(schema)
            yield f"GRANT USAGE ON SCHEMA {quote_ident(schema)} TO {role};"
        name = quote_ident(schema, table)
        what = f"ALL TABLES IN SCHEMA {quote_ident(schema)}" if table == "*" else name
        yield f"GRANT SELECT ON {what} TO {role};"
    if watermark_schema is not None:
        schema = quote_ident(watermark_schema)
        yield f"CREATE SCHEMA IF NOT EXISTS {schema};"
        yield f"GRANT CREATE, USAGE ON SCHEMA {schema} TO {role};"
    yield "-- then run tidelog check again: it prints what is still missing"
