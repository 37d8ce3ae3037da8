"""The differences between the versions of Spark that Tidelog runs on: 4.0 to 4.3.

Before 4.2 Spark reads a Python stream's latest offset without the batch's start or its limit, and
reads "all that is available now" as one batch.
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
except ModuleNotFoundError:  # pragma: no cover - before Spark 4.2: only our reader uses them

    class ReadLimit:  # type: ignore[no-redef]
        """The limit of a batch."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """No limit."""

    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        """A limit of bytes."""

        def __init__(self, max_bytes: int) -> None:
            self.max_bytes = max_bytes

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """A limit of rows."""

        def __init__(self, max_rows: int) -> None:
            self.max_rows = max_rows

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Spark never uses it before 4.2."""


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

# Does Spark give a stream's reader the batch's start, and end `availableNow` only when everything
# was read?
STREAMS_ARE_LIMITED = tuple(int(part) for part in SPARK_VERSION.split(".")) >= (4, 2)


def arrow_schema(fields: StructType) -> pa.Schema:
    """Returns the Arrow schema of Spark's types; timestamps in UTC."""
    if STREAMS_ARE_LIMITED:
        return to_arrow_schema(fields, timezone="UTC")
    return to_arrow_schema(fields)  # in UTC by default
