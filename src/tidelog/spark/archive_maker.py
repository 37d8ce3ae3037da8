"""Creates an archive of Java's classes, at the lowest priority: ``python -m
tidelog.spark.archive_maker FILE``. `tidelog.spark.sessions.class_archive` starts it. It
ends, and leaves nothing behind, once its standard input ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from tidelog.spark.sessions.class_archive import JAVA_OPTIONS, QUIET_JAVA, unfinished_files

_WAIT_S: Final = 20.0
"""Seconds before it begins: the process that starts it has just begun to deliver."""
_END_S: Final = 120.0


def make(file: Path) -> None:
    """Start Spark, use what pipelines use, and have Java write the classes to ``file`` at its end,
    under another name until it is whole.
    """
    from tidelog.spark.session import spark_session

    unfinished, mark = unfinished_files(file, os.getpid())
    conf = {
        JAVA_OPTIONS: f"-XX:ArchiveClassesAtExit={unfinished} {QUIET_JAVA}",
        "spark.driver.memory": "512m",
        "spark.python.daemon.module": "pyspark.daemon",
    }
    spark = spark_session("local[1]", conf=conf, delta=False)
    context = spark.sparkContext
    context.parallelize([0], 1).map(str).collect()
    frame = spark.range(2).selectExpr("id", "CAST(id AS string) AS text").distinct()
    frame.toArrow()
    gateway: Any = context._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_END_S)
    if unfinished.exists():
        unfinished.replace(file)
        mark.unlink(missing_ok=True)


def _end_with_parent(file: Path) -> None:
    """Wait for the end of the standard input; then delete what is unfinished, and end this process
    and its JVM.
    """
    while os.read(0, 1):  # not by sys.stdin, which the end of the interpreter waits for
        pass
    for each in unfinished_files(file, os.getpid()):
        each.unlink(missing_ok=True)
    os.killpg(0, signal.SIGKILL)


def main(file: Path) -> None:
    """Create the archive, unless the standard input ends before."""
    os.nice(19)
    threading.Thread(target=_end_with_parent, args=(file,), daemon=True).start()
    time.sleep(_WAIT_S)
    make(file)


if __name__ == "__main__":
    if os.getpgrp() != os.getpid():  # the group that it ends must be its own
        os.setpgid(0, 0)
    main(Path(sys.argv[1]))
