"""Data files, deletion vectors, metadata and protocol of a Delta table, as its log has them.

Field names and meanings: Delta protocol, "Actions" (github.com/delta-io/delta, PROTOCOL.md).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

FEATURES_READER: Final = 3
FEATURES_WRITER: Final = 7
"""Versions of the protocol that list features."""


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """The location of the numbers of a data file's deleted rows (protocol: "Deletion Vector
    Descriptor").

    Attributes:
        storage: ``u`` (a file of the table, by UUID), ``p`` (an absolute path) or ``i`` (inline).
        location: UUID in Base85 with an optional prefix, path, or the vector itself in Base85.
        offset: offset of the vector in its file, in bytes; None: at its start, or inline.
        size_bytes: size of the serialized vector, without length and checksum.
        cardinality: number of deleted rows.
    """

    storage: str
    location: str
    offset: int | None
    size_bytes: int
    cardinality: int

    @classmethod
    def parse(cls, action: Mapping[str, Any]) -> DeletionVector:
        """Returns the vector of the object ``deletionVector`` of an action."""
        return cls(
            action["storageType"],
            action["pathOrInlineDv"],
            action.get("offset"),
            int(action["sizeInBytes"]),
            int(action["cardinality"]),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the object ``deletionVector`` of an action."""
        offset = {} if self.offset is None else {"offset": self.offset}
        return {
            "storageType": self.storage,
            "pathOrInlineDv": self.location,
            **offset,
            "sizeInBytes": self.size_bytes,
            "cardinality": self.cardinality,
        }

    @property
    def unique_id(self) -> str:
        """Equal for two descriptors exactly if they name one vector."""
        at = "" if self.offset is None else f"@{self.offset}"
        return f"{self.storage}{self.location}{at}"


@lru_cache(1024)  # a batch asks several times, and the next batch again
def _parsed(stats: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(stats, parse_float=Decimal)
    return found


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table (action ``add``). Picklable.

    Attributes:
        path: as the log has it: relative to the table, percent-encoded; or an absolute URL.
        partition_values: by physical column name, values as the protocol serializes them.
        size: in bytes.
        modification_time_ms: since 1970, UTC.
        stats: the JSON text of its statistics; None: there are none.
        deletion_vector: the vector of its deleted rows; None: no row is deleted.
        tags: the file's tags, which others set.
        clustering_provider: the implementation that clustered it; None: it is not clustered.
    """

    path: str
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    size: int = 0
    modification_time_ms: int = 0
    stats: str | None = None
    deletion_vector: DeletionVector | None = None
    tags: Mapping[str, str] | None = None
    clustering_provider: str | None = None

    @classmethod
    def parse(cls, action: Mapping[str, Any]) -> DataFile:
        """Returns the file of the object ``add`` of a commit."""
        vector = action.get("deletionVector")
        return cls(
            action["path"],
            action.get("partitionValues") or {},
            int(action["size"]),
            int(action.get("modificationTime") or 0),
            action.get("stats"),
            None if vector is None else DeletionVector.parse(vector),
            action.get("tags"),
            action.get("clusteringProvider"),
        )

    @property
    def statistics(self) -> Mapping[str, Any]:
        """Its statistics, with decimals as they are written; empty: there are none."""
        return _parsed(self.stats) if self.stats else {}

    @property
    def deleted_rows(self) -> int:
        """The number of rows that are marked as deleted."""
        return 0 if self.deletion_vector is None else self.deletion_vector.cardinality

    @property
    def unique_id(self) -> tuple[str, str | None]:
        """The protocol's primary key of a logical file: path and deletion vector."""
        vector = self.deletion_vector
        return self.path, None if vector is None else vector.unique_id


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
        """Returns the protocol of the object ``protocol`` of an action."""
        return cls(
            int(action["minReaderVersion"]),
            int(action["minWriterVersion"]),
            frozenset(action.get("readerFeatures") or ()),
            frozenset(action.get("writerFeatures") or ()),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the object ``protocol`` of an action."""
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
        """Returns the metadata of the object ``metaData`` of an action."""
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
        """Returns the object ``metaData`` of an action."""
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
    """Returns the action that adds a file. ``data_change`` is false if the same commit removes
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
    """Returns the action that removes a file with its vector; ``at_ms``: since 1970, UTC."""
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
    """Returns the action that adds a file of the change data feed."""
    return {
        "cdc": {
            "path": path,
            "partitionValues": dict(partition_values),
            "size": size,
            "dataChange": False,
        }
    }


def transaction(app: str, version: int) -> dict[str, Any]:
    """Returns the action that sets the version up to which ``app`` has written."""
    now = time.time_ns() // 1_000_000
    return {"txn": {"appId": app, "version": version, "lastUpdated": now}}


def _vector_of(file: DataFile) -> dict[str, Any]:
    vector = file.deletion_vector
    return {} if vector is None else {"deletionVector": vector.to_json()}


def _without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
