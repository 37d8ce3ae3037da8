"""Event log → Kafka, against typed Arrow columns that one call of Arrow formats and librdkafka
sends, as many messages of the same size with the same headers. Tasks and floor run in this process,
by turns: CPU is theirs, without the broker's and Spark's.

python -m benchmarks.bench_kafka [--changes 600000] [--tables 4] [--format avro] [--transactions]
    [--no-context]    without Debezium's headers of connector and task
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.kafka import KafkaServer

from benchmarks.spark_workload import TasksHere, build_tables, delivered_s, typed_rows
from benchmarks.table import Row, show
from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.formatters import formatter
from tidelog.outputs.formatters.json_formats import context_headers
from tidelog.outputs.formatters.messages import MESSAGES
from tidelog.outputs.kafka.client import SCHEMA_HEADER
from tidelog.outputs.kafka.output import KafkaOutput
from tidelog.outputs.kafka.producer import Header, MessageChunk, Producer
from tidelog.ports import SourceId
from tidelog.spark import spark_session
from tidelog.spark.formats.json_values import ValueModes
from tidelog.state.sqlite import SqliteState

_PARTITIONS = 4
_JVM = ["-Xmx512m", "-XX:+UseSerialGC"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=600_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--tables", type=int, default=4)
    parser.add_argument("--format", default="debezium")
    parser.add_argument("--transactions", action="store_true")
    parser.add_argument("--no-context", action="store_true")
    parser.add_argument("--quick", action="store_true", help="little data: numbers mean nothing")
    given = parser.parse_args()
    if given.quick:
        given.changes, given.keys = 8_000, 1_000
    with (
        KafkaServer(jvm=_JVM) as server,
        tempfile.TemporaryDirectory(prefix="tidelog-bench-") as scratch,
    ):
        _run(given, server, Path(scratch))


def _run(given: argparse.Namespace, server: KafkaServer, scratch: Path) -> None:
    names = build_tables(scratch / "log", given.changes, given.tables, given.keys)
    spark = spark_session("local[2]", delta=False)

    def bring(topic: str) -> float:
        handling = ValueModes(extended_headers=not given.no_context)
        made = formatter(given.format, topic=topic, handling=handling)
        output = KafkaOutput(
            spark, str(scratch / "log"), SqliteState(f"sqlite:///{scratch / 'state.db'}"),
            Delivery(topic.partition("-")[0], keyed=False, formatter=made, part_bytes=4 << 20),
            servers=server.servers,
            topic=topic, partitions=_PARTITIONS, transactions=given.transactions,
        )  # fmt: skip
        return delivered_s(spark, scratch / "log", output, topic[:5])

    tasks, numbers = TasksHere(), count()
    bring("first-{name}")  # compiled kernels, the broker's own code
    messages, size = _sizes(server, [f"first-{name}" for name in names])
    rows = typed_rows(messages // given.tables)
    headers = ((SCHEMA_HEADER, b"1"),)
    if given.format == "debezium" and not given.no_context:
        headers += context_headers(SourceId("postgres", "1", "bench", 1))
    (ours, _), (floor, _) = tasks.by_turns(
        "µs CPU a message, seconds",
        messages,
        lambda: bring(f"run{next(numbers)}-{{name}}"),
        lambda: _floor(server, rows, size, headers, [f"floor{next(numbers)}-{n}" for n in names]),
        1 if given.quick else 5,
    )
    show(
        [
            Row(
                f"event log → Kafka ({given.format}, {given.tables} tables, {messages:,} messages "
                f"of {size} bytes, {len(headers) + 1} headers"
                f"{', transactions' if given.transactions else ''})",
                f"{ours:.1f} µs CPU a message",
                f"{floor:.1f} µs (one call of Arrow, librdkafka)",
                f"{floor / ours:.2f} ×",
                "≤ 4.5 µs (debezium), ≤ 3.5 µs (avro)",
            )
        ]
    )
    spark.stop()


def _sizes(server: KafkaServer, topics: list[str]) -> tuple[int, int]:
    """The number of messages and the mean of their bytes."""
    consumer = Consumer(
        {"bootstrap.servers": server.servers, "group.id": "bench", "enable.partition.eof": True}
    )
    found = total = 0
    for topic in topics:
        for partition in range(_PARTITIONS):
            consumer.assign([TopicPartition(topic, partition, 0)])
            done = False
            while not done:
                for message in consumer.consume(10_000, 1.0):
                    if message.error() is not None:
                        assert message.error().code() == KafkaError._PARTITION_EOF
                        done = True
                    else:
                        found += 1
                        total += len(message.key() or b"") + len(message.value() or b"")
    consumer.close()
    return found, total // found


def _floor(
    server: KafkaServer, rows: pa.Table, size: int, headers: tuple[Header, ...], topics: list[str]
) -> None:
    """Format and send: key and value of ``size`` bytes on average, with the headers of all messages
    and their version's, under the output's settings."""
    admin = AdminClient({"bootstrap.servers": server.servers})
    for made in admin.create_topics([NewTopic(n, _PARTITIONS, 1) for n in topics]).values():
        made.result()
    settings = {
        "bootstrap.servers": server.servers,
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 20,
        "compression.type": "lz4",
        "partitioner": "murmur2_random",
        "queue.buffering.max.messages": 200_000,
    }
    failed: list[KafkaError] = []
    producer = Producer(settings, lambda error, number: failed.append(error), failed.append)
    rest = "x" * max(0, size - 170)
    living: list[MessageChunk] = []
    for topic in topics:
        for batch in rows.to_batches(8192):
            texts = [column.cast(pa.string()) for column in batch.columns]
            pieces = [piece for text in texts for piece in (text, ",")]
            values = pc.binary_join_element_wise(*pieces, rest, "").cast(pa.binary())
            n = batch.num_rows
            no_headers = pa.nulls(n, MESSAGES.field("headers").type)
            arrays = [texts[0].cast(pa.binary()), values, no_headers]
            arrays += [pa.repeat(pa.scalar(topic), n), pa.array(np.arange(n))]
            chunk = MessageChunk(
                topic, pa.RecordBatch.from_arrays(arrays, schema=MESSAGES), headers
            )
            while len(chunk):
                living.append(chunk)
                taken, error = producer.produce(chunk, 0)
                assert error is None or error.code() == KafkaError._QUEUE_FULL
                chunk = chunk.slice(taken)
                producer.poll(0.05 if error else 0)
            if not len(producer):
                living.clear()
    while len(producer):
        producer.poll(0.02)
    producer.close()
    assert not failed


if __name__ == "__main__":
    main()
