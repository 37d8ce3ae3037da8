"""One file in a store's listing."""

from __future__ import annotations

from typing import NamedTuple


class StoredFile(NamedTuple):
    """A file's ``name`` below the store's path, its size in bytes, and its time since 1970, UTC."""

    name: str
    size: int
    modified_ms: int
