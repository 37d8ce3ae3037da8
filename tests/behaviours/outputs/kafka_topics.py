"""Topics of a broker that all tests of a process share, and readers of them."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.behaviours.outputs.destinations import Context, Destination, Row, newest
from tests.support.kafka import KafkaServer

from tidelog.errors import TidelogError
from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.formatters import formatter
from tidelog.state.sqlite import SqliteState

UNTOLD = "__debezium_unavailable_value"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Read:
    """A message as a reader gets it."""

    partition: int
    key: str | None
    value: Any
    version: int
    headers: dict[str, str]


@functools.cache
def broker() -> KafkaServer:
    """One for all tests of the process; it goes when the process does."""
    try:
        server = KafkaServer(sasl_password="kafka-secret")
        server.start()
    except TidelogError as error:
        pytest.skip(f"no Kafka here: {error}")
    return server


Decode = Callable[[bytes], Any]


def read(
    topic: str,
    *,
    committed: bool = True,
    json_values: bool = True,
    servers: str | None = None,
    decode: Decode | None = None,
) -> list[Read]:
    """All messages of a topic, partition by partition; empty if there is none.

    ``decode``: makes of keys and values what they would be of JSON.
    """
    decoder = decode or (json.loads if json_values else bytes)
    return list(_read(topic, committed, decoder, servers or broker().servers, decode))


def _read(
    topic: str, committed: bool, decoder: Decode, servers: str, decode: Decode | None
) -> Iterator[Read]:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    try:
        found = consumer.list_topics(topic, timeout=20).topics[topic]
        for partition in sorted(found.partitions):
            consumer.assign([TopicPartition(topic, partition, 0)])
            while True:
                message = consumer.poll(20)
                assert message is not None, "the broker is silent"
                if message.error() is not None:
                    assert message.error().code() == KafkaError._PARTITION_EOF
                    break
                headers = {name: value.decode() for name, value in message.headers() or ()}
                key, value = message.key(), message.value()
                version = int(headers["tidelog-version"])
                text = None
                if key is not None:
                    text = key.decode() if decode is None else json.dumps(decode(key))
                yield Read(partition, text, value and decoder(value), version, headers)
    finally:
        consumer.close()


def kafka_destination(
    context: Context, message_format: str = "flat", decode: Decode | None = None, **options: Any
) -> Destination:
    from tidelog.outputs.kafka.client import topic_name
    from tidelog.outputs.kafka.output import KafkaOutput

    server = broker()
    prefix = f"t{next(_numbers)}-{context.path.name}"
    topic = prefix + ".{table}"

    def open_(**delivery: Any) -> KafkaOutput:
        wanted = replace(
            Delivery("kafka", keyed=False, formatter=formatter(message_format, topic=topic)),
            **delivery,
        )
        return KafkaOutput(
            context.spark,
            context.built.path,
            SqliteState(f"sqlite:///{context.path / 'state.db'}"),
            wanted,
            servers=server.servers,
            topic=topic,
            **{"partitions": 2, "replication": 1} | options,
        )

    def rows(table: str) -> list[Row]:
        """As a reader that keeps rows by key sees them: it fills what a message does not tell."""
        told: list[tuple[str, int, Row | None]] = []
        known: dict[str, Row] = {}
        messages = read(topic_name(f"{prefix}.{table}"), decode=decode)
        check_order(messages)
        for message in sorted(messages, key=lambda m: m.version):
            if message.value is None:
                continue
            if message.value["__op"] == "t":
                told += [(each, message.version, None) for each in known]
                known.clear()
                continue
            assert message.key is not None
            row = {n: v for n, v in message.value.items() if not n.startswith("__")}
            before = known.get(message.key, {})
            row = {n: before.get(n) if v == UNTOLD else v for n, v in row.items()}
            known[message.key] = row
            gone = message.value["__deleted"]
            told.append((message.key, message.version, None if gone else row))
        return newest(told)

    return Destination(open_, rows, frozenset({"stream"}))


def check_order(messages: list[Read]) -> None:
    """No older state of a key behind a newer one, in any partition; nothing twice."""
    last: dict[tuple[int, str | None], int] = {}
    for message in messages:
        place = (message.partition, message.key)
        rank = 2 * message.version + (message.value is None)
        if message.key is not None:
            assert rank > last.get(place, -1), f"{message} behind {last[place]}"
        last[place] = rank
