"""The same tables in Delta, by a stream of plain Spark: SCD 1 and SCD 2.

Run it with the event log's directory and a directory for the lake:
    python examples/auto_cdc/delta.py ./data/log ./data/lake
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from tidelog.spark import spark_session

TABLE, KEY, COLUMNS = "public.customers", "id", "id BIGINT, name STRING, city STRING"
NAMES = [column.split()[0] for column in COLUMNS.split(", ")]


def events(spark: SparkSession, log: str) -> DataFrame:
    """The table's changes as flat rows with their operation, version and time of commit."""
    reader = spark.readStream.format("tidelog").option("path", log).option("table", TABLE)
    rows = reader.option("shape", "events").load().where("_tidelog_op <> 't'")
    return rows.selectExpr(
        *NAMES,
        "_tidelog_op AS op",
        "_tidelog_version AS version",
        "timestamp_micros(_tidelog_source.commit_ts) AS ts",
    )


def scd1(batch: DataFrame, path: str) -> None:
    """Merge the newest event of each key. A batch that comes again changes nothing."""
    spark = batch.sparkSession
    spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{path}` ({COLUMNS}, version BIGINT) USING delta")
    newest = batch.groupBy(KEY).agg(f.max_by(f.struct(*batch.columns), "version").alias("e"))
    newest.select("e.*").createOrReplaceTempView("newest")
    names = [*NAMES, "version"]
    spark.sql(
        f"MERGE INTO delta.`{path}` t USING newest s ON t.{KEY} = s.{KEY} "
        "WHEN MATCHED AND s.version > t.version AND s.op = 'd' THEN DELETE "
        f"WHEN MATCHED AND s.version > t.version THEN UPDATE SET {_each(names, 't.{0} = s.{0}')} "
        f"WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT ({_each(names, '{0}')}) "
        f"VALUES ({_each(names, 's.{0}')})"
    )


def scd2(batch: DataFrame, path: str) -> None:
    """Close the rows that changed and add what they became; a batch may come again."""
    spark = batch.sparkSession
    columns = f"{COLUMNS}, version BIGINT, valid_from TIMESTAMP, valid_to TIMESTAMP"
    spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{path}` ({columns}) USING delta")
    following = Window.partitionBy(KEY).orderBy("version")
    rows = batch.withColumnRenamed("ts", "valid_from")
    rows = rows.withColumn("valid_to", f.lead("valid_from").over(following))
    rows.createOrReplaceTempView("became")
    spark.sql(
        f"MERGE INTO delta.`{path}` t USING (SELECT {KEY}, min(version) AS version, "
        f"min_by(valid_from, version) AS ts FROM became GROUP BY {KEY}) s "
        f"ON t.{KEY} = s.{KEY} AND t.valid_to IS NULL AND t.version < s.version "
        "WHEN MATCHED THEN UPDATE SET t.valid_to = s.ts"
    )
    names = [*NAMES, "version", "valid_from", "valid_to"]
    spark.sql(
        f"MERGE INTO delta.`{path}` t USING (SELECT * FROM became WHERE op <> 'd') s "
        f"ON t.{KEY} = s.{KEY} AND t.version = s.version "
        f"WHEN NOT MATCHED THEN INSERT ({_each(names, '{0}')}) VALUES ({_each(names, 's.{0}')})"
    )


def _each(names: list[str], pattern: str) -> str:
    return ", ".join(pattern.format(name) for name in names)


def run(spark: SparkSession, log: str, lake: str) -> None:
    """Bring both tables up to the log's end."""

    def write(batch: DataFrame, _number: int) -> None:
        rows = batch.persist()
        scd1(rows, f"{lake}/customers")
        scd2(rows, f"{lake}/customers_history")
        rows.unpersist()

    stream = events(spark, log).writeStream.foreachBatch(write)
    stream = stream.option("checkpointLocation", f"{lake}/checkpoint").trigger(availableNow=True)
    stream.start().awaitTermination()


if __name__ == "__main__":
    run(spark_session(), *sys.argv[1:3])
