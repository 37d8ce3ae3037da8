"""Writes messages of one task to Kafka; runs on executors."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidelog.errors import OutputError
from tidelog.outputs.dead_letters import StopAtRejection
from tidelog.outputs.kafka_client import (
    SCHEMA_HEADER,
    VERSION_HEADER,
    failed,
    librdkafka_log,
    topic_name,
)
from tidelog.outputs.kafka_tail import Present, Tail, ranks_of
from tidelog.outputs.writer import Writer
from tidelog.ports import Rejection, TargetTable, WriteTask

# A broker that says these will never take the message.
_POISON = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD,
)
_DEFAULTS: dict[str, Any] = {
    "linger.ms": 20,
    "compression.type": "lz4",
    "partitioner": "murmur2_random",  # as Java's producers: the same key, the same partition
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 65_536,
}
_TRANSACTION_TIMEOUT_MS = 600_000
# What librdkafka adds before it compares with message.max.bytes: lengths, time and offset of a
# record as varints of the greatest size (RD_KAFKAP_MESSAGE_V2_MAX_OVERHEAD).
_RECORD_BYTES = 36


@dataclass(frozen=True)
class KafkaTopics:
    """What the driver found out about topics, by name.

    Attributes:
        ends: by topic and partition, where it ended before the batch's tasks began: what an earlier
            try left stands before. None: unknown, or tasks may have been tried without a trace.
    """

    compacted: frozenset[str] = frozenset()
    max_message_bytes: int = 1_000_000
    ends: Mapping[str, Mapping[int, int]] | None = None


@dataclass
class _Failed:
    errors: list[KafkaError] = field(default_factory=list)
    letters: list[Rejection] = field(default_factory=list)


class KafkaWriter(Writer):
    """One producer for each task.

    Args:
        settings: librdkafka's, with secrets: never printed.
        topics: what is known of the topics.
        transactions: of the task's messages all are seen by readers of committed ones, or none.
        exact: messages were not written in order by key: tell them apart one by one.
        reread: parts of the batch may be there already, of a try before.
        timeout_s: how long brokers may take for what was handed over.
        keep_rejected: what is refused becomes a letter and the others go on. False: nothing newer
            goes after it, behind which a later try would take it for written.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        topics: KafkaTopics,
        *,
        transactions: bool,
        exact: bool,
        reread: bool,
        timeout_s: float,
        keep_rejected: bool,
    ) -> None:
        self._settings = dict(settings)
        self._topics = topics
        self._transactions = transactions
        self._exact = exact
        self._reread = reread
        self._timeout_s = timeout_s
        self._keep_rejected = keep_rejected

    def open(self, task: WriteTask) -> None:
        self._task = task
        self._again = self._reread or _tried_before()
        self._producer: Producer | None = None
        self._tail: Tail | None = None
        self._present: dict[str, Present] = {}
        self._failed = _Failed()
        self._tables: dict[str, str] = {}  # topic → table, for letters

    def write(self, table: TargetTable, rows: pa.RecordBatch) -> Iterable[Rejection]:
        producer = self._connected(table)
        self._schema = (SCHEMA_HEADER, str(table.schema.schema_id).encode())
        for wanted, messages in _by_topic(rows):
            topic = topic_name(wanted)
            self._tables[topic] = table.name
            if topic in self._topics.compacted and messages.column("key").null_count:
                self._write_compacted(producer, topic, messages)
            else:
                self._write(producer, topic, messages)
        return self._letters()

    def commit(self) -> Iterable[Rejection]:
        producer = self._producer
        if producer is None:
            return ()
        self._flush(producer)
        if self._transactions:
            try:
                producer.commit_transaction(self._timeout_s)
            except KafkaException as error:
                raise failed("the transaction could not be committed", error) from None
        return self._letters()

    def close(self) -> None:
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.close()
        producer, self._producer = self._producer, None
        if producer is None:
            return
        if len(producer):
            # After an error: what waits must not be sent any more. What is under way may arrive.
            producer.purge(in_queue=True, in_flight=True, blocking=True)
            producer.flush(1)

    # ------------------------------------------------------------------ one batch

    def _write(self, producer: Producer, topic: str, messages: pa.RecordBatch) -> None:
        keys, values = messages.column("key").to_pylist(), messages.column("value").to_pylist()
        versions = messages.column("version")
        if self._again:
            ranks = ranks_of(versions.to_numpy(), values)
            keep = ~self._held(topic).holds(keys, ranks)
            # The topic never takes these, so it does not hold them: to be refused and told again.
            keep |= _too_long(messages, self._schema, self._topics.max_message_bytes)
            if not keep.all():
                if keep.any():
                    self._write_all(producer, topic, messages.filter(pa.array(keep)))
                return
        self._write_all(producer, topic, messages, keys, values)

    def _write_all(
        self,
        producer: Producer,
        topic: str,
        messages: pa.RecordBatch,
        keys: Sequence[bytes | None] | None = None,
        values: Sequence[bytes | None] | None = None,
    ) -> None:
        keys = messages.column("key").to_pylist() if keys is None else keys
        values = messages.column("value").to_pylist() if values is None else values
        headers = _headers(messages, self._schema)
        produce, poll = producer.produce, producer.poll
        for key, value, header in zip(keys, values, headers, strict=True):
            while True:
                try:
                    produce(topic, value, key, headers=header)
                    break
                except BufferError:
                    poll(0.05)
                    self._raise_errors()
                except KafkaException as error:
                    self._refused(error.args[0], topic, header)
                    self._raise_errors()
                    break
        poll(0)
        self._raise_errors()

    def _write_compacted(self, producer: Producer, topic: str, messages: pa.RecordBatch) -> None:
        """A compacted topic takes no message without a key: a truncate becomes a tombstone of each
        key that is there.
        """
        without = np.flatnonzero(messages.column("key").is_null().to_numpy(zero_copy_only=False))
        start = 0
        for at in [*without.tolist(), messages.num_rows]:
            if at > start:
                self._write(producer, topic, messages.slice(start, at - start))
            if at < messages.num_rows:
                self._flush(producer)
                version = messages.column("version")[at].as_py()
                keys = self._reader().live_keys(topic)
                tombstones = {
                    "key": pa.array(keys, pa.binary()),
                    "value": pa.nulls(len(keys), pa.binary()),
                    "headers": pa.nulls(len(keys), messages.column("headers").type),
                    "topic": pa.repeat(pa.scalar(topic), len(keys)),
                    "version": pa.repeat(pa.scalar(version), len(keys)),
                }
                self._write(producer, topic, pa.RecordBatch.from_pydict(tombstones))
            start = at + 1

    # ------------------------------------------------------------------ connections

    def _connected(self, table: TargetTable) -> Producer:
        if self._producer is not None:
            return self._producer
        settings = _DEFAULTS | self._settings
        settings |= {
            "enable.idempotence": True,
            "acks": "all",
            # Messages never give up by themselves: a gap would let later ones overtake.
            "delivery.timeout.ms": 0,
            "delivery.report.only.error": True,
            "message.max.bytes": self._topics.max_message_bytes,
            "on_delivery": self._delivered,
        }
        if self._transactions:
            settings["transactional.id"] = transactional_id(
                self._task.generation, self._task.output, str(table.source), self._task.number
            )
            settings["transaction.timeout.ms"] = _TRANSACTION_TIMEOUT_MS
        self._producer = producer = Producer(settings, logger=librdkafka_log)
        if self._transactions:
            try:
                producer.init_transactions(self._timeout_s)
                producer.begin_transaction()
            except KafkaException as error:
                raise failed("a transaction could not be begun", error) from None
        return producer

    def _reader(self) -> Tail:
        if self._tail is None:
            self._tail = Tail(self._settings, committed=self._transactions)
        return self._tail

    def _held(self, topic: str) -> Present:
        found = self._present.get(topic)
        if found is None:
            # Not what other tasks of this very try are writing there.
            ends = None if _tried_before() else (self._topics.ends or {}).get(topic)
            found = self._reader().present(topic, self._task.start, exact=self._exact, ends=ends)
            self._present[topic] = found
        return found

    def _flush(self, producer: Producer) -> None:
        deadline = time.monotonic() + self._timeout_s
        while producer.flush(0.5):
            self._raise_errors()
            if time.monotonic() > deadline:
                raise OutputError(
                    f"kafka: {len(producer)} messages were not taken in {self._timeout_s:.0f} s"
                )
        self._raise_errors()

    # ------------------------------------------------------------------ what failed

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        """Called for messages that brokers refuse, never for the others."""
        if error is None:
            return
        if error.code() in _POISON:
            self._refused(error, message.topic() or "", message.headers() or ())
        else:
            self._failed.errors.append(error)

    def _refused(self, error: KafkaError, topic: str, headers: Any) -> None:
        if error.code() not in _POISON:
            raise failed(f"topic {topic} takes no messages", error)
        version = next(int(value) for name, value in headers if name == VERSION_HEADER)
        letter = Rejection(self._tables.get(topic, topic), version, f"kafka: {error.name()}")
        self._failed.letters.append(letter)

    def _raise_errors(self) -> None:
        if self._failed.letters and not self._keep_rejected:
            StopAtRejection().put(self._task, self._failed.letters)
        if self._failed.errors:
            raise failed("a message was not taken", self._failed.errors[0])

    def _letters(self) -> list[Rejection]:
        found, self._failed.letters = self._failed.letters, []
        return found


def transactional_id(generation: str, output: str, table: str, number: int) -> str:
    """Of task ``number``, whose first table is ``table``: no two tasks of a batch have the same."""
    return f"tidelog/{generation}/{output}/{table}/{number}"


_Header = tuple[str, str | bytes | None]


def _headers(messages: pa.RecordBatch, schema: _Header) -> Iterator[list[_Header]]:
    """Each message's headers, made as they are needed: many lists at once are work for Python's
    garbage collector.
    """
    versions = messages.column("version").cast(pa.string()).cast(pa.binary()).to_pylist()
    given = messages.column("headers")
    if given.null_count == len(given):
        return ([(VERSION_HEADER, version), schema] for version in versions)
    return (
        [
            (VERSION_HEADER, version),
            schema,
            *((name, value.encode()) for name, value in more or () if value is not None),
        ]
        for version, more in zip(versions, given.to_pylist(), strict=True)
    )


def _too_long(messages: pa.RecordBatch, schema: _Header, limit: int) -> npt.NDArray[np.bool_]:
    """bool[n]: which of these messages librdkafka refuses with this ``message.max.bytes``."""
    sizes = np.full(messages.num_rows, _RECORD_BYTES, np.int64)
    for name in ("key", "value"):
        lengths = pc.fill_null(pc.binary_length(messages.column(name)), 0)
        sizes += lengths.to_numpy(zero_copy_only=False)
    # Few are so long that their headers matter.
    near = np.flatnonzero(sizes > limit // 2)
    for at, headers in zip(near, _headers(messages.take(pa.array(near)), schema), strict=True):
        sizes[at] += sum(
            _counted_bytes(name.encode()) + _counted_bytes(value or b"") for name, value in headers
        )
    return sizes > limit


def _counted_bytes(text: str | bytes) -> int:
    """Of a text and, before it, its length as a varint with sign: six bits, then seven a byte."""
    return len(text) + (len(text).bit_length() + 7) // 7


def _by_topic(messages: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
    """Usually all of one; else a topic after the other, each in order."""
    topics = pc.unique(messages.column("topic")).to_pylist()
    if len(topics) == 1:
        return [(topics[0], messages)]
    of = messages.column("topic")
    return [(topic, messages.filter(pc.equal(of, topic))) for topic in topics]


def _tried_before() -> bool:
    """Is this a retry or a duplicate of a task by Spark?"""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0
