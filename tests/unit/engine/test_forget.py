"""Engines in status, and what becomes of those that are not to run any more."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest
from tests.support.engines import orders_log

from tidelog import app
from tidelog.app.async_engine.capture_task import ExclusiveTask, GroupMembers
from tidelog.app.async_engine.log_task import LogTask
from tidelog.app.base.instances import this_holder
from tidelog.app.overview.build import overview
from tidelog.cli import main
from tidelog.cli.status_lines import lines
from tidelog.config import load_config
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.storage import LocalStorage
from tidelog.state.opening import open_state
from tidelog.system.processes import unix_ms


@pytest.fixture
def config(tmp_path: Path) -> Path:
    orders_log(tmp_path / "log", range(3))
    path = tmp_path / "tidelog.yaml"
    path.write_text(
        "source: {kind: postgres, url: 'postgresql://u@127.0.0.1:1/d'}\n"
        f"log: {{path: {tmp_path}/log}}\nstate: {{url: 'sqlite:///{tmp_path}/state.db'}}\n"
    )
    return path


def engine(config: Path) -> ExclusiveTask:
    state = partial(open_state, f"sqlite:///{config.parent}/state.db")
    made = ExclusiveTask(str(config.parent / "log"), "mail", GroupMembers(state, "mail", 60.0))
    made.start(threading.Event())
    return made


def shown(config: Path) -> str:
    status = app.status(load_config(config)).document
    found = overview(status, unix_ms())
    return next(line for line in lines(found) if "mail" in line)


def forget(config: Path, name: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["forget-engine", str(config), name])
    return int(ended.value.code or 0)


def test_status_tells_how_far_an_engine_is_and_who_runs_it(config: Path) -> None:
    runs = engine(config)
    assert f"3 records to do; {this_holder()} runs it" in shown(config)
    events = runs.poll(0.0)
    assert events is not None
    runs.commit(events.end)
    assert "mail has done all that was captured;" in shown(config)
    runs.stop()
    assert "mail has done all that was captured; last heard of at" in shown(config)


def test_what_does_not_run_is_forgotten(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    consumers = Consumers(LocalStorage(config.parent / "log"))
    runs = engine(config)
    assert forget(config, "mail") == 2
    assert (
        f"an engine named mail runs, or ran less than 120 s ago: {this_holder()}"
        in capsys.readouterr().err
    )
    runs.stop()
    consumers.register("tidelog", 0)
    assert forget(config, "tidelog") == 2
    assert forget(config, "nail") == 2
    assert "in this event log: mail" in capsys.readouterr().err
    assert forget(config, "mail") == 0
    assert [each.name for each in consumers.all()] == ["tidelog"]
    assert not app.status(load_config(config)).document["engine_owners"]
    alone = LogTask(str(config.parent / "log"), "alone")  # without a lease on its name
    alone.start(threading.Event())
    assert forget(config, "alone") == 2
    assert "alone runs, or ran less than 120 s ago: somebody" in capsys.readouterr().err
