"""Builds table schemas from the catalogue and from the log's relation messages.

Both ways give equal `TableSchema`s for one shape of a table, so that rows of the log and of a chunk
are records of one schema version. Columns that pgoutput does not publish are in neither: dropped
columns, and generated ones unless they are stored and published (PostgreSQL 18).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg

from tidelog.codecs.postgres.formats import FIRST_USER_ID, MULTIRANGES, RANGES
from tidelog.codecs.postgres.pgoutput import RelationSeen
from tidelog.errors import UnsupportedTableError
from tidelog.model.patterns import matches
from tidelog.model.schema import Column, TableName, TableSchema, struct_of
from tidelog.sources.postgres.catalogue.identity import ReplicaIdentity, identities
from tidelog.sources.postgres.connect import Connection
from tidelog.sources.table_settings import (
    ColumnExclusion,
    settings_version,
    surrogate_key,
    unfit_key,
)

_T = TypeVar("_T")

WIRE_FORMAT = "pgoutput"

# Built-in types that decode to something other than text, by oid.
LOGICAL = {
    16: "bool",
    17: "binary",
    20: "int64",
    21: "int16",
    23: "int32",
    26: "int64",  # oid, unsigned 32 bits
    700: "float32",
    701: "float64",
    1082: "date",
    1114: "timestamp",
    1184: "timestamptz",
}
_UNFIT = re.compile(r"[ ,;{}()\n\t=.]")
NUMERIC = 1700
_MOST_DIMENSIONS = 6  # of a value; the catalogue's number is not limited
MAX_DECIMAL_PRECISION = 38

# Columns as pgoutput sends them, in order; attidentity etc. don't matter to it. Not all versions
# have pubgencols, hence the JSON.
_SHAPE = """
WITH published AS (
  SELECT coalesce(bool_and(to_jsonb(p) ->> 'pubgencols' = 's'), false) AS generated
  FROM pg_catalog.pg_publication p WHERE p.pubname = ANY (%s)
)
SELECT n.nspname::text, c.relname::text, c.oid::int8, c.relkind::text, c.relreplident::text,
  (SELECT coalesce(json_agg(json_build_array(a.attnum, a.attname, a.atttypid::int8, a.atttypmod,
     a.attnotnull, a.attndims) ORDER BY a.attnum), '[]')
   FROM pg_catalog.pg_attribute a
   WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
     AND (a.attgenerated = '' OR (a.attgenerated = 's' AND published.generated))),
  (SELECT json_agg(k.attnum ORDER BY k.place)
   FROM pg_catalog.pg_index i
   CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
   -- With a deferrable key two rows may have one key for a moment, in the log as well.
   WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate AND k.place <= i.indnkeyatts),
  (SELECT json_agg(k.attnum ORDER BY k.place)
   FROM pg_catalog.pg_index i
   CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
   WHERE i.indrelid = c.oid AND i.indisreplident AND k.place <= i.indnkeyatts),
  published.generated
FROM published, {tables} WHERE c.relkind IN ('r', 'p')
"""
_NAMED = """unnest(%s::text[], %s::text[]) AS t(namespace, name)
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.namespace
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.name"""
_NUMBERED = """pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND c.oid = %s"""

# Types by (oid, typmod), domains resolved as the server's getBaseTypeAndTypmod does.
_TYPES = """
WITH RECURSIVE asked AS (
  SELECT DISTINCT t, m FROM unnest(%s::int8[], %s::int4[]) AS u(t, m)
), base AS (
  SELECT asked.t, asked.m, y.oid, asked.m AS typmod, y.typtype, y.typbasetype, y.typtypmod
  FROM asked JOIN pg_catalog.pg_type y ON y.oid = asked.t::oid
  UNION ALL
  SELECT base.t, base.m, y.oid, base.typtypmod, y.typtype, y.typbasetype, y.typtypmod
  FROM base JOIN pg_catalog.pg_type y ON y.oid = base.typbasetype
  WHERE base.typtype = 'd'
)
SELECT t, m, pg_catalog.format_type(t::oid, m), oid::int8, typmod FROM base WHERE typtype <> 'd'
"""

# The parts of types: elements of arrays, what domains are over, bounds of ranges, attributes. A
# type that lost an attribute has none here: values from before may have as many, of other names.
_PARTS = """
SELECT y.oid::int8,
  CASE WHEN y.typcategory = 'A' AND y.typelem <> 0 THEN 'a' ELSE y.typtype END::text,
  CASE WHEN y.typtype = 'd' THEN y.typbasetype WHEN y.typtype = 'r' THEN r.rngsubtype
    WHEN y.typtype = 'm' THEN m.rngtypid ELSE y.typelem END::int8, y.typtypmod,
  (SELECT CASE WHEN bool_and(NOT a.attisdropped)
     THEN json_agg(json_build_array(a.attname, a.atttypid::int8, a.atttypmod) ORDER BY a.attnum)
     ELSE '[]' END
   FROM pg_catalog.pg_attribute a
   WHERE a.attrelid = y.typrelid AND y.typtype = 'c' AND a.attnum > 0)
FROM pg_catalog.pg_type y
LEFT JOIN pg_catalog.pg_range r ON r.rngtypid = y.oid AND y.typtype = 'r'
LEFT JOIN pg_catalog.pg_range m ON m.rngmultitypid = y.oid AND y.typtype = 'm'
WHERE y.oid = ANY (%s::int8[]::oid[])
"""

_ABOVE = """
SELECT below.oid::int8, n.nspname, c.relname
FROM unnest(%s::int8[]::oid[]) AS below(oid)
CROSS JOIN LATERAL pg_catalog.pg_partition_ancestors(below.oid::regclass) a
JOIN pg_catalog.pg_class c ON c.oid = a.relid AND c.oid <> below.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
"""
# A dropped relation that a publication may have shown by its own name although it was a partition.
_HIDDEN = b"""
SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_class WHERE oid = %s)
  AND EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = ANY (%s) AND NOT pubviaroot)
"""
_THERE = b"SELECT oid::int8 FROM pg_catalog.pg_class WHERE oid = ANY (%s::int8[]::oid[])"


@dataclass(frozen=True, slots=True)
class _Relation:
    """A table's catalogue row; columns are (attnum, name, type oid, typmod, not null,
    dimensions as declared).
    """

    table: TableName
    oid: int
    kind: str
    identity: str
    columns: list[tuple[int, str, int, int, bool, int]]
    key: list[int]
    identity_index: list[int]
    generated: bool  # stored generated columns are published

    @property
    def names(self) -> list[str]:
        return [name for _, name, *_ in self.columns]

    def dimensions(self, types: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
        """Those of arrays that were declared with several, of columns that still have this type."""
        return tuple(
            (name, number)
            for _, name, type_oid, *_, number in self.columns
            if 1 < number <= _MOST_DIMENSIONS and types.get(name) == type_oid
        )


@dataclass(frozen=True, slots=True)
class _Related:
    """What other catalogue rows say of some relations.

    Attributes:
        identities: of partitioned tables, by their partitions.
        types: name, base type and its typmod of a column's type, by oid and typmod.
        parts: of types that users defined, by oid.
        above: the tables of which a relation is a partition. Read only to exclude columns.
        there: the relations that exist. As ``above``.
    """

    identities: Mapping[int, ReplicaIdentity]
    types: Mapping[tuple[int, int], tuple[str, int, int]]
    parts: Mapping[int, tuple[Any, ...]]
    above: Mapping[int, Sequence[TableName]]
    there: Collection[int]


@dataclass(frozen=True, slots=True)
class PostgresFoundTable:
    """A table's schema and what a SELECT needs in addition. ``unfit``: why ``source.keys`` gives
    the table no key although a pattern matches it; None if all is well.
    """

    schema: TableSchema
    partitioned: bool
    unfit: str | None = None


class PostgresSchemaFinder:
    """Builds schemas over the caller's connection, whose transaction decides what is visible.

    Args:
        keys: by table pattern, the columns of a surrogate key for tables without a primary key.
        publications: decide whether stored generated columns belong to a table.
        exclude_columns: patterns of columns that schemas lack (`ColumnExclusion`).
    """

    def __init__(
        self,
        keys: Mapping[str, Sequence[str]] | None = None,
        publications: Sequence[str] = (),
        exclude_columns: Sequence[str] = (),
    ) -> None:
        self.exclusion = ColumnExclusion.of(exclude_columns)
        self.publications = list(publications)
        self._keys = {pattern: tuple(columns) for pattern, columns in (keys or {}).items()}
        self.settings_version = settings_version(self.exclusion.patterns, self._keys)

    def names_key_of(self, table: TableName) -> bool:
        """Return whether ``keys`` has a pattern for the table."""
        return matches(list(self._keys), table)

    def find(self, connection: Connection, table: TableName) -> PostgresFoundTable | None:
        """The table in this transaction's snapshot; None if there is none. Raises
        UnsupportedTableError if a column of its key is excluded.
        """
        return one_of(self.find_all(connection, [table]), table)

    def find_all(
        self, connection: Connection, tables: Sequence[TableName]
    ) -> dict[TableName, PostgresFoundTable | UnsupportedTableError]:
        """Those of the tables that exist, or the error that `find` raises; by a few queries."""
        names = ([table.namespace for table in tables], [table.name for table in tables])
        query = _SHAPE.format(tables=_NAMED).encode()
        rows = connection.execute(query, (self.publications, *names)).fetchall()
        relations = [_relation(row) for row in rows]
        types = {(column[2], column[3]) for each in relations for column in each.columns}
        related = self._related(connection, [each.oid for each in relations], relations, types)
        found: dict[TableName, PostgresFoundTable | UnsupportedTableError] = {}
        for relation in relations:
            try:
                found[relation.table] = self._found(relation, related)
            except UnsupportedTableError as error:
                found[relation.table] = error
        return found

    def _found(self, relation: _Relation, related: _Related) -> PostgresFoundTable:
        names = relation.names
        kind, identity = _of_partitions(related, relation, names) or (
            relation.identity,
            _identity_columns(relation),
        )
        columns, structures = _columns(related, [c[1:5] for c in relation.columns])
        schema = TableSchema(
            table=relation.table,
            relation_id=relation.oid,
            columns=columns,
            key=self._key(relation.table, relation, names, kind, identity),
            identity=identity,
            identity_kind=kind,
            wire_format=WIRE_FORMAT,
            structures=structures,
            dimensions=relation.dimensions({column.name: column.type_id for column in columns}),
        )
        unfit = None if schema.key else unfit_key(self._keys, relation.table, names)
        schema = self._without_excluded(related, schema)
        return PostgresFoundTable(schema, relation.kind == "p", unfit)

    def schema_of_relation(self, connection: Connection, seen: RelationSeen) -> TableSchema:
        """The schema of a relation message, which may be older than the catalogue.

        Columns, types and identity are from the message; the catalogue adds the primary key and
        nullability, as far as it still fits. Raises UnsupportedTableError as `find`.
        """
        table = TableName(seen.namespace, seen.name)
        row = connection.execute(
            _SHAPE.format(tables=_NUMBERED).encode(),
            (self.publications, seen.relation_id),
        ).fetchone()
        relation = None if row is None else _relation(row)
        not_null = set() if relation is None else {c[1] for c in relation.columns if c[4]}
        names = [name for _, name, _, _ in seen.columns]
        types = {(type_oid, typmod) for _, _, type_oid, typmod in seen.columns}
        relations = [] if relation is None else [relation]
        related = self._related(connection, [seen.relation_id], relations, types)
        kind = seen.replica_identity
        identity = tuple(name for flags, name, _, _ in seen.columns if flags & 1)
        if relation is not None:
            kind, identity = _of_partitions(related, relation, names) or (kind, identity)
        columns = [
            (name, type_oid, typmod, name in not_null) for _, name, type_oid, typmod in seen.columns
        ]
        built, structures = _columns(related, columns)
        schema = TableSchema(
            table=table,
            relation_id=seen.relation_id,
            columns=built,
            key=self._key(table, relation, names, kind, identity),
            identity=identity,
            identity_kind=kind,
            wire_format=WIRE_FORMAT,
            structures=structures,
            dimensions=()
            if relation is None
            else relation.dimensions({column.name: column.type_id for column in built}),
        )
        return self._without_excluded(related, schema)

    def _related(
        self,
        connection: Connection,
        relation_ids: Sequence[int],
        relations: Sequence[_Relation],
        types: Collection[tuple[int, int]],
    ) -> _Related:
        """Read what belongs to these relations; ``relations``: those that exist."""
        found: dict[int, ReplicaIdentity] = {}
        if partitioned := [relation for relation in relations if relation.kind == "p"]:
            oids, generated = [each.oid for each in partitioned], partitioned[0].generated
            found = identities(connection, oids, generated=generated)
        asked = ([type_oid for type_oid, _ in types], [typmod for _, typmod in types])
        rows = connection.execute(_TYPES.encode(), asked).fetchall()
        named = {(row[0], row[1]): row[2:] for row in rows}
        parts = _parts(connection, {base for _, base, _ in named.values()})
        above: Mapping[int, Sequence[TableName]] = {}
        there: set[int] = set()
        if self.exclusion.patterns:
            above = tables_above(connection, relation_ids)
            # Last: one that is there now was there when the tables above it were looked up.
            there = {oid for (oid,) in connection.execute(_THERE, (list(relation_ids),))}
        return _Related(found, named, parts, above, there)

    def _without_excluded(self, related: _Related, schema: TableSchema) -> TableSchema:
        """The schema without excluded columns, also those of a table of which it is a partition:
        a publication of others may show partitions by their own names.
        """
        above = related.above.get(schema.relation_id, ())
        return self.exclusion.apply(schema, above, dropped=schema.relation_id not in related.there)

    def _key(
        self,
        table: TableName,
        relation: _Relation | None,
        present: list[str],
        kind: str,
        identity: tuple[str, ...],
    ) -> tuple[str, ...]:
        """The primary key's columns; else those that ``keys`` names; else those by which rows are
        identified: of an index, which has no NULL, or of a primary key that is there no more.

        ``relation`` has the columns' own order, and may be younger than the identity.
        """
        primary = () if relation is None else _names(relation, relation.key)
        if kind == "d" and identity:
            return primary if set(primary) == set(identity) else identity
        if primary and set(primary) <= set(present):
            return primary
        if self.names_key_of(table) or kind != "i":
            return surrogate_key(self._keys, table, present)
        index = () if relation is None else _names(relation, relation.identity_index)
        return index if set(index) == set(identity) else identity


def one_of(found: Mapping[TableName, _T | UnsupportedTableError], table: TableName) -> _T | None:
    """Return what was found of a table, None if nothing was, or raise its error."""
    one = found.get(table)
    if isinstance(one, UnsupportedTableError):
        raise one
    return one


def _of_partitions(
    related: _Related, relation: _Relation, names: Sequence[str]
) -> tuple[str, tuple[str, ...]] | None:
    """A partitioned table's identity by its partitions; None: its own identity is right."""
    identity = related.identities.get(relation.oid)
    if identity is None or identity.trouble is not None:
        return None
    if identity.columns is None:
        return identity.kind, tuple(names)
    columns = tuple(name for name in names if name in identity.columns)
    return (identity.kind, columns) if len(columns) == len(identity.columns) else None


def _columns(
    related: _Related, columns: Sequence[tuple[str, int, int, bool]]
) -> tuple[tuple[Column, ...], tuple[tuple[str, str], ...]]:
    """The columns, and the structures of those of composite and range types, and of their
    arrays.
    """
    built, structures = [], []
    for name, type_oid, typmod, not_null in columns:
        # A type that was dropped since is delivered as text, like all unknown types.
        unknown = (f"oid {type_oid}", 0, -1)
        type_name, base, base_mod = related.types.get((type_oid, typmod), unknown)
        logical = logical_type(base, base_mod)
        built.append(Column(name, type_oid, typmod, type_name, logical, not not_null))
        if base >= FIRST_USER_ID and "(" in (kind := _structure(base, -1, related.parts)):
            structures.append((name, kind))
    return tuple(built), tuple(structures)


def _parts(connection: Connection, types: set[int]) -> dict[int, tuple[Any, ...]]:
    """The parts of those of the types that users defined, and the parts of these."""
    parts: dict[int, tuple[Any, ...]] = {}
    wanted = {oid for oid in types if oid >= FIRST_USER_ID}
    while wanted:
        rows = connection.execute(_PARTS.encode(), (list(wanted),)).fetchall()
        parts.update({row[0]: row[1:] for row in rows})
        found = {part for row in rows for part in (row[2], *(each[1] for each in row[4]))}
        wanted = {oid for oid in found if oid >= FIRST_USER_ID} - parts.keys()
    return parts


def composite_types(schema: TableSchema) -> list[int]:
    """The types of the columns whose structures have attributes of composites."""
    names = {name for name, kind in schema.structures if "struct(" in kind}
    return [column.type_id for column in schema.columns if column.name in names]


def _structure(type_oid: int, typmod: int, parts: Mapping[int, tuple[Any, ...]]) -> str:
    """The logical type of a part of a type; what has no other is text."""
    if type_oid < FIRST_USER_ID:
        return _built_in(type_oid, typmod)
    kind, of, of_mod, attributes = parts.get(type_oid, ("", 0, -1, ()))
    if kind == "d":
        return _structure(of, of_mod, parts)
    if kind == "a":
        element = _structure(of, typmod, parts)
        return f"array({element})" if element.startswith(("struct(", "range(")) else "text"
    if kind == "r":
        return f"range({_structure(of, -1, parts)})"
    if kind == "m":
        return f"multi{_structure(of, -1, parts)}"
    names = [name.lower() for name, *_ in attributes]
    # Lakes refuse these names of members, and Spark names that differ by case.
    if kind != "c" or not names or len({*names}) < len(names) or _UNFIT.search("".join(names)):
        return "text"
    return struct_of([(name, _structure(oid, mod, parts)) for name, oid, mod in attributes])


def _built_in(type_oid: int, typmod: int) -> str:
    if type_oid in RANGES:
        bound = RANGES[type_oid]
        return f"range({'text' if bound == 'numeric' else bound})"
    if type_oid in MULTIRANGES:
        return f"multi{_built_in(MULTIRANGES[type_oid], -1)}"
    return logical_type(type_oid, typmod).replace("decimal(", "numeric(")  # which has no NaN


def tables_above(
    connection: psycopg.Connection[tuple[Any, ...]], relation_ids: Sequence[int]
) -> dict[int, list[TableName]]:
    """The partitioned tables of which each of the relations is a partition now, if any."""
    found: dict[int, list[TableName]] = {}
    for oid, *name in connection.execute(_ABOVE.encode(), (list(relation_ids),)):
        found.setdefault(oid, []).append(TableName(*name))
    return found


def may_have_been_partition(
    connection: psycopg.Connection[tuple[Any, ...]], relation_id: int, publications: Sequence[str]
) -> bool:
    """Return whether the relation is gone, and these publications show partitions as tables: then
    nobody can know any more whether it was one.
    """
    row = connection.execute(_HIDDEN, (relation_id, list(publications))).fetchone()
    return row is not None and bool(row[0])


def logical_type(type_oid: int, typmod: int) -> str:
    """The logical type of a built-in type; every other type is text."""
    if type_oid == NUMERIC and typmod >= 4:
        precision = (typmod - 4) >> 16
        scale = ((typmod - 4) & 0x7FF ^ 1024) - 1024  # 11 bits, signed since PostgreSQL 15
        if precision <= MAX_DECIMAL_PRECISION and 0 <= scale <= precision:
            return f"decimal({precision},{scale})"
    return LOGICAL.get(type_oid, "text")


def _relation(row: tuple[Any, ...]) -> _Relation:
    namespace, name, oid, kind, identity, columns, key, index, generated = row
    return _Relation(
        table=TableName(namespace, name),
        oid=oid,
        kind=kind,
        identity=identity,
        columns=[tuple(column) for column in columns],
        key=key or [],
        identity_index=index or [],
        generated=generated,
    )


def _names(relation: _Relation, attnums: Sequence[int]) -> tuple[str, ...]:
    """The columns' names; empty if one is not published (a generated column)."""
    by_number = {column[0]: column[1] for column in relation.columns}
    if not all(number in by_number for number in attnums):
        return ()
    return tuple(by_number[number] for number in attnums)


def _identity_columns(relation: _Relation) -> tuple[str, ...]:
    """The columns that the relation message flags, in column order."""
    if relation.identity == "f":
        return tuple(column[1] for column in relation.columns)
    if relation.identity == "d":
        return _names(relation, sorted(relation.key))
    if relation.identity == "i":
        return _names(relation, sorted(relation.identity_index))
    return ()
