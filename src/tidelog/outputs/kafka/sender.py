"""Sends one task's messages to brokers, in order by key whatever they refuse; runs on executors.

A broker refuses by batches, does not report which message is at fault, and reports it when newer
ones have been sent. So a producer ends at its first refusal (gapless: no later message of a
partition is sent), the batch is sent again one message at a time, then the rest as before.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidelog.errors import OutputError, OutputRefusedError
from tidelog.outputs.kafka.client import VERSION_HEADER, failed, librdkafka_log

Header = tuple[str, str | bytes | None]

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


@dataclass(frozen=True)
class SentMessage:
    """A message that was given to the producer."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]

    @property
    def version(self) -> int:
        return next(int(value or 0) for name, value in self.headers if name == VERSION_HEADER)


@dataclass(frozen=True)
class MessageChunk:
    """Messages of `tidelog.outputs.formatters.messages` for a topic; ``common``: headers of all."""

    topic: str
    messages: pa.RecordBatch
    common: tuple[Header, ...]

    def each(self) -> Iterator[SentMessage]:
        columns = [self.messages.column(name).to_pylist() for name in ("key", "value")]
        for key, value, header in zip(
            *columns, headers_of(self.messages, self.common), strict=True
        ):
            yield SentMessage(self.topic, key, value, header)


class KafkaSender:
    """Sends messages, with a new producer after each refusal. `close` it.

    Args:
        settings: the producers' settings, except those for delivery reports.
        timeout_s: how long brokers may accept nothing.
    on_refused: called with a message that brokers never accept, and the reason; may raise.
    find_written: returns which of the messages, of unknown result, the topics have.
        check_lease: raises LeaseLostError if nothing more may be sent. Messages that librdkafka has
            by then are still sent by its threads: a producer without transactions can't be fenced.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        timeout_s: float,
        on_refused: Callable[[SentMessage, KafkaError], None],
        find_written: Callable[[Sequence[SentMessage]], Sequence[bool]],
        check_lease: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._transactional = "transactional.id" in settings
        self._on_refused = on_refused
        self._find_written = find_written
        self._check_lease = check_lease
        self._check_at = 0.0
        self._undelivered: list[tuple[KafkaError, tuple[str, bytes | None, bytes | None]]] = []
        self._sent: list[MessageChunk | SentMessage] = []  # in order, without delivered ones
        self._sent_rows, self._sent_bytes = 0, 0
        self._pending: deque[SentMessage] = deque()  # before all later messages
        self._last_error: KafkaError | None = None
        self._producer = self._new_producer()

    def send(self, chunk: MessageChunk) -> None:
        if not len(self._producer):
            self._clear_sent()
        elif self._sent_rows > _SENT_ROWS or self._sent_bytes > _SENT_BYTES:
            self.flush()
        produce, topic, messages = self._producer.produce, chunk.topic, chunk.messages
        keys, values = (messages.column(name).to_pylist() for name in ("key", "value"))
        headers = headers_of(messages, chunk.common)
        start = 0
        for at, (key, value, header) in enumerate(zip(keys, values, headers, strict=True)):
            if not at % _CHECK_ROWS:
                self._check_lease()
            try:
                produce(topic, value, key, headers=header)
            except (BufferError, KafkaException):
                self._record_sent(replace(chunk, messages=messages.slice(start, at - start)))
                self._pending.append(SentMessage(topic, key, value, header))
                self._send_pending()
                produce, start = self._producer.produce, at + 1
        self._record_sent(replace(chunk, messages=messages.slice(start)))
        self._poll(0)
        if self._settle():
            self._send_pending()

    def flush(self) -> None:
        """Returns when brokers have all messages."""
        left, since = len(self._producer), time.monotonic()
        while left:
            self._poll_lease()
            self._poll(_POLL_S)
            now_left = len(self._producer)
            if self._settle():
                self._send_pending()
                left, since = len(self._producer), time.monotonic()
            elif now_left < left:
                left, since = now_left, time.monotonic()
            elif time.monotonic() > since + self._timeout_s:
                raise self._timeout_error(left)
        self._clear_sent()

    def commit(self) -> None:
        """Commit the transaction, after `flush`."""
        try:
            self._producer.commit_transaction(self._timeout_s)
        except KafkaException as error:
            raise failed("the transaction could not be committed", error) from None

    def close(self) -> None:
        # After an error: waiting messages must not be sent any more. Those in flight may arrive.
        self._producer.purge(in_queue=True, in_flight=True, blocking=True)
        until = time.monotonic() + 1
        while len(self._producer) and time.monotonic() < until:
            self._poll(_POLL_S)

    # ------------------------------------------------------------------ what was not delivered

    def _new_producer(self, **how: Any) -> Producer:
        own = {
            # Messages never time out by themselves: in a gap later ones would overtake.
            "delivery.timeout.ms": 0,
            "delivery.report.only.error": True,
            "enable.gapless.guarantee": True,
            "on_delivery": self._on_delivery,
            "error_cb": self._on_error,
        }
        producer = Producer(self._settings | own | how, logger=librdkafka_log)
        if self._transactional:
            try:
                producer.init_transactions(self._timeout_s)
                producer.begin_transaction()
            except KafkaException as error:
                raise failed("a transaction could not be started", error) from None
        return producer

    def _send_pending(self) -> None:
        """Send messages that brokers refused, or had no room for. No room for long is an error."""
        since = time.monotonic()
        while self._pending:
            self._poll_lease()
            first = self._pending[0]
            try:
                self._producer.produce(first.topic, first.value, first.key, headers=first.headers)
                self._sent.append(self._pending.popleft())
                since = time.monotonic()
            except BufferError:
                if time.monotonic() > since + self._timeout_s:
                    raise self._timeout_error(len(self._producer)) from None
                self._poll(0.05)
            except KafkaException as error:
                found = error.args[0]
                if found.code() in _POISON:
                    self._on_refused(self._pending.popleft(), found)
                else:
                    self._drain()
                    if not self._undelivered:
                        raise failed(f"topic {first.topic} takes no messages", found) from None
            if self._settle():
                since = time.monotonic()

    def _settle(self) -> bool:
        """Returns True if a message was not delivered: then those at fault are reported, and the
        others are pending again.
        """
        if not self._undelivered:
            return False
        self._drain()
        found, self._undelivered = self._undelivered, []
        refused = {each: error for error, each in found if error.code() in _SUSPECT}
        if not refused:
            errors = [error for error, _ in found]
            raise failed("a message was not accepted", self._root_error(errors))
        each_sent = [
            message
            for sent in self._sent
            for message in (sent.each() if isinstance(sent, MessageChunk) else (sent,))
        ]
        self._clear_sent()
        alone = [each for each in each_sent if (each.topic, each.key, each.value) in refused]
        if self._transactional:
            self._raise_aborted(found[0][0], alone)
        self._send_alone(alone)
        rest = [each for each in each_sent if (each.topic, each.key, each.value) not in refused]
        written = self._find_written(rest)
        rest = [each for each, there in zip(rest, written, strict=True) if not there]
        self._pending.extendleft(reversed(rest))
        self._producer = self._new_producer()
        return True

    def _root_error(self, errors: Sequence[KafkaError]) -> KafkaError:
        """Returns the first error that says more than that a message was dropped. Only a commit
        reports why a transaction has failed; librdkafka commits none with an undelivered message.
        """
        said = [error for error in errors if error.code() not in _DROPPED]
        if not said and self._transactional:
            try:
                self._producer.commit_transaction(self._timeout_s)
            except KafkaException as error:
                said = [error.args[0]]
        return next(iter(said), errors[0])

    def _record_sent(self, chunk: MessageChunk) -> None:
        self._sent.append(chunk)
        self._sent_rows += chunk.messages.num_rows
        self._sent_bytes += chunk.messages.nbytes

    def _clear_sent(self) -> None:
        """Forget the sent messages: brokers have all of them."""
        self._sent, self._sent_rows, self._sent_bytes = [], 0, 0

    def _poll(self, timeout_s: float) -> None:
        """Receive delivery reports. Not by `Producer.flush`, which calls back while the error that
        ended a producer is being raised: its report would be lost.
        """
        with suppress(KafkaException):  # it has ended; each of its messages is reported
            self._producer.poll(timeout_s)

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
        answered.
        """
        producer = self._producer
        producer.purge(in_queue=True, in_flight=False, blocking=True)
        until = time.monotonic() + self._timeout_s
        while len(producer):
            self._poll(_POLL_S)
            if time.monotonic() > until:
                raise self._timeout_error(len(producer))

    def _send_alone(self, suspects: Sequence[SentMessage]) -> None:
        errors: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                errors.append(error)

        how = {"linger.ms": 0, "enable.gapless.guarantee": False, "on_delivery": on_delivery}
        producer = self._new_producer(**how)
        for each in suspects:
            self._poll_lease()
            try:
                producer.produce(each.topic, each.value, each.key, headers=each.headers)
            except KafkaException as error:
                errors.append(error.args[0])
            until = time.monotonic() + self._timeout_s
            while len(producer):
                producer.poll(_POLL_S)
                if time.monotonic() > until:
                    raise self._timeout_error(len(producer))
            for found in errors:
                if found.code() not in _POISON:
                    raise failed("a message was not accepted", found)
                self._on_refused(each, found)
            errors.clear()

    def _raise_aborted(self, error: KafkaError, suspects: Sequence[SentMessage]) -> None:
        """A refusal aborts the transaction, with all of its messages."""
        first, last = suspects[0], suspects[-1]
        raise OutputRefusedError(
            f"kafka: topic {first.topic} refuses a message of versions {first.version} to "
            f"{last.version}: {error.name()}. Fix the topic, or remove `transactions`: without "
            "them it goes to the output's dead_letter and the others continue"
        )

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Called for messages that were not delivered, never for others, without headers."""
        if error is not None:
            what = message.topic() or "", message.key(), message.value()
            self._undelivered.append((error, what))

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


def headers_of(messages: pa.RecordBatch, common: tuple[Header, ...]) -> Iterator[list[Header]]:
    """Yields each message's headers, created as they are needed: many lists at once are work for
    Python's garbage collector.
    """
    versions = messages.column("version").cast(pa.string()).cast(pa.binary()).to_pylist()
    given = messages.column("headers")
    if given.null_count == len(given):
        return ([(VERSION_HEADER, version), *common] for version in versions)
    return (
        [
            (VERSION_HEADER, version),
            *common,
            *((name, value.encode()) for name, value in more or () if value is not None),
        ]
        for version, more in zip(versions, given.to_pylist(), strict=True)
    )
