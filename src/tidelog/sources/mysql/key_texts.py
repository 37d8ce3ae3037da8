"""Typed values as the texts of key columns, column-wise.

Texts need not be spelled as the server would spell them: keys are compared there, as values.
"""

from __future__ import annotations

import uuid

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import UsageError
from tidelog.wire import bytes_keys

_TEXT = pa.string()


def key_texts(values: pa.Array) -> pa.StringArray:
    """``n`` values as ``n`` texts, nulls kept.

    =====================  ==================================================================
    boolean                ``1``, ``0``
    integer, decimal       digits
    float                  the shortest that reads back as the same number
    date, time             ISO
    timestamp              ISO with a space, microseconds; one with a zone as UTC
    binary                 ``0x`` and hexadecimal digits; UTF-8 without NUL as it is
    UUID (Arrow, Parquet)  as usual
    text                   as it is
    =====================  ==================================================================

    Raises:
        UsageError: a type that no key column has.
    """
    if isinstance(values, pa.ExtensionArray):
        if values.type.extension_name == "arrow.uuid":
            found = [
                v if v is None else str(uuid.UUID(bytes=v)) for v in values.storage.to_pylist()
            ]
            return pa.array(found, _TEXT)
        return key_texts(values.storage)
    kind = values.type
    if pa.types.is_dictionary(kind):
        return key_texts(values.dictionary_decode())
    if pa.types.is_boolean(kind):
        return pc.if_else(values, "1", "0")
    if pa.types.is_timestamp(kind):
        plain = values.cast(pa.timestamp("us", kind.tz), safe=False)
        return plain.view(pa.timestamp("us")).cast(_TEXT)
    if pa.types.is_float16(kind):
        return values.cast(pa.float32()).cast(_TEXT)
    if pa.types.is_date64(kind):
        return values.cast(pa.date32()).cast(_TEXT)
    if _is_binary(kind):
        texts = [v if v is None else bytes_keys.shortest(v) for v in values.to_pylist()]
        return pa.array(texts, _TEXT)
    if pa.types.is_nested(kind) or pa.types.is_duration(kind) or pa.types.is_interval(kind):
        raise UsageError(f"values of type {kind} can't be part of a key")
    try:
        return values.cast(_TEXT)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise UsageError(f"values of type {kind} can't be part of a key") from None


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )
