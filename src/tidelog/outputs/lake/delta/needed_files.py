"""Which files in the place of a table are its own, and which of them a version of late needs.

Delta says it by what its VACUUM does: the current version's files, those whose ``remove`` is young,
and the deletion vectors of both. Files of the change data feed are in no state of a table: they are
kept by their age alone, as are files that are not committed yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.compute as pc

from tidelog.errors import OutputRefusedError
from tidelog.outputs.base.stores.port import FileStore
from tidelog.outputs.lake.data_files.partition_values import escaped
from tidelog.outputs.lake.delta_log.actions import DataFile, TableMetadata
from tidelog.outputs.lake.delta_log.checkpoint_writer import tombstones
from tidelog.outputs.lake.delta_log.deletion_vectors import location_in
from tidelog.outputs.lake.delta_log.log_files import CheckpointFiles
from tidelog.outputs.lake.delta_log.table_state import TableState

_CHANGE_DATA: Final = "_change_data"
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
_PHYSICAL: Final = "delta.columnMapping.physicalName"


@dataclass(frozen=True)
class NeededFiles:
    """By ``names`` below the table; and ``vectors``, by where the log says that they are."""

    names: set[str]
    vectors: set[str]

    def __contains__(self, name: str) -> bool:
        return name in self.names or location_in(name) in self.vectors


@dataclass(frozen=True)
class TableFiles:
    """What a table's log says of files at a moment, for another thread than that of the state.

    Attributes:
        alive: those of the current version.
        removed: ``remove`` objects behind the checkpoint.
        checkpoint: None: all is in ``removed``.
    """

    alive: Sequence[DataFile]
    removed: Sequence[Mapping[str, Any]]
    checkpoint: CheckpointFiles | None

    @classmethod
    def of(cls, state: TableState) -> TableFiles:
        return cls(list(state.files.values()), list(state.removed), state.checkpoint)

    def needed(self, store: FileStore, since_ms: int) -> NeededFiles:
        """Those that a version needs which was current at ``since_ms`` (since 1970, UTC) or later.
        ``store``: the table's.

        Raises OutputRefusedError if the log is damaged, or says what we do not know.
        """
        removed = tombstones(store, self.checkpoint, self.removed, since_ms - 1)
        paths = {each.path for each in self.alive}
        paths.update(pc.struct_field(removed, "path").to_pylist())
        vectors = [each.deletion_vector for each in self.alive]
        places = {(each.storage, each.location) for each in vectors if each is not None}
        of_removed = pc.struct_field(removed, "deletionVector")
        columns = [
            pc.struct_field(of_removed, name).to_pylist()
            for name in ("storageType", "pathOrInlineDv")
        ]
        places.update(zip(*columns, strict=True))
        names = set(_names(paths))
        vectors_at = set()
        for storage, location in places:
            if storage == "u":
                vectors_at.add(location)
            elif storage == "p":
                names.update(_names([location]))
            elif storage not in ("i", None):
                raise OutputRefusedError(
                    f"{store.path}: the log has deletion vectors stored as {storage!r}, which this "
                    "version of Tidelog does not know. Update Tidelog."
                )
        return NeededFiles(names, vectors_at)


def partition_folders(metadata: TableMetadata) -> tuple[str, ...]:
    """How names of folders begin that hold files of a partition, by all names of its columns."""
    names = list(metadata.partition_columns)
    for each in metadata.schema["fields"]:
        if each["name"] in metadata.partition_columns:
            names.append((each.get("metadata") or {}).get(_PHYSICAL, each["name"]))
    return tuple(f"{escaped(name)}=" for name in names)


def is_hidden(name: str, partitions: tuple[str, ...]) -> bool:
    """Is a file none of the table's data: does it, or a folder that it is in, begin with ``_`` or
    ``.`` and is neither that of changes nor of a partition?

    Args:
        name: below the table, of a file or a folder.
        partitions: see `partition_folders`.
    """
    parts = name.split("/")
    return any(
        part.startswith(("_", ".")) and not part.startswith(partitions)
        for part in (parts[1:] if parts[0] == _CHANGE_DATA else parts)
    )


def _names(paths: Iterable[str]) -> Iterator[str]:
    """What ``paths`` of the log may be called below the table. Of an absolute one that is every end
    of it: nobody knows by which other URLs a table is reached.
    """
    for path in paths:
        name = unquote(path)
        yield name
        if _ABSOLUTE.match(name):
            at = name.find("/")
            while at >= 0:
                yield name[at + 1 :]
                at = name.find("/", at + 1)
