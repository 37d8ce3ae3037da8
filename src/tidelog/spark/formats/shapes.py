"""Spark schemas of the source's rows, by shape. `tidelog.spark.formats.shaping` fills them.

Imported where reads are planned, so it must not import the decoder (numba takes a second).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import types as spark

from tidelog.errors import ConfigError
from tidelog.model.schema import TableSchema, decimal_parameters, element_of, members_of

# Metadata of the typed shape's `after`, the events' `_tidelog_before`: the version decoded to.
SCHEMA_ID = "tidelog.schema_id"

# Columns of the internal shape `changes` that are not the table's.
CHANGE_OP, CHANGE_VERSION, CHANGE_MISSING = "_tidelog_op", "_tidelog_version", "_tidelog_missing"
# Those of the internal shape `events` beside them.
EVENT_BEFORE, EVENT_SOURCE = "_tidelog_before", "_tidelog_source"

_SPARK_TYPES: dict[str, spark.DataType] = {
    "bool": spark.BooleanType(),
    "int16": spark.ShortType(),
    "int32": spark.IntegerType(),
    "int64": spark.LongType(),
    "float32": spark.FloatType(),
    "float64": spark.DoubleType(),
    "date": spark.DateType(),
    "timestamp": spark.TimestampNTZType(),
    "timestamptz": spark.TimestampType(),
    "binary": spark.BinaryType(),
    "text": spark.StringType(),
    "bytes": spark.BinaryType(),
    "variant": spark.VariantType(),
    "map": spark.MapType(spark.StringType(), spark.StringType()),
}

_SOURCE = spark.StructType(
    [
        spark.StructField("table", spark.StringType()),
        spark.StructField("position", spark.LongType()),
        spark.StructField("ordinal", spark.LongType()),
        spark.StructField("xid", spark.LongType()),
        spark.StructField("commit_ts", spark.TimestampType()),
        spark.StructField("origin", spark.StringType()),
    ]
)

ENVELOPE = spark.StructType(
    [
        spark.StructField("table", spark.StringType()),
        spark.StructField("op", spark.StringType()),
        spark.StructField("version", spark.LongType()),
        spark.StructField("schema_version", spark.IntegerType()),
        spark.StructField("ts", spark.TimestampType()),
        spark.StructField("key", spark.StringType()),
        spark.StructField("value", spark.StringType()),
    ]
)

VARIANT = spark.StructType(
    [
        *ENVELOPE.fields[:5],
        spark.StructField("key", spark.VariantType()),
        spark.StructField("before", spark.VariantType()),
        spark.StructField("after", spark.VariantType()),
        spark.StructField("source", _SOURCE),
        spark.StructField("missing", spark.ArrayType(spark.StringType())),
    ]
)

RAW = spark.StructType(
    [
        spark.StructField("offset", spark.LongType()),
        spark.StructField("kind", spark.StringType()),
        spark.StructField("schema_id", spark.IntegerType()),
        spark.StructField("position", spark.LongType()),
        spark.StructField("ordinal", spark.LongType()),
        spark.StructField("xid", spark.LongType()),
        spark.StructField("commit_ts", spark.TimestampType()),
        spark.StructField("payload", spark.BinaryType()),
        spark.StructField("table", spark.StringType()),
        spark.StructField("schema", spark.StringType()),
    ]
)

SEGMENTS = spark.StructType(
    [
        spark.StructField("first", spark.LongType()),
        spark.StructField("next", spark.LongType()),
        spark.StructField("table", spark.StringType()),
        spark.StructField("schema_ids", spark.ArrayType(spark.IntegerType())),
        spark.StructField("rows", spark.LongType()),
        spark.StructField("bytes", spark.LongType()),
        spark.StructField("control", spark.StringType()),
    ]
)


# The origin of an event, named as in the log's records; `commit_ts` in microseconds since 1970.
EVENT_SOURCE_TYPE = spark.StructType(
    [
        spark.StructField("kind", spark.ShortType()),
        spark.StructField("schema_id", spark.IntegerType()),
        spark.StructField("position", spark.LongType()),
        spark.StructField("ordinal", spark.LongType()),
        spark.StructField("xid", spark.LongType()),
        spark.StructField("commit_ts", spark.LongType()),
    ]
)


def spark_type(logical: str) -> spark.DataType:
    """Return Spark's type for a logical type; an unknown one is delivered as text."""
    parameters = decimal_parameters(logical)
    if parameters is not None:
        return spark.DecimalType(*parameters)
    element = element_of(logical)
    if element is not None:
        return spark.ArrayType(spark_type(element))
    members = members_of(logical)
    if members is not None:
        return spark.StructType([spark.StructField(n, spark_type(kind)) for n, kind in members])
    if logical == "time":
        if not hasattr(spark, "TimeType"):
            raise ConfigError("types: {time: time} needs Spark 4.1 or later")
        return spark.TimeType(6)
    return _SPARK_TYPES.get(logical, spark.StringType())


def row_type(schema: TableSchema, columns: Sequence[str] | None = None) -> spark.StructType:
    """Return the table's columns (or those given, in that order), all nullable."""
    logical = {column.name: column.logical for column in schema.columns}
    names = list(logical) if columns is None else columns
    return spark.StructType([spark.StructField(n, spark_type(logical[n])) for n in names])


def typed(schema: TableSchema, columns: Sequence[str] | None) -> spark.StructType:
    """Return the typed shape of a table at a schema version."""
    key = row_type(schema, schema.match_key)
    return typed_changes(row_type(schema, columns), key, {SCHEMA_ID: schema.schema_id})


def typed_changes(
    row: spark.StructType, key: spark.StructType, of_after: dict[str, Any] | None = None
) -> spark.StructType:
    """Return the typed shape of changes of such rows; ``of_after``: metadata of its column
    `after`.
    """
    return spark.StructType(
        [
            spark.StructField("op", spark.StringType()),
            spark.StructField("before", row),
            spark.StructField("after", row, metadata=of_after),
            spark.StructField("key", key),
            spark.StructField("version", spark.LongType()),
            spark.StructField("schema_version", spark.IntegerType()),
            spark.StructField("source", _SOURCE),
            spark.StructField("ts", spark.TimestampType()),
            spark.StructField("missing", spark.ArrayType(spark.StringType())),
        ]
    )


def changes(schema: TableSchema) -> spark.StructType:
    """Return the internal shape that outputs merge: a folded row per key
    (`tidelog.codecs.fold`).
    """
    return spark.StructType(
        [
            spark.StructField(CHANGE_OP, spark.StringType()),
            spark.StructField(CHANGE_VERSION, spark.LongType()),
            *row_type(schema).fields,
            spark.StructField(CHANGE_MISSING, spark.ArrayType(spark.ShortType())),
        ]
    )


def events(schema: TableSchema) -> spark.StructType:
    """Return the shape that ordered outputs format, and SCD flows take: one row per change event.

    ``_tidelog_op`` is c, u, d, r or t. The table's columns are those of the new row; of a delete
    the known ones of the old row (at least the key); of a truncate null. ``_tidelog_missing`` as in
    `changes`. An update that changes the key is a d of the old key and a c of the new one, both at
    one version.
    """
    row = row_type(schema)
    return spark.StructType(
        [
            spark.StructField(CHANGE_OP, spark.StringType()),
            spark.StructField(CHANGE_VERSION, spark.LongType()),
            *row.fields,
            spark.StructField(CHANGE_MISSING, spark.ArrayType(spark.ShortType())),
            spark.StructField(EVENT_BEFORE, row, metadata={SCHEMA_ID: schema.schema_id}),
            spark.StructField(EVENT_SOURCE, EVENT_SOURCE_TYPE),
        ]
    )
