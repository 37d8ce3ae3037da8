"""What is noted of schema versions in MySQL's log, where the event log was put back."""

from __future__ import annotations

from pathlib import Path

from tidelog.eventlog.log_files import create_log
from tidelog.eventlog.schemas import SchemaStore
from tidelog.eventlog.storage import storage_at
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.ports import SourceId
from tidelog.sources.mysql.stream.schema_history import PREFIX, SchemaHistory
from tidelog.state.opening import open_state

TABLE = TableName("app", "t")


def schema(*names: str) -> TableSchema:
    columns = tuple(Column(name, 3, 0, "int", "int32") for name in names)
    return TableSchema(TABLE, 0, columns, ("id",), ("id",), "d", "binlog")


def registry(place: Path) -> SchemaStore:
    create_log(storage_at(place), SourceId("mysql", "1", "app"), 0)
    return SchemaStore(storage_at(place))


def test_a_note_counts_only_for_the_version_that_bears_its_number(tmp_path: Path) -> None:
    """Of an event log that was put back: the numbers behind its end are given anew."""
    state = open_state(f"sqlite:///{tmp_path}/state.db")
    before = registry(tmp_path / "before")
    first = before.register(schema("id")).schema_id
    second = before.register(schema("id", "a")).schema_id
    history = SchemaHistory(state, before)
    history.note(TABLE, 10, first)
    history.note(TABLE, 20, 0)
    history.note(TABLE, 21, second)
    assert SchemaHistory(state, before).of(TABLE) == [(10, first), (20, 0), (21, second)]

    restored = registry(tmp_path / "restored")
    assert restored.register(schema("id")).schema_id == first
    assert SchemaHistory(state, restored).of(TABLE) == [(10, first), (20, 0)]
    assert restored.register(schema("id", "b")).schema_id == second
    assert SchemaHistory(state, restored).of(TABLE) == [(10, first), (20, 0)]
    assert SchemaHistory(state, restored).find(TABLE, 30) is None
    state.put(PREFIX + str(TABLE), [[10, first], [21, second]], None)
    assert len(SchemaHistory(state, restored).of(TABLE)) == 2, "as an earlier version noted them"
    state.close()
