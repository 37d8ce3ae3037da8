"""Decides which tables can be written: an allow-list of the protocol's features and of those in
use.

Delta protocol, "Table Features" and "Writer Version Requirements".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any, Final

from tidelog.errors import TableLeftOutError
from tidelog.outputs.lake.delta_log.actions import (
    FEATURES_READER,
    FEATURES_WRITER,
    TableMetadata,
    TableProtocol,
)

_MAPPING: Final = "columnMapping"
_MAPPING_READER: Final = 2
_ADDED: Final = {
    2: {"appendOnly", "invariants"},
    3: {"checkConstraints"},
    4: {"changeDataFeed", "generatedColumns"},
    5: {_MAPPING},
    6: {"identityColumns"},
}
"""By writer version, the features that it adds to the version before."""
_OF_READERS: Final = frozenset(
    (
        _MAPPING,
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
        "variantType-preview",
    )
)
"""Features that readers must support, too."""
_PREVIEWS: Final = {
    "typeWidening": "typeWidening-preview",
    "variantType": "variantType-preview",
}


def features_of(protocol: TableProtocol) -> frozenset[str]:
    """Return the features that writers must support, listed or implied by the version."""
    if protocol.min_writer_version >= FEATURES_WRITER:
        return protocol.writer_features | protocol.reader_features
    added = (names for at, names in _ADDED.items() if at <= protocol.min_writer_version)
    return frozenset[str]().union(*added)


def with_features(protocol: TableProtocol, names: Set[str]) -> TableProtocol:
    """Return the protocol with further features: the lowest versions that have them."""
    known = features_of(protocol)
    fresh = {name for name in names if name not in known and _PREVIEWS.get(name) not in known}
    if not fresh:
        return protocol
    writers = known | fresh
    readers = writers & _OF_READERS
    reader = protocol.min_reader_version
    if readers - {_MAPPING}:
        reader = FEATURES_READER
    elif readers:
        reader = max(reader, _MAPPING_READER)
    listed = readers if reader >= FEATURES_READER else frozenset[str]()
    return TableProtocol(reader, FEATURES_WRITER, frozenset(listed), frozenset(writers))


SUPPORTED: Final = frozenset(
    (
        "appendOnly",
        "changeDataFeed",
        "checkpointProtection",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "inCommitTimestamp",
        "inCommitTimestamp-preview",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
        "variantType-preview",
        # Older versions of the protocol imply these: they may be listed, but not in use.
        "allowColumnDefaults",
        "checkConstraints",
        "generatedColumns",
        "identityColumns",
        "invariants",
    )
)
_OF_COLUMNS: Final = {
    "CURRENT_DEFAULT": "a default (ALTER COLUMN … DROP DEFAULT)",
    "delta.generationExpression": "a generation expression",
    "delta.identity.start": "IDENTITY",
    "delta.invariants": "an invariant",
}
"""Metadata of a column that writers of rows must support."""


def check_supported(protocol: TableProtocol, metadata: TableMetadata, location: str) -> None:
    """Raise TableLeftOutError, which names the feature, for a table that we must not write.

    Args:
        protocol: the table's protocol.
        metadata: the table's metadata.
        location: the table's location, for the message.
    """
    for what, remedy in _reasons(protocol, metadata):
        raise TableLeftOutError(
            f"{location} uses {what}, which Tidelog does not support. {remedy}, or move the table "
            "away and dump it again."
        )


def _reasons(protocol: TableProtocol, metadata: TableMetadata) -> Iterator[tuple[str, str]]:
    configuration = metadata.configuration
    if (
        protocol.min_reader_version > FEATURES_READER
        or protocol.min_writer_version > FEATURES_WRITER
    ):
        yield (
            f"protocol {protocol.min_reader_version}, {protocol.min_writer_version}",
            "Update Tidelog",
        )
    for feature in sorted((protocol.reader_features | protocol.writer_features) - SUPPORTED):
        yield f"the feature {feature}", f"Remove it (ALTER TABLE … DROP FEATURE {feature})"
    if configuration.get("delta.appendOnly") == "true":
        yield "delta.appendOnly", "Set the property to false"
    mode = configuration.get("delta.columnMapping.mode", "none")
    if mode not in ("none", "name"):
        yield f"column mapping by {mode}", "Use column mapping by name"
    for name in configuration:
        if name.startswith("delta.constraints."):
            constraint = name.removeprefix("delta.constraints.")
            yield (
                f"the CHECK constraint {constraint}",
                f"Remove it (ALTER TABLE … DROP CONSTRAINT {constraint})",
            )
    for column, kind in _unsupported_columns(metadata.schema):
        yield f"{kind} of column {column}", "Remove it"
    if metadata.format != "parquet":
        yield f"data files of format {metadata.format}", "Use Parquet"


def _unsupported_columns(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the columns, and those inside them, that need support by writers: name, what they
    need.
    """
    for column in schema.get("fields", ()):
        for key in column.get("metadata") or ():
            if key in _OF_COLUMNS:
                yield column["name"], _OF_COLUMNS[key]
        below: Any = column["type"]
        while isinstance(below, Mapping) and below["type"] in ("array", "map"):
            below = below.get("elementType", below.get("valueType"))
        if isinstance(below, Mapping):
            for name, kind in _unsupported_columns(below):
                yield f"{column['name']}.{name}", kind
