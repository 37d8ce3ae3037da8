"""What a store says of a file."""

from __future__ import annotations

from typing import NamedTuple


class StoredFile(NamedTuple):
    """``name``: below the store's path; ``size``: in bytes; ``modified_ms``: since 1970, UTC."""

    name: str
    size: int
    modified_ms: int
