"""Small Delta tables of tests: a log, and data files that are names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tidelog.outputs.base.stores import FileStore, open_file_store
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.delta_log.actions import TableMetadata, TableProtocol, add
from tidelog.outputs.lake.delta_log.commits import CommitWriter
from tidelog.outputs.lake.delta_log.table_state import TableState

FIELDS = [
    {"name": name, "type": kind, "nullable": True, "metadata": {}}
    for name, kind in (("id", "long"), ("v", "string"))
]
METADATA = TableMetadata("an-id", {"type": "struct", "fields": FIELDS}, (), {})
PROTOCOL = TableProtocol(
    3, 7, frozenset({"deletionVectors"}), frozenset({"deletionVectors", "appendOnly"})
)


def file(name: str, **values: Any) -> DataFile:
    return DataFile(f"{name}.parquet", size=100, stats='{"numRecords":5}', **values)


class Table:
    """A table in a directory or on an object store."""

    def __init__(self, place: Path | str) -> None:
        self.place = str(place)
        self.store: FileStore = open_file_store(self.place)
        self.writer = CommitWriter(self.store)

    def state(self) -> TableState:
        """As a driver that has just started sees it."""
        state = TableState(self.store)
        state.refresh()
        return state

    def commit(
        self, state: TableState, *actions: Mapping[str, Any], note: str | None = None
    ) -> int:
        return self.writer.commit(state, actions, operation="WRITE", parameters={}, note=note)

    def create(self, configuration: Mapping[str, str] | None = None) -> TableState:
        state = self.state()
        metadata = {**METADATA.to_json(), "configuration": dict(configuration or {})}
        self.commit(state, {"protocol": PROTOCOL.to_json()}, {"metaData": metadata})
        return state

    def fill(self, state: TableState, count: int) -> None:
        """``count`` commits, a file each."""
        for _ in range(count):
            self.commit(state, add(file(f"f{state.version + 1}"), data_change=True))

    def foreign(self, version: int, actions: Sequence[Mapping[str, Any]]) -> None:
        """A commit that is there, whoever wrote it and whatever was."""
        lines = "".join(f"{json.dumps(action)}\n" for action in actions)
        self.store.put(f"_delta_log/{version:020d}.json", lines.encode())


def seen(state: TableState) -> dict[str, Any]:
    """All that a state says of the table."""
    return {
        "version": state.version,
        "timestamp": state.timestamp_ms,
        "protocol": state.protocol,
        "metadata": state.metadata,
        "files": state.files,
        "transactions": state.transactions,
        "domains": state.domains,
    }
