"""`tidelog run` with an output that can't be used at the start: nothing waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import deltalake
import psycopg
import pytest

from tidelog import app
from tidelog.app.base.outputs import destinations, pipeline_consumers
from tidelog.config import Config, load_config
from tidelog.errors import ConfigError
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.reader import EventLog
from tidelog.spark.pipeline import OutputGroup
from tidelog.system.backoff import Backoff

pytestmark = [pytest.mark.spark, pytest.mark.integration]


FILES = "{kind: files, path: files, format: json}"


class Running:
    """`tidelog run` in a thread, which delivers public.t to ``outputs``. In them ``{guest}`` is the
    URL of a role without rights.
    """

    def __init__(self, url: str, directory: Path, *outputs: str) -> None:
        self.sql = psycopg.connect(url, autocommit=True)
        self.role = f"guest_{self.sql.info.dbname}"
        self.execute(f"CREATE ROLE {self.role} LOGIN")
        self.execute("CREATE TABLE t (id int PRIMARY KEY)")
        self.execute("INSERT INTO t VALUES (1)")
        info = self.sql.info
        guest = f"postgresql://{self.role}@{info.host}:{info.port}/{info.dbname}"
        listed = "".join(f"- {each}\n" for each in outputs).replace("{guest}", guest)
        (directory / "tidelog.yaml").write_text(
            f"source: {{kind: postgres, url: '{url}', tables: ['public.*']}}\n"
            "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
            f"capture: {{flush_ms: 10}}\npipeline: {{trigger_ms: 50}}\noutputs:\n{listed}"
        )
        self.config = load_config(directory / "tidelog.yaml")
        self.shown: list[Mapping[str, Any]] = []
        self.start()

    def start(self) -> None:
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
        assert self.raised is None

    def wait_for(self, held: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 240
        while not held():
            assert self.thread.is_alive(), self.raised
            assert time.monotonic() < deadline, self.outputs()
            time.sleep(0.1)

    def outputs(self) -> dict[str, dict[str, Any]]:
        found = app.status(self.config).document
        return {each["output"]: each for each in found.get("outputs", [])}

    def is_stopped(self, output: str) -> bool:
        return self.outputs().get(output, {}).get("state") == "stopped"

    def log(self) -> EventLog:
        path = str(self.config.log.path)
        self.wait_for(lambda: EventLog.exists(path))
        return EventLog.open(path)

    def wait_until_flows(self, key: int, output: str | None) -> None:
        """Insert a row, and wait until it is captured and delivered."""
        log = self.log()
        before = log.latest_offset()
        self.execute(f"INSERT INTO t VALUES ({key})")
        self.wait_for(lambda: log.latest_offset() > before)
        end = log.latest_offset()
        if output is not None:
            self.wait_for(lambda: (self.outputs().get(output, {}).get("offset") or 0) >= end)


@pytest.fixture
def run(
    spark: Any, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Running]]:
    monkeypatch.setitem(OutputGroup.__init__.__kwdefaults__, "retry_s", Backoff(0.5, 1.0))
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[Running] = []

    def start(*outputs: str) -> Running:
        made.append(Running(database, tmp_path, *outputs))
        return made[-1]

    yield start
    for each in made:
        each.end()
        each.sql.close()


@pytest.mark.parametrize("beside", [[FILES], []], ids=["beside another", "alone"])
def test_what_an_output_is_refused_at_the_start_stops_nothing_else(
    run: Callable[..., Running], beside: list[str]
) -> None:
    running = run("{kind: postgres, url: '{guest}', schema: copy}", *beside)
    running.wait_for(lambda: running.is_stopped("postgres"))
    assert "permission denied" in running.outputs()["postgres"]["error"]
    assert any("postgres" in each.get("pipeline", {}).get("stopped", {}) for each in running.shown)
    # Capture and the other output go on, while it is tried again and again.
    for key in (2, 3):
        running.wait_until_flows(key, "files" if beside else None)
    assert running.is_stopped("postgres")
    running.execute(f"GRANT ALL ON SCHEMA tidelog TO {running.role}")
    running.execute(f"CREATE SCHEMA copy AUTHORIZATION {running.role}")
    running.wait_for(lambda: running.execute("SELECT to_regclass('copy.t')") != [(None,)])
    running.wait_for(
        lambda: running.execute("SELECT id FROM copy.t ORDER BY 1") == [(1,), (2,), (3,)]
    )
    running.wait_for(lambda: running.outputs()["postgres"]["state"] == "following")


@pytest.mark.parametrize(
    ("class_name", "reason"),
    [
        ("lost_module:Class", "lost_module:Class can't be imported"),
        ("own_writer:Failing", "it raised RuntimeError"),
    ],
)
def test_an_output_that_cannot_be_opened_stops_nothing_else(
    run: Callable[..., Running], tmp_path: Path, class_name: str, reason: str
) -> None:
    (tmp_path / "own_writer.py").write_text(
        "class Failing:\n"
        "    def __init__(self):\n        raise RuntimeError('s3cret')\n"
        "    def write(self, rows):\n        pass\n"
    )
    running = run(f"{{kind: python, name: own, class: '{class_name}'}}", FILES)
    running.wait_for(lambda: running.is_stopped("own"))
    error = running.outputs()["own"]["error"]
    assert f"output own can't be opened: {reason}" in error
    assert "start the pipeline again" in error
    assert "s3cret" not in error
    for key in (2, 3):
        running.wait_until_flows(key, "files")


def test_an_output_whose_records_are_gone_stops_nothing_else(
    run: Callable[..., Running], tmp_path: Path
) -> None:
    """Retention passed over a pipeline that was away; its lake is repaired by dumps, its events
    can't be.
    """
    running = run(FILES, "{kind: delta, path: lake}")
    for output in ("files", "delta"):
        running.wait_until_flows({"files": 2, "delta": 3}[output], output)
    running.end()
    log = running.log()
    consumers = pipeline_consumers(running.config, log)
    (before,) = [each for each in consumers.all() if each.outputs]
    consumers.forget(before.name)
    assert EventLogMaintenance(str(running.config.log.path)).retain(0, now_ms=4_000_000_000_000)
    outputs = dict.fromkeys(before.outputs, 1)
    consumers.register(before.name, 1, outputs, before.destinations)
    running.start()
    running.wait_for(lambda: running.is_stopped("files"))
    assert "Give the output a name that it never had" in running.outputs()["files"]["error"]
    running.wait_until_flows(4, "delta")
    table = deltalake.DeltaTable(str(tmp_path / "lake" / "public" / "t"))
    found = deltalake.QueryBuilder().register("t", table).execute("SELECT id FROM t").read_all()
    assert sorted(found["id"].to_pylist()) == [1, 2, 3, 4]
    assert running.is_stopped("files")


def test_an_output_that_moved_stops_nothing_else_and_resumes_once_it_is_back(
    run: Callable[..., Running], tmp_path: Path
) -> None:
    """Its progress is that of the place before, also after further starts with the new one."""
    running = run(FILES, "{kind: delta, path: lake}")
    running.wait_until_flows(2, "files")
    running.wait_until_flows(3, "delta")
    running.end()
    here, file = running.config, tmp_path / "tidelog.yaml"
    file.write_text(file.read_text().replace("path: files", "path: elsewhere"))
    running.config = load_config(file)
    for key in (4, 5):
        running.start()
        running.wait_for(lambda: running.is_stopped("files"))
        error = running.outputs()["files"]["error"]
        assert "output files wrote to another place before" in error
        assert "Give the output a name that it never had" in error
        assert "stop the pipeline, delete consumers/pipeline.json" in error
        running.wait_until_flows(key, "delta")
        running.wait_for(lambda: running.is_stopped("files"))
        assert not (tmp_path / "elsewhere").exists()
        running.end()
    running.config = here
    running.start()
    running.wait_until_flows(6, "files")
    texts = [part.read_text() for part in (tmp_path / "files").rglob("*.json*")]
    assert [
        sum(f'"id": {key}' in text or f'"id":{key}' in text for text in texts)
        for key in range(1, 7)
    ]
    assert not running.is_stopped("files")


def test_a_run_that_ends_delivers_to_the_others_before_it_reports_an_output_that_moved(
    run: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here capture is complete before the pipeline has started."""
    running = run(FILES, "{kind: delta, path: lake}")
    running.wait_until_flows(2, "files")
    running.wait_until_flows(3, "delta")
    running.end()
    file = tmp_path / "tidelog.yaml"
    text = file.read_text().replace("path: files", "path: elsewhere")
    file.write_text(text.replace("source: {", "source: {snapshot: initial_only, "))
    log = EventLog.open(str(running.config.log.path))
    before = log.latest_offset()
    with app.Capture(running.config) as capture:
        running.execute("INSERT INTO t VALUES (4)")
        while not any(  # the log's end also moves where capture begins
            "public.t" in each.rows_by_table
            for each in log.chain().between(before, log.latest_offset())
        ):
            capture.wait(0.1)

    def late(config: Config, *, once: bool = False, **more: Any) -> None:
        if once:
            app.run_pipeline(config, once=True, **more)
        else:
            more["stop_event"].wait()

    monkeypatch.setattr("tidelog.app.pipeline.run.run_pipeline", late)
    with pytest.raises(ConfigError, match="output files wrote to another place before"):
        app.run_capture_and_pipeline(load_config(file), stop_event=threading.Event())
    table = deltalake.DeltaTable(str(tmp_path / "lake" / "public" / "t"))
    found = deltalake.QueryBuilder().register("t", table).execute("SELECT id FROM t").read_all()
    assert sorted(found["id"].to_pylist()) == [1, 2, 3, 4]
    assert not (tmp_path / "elsewhere").exists()


def test_an_output_at_the_place_of_another_pipeline_s_stops_nothing_else(
    run: Callable[..., Running], tmp_path: Path
) -> None:
    running = run(FILES, "{kind: delta, path: lake}")
    running.wait_until_flows(2, "delta")
    running.end()
    consumers = pipeline_consumers(running.config, running.log())
    theirs = destinations(running.config)
    consumers.register("theirs", 0, None, {"delta": theirs["delta"]})
    running.start()
    running.wait_for(lambda: running.is_stopped("delta"))
    assert "of output delta of the pipeline theirs" in running.outputs()["delta"]["error"]
    running.wait_until_flows(3, "files")
    assert running.is_stopped("delta")
