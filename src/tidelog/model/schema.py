"""Tables, columns and their immutable numbered schema versions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

# The type that a column decodes to, for any source. ``decimal(p,s)`` has its parameters. Who reads
# may ask for other types of some columns (`tidelog.codecs.wire_formats`), which `NATIVE` names:
# ``array(T)``, of elements of type ``T``, perhaps arrays; ``numeric(p,s)``, of numbers without
# limits that must fit ``decimal(p,s)``; ``variant``, of JSON; ``map``, of text by text;
# ``range(T)`` and ``multirange(T)``, of bounds of type ``T``; ``struct([["name","T"],…])``;
# ``interval``; and ``time``, of day.
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
NATIVE = (
    "array", "numeric", "variant", "map", "range", "multirange", "struct", "interval", "time",
)  # fmt: skip
_DECIMAL = re.compile(r"(?:decimal|numeric)\((\d+),(\d+)\)")
_ARRAY = re.compile(r"array\((.+)\)")
_RANGE = re.compile(r"(multi)?range\((.+)\)")
_STRUCT = re.compile(r"struct\((.+)\)")
_OF_RANGES = (("lower_inclusive", "bool"), ("upper_inclusive", "bool"), ("empty", "bool"))
_OF_INTERVALS = (("months", "int32"), ("days", "int32"), ("microseconds", "int64"))


@lru_cache(maxsize=1024)
def decimal_parameters(logical: str) -> tuple[int, int] | None:
    """(precision, scale) of ``decimal(p,s)`` and ``numeric(p,s)``; None for any other logical
    type.
    """
    match = _DECIMAL.fullmatch(logical)
    return (int(match[1]), int(match[2])) if match else None


_OTHER_SEPARATOR = ("box[]",)
# By the name in a source of an element's type, without lengths; others are text.
_ELEMENTS = {
    "boolean": "bool",
    "smallint": "int16",
    "integer": "int32",
    "bigint": "int64",
    "oid": "int64",
    "real": "float32",
    "double precision": "float64",
    "date": "date",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
    "bytea": "binary",
}


@lru_cache(maxsize=1024)
def element_of(logical: str) -> str | None:
    """The logical type of an array's elements; None for any other logical type."""
    match = _ARRAY.fullmatch(logical)
    if match is None and logical.startswith("multirange("):
        return logical.removeprefix("multi")
    return match[1] if match else None


def element_name(type_name: str) -> str | None:
    """Return the name of the type of an array's elements; None: it is no array, or one whose text
    has another separator than a comma.
    """
    if not type_name.endswith("[]") or type_name in _OTHER_SEPARATOR:
        return None
    return type_name.removesuffix("[]")


def element_logical(name: str) -> str:
    """Return the logical type of elements of this type, unless it is a number of limited digits."""
    return _ELEMENTS.get(re.sub(r"\(\d+\)", "", name), "text")


def is_native(logical: str) -> bool:
    """Is it a type that only who reads asks for?"""
    return logical.partition("(")[0] in NATIVE


@lru_cache(maxsize=1024)
def members_of(logical: str) -> tuple[tuple[str, str], ...] | None:
    """The names and the logical types of the members of a struct, a range and an interval; None for
    any other logical type.
    """
    match = _RANGE.fullmatch(logical)
    if match is not None and match[1] is None:
        return ("lower", match[2]), ("upper", match[2]), *_OF_RANGES
    if logical == "interval":
        return _OF_INTERVALS
    match = _STRUCT.fullmatch(logical)
    return None if match is None else tuple((name, kind) for name, kind in json.loads(match[1]))


def struct_of(members: Sequence[tuple[str, str]]) -> str:
    """The logical type of a struct with these members: names and logical types."""
    return f"struct({json.dumps(members, ensure_ascii=False, separators=(',', ':'))})"


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table in its namespace (PostgreSQL: schema; MySQL: database)."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """Return ``namespace.name``; a namespace with a dot, or ``"`` or ``!`` in front, is quoted
        as in SQL.

        So no two tables have the same text, `parse` can read it, and as a pattern it selects.
        """
        namespace = self.namespace
        if "." in namespace or namespace.startswith(('"', "!")):
            namespace = double_quoted(namespace)
        return f"{namespace}.{self.name}"

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Return the table of a `str`. Raises ValueError if the text is none."""
        quoted = re.match(r'"((?:[^"]|"")+)"\.', text)
        if quoted is not None and text[quoted.end() :]:
            return cls(quoted[1].replace('""', '"'), text[quoted.end() :])
        namespace, _, name = text.partition(".")
        if not namespace or not name:
            raise ValueError(f"table {text!r} must be namespace.name")
        return cls(namespace, name)

    def lower_case(self) -> TableName:
        """Return the name as a server keeps it that folds names to lower case."""
        return TableName(self.namespace.lower(), self.name.lower())


def double_quoted(*names: str) -> str:
    """Return a qualified identifier of SQL, each part in double quotes."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def backticked(*names: str) -> str:
    """Return a qualified identifier of MySQL, MariaDB or Spark, each part in backticks."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


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


@dataclass(frozen=True, slots=True)
class ExcludedColumn:
    """A column of a table that ``source.exclude_columns`` keeps out of the event log. ``place``:
    its index among all columns of the table.
    """

    place: int
    column: Column


@dataclass(frozen=True)
class TableSchema:
    """An immutable version of a table's shape.

    ``key`` names the primary (or surrogate) key's columns in key order; ``identity`` names the
    columns in old images of the log, ``identity_kind`` how they were chosen: ``d`` default (primary
    key), ``f`` full, ``i`` a unique index, ``n`` nothing. ``schema_id`` is 0 until the schema store
    has numbered the version (from 1 up). ``wire_format`` names the decoder of `tidelog.codecs` for
    the payloads, e.g. ``pgoutput``. ``excluded`` columns, in the table's order, are in no record;
    ``columns`` are the others. ``structures`` has, by name of a column of a type that users
    defined, the logical type with its structure; who reads may ask for it. ``dimensions`` has, by
    name of a column of arrays, how many dimensions it was declared with, unless one: its values may
    have others.
    """

    table: TableName
    relation_id: int
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    identity: tuple[str, ...]
    identity_kind: str
    wire_format: str
    schema_id: int = 0
    excluded: tuple[ExcludedColumn, ...] = ()
    structures: tuple[tuple[str, str], ...] = ()
    dimensions: tuple[tuple[str, int], ...] = ()

    @cached_property
    def match_key(self) -> tuple[str, ...]:
        """The columns by which windows and outputs match rows. The key, or the identity index's
        columns if deletes have only those (docs/explanation/architecture.md).
        """
        return self.identity if self.identity_kind == "i" else self.key

    @property
    def keyless(self) -> bool:
        """Do no columns identify its rows? Then a dump reads it whole, in one snapshot."""
        return not self.key and not self.match_key

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def column_index(self, name: str) -> int:
        return self.column_names.index(name)

    @cached_property
    def fingerprint(self) -> str:
        """A hash that is equal for equal shapes, whatever their ``schema_id``."""
        shape = self.to_json()
        del shape["schema_id"]
        return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:32]

    def numbered(self, schema_id: int) -> TableSchema:
        return replace(self, schema_id=schema_id)

    def only(self, names: Collection[str]) -> TableSchema:
        """Return the schema with only the columns in ``names`` or in a key."""
        kept = {*names, *self.key, *self.identity}
        return replace(self, columns=tuple(c for c in self.columns if c.name in kept), excluded=())

    def without(self, names: Collection[str]) -> TableSchema:
        """Return the schema of all the table's columns, of which those in ``names`` are excluded.
        They must not be in the key, nor in the identity unless that is the full row.
        """
        whole = self.whole
        excluded = tuple(
            ExcludedColumn(place, column)
            for place, column in enumerate(whole.columns)
            if column.name in names
        )
        if excluded == self.excluded:
            return self
        return replace(
            whole,
            columns=tuple(column for column in whole.columns if column.name not in names),
            identity=tuple(name for name in whole.identity if name not in names),
            excluded=excluded,
        )

    @cached_property
    def whole(self) -> TableSchema:
        """The schema of all the table's columns, also the excluded ones; without a number unless
        there are none.
        """
        if not self.excluded:
            return self
        columns = list(self.columns)
        for each in self.excluded:
            columns.insert(each.place, each.column)
        names = tuple(column.name for column in columns)
        return replace(
            self,
            columns=tuple(columns),
            identity=names if self.identity_kind == "f" else self.identity,
            schema_id=0,
            excluded=(),
        )

    def with_logicals(self, logicals: Mapping[str, str]) -> TableSchema:
        """Return the schema with other logical types of some columns, by name."""
        if not logicals:
            return self
        changed = (replace(c, logical=logicals.get(c.name, c.logical)) for c in self.columns)
        return replace(self, columns=tuple(changed))

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        for name in ("excluded", "structures", "dimensions"):  # as versions before these stored it
            if not data[name]:
                del data[name]
        return data

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
            excluded=tuple(
                ExcludedColumn(each["place"], Column(**each["column"]))
                for each in data.get("excluded", ())
            ),
            structures=tuple((name, kind) for name, kind in data.get("structures", ())),
            dimensions=tuple((name, number) for name, number in data.get("dimensions", ())),
        )
