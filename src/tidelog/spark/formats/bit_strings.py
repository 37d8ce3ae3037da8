"""Writes bit strings as Debezium does: one bit is a boolean, more are bytes, the least significant
first.

As ``PostgresValueConverter.convertBits`` and ``JdbcValueConverters.padLittleEndian`` of Debezium:
PostgreSQL's have only the bytes up to the highest set bit, MySQL's have all bytes.
"""

from __future__ import annotations

import base64
import re

import pyarrow as pa
import pyarrow.compute as pc

_BITS = re.compile(r"bit( varying)?(?:\((\d+)\))?", re.IGNORECASE)
_UNLIMITED = 2**31 - 1


def bits_of(type_name: str) -> int | None:
    """Returns the most bits that a column of this type has; None: it is no bit type."""
    found = _BITS.fullmatch(type_name)
    if found is None:
        return None
    return int(found[2]) if found[2] else _UNLIMITED if found[1] else 1


def are_bits(values: pa.Array) -> bool:
    """Returns True if the values are bits as the log has them, and not the result of a step."""
    kind = values.type
    if pa.types.is_int64(kind) or pa.types.is_decimal(kind):
        return not pc.any(pc.less(values, pa.scalar(0).cast(kind))).as_py()
    if not pa.types.is_string(kind):
        return False
    return not pc.any(pc.match_substring_regex(values, "[^01]")).as_py()


def bit_texts(values: pa.Array, bits: int) -> pa.StringArray:
    """Returns the JSON texts of PostgreSQL's texts of noughts and ones, or of MySQL's numbers."""
    if bits == 1:
        return pc.if_else(pc.equal(values.cast(pa.string()), "1"), "true", "false")
    ours = pa.types.is_string(values.type)
    found = [
        None if value is None else _bytes(int(value or "0", 2) if ours else int(value), ours, bits)
        for value in values.to_pylist()
    ]
    return pa.array(found, pa.string())


def _bytes(number: int, shortest: bool, bits: int) -> str:
    size = (max(number.bit_length(), 0 if shortest else bits) + 7) // 8
    return f'"{base64.b64encode(number.to_bytes(size, "little")).decode()}"'
