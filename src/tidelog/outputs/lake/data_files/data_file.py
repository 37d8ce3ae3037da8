"""A data file of a lake's table, and the vector of its deleted rows.

Field names and meanings: Delta protocol, "Actions" (github.com/delta-io/delta, PROTOCOL.md).
Files of Iceberg are described in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any


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
        """Return the vector of the object ``deletionVector`` of an action."""
        return cls(
            action["storageType"],
            action["pathOrInlineDv"],
            action.get("offset"),
            int(action["sizeInBytes"]),
            int(action["cardinality"]),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the object ``deletionVector`` of an action."""
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
        """Return the file of the object ``add`` of a commit."""
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
