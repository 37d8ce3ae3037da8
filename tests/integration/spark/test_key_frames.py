"""A DataFrame's keys on their way to a dump: as texts, distinct, without NULLs."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tidelog.errors import UsageError
from tidelog.spark.changed_keys import keys_of_frame

pytestmark = [pytest.mark.spark, pytest.mark.integration]

# Spark SQL's value, PostgreSQL's type, and PostgreSQL's spelling of the same value.
VALUES = [
    ("127Y", "smallint", "127"),
    ("-9223372036854775808L", "bigint", "-9223372036854775808"),
    ("1", "numeric(5,2)", "1.00"),
    ("CAST('12345678901234567890.10' AS DECIMAL(38,2))", "numeric", "12345678901234567890.10"),
    ("CAST(0 AS DECIMAL(38,18))", "numeric", "0.000000000000000000"),
    ("true", "boolean", "true"),
    ("CAST(0.1 AS FLOAT)", "real", "0.1"),
    ("1e300D", "double precision", "1e+300"),
    ("DOUBLE('NaN')", "double precision", "NaN"),
    ("DOUBLE('-Infinity')", "double precision", "-Infinity"),
    ("DATE'2024-02-29'", "date", "2024-02-29"),
    ("TIME'01:02:03.000004'", "time", "01:02:03.000004"),
    ("TIMESTAMP'2024-07-01 02:00:00.000001 Europe/Berlin'", "timestamptz", "…+00"),
    ("TIMESTAMP'2024-07-01 02:00:00.000001 Europe/Berlin'", "timestamp", "…"),
    ("TIMESTAMP_NTZ'1582-10-10 00:00:00.5'", "timestamp", "1582-10-10 00:00:00.5"),
    ("X'00FF'", "bytea", "\\x00ff"),
    ("'ä\\'\"\\\\'", "text", "ä'\"\\"),
    ("'6F9619FF-8B86-D011-B42D-00C04FC964FF'", "uuid", "6f9619ff-8b86-d011-b42d-00c04fc964ff"),
]


def test_values_are_what_postgres_reads(spark: Any, database: str) -> None:
    expressions = [f"{value} AS c{place}" for place, (value, _, _) in enumerate(VALUES)]
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = spark.sql(f"SELECT {', '.join(expressions)}")
        [key] = keys_of_frame(frame, frame.columns)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute("SET timezone = 'UTC'")
        for (_, kind, expected), text in zip(VALUES, key, strict=True):
            row = sql.execute(f"SELECT %s::text::{kind}::text".encode(), (text,)).fetchone()
            assert row is not None
            assert row[0] == expected.replace("…", "2024-07-01 00:00:00.000001"), (kind, text)


def test_keys_are_distinct_and_complete(spark: Any) -> None:
    ids = spark.range(0, 60_000).selectExpr("id % 25000 AS `a.b`", "'x' AS other", "1 AS n")
    keys = list(keys_of_frame(ids, ["n", "a.b"], slice_keys=7_000))
    assert sorted(keys) == sorted(("1", str(i)) for i in range(25_000))


def test_empty_frame_has_no_keys(spark: Any) -> None:
    assert list(keys_of_frame(spark.range(0), ["id"])) == []


def test_nulls_are_counted_and_not_shown(spark: Any) -> None:
    frame = spark.sql(
        "SELECT * FROM VALUES ('s3cret', 1), (NULL, 1), (NULL, 1), ('s3cret', NULL) AS t(a, b)"
    )
    with pytest.raises(UsageError, match=r"3 rows have NULL in the key \(a, b\)") as caught:
        list(keys_of_frame(frame, ["a", "b"]))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("1 AS b", "has no column a; the key is"),
        ("1 AS a, 2 AS a", "more than one column a"),
        ("array(1) AS a", "column a: values of type array"),
        ("named_struct('x', 1) AS a", "column a: values of type struct"),
        ("INTERVAL '1' DAY AS a", "column a: values of type interval"),
        ("make_interval(1) AS a", "column a: values of type interval"),
    ],
)
def test_what_is_no_key_is_refused_before_spark_runs(
    spark: Any, select: str, expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        next(keys_of_frame(spark.sql(f"SELECT {select}"), ["a"]))


def test_streaming_frame_is_refused(spark: Any) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(UsageError, match="foreachBatch"):
        next(keys_of_frame(stream, ["value"]))
