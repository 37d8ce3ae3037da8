"""The event log on an object store, from the source's commit to what an output holds."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.behaviours.outputs.activity_files import read
from tests.faults.capture_fixture import Source
from tests.support.s3 import S3Server

from tidelog.app.pipeline.run import run_pipeline
from tidelog.app.sources.preflight import check
from tidelog.eventlog.storage import OPTIONS_VARIABLE
from tidelog.spark.datasource.source import register

pytestmark = [pytest.mark.spark, pytest.mark.integration]


@pytest.fixture
def source(
    database: str, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> Iterator[Source]:
    # What the configuration says must be enough, here and on executors.
    monkeypatch.delenv(OPTIONS_VARIABLE, raising=False)
    made = Source(database, tmp_path, s3.url("log"), s3.options)
    yield made
    made.close()
    spark.sparkContext.environment.pop(OPTIONS_VARIABLE, None)


def test_a_log_on_s3_from_the_source_to_an_output(
    source: Source, spark: Any, s3: S3Server, tmp_path: Path
) -> None:
    source.write(1, 10)
    with source.config_file.open("a") as file:
        near = {"kind": "files", "name": "activity", "path": str(tmp_path / "out")}
        far = {"kind": "files", "name": "far", "path": s3.url("out")}
        far |= {"storage_options": s3.options}
        pipe = {"checkpoint": str(tmp_path / "checkpoint")}
        file.write(f"outputs: {json.dumps([near, far])}\npipeline: {json.dumps(pipe)}\n")
    found = {f["check"]: f["message"] for f in [each.to_dict() for each in check(source.config)]}
    assert found["log"].endswith("can be listed; it holds no event log yet")
    assert found["output far"] == f"{s3.url('out')} can be listed"
    source.start()
    source.wait_led()
    source.write(11, 20)
    source.wait_for(lambda: source.inserted() == list(range(11, 21)))
    run_pipeline(source.config, once=True, stop_event=threading.Event())
    rows = read(tmp_path / "out")
    assert sorted(row["after"]["id"] for row in rows) == list(range(1, 21))
    far_rows = s3.parquet("out").column("after").to_pylist()
    assert sorted(row["id"] for row in far_rows) == list(range(1, 21))

    register(spark)  # the pipeline's session may be another
    frame = spark.read.format("tidelog").option("path", s3.url("log")).option("table", "app.t")
    changes = frame.load().select("op", "after.id").collect()
    assert sorted((row.op, row.id) for row in changes) == sorted(
        [("r", i) for i in range(1, 11)] + [("c", i) for i in range(11, 21)]
    )
    _assert_nothing_shows(s3.secret_access_key, spark, frame.load(), source, tmp_path)


def _assert_nothing_shows(
    secret: str, spark: Any, frame: Any, source: Source, directory: Path
) -> None:
    plan = frame._jdf.queryExecution().toString()
    settings = str(spark.sparkContext.getConf().getAll())
    assert secret not in plan + settings
    written = [p for p in directory.rglob("*") if p.is_file() and p != source.config_file]
    assert not [path for path in written if secret.encode() in path.read_bytes()]
