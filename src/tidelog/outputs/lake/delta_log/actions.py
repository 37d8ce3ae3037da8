"""Data files, deletion vectors, metadata and protocol of a Delta table, as its log has them.

Field names and meanings: Delta protocol, "Actions" (github.com/delta-io/delta, PROTOCOL.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """Where the numbers of a data file's deleted rows are (protocol: "Deletion Vector Descriptor").

    Attributes:
        storage: ``u`` (a file of the table, by UUID), ``p`` (an absolute path) or ``i`` (inline).
        location: UUID in Base85 with an optional prefix, path, or the vector itself in Base85.
        offset: of the vector in its file, in bytes; None: at its start, or inline.
        size_bytes: of the serialized vector, without length and checksum.
        cardinality: how many rows are deleted.
    """

    storage: str
    location: str
    offset: int | None
    size_bytes: int
    cardinality: int

    @classmethod
    def parse(cls, action: Mapping[str, Any]) -> DeletionVector:
        """From the object ``deletionVector`` of an action."""
        return cls(
            action["storageType"],
            action["pathOrInlineDv"],
            action.get("offset"),
            int(action["sizeInBytes"]),
            int(action["cardinality"]),
        )

    def to_json(self) -> dict[str, Any]:
        """The object ``deletionVector`` of an action."""
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


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table (action ``add``). Picklable.

    Attributes:
        path: as the log has it: relative to the table, percent-encoded; or an absolute URL.
        partition_values: by physical column name, values as the protocol serializes them.
        size: in bytes.
        modification_time_ms: since 1970, UTC.
        stats: the JSON text of its statistics; None: there are none.
        deletion_vector: of its deleted rows; None: all rows are alive.
        tags: of the file, as others set them.
        clustering_provider: what clustered it; None: nothing did.
    """

    path: str
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    size: int = 0
    modification_time_ms: int = 0
    stats: str | None = None
    deletion_vector: DeletionVector | None = None
    tags: Mapping[str, str] | None = None
    clustering_provider: str | None = None

    @property
    def unique_id(self) -> tuple[str, str | None]:
        """The protocol's primary key of a logical file: path and deletion vector."""
        vector = self.deletion_vector
        return self.path, None if vector is None else vector.unique_id
