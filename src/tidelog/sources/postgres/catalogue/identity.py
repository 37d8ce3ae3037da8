"""Determines whether updates and deletes of a table can be published, and with which columns.

The server logs the old state of a changed row by the replica identity *of the partition that holds
it*, and sends it under the root's relation message, which flags the root's identity. So a
partitioned table is identified by columns that every one of its partitions logs. If updates are
published that the server can't log, the application's UPDATE and DELETE fail
(``CheckCmdReplicaIdentity``): such a table is reported with the reason and the SQL that fixes it.
So are missing rights to publish a table or to write watermarks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from tidelog.model.patterns import matching_columns
from tidelog.model.schema import TableName, double_quoted
from tidelog.model.units import and_more
from tidelog.ports import UnsupportedReason
from tidelog.sources.postgres.connect import Connection

# The first version that logs generated columns, and that refuses updates whose identity has
# generated columns that are not published.
GENERATED_VERSION = 180000

# RelationGetReplicaIndex requires a valid index that is not deferrable. Whether an identity's
# columns are generated matters only for FULL, which has all columns.
_TREES = """
WITH RECURSIVE tree AS (
  SELECT c.oid AS root, c.oid, c.relkind FROM pg_catalog.pg_class c WHERE c.oid = ANY (%s::oid[])
  UNION ALL
  SELECT tree.root, i.inhrelid, c.relkind
  FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid
  JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
  WHERE tree.relkind = 'p'
)
SELECT tree.root::int8, tree.oid::int8, n.nspname, c.relname, c.relreplident::text,
  {primary}, CASE c.relreplident WHEN 'i' THEN {identity} END,
  EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary),
  c.relreplident = 'f' AND EXISTS (SELECT FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = 's'),
  EXISTS (SELECT FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = 'v'),
  CASE WHEN c.relreplident <> 'f' AND NOT (c.relreplident = 'd' AND EXISTS (
    SELECT FROM pg_catalog.pg_index i
    WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate)) THEN {unique} END
FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE tree.oid = tree.root OR c.relkind = 'r'
ORDER BY 3, 4
"""
_INDEX = """(SELECT json_agg(json_build_array(a.attname, a.attgenerated <> '') ORDER BY k.place)
   FROM pg_catalog.pg_index i
   CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
   JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
   WHERE i.indrelid = c.oid AND i.{flag} AND i.indisvalid AND i.indimmediate
     AND k.place <= i.indnkeyatts)"""
# The indexes that can be made the identity, the shortest first, each with its columns.
_UNIQUE_INDEXES = """(SELECT json_agg(json_build_array(x.relname,
     (SELECT json_agg(a.attname) FROM pg_catalog.pg_attribute a
      WHERE a.attrelid = i.indrelid
        AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])))
     ORDER BY i.indnkeyatts, i.indexrelid)
   FROM pg_catalog.pg_index i
   JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
   WHERE i.indrelid = c.oid AND i.indisunique AND NOT i.indisprimary AND i.indisvalid
     AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL AND NOT EXISTS (
       SELECT FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
       JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
       WHERE k.place <= i.indnkeyatts AND (NOT a.attnotnull OR a.attgenerated <> '')))"""
_QUERY = _TREES.format(
    primary=_INDEX.format(flag="indisprimary"),
    identity=_INDEX.format(flag="indisreplident"),
    unique=_UNIQUE_INDEXES,
)

# The published columns of old states; None means all of them, as with FULL.
Columns = frozenset[str] | None


@dataclass(frozen=True, slots=True)
class IdentityTrouble:
    """Why a table's updates and deletes can't be published, and the statements that fix it."""

    why: str
    fix: tuple[str, ...] = ()
    advice: str = ""  # if no statement fixes it, or in addition

    @property
    def remedy(self) -> str:
        """The statements, with the advice as a comment."""
        sql = " ".join(self.fix)
        if not self.advice:
            return sql
        return f"{sql} -- {self.advice}" if sql else self.advice


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """How the log identifies rows of a table.

    Attributes:
        kind: how the columns were chosen, as in `TableSchema.identity_kind`.
        columns: the columns in each old state of the log; None: all.
        trouble: why updates can't be published; kind and columns are then of no use.
        needs_generated: True if it is valid only where stored generated columns are published.
    """

    kind: str
    columns: Columns
    trouble: IdentityTrouble | None = None
    needs_generated: bool = False  # sound only where stored generated columns are published


@dataclass(frozen=True, slots=True)
class _Member:
    """A table or one of its partitions; columns are (name, is generated)."""

    quoted: str
    name: str
    kind: str
    primary: tuple[tuple[str, bool], ...]
    index: tuple[tuple[str, bool], ...]
    keyed: bool  # has a primary key, valid as identity or not
    stored: bool  # FULL includes a stored generated column
    virtual: bool
    unique: str | None  # an index that can be its identity, if it needs one


def identities(
    connection: Connection,
    relation_ids: Sequence[int],
    *,
    generated: bool = False,
    exclude_columns: Sequence[str] = (),
) -> dict[int, ReplicaIdentity]:
    """The identity of each of these tables, including their partitions, by one query.

    Args:
        connection: the source.
        relation_ids: the tables' oids; tables that no longer exist are left out.
        generated: whether the publications publish stored generated columns.
        exclude_columns: patterns of columns that no index to be proposed may have.
    """
    trees: dict[int, tuple[list[_Member], list[_Member]]] = {}
    for root, oid, *values in connection.execute(_QUERY.encode(), (list(relation_ids),)):
        trees.setdefault(root, ([], []))[root != oid].append(_member(values, exclude_columns))
    logs_generated = connection.info.server_version >= GENERATED_VERSION
    found = {}
    for root, ((table,), partitions) in trees.items():
        identity = _identity(table, partitions, logs_generated, generated)
        if identity.trouble is not None and logs_generated and not generated:
            better = _identity(table, partitions, logs_generated, generated=True)
            if better.trouble is None:
                identity = ReplicaIdentity(
                    identity.kind, identity.columns, identity.trouble, needs_generated=True
                )
        found[root] = identity
    return found


def _member(values: Sequence[Any], exclude_columns: Sequence[str]) -> _Member:
    namespace, name, kind, primary, index, keyed, stored, virtual, unique = values
    table = TableName(namespace, name)
    fitting = (
        index_name
        for index_name, columns in unique or ()
        if not matching_columns(exclude_columns, table, columns)
    )
    return _Member(
        quoted=double_quoted(namespace, name),
        name=f"{namespace}.{name}",
        kind=kind,
        primary=tuple((column, of) for column, of in primary or ()),
        index=tuple((column, of) for column, of in index or ()),
        keyed=keyed,
        stored=stored,
        virtual=virtual,
        unique=next(fitting, None),
    )


def _identity(
    table: _Member, partitions: Sequence[_Member], logs_generated: bool, generated: bool
) -> ReplicaIdentity:
    if partitions:  # a statement for each: their indexes may have other columns
        table = replace(table, unique=None)
        partitions = [replace(each, unique=None) for each in partitions]
    own, trouble = _logged_columns(table, logs_generated, generated)
    if not partitions:
        return ReplicaIdentity(table.kind, own, trouble)
    common: Columns = None
    troubled: list[tuple[_Member, IdentityTrouble]] = []
    for partition in partitions:
        columns, of_partition = _logged_columns(partition, logs_generated, generated)
        if of_partition is not None:
            troubled.append((partition, of_partition))
        common = _common(common, columns)
    if troubled:
        return ReplicaIdentity(table.kind, own, _trouble_of_partitions(table, trouble, troubled))
    primary: Columns = frozenset(name for name, _ in table.primary)
    for kind, wanted in ((table.kind, own), ("d", primary)):
        if (wanted is None or wanted) and _common(common, wanted) == wanted:
            return ReplicaIdentity(kind, wanted)
    differ = _partitions_differ(table, partitions, own, primary, logs_generated)
    return ReplicaIdentity(table.kind, own, differ)


def _common(one: Columns, other: Columns) -> Columns:
    """The columns that are in both."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _logged_columns(
    member: _Member, logs_generated: bool, generated: bool
) -> tuple[Columns, IdentityTrouble | None]:
    """The columns of old states, or none and the reason."""
    nothing: Columns = frozenset()
    if member.kind == "f":
        if logs_generated and (member.virtual or (member.stored and not generated)):
            how = "virtual generated columns" if member.virtual else "generated columns"
            return nothing, IdentityTrouble(
                f"REPLICA IDENTITY FULL takes in {how}, which are not published",
                _default_identity_sql(member, generated),
                "" if _default_identity_sql(member, generated) else _NEED_KEY,
            )
        return None, None
    columns = {"d": member.primary, "i": member.index}.get(member.kind, ())
    if any(of for _, of in columns) and not (logs_generated and generated):
        return nothing, IdentityTrouble(
            "its replica identity has a generated column, which is not published",
            _other_identity_sql(member, logs_generated),
            _NEED_KEY,
        )
    if columns:
        return frozenset(name for name, _ in columns), None
    why = {
        "n": "its replica identity is NOTHING",
        "i": "the index that was its replica identity is gone",
    }.get(member.kind)
    if why is None:
        why = "its primary key is deferrable" if member.keyed else "it has no primary key"
    fix = _default_identity_sql(member, generated) or _other_identity_sql(member, logs_generated)
    return nothing, IdentityTrouble(why, fix, "" if member.primary else _NEED_KEY)


_NEED_KEY = "or give it a primary key of plain columns that is not deferrable"


def _default_identity_sql(member: _Member, generated: bool) -> tuple[str, ...]:
    """The statement that sets the primary key as identity, if that identifies rows."""
    if not member.primary or (any(of for _, of in member.primary) and not generated):
        return ()
    return (f"ALTER TABLE {member.quoted} REPLICA IDENTITY DEFAULT;",)


def _other_identity_sql(member: _Member, logs_generated: bool) -> tuple[str, ...]:
    """The statement that sets a unique index as identity, or, without one, the whole row."""
    if member.unique is not None:
        index = double_quoted(member.unique)
        return (f"ALTER TABLE {member.quoted} REPLICA IDENTITY USING INDEX {index};",)
    if logs_generated and member.virtual:
        return ()
    return (f"ALTER TABLE {member.quoted} REPLICA IDENTITY FULL;",)


def _trouble_of_partitions(
    table: _Member,
    own: IdentityTrouble | None,
    troubled: Sequence[tuple[_Member, IdentityTrouble]],
) -> IdentityTrouble:
    """Return the trouble of all these partitions, with every statement that fixes it: once one is
    fixed, the application's updates of the others must not fail.

    ``own``: that of the partitioned table itself, which counts unless it has a primary key.
    """
    first, trouble = troubled[0]
    also = and_more(len(troubled) - 1, "partition")
    every = [each for _, each in troubled]
    if own is not None and not table.primary:
        every.insert(0, own)
    fix = tuple(sql for each in every for sql in each.fix)
    return IdentityTrouble(f"{first.name}{also}: {trouble.why}", fix, trouble.advice)


def _partitions_differ(
    table: _Member,
    partitions: Sequence[_Member],
    own: Columns,
    primary: Columns,
    logs_generated: bool,
) -> IdentityTrouble:
    """The trouble: no columns of the table are in the old states of all partitions."""
    if not primary and own is not None and not own:
        everywhere = [table, *partitions]
        return IdentityTrouble(
            "the partitioned table itself has no primary key and no replica identity",
            tuple(sql for each in everywhere for sql in _other_identity_sql(each, logs_generated)),
            _NEED_KEY,
        )
    differ = [each for each in partitions if not _carries(each, primary or own)]
    return IdentityTrouble(
        f"{len(differ)} of its partitions have a replica identity that leaves out columns of the "
        f"table's own, {differ[0].name} for one",
        tuple(sql for each in differ for sql in _fix_identity_sql(each, primary, logs_generated)),
        "" if primary else _NEED_KEY,
    )


def _carries(partition: _Member, wanted: Columns) -> bool:
    columns: Columns
    if partition.kind == "f":
        columns = None
    else:
        named = partition.primary if partition.kind == "d" else partition.index
        columns = frozenset(name for name, _ in named)
    return _common(columns, wanted) == wanted


def _fix_identity_sql(
    partition: _Member, primary: Columns, logs_generated: bool
) -> tuple[str, ...]:
    if primary and primary <= {name for name, _ in partition.primary}:
        return (f"ALTER TABLE {partition.quoted} REPLICA IDENTITY DEFAULT;",)
    return _other_identity_sql(partition, logs_generated)


# Rights to publish tables and to write watermarks.

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
) -> UnsupportedReason | None:
    """Why the server does not let the role publish one table; None if the table is not
    the cause.
    """
    state, message = error.sqlstate, error.diag.message_primary
    if state == _LOCKED:
        return UnsupportedReason("another session holds a lock on it, so it is not published yet")
    if state in _OF_TABLE:
        return UnsupportedReason(f"it can't be published: {message}")
    if state != _DENIED:
        return None
    found = not_owned(connection, {relation_id: publication})
    return found.get(relation_id) or UnsupportedReason(f"it can't be published: {message}")


def not_owned(connection: Connection, wanted: Mapping[int, str]) -> dict[int, UnsupportedReason]:
    """The rights that the role lacks to publish tables, by relation.

    ``wanted``: the publication of each relation. A relation that is missing in the result lacks no
    right; then the role does not own the publication.
    """
    rows = connection.execute(
        b"SELECT c.oid::int8, n.nspname, c.relname, pg_catalog.pg_get_userbyid(c.relowner), "
        b"r.rolsuper, pg_catalog.pg_has_role(c.relowner, 'USAGE'), "
        b"pg_catalog.has_schema_privilege(n.oid, 'USAGE') FROM pg_catalog.pg_class c "
        b"JOIN pg_catalog.pg_roles r ON r.oid = c.relowner "
        b"JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY (%s::oid[])",
        (list(wanted),),
    ).fetchall()
    user = double_quoted(connection.info.user)
    found = dict.fromkeys(wanted, UnsupportedReason("it is gone"))
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
    user: str,
    publication: str,
    namespace: str,
    name: str,
    owner: str,
    is_superuser: bool,
    owned: bool,
    usage: bool,
) -> UnsupportedReason | None:
    if not usage:
        return UnsupportedReason(
            "the role may not use its schema, so it can't publish it",
            f"GRANT USAGE ON SCHEMA {double_quoted(namespace)} TO {user};",
        )
    if owned:  # then the role does not own the publication
        return None
    table = double_quoted(namespace, name)
    add = f"ALTER PUBLICATION {double_quoted(publication)} ADD TABLE {table};"
    # A member of a superuser's role would be one.
    grant = f"; or, which gives all rights of its owner: GRANT {double_quoted(owner)} TO {user}"
    return UnsupportedReason(
        f"it is not published, because the role does not own it (its owner is {owner})",
        f"{add} -- as a superuser{'' if is_superuser else grant}",
    )


def watermarks_refused(connection: Connection, watermark: TableName) -> UnsupportedReason | None:
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
    user = double_quoted(connection.info.user)
    table = double_quoted(watermark.namespace, watermark.name)
    grants = []
    if not usage:
        grants.append(f"GRANT USAGE ON SCHEMA {double_quoted(watermark.namespace)} TO {user};")
    if not write:
        grants.append(f"GRANT SELECT, INSERT, UPDATE ON {table} TO {user};")
    if not grants:
        return None
    return UnsupportedReason(
        "the role may not write watermarks to it: no table can be dumped",
        " ".join(grants),
        all_dumps=True,
    )
