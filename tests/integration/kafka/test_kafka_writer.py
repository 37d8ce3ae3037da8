"""What is refused by us or by brokers, what a topic holds already, topics that are refused, brokers
that are away; no Spark.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.behaviours.outputs.kafka_topics import read
from tests.support.build_log import BuiltLog
from tests.support.ending_lease import EndingLease
from tests.support.kafka import KafkaServer

from tidelog.errors import LeaseLostError, OutputError, OutputRefusedError
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.outputs.base.tasks import BatchWork, run_task
from tidelog.outputs.base.writer import Delivery, JsonDeadLetters
from tidelog.outputs.formatters import formatter
from tidelog.outputs.formatters.messages import MESSAGES
from tidelog.outputs.kafka import producer
from tidelog.outputs.kafka import writer as sender
from tidelog.outputs.kafka.output import KafkaOutput
from tidelog.outputs.kafka.producer import MessageChunk
from tidelog.outputs.kafka.topic_tail import TopicTail, ranks_of
from tidelog.outputs.kafka.writer import KafkaTopics, KafkaWriter, _too_long
from tidelog.ports import SourceId, TargetTable, TaskFence, WriteTask
from tidelog.state.sqlite import SqliteState

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


@pytest.fixture(autouse=True)
def no_idle_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "_idle_producers", producer.IdleProducers())


@pytest.fixture
def topic(kafka: KafkaServer, tmp_path: Path) -> Iterator[str]:
    with made_topic(kafka, tmp_path.name) as name:
        yield name


@contextmanager
def made_topic(kafka: KafkaServer, name: str, **config: str) -> Iterator[str]:
    """Of one partition."""
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    config = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(30)
    deadline = time.monotonic() + 30
    while not admin.list_topics(name, timeout=10).topics[name].partitions:
        assert time.monotonic() < deadline
        time.sleep(0.1)  # brokers learn of a new topic a little later
    yield name
    admin.delete_topics([name])[name].result(30)


def messages(
    topic: str, values: Sequence[bytes], key: bytes = b'"a"', without: Sequence[int] = ()
) -> pa.RecordBatch:
    """Of one key, with versions 1, 2, …; those ``without`` have none."""
    n = len(values)
    keys = [None if version in without else key for version in range(1, n + 1)]
    columns = [keys, values, [None] * n, [topic] * n, range(1, n + 1)]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, MESSAGES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)


def bring(
    servers: str,
    *batches: pa.RecordBatch,
    keep_rejected: bool,
    again: bool = False,
    limits: Mapping[str, int] | None = None,
    timeout_s: float = 60,
    transactions: bool = False,
    fence: TaskFence | None = None,
    **settings: Any,
) -> list[int]:
    """Versions of the letters."""
    writer = KafkaWriter(
        {"bootstrap.servers": servers} | {k.replace("_", "."): v for k, v in settings.items()},
        KafkaTopics(max_message_bytes=limits or {}), transactions=transactions, exact=False,
        repeated=again, timeout_s=timeout_s, keep_rejected=keep_rejected,
    )  # fmt: skip
    writer.open(replace(TASK, fence=fence))
    try:
        letters = [letter for rows in batches for letter in writer.write(TABLE, rows)]
        letters += writer.commit()
    finally:
        writer.close()
    return [letter.version for letter in letters]


VALUES = [b"1", b"2" * (LIMIT + 1), b"3"]


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> list[producer.Producer]:
    """The producers of the test."""
    found: list[producer.Producer] = []

    class Recording(producer.Producer):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            found.append(self)

    monkeypatch.setattr(sender, "Producer", Recording)
    return found


def test_a_producer_serves_the_next_task_also_of_a_topic_that_was_created_again(
    kafka: KafkaServer, tmp_path: Path, created: list[producer.Producer]
) -> None:
    for value in (b"1", b"2"):
        with made_topic(kafka, tmp_path.name) as topic:
            for each in (value, value + b"0"):
                assert bring(kafka.servers, messages(topic, [each]), keep_rejected=True) == []
            found = read(topic, servers=kafka.servers, json_values=False)
            assert [each.value for each in found] == [value, value + b"0"]
    assert len(created) == 1
    bring(kafka.servers, messages("none", []), keep_rejected=True, linger_ms=1)
    assert len(created) == 2, "one of other settings"


def test_a_producer_whose_task_has_failed_serves_no_other(
    kafka: KafkaServer, topic: str, created: list[producer.Producer]
) -> None:
    with pytest.raises(OutputRefusedError):
        bring(kafka.servers, messages(topic, VALUES), keep_rejected=False)
    bring(kafka.servers, messages(topic, [b"4"]), keep_rejected=True, again=True)
    assert len(created) == 2
    assert not created[0]._client, "it was closed"


def test_an_old_producer_and_an_idle_one_at_the_end_are_closed(
    kafka: KafkaServer,
    topic: str,
    created: list[producer.Producer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bring(kafka.servers, messages(topic, [b"1"]), keep_rejected=True)
    assert created[0]._client
    sender.close_idle_producers()
    assert not created[0]._client
    monkeypatch.setattr(producer, "_OLD_S", 0.0)
    bring(kafka.servers, messages(topic, [b"2"]), keep_rejected=True)
    assert len(created) == 2
    assert not created[1]._client


def test_an_idle_producer_is_closed(
    kafka: KafkaServer,
    topic: str,
    created: list[producer.Producer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender, "_idle_producers", producer.IdleProducers(0.2))
    bring(kafka.servers, messages(topic, [b"1"]), keep_rejected=True)
    deadline = time.monotonic() + 30
    while created[0]._client:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    bring(kafka.servers, messages(topic, [b"2"]), keep_rejected=True)
    assert len(created) == 2


@pytest.mark.parametrize("again", [False, True])
def test_nothing_newer_goes_after_a_message_that_stops_the_pipeline(
    kafka: KafkaServer, topic: str, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Else the next try would take it for written."""
    produced: list[bytes] = []

    class Recording(producer.Producer):
        def produce(self, chunk: MessageChunk, number: int) -> tuple[int, KafkaError | None]:
            produced.extend(chunk.messages.column("value").to_pylist())
            return super().produce(chunk, number)

    monkeypatch.setattr(sender, "Producer", Recording)
    for tried in (again, True):
        with pytest.raises(OutputRefusedError, match=r"version 2 .*MSG_SIZE_TOO_LARGE"):
            bring(kafka.servers, messages(topic, VALUES), keep_rejected=False, again=tried)
    assert VALUES[0] in produced
    assert VALUES[2] not in produced
    assert all(each.version < 2 for each in read(topic, servers=kafka.servers))


def test_a_message_that_is_too_long_is_reported_by_each_try(kafka: KafkaServer, topic: str) -> None:
    for again in (False, True):
        rows = messages(topic, VALUES)
        assert bring(kafka.servers, rows, keep_rejected=True, again=again) == [2]
    assert [each.version for each in read(topic, servers=kafka.servers)] == [1, 3]


@pytest.mark.parametrize("order", [1, -1])
def test_a_topic_that_takes_short_messages_refuses_none_of_others(
    kafka: KafkaServer, tmp_path: Path, topic: str, order: int
) -> None:
    """And no batch of short ones is too long for it."""
    with made_topic(kafka, f"{tmp_path.name}-short", max_message_bytes="2000") as short:
        limits = {topic: LIMIT, short: 2_000}
        long_values = [b"1" * 3_000] * 3
        values = [random.randbytes(100).hex().encode() for _ in range(400)]
        values[7] = b"1" * 3_000
        batches = [messages(topic, long_values), messages(short, values)][::order]
        assert bring(kafka.servers, *batches, keep_rejected=True, limits=limits) == [8]
        found = [each.version for each in read(short, json_values=False, servers=kafka.servers)]
    assert found == [version for version in range(1, 401) if version != 8]
    assert len(read(topic, servers=kafka.servers)) == 3


# What the broker refuses and the driver could not know, as the topic was changed since.
CHANGED = {"max_message_bytes": "2000"}, {"cleanup_policy": "compact"}


@pytest.mark.parametrize("changed", CHANGED)
@pytest.mark.parametrize("keep_rejected", [True, False])
def test_what_only_the_broker_refuses_takes_nothing_with_it(
    kafka: KafkaServer, tmp_path: Path, changed: dict[str, str], keep_rejected: bool
) -> None:
    """It refuses whole batches, and tells so when newer ones are on their way."""
    bad = (50, 1_111, 1_112, 2_990)
    values = [random.randbytes(1_500 if v in bad else 20).hex().encode() for v in range(1, 3_001)]
    with made_topic(kafka, tmp_path.name, **changed) as topic:
        without = bad if "cleanup_policy" in changed else ()
        batches = [messages(topic, values, without=without)]
        batches = [batches[0].slice(at, 400) for at in range(0, 3_000, 400)]
        expected = [version for version in range(1, 3_001) if version not in bad]
        for again in (False, True):
            if keep_rejected:
                letters = bring(kafka.servers, *batches, keep_rejected=True, again=again)
                assert letters == list(bad)
            else:
                expected = list(range(1, 50))
                with pytest.raises(OutputRefusedError, match="at version 50 "):
                    bring(kafka.servers, *batches, keep_rejected=False, again=again)
            found = read(topic, json_values=False, servers=kafka.servers)
            assert [each.version for each in found] == expected


def test_what_the_broker_refuses_of_a_transaction_stops_the_pipeline(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    with made_topic(kafka, tmp_path.name, cleanup_policy="compact") as topic:
        rows = messages(topic, [b"1", b"2", b"3"], without=[2])
        for slices in ([rows], [rows.slice(at, 1) for at in range(3)]):
            with pytest.raises(OutputRefusedError, match=r"INVALID_RECORD.*`transactions`"):
                bring(kafka.servers, *slices, keep_rejected=True, transactions=True, linger_ms=0)
        assert read(topic, servers=kafka.servers) == []


@pytest.mark.parametrize("count", [5, 100])
def test_brokers_that_are_away_are_an_error_that_says_so(count: int) -> None:
    """Whether there is room left for messages or not."""
    rows = messages("t", [b"1"] * count)
    settings: dict[str, Any] = {"queue_buffering_max_messages": 10}
    began = time.monotonic()
    with pytest.raises(OutputError, match=r"messages were not accepted in 2 s: _(ALL|TRANSPORT)"):
        bring("127.0.0.1:1", rows, keep_rejected=True, timeout_s=2, **settings)
    assert time.monotonic() < began + 20


def test_too_long_is_what_librdkafka_refuses() -> None:
    limit, common = 20_000, (("tidelog-schema", b"12"),)
    settings = {"bootstrap.servers": "127.0.0.1:1", "message.max.bytes": limit, "log_level": 0}
    client = producer.Producer(settings, lambda error, number: None, lambda error: None)
    rows = messages("t", [b"x" * (limit - 160 + each) for each in range(160)])
    more = pa.array([[("é", "b" * 70)] if n % 2 else None for n in range(160)], MESSAGES[2].type)
    rows = rows.set_column(2, MESSAGES[2], more)
    chunk = MessageChunk("t", rows, common)
    found = [client.produce(chunk.slice(at, 1), at) for at in range(160)]
    refused = [error is not None for _, error in found]
    assert {error.code() for _, error in found if error} == {KafkaError.MSG_SIZE_TOO_LARGE}
    client.close()
    assert 0 < sum(refused) < 160
    assert _too_long(rows, common, limit).tolist() == refused
    assert _too_long(rows.slice(0, 0), common, limit).tolist() == []


def test_messages_of_others_do_not_end_the_reading_back(kafka: KafkaServer, topic: str) -> None:
    """A stretch that has none of ours tells nothing of what stands before it."""
    settings = {"bootstrap.servers": kafka.servers}
    client = Producer(settings)
    client.produce(topic, b"v", b"k", headers=[("tidelog-version", b"5")])
    for _ in range(1_500):
        client.produce(topic, b"v", b"other")
    assert client.flush(30) == 0
    tail = TopicTail(settings, committed=False)
    try:
        held = tail.already_written(topic, 0, exact=False)
    finally:
        tail.close()
    assert held.holds([b"k"], ranks_of(np.array([5]), [b"v"])).all()


@pytest.mark.parametrize("order", ["key", "none"])
def test_a_compacted_topic_wants_order(kafka: KafkaServer, tmp_path: Path, order: str) -> None:
    spark = MagicMock()
    spark.newSession.return_value = spark
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


def test_a_setting_that_is_none_is_refused_without_its_value(tmp_path: Path) -> None:
    spark = MagicMock()
    spark.newSession.return_value = spark
    spark.sparkContext.master, spark.sparkContext.defaultParallelism = "local[2]", 2
    delivery = Delivery("out", keyed=False, formatter=formatter("flat", topic="t"))
    state, log = SqliteState(f"sqlite:///{tmp_path / 'state.db'}"), BuiltLog(tmp_path / "log")
    settings = {"security.protocol": "s3cret"}
    output = KafkaOutput(spark, log.path, state, delivery, servers="127.0.0.1:1", settings=settings)
    try:
        with pytest.raises(OutputRefusedError, match=r"setting security\.protocol") as caught:
            output.check("generation")
        assert "s3cret" not in str(caught.value)
    finally:
        output.close()


@pytest.mark.parametrize("transactions", [False, True])
def test_a_setting_of_producers_alone_is_refused_without_its_value(transactions: bool) -> None:
    """The driver's clients do not get it."""
    with pytest.raises(OutputRefusedError, match=r"setting compression\.codec") as caught:
        bring(
            "127.0.0.1:1", messages("t", [b"1"]), keep_rejected=True, transactions=transactions,
            compression_type="s3cret",
        )  # fmt: skip
    trace = "".join(traceback.format_exception(caught.value))
    assert "s3cret" not in trace


def test_librdkafka_has_no_messages_of_a_writer_that_fails_to_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would send from memory that is free by then."""
    writer = KafkaWriter(
        {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, KafkaTopics(), transactions=False,
        exact=False, repeated=False, timeout_s=2, keep_rejected=True,
    )  # fmt: skip
    writer.open(TASK)
    assert not [*writer.write(TABLE, messages("t", [b"1"] * 5))]
    client = writer._sender._producer  # type: ignore[union-attr]
    assert len(client)
    tail = writer._reader()
    monkeypatch.setattr(tail, "close", MagicMock(side_effect=OSError))
    with pytest.raises(OSError):
        writer.close()
    assert not len(client)
    TopicTail.close(tail)


def test_a_lease_that_ends_before_a_task_opens_is_said_to_have_ended() -> None:
    writer = KafkaWriter(
        {"bootstrap.servers": "127.0.0.1:1"}, KafkaTopics(), transactions=False, exact=False,
        repeated=False, timeout_s=2, keep_rejected=True,
    )  # fmt: skip
    for looks in (0, 1):
        work = BatchWork(
            "log", "events", replace(TASK, fence=EndingLease(looks)), writer, None,
            JsonDeadLetters("letters"),
        )  # fmt: skip
        with pytest.raises(LeaseLostError):
            run_task(work, 0, iter(()))


@pytest.mark.parametrize("transactions", [False, True])
def test_nothing_is_handed_over_once_the_lease_has_ended(
    kafka: KafkaServer, topic: str, transactions: bool
) -> None:
    """A driver that was frozen wakes up, and its tasks with it."""
    rows = messages(topic, [b"x" * 100] * 5_000)
    with pytest.raises(LeaseLostError):
        bring(
            kafka.servers, rows, keep_rejected=True, transactions=transactions, fence=EndingLease(2)
        )
    versions = [each.version for each in read(topic, servers=kafka.servers)]
    assert len(versions) < 5_000
    assert versions == list(range(1, len(versions) + 1))
    assert not (transactions and versions)


def test_values_and_headers_of_a_slice_arrive_as_they_are(kafka: KafkaServer, topic: str) -> None:
    """Null and empty are two things, and a header without a value is none."""
    rows = messages(topic, [b"before", b"", b"x" * 2_000, b"3", b"after"])
    rows = rows.set_column(1, MESSAGES[1], pa.array([b"before", None, b"", b"x" * 2_000, b"after"]))
    own = [[("no", "1")], [("a", "1"), ("b", None), ("é", "")], None, [], [("c", "é" * 300)]]
    rows = rows.set_column(2, MESSAGES[2], pa.array(own, MESSAGES[2].type))
    assert bring(kafka.servers, rows.slice(1), keep_rejected=True) == []
    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = consumer.consume(4, 30)
    consumer.close()
    assert [each.value() for each in found] == [None, b"", b"x" * 2_000, b"after"]
    assert [each.key() for each in found] == [b'"a"'] * 4
    given = [each.headers() for each in found]
    assert [headers[0] for headers in given] == [
        ("tidelog-version", b"%d" % n) for n in range(2, 6)
    ]
    assert {headers[1] for headers in given} == {("tidelog-schema", b"0")}
    assert [headers[2:] for headers in given] == [
        [("a", b"1"), ("é", b"")], [], [], [("c", ("é" * 300).encode())],
    ]  # fmt: skip


def test_a_large_batch_arrives_as_it_is(kafka: KafkaServer, topic: str) -> None:
    """It is handed over in parts, each with its own values, nulls and headers."""
    count = 3_000
    rows = messages(topic, [b"%d" % n for n in range(count)])
    values = [None if n % 7 == 0 else b"%d" % n for n in range(count)]
    own = [[("n", str(n))] * (n % 3) if n % 5 == 0 else None for n in range(count)]
    rows = rows.set_column(1, MESSAGES[1], pa.array(values))
    rows = rows.set_column(2, MESSAGES[2], pa.array(own, MESSAGES[2].type))
    assert bring(kafka.servers, rows, keep_rejected=True) == []
    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Any] = []
    while len(found) < count and (more := consumer.consume(count, 30)):
        found += more
    consumer.close()
    assert [each.value() for each in found] == values
    given = [[(name, value.decode()) for name, value in each.headers()] for each in found]
    assert [headers[0][1] for headers in given] == [str(n + 1) for n in range(count)]
    assert [headers[2:] for headers in given] == [each or [] for each in own]
