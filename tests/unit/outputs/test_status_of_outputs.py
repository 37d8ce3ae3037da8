"""What `tidelog status` says of outputs: how far each is, and what stopped it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.build_log import BuiltLog

from tidelog.app.overview.build import overview
from tidelog.app.overview.remote_control import StatusFeed, status
from tidelog.capture.session.start import STATUS_KEY
from tidelog.config import Config, load_config
from tidelog.errors import OutputError
from tidelog.eventlog.consumers import Consumers, DeliveryStats, OutputFailure
from tidelog.outputs.base.progress import OutputProgress
from tidelog.spark.output_loop import LeftOutTables, RunningBatch
from tidelog.spark.pipeline import BatchProgress, _ProgressStore
from tidelog.state.sqlite import SqliteState


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        "source: {kind: postgres, url: 'postgresql://localhost/shop'}\n"
        "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
        "outputs: [{kind: delta, path: lake}, {kind: files, path: f}]\n"
    )
    return load_config(file)


def test_an_output_that_stopped_is_in_the_status(config: Config, tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    built.insert(built.table("public.t", {"id": "int64"}), "1")
    end = built.flush().next
    state = SqliteState(config.state.url)
    state.put(STATUS_KEY, {"updated_ms": 0}, None)
    state.close()
    stopped = {"files": OutputFailure("OutputRefusedError", "f can't be written", 77)}
    delivered = {
        "delta": DeliveryStats(12_000, 3.0, 55, 4, 44, OutputFailure("OutputError", "no route", 33))
    }
    outputs = {"delta": end, "files": 0}
    consumers = Consumers(built.log.storage)
    consumers.register("pipeline", 0, outputs, {}, stopped, delivered=delivered)
    (read,) = consumers.all()
    assert read.delivered == delivered
    found = status(config).document
    rows = found["outputs"]
    noted = {row.pop("noted_ms") for row in rows}
    assert len(noted) == 1
    assert rows[1].pop("lag_s") > 86_400  # the record says that it is of long ago
    assert rows == [
        {
            "pipeline": "pipeline", "output": "delta", "offset": end, "behind_records": 0,
            "lag_s": 0.0, "state": "following", "rejected": 4, "rejected_ms": 44,
            "committed_ms": 55, "batch_s": 3.0, "batch_records": 12_000, "records_per_s": 4000.0,
            "batches": 0, "all_records": 0, "all_s": 0.0, "failed": "no route", "failed_ms": 33,
        },
        {
            "pipeline": "pipeline", "output": "files", "offset": 0, "behind_records": 1,
            "state": "stopped", "error": "f can't be written", "since_ms": 77,
        },
    ]  # fmt: skip
    stopped = [each for each in found["overview"]["problems"] if each["kind"] == "output-stopped"]
    assert stopped[0]["sentence"] == "Output pipeline/files has stopped: f can't be written"
    shown = found["overview"]["outputs"]
    assert (shown[0]["committed_ms"], shown[0]["batch_s"], shown[0]["rejected"]) == (55, 3.0, 4)
    assert shown[0]["last_error"] == "no route"
    assert shown[1]["committed_ms"] is None


def test_the_last_status_of_a_process_is_of_its_end(config: Config, tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    table = built.table("public.t", {"id": "int64"})
    built.insert(table, "1")
    end = built.flush().next
    consumers = Consumers(built.log.storage)
    consumers.register("pipeline", 0, {"delta": 0})
    with StatusFeed(config) as feed:
        assert feed.latest()["outputs"][0]["behind_records"] == 1
        consumers.register("pipeline", end, {"delta": end})
        assert feed.latest(last=True)["outputs"][0]["behind_records"] == 0


def test_deliveries_that_another_version_reported_are_read(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    found = DeliveryStats.from_json({"batch_s": 1.5, "of_a_later_version": 7})
    assert found == DeliveryStats(batch_s=1.5)
    Consumers(built.log.storage).register("before", 0, {"delta": 0})
    (read,) = Consumers(built.log.storage).all()
    assert read.delivered == {}


def test_a_pipeline_notes_each_output_s_batches_and_failures(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    consumers = Consumers(built.log.storage)

    def noted() -> dict[str, DeliveryStats]:
        (found,) = consumers.all()
        return dict(found.delivered)

    book = _ProgressStore(
        built.log, Consumers(built.log.storage), "shop", ["lake", "api"], {}, None
    )
    book.failed("api", OutputError("the API does not answer"))
    failure = noted()["api"].failure
    assert failure is not None
    assert (failure.kind, failure.message) == ("OutputError", "the API does not answer")
    assert noted()["lake"] == DeliveryStats()
    book.failed("lake", RuntimeError("a value of a row"))  # not ours: it may hold one
    failure = noted()["lake"].failure
    assert failure is not None
    assert failure.message == "an internal error"
    book.delivered(BatchProgress(0, 0, 5, 400, {}, 0.5, "api", rejected=3))
    first = noted()["api"]
    assert (first.records, first.batch_s, first.rejected) == (400, 0.5, 3)
    assert first.committed_ms is not None
    assert first.rejected_ms == first.committed_ms
    # A next leader goes on from there; no more rejections leave their time as it was.
    book = _ProgressStore(built.log, Consumers(built.log.storage), "shop", ["api"], {}, None)
    book.delivered(BatchProgress(1, 5, 9, 4, {}, 0.5, "api", rejected=3))
    second = noted()["api"]
    assert (second.records, second.rejected, second.rejected_ms) == (4, 3, first.rejected_ms)
    assert second.failure == first.failure
    assert set(noted()) == {"api"}


def test_a_table_that_is_fixed_is_noted_without_a_batch(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    book = _ProgressStore(built.log, Consumers(built.log.storage), "shop", ["api"], {}, None)
    for refused in ({"public.t": "somebody else's"}, {}):
        book.report_tables("api", LeftOutTables(refused, {}, refused))
        (found,) = Consumers(built.log.storage).all()
        assert found.delivered["api"].refused == refused
        assert found.delivered["api"].unregistered == refused
        assert found.delivered["api"].batches == 0


def test_rejections_are_counted_once_for_each_batch_that_was_done(tmp_path: Path) -> None:
    state = SqliteState(f"sqlite:///{tmp_path / 's.db'}")
    progress = OutputProgress(state, "g", "api")
    progress.begin(10)
    progress.finish(10, 3)
    progress.finish(10, 3)  # it came again, and was done already
    progress.store_columns("public.t", [["id", "int64"]])
    progress.begin(20)
    assert OutputProgress(state, "g", "api").rejected == 3
    progress.finish(20, 2)
    found = OutputProgress(state, "g", "api")
    assert (found.done, found.rejected, found.columns) == (20, 5, {"public.t": [["id", "int64"]]})
    state.close()


def test_a_batch_that_takes_long_is_noted_until_it_has_ended(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    book = _ProgressStore(built.log, Consumers(built.log.storage), "shop", ["api"], {}, None)

    def noted() -> DeliveryStats:
        (found,) = Consumers(built.log.storage).all()
        return found.delivered["api"]

    book.report_long_batch("api", RunningBatch(0.0, 5, 400))
    assert (noted().begun_ms, noted().begun_records) == (5, 400)
    book.delivered(BatchProgress(0, 0, 5, 400, {}, 0.5, "api"))
    done_ms = noted().committed_ms
    assert noted().begun_ms is None
    assert done_ms is not None
    book.report_long_batch(
        "api", RunningBatch(0.0, done_ms, 400)
    )  # it was done while that was on its way
    assert noted().begun_ms is None
    book.report_long_batch("api", RunningBatch(0.0, done_ms + 10_000, 7))
    assert noted().begun_ms == done_ms + 10_000
    book.failed("api", OutputError("the API does not answer"))
    assert noted().begun_ms is None


def test_a_batch_of_a_process_that_is_gone_is_not_under_way() -> None:
    row = {
        "pipeline": "shop", "output": "api", "state": "following", "offset": 0,
        "behind_records": 4, "noted_ms": 1, "begun_ms": 3, "begun_records": 4,
    }  # fmt: skip
    led = {"pipeline": "shop", "leader": "h:1", "epoch": 1, "since_ms": 0, "standbys": []}
    for leader, told in (("h:1", 3), (None, None)):
        status = {"leader": None, "outputs": [row], "pipelines": [led | {"leader": leader}]}
        assert overview(status, 5).outputs[0].begun_ms == told


def test_where_an_output_continues_is_stored_with_its_batch_which_counts_once(
    tmp_path: Path,
) -> None:
    """Retention removes nothing behind the output that is least far."""
    built = BuiltLog(tmp_path / "log")
    consumers = Consumers(built.log.storage)
    book = _ProgressStore(built.log, consumers, "shop", ["lake", "api"], {}, None)
    start = built.log.head_offset
    batch = BatchProgress(1, start, start + 9, 4, {}, 0.5, "api")
    book.delivered(batch)
    book.delivered(batch)  # storing it failed
    found = consumers.find("shop")
    assert found is not None
    assert (found.outputs, found.offset) == ({"lake": start, "api": start + 9}, start)
    assert (found.delivered["api"].batches, found.delivered["api"].all_records) == (1, 4)
