"""A pipeline with two outputs, in this process: the copy that is tested, and a witness that nothing
befalls.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.behaviours.outputs import activity_files
from tests.faults.outputs.source import Rows, Source
from tests.faults.outputs.target import Target
from tests.support.pipeline_process import Delivering

from tidelog import app
from tidelog.app.pipeline.run import run_pipeline
from tidelog.config import Config, load_config
from tidelog.errors import TidelogError

PATIENCE_S = 240.0
CONF = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}


class TwoOutputs:
    """Use it as a context manager, again and again: it starts where it ended.

    ``copy``: with the output that is tested; without it a later start adds it.
    """

    def __init__(self, root: Path, source: Source, target: Target) -> None:
        self.copy = True
        self.raised: TidelogError | None = None
        self._root, self._source, self._target = root, source, target
        self._alive: Callable[[], bool] = lambda: False
        self._said: Callable[[], object] = lambda: self.raised
        self._newest: Rows = {}

    @property
    def config(self) -> Config:
        witness = {
            "kind": "files", "name": "witness", "path": "witness", "format": "json",
            "on_schema_change": "lenient",
        }  # fmt: skip
        outputs = [witness, *([self._target.section] if self.copy else [])]
        pipeline = {
            "trigger_ms": 50, "master": "local[2]", "conf": CONF | self._target.place.conf
        }  # fmt: skip
        file = self._root / "tidelog.yaml"
        file.write_text(
            "source: {kind: postgres, url: 'postgresql://u@h/d'}\nlog: {path: ./log}\n"
            f"pipeline: {json.dumps(pipeline)}\noutputs: {json.dumps(outputs)}\n"
        )
        return load_config(file, {})

    def __enter__(self) -> TwoOutputs:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self.config,), daemon=True)
        self._thread.start()
        self._alive = self._thread.is_alive
        return self

    def _run(self, config: Config) -> None:
        try:
            run_pipeline(config, stop_event=self._stop)
        except TidelogError as error:
            self.raised = error

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the pipeline does not end"

    @contextmanager
    def process(self, failpoint: str = "") -> Iterator[Delivering]:
        """The same with a driver, a JVM and workers of its own, which may be killed."""
        assert self.config
        log_file = self._root / "pipeline.log"
        process = Delivering(self._root / "tidelog.yaml", log_file, failpoint)
        self._alive, self._said = lambda: process.code is None, lambda: process.said
        try:
            yield process
        finally:
            process.close()

    # ------------------------------------------------------------ what is seen of it

    def status(self) -> str:
        """What `tidelog status` has to say of the copy: what failed, why a table is left out, or
        that it takes long.
        """
        rows = app.status(self.config).document["outputs"]
        row: dict[str, Any] = next((each for each in rows if each["output"] == "copy"), {})
        long = f"a batch of {row['begun_records']} is under way" if "begun_ms" in row else ""
        refused = "; ".join(row.get("refused", {}).values())
        return str(row.get("error") or refused or row.get("failed") or long)

    def wait_for(self, held: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not held():
            assert self._alive(), f"the pipeline ended: {self._said()}"
            assert time.monotonic() < deadline, f"no {what}: {self.status() or 'all is well'}"
            time.sleep(0.1)

    def wait_for_words(self, words: Sequence[str]) -> None:
        """The status of the copy has one of them in it."""

        def said() -> bool:
            status = self.status()
            return bool(status) and any(each in status for each in words)

        self.wait_for(said, f"status that says {words}")

    def wait_for_witness(self) -> None:
        """It has every change; nothing holds it up."""
        wanted = len(self._source.changes)
        self.wait_for(lambda: self._witnessed() == wanted, f"witness of all {wanted} changes")

    def _witnessed(self) -> int:
        path = self._root / "witness"
        return len(activity_files.read(path)) if path.exists() else 0

    def wait_for_copy(self) -> None:
        """It is what the source is. Meanwhile no key of it goes back."""
        self.wait_for(self._is_equal, "copy that is equal to the source")

    def _is_equal(self) -> bool:
        for key, value in self._target.rows().items():
            assert int(value) >= int(self._newest.get(key, 0)), f"the key {key} went back"
            self._newest[key] = value
        return self._target.holds(self._source)
