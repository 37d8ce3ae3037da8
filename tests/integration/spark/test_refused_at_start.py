"""`tidelog run` with an output whose database refuses it at the start: nothing waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tidelog import app
from tidelog.config import load_config
from tidelog.eventlog.reader import EventLog
from tidelog.spark.pipeline import OutputGroup

pytestmark = [pytest.mark.spark, pytest.mark.integration]


class Running:
    """`tidelog run` in a thread: public.t goes to the schema ``copy``, by a role without rights
    and, where something is ``beside``, into files.
    """

    def __init__(self, url: str, directory: Path, *, beside: bool) -> None:
        self.sql = psycopg.connect(url, autocommit=True)
        self.role = f"guest_{self.sql.info.dbname}"
        self.execute(f"CREATE ROLE {self.role} LOGIN")
        self.execute("CREATE TABLE t (id int PRIMARY KEY)")
        self.execute("INSERT INTO t VALUES (1)")
        info = self.sql.info
        guest = f"postgresql://{self.role}@{info.host}:{info.port}/{info.dbname}"
        files = "- {kind: files, path: files, format: json}\n" if beside else ""
        self.files = directory / "files"
        (directory / "tidelog.yaml").write_text(
            f"source: {{kind: postgres, url: '{url}', tables: ['public.*']}}\n"
            "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
            f"capture: {{flush_ms: 10}}\npipeline: {{trigger_ms: 50}}\noutputs:\n"
            f"- {{kind: postgres, url: '{guest}', schema: copy}}\n{files}"
        )
        self.config = load_config(directory / "tidelog.yaml")
        self.shown: list[Mapping[str, Any]] = []
        self.raised: BaseException | None = None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def execute(self, statement: str) -> list[Any]:
        found = self.sql.execute(statement.encode())
        return found.fetchall() if found.description else []

    def _run(self) -> None:
        try:
            app.run_capture_and_pipeline(
                self.config, on_status=self.shown.append, stop_event=self.stop
            )
        except BaseException as error:
            self.raised = error
            raise

    def end(self) -> None:
        self.stop.set()
        self.thread.join(120)
        assert not self.thread.is_alive()
        self.sql.close()

    def wait_for(self, held: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 240
        while not held():
            assert self.thread.is_alive(), self.raised
            assert time.monotonic() < deadline, self.outputs()
            time.sleep(0.1)

    def outputs(self) -> dict[str, dict[str, Any]]:
        return {each["output"]: each for each in app.status(self.config).document["outputs"]}


@pytest.fixture(params=[True, False], ids=["beside another", "alone"])
def running(
    spark: Any,
    database: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Running]:
    monkeypatch.setitem(OutputGroup.__init__.__kwdefaults__, "retry_s", (0.5, 1.0))
    made = Running(database, tmp_path, beside=request.param)
    yield made
    made.end()


def test_what_an_output_is_refused_at_the_start_stops_nothing_else(running: Running) -> None:
    def is_stopped() -> bool:
        return running.outputs().get("postgres", {}).get("state") == "stopped"

    running.wait_for(lambda: EventLog.exists(str(running.config.log.path)) and is_stopped())
    assert "permission denied" in running.outputs()["postgres"]["error"]
    assert any("postgres" in each.get("pipeline", {}).get("stopped", {}) for each in running.shown)
    # Capture and the other output go on, while it is tried again and again.
    log = EventLog.open(str(running.config.log.path))
    for key in (2, 3):
        before = log.latest_offset()
        running.execute(f"INSERT INTO t VALUES ({key})")
        running.wait_for(lambda before=before: log.latest_offset() > before)
    if len(running.config.outputs) > 1:
        end = log.latest_offset()
        running.wait_for(lambda: running.outputs()["files"]["offset"] >= end)
    assert is_stopped()
    running.execute(f"GRANT ALL ON SCHEMA tidelog TO {running.role}")
    running.execute(f"CREATE SCHEMA copy AUTHORIZATION {running.role}")
    running.wait_for(lambda: running.execute("SELECT to_regclass('copy.t')") != [(None,)])
    running.wait_for(
        lambda: running.execute("SELECT id FROM copy.t ORDER BY 1") == [(1,), (2,), (3,)]
    )
    running.wait_for(lambda: running.outputs()["postgres"]["state"] == "following")
    running.end()
    assert running.raised is None
