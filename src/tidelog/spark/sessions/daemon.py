"""Spark's Python worker daemon, warmed up (``spark.python.daemon.module`` of our session).

The daemon forks a worker per task slot, which inherits everything that it has imported and
compiled. Spark runs one daemon per worker module (``sys.argv[1]``): that of executors imports the
decoder, those that plan reads only the source.
"""

from __future__ import annotations

import contextlib
import struct
import sys

import pyarrow as pa

from tidelog.codecs.decode import decode
from tidelog.codecs.fold import fold
from tidelog.eventlog.layout import RECORD_SCHEMA
from tidelog.model.records import Kind
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.spark.datasource import executor  # noqa: F401

_CELLS = {
    "int64": b"1",
    "int32": b"1",
    "int16": b"1",
    "bool": b"t",
    "float64": b"1.5",
    "float32": b"1.5",
    "decimal(10,2)": b"1.50",
    "date": b"2026-01-02",
    "timestamp": b"2026-01-02 03:04:05",
    "timestamptz": b"2026-01-02 03:04:05+00",
    "binary": b"\\x00",
    "text": b"x",
    "bytes": b"x",
}


def warm_up() -> None:
    """Decode and fold one artificial record with a column of every type."""
    columns = tuple(Column(kind, 0, -1, kind, kind) for kind in _CELLS)
    schema = TableSchema(
        TableName("warm", "up"), 1, columns, ("int64",), ("int64",), "d", "pgoutput", 1
    )
    cells = b"".join(b"t" + struct.pack("!I", len(text)) + text for text in _CELLS.values())
    payload = struct.pack("!cIcH", b"I", 1, b"N", len(_CELLS)) + cells
    values = [[1], [int(Kind.INSERT)], [1], [1], [0], [1], [0], [payload]]
    arrays = [pa.array(v, f.type) for v, f in zip(values, RECORD_SCHEMA, strict=True)]
    records = pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)
    decode(records, schema)
    fold(records, schema)


def _preload(worker_module: str) -> None:
    """Import and compile early. An error appears where the module is used, not here."""
    with contextlib.suppress(ImportError):
        import tidelog.spark.datasource.source  # noqa: F401

        if worker_module == "pyspark.worker":
            warm_up()


if __name__ == "__main__":
    from pyspark.daemon import manager

    # The JVM reads the daemon's port from its standard output: nothing else may be written there.
    stdout, sys.stdout = sys.stdout, sys.stderr
    try:
        _preload(sys.argv[1] if len(sys.argv) > 1 else "pyspark.worker")
    finally:
        sys.stdout = stdout
    manager()
