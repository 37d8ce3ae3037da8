"""Event log → Kafka, against a bare confluent-kafka loop that sends the same bytes, ``local[2]``.

The broker runs on the same cores: its CPU counts in both.

python -m benchmarks.bench_kafka [--changes 600000] [--tables 4] [--format avro] [--transactions]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.kafka import KafkaServer

from benchmarks.spark_workload import Meter, build_tables, delivered_s, report
from benchmarks.table import Row, show
from tidelog.outputs.base.delivery import Delivery
from tidelog.outputs.formatters import formatter
from tidelog.outputs.kafka.output import KafkaOutput
from tidelog.spark import spark_session
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
        made = formatter(given.format, topic=topic)
        output = KafkaOutput(
            spark, str(scratch / "log"), SqliteState(f"sqlite:///{scratch / 'state.db'}"),
            Delivery(topic.partition("-")[0], keyed=False, formatter=made, part_bytes=4 << 20),
            servers=server.servers,
            topic=topic, partitions=_PARTITIONS, transactions=given.transactions,
        )  # fmt: skip
        return delivered_s(spark, scratch / "log", output, topic[:5])

    bring("first-{name}")  # workers, compiled kernels, the broker's own code
    with Meter() as meter:
        seconds = bring("tidelog-{name}")
    sent = _read(server, [f"tidelog-{name}" for name in names])
    messages = sum(len(each) for each in sent.values())
    report("event log → Kafka", messages, meter.reading)
    floor = float("inf")
    for attempt in range(2):
        with Meter() as meter:
            floor = min(floor, _floor(server, sent, attempt))
        report("bare loop", messages, meter.reading)
    size = sum(len(k or b"") + len(v or b"") for each in sent.values() for k, v, _ in each)
    show(
        [
            Row(
                f"event log → Kafka ({given.format}, {given.tables} tables, {messages:,} messages "
                f"of {size // messages} bytes{', transactions' if given.transactions else ''})",
                f"{messages / seconds:,.0f} messages/s",
                f"{messages / floor:,.0f} messages/s (bare confluent-kafka loop)",
                f"{floor / seconds:.2f} ×",
                "≥ 0.7 ×",
            )
        ]
    )
    spark.stop()


def _read(server: KafkaServer, topics: list[str]) -> dict[str, list[Any]]:
    """By topic, (key, value, headers) of all messages."""
    consumer = Consumer(
        {"bootstrap.servers": server.servers, "group.id": "bench", "enable.partition.eof": True}
    )
    sent: dict[str, list[Any]] = {}
    for topic in topics:
        found = sent.setdefault(topic, [])
        for partition in range(_PARTITIONS):
            consumer.assign([TopicPartition(topic, partition, 0)])
            done = False
            while not done:
                for message in consumer.consume(10_000, 1.0):
                    if message.error() is not None:
                        assert message.error().code() == KafkaError._PARTITION_EOF
                        done = True
                    else:
                        found.append((message.key(), message.value(), message.headers()))
    consumer.close()
    return sent


def _floor(server: KafkaServer, sent: dict[str, list[Any]], attempt: int) -> float:
    """Seconds of a producer that does nothing else, with the same settings and the same bytes."""
    admin = AdminClient({"bootstrap.servers": server.servers})
    names = {topic: f"floor{attempt}-{topic}" for topic in sent}
    for made in admin.create_topics([NewTopic(n, _PARTITIONS, 1) for n in names.values()]).values():
        made.result()
    started = time.perf_counter()
    producer = Producer(
        {
            "bootstrap.servers": server.servers,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 20,
            "compression.type": "lz4",
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 200_000,
        }
    )
    produce = producer.produce
    for topic, messages in sent.items():
        name = names[topic]
        for key, value, headers in messages:
            while True:
                try:
                    produce(name, value, key, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
    producer.flush()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
