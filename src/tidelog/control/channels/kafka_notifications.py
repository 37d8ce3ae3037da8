"""Sends notifications to a Kafka topic, as Debezium's sink channel. Dumps never wait for it.

The message's key is ``{"id": …}``, its value the notification, both JSON as Kafka Connect's
converter writes them without schemas.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidelog.capture.notifications import Notification
from tidelog.control.channels.kafka import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    ChannelError,
    ChannelProblem,
    KafkaTopic,
    channel_error,
    topic_facts,
)
from tidelog.outputs.kafka.client import ClientErrors, error_text, librdkafka_log

logger = logging.getLogger(__name__)

MOST_WAITING: Final = 10_000
MOST_BYTES: Final = 16 << 20
AT_ONCE: Final = 500
PATIENCE_S: Final = 5.0
"""Messages that were not accepted for this time are reported as a problem; they stay queued."""
CLOSE_S: Final = 2.0
_POLL_S: Final = 0.05
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
        pause_s = FIRST_PAUSE_S
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting or self._closing_at is not None)
                batch = list(islice(self._waiting, 1 if self._alone else AT_ONCE))
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
                pause_s = FIRST_PAUSE_S
                producer = None if again else producer
                continue
            # A client caches for minutes that a topic did not exist.
            producer = None
            self._pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _producer(self) -> Producer:
        self._heard = ClientErrors()
        sizes = {"linger.ms": 0, "queue.buffering.max.messages": 2 * AT_ONCE}
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
            producer.poll(_POLL_S)
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
