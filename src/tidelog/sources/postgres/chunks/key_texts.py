"""Converts columns of typed values to the texts that PostgreSQL's input functions read."""

from __future__ import annotations

import pyarrow as pa

from tidelog.sources import key_texts as shared

_SPELLING = shared.KeySpelling(
    true="t", false="f", utc="+00", binary=lambda value: "\\x" + value.hex()
)


def key_texts(values: pa.Array) -> pa.StringArray:
    r"""See `tidelog.sources.key_texts.key_texts`. Bytes are ``\x`` and hexadecimal digits."""
    return shared.key_texts(values, _SPELLING)
