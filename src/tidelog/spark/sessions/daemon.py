"""Spark's Python worker daemon, warmed up (``spark.python.daemon.module`` of our session).

The daemon forks a worker per task slot: what it has imported and compiled, they have. Spark runs
one daemon per worker module (``sys.argv[1]``): the executors' one gets the decoder, those that plan
reads only the source.
"""

from __future__ import annotations

import contextlib
import sys


def _preload(worker_module: str) -> None:
    """A failure shows where the thing is used, not here."""
    with contextlib.suppress(ImportError):
        import tidelog.spark.datasource.source  # noqa: F401

        if worker_module == "pyspark.worker":
            from tidelog.spark.sessions.warmup import warm_up

            warm_up()


if __name__ == "__main__":
    from pyspark.daemon import manager

    # The JVM reads the daemon's port from its standard output: nothing else may stand there.
    stdout, sys.stdout = sys.stdout, sys.stderr
    try:
        _preload(sys.argv[1] if len(sys.argv) > 1 else "pyspark.worker")
    finally:
        sys.stdout = stdout
    manager()
