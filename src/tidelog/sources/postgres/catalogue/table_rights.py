"""Explains which missing rights prevent publishing a table or writing watermarks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

from tidelog.model.schema import TableName
from tidelog.ports import Refusal
from tidelog.sources.postgres.connect import quote_ident

Connection = psycopg.Connection[tuple[Any, ...]]

BYPASS_POLICIES = "ALTER ROLE … BYPASSRLS;"
"""Lets a role see all rows. Another policy would not be enough: whether any policy hides a row
can't be known, so Tidelog's sessions read with ``row_security`` off, and the server refuses where a
policy applies.
"""
_HIDES_ROWS = "check_enable_rls"  # the server's function that refuses; messages are translated
_LOCKED = "55P03"
_DENIED = "42501"
# Errors of the table itself: it no longer exists, or is of a kind that can't be published.
_OF_TABLE = {"42P01", "3F000", "22023", "0A000", "42809", "55000", "42710", "40P01"}


def publishing_refused(
    connection: Connection, error: psycopg.Error, relation_id: int, publication: str
) -> Refusal | None:
    """Why the server does not let the role publish one table; None if the table is not
    the cause.
    """
    state, message = error.sqlstate, error.diag.message_primary
    if state == _LOCKED:
        return Refusal("another session holds a lock on it, so it is not published yet")
    if state in _OF_TABLE:
        return Refusal(f"it can't be published: {message}")
    if state != _DENIED:
        return None
    found = not_owned(connection, {relation_id: publication})
    return found.get(relation_id) or Refusal(f"it can't be published: {message}")


def not_owned(connection: Connection, wanted: Mapping[int, str]) -> dict[int, Refusal]:
    """The rights that the role lacks to publish tables, by relation.

    ``wanted``: the publication of each relation. A relation that is missing in the result lacks no
    right; then the role does not own the publication.
    """
    rows = connection.execute(
        b"SELECT c.oid::int8, n.nspname, c.relname, pg_catalog.pg_get_userbyid(c.relowner), "
        b"pg_catalog.pg_has_role(c.relowner, 'USAGE'), "
        b"pg_catalog.has_schema_privilege(n.oid, 'USAGE') FROM pg_catalog.pg_class c "
        b"JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY (%s::oid[])",
        (list(wanted),),
    ).fetchall()
    user = quote_ident(connection.info.user)
    found = dict.fromkeys(wanted, Refusal("it is gone"))
    for relation_id, *row in rows:
        refusal = _publish_refusal(user, wanted[relation_id], *row)
        if refusal is None:
            del found[relation_id]
        else:
            found[relation_id] = refusal
    return found


def hides_rows(error: psycopg.Error) -> bool:
    """Return True if the server refused to read a table because a policy would hide rows."""
    return error.diag.source_function == _HIDES_ROWS


def _publish_refusal(
    user: str, publication: str, namespace: str, name: str, owner: str, owned: bool, usage: bool
) -> Refusal | None:
    if not usage:
        return Refusal(
            "the role may not use its schema, so it can't publish it",
            f"GRANT USAGE ON SCHEMA {quote_ident(namespace)} TO {user};",
        )
    if owned:  # then the role does not own the publication
        return None
    return Refusal(
        f"it is not published, because the role does not own it (its owner is {owner})",
        f"GRANT {quote_ident(owner)} TO {user}; -- or, as a superuser: ALTER PUBLICATION "
        f"{quote_ident(publication)} ADD TABLE {quote_ident(namespace, name)};",
    )


def watermarks_refused(connection: Connection, watermark: TableName) -> Refusal | None:
    """Why watermarks can't be written to the existing watermark table; None if they can."""
    row = connection.execute(
        b"SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE'), "
        b"pg_catalog.has_table_privilege(c.oid, 'SELECT') "
        b"AND pg_catalog.has_table_privilege(c.oid, 'INSERT') "
        b"AND pg_catalog.has_table_privilege(c.oid, 'UPDATE') FROM pg_catalog.pg_class c "
        b"JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        b"WHERE n.nspname = %s AND c.relname = %s",
        (watermark.namespace, watermark.name),
    ).fetchone()
    usage, write = (True, True) if row is None else row
    user = quote_ident(connection.info.user)
    table = quote_ident(watermark.namespace, watermark.name)
    grants = []
    if not usage:
        grants.append(f"GRANT USAGE ON SCHEMA {quote_ident(watermark.namespace)} TO {user};")
    if not write:
        grants.append(f"GRANT SELECT, INSERT, UPDATE ON {table} TO {user};")
    if not grants:
        return None
    return Refusal(
        "the role may not write watermarks to it: no table can be dumped",
        " ".join(grants),
        all_dumps=True,
    )
