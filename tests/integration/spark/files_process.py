"""Brings an event log over to files in a process of its own, to be killed: the driver's part.

python files_process.py LOG STATE CHECKPOINT PATH BATCH_BYTES
"""

from __future__ import annotations

import sys

from tests.support.output_options import LAYOUT, file_format

from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.files.output import FilesOutput
from tidelog.spark import spark_session
from tidelog.spark.pipeline import LoopOptions, run_output_loops
from tidelog.state.sqlite import SqliteState


def main() -> None:
    log, state, path, batch_bytes = sys.argv[1:]
    spark = spark_session("local[2]", delta=False)
    delivery = Delivery("activity", keyed=False, order="none", part_bytes=5_000)
    output = FilesOutput(
        spark,
        log,
        SqliteState(f"sqlite:///{state}"),
        delivery,
        path=path,
        layout=LAYOUT,
        file_format=file_format(),
    )
    run_output_loops(spark, log, [output], LoopOptions(once=True, max_batch_bytes=int(batch_bytes)))


if __name__ == "__main__":
    main()
