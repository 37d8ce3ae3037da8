"""The channel of a Kafka topic whose messages are signals, as Debezium's Kafka channel.

Debezium reads the topic's only partition and has Kafka's client commit now and then how far it is,
so a signal may be lost or come again after a crash. Here that is kept in the state store, after the
signals are in the mailbox, and a signal is known by topic, partition and offset: none is lost, and
one that comes again is known.
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
    KafkaPlace,
    TopicFacts,
    same_topic,
    several,
    topic_facts,
    why,
)
from tidelog.control.channels.signal_intake import SignalIntake
from tidelog.control.debezium import Signal, parse_line
from tidelog.errors import TidelogError, UsageError
from tidelog.outputs.kafka.client import ClientErrors, common, librdkafka_log
from tidelog.ports import MAX_SIGNAL_BYTES, StateStore
from tidelog.system import failpoints

logger = logging.getLogger(__name__)

STATE_KEY: Final = "signal-kafka"
AT_ONCE: Final = 100
POLL_S: Final = 0.5
LOOK_EVERY_S: Final = 30.0
"""A partition whose broker is gone, and a topic that was made anew, may give no error."""
JOIN_S: Final = 2.0
# The client looks for the group's coordinator, whether or not that is of any use.
_OF_THE_GROUP: Final = (
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)


@dataclass(frozen=True, slots=True)
class Received:
    """A message with our key. ``value``: cut, if it is too long for a signal."""

    offset: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages on their way to the mailbox; the topic was read up to ``until``, exclusive."""

    topic_id: str
    until: int
    received: Sequence[Received]


class KafkaSignals:
    """Reads on a thread of its own, which waits for brokers; `poll` never does.

    Args:
        place: of the topic.
        key: of messages that are for this capture.
        begin: ``earliest`` or ``latest``: where a topic is begun that was never read.
        state: keeps how far it was read.
        intake: where signals go.
    """

    def __init__(
        self,
        place: KafkaPlace,
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
        self._told_others = False
        self._thread = threading.Thread(
            target=self._read_all, name="tidelog-signals-kafka", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """What was not polled is read again by whoever leads next."""
        self._closed.set()
        self._taken.set()
        if self._thread.ident is not None:
            self._thread.join(JOIN_S)

    # ------------------------------------------------------------ on the thread that acts

    def poll(self) -> None:
        """Put what was read into the mailbox, then note how far that is. After a crash in between
        the messages come again, and are known there.

        Raises:
            StateError: the state store failed; it is to be called again.
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
            if not signal.signal_id:  # Debezium's messages need none; ours names the dump
                own = f"{self._place.topic}-{received.offset}"
                signal = Signal(own, signal.type, signal.data)
            # Who may write to the topic need not have the rights of capture's role.
            self._intake.take(signal, name, plain=True)

    # ------------------------------------------------------------ on the thread that reads

    def _read_all(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._closed.is_set():
            self._works = False
            try:
                self._follow()
                return
            except ChannelError as error:
                self.trouble.begin(error.reason, error.remedy)
            except TidelogError as error:  # the state store: whoever leads ends by it, or goes on
                self.trouble.begin(str(error))
            except Exception as error:  # noqa: BLE001 - of a client, told
                logger.error("signals from Kafka: internal error (%s)", type(error).__name__)
                self.trouble.begin(f"internal error ({type(error).__name__})")
            pause_s = FIRST_PAUSE_S if self._works else pause_s
            self._closed.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _follow(self) -> None:
        """Read until this is closed. Raises ChannelError if that can't be done, or no more."""
        facts = topic_facts(self._place)
        heard = ClientErrors()
        try:
            consumer = self._consumer(heard)
        except KafkaException as error:
            raise why(heard, error) from None
        try:
            bounds = consumer.get_watermark_offsets(self._partition(), timeout=TIMEOUT_S)
            facts = self._named(facts)
            offset = self._start(facts, *bounds)
            consumer.assign([self._partition(offset)])
            self._works = True
            self._judge(facts)
            self._read(consumer, heard, facts)
        except KafkaException as error:
            raise why(heard, error) from None
        finally:
            consumer.close()

    def _consumer(self, heard: ClientErrors) -> Consumer:
        ours = {
            "group.id": "tidelog-signals",  # consumers must have one; it is never used
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",  # what is to be done then is decided here
            "isolation.level": "read_committed",
            "error_cb": heard.hear,
        }
        # Signals are small: little need be fetched ahead.
        sizes = {"queued.max.messages.kbytes": 4096, "queued.min.messages": AT_ONCE}
        return Consumer(sizes | common(self._place.settings) | ours, logger=librdkafka_log)

    def _known(self, topic_id: str) -> dict[str, Any] | None:
        """How far the topic was read; None: never, or one of its name that was deleted since."""
        document = self._state.get(STATE_KEY)
        if document is None or document.value["topic"] != self._place.topic:
            return None
        return document.value if same_topic(document.value["topic_id"], topic_id) else None

    def _named(self, facts: TopicFacts) -> TopicFacts:
        """With the id that was known before, if none is told now: signals are known by it."""
        if facts.topic_id != NO_TOPIC_ID:
            return facts
        known = self._known(facts.topic_id)
        return facts if known is None else replace(facts, topic_id=known["topic_id"])

    def _start(self, facts: TopicFacts, low: int, high: int) -> int:
        """The offset to go on at, which is stored once it is none that was stored before."""
        known = self._known(facts.topic_id)
        if known is None:
            offset = high if self._begins_at_end else low
        elif low <= known["offset"] <= high:
            return int(known["offset"])
        else:
            # Beyond its end: it lost what was read, and what it has is older.
            offset = low if known["offset"] < low else high
            logger.warning(
                "Kafka topic %s has no offset %d any more, and is read on from %d: signals "
                "between may be lost",
                self._place.topic, known["offset"], offset,
            )  # fmt: skip
        self._hand_over(Batch(facts.topic_id, offset, ()))
        return offset

    def _judge(self, facts: TopicFacts) -> None:
        if facts.partitions == 1:
            self.trouble.end()
        else:
            self.trouble.begin(several(facts.partitions), ONE_PARTITION)

    def _read(self, consumer: Consumer, heard: ClientErrors, facts: TopicFacts) -> None:
        look_at = time.monotonic() + LOOK_EVERY_S
        while not self._closed.is_set():
            found = consumer.consume(AT_ONCE, timeout=POLL_S)
            whole = [message for message in found if message.error() is None]
            if whole:
                ours = [self._received(each) for each in whole if self._is_ours(each)]
                self._tell_others(len(whole) - len(ours))
                until, given = _offset(whole[-1]) + 1, [each for each in ours if each.value]
                self._hand_over(Batch(facts.topic_id, until, given))
            for message in found:
                error = message.error()
                if error is not None and error.code() not in _OF_THE_GROUP:
                    raise KafkaException(error)
            if heard.all_down and heard.error is not None:
                raise KafkaException(heard.error)
            if time.monotonic() >= look_at:
                if not topic_facts(self._place).is_like(facts):
                    raise ChannelError("it was altered or made anew")
                consumer.get_watermark_offsets(self._partition(), timeout=TIMEOUT_S)
                look_at = time.monotonic() + LOOK_EVERY_S

    def _hand_over(self, batch: Batch) -> None:
        """Returns once it is polled, or this is closed."""
        self._taken.clear()
        if not self._closed.is_set():
            self._batch = batch
            self._taken.wait()

    def _is_ours(self, message: Message) -> bool:
        return message.key() == self._key

    def _received(self, message: Message) -> Received:
        value: Any = message.value() or b""
        return Received(_offset(message), value[: MAX_SIGNAL_BYTES + 1])

    def _tell_others(self, count: int) -> None:
        """Once; not their keys: in a topic that was named by mistake they may be a table's."""
        if count and not self._told_others:
            self._told_others = True
            logger.info(
                "Kafka topic %s holds messages whose key is not %r: they are passed over",
                self._place.topic, self._key.decode(),
            )  # fmt: skip

    def _partition(self, offset: int = 0) -> TopicPartition:
        return TopicPartition(self._place.topic, 0, offset)


def _offset(message: Message) -> int:
    return int(message.offset() or 0)
