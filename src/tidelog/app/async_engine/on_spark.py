"""An engine's work on Spark's executors, over the session that the configuration asks for."""

from __future__ import annotations

from functools import partial

from tidelog.app.pipeline.dependencies import check_spark
from tidelog.app.pipeline.run import session
from tidelog.config import Config
from tidelog.engine.processing.workers import EventWork, MakeWorkers, Workers


def on_spark(config: Config) -> MakeWorkers:
    """What makes them. They use the session that runs, or one as `tidelog pipeline` starts it."""

    def make(count: int, work: EventWork) -> Workers:
        check_spark(config)
        from tidelog.spark.engine_jobs import SparkWorkers

        return SparkWorkers(partial(session, config), count, work)

    return make
