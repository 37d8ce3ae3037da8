"""Writes messages of one task to Kafka, on executors, in order by key whatever brokers refuse.

A broker refuses by batches, does not report which message is at fault, and reports it when newer
ones have been sent. So a producer ends at its first refusal (gapless: no later message of a
partition is sent), the batch is sent again one message at a time, then the rest as before.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException

from tidelog.errors import OutputError, OutputRefusedError
from tidelog.model.records import Bools, Int64s
from tidelog.outputs.base.writer import StopAtRejection, Writer, is_retry
from tidelog.outputs.formatters.json_formats import context_headers
from tidelog.outputs.formatters.messages import MESSAGES
from tidelog.outputs.kafka.client import SCHEMA_HEADER, VERSION_HEADER, failed, topic_name
from tidelog.outputs.kafka.producer import Header, IdleProducers, MessageChunk, Producer
from tidelog.outputs.kafka.topic_tail import AlreadyWritten, TopicTail, ranks_of
from tidelog.ports import Rejection, TargetTable, WriteTask

# Sends messages.

# Errors for messages that a broker will never accept.
_POISON = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD,
)
# From this number of rows and bytes since the last flush, one can be sent again.
_SENT_ROWS, _SENT_BYTES = 400_000, 128 << 20
_POLL_S = 0.002  # brokers' good answers end no poll
_CHECK_ROWS = 1024  # a check costs as much as sending some ten messages
_CHECK_S = 0.02
_DROPPED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
_SUSPECT = (*_POISON, KafkaError._INVALID_DIFFERENT_RECORD)

_idle_producers = IdleProducers()


def close_idle_producers() -> None:
    """Close the producers that are kept for the next tasks."""
    _idle_producers.close()


class KafkaSender:
    """Sends messages, with a new producer after each refusal. `close` it.

    Args:
        settings: the producers' settings, except those for delivery reports.
        timeout_s: how long brokers may accept nothing.
        on_refused: called with a message that brokers never accept, and the reason; may raise.
        find_written: returns bool[n] of each chunk, all of unknown result: which messages the
            topics have.
        check_lease: raises LeaseLostError if nothing more may be sent. Messages that librdkafka has
            by then are still sent by its threads: a producer without transactions can't be fenced.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        timeout_s: float,
        on_refused: Callable[[MessageChunk, KafkaError], None],
        find_written: Callable[[Sequence[MessageChunk]], Sequence[Bools]],
        check_lease: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._transactional = "transactional.id" in settings
        self._on_refused = on_refused
        self._find_written = find_written
        self._check_lease = check_lease
        self._check_at = 0.0
        self._undelivered: list[tuple[KafkaError, int]] = []  # and the message's number
        # Numbers of first messages, and the messages, in order: those that may not be delivered.
        self._sent: list[tuple[int, MessageChunk]] = []
        self._sent_rows, self._sent_bytes = 0, 0
        self._number = 0  # of the next message
        self._pending: deque[MessageChunk] = deque()
        self._last_error: KafkaError | None = None
        self._flushed = False  # brokers have all messages
        self._producer = self._new_producer()

    def send(self, chunk: MessageChunk) -> None:
        if not len(self._producer):
            self._clear_sent()
        elif self._sent_rows > _SENT_ROWS or self._sent_bytes > _SENT_BYTES:
            self.flush()
        self._flushed = False
        for start in range(0, len(chunk), _CHECK_ROWS):
            self._check_lease()
            self._pending.append(chunk.slice(start, _CHECK_ROWS))
            self._send_pending()
        self._producer.poll(0)
        if self._settle():
            self._send_pending()

    def flush(self) -> None:
        """Return when brokers have all messages."""
        left, since = len(self._producer), time.monotonic()
        while left:
            self._poll_lease()
            self._producer.poll(_POLL_S)
            now_left = len(self._producer)
            if self._settle():
                self._send_pending()
                left, since = len(self._producer), time.monotonic()
            elif now_left < left:
                left, since = now_left, time.monotonic()
            elif time.monotonic() > since + self._timeout_s:
                raise self._timeout_error(left)
        self._clear_sent()
        self._flushed = not (self._pending or self._undelivered)

    def commit(self) -> None:
        """Commit the transaction, after `flush`."""
        try:
            self._producer.commit_transaction(self._timeout_s)
        except KafkaException as error:
            raise failed("the transaction could not be committed", error) from None

    def close(self) -> None:
        if self._flushed and not self._transactional:
            _idle_producers.keep(self._producer_settings, self._producer)
        else:
            # After an error waiting messages must not be sent. Those in flight may arrive.
            self._producer.close()

    # ------------------------------------------------------------------ what was not delivered

    @property
    def _producer_settings(self) -> dict[str, Any]:
        # Messages never time out by themselves: in a gap later ones would overtake.
        return {**self._settings, "delivery.timeout.ms": 0, "enable.gapless.guarantee": True}

    def _new_producer(self, **how: Any) -> Producer:
        settings = self._producer_settings | how
        if not self._transactional and (idle := _idle_producers.take(settings)) is not None:
            idle.on_failed, idle.on_error = self._on_undelivered, self._on_error
            return idle
        try:
            producer = Producer(settings, self._on_undelivered, self._on_error)
        except KafkaException as error:
            raise failed("no producer can be created", error) from None
        if self._transactional:
            try:
                producer.begin_transaction(self._timeout_s)
            except KafkaException as error:
                producer.close()
                raise failed("a transaction could not be started", error) from None
        return producer

    def _send_pending(self) -> None:
        """Send the pending messages. No room for long is an error."""
        since = time.monotonic()
        while self._pending:
            self._poll_lease()
            first = self._pending.popleft()
            taken, error = self._producer.produce(first, self._number)
            if taken:
                self._record_sent(first.slice(0, taken))
                since = time.monotonic()
            if error is not None:
                self._pending.appendleft(first.slice(taken))
                self._not_taken(error, since)
            if self._settle():
                since = time.monotonic()

    def _not_taken(self, error: KafkaError, since: float) -> None:
        """Handle the error of the first pending message, of which none was taken ``since``."""
        if error.code() == KafkaError._QUEUE_FULL:
            if time.monotonic() > since + self._timeout_s:
                raise self._timeout_error(len(self._producer))
            self._producer.poll(0.05)
        elif error.code() in _POISON:
            first = self._pending.popleft()
            self._on_refused(first.slice(0, 1), error)
            if len(first) > 1:
                self._pending.appendleft(first.slice(1))
        else:
            self._drain()
            if not self._undelivered:
                raise failed(f"topic {self._pending[0].topic} takes no messages", error)

    def _settle(self) -> bool:
        """Return True if a message was not delivered: then those at fault are reported, and the
        others are pending again.
        """
        if not self._undelivered:
            return False
        self._drain()
        found, self._undelivered = self._undelivered, []
        refused = [number for error, number in found if error.code() in _SUSPECT]
        if not refused:
            raise failed("a message was not accepted", self._root_error(found))
        sent = self._sent
        self._clear_sent()
        at_fault = [np.isin(np.arange(low, low + len(chunk)), refused) for low, chunk in sent]
        alone, rest = (
            [part for (_, chunk), those in zip(sent, at_fault, strict=True)
             if len(part := chunk.filter(those == wanted))]
            for wanted in (True, False)
        )  # fmt: skip
        if self._transactional:
            self._raise_aborted(found[0][0], alone)
        self._send_alone(alone)
        written = zip(rest, self._find_written(rest), strict=True)
        self._pending.extendleft(
            part for chunk, there in reversed([*written]) if len(part := chunk.filter(~there))
        )
        self._producer.close()
        self._producer = self._new_producer()
        return True

    def _root_error(self, found: Sequence[tuple[KafkaError, int]]) -> KafkaError:
        """Return the first error that says more than that a message was dropped. Only a commit
        reports why a transaction has failed; librdkafka commits none with an undelivered message.
        """
        said = [error for error, _ in found if error.code() not in _DROPPED]
        if not said and self._transactional:
            try:
                self._producer.commit_transaction(self._timeout_s)
            except KafkaException as error:
                said = [error.args[0]]
        return next(iter(said), found[0][0])

    def _record_sent(self, chunk: MessageChunk) -> None:
        self._sent.append((self._number, chunk))
        self._number += len(chunk)
        self._sent_rows += len(chunk)
        self._sent_bytes += chunk.messages.nbytes

    def _clear_sent(self) -> None:
        """Forget the sent messages: brokers have all of them."""
        self._sent, self._sent_rows, self._sent_bytes = [], 0, 0

    def _poll_lease(self) -> None:
        """Check the lease, in short loops. On an error the caller closes, and waiting messages are
        dropped.
        """
        now = time.monotonic()
        if now >= self._check_at:
            self._check_at = now + _CHECK_S
            self._check_lease()

    def _drain(self) -> None:
        """Wait until all results are known: waiting messages are not sent, those in flight are
        answered. But not those of a transaction, which is aborted: some never are.
        """
        self._producer.purge(in_flight=self._transactional)
        self._wait_for(self._producer)

    def _wait_for(self, producer: Producer) -> None:
        until = time.monotonic() + self._timeout_s
        while len(producer):
            producer.poll(_POLL_S)
            if time.monotonic() > until:
                raise self._timeout_error(len(producer))

    def _send_alone(self, suspects: Sequence[MessageChunk]) -> None:
        producer = self._new_producer(**{"linger.ms": 0, "enable.gapless.guarantee": False})
        try:
            for chunk in suspects:
                for at in range(len(chunk)):
                    self._poll_lease()
                    each = chunk.slice(at, 1)
                    _, error = producer.produce(each, 0)
                    self._wait_for(producer)
                    if error is None and self._undelivered:
                        error = self._undelivered.pop()[0]
                    if error is not None and error.code() not in _POISON:
                        raise failed("a message was not accepted", error)
                    if error is not None:
                        self._on_refused(each, error)
        finally:
            producer.close()

    def _raise_aborted(self, error: KafkaError, suspects: Sequence[MessageChunk]) -> None:
        """A refusal aborts the transaction, with all of its messages."""
        first, last = suspects[0], suspects[-1].messages.column("version")[-1].as_py()
        raise OutputRefusedError(
            f"kafka: topic {first.topic} refuses a message of versions {first.version} to "
            f"{last}: {error.name()}. Fix the topic, or remove `transactions`: without "
            "them it goes to the output's dead_letter and the others continue"
        )

    def _on_undelivered(self, error: KafkaError, number: int) -> None:
        self._undelivered.append((error, number))

    def _on_error(self, error: KafkaError) -> None:
        """Called with the reason why there is no connection."""
        self._last_error = error

    def _timeout_error(self, count: int) -> OutputError:
        what = f"{count} messages were not accepted in {self._timeout_s:.0f} s"
        return (
            OutputError(f"kafka: {what}")
            if self._last_error is None
            else failed(what, self._last_error)
        )


# The writer.

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
        # First: librdkafka sends from the messages' memory until its producer is closed.
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.close()

    def _common_headers(self, table: TargetTable) -> tuple[Header, ...]:
        schema = (SCHEMA_HEADER, str(table.schema.schema_id).encode())
        return (schema, *context_headers(table.origin)) if self._context else (schema,)

    # ------------------------------------------------------------------ one batch

    def _write(self, sender: KafkaSender, topic: str, messages: pa.RecordBatch) -> None:
        too_long = _too_long(messages, self._common, self._topics.limit(topic))
        written = self._already_written_in(topic) if self._may_have_parts(topic) else None
        if written is not None and len(written.hashes):
            keys, ranks = _keys_and_ranks(messages)
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

    def _in_topic(self, chunks: Sequence[MessageChunk]) -> list[Bools]:
        """Return which of these messages, of this task and of unknown result, the topics
        have now.
        """
        written = {
            topic: self._reader().already_written(topic, self._task.start, exact=self._exact)
            for topic in {chunk.topic for chunk in chunks}
        }
        return [written[chunk.topic].holds(*_keys_and_ranks(chunk.messages)) for chunk in chunks]

    # ------------------------------------------------------------------ what is refused

    def _refused(self, message: MessageChunk, error: KafkaError) -> None:
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
    """Return the id for task ``number``, whose first table is ``table``: no two tasks of a batch
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


def _keys_and_ranks(messages: pa.RecordBatch) -> tuple[list[bytes | None], Int64s]:
    keys, values = (messages.column(name).to_pylist() for name in ("key", "value"))
    return keys, ranks_of(messages.column("version").to_numpy(), values)


def _too_long(messages: pa.RecordBatch, common: tuple[Header, ...], limit: int) -> Bools:
    """Return bool[n]: which of these messages librdkafka refuses with this
    ``message.max.bytes``.
    """
    sizes = np.full(messages.num_rows, _RECORD_BYTES, np.int64)
    for name in ("key", "value"):
        lengths = pc.fill_null(pc.binary_length(messages.column(name)), 0)
        sizes += lengths.to_numpy(zero_copy_only=False)
    # Few are long enough that their headers matter.
    for at in np.flatnonzero(sizes > limit // 2).tolist():
        own = messages.column("headers")[at].as_py() or ()
        version = str(messages.column("version")[at].as_py()).encode()
        encoded = ((name, value.encode()) for name, value in own if value is not None)
        for name, value in ((VERSION_HEADER, version), *common, *encoded):
            sizes[at] += _counted_bytes(name.encode()) + _counted_bytes(value)
    found: Bools = sizes > limit
    return found


def _counted_bytes(text: str | bytes) -> int:
    """Return the bytes of a text and of its length, a signed varint: 6 bits, then 7 a byte."""
    return len(text) + (len(text).bit_length() + 7) // 7


def _by_topic(messages: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
    """Split messages by topic, each in order. Usually all have one topic."""
    topics = pc.unique(messages.column("topic")).to_pylist()
    if len(topics) == 1:
        return [(topics[0], messages)]
    topic_column = messages.column("topic")
    return [(topic, messages.filter(pc.equal(topic_column, topic))) for topic in topics]
