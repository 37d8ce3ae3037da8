"""Parses table maps: the table of the following rows, and its columns.

Format: MySQL source documentation, ``Table_map_event``. Unreadable bytes after the columns' types
are a fault of this one table, not of the stream: newer servers may write something unknown here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidelog.codecs.mysql import types as column_types
from tidelog.codecs.mysql.binlog.events import Fields
from tidelog.codecs.mysql.binlog.items import TableMapMetadata, TableMapSeen
from tidelog.codecs.mysql.charsets import BINARY_COLLATION
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.types import KNOWN_TYPES, value_lengths

MAX_COLUMNS = 4096

_BIT, _VECTOR, _NEWDECIMAL, _ENUM, _SET, _STRING, _GEOMETRY = 16, 242, 246, 247, 248, 254, 255
_METAS = {4: 1, 5: 1, 17: 1, 18: 1, 19: 1, 252: 1, 245: 1, 255: 1, _VECTOR: 1, 140: 1}
_METAS |= {15: 2, 253: 2, 141: 2, _BIT: 2, _NEWDECIMAL: 2, _STRING: 2, _ENUM: 2, _SET: 2}
_BIG_ENDIAN = frozenset({_STRING, _NEWDECIMAL, _ENUM, _SET})
_FIELDS = {
    1: "signs", 2: "character sets", 3: "character sets", 4: "column names", 5: "members of sets",
    6: "members of enums", 7: "types of geometries", 8: "primary key", 9: "primary key",
    10: "character sets of enums and sets", 11: "character sets of enums and sets",
    12: "visible columns", 13: "dimensions of vectors",
}  # fmt: skip
"""The fields of the optional metadata, by type (``Optional_metadata_field_type``)."""
_UNREADABLE = (ValueError, IndexError, OverflowError)

YEAR_WITHOUT_SIGN: Final = (8, 0, 16)
YEAR_WITH_SIGN: Final = (8, 0, 29)
"""MySQL before the first version has no bit of SIGNEDNESS for a YEAR (seen on 8.0.12 and 8.0.15),
from the second version on it has one
(https://github.com/osheroff/mysql-binlog-connector-java/issues/108; seen on 9.7.4). It is unknown
which version in between changed that.
"""


class MalformedFieldError(ValueError):
    """A field of the optional metadata does not fit this table; the argument is its name."""


def parse_table_map(
    body: bytes, position: int, flavor: Flavor, version: tuple[int, ...]
) -> TableMapSeen:
    """Parse a Table_map_event's body. ``version``: of the server that wrote the file."""
    fields = Fields(body)
    table_id = fields.integer(6)
    fields.take(2)
    database = _name(fields)
    table = _name(fields)
    columns = fields.packed()
    if columns > MAX_COLUMNS:
        raise ValueError("columns")
    types = fields.take(columns)
    none = (0,) * columns
    seen = TableMapSeen(table_id, database, table, types, none, b"", TableMapMetadata(), position)
    unread = replace(seen, has_readable_rows=False)
    try:
        packed = Fields(fields.take(fields.packed()))
        nullable = fields.take((columns + 7) // 8)
    except _UNREADABLE:
        return replace(unread, malformed="what its columns are")
    unknown = next((code for code in types if code not in KNOWN_TYPES), None)
    if unknown is not None:  # then the length of its metadata is unknown too
        return replace(unread, nullable=nullable, unknown=unknown)
    try:
        metas = _metas(types, packed)
    except _UNREADABLE:
        return replace(unread, nullable=nullable, malformed="the metadata of its columns")
    seen = replace(seen, metas=metas, nullable=nullable)
    try:
        return replace(seen, metadata=_metadata(types, metas, fields, flavor, version))
    except _UNREADABLE as error:
        what = error.args[0] if isinstance(error, MalformedFieldError) else "where fields begin"
        return replace(seen, malformed=f"the optional metadata ({what})")


def _name(fields: Fields) -> str:
    name = fields.take(fields.integer(1)).decode("utf-8")
    if fields.integer(1) != 0:
        raise ValueError("name")
    return name


def _metas(types: bytes, fields: Fields) -> tuple[int, ...]:
    metas = tuple(
        int.from_bytes(fields.take(_METAS.get(code, 0)), "big" if code in _BIG_ENDIAN else "little")
        for code in types
    )
    if fields.left():
        raise ValueError("metadata")
    for code, meta in zip(types, metas, strict=True):
        value_lengths(code, meta)  # raises ValueError for metadata that the type can't have
    return metas


def _metadata(
    types: bytes,
    metas: tuple[int, ...],
    fields: Fields,
    flavor: Flavor,
    version: tuple[int, ...],
) -> TableMapMetadata:
    """The optional metadata: type, length and value fields (``binlog_row_metadata``).

    It has no names, as with MINIMAL, if the signs can't be assigned to columns: then the catalogue
    must describe the table. Unknown fields are skipped.
    """
    read = _OptionalMetadata(types, metas, _with_sign(flavor, version), flavor)
    while fields.left():
        kind = fields.integer(1)
        value = Fields(fields.take(fields.packed()))
        if kind not in _FIELDS:
            continue
        try:
            read.take(kind, value)
            if value.left():
                raise ValueError("bytes are left")
        except _UNREADABLE as error:
            raise MalformedFieldError(_FIELDS[kind]) from error
    return read.metadata()


class _OptionalMetadata:
    """Reads the fields of the optional metadata one after the other. They are lists and bitmaps
    without column numbers: each covers the columns of some types.
    """

    def __init__(
        self,
        types: bytes,
        metas: tuple[int, ...],
        with_sign: tuple[frozenset[int], ...],
        flavor: Flavor,
    ) -> None:
        self._count = len(types)
        self._real = [
            metas[i] >> 8 if code == _STRING and metas[i] >> 8 in (_ENUM, _SET) else code
            for i, code in enumerate(types)
        ]
        self._with_sign = with_sign
        self._texts = self._of(*column_types.CHARSETS[flavor])
        self._labelled = self._of(_ENUM, _SET)
        self._signs_known = True
        self._unsigned: tuple[bool, ...] | None = None
        self._names: tuple[str, ...] | None = None
        self._visible: tuple[bool, ...] | None = None
        self._key: tuple[tuple[int, int], ...] | None = None
        self._collations: dict[int, int] = {}
        self._labels: dict[int, tuple[bytes, ...]] = {}
        self._geometries: dict[int, int] = {}
        self._dimensions: dict[int, int] = {}

    def take(self, kind: int, value: Fields) -> None:
        """Read one field. Raises ValueError or IndexError if it does not fit this table."""
        if kind == 1:
            self._unsigned = _signs(value.rest(), self._real, self._with_sign)
            self._signs_known = self._unsigned is not None
        elif kind == 2:
            collations = _default_collations(value, self._texts)
            if any(collations[i] != BINARY_COLLATION for i in self._of(_VECTOR) if i in collations):
                raise ValueError("text in a vector: other columns are counted")
            self._collations |= collations
        elif kind == 10:
            self._collations |= _default_collations(value, self._labelled)
        elif kind in (3, 11):
            columns = self._texts if kind == 3 else self._labelled
            self._collations |= dict(zip(columns, _integers(value), strict=True))
        elif kind == 4:
            self._names = tuple(
                value.take(value.packed()).decode("utf-8") for _ in range(self._count)
            )
        elif kind in (5, 6):
            for i in self._of(_SET if kind == 5 else _ENUM):
                labels = range(_bounded(value.packed()))
                self._labels[i] = tuple(value.take(value.packed()) for _ in labels)
        elif kind == 7:
            self._geometries = dict(zip(self._of(_GEOMETRY), _integers(value), strict=True))
        elif kind in (8, 9):
            flat = _integers(value)
            lengths = flat[1::2] if kind == 9 else [0] * len(flat)
            columns = flat[::2] if kind == 9 else flat
            if any(column >= self._count for column in columns):
                raise ValueError("no such column")
            self._key = tuple(zip(columns, lengths, strict=True))
        elif kind == 12:
            bits = value.take((self._count + 7) // 8)
            self._visible = _flags(bits, list(range(self._count)), self._count)
        elif kind == 13:
            self._dimensions = dict(zip(self._of(_VECTOR), _integers(value), strict=True))

    def metadata(self) -> TableMapMetadata:
        """The metadata read so far."""
        every = range(self._count)
        collations, labels = self._collations, self._labels
        geometries, dimensions = self._geometries, self._dimensions
        return TableMapMetadata(
            unsigned=self._unsigned,
            collations=tuple(collations.get(i) for i in every) if collations else None,
            names=self._names if self._signs_known else None,
            labels=tuple(labels.get(i) for i in every) if labels else None,
            geometry_types=tuple(geometries.get(i) for i in every) if geometries else None,
            dimensions=tuple(dimensions.get(i) for i in every) if dimensions else None,
            primary_key=self._key,
            visible=self._visible,
        )

    def _of(self, *codes: int) -> list[int]:
        """The indexes of the columns of these types."""
        return [i for i, code in enumerate(self._real) if code in codes]


def _with_sign(flavor: Flavor, version: tuple[int, ...]) -> tuple[frozenset[int], ...]:
    """The types that have a bit in the table map's SIGNEDNESS: two sets if it may be either.

    Args:
        flavor: the server that writes the log. MariaDB's YEAR has a bit, and counts as unsigned.
        version: the version of the server that wrote the binlog's file; empty if unknown.
    """
    without_year = column_types.NUMERIC
    with_year = column_types.NUMERIC | {column_types.YEAR}
    if flavor is Flavor.MARIADB or version >= YEAR_WITH_SIGN:
        return (with_year,)
    if len(version) >= len(YEAR_WITHOUT_SIGN) and version < YEAR_WITHOUT_SIGN:
        return (without_year,)
    return without_year, with_year


def _signs(
    bits: bytes, types: list[int], with_sign: tuple[frozenset[int], ...]
) -> tuple[bool, ...] | None:
    """Which columns are unsigned; None if that depends on which of the sets is right."""
    found = set()
    for signed in with_sign:
        numeric = [i for i, code in enumerate(types) if code in signed]
        if len(bits) != (len(numeric) + 7) // 8:
            continue
        flags = _flags(bits, numeric, len(types))
        found.add(tuple(f and c in column_types.NUMERIC for f, c in zip(flags, types, strict=True)))
    if not found:
        raise ValueError("signs")
    return found.pop() if len(found) == 1 else None


def _flags(bits: bytes, columns: list[int], count: int) -> tuple[bool, ...]:
    """One bit for each of ``columns``, the first in the highest bit; False for the others."""
    flags = [False] * count
    for i, column in enumerate(columns):
        flags[column] = bool(bits[i // 8] >> 7 - i % 8 & 1)
    return tuple(flags)


def _integers(fields: Fields) -> list[int]:
    integers = []
    while fields.left():
        integers.append(fields.packed())
    return integers


def _default_collations(fields: Fields, columns: list[int]) -> dict[int, int]:
    """The most frequent collation, then (index among ``columns``, collation) of the others."""
    default = fields.packed()
    collations = dict.fromkeys(columns, default)
    while fields.left():
        index = fields.packed()
        collations[columns[index]] = fields.packed()
    return collations


def _bounded(count: int) -> int:
    if count > 0xFFFF:
        raise ValueError("labels")
    return count
