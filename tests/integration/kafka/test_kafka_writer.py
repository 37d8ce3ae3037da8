"""What is refused, what a topic holds already, and topics that are refused; no Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.behaviours.outputs.kafka_topics import read

from tidelog.errors import OutputRefusedError
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.outputs import executing, kafka_writer
from tidelog.outputs.dead_letters import JsonDeadLetters
from tidelog.outputs.executing import Delivery
from tidelog.outputs.formatters import formatter
from tidelog.outputs.formatters.messages import MESSAGES
from tidelog.outputs.kafka import KafkaOutput
from tidelog.outputs.kafka_tail import Tail, ranks_of
from tidelog.outputs.kafka_writer import KafkaTopics, KafkaWriter, _headers, _too_long
from tidelog.ports import SourceId, TargetTable, WriteTask
from tidelog.state.sqlite import SqliteState
from tidelog.testing.build_log import BuiltLog
from tidelog.testing.kafka import KafkaServer

pytestmark = pytest.mark.integration

LIMIT = 1_000_000
SCHEMA = TableSchema(
    TableName("public", "t"), 1, (Column("id", 25, -1, "text", "text", False),), ("id",), ("id",),
    "d", "pgoutput",
)  # fmt: skip
TABLE = TargetTable(
    SCHEMA.table, "public.t", SCHEMA, pa.schema([("id", pa.string())]), ("id",),
    SourceId("postgres", "1", "shop"),
)  # fmt: skip
TASK = WriteTask("out", "generation", 0, 100, 0)


@pytest.fixture
def topic(kafka: KafkaServer, tmp_path: Path) -> Iterator[str]:
    """Of one partition."""
    admin, name = AdminClient({"bootstrap.servers": kafka.servers}), tmp_path.name
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    deadline = time.monotonic() + 30
    while not admin.list_topics(name, timeout=10).topics[name].partitions:
        assert time.monotonic() < deadline
        time.sleep(0.1)  # brokers learn of a new topic a little later
    yield name
    admin.delete_topics([name])[name].result(30)


def messages(topic: str, values: Sequence[bytes], key: bytes = b'"a"') -> pa.RecordBatch:
    """Of one key, with versions 1, 2, …"""
    n = len(values)
    columns = [[key] * n, values, [None] * n, [topic] * n, range(1, n + 1)]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, MESSAGES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)


def bring(
    kafka: KafkaServer, rows: pa.RecordBatch, *, keep_rejected: bool, again: bool
) -> list[int]:
    """Versions of the letters."""
    writer = KafkaWriter(
        {"bootstrap.servers": kafka.servers}, KafkaTopics(max_message_bytes=LIMIT),
        transactions=False, exact=False, reread=again, timeout_s=60, keep_rejected=keep_rejected,
    )  # fmt: skip
    writer.open(TASK)
    try:
        letters = [*writer.write(TABLE, rows), *writer.commit()]
    finally:
        writer.close()
    return [letter.version for letter in letters]


VALUES = [b"1", b"2" * (LIMIT + 1), b"3"]


@pytest.mark.parametrize("again", [False, True])
def test_nothing_newer_goes_after_a_message_that_stops_the_pipeline(
    kafka: KafkaServer, topic: str, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Else the next try would take it for written."""
    produced: list[bytes] = []

    class Recording(Producer):
        def produce(self, topic: str, value: bytes, key: bytes, **how: Any) -> None:
            produced.append(value)
            super().produce(topic, value, key, **how)

    monkeypatch.setattr(kafka_writer, "Producer", Recording)
    for tried in (again, True):
        with pytest.raises(OutputRefusedError, match=r"version 2 .*MSG_SIZE_TOO_LARGE"):
            bring(kafka, messages(topic, VALUES), keep_rejected=False, again=tried)
    assert VALUES[0] in produced
    assert VALUES[2] not in produced
    assert all(each.version < 2 for each in read(topic, servers=kafka.servers))


def test_a_message_that_is_too_long_is_told_by_each_try(kafka: KafkaServer, topic: str) -> None:
    for again in (False, True):
        rows = messages(topic, VALUES)
        assert bring(kafka, rows, keep_rejected=True, again=again) == [2]
    assert [each.version for each in read(topic, servers=kafka.servers)] == [1, 3]


def test_too_long_is_what_librdkafka_refuses() -> None:
    limit, schema = 20_000, ("tidelog-schema", b"12")
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "message.max.bytes": limit})
    rows = messages("t", [b"x" * (limit - 160 + each) for each in range(160)])
    more = pa.array([[("é", "b" * 70)] if n % 2 else None for n in range(160)], MESSAGES[2].type)
    rows = rows.set_column(2, MESSAGES[2], more)
    refused = []
    for value, headers in zip(rows["value"].to_pylist(), _headers(rows, schema), strict=True):
        try:
            producer.produce("t", value, b'"a"', headers=headers)
            refused.append(False)
        except KafkaException:
            refused.append(True)
    producer.purge()
    producer.flush(1)
    assert 0 < sum(refused) < 160
    assert _too_long(rows, schema, limit).tolist() == refused
    assert _too_long(rows.slice(0, 0), schema, limit).tolist() == []


def test_messages_of_others_do_not_end_the_reading_back(kafka: KafkaServer, topic: str) -> None:
    """A stretch that has none of ours tells nothing of what stands before it."""
    settings = {"bootstrap.servers": kafka.servers}
    producer = Producer(settings)
    producer.produce(topic, b"v", b"k", headers=[("tidelog-version", b"5")])
    for _ in range(1_500):
        producer.produce(topic, b"v", b"other")
    assert producer.flush(30) == 0
    tail = Tail(settings, committed=False)
    try:
        held = tail.present(topic, 0, exact=False)
    finally:
        tail.close()
    assert held.holds([b"k"], ranks_of(np.array([5]), [b"v"])).all()


@pytest.mark.parametrize("order", ["key", "none"])
def test_a_compacted_topic_wants_order(
    kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr(executing, "register", lambda spark: None)
    spark = MagicMock()
    spark.sparkContext.master, spark.sparkContext.defaultParallelism = "local[2]", 2
    topic = f"{tmp_path.name}-{{name}}"
    flat, letters = formatter("flat", topic=topic), JsonDeadLetters(str(tmp_path / "letters"))
    delivery = Delivery("out", keyed=False, order=order, formatter=flat, dead_letters=letters)
    state, log = SqliteState(f"sqlite:///{tmp_path / 'state.db'}"), BuiltLog(tmp_path / "log")
    output = KafkaOutput(
        spark, log.path, state, delivery, servers=kafka.servers, topic=topic, compact=True
    )
    try:
        if order == "none":
            with pytest.raises(OutputRefusedError, match=r"compacted.* use order key"):
                output.create(TABLE)
        else:
            output.create(TABLE)
    finally:
        output.close()
