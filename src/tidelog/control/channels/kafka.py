"""The channels on Kafka: notifications to a topic, and signals from a topic.

Notifications are sent as by Debezium's sink channel; dumps never wait for them. The message's key
is ``{"id": …}``, its value the notification, both JSON as Kafka Connect's converter writes them
without schemas.

Signals are as in Debezium's Kafka channel. Debezium reads the topic's only partition and lets
Kafka's client commit the position from time to time, so after a crash a signal may be lost or read
again. Here the position is stored in the state store after the signals are in the mailbox, and a
signal is identified by topic, partition and offset: none is lost, and a repeated one is recognized.
"""

from __future__ import annotations

import json
import logging
import math
import re
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tidelog.capture.notifications import Notification
from tidelog.control.channels.channel_problem import AGAIN, ChannelProblem
from tidelog.control.debezium import Signal, parse_line
from tidelog.control.signal_intake import SignalIntake
from tidelog.errors import TidelogError, UsageError
from tidelog.outputs.kafka.client import ClientErrors, common, error_text, librdkafka_log
from tidelog.ports import MAX_SIGNAL_BYTES, StateStore
from tidelog.system import failpoints
from tidelog.system.backoff import Backoff

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
PAUSE_S: Final = Backoff(first=1.0, longest=30.0)
_AFTER: Final = re.compile(r" \(after \d+ms [^)]*\)")  # differs with each attempt
NO_TOPIC_ID: Final = "A" * 22
"""All bits zero (KIP-516)."""
ONE_PARTITION: Final = "Create a topic with one partition: only that keeps signals in order."


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """The address of a topic.

    Attributes:
        servers: bootstrap brokers.
        topic: name of the topic.
        given: the user's settings of librdkafka; never printed.
    """

    servers: str
    topic: str
    given: Mapping[str, str] = field(repr=False, default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of any client. Logging is off: `ChannelProblem` reports problems once."""
        return {"bootstrap.servers": self.servers, "log_level": 2, **self.given}

    @property
    def creation(self) -> str:
        """The command that creates the topic."""
        return (
            f"kafka-topics.sh --bootstrap-server {self.servers} --create --topic {self.topic} "
            "--partitions 1"
        )


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as brokers describe it. ``topic_id``: a recreated topic has another one;
    `NO_TOPIC_ID` from brokers older than topic ids.
    """

    topic_id: str
    partitions: int

    def is_like(self, other: TopicFacts) -> bool:
        """Is it the same unaltered topic, as far as ids show?"""
        return self.partitions == other.partitions and same_topic(self.topic_id, other.topic_id)


def same_topic(one_id: str, other_id: str) -> bool:
    """False if the topic was deleted and recreated. A missing id, which depends on the brokers'
    version, shows nothing.
    """
    return one_id == other_id or NO_TOPIC_ID in (one_id, other_id)


def several_partitions(partitions: int) -> str:
    """The problem with a topic of signals that has several partitions."""
    return f"it has {partitions} partitions, and signals are read from the first alone"


class ChannelError(Exception):
    """A channel does not work now; ``remedy``: how to fix it. Without settings' values."""

    def __init__(self, reason: str, remedy: str = AGAIN) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


def channel_error(heard: ClientErrors, error: KafkaException) -> ChannelError:
    """Convert ``error``, with the client's last reported error if that says more."""
    cause: KafkaError = error.args[0]
    silent = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
    text = error_text(heard.error if heard.error and cause.code() in silent else cause)
    return ChannelError(_AFTER.sub("", text).rstrip("."))


def topic_facts(place: KafkaTopic) -> TopicFacts:
    """Ask brokers about the topic. Raises ChannelError if none answers, or there is no topic."""
    heard = ClientErrors()
    try:
        admin = AdminClient(
            common(place.settings) | {"error_cb": heard.on_error}, logger=librdkafka_log
        )
    except KafkaException as error:
        raise channel_error(heard, error) from None
    wanted = TopicCollection([place.topic])
    try:
        topic = admin.describe_topics(wanted, request_timeout=TIMEOUT_S)[place.topic].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise ChannelError("there is no such topic", place.creation) from None
        admin.poll(0.2)  # calls `hear`
        raise channel_error(heard, error) from None
    topic_id = NO_TOPIC_ID if topic.topic_id is None else str(topic.topic_id)
    return TopicFacts(topic_id, len(topic.partitions))


# Notifications.

MOST_WAITING: Final = 10_000
MOST_BYTES: Final = 16 << 20
NOTIFICATIONS_AT_ONCE: Final = 500
PATIENCE_S: Final = 5.0
"""Messages that were not accepted for this time are reported as a problem; they stay queued."""
CLOSE_S: Final = 2.0
NOTIFICATIONS_POLL_S: Final = 0.05
# After these errors for a single message a broker will never accept it.
_REFUSED: Final = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD,
)

_NO_TOPIC: Final = (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message that brokers have not accepted yet."""

    key: bytes
    value: bytes


class KafkaNotifications:
    """Sends notifications in order, on its own thread. Messages that brokers do not accept now are
    queued, up to a number and size; then new ones are dropped.

    Args:
        place: address of the topic.
    """

    def __init__(self, place: KafkaTopic) -> None:
        self._place = place
        self.trouble = ChannelProblem(
            "notification_kafka", f"Notifications don't reach Kafka topic {place.topic}"
        )
        self._condition = threading.Condition()
        self._waiting: deque[WaitingMessage] = deque()
        self._bytes = 0
        self._dropped = 0
        self._closing_at: float | None = None
        self._undelivered: dict[int, KafkaError] = {}
        self._alone = 0  # number of messages to send one by one
        self._heard = ClientErrors()
        self._thread = threading.Thread(
            target=self._send_all, name="tidelog-notifications-kafka", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def send(self, notification: Notification) -> None:
        """Queue a notification; returns at once, callable from any thread."""
        each = WaitingMessage(_json({"id": notification.dump_id}), _json(notification.to_json()))
        with self._condition:
            if len(self._waiting) >= MOST_WAITING or self._bytes + len(each.value) > MOST_BYTES:
                self._dropped += 1
                first = self._dropped == 1
            else:
                first = False
                self._waiting.append(each)
                self._bytes += len(each.value)
                self._condition.notify()
        if first:
            logger.warning("notifications for Kafka are dropped: %d wait", MOST_WAITING)

    def close(self) -> None:
        """Send what is queued, for two seconds at most, and not at all if brokers accept
        nothing.
        """
        with self._condition:
            permanent = self.trouble.now() is not None
            self._closing_at = time.monotonic() + (0.0 if permanent else CLOSE_S)
            self._condition.notify()
        if self._thread.ident is not None:
            self._thread.join(2 * CLOSE_S)
        with self._condition:
            lost = len(self._waiting)
        if lost:
            logger.warning("%d notifications did not reach Kafka before capture ended", lost)

    # ------------------------------------------------------------ the sending thread

    def _send_all(self) -> None:
        producer: Producer | None = None
        failures = 0
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting or self._closing_at is not None)
                batch = list(islice(self._waiting, 1 if self._alone else NOTIFICATIONS_AT_ONCE))
            if not batch or self._is_over():
                return
            try:
                producer = producer or self._producer()
                again = not self._send(producer, batch)
            except KafkaException as error:
                self._fail(channel_error(self._heard, error))
            except ChannelError as error:
                self._fail(error)
            except Exception as error:  # noqa: BLE001 - of a client; reported
                logger.error("notifications for Kafka: internal error (%s)", type(error).__name__)
                self._fail(ChannelError(f"internal error ({type(error).__name__})"))
            else:
                failures = 0
                producer = None if again else producer
                continue
            # A client caches for minutes that a topic did not exist.
            producer = None
            failures += 1
            self._pause(PAUSE_S.after(failures))

    def _producer(self) -> Producer:
        self._heard = ClientErrors()
        sizes = {"linger.ms": 0, "queue.buffering.max.messages": 2 * NOTIFICATIONS_AT_ONCE}
        ours = {
            "acks": "all",
            "enable.idempotence": True,
            "delivery.timeout.ms": 0,  # none gives up by itself and is overtaken
            "error_cb": self._heard.on_error,
        }
        return Producer(sizes | self._place.settings | ours, logger=librdkafka_log)

    def _send(self, producer: Producer, batch: Sequence[WaitingMessage]) -> bool:
        """Send the batch and wait for the brokers' answers. False: retry at once with another
        producer. Raises ChannelError if the retry has to wait.
        """
        self._undelivered, self._heard.error = {}, None
        unsent = set(range(len(batch)))
        for number, each in enumerate(batch):
            heard = partial(self._delivered, number)
            try:
                producer.produce(self._place.topic, each.value, each.key, on_delivery=heard)
            except BufferError:  # a user's setting limits the buffer
                break
            except KafkaException as error:
                self._undelivered[number] = error.args[0]
                break
            unsent.remove(number)
        self._await(producer)
        self._remove(batch, sorted(unsent | self._undelivered.keys()))
        if not self._undelivered:
            self._alone = max(0, self._alone - 1)
            self.trouble.end()
            self._report_dropped()
            return True
        why = self._undelivered[min(self._undelivered)]
        if why.code() in _NO_TOPIC:
            raise ChannelError(error_text(why), self._place.creation)
        if why.code() not in _REFUSED:
            raise ChannelError(error_text(why))
        if len(batch) == 1:
            self._remove(batch, [])
            logger.warning("Kafka does not take a notification: %s", error_text(why))
        # Brokers refuse by batches, and do not report which one is at fault.
        self._alone = max(self._alone, len(batch)) - 1
        return False

    def _await(self, producer: Producer) -> None:
        """Wait until brokers have answered for all messages, or this is closed."""
        patient_until = time.monotonic() + PATIENCE_S
        while len(producer):
            producer.poll(NOTIFICATIONS_POLL_S)
            if self._is_over():
                producer.purge(in_queue=True, in_flight=True)
            elif time.monotonic() > patient_until:
                patient_until = math.inf
                try:
                    topic_facts(self._place)
                except ChannelError as error:
                    self._fail(error)
                else:
                    self._fail(ChannelError(f"no message was accepted for {PATIENCE_S:g} s"))

    def _delivered(self, number: int, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._undelivered[number] = error

    def _remove(self, batch: Sequence[WaitingMessage], left: Sequence[int]) -> None:
        """Remove ``batch``, the head of the queue; put back those with the indexes ``left``."""
        with self._condition:
            for _each in batch:
                self._bytes -= len(self._waiting.popleft().value)
            for number in reversed(left):
                self._waiting.appendleft(batch[number])
                self._bytes += len(batch[number].value)

    def _fail(self, error: ChannelError) -> None:
        if not self._is_over():
            self.trouble.begin(error.reason, error.remedy)

    def _is_over(self) -> bool:
        return self._closing_at is not None and time.monotonic() > self._closing_at

    def _pause(self, pause_s: float) -> None:
        """Pause; closing ends the pause for one more attempt. Later attempts pause as well, until
        the time for closing is over.
        """
        with self._condition:
            if self._closing_at is None:
                self._condition.wait_for(lambda: self._closing_at is not None, pause_s)
            else:
                left_s = max(0.0, self._closing_at - time.monotonic())
                self._condition.wait_for(self._is_over, min(pause_s, left_s))

    def _report_dropped(self) -> None:
        with self._condition:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            logger.warning("%d notifications for Kafka were dropped in the meantime", dropped)


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


# Signals.

STATE_KEY: Final = "signal-kafka"
SIGNALS_AT_ONCE: Final = 100
SIGNALS_POLL_S: Final = 0.5
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
        failures = 0
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
            failures = 1 if self._works else failures + 1
            self._closed.wait(PAUSE_S.after(failures))

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
        sizes = {"queued.max.messages.kbytes": 4096, "queued.min.messages": SIGNALS_AT_ONCE}
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
            messages = consumer.consume(SIGNALS_AT_ONCE, timeout=SIGNALS_POLL_S)
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
