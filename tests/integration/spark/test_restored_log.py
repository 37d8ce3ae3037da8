"""Outputs and queries that have read further than an event log goes that was put back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from tests.behaviours.outputs import destination_sqlite
from tests.behaviours.outputs.destinations import Context
from tests.integration.spark.conftest import Lake
from tests.integration.spark.orders import orders
from tests.support.build_log import SOURCE, BuiltLog

from tidelog import app
from tidelog.config import load_config
from tidelog.errors import OffsetAheadError, UsageError
from tidelog.eventlog.consumers import Destination
from tidelog.eventlog.storage import storage_at
from tidelog.eventlog.writer import EventLogWriter
from tidelog.spark.pipeline import LoopOptions, run_output_loops

pytestmark = pytest.mark.spark


def test_outputs_and_queries_ahead_of_a_restored_log_are_reported(
    lake: Lake, built: BuiltLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.eventlog.reader._LATE_LISTING_S", 0.2)
    (tmp_path / "fresh").mkdir()
    kept = destination_sqlite.destination(Context(lake.spark, built, tmp_path))
    empty = destination_sqlite.destination(Context(lake.spark, built, tmp_path / "fresh"))

    def run(which: str, name: str) -> None:
        place = empty if which == "kept-again" else kept
        output: Any = lake.output() if which.startswith("delta") else place.open()
        try:
            run_output_loops(
                lake.spark,
                built.path,
                [output],
                LoopOptions(once=True),
                name=name,
                destinations={output.name: Destination(which, ("*.*",))},
            )
        finally:
            output.close()

    def query(by: str) -> int:
        frame = lake.spark.readStream.format("tidelog").option("path", built.path)
        frame = frame.option("table", "public.orders").load()
        running = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / by))
            .trigger(availableNow=True)
            .start()
        )
        running.awaitTermination()
        return int(running.lastProgress["numInputRows"]) if running.lastProgress else 0

    table, path = orders(built), Path(built.path)
    end = built.writer.next_offset
    shutil.copytree(path, tmp_path / "saved")
    built.update(table, "1", "lost", "2.00")
    built.flush()
    ahead = built.writer.next_offset
    config = load_config(_config(tmp_path, path), {})
    follower = app.log_lines(config, start=end, follow=True)
    assert '"lost"' in next(follower)
    for which in ("delta", "kept"):
        run(which, "first")
    query("query")
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "saved", path)
    with pytest.raises(OffsetAheadError, match="restore\\.md"):
        next(follower)  # the log is shorter than what it has shown
    with pytest.raises(UsageError, match=f"the event log ends at offset {end}, before {ahead}"):
        next(app.log_lines(config, start=ahead))
    follower = app.log_lines(config, start=end, follow=True)
    EventLogWriter(storage_at(path), SOURCE, 1, seen=0)
    again = BuiltLog(path, position=2000)
    for number in range(20, 60):
        again.insert(table, str(number), "new", None)
    again.flush()
    assert again.writer.next_offset > ahead
    said = rf"at offset {ahead}, .* at {end}: .*restore\.md"
    for which in ("delta", "kept"):  # the checkpoint is lost as well: the destination knows
        with pytest.raises(OffsetAheadError, match=said):
            run(which, "new")
    with pytest.raises(PySparkException, match="OffsetAheadError"):
        query("query")
    with pytest.raises(OffsetAheadError, match=said):
        next(app.log_lines(config, start=ahead))
    assert '"new"' in next(follower), "who was not ahead goes on"
    assert len(lake.rows("public.orders")) == len(kept.rows("public.orders")) == 4

    # The way on: a new name, and an empty place.
    lake.path = str(tmp_path / "lake-again")
    for which in ("delta-again", "kept-again"):
        run(which, which)
    copies = [lake.rows("public.orders", "id"), empty.rows("public.orders")]
    wanted = {"1", "2", "3", "4", *map(str, range(20, 60))}
    for rows in copies:
        assert "lost" not in str(rows)
        assert len(rows) == len(wanted)


def _config(directory: Path, log: Path) -> Path:
    file = directory / "tidelog.yaml"
    source = {"kind": "postgres", "url": "postgresql://nobody@127.0.0.1/none", "tables": ["*.*"]}
    state = {"url": f"sqlite:///{directory}/capture.db"}
    file.write_text(json.dumps({"source": source, "log": {"path": str(log)}, "state": state}))
    return file
