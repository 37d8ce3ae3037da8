"""A pipeline that has nothing to deliver ends without Spark; whatever is not as it was needs it.

There is no Java here: a run that would start Spark raises MissingProgramError.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.build_log import BuiltLog

from tidelog.app.base.outputs import destinations
from tidelog.app.pipeline.idle_check import check_result_of, record_delivered
from tidelog.app.pipeline.run import run_pipeline
from tidelog.capture.pauses import PIPELINE_KEYS, pause
from tidelog.config import Config, load_config
from tidelog.errors import MissingProgramError, NameRefusedError, UsageError
from tidelog.eventlog.consumers import Consumers, OutputFailure
from tidelog.outputs.base.left_out import LeftOutTableStore
from tidelog.outputs.base.progress import OutputProgress
from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.files.commits import Attempt, Commits, StagedFile
from tidelog.spark.sessions import installation
from tidelog.state.opening import open_state
from tidelog.system import failpoints

FILES = "{kind: files, path: files}"
COLUMNS = {"id": "int64"}


class Place:
    """A log with a row of table p.a, and a pipeline that has delivered it to files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.built = BuiltLog(path / "log")
        self.schema = self.built.table("p.a", COLUMNS)
        self.built.insert(self.schema, "1")
        self.built.flush()
        self.configure(FILES)
        self.state = open_state(self.config.state.location)
        self.end = self.built.log.latest_offset()
        self.commits = Commits(open_file_store(str(path / "files")), "files")
        self.publish(self.built.log.generation, self.end)
        self.progress = OutputProgress(self.state, self.built.log.generation, "files")
        self.progress.begin(self.end)
        self.progress.finish(self.end)
        self.note()

    def configure(self, *outputs: str) -> Config:
        file = self.path / "tidelog.yaml"
        file.write_text(
            "source: {kind: postgres, url: 'postgresql://localhost/shop'}\nlog: {path: log}\n"
            "state: {url: 'sqlite:///state.db'}\npipeline: {name: shop}\n"
            f"outputs: [{', '.join(outputs)}]\n"
        )
        self.config = load_config(file)
        return self.config

    def publish(self, generation: str, end: int) -> None:
        staging = self.commits.staging("a")
        store = self.commits._store
        with store.open_output(f"{staging}/1") as file:
            file.write(b"row")
        staged = StagedFile(f"{staging}/1", "p.a", "p.a", 1)
        store.put(f"{staging}/a.json", Attempt("1", (staged,)).to_json())
        self.commits.publish(staging, generation, 0, end, "files-", ".parquet")

    def note(self, stopped: OutputFailure | None = None) -> None:
        """As a run that has delivered all there was."""
        log, found = self.built.log, destinations(self.config)
        told = {} if stopped is None else {"files": stopped}
        Consumers(log.storage).register(
            "shop", self.end, dict.fromkeys(found, self.end), found, told
        )
        record_delivered(self.state, "shop", check_result_of(self.config, log))

    def run(self) -> None:
        run_pipeline(self.config, once=True, stop_event=threading.Event())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    monkeypatch.setattr(installation, "_is_running", lambda: False)  # of a test before this one
    made = Place(tmp_path)
    with closing(made.state):
        yield made


def test_a_pipeline_with_nothing_to_deliver_starts_no_java(place: Place) -> None:
    consumers = Consumers(place.built.log.storage)
    before = consumers.find("shop")
    place.run()
    place.run()
    after = consumers.find("shop")
    assert before is not None
    assert after is not None
    assert after.updated_ms > before.updated_ms  # it is seen to have run
    assert after.epoch == 2
    assert (after.outputs, after.destinations) == (before.outputs, before.destinations)


MODULES = """
import sys
from tidelog.cli import main
try:
    main(["pipeline", "tidelog.yaml", "--once", "--json"])
except SystemExit as ended:
    print(ended.code, {"numba", "pyspark"} & sys.modules.keys())
"""


def test_it_loads_neither_spark_nor_the_decoder(place: Place) -> None:
    place.state.close()
    done = subprocess.run(
        [sys.executable, "-c", MODULES], cwd=place.path, capture_output=True, text=True
    )
    assert done.stdout == "0 set()\n", done.stderr


def more_rows(place: Place) -> None:
    place.built.insert(place.schema, "2")
    place.built.flush()


def another_table(place: Place) -> None:
    place.built.table("p.b", COLUMNS)


def other_settings(place: Place) -> None:
    place.configure("{kind: files, path: files, steps: [{drop: [none]}]}")


def other_tables(place: Place) -> None:
    place.configure("{kind: files, path: files, tables: ['p.a']}")


def another_output(place: Place) -> None:
    place.configure(FILES, "{kind: files, path: other, name: other}")


def a_lake_that_was_not_checked(place: Place) -> None:
    lake = place.path / "lake"
    place.configure(
        f"{{kind: iceberg, name: files, catalog: {{type: hadoop, warehouse: '{lake}'}}}}"
    )
    place.note()


def a_stopped_output(place: Place) -> None:
    place.note(OutputFailure("OutputError", "full", 1))


def a_batch_that_was_begun(place: Place) -> None:
    place.progress.begin(place.end + 10)


def an_older_state(place: Place) -> None:
    key = f"output/{place.built.log.generation}/files"
    place.state.put(key, {"done": place.end - 1, "begun": place.end}, None)


def an_empty_state(place: Place) -> None:
    for key in place.state.keys(""):
        place.state.delete(key)


def progress_in_another_log(place: Place) -> None:
    place.state.put("output/other/files", {"done": 1}, None)


def a_table_left_out(place: Place) -> None:
    left_out = LeftOutTableStore(place.state, place.built.log.generation, "files")
    left_out.add("p.a", NameRefusedError("no"), 0)


def files_of_another_log(place: Place) -> None:
    place.publish("other", place.end)


def files_ahead_of_the_log(place: Place) -> None:
    place.publish(place.built.log.generation, place.end + 1)


def files_that_are_not_in_place(place: Place) -> None:
    def crash() -> None:
        raise KeyboardInterrupt

    with failpoints.arm({"files.commit.after": crash}), pytest.raises(KeyboardInterrupt):
        place.publish(place.built.log.generation, place.end)


def a_server_that_is_away(place: Place) -> None:
    place.configure("{kind: postgres, name: files, url: 'postgresql://localhost:1/shop'}")
    place.note()


@pytest.mark.parametrize(
    "change",
    [
        more_rows,
        another_table,
        other_settings,
        other_tables,
        another_output,
        a_lake_that_was_not_checked,
        a_stopped_output,
        a_batch_that_was_begun,
        an_older_state,
        an_empty_state,
        progress_in_another_log,
        a_table_left_out,
        files_of_another_log,
        files_ahead_of_the_log,
        files_that_are_not_in_place,
        a_server_that_is_away,
    ],
    ids=lambda change: change.__name__,
)
def test_what_changed_since_needs_spark(place: Place, change: Callable[[Place], None]) -> None:
    change(place)
    with pytest.raises(MissingProgramError):
        place.run()


def test_a_paused_pipeline_is_refused_without_spark(place: Place) -> None:
    pause(place.state, f"{PIPELINE_KEYS}shop", "ops")
    with pytest.raises(UsageError, match="paused by ops"):
        place.run()
