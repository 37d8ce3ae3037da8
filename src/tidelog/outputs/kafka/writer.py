"""Writes messages of one task to Kafka, on executors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError

from tidelog.outputs.base.executors.rejections import StopAtRejection
from tidelog.outputs.base.executors.writer import Writer, is_retry
from tidelog.outputs.formatters.debezium import context_headers
from tidelog.outputs.formatters.messages import MESSAGES
from tidelog.outputs.kafka.client import SCHEMA_HEADER, topic_name
from tidelog.outputs.kafka.sender import Header, KafkaSender, MessageChunk, SentMessage, headers_of
from tidelog.outputs.kafka.topic_tail import AlreadyWritten, TopicTail, ranks_of
from tidelog.ports import Rejection, TargetTable, WriteTask

_DEFAULTS: dict[str, Any] = {
    "linger.ms": 20,
    "compression.type": "lz4",
    "partitioner": "murmur2_random",  # as Java's producers: the same key, the same partition
    "queue.buffering.max.messages": 200_000,
}
_QUEUE_KBYTES = 65_536
_BATCH_BYTES = 1_000_000
_MAX_BYTES = 1_000_000
# librdkafka's limits of message.max.bytes.
_LEAST_MAX_BYTES, _GREATEST_MAX_BYTES = 1_000, 1_000_000_000
_TRANSACTION_TIMEOUT_MS = 600_000
_REFUSED_BEFORE = "not in the topic, which has newer ones of its key: refused by an earlier attempt"
# Bytes that librdkafka adds before it compares with message.max.bytes: lengths, time and offset of
# a record as varints of the greatest size (RD_KAFKAP_MESSAGE_V2_MAX_OVERHEAD).
_RECORD_BYTES = 36


@dataclass(frozen=True)
class KafkaTopics:
    """The driver's knowledge about topics, by name.

    Attributes:
        max_message_bytes: the longest message that a topic accepts; 1,000,000 if unknown.
        ends: by topic and partition, the end before the batch's tasks began: messages of an earlier
            attempt are before it. A topic that is missing has no message of the batch. None:
            unknown, or tasks may have been retried without notice.
        schema_ids: ids of all versions of a table, by its name, where tables may share a topic.
    """

    compacted: frozenset[str] = frozenset()
    max_message_bytes: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[str, Mapping[int, int]] | None = None
    schema_ids: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def limit(self, topic: str) -> int:
        return self.max_message_bytes.get(topic, _MAX_BYTES)


@dataclass(frozen=True)
class AbsentKeys:
    """The keys that a dump of all rows of a table did not find: those of ``topic`` whose newest
    message has a value and a version ``below`` the dump's first.

    Attributes:
        version: version of their tombstones: the offset of the record that the dump is complete.
        schema_ids: schemas of the table, if other tables share the topic.
    """

    table: TargetTable
    topic: str
    below: int
    version: int
    schema_ids: frozenset[int] | None


class KafkaWriter(Writer):
    """Writes with one producer for each task.

    Args:
        settings: librdkafka's, with secrets: never printed.
        topics: what is known of the topics.
        transactions: whether readers of committed messages see all of the task's messages, or none.
        exact: whether messages were not written in order by key: each is identified by itself.
        repeated: whether an earlier attempt may have written parts of the batch.
        timeout_s: how long brokers may accept nothing.
        keep_rejected: whether a refused message becomes a rejection and the others continue. False:
            nothing newer is sent after it, or a later attempt would take it for written.
        context: whether messages have Debezium's headers of connector and task.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        topics: KafkaTopics,
        *,
        transactions: bool,
        exact: bool,
        repeated: bool,
        timeout_s: float,
        keep_rejected: bool,
        context: bool = False,
    ) -> None:
        self._settings = dict(settings)
        self._topics = topics
        self._transactions = transactions
        self._exact = exact
        self._repeated = repeated
        self._timeout_s = timeout_s
        self._keep_rejected = keep_rejected
        self._context = context

    def open(self, task: WriteTask) -> None:
        self._task = task
        self._tried_before = is_retry()
        self._sender: KafkaSender | None = None
        self._tail: TopicTail | None = None
        self._already_written: dict[str, AlreadyWritten] = {}
        self._rejected: list[Rejection] = []
        self._tables: dict[str, str] = {}  # topic → table, for rejections

    def write(self, table: TargetTable, rows: pa.RecordBatch) -> Iterable[Rejection]:
        sender = self._open_sender(table)
        self._common = self._common_headers(table)
        for wanted, messages in _by_topic(rows):
            topic = topic_name(wanted)
            self._tables[topic] = table.name
            if topic in self._topics.compacted and messages.column("key").null_count:
                self._write_compacted(sender, table, topic, messages)
            else:
                self._write(sender, topic, messages)
        return self._rejections()

    def commit(self) -> Iterable[Rejection]:
        sender = self._sender
        if sender is None:
            return ()
        sender.flush()
        if self._transactions:
            sender.commit()
        return self._rejections()

    def close(self) -> None:
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.close()
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()

    def _common_headers(self, table: TargetTable) -> tuple[Header, ...]:
        schema = (SCHEMA_HEADER, str(table.schema.schema_id).encode())
        return (schema, *context_headers(table.origin)) if self._context else (schema,)

    # ------------------------------------------------------------------ one batch

    def _write(self, sender: KafkaSender, topic: str, messages: pa.RecordBatch) -> None:
        too_long = _too_long(messages, self._common, self._topics.limit(topic))
        if self._may_have_parts(topic):
            keys, values = messages.column("key").to_pylist(), messages.column("value").to_pylist()
            ranks = ranks_of(messages.column("version").to_numpy(), values)
            written = self._already_written_in(topic)
            # The topic never accepts messages that are too long, so it does not have them: report
            # them again.
            keep = ~written.holds(keys, ranks) | too_long
            for at in np.flatnonzero(written.is_missing(keys, ranks) & ~keep).tolist():
                self._reject(topic, messages.column("version")[at].as_py(), _REFUSED_BEFORE)
            if not keep.all():
                messages, too_long = messages.filter(pa.array(keep)), too_long[keep]
        start = 0
        for at in [*np.flatnonzero(too_long).tolist(), messages.num_rows]:
            if at > start:
                part = messages.slice(start, at - start)
                sender.send(MessageChunk(topic, part, self._common))
            if at < messages.num_rows:
                version = messages.column("version")[at].as_py()
                self._reject(topic, version, "MSG_SIZE_TOO_LARGE")
            start = at + 1

    def _write_compacted(
        self, sender: KafkaSender, table: TargetTable, topic: str, messages: pa.RecordBatch
    ) -> None:
        """A compacted topic accepts no message without a key: a truncate becomes a tombstone of
        each of the table's keys in the topic.
        """
        schema_ids = self._topics.schema_ids.get(str(table.source))
        without = np.flatnonzero(messages.column("key").is_null().to_numpy(zero_copy_only=False))
        start = 0
        for at in [*without.tolist(), messages.num_rows]:
            if at > start:
                self._write(sender, topic, messages.slice(start, at - start))
            if at < messages.num_rows:
                sender.flush()
                version = messages.column("version")[at].as_py()
                keys = self._reader().live_keys(topic, schema_ids)
                self._write(sender, topic, _tombstones(topic, keys, version))
            start = at + 1

    def remove_absent(self, task: WriteTask, absent: AbsentKeys) -> None:
        """Run a whole task: write tombstones of keys that a dump of all rows did not find. Keys
        that have theirs are not live, so it may be repeated.
        """
        self.open(task)
        try:
            topic = absent.topic
            keys = self._reader().keys_below(topic, absent.below, absent.schema_ids)
            if keys:
                task.check_lease()
                sender = self._open_sender(absent.table)
                self._common = self._common_headers(absent.table)
                self._tables[topic] = absent.table.name
                self._write(sender, topic, _tombstones(topic, keys, absent.version))
                task.check_lease()
                self.commit()
        finally:
            self.close()

    # ------------------------------------------------------------------ connections

    def _open_sender(self, table: TargetTable) -> KafkaSender:
        if self._sender is not None:
            return self._sender
        limits = [_MAX_BYTES, *self._topics.max_message_bytes.values()]
        longest = min(max(*limits, _LEAST_MAX_BYTES), _GREATEST_MAX_BYTES)
        settings = _DEFAULTS | {"queue.buffering.max.kbytes": _QUEUE_KBYTES} | self._settings
        room = max(int(settings["queue.buffering.max.kbytes"]), longest // 512)
        batch = min(*limits, int(settings.get("batch.size", _BATCH_BYTES)))
        settings |= {
            "enable.idempotence": True,
            "acks": "all",
            # That of the topic with the longest messages; the limits of others are checked before.
            # A batch is as long as all topics accept one.
            "message.max.bytes": longest,
            "batch.size": batch,
            "queue.buffering.max.kbytes": room,
        }
        if self._transactions:
            settings["transactional.id"] = transactional_id(
                self._task.generation, self._task.output, str(table.source), self._task.number
            )
            settings["transaction.timeout.ms"] = _TRANSACTION_TIMEOUT_MS
        self._sender = KafkaSender(
            settings, self._timeout_s, self._refused, self._in_topic, self._task.check_lease
        )
        return self._sender

    def _reader(self) -> TopicTail:
        if self._tail is None:
            self._tail = TopicTail(self._settings, committed=self._transactions)
        return self._tail

    def _may_have_parts(self, topic: str) -> bool:
        """May the topic have a part of the batch?"""
        ends = self._topics.ends
        return self._tried_before or (self._repeated and (ends is None or topic in ends))

    def _already_written_in(self, topic: str) -> AlreadyWritten:
        found = self._already_written.get(topic)
        if found is None:
            # Without messages that other tasks of this very attempt are writing there.
            ends = None if self._tried_before else (self._topics.ends or {}).get(topic)
            # If a message was refused and newer ones of its key were not, the rejection may be lost
            # with the attempt that reported it.
            each = self._keep_rejected and topic not in self._topics.compacted
            found = self._reader().already_written(
                topic, self._task.start, exact=self._exact, ends=ends, each=each
            )
            self._already_written[topic] = found
        return found

    def _in_topic(self, messages: Sequence[SentMessage]) -> list[bool]:
        """Returns which of these messages, of this task and of unknown result, the topics
        have now.
        """
        found = np.zeros(len(messages), np.bool_)
        for topic in {each.topic for each in messages}:
            written = self._reader().already_written(topic, self._task.start, exact=self._exact)
            at = [number for number, each in enumerate(messages) if each.topic == topic]
            ranks = ranks_of([messages[n].version for n in at], [messages[n].value for n in at])
            found[at] = written.holds([messages[n].key for n in at], ranks)
        return found.tolist()

    # ------------------------------------------------------------------ what is refused

    def _refused(self, message: SentMessage, error: KafkaError) -> None:
        self._reject(message.topic, message.version, error.name())

    def _reject(self, topic: str, version: int, why: str) -> None:
        rejection = Rejection(self._tables.get(topic, topic), version, f"kafka: {why}")
        if not self._keep_rejected:
            StopAtRejection().put(self._task, [rejection])
        self._rejected.append(rejection)

    def _rejections(self) -> list[Rejection]:
        found, self._rejected = self._rejected, []
        return found


def transactional_id(generation: str, output: str, table: str, number: int) -> str:
    """Returns the id for task ``number``, whose first table is ``table``: no two tasks of a batch
    have the same.
    """
    return f"tidelog/{generation}/{output}/{table}/{number}"


def _tombstones(topic: str, keys: Sequence[bytes], version: int) -> pa.RecordBatch:
    n = len(keys)
    columns = [
        pa.array(keys, pa.binary()),
        pa.nulls(n, pa.binary()),
        pa.nulls(n, MESSAGES.field("headers").type),
        pa.repeat(pa.scalar(topic), n),
        pa.repeat(pa.scalar(version), n),
    ]
    return pa.RecordBatch.from_arrays(
        columns, names=["key", "value", "headers", "topic", "version"]
    )


def _too_long(
    messages: pa.RecordBatch, common: tuple[Header, ...], limit: int
) -> npt.NDArray[np.bool_]:
    """Returns bool[n]: which of these messages librdkafka refuses with this
    ``message.max.bytes``.
    """
    sizes = np.full(messages.num_rows, _RECORD_BYTES, np.int64)
    for name in ("key", "value"):
        lengths = pc.fill_null(pc.binary_length(messages.column(name)), 0)
        sizes += lengths.to_numpy(zero_copy_only=False)
    # Few are long enough that their headers matter.
    near = np.flatnonzero(sizes > limit // 2)
    for at, headers in zip(near, headers_of(messages.take(pa.array(near)), common), strict=True):
        sizes[at] += sum(
            _counted_bytes(name.encode()) + _counted_bytes(value or b"") for name, value in headers
        )
    return sizes > limit


def _counted_bytes(text: str | bytes) -> int:
    """Returns the bytes of a text and of its length before it, a signed varint: six bits, then
    seven per byte.
    """
    return len(text) + (len(text).bit_length() + 7) // 7


def _by_topic(messages: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
    """Split messages by topic, each in order. Usually all have one topic."""
    topics = pc.unique(messages.column("topic")).to_pylist()
    if len(topics) == 1:
        return [(topics[0], messages)]
    topic_column = messages.column("topic")
    return [(topic, messages.filter(pc.equal(topic_column, topic))) for topic in topics]
