"""A paused pipeline delivers nothing, says so, and resumes where it was."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.integration.spark.test_failover import Pipeline
from tests.support.build_log import BuiltLog

import tidelog
from tidelog import app
from tidelog.capture.pauses import PIPELINE_KEYS, pause, resume
from tidelog.errors import UsageError
from tidelog.state.opening import open_state

pytestmark = [pytest.mark.spark, pytest.mark.integration]

KEY = PIPELINE_KEYS + "shop"


@pytest.fixture
def pipeline(built: BuiltLog, tmp_path: Path) -> Pipeline:
    made = Pipeline(built, tmp_path)
    made.configure({"kind": "files", "path": "activity", "format": "json"})
    return made


def test_it_stays_paused_over_restarts_until_it_is_resumed(spark: Any, pipeline: Pipeline) -> None:
    del spark  # runs in this process
    config = pipeline.config
    pipeline.write(5)
    with closing(open_state(config.state.location)) as state:
        with tidelog.Pipeline(config):
            pipeline.wait_for(lambda: len(pipeline.events()) == 5)
            pause(state, KEY, "ops@db1")
            time.sleep(2)  # it looks once a second
            pipeline.write(5)
            time.sleep(3)
            assert len(pipeline.events()) == 5
        with pytest.raises(UsageError, match="paused by ops@db1: `tidelog resume CONFIG --pipe"):
            app.run_pipeline(config, once=True, stop_event=threading.Event())
        pipeline.write(5)
        with tidelog.Pipeline(config):
            pipeline.wait_for(lambda: pipeline.status()["leader"])
            time.sleep(3)
            assert len(pipeline.events()) == 5
            found = app.status(config).document["overview"]
            (told,) = (each for each in found["problems"] if each["kind"] == "pipeline-paused")
            assert told["sentence"].startswith("Pipeline shop is paused by ops@db1 for ")
            assert "(10 records, which the event log keeps)" in told["sentence"]
            (row,) = found["pipelines"]
            assert row["paused_by"] == "ops@db1"
            assert resume(state, KEY)
            pipeline.wait_for(lambda: len(pipeline.events()) >= 15)
        assert sorted(pipeline.events()) == list(range(1, 16))
