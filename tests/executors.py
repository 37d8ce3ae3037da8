"""Executors in processes of their own, whose JVMs can be killed, not only their Python workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from tidelog.spark.executor_jobs import map_in_arrow
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


def told_by(module: str, *arguments: str, timeout_s: float = 560) -> Any:
    """What ``python -m module`` writes as JSON in its last line. If it takes too long its Java ends
    with it: a driver that is left alone goes on making executors.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=timeout_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0
    return json.loads(said.strip().splitlines()[-1])
