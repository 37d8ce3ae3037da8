"""Drivers and executors to be killed.

python -m tests.integration.iceberg.killing LOG WAREHOUSE CHECKPOINT [MARK] brings an event log over
to Iceberg in a process of its own; with MARK, on two executors, and one is killed amid the rows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests import executors

from tidelog.outputs.lake.iceberg.output import IcebergOptions, IcebergOutput
from tidelog.spark import spark_session
from tidelog.spark.executor_jobs import map_in_arrow
from tidelog.spark.pipeline import LoopOptions, run_output_loops


class _DieOnce:
    """Kills the executor's Python worker amid the rows, once."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if not self.mark.exists():
                self.mark.touch()
                os.kill(os.getpid(), 9)


def die_once(frame: Any) -> Any:
    """A step; where it leaves its mark is in the environment."""
    mark = Path(os.environ["TIDELOG_TEST_MARK"])
    return frame if mark.exists() else map_in_arrow(frame, _DieOnce(mark), frame.schema)


def main() -> None:
    log, warehouse, *mark = sys.argv[1:]
    master, conf = (executors.MASTER, executors.CONF) if mark else ("local[2]", None)
    spark = spark_session(master, conf=conf, delta=False, iceberg=True)
    options = IcebergOptions(steps=executors.KILL_ONE if mark else ())

    def run() -> None:
        catalog = {"type": "hadoop", "warehouse": warehouse}
        output = IcebergOutput(spark, log, catalog, options=options)
        try:
            run_output_loops(spark, log, [output], LoopOptions(once=True))
        finally:
            output.close()

    if mark:
        executors.with_one_killed(Path(mark[0]), run)
    else:
        run()
    spark.stop()


if __name__ == "__main__":
    main()
