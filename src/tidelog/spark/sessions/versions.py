"""What differs between the versions of Spark that Tidelog runs on: 4.0 to 4.3.

Before 4.2 Spark asks a Python stream for its latest offset without saying where a batch starts or
how much it may hold, and reads "all that is available now" as one batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.pandas.types import to_arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ModuleNotFoundError:  # pragma: no cover - before Spark 4.2: nothing but our reader uses them

    class ReadLimit:  # type: ignore[no-redef]
        """How much a batch takes."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """Everything."""

    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        """At most so many bytes."""

        def __init__(self, max_bytes: int) -> None:
            self.max_bytes = max_bytes

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """At most so many rows."""

        def __init__(self, max_rows: int) -> None:
            self.max_rows = max_rows

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Spark never asks for it before 4.2."""


__all__ = [
    "SPARK_VERSION",
    "STREAMS_ARE_LIMITED",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
]

SPARK_VERSION = ".".join(pyspark.__version__.split(".")[:2])  # e.g. "4.2"

# Does Spark tell a stream's reader where a batch starts, and end `availableNow` only when
# everything was read?
STREAMS_ARE_LIMITED = tuple(int(part) for part in SPARK_VERSION.split(".")) >= (4, 2)


def arrow_schema(fields: StructType) -> pa.Schema:
    """The Arrow schema of Spark's types; timestamps in UTC."""
    if STREAMS_ARE_LIMITED:
        return to_arrow_schema(fields, timezone="UTC")
    return to_arrow_schema(fields)  # in UTC by default
