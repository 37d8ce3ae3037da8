"""Typed values as the texts that PostgreSQL's input functions read, column-wise.

Texts need not be spelled as PostgreSQL would spell them: keys are compared there, as values.
"""

from __future__ import annotations

import uuid

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import UsageError


def key_texts(values: pa.Array) -> pa.StringArray:
    r"""``n`` values as ``n`` texts, nulls kept.

    =====================  ==================================================================
    boolean                ``t``, ``f``
    integer, decimal       digits
    float                  the shortest that reads back as the same number; ``nan``, ``inf``
    date, time             ISO
    timestamp              ISO, microseconds; one with a zone as UTC with ``+00``
    binary                 ``\x`` and hexadecimal digits
    UUID (Arrow, Parquet)  as usual
    text                   as it is
    =====================  ==================================================================

    Raises:
        UsageError: a type that no key column has.
    """
    if isinstance(values, pa.ExtensionArray):
        if values.type.extension_name == "arrow.uuid":
            return _uuids(values.storage)
        return key_texts(values.storage)
    kind = values.type
    if pa.types.is_dictionary(kind):
        return key_texts(values.dictionary_decode())
    if pa.types.is_boolean(kind):
        return pc.if_else(values, "t", "f")
    if pa.types.is_timestamp(kind):
        return _timestamps(values)
    if pa.types.is_float16(kind):
        return values.cast(pa.float32()).cast(pa.string())
    if pa.types.is_date64(kind):
        return values.cast(pa.date32()).cast(pa.string())
    if _is_binary(kind):
        return pa.array([v if v is None else "\\x" + v.hex() for v in values.to_pylist()], _TEXT)
    if pa.types.is_nested(kind) or pa.types.is_duration(kind) or pa.types.is_interval(kind):
        raise UsageError(f"values of type {kind} can't be part of a key")
    try:
        return values.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise UsageError(f"values of type {kind} can't be part of a key") from None


_TEXT = pa.string()


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def _timestamps(values: pa.Array) -> pa.StringArray:
    zoned = values.type.tz is not None
    # The instant's microseconds as a time without zone: that is what it is in UTC.
    plain = values.cast(pa.timestamp("us", values.type.tz), safe=False)
    texts = plain.view(pa.timestamp("us")).cast(pa.string())
    if not zoned:
        return texts
    return pc.binary_join_element_wise(texts, "+00", "", null_handling="emit_null")


def _uuids(values: pa.Array) -> pa.StringArray:
    return pa.array(
        [v if v is None else str(uuid.UUID(bytes=v)) for v in values.to_pylist()], _TEXT
    )
