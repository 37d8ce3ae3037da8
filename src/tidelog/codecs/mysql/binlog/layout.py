"""The lengths of values in binlog rows.

MySQL source documentation, ``calc_field_size``; MariaDB's compressed columns: its ``field.h``.
"""

from __future__ import annotations

from tidelog.codecs.mysql import types

_FIXED = {
    6: 0, types.TINY: 1, types.SHORT: 2, types.LONG: 4, types.FLOAT: 4, types.DOUBLE: 8,
    types.TIMESTAMP: 4, types.LONGLONG: 8, types.INT24: 3, types.DATE: 3, types.TIME: 3,
    types.DATETIME: 8, types.YEAR: 1, types.NEWDATE: 3, 244: 1,
}  # fmt: skip
_BEFORE_FRACTION = {types.TIMESTAMP2: 4, types.DATETIME2: 5, types.TIME2: 3}
_VARCHARS = (types.VARCHAR, types.VAR_STRING, types.VARCHAR_COMPRESSED)
_BLOBS = (types.BLOB, types.JSON, types.GEOMETRY, types.VECTOR, types.BLOB_COMPRESSED)
KNOWN_TYPES = frozenset(
    {*_FIXED, *_BEFORE_FRACTION, *_VARCHARS, *_BLOBS, types.STRING, types.ENUM, types.SET}
) | {types.BIT, types.NEWDECIMAL}
"""The type codes that `walk` supports; the DECIMAL of tables older than 5.0 is not among them."""
_DECIMAL_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # by number of digits


OLD_FRACTIONS = {
    types.TIME: (3, 4, 4, 5, 5, 5, 6),
    types.DATETIME: (8, 6, 6, 7, 7, 7, 8),
    types.TIMESTAMP: (4, 5, 5, 6, 6, 7, 7),
}
"""Bytes by digits of the fraction, in MariaDB's tables from before mysql56_temporal_format
(``Field_time_hires`` and similar). Table maps do not contain the digits.
"""


def walk(type_code: int, meta: int, old_digits: int = 0) -> tuple[int, int]:
    """(bytes of the length before a value, or 0; the length of values without one) of a column.

    ``old_digits``: `tidelog.codecs.mysql.types.old_digits`.

    Raises ValueError for metadata that the type can't have, and for a type not in `KNOWN_TYPES`.
    """
    if type_code == types.STRING:
        high = meta >> 8
        if high not in (types.ENUM, types.SET):
            return (2 if high and types.string_bytes(meta) > 255 else 1), 0
        type_code = high
    if type_code in (types.ENUM, types.SET):
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
    if type_code == types.BIT:
        return 0, (meta >> 8) + (1 if meta & 0xFF else 0)
    if type_code == types.NEWDECIMAL:
        return 0, _decimal_bytes(meta >> 8, meta & 0xFF)
    raise ValueError(f"column type {type_code}")


def _decimal_bytes(precision: int, scale: int) -> int:
    """Nine digits take four bytes, the rest fewer."""
    if scale > precision:
        raise ValueError("scale")
    whole, rest = divmod(precision - scale, 9)
    fraction, fraction_rest = divmod(scale, 9)
    return 4 * (whole + fraction) + _DECIMAL_BYTES[rest] + _DECIMAL_BYTES[fraction_rest]
