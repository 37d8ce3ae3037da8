"""Column types of MySQL and MariaDB as in the binlog's table map, and the lengths of their values.

Formats: MySQL internals, "Table_map_event" (``libbinlogevents/include/rows_event.h``), its
table of type codes and metadata, and ``calc_field_size``; MariaDB knowledge base,
"TABLE_MAP_EVENT", and ``field.h`` for its compressed columns. `Column.type_id` is the type code
with ENUM and SET resolved out of STRING (their "real type"); `Column.type_mod` holds

======  ==============================================================================
bits    meaning
======  ==============================================================================
0–15    the metadata as one number, as the server reads it: two bytes of STRING, ENUM, SET and
        NEWDECIMAL big-endian, of VARCHAR and BIT little-endian, one byte of the others
16–31   the collation's id; 63 (binary) for bytes, 0 where the type has no character set
32      set for unsigned numbers
======  ==============================================================================
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tidelog.codecs.mysql.charsets import BINARY_COLLATION, bytes_per_character
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.errors import DecodeError
from tidelog.model.option_values import ColumnTypes
from tidelog.model.schema import Column, TableSchema

WIRE_FORMAT: Final = "binlog"

TINY: Final = 1
SHORT: Final = 2
LONG: Final = 3
FLOAT: Final = 4
DOUBLE: Final = 5
TIMESTAMP: Final = 7
LONGLONG: Final = 8
INT24: Final = 9
DATE: Final = 10
TIME: Final = 11
DATETIME: Final = 12
YEAR: Final = 13
NEWDATE: Final = 14
VARCHAR: Final = 15
BIT: Final = 16
TIMESTAMP2: Final = 17
DATETIME2: Final = 18
TIME2: Final = 19
BLOB_COMPRESSED: Final = 140
VARCHAR_COMPRESSED: Final = 141
VECTOR: Final = 242
JSON: Final = 245
NEWDECIMAL: Final = 246
ENUM: Final = 247
SET: Final = 248
BLOB: Final = 252
VAR_STRING: Final = 253
STRING: Final = 254
GEOMETRY: Final = 255

NUMERIC: Final = frozenset({TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24, NEWDECIMAL})
"""The types with a sign."""
CHARACTER: Final = frozenset(
    {VARCHAR, VAR_STRING, STRING, BLOB, VARCHAR_COMPRESSED, BLOB_COMPRESSED}
)
CHARSETS: Final = {Flavor.MYSQL: CHARACTER | {VECTOR}, Flavor.MARIADB: CHARACTER | {GEOMETRY}}
"""The types that DEFAULT_CHARSET and COLUMN_CHARSET include, binary ones too; not ENUM and SET,
which have separate lists. MySQL's vectors (seen on 9.7.4) and MariaDB's geometries are blobs with
the character set ``binary``; MariaDB's vectors are VARCHARs.
"""

_UNSIGNED = 1 << 32
_INTEGERS = {
    "tinyint": (TINY, "int16", "int16"),
    "smallint": (SHORT, "int16", "int32"),
    "mediumint": (INT24, "int32", "int32"),
    "int": (LONG, "int32", "int64"),
    "bigint": (LONGLONG, "int64", "decimal(20,0)"),
}
_INTEGER_OF_CODE = {code: name for name, (code, _, _) in _INTEGERS.items()}
_TEMPORALS = {  # code, code of columns created before fractions existed, logical
    "time": (TIME2, TIME, "text"),
    "datetime": (DATETIME2, DATETIME, "timestamp"),
    "timestamp": (TIMESTAMP2, TIMESTAMP, "timestamptz"),
}
_BLOB_LENGTHS = {
    "tinytext": 1, "text": 2, "mediumtext": 3, "longtext": 4,
    "tinyblob": 1, "blob": 2, "mediumblob": 3, "longblob": 4,
}  # fmt: skip
_GEOMETRY_NAMES = (
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
    "geomcollection",
)  # fmt: skip
_GEOMETRIES = frozenset({*_GEOMETRY_NAMES, "geometrycollection"})
# MariaDB's types with a fixed number of bytes: Type_handler_fbt.
_FIXED_BYTES = {"uuid": 16, "inet6": 16, "inet4": 4}
_OLD_TEMPORAL = re.compile(r"/\* *(5\.5 binary format|mariadb-5\.3) *\*/")
_LABEL = re.compile(r"'((?:[^']|'')*)'", re.DOTALL)
_ESCAPED = re.compile(r"\\.|''", re.DOTALL)
_PLAIN = {"''": "'", r"\n": "\n", r"\r": "\r", r"\0": "\0"}
_ESCAPES = str.maketrans({"'": "''", "\\": r"\\", "\n": r"\n", "\r": r"\r", "\0": r"\0"})
_PARAMETERS = re.compile(r"\(([0-9, ]+)\)")
MAX_DECIMAL_DIGITS: Final = 38
"""The digits of Arrow's decimal128; wider values are delivered as text."""


class UnknownTypeError(DecodeError):
    """A column's type can't be determined from the given data."""


def collation(column: Column) -> int:
    """The id of the column's collation; 63 for bytes, 0 if the type has none."""
    return column.type_mod >> 16 & 0xFFFF


def metadata(column: Column) -> int:
    """The column's metadata in the table map, as one number."""
    return column.type_mod & 0xFFFF


def is_unsigned(column: Column) -> bool:
    """Return True for an unsigned number."""
    return bool(column.type_mod & _UNSIGNED)


def old_digits(column: Column) -> int:
    """The fraction's digits of a MariaDB column in the format before mysql56_temporal_format; 0 for
    any other column. They are read from the type's text, as the table map does not contain them.
    """
    if column.type_id not in (TIMESTAMP, TIME, DATETIME):
        return 0
    return (*_numbers(column.type_name), 0)[0]


def labels(column: Column) -> tuple[str, ...]:
    """An ENUM's or SET's members in order, from its type's text."""
    return labels_of_text(column.type_name)


def text_of_labels(column: Column, members: Sequence[str]) -> str:
    """The text of an ENUM's or SET's type with these members."""
    return _text_of_labels("enum" if column.type_id == ENUM else "set", members)


def _text_of_labels(kind: str, members: Sequence[str]) -> str:
    return kind + "(" + ",".join(f"'{member.translate(_ESCAPES)}'" for member in members) + ")"


def labels_of_text(column_type: str) -> tuple[str, ...]:
    r"""The members in ``enum('a','it''s')``.

    With every sql_mode, a quote inside is doubled and backslash, newline, carriage return and NUL
    are ``\\ \n \r \0`` (``append_unescaped``).
    """
    inside = column_type[column_type.index("(") + 1 : column_type.rindex(")")]
    return tuple(_ESCAPED.sub(_plain, label) for label in _LABEL.findall(inside))


def _plain(match: re.Match[str]) -> str:
    return _PLAIN.get(match[0], match[0][1:])


def resolve(type_code: int, meta: int) -> tuple[int, int]:
    """(type id, metadata) of a table map's type code: the real type of ENUM and SET columns,
    VARCHAR for the VAR_STRING of old servers.
    """
    if type_code == STRING and meta >> 8 in (ENUM, SET):
        return meta >> 8, meta
    return (VARCHAR if type_code == VAR_STRING else type_code), meta


def string_bytes(meta: int) -> int:
    """The most bytes of a STRING column with this metadata. Bits 8 and 9 of the length are stored
    inverted in the real type's bits 4 and 5 (MySQL bug 37426).
    """
    return (meta & 0xFF) | ((meta >> 8 & 0x30) ^ 0x30) << 4


def fits(column: Column, type_code: int, meta: int) -> bool:
    """Return True if a table map may describe the column with this type code and metadata."""
    return (column.type_id, metadata(column)) == resolve(type_code, meta)


def binlog_column(
    name: str,
    data_type: str,
    column_type: str,
    *,
    flavor: Flavor,
    octet_length: int | None = None,
    collation_id: int | None = None,
    nullable: bool = True,
) -> Column:
    """The column of one row of ``information_schema.columns``.

    Args:
        name: COLUMN_NAME.
        data_type: DATA_TYPE.
        column_type: COLUMN_TYPE.
        flavor: the server's flavor.
        octet_length: CHARACTER_OCTET_LENGTH.
        collation_id: the id of COLLATION_NAME in the server's list of collations; None for NULL.
        nullable: IS_NULLABLE.

    Raises:
        UnknownTypeError: the type is unknown; names the column and the type.
    """
    kind = data_type.lower()
    text = column_type.replace("/*!100301 ", "/*M!100301 ")  # older MariaDB writes the former
    unsigned = re.search(r"\bunsigned\b", column_type) is not None
    zerofill = re.search(r"\bzerofill\b", column_type) is not None
    sign = " unsigned" if unsigned or zerofill else ""
    flag = _UNSIGNED if sign else 0
    charset = (collation_id or BINARY_COLLATION) << 16
    is_bytes = (collation_id or BINARY_COLLATION) == BINARY_COLLATION
    if kind in _INTEGERS:
        # The display width is deprecated, omitted by newer servers, and not in the table map.
        code, signed, unsigned_logical = _INTEGERS[kind]
        logical = unsigned_logical if sign else signed
        return Column(name, code, flag, kind + sign, logical, nullable)
    if kind == "year":
        return Column(name, YEAR, 0, "year", "int16", nullable)
    if kind in ("decimal", "numeric"):
        precision, scale = (*_numbers(column_type), 0)[:2]
        return _decimal(name, precision, scale, sign, nullable)
    if kind == "float":
        return Column(name, FLOAT, 4 | flag, "float" + sign, "float32", nullable)
    if kind == "double":
        return Column(name, DOUBLE, 8 | flag, "double" + sign, "float64", nullable)
    if kind == "bit":
        return _bit(name, (*_numbers(column_type), 1)[0], nullable)
    if kind == "date":
        return Column(name, DATE, 0, "date", "date", nullable)
    if kind in _TEMPORALS:
        code, old, logical = _TEMPORALS[kind]
        if _OLD_TEMPORAL.search(column_type):
            return Column(name, old, 0, column_type, logical, nullable)
        digits = (*_numbers(column_type), 0)[0]
        return Column(name, code, digits, _temporal_text(kind, digits), logical, nullable)
    if kind == "json":
        return Column(name, JSON, 4, "json", "text", nullable)
    if kind in ("enum", "set"):
        return _label_column(name, kind, labels_of_text(column_type), collation_id or 0, nullable)
    if kind in _GEOMETRIES:
        return Column(name, GEOMETRY, 4, text, "bytes", nullable)
    if kind == "vector" and flavor is Flavor.MYSQL:
        return Column(name, VECTOR, 4, text, "bytes", nullable)
    compressed = "compressed" in column_type.lower()
    if kind in _BLOB_LENGTHS:
        code = BLOB_COMPRESSED if compressed else BLOB
        logical = "bytes" if is_bytes else "text"
        return Column(name, code, _BLOB_LENGTHS[kind] | charset, text, logical, nullable)
    if kind in _FIXED_BYTES:
        meta = STRING << 8 | _FIXED_BYTES[kind]
        return Column(name, STRING, meta | BINARY_COLLATION << 16, kind, "text", nullable)
    if octet_length is not None and kind in ("char", "binary"):
        meta = (STRING ^ (octet_length & 0x300) >> 4) << 8 | octet_length & 0xFF
        logical = "bytes" if is_bytes else "text"
        return Column(name, STRING, meta | charset, text, logical, nullable)
    if octet_length is not None and kind in ("varchar", "varbinary", "vector"):
        # A compressed value has one more byte, for the compression method.
        code = VARCHAR_COMPRESSED if compressed else VARCHAR
        meta = octet_length + 1 if compressed else octet_length
        logical = "bytes" if is_bytes else "text"
        return Column(name, code, meta | charset, text, logical, nullable)
    raise UnknownTypeError(f"column {name}: Tidelog does not know the type {column_type}")


def column_of_map(
    name: str,
    type_code: int,
    meta: int,
    *,
    unsigned: bool = False,
    collation_id: int = 0,
    members: Sequence[str] = (),
    nullable: bool = True,
    geometry_type: int | None = None,
    dimensions: int | None = None,
    like: Column | None = None,
) -> Column:
    """The column of a table map with FULL metadata, with the same texts as `binlog_column`.

    Args:
        name: from COLUMN_NAME.
        type_code: the table map's type code.
        meta: its metadata as one number.
        unsigned: from SIGNEDNESS.
        collation_id: from the charset fields; 0 if the type has none.
        members: from ENUM_STR_VALUE or SET_STR_VALUE.
        nullable: from the null bits.
        geometry_type: from GEOMETRY_TYPE.
        dimensions: from VECTOR_DIMENSIONALITY.
        like: the column of this name in another version of the table. If the map can't distinguish
            types (MariaDB's uuid has 16 bytes, like binary(16)), this column's type is used if it
            fits.

    Raises:
        UnknownTypeError: the type code is unknown.
    """
    code, meta = resolve(type_code, meta)
    if code == STRING and collation_id in (0, BINARY_COLLATION):
        kind = like.type_name if like is not None and fits(like, type_code, meta) else ""
        if kind in _FIXED_BYTES:
            return binlog_column(name, kind, kind, flavor=Flavor.MARIADB, nullable=nullable)
    sign = " unsigned" if unsigned else ""
    flag = _UNSIGNED if unsigned else 0
    charset = (collation_id or BINARY_COLLATION) << 16
    is_bytes = (collation_id or BINARY_COLLATION) == BINARY_COLLATION
    width = bytes_per_character(collation_id)
    logical = "bytes" if is_bytes else "text"
    if code in _INTEGER_OF_CODE:
        kind = _INTEGER_OF_CODE[code]
        _, signed, unsigned_logical = _INTEGERS[kind]
        number = unsigned_logical if unsigned else signed
        return Column(name, code, flag, kind + sign, number, nullable)
    if code == YEAR:
        return Column(name, YEAR, 0, "year", "int16", nullable)
    if code == NEWDECIMAL:
        return _decimal(name, meta >> 8, meta & 0xFF, sign, nullable)
    if code == FLOAT:
        return Column(name, FLOAT, 4 | flag, "float" + sign, "float32", nullable)
    if code == DOUBLE:
        return Column(name, DOUBLE, 8 | flag, "double" + sign, "float64", nullable)
    if code == BIT:
        return _bit(name, (meta >> 8) * 8 + (meta & 0xFF), nullable)
    if code in (DATE, NEWDATE):
        return Column(name, code, 0, "date", "date", nullable)
    for kind, (new, old, temporal) in _TEMPORALS.items():
        if code == new:
            return Column(name, new, meta, _temporal_text(kind, meta), temporal, nullable)
        if code == old:
            text = f"{kind} /* 5.5 binary format */"
            if like is not None and fits(like, type_code, meta):
                text = like.type_name
            return Column(name, old, 0, text, temporal, nullable)
    if code == JSON:
        return Column(name, JSON, meta, "json", "text", nullable)
    if code in (ENUM, SET):
        if not collation_id and like is not None and fits(like, type_code, meta):
            collation_id = collation(like)  # not every version of MySQL sends it
        return _label_column(
            name, "enum" if code == ENUM else "set", members, collation_id, nullable
        )
    if code == GEOMETRY:
        known = geometry_type is not None and geometry_type < len(_GEOMETRY_NAMES)
        text = _GEOMETRY_NAMES[geometry_type or 0] if known else "geometry"
        if like is not None and fits(like, type_code, meta):
            text = like.type_name
        return Column(name, GEOMETRY, meta, text, "bytes", nullable)
    if code == VECTOR:
        text = "vector" if dimensions is None else f"vector({dimensions})"
        if dimensions is None and like is not None and like.type_id == VECTOR:
            text = like.type_name
        return Column(name, VECTOR, meta, text, "bytes", nullable)
    compressed = " /*M!100301 COMPRESSED*/" if code in (BLOB_COMPRESSED, VARCHAR_COMPRESSED) else ""
    if code in (BLOB, BLOB_COMPRESSED):
        prefix = {1: "tiny", 2: "", 3: "medium", 4: "long"}.get(meta, "")
        text = prefix + ("blob" if is_bytes else "text") + compressed
        return Column(name, code, meta | charset, text, logical, nullable)
    if code in (VARCHAR, VARCHAR_COMPRESSED):
        size = (meta - 1 if compressed else meta) // width
        text = f"{'varbinary' if is_bytes else 'varchar'}({size}){compressed}"
        if is_bytes and like is not None and like.type_name.startswith("vector("):
            text = like.type_name
        return Column(name, code, meta | charset, text, logical, nullable)
    if code == STRING:
        text = f"{'binary' if is_bytes else 'char'}({string_bytes(meta) // width})"
        return Column(name, STRING, meta | charset, text, logical, nullable)
    raise UnknownTypeError(f"column {name}: Tidelog does not know the binlog's type {type_code}")


def _numbers(column_type: str) -> tuple[int, ...]:
    found = _PARAMETERS.search(column_type)
    return tuple(int(part) for part in found[1].split(",")) if found else ()


def _decimal(name: str, precision: int, scale: int, sign: str, nullable: bool) -> Column:
    logical = f"decimal({precision},{scale})" if precision <= MAX_DECIMAL_DIGITS else "text"
    type_mod = precision << 8 | scale | (_UNSIGNED if sign else 0)
    text = f"decimal({precision},{scale}){sign}"
    return Column(name, NEWDECIMAL, type_mod, text, logical, nullable)


def _bit(name: str, bits: int, nullable: bool) -> Column:
    logical = "bool" if bits == 1 else "int64" if bits <= 63 else "decimal(20,0)"
    return Column(name, BIT, bits // 8 << 8 | bits % 8, f"bit({bits})", logical, nullable)


def _temporal_text(kind: str, digits: int) -> str:
    return f"{kind}({digits})" if digits else kind


def _label_column(
    name: str, kind: str, members: Sequence[str], collation_id: int, nullable: bool
) -> Column:
    if kind == "enum":
        code, size = ENUM, 1 if len(members) < 256 else 2
    else:
        size = (len(members) + 7) // 8
        code, size = SET, size if size <= 4 else 8
    text = _text_of_labels(kind, members)
    type_mod = code << 8 | size | collation_id << 16
    return Column(name, code, type_mod, text, "text", nullable)


def native_logical(schema: TableSchema, column: Column, types: ColumnTypes) -> str | None:
    """See `tidelog.codecs.wire_formats`."""
    del schema
    if column.type_id in (TIME, TIME2) and types.time == "time":
        return "time"
    return "variant" if column.type_id == JSON and types.json == "variant" else None


# The lengths of values in binlog rows.

_FIXED = {
    6: 0, TINY: 1, SHORT: 2, LONG: 4, FLOAT: 4, DOUBLE: 8,
    TIMESTAMP: 4, LONGLONG: 8, INT24: 3, DATE: 3, TIME: 3,
    DATETIME: 8, YEAR: 1, NEWDATE: 3, 244: 1,
}  # fmt: skip
_BEFORE_FRACTION = {TIMESTAMP2: 4, DATETIME2: 5, TIME2: 3}
_VARCHARS = (VARCHAR, VAR_STRING, VARCHAR_COMPRESSED)
_BLOBS = (BLOB, JSON, GEOMETRY, VECTOR, BLOB_COMPRESSED)
KNOWN_TYPES = frozenset({*_FIXED, *_BEFORE_FRACTION, *_VARCHARS, *_BLOBS, STRING, ENUM, SET}) | {
    BIT,
    NEWDECIMAL,
}
"""The type codes that `value_lengths` supports; the DECIMAL of tables older than 5.0 is not among
them.
"""
_DECIMAL_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # by number of digits


OLD_FRACTIONS = {
    TIME: (3, 4, 4, 5, 5, 5, 6),
    DATETIME: (8, 6, 6, 7, 7, 7, 8),
    TIMESTAMP: (4, 5, 5, 6, 6, 7, 7),
}
"""Bytes by digits of the fraction, in MariaDB's tables from before mysql56_temporal_format
(``Field_time_hires`` and similar). Table maps do not contain the digits.
"""


def value_lengths(type_code: int, meta: int, old_digits: int = 0) -> tuple[int, int]:
    """(bytes of the length before a value, or 0; the length of values without one) of a column.

    ``old_digits``: as the function `old_digits` returns them.

    Raises ValueError for metadata that the type can't have, and for a type not in `KNOWN_TYPES`.
    """
    if type_code == STRING:
        high = meta >> 8
        if high not in (ENUM, SET):
            return (2 if high and string_bytes(meta) > 255 else 1), 0
        type_code = high
    if type_code in (ENUM, SET):
        return 0, meta & 0xFF
    if old_digits and type_code in OLD_FRACTIONS:
        return 0, OLD_FRACTIONS[type_code][old_digits]
    if type_code in _FIXED:
        return 0, _FIXED[type_code]
    if type_code in _BEFORE_FRACTION:
        return 0, _BEFORE_FRACTION[type_code] + ((meta & 0xFF) + 1) // 2
    if type_code in _VARCHARS:
        return (2 if meta > 255 else 1), 0
    if type_code in _BLOBS:
        if not 1 <= meta <= 4:
            raise ValueError("length of a blob's length")
        return meta, 0
    if type_code == BIT:
        return 0, (meta >> 8) + (1 if meta & 0xFF else 0)
    if type_code == NEWDECIMAL:
        return 0, _decimal_bytes(meta >> 8, meta & 0xFF)
    raise ValueError(f"column type {type_code}")


def _decimal_bytes(precision: int, scale: int) -> int:
    """Nine digits take four bytes, the rest fewer."""
    if scale > precision:
        raise ValueError("scale")
    whole, rest = divmod(precision - scale, 9)
    fraction, fraction_rest = divmod(scale, 9)
    return 4 * (whole + fraction) + _DECIMAL_BYTES[rest] + _DECIMAL_BYTES[fraction_rest]
