"""Creates an archive of Java's classes, at the lowest priority: ``python -m
tidelog.spark.sessions.archive_maker FILE``. `tidelog.spark.sessions.class_archive` starts it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Final

from tidelog.spark.sessions.class_archive import JAVA_OPTIONS, QUIET_JAVA
from tidelog.spark.sessions.session import spark_session

_UNUSED_S: Final = 30 * 86_400.0
_END_S: Final = 120.0


def make(file: Path) -> None:
    """Start Spark, use what pipelines use, and have Java write the classes to ``file`` at its end.
    Delete archives beside it that were not used for long.
    """
    fresh = file.with_suffix(f".{os.getpid()}")
    conf = {
        JAVA_OPTIONS: f"-XX:ArchiveClassesAtExit={fresh} {QUIET_JAVA}",
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
    if fresh.exists():
        fresh.replace(file)
        file.with_suffix(".making").unlink(missing_ok=True)
    for each in file.parent.iterdir():
        if time.time() - each.stat().st_mtime > _UNUSED_S:
            each.unlink(missing_ok=True)


if __name__ == "__main__":
    os.nice(19)
    make(Path(sys.argv[1]))
