"""Brings an event log over to Kafka in a process of its own, to be killed: the driver's part.

python kafka_process.py LOG STATE CHECKPOINT SERVERS TOPIC TRANSACTIONS BATCH_BYTES
"""

from __future__ import annotations

import sys

from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.formatters import formatter
from tidelog.outputs.kafka.output import KafkaOutput
from tidelog.spark import spark_session
from tidelog.spark.pipeline import LoopOptions, run_output_loops
from tidelog.state.sqlite import SqliteState


def main() -> None:
    log, state, servers, topic, transactions, batch_bytes = sys.argv[1:]
    # Two shuffled tasks a table, so that several producers write to one topic.
    spark = spark_session("local[2]", delta=False, conf={"spark.sql.shuffle.partitions": "2"})
    output = KafkaOutput(
        spark, log, SqliteState(f"sqlite:///{state}"),
        Delivery("kafka", keyed=False, formatter=formatter("flat", topic=topic), part_bytes=20_000),
        servers=servers, topic=topic, partitions=3, transactions=transactions == "true",
    )  # fmt: skip
    print("ready", flush=True)
    run_output_loops(
        spark, log, [output], LoopOptions(once=True, max_batch_bytes=int(batch_bytes)),
        on_progress=lambda done: print(f"done {done.end}", flush=True),
    )  # fmt: skip
    print("finished", flush=True)


if __name__ == "__main__":
    main()
