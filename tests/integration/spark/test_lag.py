"""What a stream's progress says of its lag, on real queries."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming import StreamingQueryListener
from tests.support.build_log import BuiltLog

from tidelog.spark import lag_of
from tidelog.spark.datasource.source import Lag, lag_at

COMMITTED_S = 1_700_000_000


def fill(built: BuiltLog) -> None:
    table = built.table("public.t", {"id": "int64", "x": "text"})
    other = built.table("public.u", {"id": "int64"}, relation_id=2)
    for segment in range(4):
        for row in range(10):
            built.insert(table, str(segment * 10 + row), "x" * 100)
        built.insert(other, str(segment))
        built.flush()


def test_lag_counts_what_is_behind_an_offset(built: BuiltLog) -> None:
    fill(built)
    built.control({"type": "note"})
    log = built.log
    versions = [s.first for s in log.chain().segments if any(s.rows_by_schema)]
    end = log.latest_offset()
    now = COMMITTED_S + 100
    everything = lag_at(log, log.head_offset, (), now)
    assert (everything.bytes, everything.records) == (end - log.head_offset, 44)
    assert everything.seconds == pytest.approx(100, abs=0.01)
    assert lag_at(log, versions[1], ("public.t",), now).records == 30
    assert lag_at(log, versions[1] + 1, ("public.t",), now).records == 29
    assert lag_at(log, versions[1], ("public.u",), now).records == 3
    assert lag_at(log, versions[1], ("public.no*",), now) == Lag(end - versions[1], 0, 0.0)
    assert lag_at(log, end, (), now) == Lag(0, 0, 0.0)


class Listener(StreamingQueryListener):
    def __init__(self) -> None:
        self.found: list[Lag | None] = []
        self.ended = threading.Event()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.found.append(lag_of(event.progress))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self.ended.set()


@pytest.mark.spark
def test_progress_tells_bytes_records_and_seconds(
    spark: Any, built: BuiltLog, tmp_path: Path
) -> None:
    fill(built)
    listener = Listener()
    spark.streams.addListener(listener)
    try:
        reader = spark.readStream.format("tidelog").option("path", built.path)
        query = (
            reader.option("tables", "public.t")
            .option("maxRecordsPerTrigger", "22")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        assert listener.ended.wait(60)
    finally:
        spark.streams.removeListener(listener)
    found = [each for each in listener.found if each is not None]
    assert [each.records for each in found] == [20, 0]
    assert found[0].bytes > 20 * 100
    assert found[0].seconds > 60_000_000
    assert found[1] == Lag(0, 0, 0.0)
    assert lag_of(query.lastProgress) == found[-1]
    assert lag_of(json.loads(query.lastProgress.json)) == found[-1]
    stored = sorted((tmp_path / "c" / "offsets").glob("[0-9]*"))
    assert "lag" not in "".join(path.read_text() for path in stored)
