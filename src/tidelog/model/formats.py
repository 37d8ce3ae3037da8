"""Names that configuration and code share: event formats, and Debezium's modes for values."""

from __future__ import annotations

from typing import Literal

JsonFormat = Literal["debezium", "flat", "cloudevents"]
EventFormat = Literal[JsonFormat, "avro", "avro_flat"]

# Modes for values that JSON has no type for, as Debezium's `decimal.handling.mode`,
# `time.precision.mode`, `binary.handling.mode` and `bigint.unsigned.handling.mode`.
DecimalMode = Literal["string", "precise", "double"]
TimeMode = Literal[
    "microseconds",
    "adaptive",
    "adaptive_time_microseconds",
    "connect",
    "nanoseconds",
    "isostring",
]
BinaryMode = Literal["base64", "bytes", "base64-url-safe", "hex"]
BigintUnsignedMode = Literal["long", "precise"]
