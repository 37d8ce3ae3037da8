"""Tables, columns and their immutable numbered schema versions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

# What a column decodes to, whatever the source. ``decimal(p,s)`` carries its parameters.
LOGICAL_TYPES = (
    "bool",
    "int16",
    "int32",
    "int64",
    "float32",
    "float64",
    "date",
    "timestamp",  # without time zone, microseconds
    "timestamptz",  # an instant, microseconds UTC
    "binary",  # written as PostgreSQL's hexadecimal text
    "text",
    "bytes",  # written as they are
)


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table in its namespace (PostgreSQL: schema; MySQL: database)."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """``namespace.name``; a namespace with a dot in it is quoted as in SQL, so that no two
        tables are spelled alike and `parse` finds its way back.
        """
        namespace = self.namespace
        if "." in namespace or namespace.startswith('"'):
            namespace = '"' + namespace.replace('"', '""') + '"'
        return f"{namespace}.{self.name}"

    @classmethod
    def parse(cls, text: str) -> TableName:
        """The table that `str` spelled as ``text``; raises ValueError if it spells none."""
        quoted = re.match(r'"((?:[^"]|"")+)"\.', text)
        if quoted is not None and text[quoted.end() :]:
            return cls(quoted[1].replace('""', '"'), text[quoted.end() :])
        namespace, _, name = text.partition(".")
        if not namespace or not name:
            raise ValueError(f"table {text!r} must be namespace.name")
        return cls(namespace, name)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of one schema version.

    ``logical`` is one of `LOGICAL_TYPES` or ``decimal(p,s)``; ``type_id`` and ``type_mod`` are the
    source's own numbers, ``type_name`` the source's own spelling, e.g. ``numeric(10,2)``.
    """

    name: str
    type_id: int
    type_mod: int
    type_name: str
    logical: str
    nullable: bool = True


@dataclass(frozen=True)
class TableSchema:
    """An immutable version of a table's shape.

    ``key`` names the primary (or surrogate) key's columns in key order; ``identity`` names the
    columns that old images of the log carry, ``identity_kind`` how they were chosen:
    ``d`` default (primary key), ``f`` full, ``i`` a unique index, ``n`` nothing.
    ``schema_id`` is 0 until the schema store has numbered the version (from 1 up).
    ``wire_format`` says which decoder of `tidelog.codecs` reads the payloads, e.g. ``pgoutput``.
    """

    table: TableName
    relation_id: int
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    identity: tuple[str, ...]
    identity_kind: str
    wire_format: str
    schema_id: int = 0

    @cached_property
    def match_key(self) -> tuple[str, ...]:
        """Columns that windows and outputs match rows by: the key, or the identity index's columns
        where deletes carry only those (docs/explanation/architecture.md).
        """
        return self.identity if self.identity_kind == "i" else self.key

    @cached_property
    def nan_key(self) -> frozenset[str]:
        """Columns of the match key whose typed value may be null, and then means PostgreSQL's
        ``NaN`` of a ``numeric(p,s)``, which no decimal has: one value, so that null is one key.
        """
        if self.wire_format != "pgoutput":
            return frozenset()
        return frozenset(
            column.name
            for column in self.columns
            if column.name in self.match_key and column.logical.startswith("decimal(")
        )

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def column_index(self, name: str) -> int:
        return self.column_names.index(name)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal shapes, whatever their ``schema_id``."""
        shape = self.to_json()
        del shape["schema_id"]
        return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:32]

    def numbered(self, schema_id: int) -> TableSchema:
        return replace(self, schema_id=schema_id)

    def only(self, names: Collection[str]) -> TableSchema:
        """Without the columns that are neither of ``names`` nor of a key."""
        kept = {*names, *self.key, *self.identity}
        return replace(self, columns=tuple(c for c in self.columns if c.name in kept))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TableSchema:
        return cls(
            table=TableName(**data["table"]),
            relation_id=data["relation_id"],
            columns=tuple(Column(**column) for column in data["columns"]),
            key=tuple(data["key"]),
            identity=tuple(data["identity"]),
            identity_kind=data["identity_kind"],
            wire_format=data["wire_format"],
            schema_id=data["schema_id"],
        )
