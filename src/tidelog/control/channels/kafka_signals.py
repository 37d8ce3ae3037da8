"""Signals from messages of a Kafka topic, as in Debezium's Kafka channel.

Debezium reads the topic's only partition and lets Kafka's client commit the position from time to
time, so after a crash a signal may be lost or read again. Here the position is stored in the state
store after the signals are in the mailbox, and a signal is identified by topic, partition and
offset: none is lost, and a repeated one is recognized.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tidelog.control.channels.kafka import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    NO_TOPIC_ID,
    ONE_PARTITION,
    TIMEOUT_S,
    ChannelError,
    ChannelProblem,
    KafkaTopic,
    TopicFacts,
    channel_error,
    same_topic,
    several_partitions,
    topic_facts,
)
from tidelog.control.debezium import Signal, parse_line
from tidelog.control.signal_intake import SignalIntake
from tidelog.errors import TidelogError, UsageError
from tidelog.outputs.kafka.client import ClientErrors, common, librdkafka_log
from tidelog.ports import MAX_SIGNAL_BYTES, StateStore
from tidelog.system import failpoints

logger = logging.getLogger(__name__)

STATE_KEY: Final = "signal-kafka"
AT_ONCE: Final = 100
POLL_S: Final = 0.5
CHECK_EVERY_S: Final = 30.0
"""A lost broker or a recreated topic may cause no error, so the topic is checked this often."""
JOIN_S: Final = 2.0
# The client searches the group's coordinator although the group is not used.
_OF_THE_GROUP: Final = (
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)


@dataclass(frozen=True, slots=True)
class Received:
    """A message with this capture's key. ``value``: truncated if it is too long for a signal."""

    offset: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages to put into the mailbox; the topic was read up to ``until``, exclusive."""

    topic_id: str
    until: int
    received: Sequence[Received]


class KafkaSignals:
    """Reads on its own thread, which waits for brokers; `poll` never does.

    Args:
        place: address of the topic.
        key: key of the messages for this capture.
        begin: ``earliest`` or ``latest``: where to begin a topic that was never read.
        state: store of the position.
        intake: receives the signals.
    """

    def __init__(
        self,
        place: KafkaTopic,
        *,
        key: str,
        begin: str,
        state: StateStore,
        intake: SignalIntake,
    ) -> None:
        self._place = place
        self._key = key.encode()
        self._begins_at_end = begin == "latest"
        self._state = state
        self._intake = intake
        self.trouble = ChannelProblem(
            "signal_kafka", f"Signals can't be read from Kafka topic {place.topic}"
        )
        self._closed = threading.Event()
        self._batch: Batch | None = None
        self._taken = threading.Event()
        self._works = False
        self._reported_others = False
        self._thread = threading.Thread(
            target=self._read_all, name="tidelog-signals-kafka", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop reading. The next leader reads again what was not polled."""
        self._closed.set()
        self._taken.set()
        if self._thread.ident is not None:
            self._thread.join(JOIN_S)

    # ------------------------------------------------------------ the thread that executes commands

    def poll(self) -> None:
        """Put the batch into the mailbox, then store the position. After a crash in between the
        messages are read again, and recognized there.

        Raises:
            StateError: if the state store fails; call it again.
        """
        batch = self._batch
        if batch is None:
            return
        for each in batch.received:
            self._take(each, f"kafka:{self._place.topic}:{batch.topic_id}:0:{each.offset}")
            failpoints.hit("kafka_signals.taken_one")
        value = {"topic": self._place.topic, "topic_id": batch.topic_id, "offset": batch.until}
        self._state.put(STATE_KEY, value, None)
        self._batch = None
        self._taken.set()

    def _take(self, received: Received, name: str) -> None:
        if len(received.value) > MAX_SIGNAL_BYTES:
            error = UsageError(f"a message of more than {MAX_SIGNAL_BYTES} bytes")
            self._intake.refuse(received.value, error, name)
            return
        try:
            signal = parse_line(received.value.decode("utf-8"))
        except UnicodeDecodeError:
            self._intake.refuse(received.value, UsageError("the signal is not UTF-8"), name)
        except UsageError as error:
            self._intake.refuse(received.value, error, name)
        else:
            if not signal.signal_id:  # Debezium's messages need no id; here it names the dump
                own = f"{self._place.topic}-{received.offset}"
                signal = Signal(own, signal.type, signal.data)
            # Writers to the topic may not have the privileges of capture's role.
            self._intake.take(signal, name, plain=True)

    # ------------------------------------------------------------ the reading thread

    def _read_all(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._closed.is_set():
            self._works = False
            try:
                self._follow()
                return
            except ChannelError as error:
                self.trouble.begin(error.reason, error.remedy)
            except TidelogError as error:  # the state store; it may end this leadership
                self.trouble.begin(str(error))
            except Exception as error:  # noqa: BLE001 - of a client; reported
                logger.error("signals from Kafka: internal error (%s)", type(error).__name__)
                self.trouble.begin(f"internal error ({type(error).__name__})")
            pause_s = FIRST_PAUSE_S if self._works else pause_s
            self._closed.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _follow(self) -> None:
        """Read until this is closed. Raises ChannelError if it can't begin or continue."""
        facts = topic_facts(self._place)
        heard = ClientErrors()
        try:
            consumer = self._consumer(heard)
        except KafkaException as error:
            raise channel_error(heard, error) from None
        try:
            bounds = consumer.get_watermark_offsets(self._partition(), timeout=TIMEOUT_S)
            facts = self._with_known_id(facts)
            offset = self._start(facts, *bounds)
            consumer.assign([self._partition(offset)])
            self._works = True
            self._check_partitions(facts)
            self._read(consumer, heard, facts)
        except KafkaException as error:
            raise channel_error(heard, error) from None
        finally:
            consumer.close()

    def _consumer(self, heard: ClientErrors) -> Consumer:
        ours = {
            "group.id": "tidelog-signals",  # required by the client; it is never used
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",  # this class decides what to do then
            "isolation.level": "read_committed",
            "error_cb": heard.on_error,
        }
        # Signals are small: fetch little ahead.
        sizes = {"queued.max.messages.kbytes": 4096, "queued.min.messages": AT_ONCE}
        return Consumer(sizes | common(self._place.settings) | ours, logger=librdkafka_log)

    def _stored_position(self, topic_id: str) -> dict[str, Any] | None:
        """The stored position; None: the topic was never read, or was recreated since."""
        document = self._state.get(STATE_KEY)
        if document is None or document.value["topic"] != self._place.topic:
            return None
        return document.value if same_topic(document.value["topic_id"], topic_id) else None

    def _with_known_id(self, facts: TopicFacts) -> TopicFacts:
        """Add the stored topic id if brokers return none now: it identifies signals."""
        if facts.topic_id != NO_TOPIC_ID:
            return facts
        known = self._stored_position(facts.topic_id)
        return facts if known is None else replace(facts, topic_id=known["topic_id"])

    def _start(self, facts: TopicFacts, low: int, high: int) -> int:
        """The offset to resume at; it is stored if it is not the stored one."""
        known = self._stored_position(facts.topic_id)
        if known is None:
            offset = high if self._begins_at_end else low
        elif low <= known["offset"] <= high:
            return int(known["offset"])
        else:
            # Beyond the end: the topic lost what was read, and what it has is older.
            offset = low if known["offset"] < low else high
            logger.warning(
                "Kafka topic %s has no offset %d any more, and is read on from %d: signals "
                "between may be lost",
                self._place.topic, known["offset"], offset,
            )  # fmt: skip
        self._hand_over(Batch(facts.topic_id, offset, ()))
        return offset

    def _check_partitions(self, facts: TopicFacts) -> None:
        if facts.partitions == 1:
            self.trouble.end()
        else:
            self.trouble.begin(several_partitions(facts.partitions), ONE_PARTITION)

    def _read(self, consumer: Consumer, heard: ClientErrors, facts: TopicFacts) -> None:
        check_at = time.monotonic() + CHECK_EVERY_S
        while not self._closed.is_set():
            messages = consumer.consume(AT_ONCE, timeout=POLL_S)
            whole = [message for message in messages if message.error() is None]
            if whole:
                ours = [self._to_received(each) for each in whole if self._is_ours(each)]
                self._report_others(len(whole) - len(ours))
                until, received = _offset(whole[-1]) + 1, [each for each in ours if each.value]
                self._hand_over(Batch(facts.topic_id, until, received))
            for message in messages:
                error = message.error()
                if error is not None and error.code() not in _OF_THE_GROUP:
                    raise KafkaException(error)
            if heard.all_down and heard.error is not None:
                raise KafkaException(heard.error)
            if time.monotonic() >= check_at:
                if not topic_facts(self._place).is_like(facts):
                    raise ChannelError("it was altered or recreated")
                consumer.get_watermark_offsets(self._partition(), timeout=TIMEOUT_S)
                check_at = time.monotonic() + CHECK_EVERY_S

    def _hand_over(self, batch: Batch) -> None:
        """Pass a batch to `poll`; returns once it was polled, or this is closed."""
        self._taken.clear()
        if not self._closed.is_set():
            self._batch = batch
            self._taken.wait()

    def _is_ours(self, message: Message) -> bool:
        return message.key() == self._key

    def _to_received(self, message: Message) -> Received:
        value: Any = message.value() or b""
        return Received(_offset(message), value[: MAX_SIGNAL_BYTES + 1])

    def _report_others(self, count: int) -> None:
        """Log once that there are other messages; not their keys, which may be a table's."""
        if count and not self._reported_others:
            self._reported_others = True
            logger.info(
                "Kafka topic %s holds messages whose key is not %r: they are ignored",
                self._place.topic, self._key.decode(),
            )  # fmt: skip

    def _partition(self, offset: int = 0) -> TopicPartition:
        return TopicPartition(self._place.topic, 0, offset)


def _offset(message: Message) -> int:
    return int(message.offset() or 0)
