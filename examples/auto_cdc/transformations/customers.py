"""A declarative pipeline of Spark 4.2 over Tidelog's event log: SCD 1 and SCD 2 of one table."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

spark = SparkSession.active()
LOG = os.environ["TIDELOG_LOG"]  # the event log's directory
TABLE = "public.customers"
# Columns of the shape `events` that are not the table's.
OURS = [f"_tidelog_{name}" for name in ("op", "version", "missing", "before", "source")]


@dp.temporary_view
def changes() -> DataFrame:
    """Each change as a flat row; one of the key as the old key's delete and the new key's row."""
    reader = spark.readStream.format("tidelog").option("path", LOG).option("table", TABLE)
    return reader.option("shape", "events").load().where("_tidelog_op <> 't'")


# SCD 1: the newest row of each key.
dp.create_streaming_table("customers")
dp.create_auto_cdc_flow(
    target="customers",
    source="changes",
    keys=["id"],
    sequence_by="_tidelog_version",
    apply_as_deletes="_tidelog_op = 'd'",
    except_column_list=OURS,
    stored_as_scd_type=1,
)


# SCD 2: each row with the time it was true from, and until; Spark 4.2 has no flow for it.
@dp.materialized_view
def customers_history() -> DataFrame:
    """The history of all rows, from the event log."""
    reader = spark.read.format("tidelog").option("path", LOG).option("table", TABLE)
    rows = reader.option("shape", "events").load().where("_tidelog_op <> 't'")
    time = f.timestamp_micros("_tidelog_source.commit_ts")
    following = Window.partitionBy("id").orderBy("_tidelog_version")
    return (
        rows.withColumn("valid_from", time)
        .withColumn("valid_to", f.lead("valid_from").over(following))
        .where("_tidelog_op <> 'd'")
        .drop(*OURS)
    )
