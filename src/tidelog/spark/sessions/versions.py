"""The versions of Spark that Tidelog runs on, 4.0 to 4.3, and the master of a session.

Before 4.2 Spark reads a Python stream's latest offset without the batch's start or its limit, and
reads "all that is available now" as one batch.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.sql.pandas.types import to_arrow_schema

from tidelog.spark.sessions.errors import HostBusyError, application_ended_error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ModuleNotFoundError:  # pragma: no cover - before Spark 4.2: only our reader uses them

    class ReadLimit:  # type: ignore[no-redef]
        """The limit of a batch."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """No limit."""

    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        """A limit of bytes."""

        def __init__(self, max_bytes: int) -> None:
            self.max_bytes = max_bytes

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """A limit of rows."""

        def __init__(self, max_rows: int) -> None:
            self.max_rows = max_rows

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Spark never uses it before 4.2."""


__all__ = [
    "SPARK_VERSION",
    "STREAMS_ARE_LIMITED",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
]

SPARK_VERSION = ".".join(pyspark.__version__.split(".")[:2])  # e.g. "4.2"

# Does Spark give a stream's reader the batch's start, and end `availableNow` only when everything
# was read?
STREAMS_ARE_LIMITED = tuple(int(part) for part in SPARK_VERSION.split(".")) >= (4, 2)


def arrow_schema(fields: StructType) -> pa.Schema:
    """Return the Arrow schema of Spark's types; timestamps in UTC."""
    if STREAMS_ARE_LIMITED:
        return to_arrow_schema(fields, timezone="UTC")
    return to_arrow_schema(fields)  # in UTC by default


# Which master a session has, and whether a cluster gives it executors.

_WITHIN_S: Final = 60.0
_LOOK_S: Final = 0.2


def master_of(configured: str | None) -> str:
    """The Spark master of a session: as configured, else ``$SPARK_MASTER``, else this machine."""
    return configured or os.environ.get("SPARK_MASTER") or "local[*]"


def is_local(master: str) -> bool:
    """True if the driver itself runs the tasks."""
    return master.partition("[")[0] == "local"


def local_cores(master: str) -> int:
    """Return the number of tasks that a local ``master`` runs at once: ``local[4]``, ``local[*]``,
    ``local[4,2]`` (with retries), ``local``. 0: Spark refuses it.
    """
    count = master.partition("[")[2].rstrip("]").partition(",")[0].strip() or "1"
    if count == "*":
        return os.cpu_count() or 1
    return int(count) if count.isdecimal() else 0


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
