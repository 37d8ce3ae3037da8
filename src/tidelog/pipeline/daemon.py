"""Spark's Python worker daemon with the decoder already imported (``spark.python.daemon.module``).

The daemon forks a worker per task slot; what it has imported, they have.
"""

from __future__ import annotations

import contextlib
import sys


def _preload() -> None:
    """Import what every worker of ours uses. A failure shows where it is used, not here."""
    with contextlib.suppress(ImportError):
        import pyarrow  # noqa: F401

        import tidelog.pipeline.shapes  # noqa: F401


if __name__ == "__main__":
    from pyspark.daemon import manager

    # The JVM reads the daemon's port from its standard output: nothing else may stand there.
    stdout, sys.stdout = sys.stdout, sys.stderr
    try:
        _preload()
    finally:
        sys.stdout = stdout
    manager()
