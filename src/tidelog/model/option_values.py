"""Values of options: formats, types of columns, and places of event logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, WithJsonSchema

from tidelog.model.units import parse_bytes, parse_milliseconds

# Formats of events, and Debezium's modes for values.

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


# The option ``types``: which columns get a type of their own in place of text.

ArrayTypes = Literal["native", "text"]
JsonTypes = Literal["text", "variant"]
HstoreTypes = Literal["map", "text"]
StructTypes = Literal["text", "struct"]
TimeTypes = Literal["text", "time"]


@dataclass(frozen=True, slots=True)
class ColumnTypes:
    """What to do with columns of types that not every reader has.

    Attributes:
        arrays: ``native``: columns of arrays are arrays, of as many dimensions as declared
            unless ``dimensions`` has another number. ``text``: they are text.
        numeric: (precision, scale) of the decimals that numbers without limits become; None: they
            are text.
        json: ``text``, or ``variant``: Spark's VARIANT.
        hstore: ``map``, of text by text; or ``text``.
        ranges, composites, interval: ``text``; or ``struct``, of their parts.
        time: ``text``; or ``time``, of times of day.
        dimensions: by pattern of columns, the number of dimensions of their arrays.
    """

    arrays: ArrayTypes = "native"
    numeric: tuple[int, int] | None = None
    json: JsonTypes = "text"
    hstore: HstoreTypes = "map"
    ranges: StructTypes = "text"
    composites: StructTypes = "text"
    interval: StructTypes = "text"
    time: TimeTypes = "text"
    dimensions: tuple[tuple[str, int], ...] = ()


ALL_TEXT: Final = ColumnTypes("text", hstore="text")


# Places of event logs: a directory, or a URL of an object store.

URL_SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")


def is_url(place: str | Path) -> bool:
    """Return whether it is a URL of an object store; else it is a local path."""
    return "://" in str(place)


def is_object_store(place: str) -> bool:
    """Return whether it is a URL of an object store; ``hdfs://`` and ``file://`` are not."""
    return "://" in place and place.partition("://")[0] in URL_SCHEMES


def is_jdbc_catalog(properties: Mapping[str, str]) -> bool:
    """Return whether it is an Iceberg catalog in a database, which has tables of many catalogs."""
    impl = properties.get("catalog-impl", "")
    return properties.get("type", "").lower() == "jdbc" or impl.endswith(".JdbcCatalog")


def _with_unit(parse: Callable[[str], int], expected: str) -> BeforeValidator:
    def validate(value: Any) -> Any:
        if isinstance(value, str) and not value.strip().isdigit():
            return parse(value)
        if isinstance(value, bool) or (not isinstance(value, (int, str, timedelta))):
            raise ValueError(expected)
        return value

    return BeforeValidator(validate)


Milliseconds = Annotated[
    int,
    _with_unit(parse_milliseconds, "expected a duration such as 50ms or 10s"),
    WithJsonSchema({"type": ["integer", "string"], "examples": ["50ms", 50]}),
]
Bytes = Annotated[
    int,
    _with_unit(parse_bytes, "expected a size such as 4MiB"),
    WithJsonSchema({"type": ["integer", "string"], "examples": ["4MiB", 4194304]}),
]
