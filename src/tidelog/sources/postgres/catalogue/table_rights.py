"""Why a table can't be published, or watermarks not be written: rights that the role lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

from tidelog.model.schema import TableName
from tidelog.ports import Refusal
from tidelog.sources.postgres.connect import quote_ident

Connection = psycopg.Connection[tuple[Any, ...]]

BYPASS_POLICIES = "ALTER ROLE … BYPASSRLS;"
"""What shows a role all rows. One more policy would not: it can't be known that none hides a row,
so sessions of ours read with ``row_security`` off, and the server refuses where any applies.
"""
_HIDES_ROWS = "check_enable_rls"  # the server's function that refuses; messages are translated
_LOCKED = "55P03"
_DENIED = "42501"
# The table's own: it is gone by now, or of a kind that can't be published.
_OF_TABLE = {"42P01", "3F000", "22023", "0A000", "42809", "55000", "42710", "40P01"}


def publishing_refused(
    connection: Connection, error: psycopg.Error, relation_id: int, publication: str
) -> Refusal | None:
    """Why the server does not let the role publish one table; None: it is not the table's fault."""
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
    """What rights the role lacks to publish tables, by relation, each in the publication that it
    names; of those that are left out it lacks none, so it is the publication that it does not own.
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
        refusal = _lacking(user, wanted[relation_id], *row)
        if refusal is None:
            del found[relation_id]
        else:
            found[relation_id] = refusal
    return found


def hides_rows(error: psycopg.Error) -> bool:
    """Did the server refuse to read a table because a policy would hide rows of it?"""
    return error.diag.source_function == _HIDES_ROWS


def _lacking(
    user: str, publication: str, namespace: str, name: str, owner: str, owned: bool, usage: bool
) -> Refusal | None:
    if not usage:
        return Refusal(
            "the role may not use its schema, so not publish it",
            f"GRANT USAGE ON SCHEMA {quote_ident(namespace)} TO {user};",
        )
    if owned:  # then it is the publication that the role does not own
        return None
    return Refusal(
        f"it is not published, because the role does not own it (its owner is {owner})",
        f"GRANT {quote_ident(owner)} TO {user}; -- or, as a superuser: ALTER PUBLICATION "
        f"{quote_ident(publication)} ADD TABLE {quote_ident(namespace, name)};",
    )


def watermarks_refused(connection: Connection, watermark: TableName) -> Refusal | None:
    """Why watermarks can't be written to the watermark table, which is there; None: they can."""
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
