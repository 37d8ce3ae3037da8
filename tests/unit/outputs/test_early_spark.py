"""A pipeline that waits for the event log starts Spark while capture starts."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

from tidelog.app.pipeline.run import _may_start
from tidelog.config import parse_config
from tidelog.state.opening import open_state


def test_spark_starts_while_there_is_no_event_log(tmp_path: Path) -> None:
    text = (
        "source: {kind: postgres, url: 'postgresql://u@127.0.0.1:1/d'}\nlog: {path: ./log}\n"
        "state: {url: 'sqlite:///state.db'}\noutputs: [{kind: delta, path: ./lake}]\n"
    )
    config = parse_config(text, "here", tmp_path, {})
    stop = threading.Event()
    told: list[Any] = []
    with closing(open_state(config.state.location)) as state:
        assert not _may_start(config, state, False, False, told.append, stop, stop.set)
    assert "holds no event log yet" in told[0]["reason"]
