"""Several outputs of one pipeline: each goes its own way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.spark.conftest import Lake
from tests.integration.spark.orders import orders
from tests.support.build_log import BuiltLog
from tests.support.delta_readers import by_duckdb

from tidelog.app.pipeline.run import run_pipeline
from tidelog.config import load_config
from tidelog.errors import OutputRefusedError, TidelogError
from tidelog.eventlog.consumers import Consumers
from tidelog.ports import OutputBatch
from tidelog.spark.datasource.source import register
from tidelog.spark.pipeline import LoopOptions, run_output_loops

pytestmark = pytest.mark.spark


class Failing:
    """An output that notes batches, and raises ``error`` as long as there is one."""

    def __init__(
        self, name: str, error: TidelogError | None = None, *, early: bool = False
    ) -> None:
        self.name = name
        self.error = error
        self.early = early
        self.tries = 0
        self.end = 0

    def _raise(self) -> None:
        if self.error is not None:
            self.tries += 1
            raise self.error

    def prepare(self, generation: str) -> None:
        if self.early:
            self._raise()

    def write(self, batch: OutputBatch) -> None:
        self._raise()
        self.end = batch.end

    def committed(self, table: Any) -> int | None:
        return self.end

    def close(self) -> None:
        pass


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


class Running:
    """`run_output_loops` in a thread; what it raised."""

    def __init__(self, lake: Lake, outputs: list[Any]) -> None:
        self.stop = threading.Event()
        self.raised: BaseException | None = None
        self._call = (lake.spark, lake.built.path, outputs)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            run_output_loops(*self._call, stop=self.stop)
        except TidelogError as error:
            self.raised = error

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()


def test_an_output_that_cant_continue_ends_alone_and_says_so_in_the_end(
    lake: Lake, built: BuiltLog, caplog: pytest.LogCaptureFixture
) -> None:
    table = orders(built)
    refused = Failing("refused", OutputRefusedError("no right to write"))
    well = lake.output()
    with Running(lake, [refused, well]) as running:
        wait_until(lambda: "refused has stopped, the others continue: no right" in caplog.text)
        built.insert(table, "8", "later", None)
        end = built.flush().next
        wait_until(lambda: well.committed(table.table) == end)
    assert isinstance(running.raised, OutputRefusedError)
    assert refused.tries
    (consumer,) = Consumers(built.log.storage).all()
    assert consumer.stopped["refused"].message == "no right to write"
    assert [*consumer.stopped] == ["refused"]
    well.close()


def test_an_output_that_cant_be_used_lets_nothing_begin(lake: Lake, built: BuiltLog) -> None:
    table = orders(built)
    refused = Failing("refused", OutputRefusedError("not ours"), early=True)
    well = lake.output()
    with pytest.raises(OutputRefusedError, match="not ours"):
        run_output_loops(lake.spark, built.path, [well, refused], LoopOptions(once=True))
    assert well.committed(table.table) is None
    well.close()


def test_a_stream_that_begins_adds_no_variable_to_the_source_s_environment(
    spark: Any, built: BuiltLog, tmp_path: Path
) -> None:
    """Where it does, a task of another stream that is serialised just then can't be read."""
    built.insert(built.table("public.t", {"id": "int64"}), "1")
    built.flush()
    register(spark)
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    variables = sources.lookupDataSource("tidelog").dataSourceCls().envVars()
    before = set(variables)
    reader = spark.readStream.format("tidelog").option("path", built.path)
    query = (
        reader.option("table", "public.t")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert variables["SPARK_LOCAL_DIRS"], "the stream has another environment"
    assert set(variables) == before
    assert "SPARK_LOCAL_DIRS" not in spark.sparkContext.environment


def test_an_output_lacks_the_tables_and_columns_that_it_excludes(
    spark: Any, built: BuiltLog, tmp_path: Path
) -> None:
    orders(built)
    for name in ("public.audit", "public.audited"):
        built.insert(built.table(name, {"id": "int64", "amount": "text"}), "1", "a")
    built.flush()
    (tmp_path / "tidelog.yaml").write_text(
        "source: {kind: postgres, url: 'postgresql://u@h/d'}\nlog: {path: ./log}\n"
        "state: {url: 'sqlite:///state.db'}\noutputs:\n"
        "  - {kind: delta, name: all, path: ./all}\n"
        "  - {kind: delta, name: some, path: ./some, tables: ['*.*', '!public.audit'],\n"
        "     steps: [{tables: ['*.*', '!public.audited'], drop: [amount]}]}\n"
    )
    config = load_config(tmp_path / "tidelog.yaml", {})
    run_pipeline(config, once=True, stop_event=threading.Event())

    def columns(output: str) -> dict[str, set[str]]:
        places = (tmp_path / output / "public").iterdir()
        return {place.name: set(by_duckdb(str(place)).column_names) for place in places}

    kept = {"id", "amount", "_version"}
    assert columns("all") == {"orders": kept | {"name"}, "audit": kept, "audited": kept}
    assert columns("some") == {"orders": {"id", "name", "_version"}, "audited": kept}
