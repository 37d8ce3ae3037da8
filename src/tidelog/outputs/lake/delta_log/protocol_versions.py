"""Versions of the protocol, and the features that they bring along (Delta protocol, "Table
Features" and "Writer Version Requirements").
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from tidelog.outputs.lake.delta_log.actions import (
    FEATURES_READER,
    FEATURES_WRITER,
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
"""By writer version: what it asks beyond the one before."""
_OF_READERS: Final = frozenset(
    (
        _MAPPING,
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    )
)
"""Features that readers must know, too."""
_PREVIEWS: Final = {"typeWidening": "typeWidening-preview"}


def features_of(protocol: TableProtocol) -> frozenset[str]:
    """What writers must know, listed or by the version."""
    if protocol.min_writer_version >= FEATURES_WRITER:
        return protocol.writer_features | protocol.reader_features
    brought = (names for at, names in _ADDED.items() if at <= protocol.min_writer_version)
    return frozenset[str]().union(*brought)


def with_features(protocol: TableProtocol, names: Set[str]) -> TableProtocol:
    """The protocol with further features: the lowest versions that have them."""
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
