"""Converts columns of typed values to the texts of key columns, for each kind of server.

The texts need not be spelled as the server would spell them: the server compares keys as values.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.columns.instant_texts import date_texts, timestamp_texts
from tidelog.errors import UsageError

_TEXT = pa.string()


@dataclass(frozen=True)
class KeySpelling:
    """How one kind of server spells values.

    Attributes:
        true: the boolean true.
        false: the boolean false.
        utc: the suffix of a timestamp with a time zone.
        binary: converts bytes to text.
    """

    true: str
    false: str
    utc: str
    binary: Callable[[bytes], str]


def key_texts(values: pa.Array, spelling: KeySpelling) -> pa.StringArray:
    """Convert ``n`` values to ``n`` texts; nulls stay null.

        =====================  ==================================================================
        boolean, binary        as ``spelling`` says
        integer, decimal       digits
        float                  the shortest that reads back as the same number; ``nan``, ``inf``
        date, time             ISO
        timestamp              ISO with a space, microseconds; one with a zone as UTC
        UUID (Arrow, Parquet)  as usual
        text                   unchanged
        =====================  ==================================================================

    Raises:
        UsageError: no key column can have this type.
    """
    if isinstance(values, pa.ExtensionArray):
        if values.type.extension_name == "arrow.uuid":
            return _map_values(values.storage, lambda value: str(uuid.UUID(bytes=value)))
        return key_texts(values.storage, spelling)
    kind = values.type
    if pa.types.is_dictionary(kind):
        return key_texts(values.dictionary_decode(), spelling)
    if pa.types.is_boolean(kind):
        return pc.if_else(values, spelling.true, spelling.false)
    if pa.types.is_timestamp(kind):
        return _timestamps(values, spelling.utc)
    if pa.types.is_float16(kind):
        return values.cast(pa.float32()).cast(_TEXT)
    if pa.types.is_date64(kind):
        values = values.cast(pa.date32())
        kind = values.type
    if pa.types.is_date32(kind):
        return pc.utf8_ltrim(date_texts(values), "+")
    if _is_binary(kind):
        return _map_values(values, spelling.binary)
    if pa.types.is_nested(kind) or pa.types.is_duration(kind) or pa.types.is_interval(kind):
        raise UsageError(f"values of type {kind} can't be part of a key")
    try:
        return values.cast(_TEXT)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise UsageError(f"values of type {kind} can't be part of a key") from None


def _map_values(values: pa.Array, spell: Callable[[bytes], str]) -> pa.StringArray:
    return pa.array([v if v is None else spell(v) for v in values.to_pylist()], _TEXT)


def _timestamps(values: pa.Array, utc: str) -> pa.StringArray:
    zone = values.type.tz
    # A timestamp with a zone counts microseconds in UTC, so the cast gives the UTC time.
    plain = values.cast(pa.timestamp("us", zone), safe=False)
    texts = pc.utf8_ltrim(timestamp_texts(plain, " "), "+")
    if zone is None or not utc:
        return texts
    return pc.binary_join_element_wise(texts, utc, "", null_handling="emit_null")


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )
