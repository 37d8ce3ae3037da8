"""Debezium's events in files of JSON → a Delta table, by Spark Structured Streaming and MERGE.

python merge_events.py EVENTS TABLE CHECKPOINT TRIGGER JARS
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

ROW = (
    "id BIGINT, customer INT, status STRING, amount STRING, quantity INT, placed TIMESTAMP, "
    "updated BIGINT, note STRING, reference STRING, active BOOLEAN"
)
EVENT = f"before STRUCT<{ROW}>, after STRUCT<{ROW}>, source STRUCT<lsn: BIGINT>, op STRING"
TABLE = ROW.replace("amount STRING", "amount DECIMAL(12, 2)").replace(
    "updated BIGINT", "updated TIMESTAMP_NTZ"
)


def main() -> None:
    events, table, checkpoint, trigger, jars = sys.argv[1:]
    settings = {
        "spark.jars": jars,
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    builder = SparkSession.builder.master("local[2]").appName("merge")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS delta.`{table}` ({TABLE}) USING delta "
        "TBLPROPERTIES (delta.enableDeletionVectors = true)"
    )

    def merge(batch: DataFrame, _: int) -> None:
        newest = (
            batch.withColumn("id", f.coalesce("after.id", "before.id"))
            .groupBy("id")
            .agg(f.max_by(f.struct("op", "after"), "source.lsn").alias("last"))
            .selectExpr(
                "id",
                "last.op AS op",
                "last.after.* EXCEPT (id, amount, updated)",
                "CAST(last.after.amount AS DECIMAL(12, 2)) AS amount",
                "CAST(timestamp_micros(last.after.updated) AS TIMESTAMP_NTZ) AS updated",
            )
        )
        newest.createOrReplaceTempView("newest")
        columns = [column.split()[0] for column in TABLE.replace("(12, 2)", "").split(", ")]
        batch.sparkSession.sql(
            f"MERGE INTO delta.`{table}` t USING newest s ON t.id = s.id "
            "WHEN MATCHED AND s.op = 'd' THEN DELETE WHEN MATCHED THEN UPDATE SET "
            + ", ".join(f"t.{name} = s.{name}" for name in columns)
            + f" WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT ({', '.join(columns)}) "
            f"VALUES ({', '.join(f's.{name}' for name in columns)})"
        )

    stream = spark.readStream.schema(EVENT).json(events)
    query = stream.writeStream.foreachBatch(merge).option("checkpointLocation", checkpoint)
    query.trigger(processingTime=trigger).start().awaitTermination()


if __name__ == "__main__":
    main()
