"""Executors in processes of their own, whose JVMs can be killed, not only their Python workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from tidelog.spark.arrow_frames import map_in_arrow
from tidelog.spark.transforms import Step

MASTER = "local-cluster[2,1,1024]"
CONF = {
    "spark.driver.memory": "1g",
    "spark.executor.memory": "800m",
    "spark.sql.shuffle.partitions": "2",
    # Both are there before the first task is given.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.locality.wait": "0s",
}
KILL_ONE = (Step("python", f"{__name__}:kill_one"),)
_MARK = "TIDELOG_TEST_MARK"


def kill_one(frame: Any) -> Any:
    """A step: the JVM of the executor that gets the first rows is killed amid them, once."""
    mark = Path(os.environ[_MARK])

    class Killing:  # in here, so that it is pickled by value: executors do not have the tests
        def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield batch
                if not mark.exists():
                    mark.touch()
                    next(p for p in psutil.Process().parents() if p.name() == "java").kill()

    return map_in_arrow(frame, Killing(), frame.schema)


def with_one_killed(mark: Path, run: Callable[[], None]) -> int:
    """Run with `KILL_ONE` among the steps, again if that fails; how often it was run."""
    os.environ[_MARK] = str(mark)
    try:
        run()
    except Exception:
        if not mark.exists():
            raise
        run()
        return 2
    assert mark.exists()
    return 1
