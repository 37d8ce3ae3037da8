"""The lease of a pipeline: its epochs only grow, and what was begun under it ends with it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from tests.support.build_log import BuiltLog

from tidelog.app.base.elections import (
    PipelineElection,
    acquire_lease,
    pipeline_lease_name,
    request_handover,
)
from tidelog.app.base.instances import (
    PIPELINE_PREFIX,
    InstanceRegistration,
    pipeline_prefix,
    standbys,
)
from tidelog.app.overview.build import overview
from tidelog.app.overview.remote_control import status
from tidelog.cli.status_lines import lines
from tidelog.config import Config, load_config
from tidelog.errors import AnotherLeaderError, LeaseLostError, UsageError
from tidelog.eventlog.consumers import Consumers
from tidelog.outputs import Writer
from tidelog.outputs.base import lease_file, tasks
from tidelog.outputs.base.lease_file import FileFence, LeaseFile
from tidelog.outputs.base.tasks import BatchWork
from tidelog.outputs.base.writer import StopAtRejection
from tidelog.ports import Lease, WriteTask
from tidelog.state.opening import open_state


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        "source: {kind: postgres, url: 'postgresql://localhost/shop'}\nlog: {path: log}\n"
        "pipeline: {name: shop}\noutputs: [{kind: delta, path: lake}]\n"
    )
    return load_config(file, {})


def test_epochs_continue_above_what_the_log_noted(config: Config, tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    with closing(PipelineElection(config, "a")) as a:
        lease = a.acquire()
        assert lease is not None
        assert lease.epoch == 1
        a.release(lease)
        Consumers(built.log.storage).register("shop", 0, epoch=7)
        Consumers(built.log.storage).register("other", 0, epoch=90)
        again = a.acquire()
        assert again is not None
        assert again.epoch == 91  # this pipeline may have been called so before


def test_pipelines_have_leases_of_their_own(config: Config) -> None:
    section = config.pipeline.model_copy(update={"name": "other"})
    other = config.model_copy(update={"pipeline": section})
    with (
        closing(PipelineElection(config, "a")) as a,
        closing(PipelineElection(config, "b")) as b,
        closing(PipelineElection(other, "c")) as c,
    ):
        assert a.acquire() is not None
        assert b.acquire() is None
        assert c.acquire() is not None
        with pytest.raises(AnotherLeaderError, match=r"the pipeline shop leads \(a\)"):
            acquire_lease(b, what="the pipeline shop")


def test_whoever_delivers_sees_that_another_is_to(config: Config) -> None:
    key, place = pipeline_lease_name("shop"), pipeline_prefix("shop")
    with (
        closing(open_state(config.state.location)) as state,
        closing(PipelineElection(config, "a", state)) as a,
        closing(PipelineElection(config, "b", state)) as b,
    ):
        lease = a.acquire()
        assert lease is not None
        with pytest.raises(UsageError, match="no process of the pipeline stands by"):
            request_handover(state, key, place, "a", None)
        assert not a.handover_requested()
        InstanceRegistration(state, "b", None, place).stand_by()
        request_handover(state, key, place, "former", None)  # of a leader that is gone
        assert not a.handover_requested()
        request_handover(state, key, place, "a", "b")
        assert a.handover_requested()
        assert not a.handover_requested()  # it ends already
        a.release(lease)
        assert a.acquire() is None  # the other one goes first
        assert b.acquire() is not None
        assert not b.handover_requested()


def test_the_status_names_who_delivers_and_who_stands_by(config: Config) -> None:
    with (
        closing(open_state(config.state.location)) as state,
        closing(PipelineElection(config, "host:1")) as election,
    ):
        lease = election.acquire()
        assert lease is not None
        value = {"holder": "host:1", "epoch": 1, "zone": "a", "since_ms": 5}
        state.put(f"{PIPELINE_PREFIX}shop", value, None)
        waiting = InstanceRegistration(state, "host:2", "b", pipeline_prefix("shop"))
        waiting.stand_by()
        assert standbys(state) == []
        told = status(config).document
        said = "\n".join(lines(overview(told, 6)))
        assert "pipeline shop: host:1 delivers in zone a since" in said
        assert "(epoch 1); host:2 in zone b stands by" in said
        (found,) = told["pipelines"]
        assert [one["holder"] for one in found.pop("standbys")] == ["host:2"]
        assert found == {
            "pipeline": "shop", "leader": "host:1", "epoch": 1, "zone": "a", "since_ms": 5,
        }  # fmt: skip
        waiting.leave()
        election.release(lease)
        (found,) = status(config).document["pipelines"]
        assert (found["leader"], found["standbys"]) == (None, [])


# ---------------------------------------------------------------- what tasks look at


@pytest.fixture
def file() -> Iterator[LeaseFile]:
    with closing(LeaseFile()) as made:
        yield made


def lease(epoch: int, left_s: float) -> Lease:
    return Lease("a", epoch, time.monotonic() + left_s)


def fence_of(file: LeaseFile, epoch: int) -> FileFence:
    return file.fence(epoch, "", "shop")


def test_a_tasks_lease_ends_while_the_host_is_suspended(
    file: LeaseFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.on_renewal(lease(3, 60))
    fence = fence_of(file, 3)
    fence.check()
    monkeypatch.setattr(lease_file, "boot_clock", lambda: time.monotonic() + 2000)
    with pytest.raises(LeaseLostError, match="epoch 3"):
        fence.check()


def test_a_task_may_write_until_the_lease_that_was_reported_last_ends(file: LeaseFile) -> None:
    file.on_renewal(lease(3, -1))
    lost = fence_of(file, 3)
    with pytest.raises(LeaseLostError, match="epoch 3"):
        lost.check()
    file.on_renewal(lease(3, 60))
    with pytest.raises(LeaseLostError, match="epoch 3"):
        lost.check()  # else a later request of the task could go where an earlier one did not
    fence = fence_of(file, 3)
    fence.check()
    file.on_renewal(lease(4, 60))
    with pytest.raises(LeaseLostError):
        fence.check()
    fence_of(file, 4).check()
    file.end()
    file.on_renewal(lease(4, 60))  # a renewal that was under way
    with pytest.raises(LeaseLostError):
        fence_of(file, 4).check()
    file.on_renewal(lease(5, 60))
    fence_of(file, 5).check()
    # Spark's workers may be another user's.
    assert stat.S_IMODE(Path(fence.path).stat().st_mode) == 0o644


def test_a_task_ends_with_its_driver(file: LeaseFile, tmp_path: Path) -> None:
    file.on_renewal(lease(1, 60))
    code = (
        "import time; from tidelog.ports import Lease\n"
        "from tidelog.outputs.base.lease_file import LeaseFile\n"
        "made = LeaseFile(); made.on_renewal(Lease('a', 1, time.monotonic() + 60))\n"
        "print(made.fence(1, '', 'shop').path, flush=True); input()"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    path = driver.stdout.readline().strip()
    try:
        started = int(Path(f"/proc/{driver.pid}/stat").read_text().rpartition(")")[2].split()[19])
        process = fence_of(file, 1).process | {"pid": driver.pid, "started": started}
        fence = replace(fence_of(file, 1), path=path, process=process)
        fence.check()
        driver.kill()
        driver.communicate()
        time.sleep(0.15)  # so often it looks
        with pytest.raises(LeaseLostError):
            fence.check()
    finally:
        driver.kill()
        Path(path).unlink()


def test_a_task_that_cannot_see_the_file_asks_the_event_log(
    file: LeaseFile, tmp_path: Path
) -> None:
    """On another host, with another /tmp, or as a user who may not look there."""
    built = BuiltLog(tmp_path / "log")
    file.on_renewal(lease(3, -1))
    fence = file.fence(3, str(built.path), "shop")
    elsewhere = fence.process | {"where": "elsewhere"}
    unseen = [
        replace(fence, process=elsewhere),
        replace(fence, process={}),
        replace(fence, path=str(tmp_path / "none")),
    ]
    for epoch, ended in ((None, False), (3, False), (4, True)):
        if epoch is not None:
            Consumers(built.log.storage).register("shop", 0, {"out": 0}, epoch=epoch)
            Consumers(built.log.storage).register("other", 0, {"out": 0}, epoch=epoch + 5)
        for each in unseen:
            with (
                pytest.raises(LeaseLostError, match="epoch 4 has the lease")
                if ended
                else nullcontext()
            ):
                replace(each).check()


def test_a_file_that_the_system_cleared_away_is_made_again(file: LeaseFile) -> None:
    """Nobody writes to it while a process stands by, for days."""
    file.on_renewal(lease(1, 60))
    Path(fence_of(file, 1).path).unlink()
    file.on_renewal(lease(1, -1))
    with pytest.raises(LeaseLostError):
        fence_of(file, 1).check()
    file.on_renewal(lease(1, 60))
    fence_of(file, 1).check()


def test_a_lease_that_cannot_be_reported_ends_nothing(
    file: LeaseFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    file.on_renewal(lease(1, 60))
    assert "No space left" in caplog.text


class Noting(Writer):
    """Notes what is asked of it; the lease ends at a step, e.g. ``write 2``."""

    def __init__(self, file: LeaseFile, at: str) -> None:
        self.did: list[str] = []
        self._file = file
        self._at = at

    def _does(self, what: str) -> None:
        self.did.append(what)
        if self._at in (what, f"{what} {self.did.count(what)}"):
            self._file.end()

    def open(self, task: WriteTask) -> None:
        assert task.epoch == 2
        self._does("open")

    def write(self, table: object, rows: pa.RecordBatch) -> None:
        self._does("write")

    def commit(self) -> None:
        self._does("commit")

    def close(self) -> None:
        self._does("close")


@pytest.mark.parametrize(
    ("at", "did"),
    [
        ("before", []),
        ("open", ["open", "close"]),
        ("write", ["open", "write", "close"]),
        ("write 2", ["open", "write", "write", "close"]),
        ("", ["open", "write", "write", "commit", "close"]),
    ],
)
def test_a_task_asks_before_each_step(file: LeaseFile, at: str, did: list[str]) -> None:
    file.on_renewal(lease(2, 60))
    if at == "before":
        file.end()
    writer = Noting(file, at)
    work = BatchWork(
        "", "events", WriteTask("out", "g", 0, 9, 0, {}, 2, fence_of(file, 2)), writer, None,
        StopAtRejection(),
    )  # fmt: skip
    rows = pa.RecordBatch.from_pydict({"op": ["c"]})
    batches = iter([(SimpleNamespace(source="a.b"), rows)] * 2)
    if at:
        with pytest.raises(LeaseLostError):
            tasks.run_task(work, 0, batches)  # type: ignore[arg-type]
    else:
        tasks.run_task(work, 0, batches)  # type: ignore[arg-type]
    assert writer.did == did
