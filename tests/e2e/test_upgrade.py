"""The history oracle over an upgrade: version 0.1.0 captures and delivers, then a standby of this
version takes over during a dump, then one of 0.1.0 again, and at the end this version.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.history_lakes import DeltaLake
from tests.e2e.history_pipeline import BEGIN_S, PipelineRun
from tests.e2e.history_processes import CaptureProcess, Collector
from tests.e2e.history_run import run
from tests.e2e.history_spec import Spec
from tests.support.former_version import FormerVersion
from tests.support.oracle.history import HistoryError
from tests.support.oracle.source import OracleSource
from tests.support.oracle.workload import Mix
from tests.support.pipeline_process import Delivering
from tests.support.postgres import PostgresServer

from tidelog import app
from tidelog.config import load_config
from tidelog.eventlog.reader import EventLog

SPEC = Spec(
    51,
    seconds=3.0,
    rounds=3,
    mix=Mix(truncates=0.02, vanish=True),
    transactions=150,
    parallelism=2,
    chunk_rows=10,
    commands=(),
    blocking=False,
    faults=(),
    kills_amid=1,
)
SLOW = {"chunk_rows": 10, "delay_ms": 1000}
"""How a dump is read that another version takes over amid."""
FAST = {"chunk_rows": 500, "delay_ms": 0}


class FormerCapture(CaptureProcess):
    """A capture of the former version."""

    def __init__(self, former: FormerVersion, config: Path, log_file: Path) -> None:
        self.log_file, self.failpoint, self.frozen = log_file, "", False
        self._process = former.start("--log-level", "info", "capture", config, out=log_file)
        self.pid = self._process.pid

    @property
    def code(self) -> int | None:
        return self._process.poll()


class UpgradeRun(PipelineRun):
    """See `PipelineRun`. ``former``: the version that all begins with."""

    def __init__(self, *made_from: Any, former: FormerVersion, copy_url: str) -> None:
        super().__init__(*made_from, copy_url=copy_url)
        self._former = former
        self._is_former = True
        self.amid_a_dump = 0
        forms = ("copy", "changes")  # the former version has no history, and Iceberg no changes
        self._lakes = (DeltaLake(self.directory, self.source.tables.values(), self.rng, forms),)

    def _write_config(self) -> Path:
        path = super()._write_config()
        path.write_text(path.read_text().replace("lease_ms: 10000", "lease_ms: 60000"))
        return path

    def _await_capture(self, collector: Collector) -> None:
        log = self.directory / "log"
        self._await(lambda: EventLog.exists(str(log)), "capture")  # it compiles its kernels first
        super()._await_capture(collector)

    def _launch(self, failpoint: str = "") -> CaptureProcess:
        if not self._is_former:
            return super()._launch(failpoint)
        log_file = self.directory / f"capture-{len(self.captures)}-former.log"
        self.captures.append(FormerCapture(self._former, self.config_file, log_file))
        return self.captures[-1]

    def _begin_pipeline(self) -> None:
        log_file = self.directory / f"pipeline-{len(self._pipelines)}.log"
        environment = self._former.environment if self._is_former else None
        process = Delivering(self.config_file, log_file, environment=environment)
        self._pipelines.append((process, ""))

    def _strike(self, fault: str) -> None:
        """After each round: the other version takes over, in the midst of a dump. The pipeline
        first, then the standby, then the leader.
        """
        self.workload.most += self.spec.transactions
        self._is_former = not self._is_former
        process, _ = self._pipelines[-1]
        process.send(signal.SIGTERM)
        if code := process.wait():
            raise HistoryError(f"the pipeline ended with {code}\n{process.said}")
        self._begin_pipeline()
        if len(self.captures) == 1:
            # The first round had no standby. It is of the version that leads.
            self._is_former = not self._is_former
            self._await_standby(self._launch())
            self._is_former = not self._is_former
        leader, standby = self.captures
        self._stop(standby)
        standby = self._launch()
        self._await_standby(standby)
        self.commander.read_by(**SLOW)
        begun = self._chunks()
        self.commander.dump("all")
        self._await(lambda: self._chunks() >= begun + 3, "the dump")
        self._stop(leader)
        self.amid_a_dump += self._newest_dump() == "running"
        self._await(lambda: str(standby.pid) in str(self._status().get("leader")), "its successor")
        self._await_standby(self._launch())
        self._note(f"{'the former' if self._is_former else 'this'} version took over")
        self.commander.read_by(**FAST)
        self._await(lambda: self._newest_dump() == "completed", "the dump's end")
        self.killed += 1

    def _stop(self, capture: CaptureProcess) -> None:
        self.captures.remove(capture)
        if capture.stop() != 0:
            raise HistoryError(f"capture ended with an error\n{capture.tail}")

    def _status(self) -> dict[str, Any]:
        return app.status(load_config(self.config_file, {})).document

    def _newest_dump(self) -> str:
        found = {dump["dump_id"]: dump["status"] for dump in self._status().get("dumps", ())}
        return str(found.get(f"d{self.commander.number - 1}"))

    def _await_standby(self, capture: CaptureProcess) -> None:
        pid = str(capture.pid)
        self._await(lambda: pid in str(self._status().get("standbys")), "the standby")

    def _chunks(self) -> int:
        return sum(1 for _ in EventLog.open(str(self.directory / "log")).chunks())

    def _await(self, what: Callable[[], bool], title: str) -> None:
        deadline = time.monotonic() + BEGIN_S
        while not what():
            if time.monotonic() > deadline:
                logs = "\n".join(capture.tail for capture in self.captures)
                raise HistoryError(f"{title} does not come\n{logs}")
            time.sleep(0.1)
            self._watch_processes()


@pytest.mark.integration
@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("server", ["oracle16", "oracle_mysql80"])
def test_outputs_are_a_true_history_over_an_upgrade(
    server: str, request: pytest.FixtureRequest, postgres: PostgresServer, tmp_path: Path
) -> None:
    try:
        former = FormerVersion()
    except subprocess.CalledProcessError:
        pytest.skip("the repository has no commit of version 0.1.0: git fetch --unshallow")
    source: OracleSource = request.getfixturevalue(server)
    copy_url = postgres.create_database("copy_upgrade")
    make = partial(UpgradeRun, former=former, copy_url=copy_url)
    try:
        done = run(SPEC, source, tmp_path / "history", make)
    finally:
        postgres.drop_database("copy_upgrade")
    assert isinstance(done, UpgradeRun)
    assert done.amid_a_dump == SPEC.rounds
    assert done.batches > 1
