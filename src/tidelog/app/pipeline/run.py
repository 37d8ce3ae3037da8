"""The Spark pipeline, alone or together with capture."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidelog.app.capture_run import OnStatus, capture, ignore
from tidelog.app.log_location import log_place
from tidelog.app.pipeline.catch_up import catch_up
from tidelog.app.pipeline.destinations import (
    check_alone,
    check_apart,
    check_unmoved,
    destinations,
)
from tidelog.app.pipeline.outputs import make_outputs
from tidelog.config import Config
from tidelog.errors import EventLogError, TidelogError, UsageError
from tidelog.eventlog.reader import EventLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(config: Config) -> SparkSession:
    """The Spark session that the configuration asks for; the running one if there is one."""
    from tidelog.spark.sessions.session import spark_session

    iceberg = check_spark(config)
    settings = {name: str(value) for name, value in config.pipeline.conf.items()}
    return spark_session(config.pipeline.master, conf=settings, delta=not iceberg, iceberg=iceberg)


def check_spark(config: Config) -> bool:
    """Is the Spark wanted the one with Iceberg, not with Delta? Raises UsageError if this Spark
    can't write what the outputs say.
    """
    from tidelog.spark.sessions.installed import check_spark_runs

    kinds = {output.kind for output in config.outputs}
    if "iceberg" not in kinds:
        check_spark_runs()
        return False
    if "delta" in kinds:
        raise UsageError(
            "outputs of the kinds delta and iceberg can't run in one process: they need different "
            "versions of Spark. Write two configurations with the same log and state, each with "
            "its outputs, a pipeline.name and a pipeline.checkpoint of its own; run `tidelog "
            "capture` once and `tidelog pipeline` with each, the one with iceberg from a virtual "
            "environment with tidelog[iceberg] (docs/outputs/iceberg.md)"
        )
    check_spark_runs("iceberg")
    from tidelog.outputs.lake import iceberg

    iceberg.check_spark()
    return True


def start_spark(config: Config) -> None:
    """Start Spark, fetching what it needs; later calls use the same session."""
    session(config)


def pipeline(
    config: Config,
    *,
    once: bool = False,
    on_progress: OnStatus = ignore,
    stop_event: threading.Event,
) -> None:
    """Spark alone: bring the event log over to the outputs."""
    check_spark(config)
    check_apart(config)
    from tidelog.spark.queries.run import QueryProgress, run_pipeline

    path = log_place(config)
    while not EventLog.exists(path):
        if once or stop_event.wait(0.5):
            if once:
                raise EventLogError(f"{path} holds no event log yet; `tidelog capture` begins one")
            return
    log = EventLog.open(path)
    check_apart(config, log.schemas.tables())
    check_alone(config, log)
    check_unmoved(config, log)
    totals: dict[str, int] = {}
    stopped: dict[str, str] = {}

    def changed(output: str, error: BaseException | None) -> None:
        stopped.pop(output, None)
        if error is not None:
            stopped[output] = str(error) if isinstance(error, TidelogError) else "internal error"
        on_progress({"output": output, "state": "stopped" if error else "following", **told()})

    def told() -> dict[str, Any]:
        return {"stopped": dict(stopped)} if stopped else {}

    def report(progress: QueryProgress) -> None:
        totals[progress.output] = totals.get(progress.output, 0) + progress.rows
        on_progress(
            {
                "batch": progress.batch_id,
                "output": progress.output,
                "offset": progress.end,
                "rows": progress.rows,
                "total_rows": totals[progress.output],
                "rows_per_s": progress.rows / max(progress.seconds, 1e-9),
                **told(),
            }
        )

    spark = session(config)
    outputs = make_outputs(config, spark)
    try:
        catch_up(config, log)
        run_pipeline(
            spark,
            path,
            outputs,
            str(config.pipeline.checkpoint),
            once=once,
            name=config.pipeline.name,
            on_progress=report,
            stop=stop_event,
            max_batch_bytes=config.pipeline.batch_bytes,
            trigger_s=config.pipeline.trigger_ms / 1000,
            destinations=destinations(config),
            on_state=changed,
        )
    finally:
        for output in outputs:
            output.close()


def run(config: Config, *, on_status: OnStatus = ignore, stop_event: threading.Event) -> None:
    """Capture and pipeline together; ends when either ends, and raises what ended it. Where capture
    is complete (``snapshot: initial_only``), what it captured is delivered first.
    """
    if config.outputs:
        check_spark(config)
    check_apart(config)
    ended = threading.Event()
    complete = threading.Event()
    failures: list[BaseException] = []
    shown: dict[str, Any] = {}

    def show(part: str, document: dict[str, Any]) -> None:
        shown[part] = document
        on_status(dict(shown))

    def guard(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
        finally:
            ended.set()

    def capturing() -> None:
        capture(config, on_status=lambda s: show("capture", s), stop_event=ended)
        if not ended.is_set():
            complete.set()

    def piping() -> None:
        pipeline(config, on_progress=lambda s: show("pipeline", s), stop_event=ended)

    works = [capturing, *([piping] if config.outputs else [])]
    threads = [threading.Thread(target=guard, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    while not ended.is_set():
        if stop_event.wait(0.1):
            ended.set()
    for thread in threads:
        thread.join(60)
    if failures:
        raise failures[0]
    if complete.is_set() and config.outputs:
        pipeline(
            config, once=True, on_progress=lambda s: show("pipeline", s), stop_event=stop_event
        )
