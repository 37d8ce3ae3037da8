"""Reads the publications: their options, their owners, and their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tidelog.model.schema import TableName

Connection = psycopg.Connection[tuple[Any, ...]]

# The comment of a publication that a capture owns; the slot's name follows it.
MANAGED = "managed by tidelog"
_OF_SLOT = f"{MANAGED} for slot "

# Not pg_publication_tables, which locks each table: it would wait for DDL on any of them.
_MEMBERS = """
SELECT p.pubname, n.nspname, c.relname, member.direct, member.filtered, member.listed
FROM pg_catalog.pg_publication p
JOIN LATERAL (
  SELECT r.prrelid AS oid, true AS direct, {filtered} AS filtered, {listed} AS listed
  FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid
  {namespaces}
  UNION ALL SELECT t.oid, false, false, false FROM pg_catalog.pg_class t
  WHERE p.puballtables AND t.relkind IN ('r', 'p') AND t.relpersistence = 'p'
    AND t.oid >= 16384  -- no table of the system (is_publishable_class)
) AS member ON true
JOIN pg_catalog.pg_class c ON c.oid = member.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = ANY (%s)
ORDER BY member.direct
"""
_MEMBERS_BY_NAMESPACE = """
  UNION ALL SELECT t.oid, false, false, false FROM pg_catalog.pg_publication_namespace s
  JOIN pg_catalog.pg_class t ON t.relnamespace = s.pnnspid
  WHERE s.pnpubid = p.oid AND t.relkind IN ('r', 'p') AND t.relpersistence = 'p'
"""
# Not all versions have pubgencols, hence the JSON.
_PUBLICATIONS = """
SELECT p.pubname, pg_catalog.obj_description(p.oid, 'pg_publication'),
  pg_catalog.pg_has_role(p.pubowner, 'USAGE'), p.puballtables, p.pubviaroot,
  p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate,
  coalesce(to_jsonb(p) ->> 'pubgencols' = 's', false)
FROM pg_catalog.pg_publication p WHERE p.pubname = ANY (%s)
"""


@dataclass(frozen=True, slots=True)
class Member:
    """How a publication includes a table."""

    direct: bool  # by its name; otherwise as one of all tables, or of its schema
    filtered: bool = False  # with a row filter
    listed: bool = False  # with a column list


@dataclass(frozen=True, slots=True)
class PublicationState:
    """The current state of a publication.

    ``slot``: the slot that it was created for; empty: a capture created it before slots were
    recorded; None: no capture created it.
    """

    name: str
    slot: str | None
    alterable: bool  # by the session's role
    all_tables: bool
    via_root: bool
    kinds: tuple[str, ...]
    generated: bool  # publishes stored generated columns
    members: dict[TableName, Member] = field(default_factory=dict)


def managed_for(slot: str | None) -> str:
    """The comment of a publication that this slot owns."""
    return MANAGED if slot is None else _OF_SLOT + slot


def publications_now(connection: Connection, names: Sequence[str]) -> dict[str, PublicationState]:
    """The existing publications of these names, with all their tables."""
    found = {}
    for name, comment, alterable, everything, via_root, *kinds, generated in connection.execute(
        _PUBLICATIONS.encode(), (list(names),)
    ).fetchall():
        published = zip(("insert", "update", "delete", "truncate"), kinds, strict=True)
        found[name] = PublicationState(
            name=name,
            slot=_slot_of(comment),
            alterable=alterable,
            all_tables=everything,
            via_root=via_root,
            kinds=tuple(kind for kind, is_published in published if is_published),
            generated=generated,
        )
    since_15 = connection.info.server_version >= 150000
    query = _MEMBERS.format(
        namespaces=_MEMBERS_BY_NAMESPACE if since_15 else "",
        filtered="r.prqual IS NOT NULL" if since_15 else "false",
        listed="r.prattrs IS NOT NULL" if since_15 else "false",
    )
    for name, namespace, table, direct, filtered, listed in connection.execute(
        query.encode(), (list(found),)
    ):
        # Included by name and by its schema: then there is neither a filter nor a column list.
        members = found[name].members
        in_all = members.get(TableName(namespace, table))
        if direct and in_all is not None:
            filtered = listed = False
        members[TableName(namespace, table)] = Member(direct, filtered, listed)
    return found


def members_of(connection: Connection, publications: Sequence[str]) -> dict[str, set[TableName]]:
    """Tables by publication; only publications that exist."""
    found = publications_now(connection, publications)
    return {name: set(publication.members) for name, publication in found.items()}


def _slot_of(comment: str | None) -> str | None:
    if comment is not None and comment.startswith(_OF_SLOT):
        return comment.removeprefix(_OF_SLOT)
    return "" if comment == MANAGED else None
