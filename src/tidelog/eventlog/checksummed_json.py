"""JSON documents of the event log with a checksum, so that one altered byte is not believed.

The checksum is of the values, not of the file's bytes: spaces and the order of names are free. What
has none was written by an earlier version, or by hand as an error message says; it is believed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any, Final

CHECKSUM: Final = "crc32"


def sealed(document: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """The document with its checksum, as a file; ``indent``: for people, in their letters."""
    whole = {**document, CHECKSUM: _checksum(document)}
    return json.dumps(whole, ensure_ascii=indent is None, indent=indent).encode()


def unsealed(data: bytes) -> dict[str, Any]:
    """The document of a file, without its checksum.

    Raises:
        ValueError: it is torn, is no JSON object, or does not match its checksum.
    """
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    if CHECKSUM in document and document.pop(CHECKSUM) != _checksum(document):
        raise ValueError("it does not match its checksum")
    return document


def _checksum(document: Mapping[str, Any]) -> int:
    plain = json.dumps(document, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return zlib.crc32(plain.encode())
