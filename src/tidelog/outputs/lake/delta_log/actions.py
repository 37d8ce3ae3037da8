"""Actions, metadata and protocol of a Delta table, as its log has them.

Field names and meanings: Delta protocol, "Actions" (github.com/delta-io/delta, PROTOCOL.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.system.processes import unix_ms

FEATURES_READER: Final = 3
FEATURES_WRITER: Final = 7
"""Versions of the protocol that list features."""


@dataclass(frozen=True)
class TableProtocol:
    """The features that readers and writers of a table must support (protocol: "Protocol
    Evolution"). Features are listed from reader version 3 and writer version 7 on.
    """

    min_reader_version: int = 1
    min_writer_version: int = 2
    reader_features: frozenset[str] = frozenset()
    writer_features: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, action: Mapping[str, Any]) -> TableProtocol:
        """Return the protocol of the object ``protocol`` of an action."""
        return cls(
            int(action["minReaderVersion"]),
            int(action["minWriterVersion"]),
            frozenset(action.get("readerFeatures") or ()),
            frozenset(action.get("writerFeatures") or ()),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the object ``protocol`` of an action."""
        found: dict[str, Any] = {
            "minReaderVersion": self.min_reader_version,
            "minWriterVersion": self.min_writer_version,
        }
        if self.min_reader_version >= FEATURES_READER:
            found["readerFeatures"] = sorted(self.reader_features)
        if self.min_writer_version >= FEATURES_WRITER:
            found["writerFeatures"] = sorted(self.writer_features)
        return found


@dataclass(frozen=True)
class TableMetadata:
    """The metadata of a table (protocol: "Change Metadata").

    Attributes:
        id: a UUID, constant for the table's lifetime.
        schema: ``schemaString``, parsed.
        partition_columns: their names, not the physical ones.
        configuration: the table's properties.
        created_time_ms: since 1970, UTC.
        format: encoding of data files.
    """

    id: str
    schema: Mapping[str, Any]
    partition_columns: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    description: str | None = None
    created_time_ms: int | None = None
    format: str = "parquet"

    @classmethod
    def parse(cls, action: Mapping[str, Any]) -> TableMetadata:
        """Return the metadata of the object ``metaData`` of an action."""
        created = action.get("createdTime")
        return cls(
            action["id"],
            json.loads(action["schemaString"]),
            tuple(action.get("partitionColumns") or ()),
            dict(action.get("configuration") or {}),
            action.get("name"),
            action.get("description"),
            None if created is None else int(created),
            (action.get("format") or {}).get("provider") or "parquet",
        )

    def to_json(self) -> dict[str, Any]:
        """Return the object ``metaData`` of an action."""
        known = {
            "name": self.name,
            "description": self.description,
            "createdTime": self.created_time_ms,
        }
        return {
            "id": self.id,
            "format": {"provider": self.format, "options": {}},
            "schemaString": json.dumps(self.schema, ensure_ascii=False, separators=(",", ":")),
            "partitionColumns": list(self.partition_columns),
            "configuration": dict(self.configuration),
            **{name: value for name, value in known.items() if value is not None},
        }


def add(file: DataFile, *, data_change: bool) -> dict[str, Any]:
    """Return the action that adds a file. ``data_change`` is false if the same commit removes
    files with the same rows.
    """
    return {
        "add": {
            "path": file.path,
            "partitionValues": dict(file.partition_values),
            "size": file.size,
            "modificationTime": file.modification_time_ms,
            "dataChange": data_change,
            **_without_none(stats=file.stats, tags=None if file.tags is None else dict(file.tags)),
            **_vector_of(file),
            **_without_none(clusteringProvider=file.clustering_provider),
        }
    }


def remove(file: DataFile, *, at_ms: int, data_change: bool) -> dict[str, Any]:
    """Return the action that removes a file with its vector; ``at_ms``: since 1970, UTC."""
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
    """Return the action that adds a file of the change data feed."""
    return {
        "cdc": {
            "path": path,
            "partitionValues": dict(partition_values),
            "size": size,
            "dataChange": False,
        }
    }


def transaction(app: str, version: int) -> dict[str, Any]:
    """Return the action that sets the version up to which ``app`` has written."""
    now = unix_ms()
    return {"txn": {"appId": app, "version": version, "lastUpdated": now}}


def _vector_of(file: DataFile) -> dict[str, Any]:
    vector = file.deletion_vector
    return {} if vector is None else {"deletionVector": vector.to_json()}


def _without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
