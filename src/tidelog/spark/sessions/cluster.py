"""Which master a session has, and whether a cluster gives it executors."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Final

from tidelog.spark.sessions.errors import HostBusyError, application_ended_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WITHIN_S: Final = 60.0
_LOOK_S: Final = 0.2


def master_of(configured: str | None) -> str:
    """The Spark master of a session: as configured, else ``$SPARK_MASTER``, else this machine."""
    return configured or os.environ.get("SPARK_MASTER") or "local[*]"


def is_local(master: str) -> bool:
    """True if the driver itself runs the tasks."""
    return master.partition("[")[0] == "local"


def await_executors(
    spark: SparkSession, stop: threading.Event | None = None, within_s: float = _WITHIN_S
) -> None:
    """Wait until Spark has an executor: a job that has none waits for ever and raises nothing.

    Returns at once in local mode, and with dynamic allocation, which starts executors for jobs.

    Raises HostBusyError after ``within_s`` seconds or once ``stop`` is set, SparkGoneError if the
    application has ended.
    """
    context = spark.sparkContext
    conf = context.getConf()
    by_work = conf.get("spark.dynamicAllocation.enabled", "false")
    if is_local(str(context.master)) or str(by_work).lower() == "true":
        return
    scheduler = context._jsc.sc()
    stop = stop or threading.Event()
    deadline = time.monotonic() + within_s
    while True:
        if scheduler.isStopped():
            raise application_ended_error()
        if int(scheduler.getExecutorMemoryStatus().size()) > 1:  # the driver counts as one
            return
        if stop.wait(_LOOK_S) or time.monotonic() >= deadline:
            raise HostBusyError(
                f"Spark's master {context.master} has given no executor for {within_s:.0f} s: see "
                "that workers run, that they have cores and memory left (another application keeps "
                "what it got, up to spark.cores.max), and that they reach the driver at "
                f"{conf.get('spark.driver.host')} (spark.driver.host; docs/how-to/cluster.md)"
            )
