"""What version 0.1.0 wrote (`tests.support.former_version`) is read as that version read it."""

from __future__ import annotations

import json
import tarfile
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from tests.support.delta_readers import by_delta_rs
from tests.support.former_version import DATA

from tidelog import app
from tidelog.app.base.log_location import event_log_path
from tidelog.config import Config, load_config
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.writer import EventLogWriter
from tidelog.model.schema import TableName
from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.files.commits import Commits
from tidelog.outputs.lake.delta.options import DeltaOptions
from tidelog.outputs.lake.delta.table import DeltaTable
from tidelog.outputs.lake.table import application_of
from tidelog.spark.datasource.source import TidelogSource
from tidelog.spark.log_lines import lines
from tidelog.state.opening import open_state

VERSION = metadata.version("tidelog")


class Former:
    """The data, as of a capture of this version."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.config: Config = load_config(home / "tidelog.yaml", {})
        self.path = event_log_path(self.config)
        self.log = EventLog.open(self.path)
        self.expected: dict[str, Any] = json.loads((home / "expected.json").read_text())
        [self.table] = [str(t) for t in self.log.schemas.tables() if t.name == "orders"]

    def lines(self) -> list[str]:
        log = EventLog.open(self.path)
        found = lines(log, str(self.path), log.head_offset, log.latest_offset(), None)
        # Lines name the version that prints them.
        return [line.replace(f'"version":"{VERSION}"', '"version":"0.1.0"') for line in found]


@pytest.fixture
def former(tmp_path: Path) -> Former:
    with tarfile.open(DATA) as archive:
        archive.extractall(tmp_path, filter="data")
    return Former(tmp_path / "data")


def test_the_event_log_has_the_same_changes(former: Former) -> None:
    assert len(former.expected["log"]) > 400
    assert former.lines() == former.expected["log"]
    EventLogMaintenance(former.path).rollup(target_bytes=1 << 20, min_age_s=0, min_segments=2)
    assert former.lines() == former.expected["log"], "and after a roll-up"
    writer = EventLogWriter.open(former.path, former.log.source, 1000)
    writer.append_control({"type": "nothing"})
    assert former.lines() == former.expected["log"], "and behind a writer of this version"


def test_the_state_knows_the_dumps(former: Former) -> None:
    found = {dump["status"]: dump for dump in app.status(former.config).document["dumps"]}
    assert found.keys() == {"completed", "running"}
    [progress] = found["running"]["tables"]
    assert progress["table"] == former.table
    assert 0 < progress["rows_read"] < 272
    with closing(open_state(former.config.state.location)) as state:
        assert state.get("log-generation") is not None


def test_outputs_continue_where_they_were(former: Former) -> None:
    log, end = former.log, former.log.latest_offset()
    found = Consumers(log.storage).find("shop")
    assert found is not None
    assert dict(found.outputs) == {"delta": end, "files": end}
    newest = Commits(open_file_store(str(former.home / "files")), "files").newest
    assert newest is not None
    assert (newest.generation, newest.end) == (log.generation, end)
    schema = log.schemas.versions(TableName.parse(former.table))[-1]
    place = str(former.home / "lake" / former.table.replace(".", "/"))
    table = DeltaTable(place, DeltaOptions().layout_of(schema.table), lambda works: [])
    assert table.exists()
    table.check_ours(schema.table, log.generation)
    assert table.committed(application_of(log.generation, "delta")) is not None
    rows = by_delta_rs(place, "id").select(["id", "total", "note", "more"]).to_pylist()
    assert [[str(value) for value in row.values()] for row in rows] == former.expected["orders"]


def test_a_query_of_spark_continues_at_its_checkpoint(former: Former) -> None:
    [newest] = (former.home / "query/checkpoint/offsets").glob("[0-9]*")
    offset = json.loads(newest.read_text().splitlines()[-1])
    source = TidelogSource({"path": str(former.path), "table": former.table, "shape": "typed"})
    reader: Any = source.streamReader(source.schema())
    assert reader.partitions(offset, reader.latestOffset(offset)) == []
    read = [
        (int(version), op)
        for part in reader.partitions(reader.initialOffset(), offset)
        for batch in reader.read(part)
        for version, op in zip(
            batch.column("version").to_pylist(), batch.column("op").to_pylist(), strict=True
        )
    ]
    assert sorted(read) == sorted((row["version"], row["op"]) for row in former.expected["query"])
