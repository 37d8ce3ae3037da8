"""Hands one task's messages to brokers, in order by key whatever they refuse; runs on executors.

A broker refuses by batches, does not tell which message is at fault, and tells it when newer ones
are on their way. So a producer ends at its first refusal (gapless: of a partition nothing goes
after what was refused), the batch is sent again a message at a time, then the rest as before.
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

# A broker that says these will never take the message.
_POISON = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD,
)
# Of so many rows and bytes since the last flush, one can be sent again.
_SENT_ROWS, _SENT_BYTES = 400_000, 128 << 20
_POLL_S = 0.002  # brokers' good answers end no poll
_CHECK_ROWS = 1024  # a look costs as much as handing over some ten messages
_CHECK_S = 0.02
_DROPPED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
_SUSPECT = (*_POISON, KafkaError._INVALID_DIFFERENT_RECORD)


@dataclass(frozen=True)
class Sent:
    """A message that was handed over."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]

    @property
    def version(self) -> int:
        return next(int(value or 0) for name, value in self.headers if name == VERSION_HEADER)


@dataclass(frozen=True)
class Chunk:
    """Messages of `tidelog.outputs.formatters.messages` for a topic; ``common``: headers of all."""

    topic: str
    messages: pa.RecordBatch
    common: tuple[Header, ...]

    def each(self) -> Iterator[Sent]:
        columns = [self.messages.column(name).to_pylist() for name in ("key", "value")]
        for key, value, header in zip(
            *columns, headers_of(self.messages, self.common), strict=True
        ):
            yield Sent(self.topic, key, value, header)


class KafkaSender:
    """One producer after the other. `close` it.

    Args:
        settings: the producers', all but what they tell of deliveries.
        timeout_s: how long brokers may take nothing.
        refused: called with a message that they never take, and why; may raise.
        held: which of the messages, of unknown fate, the topics hold.
        check_lease: raises LeaseLostError where nothing more may be handed over. What librdkafka
            has by then, its threads send: a producer that is not a transaction's can't be fenced.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        timeout_s: float,
        refused: Callable[[Sent, KafkaError], None],
        held: Callable[[Sequence[Sent]], Sequence[bool]],
        check_lease: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._transactional = "transactional.id" in settings
        self._refused = refused
        self._held = held
        self._check_lease = check_lease
        self._check_at = 0.0
        self._undelivered: list[tuple[KafkaError, tuple[str, bytes | None, bytes | None]]] = []
        self._sent: list[Chunk | Sent] = []  # in order; what was delivered is not in it for long
        self._sent_rows, self._sent_bytes = 0, 0
        self._pending: deque[Sent] = deque()  # before all that is yet to come
        self._said: KafkaError | None = None
        self._producer = self._begun()

    def send(self, chunk: Chunk) -> None:
        if not len(self._producer):
            self._forget()
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
                self._note(replace(chunk, messages=messages.slice(start, at - start)))
                self._pending.append(Sent(topic, key, value, header))
                self._send_pending()
                produce, start = self._producer.produce, at + 1
        self._note(replace(chunk, messages=messages.slice(start)))
        self._poll(0)
        if self._settle():
            self._send_pending()

    def flush(self) -> None:
        """Returns when brokers have all of it."""
        left, since = len(self._producer), time.monotonic()
        while left:
            self._look()
            self._poll(_POLL_S)
            now_left = len(self._producer)
            if self._settle():
                self._send_pending()
                left, since = len(self._producer), time.monotonic()
            elif now_left < left:
                left, since = now_left, time.monotonic()
            elif time.monotonic() > since + self._timeout_s:
                raise self._not_taken(left)
        self._forget()

    def commit(self) -> None:
        """Commit the transaction, after `flush`."""
        try:
            self._producer.commit_transaction(self._timeout_s)
        except KafkaException as error:
            raise failed("the transaction could not be committed", error) from None

    def close(self) -> None:
        # After an error: what waits must not be sent any more. What is under way may arrive.
        self._producer.purge(in_queue=True, in_flight=True, blocking=True)
        until = time.monotonic() + 1
        while len(self._producer) and time.monotonic() < until:
            self._poll(_POLL_S)

    # ------------------------------------------------------------------ what was not delivered

    def _begun(self, **how: Any) -> Producer:
        told = {
            # Messages never give up by themselves: a gap would let later ones overtake.
            "delivery.timeout.ms": 0,
            "delivery.report.only.error": True,
            "enable.gapless.guarantee": True,
            "on_delivery": self._delivered,
            "error_cb": self._heard,
        }
        producer = Producer(self._settings | told | how, logger=librdkafka_log)
        if self._transactional:
            try:
                producer.init_transactions(self._timeout_s)
                producer.begin_transaction()
            except KafkaException as error:
                raise failed("a transaction could not be begun", error) from None
        return producer

    def _send_pending(self) -> None:
        """What brokers refused to take, or had no room for. No room for long is an error."""
        since = time.monotonic()
        while self._pending:
            self._look()
            first = self._pending[0]
            try:
                self._producer.produce(first.topic, first.value, first.key, headers=first.headers)
                self._sent.append(self._pending.popleft())
                since = time.monotonic()
            except BufferError:
                if time.monotonic() > since + self._timeout_s:
                    raise self._not_taken(len(self._producer)) from None
                self._poll(0.05)
            except KafkaException as error:
                found = error.args[0]
                if found.code() in _POISON:
                    self._refused(self._pending.popleft(), found)
                else:
                    self._drain()
                    if not self._undelivered:
                        raise failed(f"topic {first.topic} takes no messages", found) from None
            if self._settle():
                since = time.monotonic()

    def _settle(self) -> bool:
        """Was something not delivered? Then what is at fault is told, the rest pending again."""
        if not self._undelivered:
            return False
        self._drain()
        found, self._undelivered = self._undelivered, []
        refused = {each: error for error, each in found if error.code() in _SUSPECT}
        if not refused:
            raise failed("a message was not taken", self._why([error for error, _ in found]))
        each_sent = [
            s for sent in self._sent for s in (sent.each() if isinstance(sent, Chunk) else (sent,))
        ]
        self._forget()
        alone = [each for each in each_sent if (each.topic, each.key, each.value) in refused]
        if self._transactional:
            self._raise_aborted(found[0][0], alone)
        self._send_alone(alone)
        rest = [each for each in each_sent if (each.topic, each.key, each.value) not in refused]
        held = self._held(rest)
        rest = [each for each, there in zip(rest, held, strict=True) if not there]
        self._pending.extendleft(reversed(rest))
        self._producer = self._begun()
        return True

    def _why(self, errors: Sequence[KafkaError]) -> KafkaError:
        """The first that says more than that a message was dropped. Why a transaction has failed is
        told to who commits it; librdkafka commits none of which a message was not delivered.
        """
        said = [error for error in errors if error.code() not in _DROPPED]
        if not said and self._transactional:
            try:
                self._producer.commit_transaction(self._timeout_s)
            except KafkaException as error:
                said = [error.args[0]]
        return next(iter(said), errors[0])

    def _note(self, chunk: Chunk) -> None:
        self._sent.append(chunk)
        self._sent_rows += chunk.messages.num_rows
        self._sent_bytes += chunk.messages.nbytes

    def _forget(self) -> None:
        """Brokers have all of it."""
        self._sent, self._sent_rows, self._sent_bytes = [], 0, 0

    def _poll(self, timeout_s: float) -> None:
        """Hear what became of messages. Never by `Producer.flush`, which calls back while the
        error that ended a producer is being raised: the message that it tells of is lost.
        """
        with suppress(KafkaException):  # it has ended; each of its messages is told of
            self._producer.poll(timeout_s)

    def _look(self) -> None:
        """At the lease, in loops of short turns. Who is told closes, and what waits is dropped."""
        now = time.monotonic()
        if now >= self._check_at:
            self._check_at = now + _CHECK_S
            self._check_lease()

    def _drain(self) -> None:
        """Until all is known: what waits is not sent, what is under way is answered."""
        producer = self._producer
        producer.purge(in_queue=True, in_flight=False, blocking=True)
        until = time.monotonic() + self._timeout_s
        while len(producer):
            self._poll(_POLL_S)
            if time.monotonic() > until:
                raise self._not_taken(len(producer))

    def _send_alone(self, suspects: Sequence[Sent]) -> None:
        errors: list[KafkaError] = []

        def told(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                errors.append(error)

        how = {"linger.ms": 0, "enable.gapless.guarantee": False, "on_delivery": told}
        producer = self._begun(**how)
        for each in suspects:
            self._look()
            try:
                producer.produce(each.topic, each.value, each.key, headers=each.headers)
            except KafkaException as error:
                errors.append(error.args[0])
            until = time.monotonic() + self._timeout_s
            while len(producer):
                producer.poll(_POLL_S)
                if time.monotonic() > until:
                    raise self._not_taken(len(producer))
            for found in errors:
                if found.code() not in _POISON:
                    raise failed("a message was not taken", found)
                self._refused(each, found)
            errors.clear()

    def _raise_aborted(self, error: KafkaError, suspects: Sequence[Sent]) -> None:
        """A refusal ends the transaction, and what it held is not kept for another."""
        first, last = suspects[0], suspects[-1]
        raise OutputRefusedError(
            f"kafka: topic {first.topic} refuses a message of versions {first.version} to "
            f"{last.version}: {error.name()}. Mend the topic; or take out `transactions`: without "
            "them it goes to the output's dead_letter and the others go on"
        )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        """Called for messages that were not delivered, never for the others, without headers."""
        if error is not None:
            what = message.topic() or "", message.key(), message.value()
            self._undelivered.append((error, what))

    def _heard(self, error: KafkaError) -> None:
        """Why there is no connection."""
        self._said = error

    def _not_taken(self, count: int) -> OutputError:
        what = f"{count} messages were not taken in {self._timeout_s:.0f} s"
        return OutputError(f"kafka: {what}") if self._said is None else failed(what, self._said)


def headers_of(messages: pa.RecordBatch, common: tuple[Header, ...]) -> Iterator[list[Header]]:
    """Each message's headers, made as they are needed: many lists at once are work for Python's
    garbage collector.
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
