"""Where an event log may be: a directory, or a URL of an object store."""

from __future__ import annotations

from pathlib import Path
from typing import Final

URL_SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")


def is_url(place: str | Path) -> bool:
    """Return whether it is a URL of an object store; else it is a local path."""
    return "://" in str(place)


def is_object_store(place: str) -> bool:
    """Return whether it is a URL of an object store; ``hdfs://`` and ``file://`` are not."""
    return "://" in place and place.partition("://")[0] in URL_SCHEMES
