"""Actions of a commit, as objects of its JSON lines (Delta protocol, "Actions")."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tidelog.outputs.lake.delta_log.actions import DataFile


def add(file: DataFile, *, data_change: bool) -> dict[str, Any]:
    """``data_change`` false: the rows were in files that the same commit removes."""
    return {
        "add": {
            "path": file.path,
            "partitionValues": dict(file.partition_values),
            "size": file.size,
            "modificationTime": file.modification_time_ms,
            "dataChange": data_change,
            **_given(stats=file.stats, tags=None if file.tags is None else dict(file.tags)),
            **_vector_of(file),
            **_given(clusteringProvider=file.clustering_provider),
        }
    }


def remove(file: DataFile, *, at_ms: int, data_change: bool) -> dict[str, Any]:
    """Of the file with the deletion vector that it had; ``at_ms``: now, since 1970, UTC."""
    return {
        "remove": {
            "path": file.path,
            "deletionTimestamp": at_ms,
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": dict(file.partition_values),
            "size": file.size,
            **_vector_of(file),
        }
    }


def cdc(path: str, *, partition_values: Mapping[str, str | None], size: int) -> dict[str, Any]:
    """A file of the change data feed."""
    return {
        "cdc": {
            "path": path,
            "partitionValues": dict(partition_values),
            "size": size,
            "dataChange": False,
        }
    }


def transaction(app: str, version: int) -> dict[str, Any]:
    """How far ``app`` has written."""
    now = time.time_ns() // 1_000_000
    return {"txn": {"appId": app, "version": version, "lastUpdated": now}}


def _vector_of(file: DataFile) -> dict[str, Any]:
    vector = file.deletion_vector
    return {} if vector is None else {"deletionVector": vector.to_json()}


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
