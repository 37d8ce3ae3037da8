"""Where an event log may be: a directory, or a URL of an object store."""

from __future__ import annotations

from pathlib import Path
from typing import Final

URL_SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")


def is_url(place: str | Path) -> bool:
    """Is it a place on an object store? Else it is a local path."""
    return "://" in str(place)


def is_object_store(place: str) -> bool:
    """Is it a URL of an object store? There are others, such as ``hdfs://`` and ``file://``."""
    return "://" in place and place.partition("://")[0] in URL_SCHEMES
