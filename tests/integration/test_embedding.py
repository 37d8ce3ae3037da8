"""`tidelog.CaptureGroup`: several captures in one process."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from tests.support.postgres import PostgresServer

import tidelog
from tidelog import app
from tidelog.config import Config, load_config
from tidelog.errors import ConfigError, UsageError


def config(server: PostgresServer, name: str, directory: Path, password: str = "") -> Config:
    dsn = server.create_database(name)
    server.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)", name)
    file = directory / f"{name}.yaml"
    file.write_text(
        f"source: {{kind: postgres, url: '{dsn}', slot: {name}}}\n"
        f"log: {{path: {directory}/{name}/log}}\n"
        f"state: {{url: 'sqlite:///{directory}/{name}/state.db'}}\n"
    )
    return load_config(file)


@pytest.mark.integration
def test_a_group_runs_several_captures_and_one_failure_ends_no_other(
    postgres16: PostgresServer, tmp_path: Path
) -> None:
    good = [config(postgres16, name, tmp_path) for name in ("embedded_a", "embedded_b")]
    bad = config(postgres16, "embedded_gone", tmp_path)
    postgres16.drop_database("embedded_gone")
    try:
        group = tidelog.CaptureGroup([bad, *good])
        raised: list[BaseException] = []
        runs = threading.Thread(target=_run_and_keep, args=(group, raised))
        runs.start()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (group.failures and all(map(_dumped, good))):
            time.sleep(0.2)
        assert runs.is_alive()
        group.stop()
        runs.join(60)
        assert raised == [group.failures[0]]
        assert all(map(_dumped, good))
        assert isinstance(group.failures[0], UsageError)
        assert list(group.failures) == [0]
        for each in good:
            rows = [event["after"]["id"] for event in app.read_log(each)]
            assert rows == [1, 2]
    finally:
        for name in ("embedded_a", "embedded_b"):
            postgres16.drop_database(name)


def _run_and_keep(group: tidelog.CaptureGroup, raised: list[BaseException]) -> None:
    try:
        group.run()
    except UsageError as error:
        raised.append(error)


@pytest.mark.integration
def test_a_failure_ends_the_group_where_that_is_asked_for(
    postgres16: PostgresServer, tmp_path: Path
) -> None:
    good, bad = (config(postgres16, name, tmp_path) for name in ("embedded_c", "embedded_gone"))
    postgres16.drop_database("embedded_gone")
    group = tidelog.CaptureGroup([good, bad], on_failure="stop")
    try:
        group.start()
        with pytest.raises(UsageError, match="was started before"):
            group.start()
        with pytest.raises(UsageError, match="embedded_gone"):
            group.wait(60)
        assert list(group.failures) == [1]
    finally:
        postgres16.drop_database("embedded_c")


def _dumped(each: Config) -> bool:
    dumps = app.status(each).document.get("dumps", [])
    return bool(dumps) and all(dump["status"] == "completed" for dump in dumps)


def test_two_tasks_may_not_share_an_event_log(tmp_path: Path) -> None:
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        f"source: {{kind: postgres, url: 'postgresql://localhost/x'}}\n"
        f"log: {{path: {tmp_path}/log}}\n"
    )
    with pytest.raises(ConfigError, match=r"same log\.path"):
        tidelog.CaptureGroup([file, file])
