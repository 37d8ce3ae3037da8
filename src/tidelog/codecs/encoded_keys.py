"""Encoded keys: for each key column a big-endian int32 length (-1: NULL) and the value's bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tidelog.codecs import key_kernel
from tidelog.errors import DecodeError
from tidelog.model.schema import TableSchema


class EncodedKeys:
    """Base class of the `tidelog.ports.KeyExtractor`s of all wire formats."""

    def texts(self, key: bytes, schema: TableSchema) -> tuple[str | None, ...]:
        """An encoded match key of ``schema`` as the texts by which chunks are requested.

        Raises:
            DecodeError: ``key`` is not an encoded key.
        """
        return self._texts(key)

    def _texts(self, key: bytes) -> tuple[str | None, ...]:
        """The inverse of `encode`.

        Raises:
            DecodeError: ``key`` is not an encoded key.
        """
        texts: list[str | None] = []
        at = 0
        while at < len(key):
            if at + 4 > len(key):
                raise DecodeError("an encoded key is torn")
            (length,) = struct.unpack_from("!i", key, at)
            at += 4
            if length == key_kernel.NULL:
                texts.append(None)
                continue
            if length < 0 or at + length > len(key):
                raise DecodeError("an encoded key is torn")
            # A database of encoding SQL_ASCII may send any bytes: they must survive the round trip.
            texts.append(key[at : at + length].decode("utf-8", "surrogateescape"))
            at += length
        return tuple(texts)

    def encode(self, texts: Sequence[str | None]) -> bytes:
        """Encode the texts of the key columns, in match key order."""
        parts = []
        for text in texts:
            value = b"" if text is None else text.encode("utf-8", "surrogateescape")
            parts += [struct.pack("!i", key_kernel.NULL if text is None else len(value)), value]
        return b"".join(parts)
