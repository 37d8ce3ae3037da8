"""Table maps: which table's rows follow, and what its columns are.

Format: MySQL source documentation, ``Table_map_event``.
"""

from __future__ import annotations

from typing import Final

from tidelog.codecs.mysql import types as column_types
from tidelog.codecs.mysql.binlog.events.fields import Fields
from tidelog.codecs.mysql.binlog.items import TableMapSeen, TableMetadata
from tidelog.codecs.mysql.binlog.layout import KNOWN_TYPES
from tidelog.codecs.mysql.flavor import Flavor

MAX_COLUMNS = 4096

_BIT, _NEWDECIMAL, _ENUM, _SET, _STRING, _GEOMETRY = 16, 246, 247, 248, 254, 255
_METAS = {4: 1, 5: 1, 17: 1, 18: 1, 19: 1, 252: 1, 245: 1, 255: 1, 242: 1, 140: 1}
_METAS |= {15: 2, 253: 2, 141: 2, _BIT: 2, _NEWDECIMAL: 2, _STRING: 2, _ENUM: 2, _SET: 2}
_BIG_ENDIAN = frozenset({_STRING, _NEWDECIMAL, _ENUM, _SET})

YEAR_WITHOUT_SIGN: Final = (8, 0, 16)
YEAR_WITH_SIGN: Final = (8, 0, 29)
"""MySQL before the first has no bit of SIGNEDNESS for a YEAR (seen on 8.0.12 and 8.0.15), from the
second on it has (https://github.com/osheroff/mysql-binlog-connector-java/issues/108; seen on
9.7.4). Between them it is not known when that changed.
"""


def parse_table_map(
    body: bytes, position: int, flavor: Flavor, version: tuple[int, ...]
) -> TableMapSeen:
    """A Table_map_event's body. ``version``: of the server that wrote the file."""
    fields = Fields(body)
    table_id = fields.integer(6)
    fields.take(2)
    database = _name(fields)
    table = _name(fields)
    columns = fields.packed()
    if columns > MAX_COLUMNS:
        raise ValueError("columns")
    types = fields.take(columns)
    packed = Fields(fields.take(fields.packed()))
    nullable = fields.take((columns + 7) // 8)
    unknown = next((code for code in types if code not in KNOWN_TYPES), None)
    if unknown is not None:  # so nobody knows how much of the metadata is its own
        none = (0,) * columns
        return TableMapSeen(
            table_id, database, table, types, none, nullable, TableMetadata(), position, unknown
        )
    metas = _metas(types, packed)
    metadata = _metadata(types, metas, fields, flavor, version)
    return TableMapSeen(table_id, database, table, types, metas, nullable, metadata, position)


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
    return metas


def _metadata(
    types: bytes,
    metas: tuple[int, ...],
    fields: Fields,
    flavor: Flavor,
    version: tuple[int, ...],
) -> TableMetadata:
    """The optional metadata: type, length and value fields (``binlog_row_metadata``).

    Without names, as if it were MINIMAL, where it is not known which signs are which columns': the
    catalogue has to say what the table is.
    """
    real = [
        metas[i] >> 8 if code == _STRING and metas[i] >> 8 in (_ENUM, _SET) else code
        for i, code in enumerate(types)
    ]
    texts = [i for i, code in enumerate(real) if code in column_types.CHARSETS[flavor]]
    labelled = [i for i, code in enumerate(real) if code in (_ENUM, _SET)]
    signs_known = True
    unsigned = names = visible = None
    collations: dict[int, int] = {}
    labels: dict[int, tuple[bytes, ...]] = {}
    geometries: dict[int, int] = {}
    key: tuple[tuple[int, int], ...] | None = None
    while fields.left():
        kind = fields.integer(1)
        value = Fields(fields.take(fields.packed()))
        if kind == 1:
            unsigned = _signs(value.rest(), real, _with_sign(flavor, version))
            signs_known = unsigned is not None
        elif kind in (2, 10):
            collations |= _default_collations(value, texts if kind == 2 else labelled)
        elif kind in (3, 11):
            collations |= dict(zip(texts if kind == 3 else labelled, _integers(value), strict=True))
        elif kind == 4:
            names = tuple(value.take(value.packed()).decode("utf-8") for _ in range(len(types)))
        elif kind in (5, 6):
            code = _SET if kind == 5 else _ENUM
            for i in (i for i in labelled if real[i] == code):
                labels[i] = tuple(
                    value.take(value.packed()) for _ in range(_bounded(value.packed()))
                )
        elif kind == 7:
            geometry = [i for i, code in enumerate(real) if code == _GEOMETRY]
            geometries = dict(zip(geometry, _integers(value), strict=False))
        elif kind == 8:
            key = tuple((column, 0) for column in _integers(value))
        elif kind == 9:
            flat = _integers(value)
            key = tuple(zip(flat[::2], flat[1::2], strict=True))
        elif kind == 12:
            visible = _flags(value.rest(), list(range(len(types))), len(types))
    if key is not None and any(column >= len(types) for column, _ in key):
        raise ValueError("primary key")
    every = range(len(types))
    return TableMetadata(
        unsigned=unsigned,
        collations=tuple(collations.get(i) for i in every) if collations else None,
        names=names if signs_known else None,
        labels=tuple(labels.get(i) for i in every) if labels else None,
        geometry_types=tuple(geometries.get(i) for i in every) if geometries else None,
        primary_key=key,
        visible=visible,
    )


def _with_sign(flavor: Flavor, version: tuple[int, ...]) -> tuple[frozenset[int], ...]:
    """The types that the table map's SIGNEDNESS has a bit for: two sets if it may be either.

    Args:
        flavor: which server writes the log. MariaDB's YEAR has a bit, and counts as unsigned.
        version: of the server that wrote the binlog's file; empty if it is not known.
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
    """A bit for each of ``columns``, the first in the highest bit; False for the others."""
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
