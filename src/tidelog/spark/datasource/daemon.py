"""Spark's Python worker daemon, warmed up (``spark.python.daemon.module`` of our session).

The daemon forks a worker per task slot, which inherits everything that it has imported and
compiled. Spark runs one daemon per worker module (``sys.argv[1]``): that of executors imports the
decoder, those that plan reads only the source.
"""

from __future__ import annotations

import contextlib
import sys

import pyarrow as pa

from tidelog.codecs.decode import decode
from tidelog.codecs.fold import fold
from tidelog.errors import ConfigError
from tidelog.eventlog.segments import RECORD_SCHEMA
from tidelog.kinds.adapters import WIRE_FORMATS
from tidelog.model.records import RecordKind
from tidelog.spark.datasource import executor  # noqa: F401


def warm_up() -> None:
    """Decode and fold one artificial record of each wire format that has an example."""
    for example in (WIRE_FORMATS.get(name).example for name in WIRE_FORMATS.names):
        if example is None:
            continue
        payload, schema = example()
        values = [[1], [int(RecordKind.INSERT)], [1], [1], [0], [1], [0], [payload]]
        arrays = [pa.array(v, f.type) for v, f in zip(values, RECORD_SCHEMA, strict=True)]
        records = pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)
        decode(records, schema)
        fold(records, schema)


def preload(worker_module: str = "pyspark.worker") -> None:
    """Import and compile early. An error appears where the module is used, not here."""
    with contextlib.suppress(ImportError, ConfigError):
        import tidelog.spark.datasource.source  # noqa: F401

        if worker_module == "pyspark.worker":
            warm_up()


if __name__ == "__main__":
    from pyspark.daemon import manager

    # The JVM reads the daemon's port from its standard output: nothing else may be written there.
    stdout, sys.stdout = sys.stdout, sys.stderr
    try:
        preload(sys.argv[1] if len(sys.argv) > 1 else "pyspark.worker")
    finally:
        sys.stdout = stdout
    manager()
