"""Outputs and queries that have read further than an event log goes that was put back."""

from __future__ import annotations

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

from tidelog.errors import OffsetAheadError
from tidelog.eventlog.consumers import Destination
from tidelog.eventlog.storage.opening import storage_at
from tidelog.eventlog.writer import EventLogWriter
from tidelog.spark.queries.run import run_pipeline

pytestmark = pytest.mark.spark


def test_outputs_and_queries_ahead_of_a_restored_log_are_told(
    lake: Lake, built: BuiltLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.eventlog.unused_offsets._LATE_LISTING_S", 0.2)
    kept = destination_sqlite.destination(Context(lake.spark, built, tmp_path))

    def run(which: str, checkpoint: str) -> None:
        output: Any = lake.output() if which == "delta" else kept.open()
        try:
            run_pipeline(
                lake.spark,
                built.path,
                [output],
                str(tmp_path / checkpoint),
                once=True,
                name=which,
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
    for which in ("delta", "kept"):
        run(which, "first")
    query("query")
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "saved", path)
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
    assert len(lake.rows("public.orders")) == len(kept.rows("public.orders")) == 4
