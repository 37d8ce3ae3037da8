"""Common parts of the Kafka channels: the topic, its check, and the report of a problem."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from tidelog.outputs.kafka.client import ClientErrors, common, error_text, librdkafka_log

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
_AFTER: Final = re.compile(r" \(after \d+ms [^)]*\)")  # differs with each attempt
NO_TOPIC_ID: Final = "A" * 22
"""All bits zero (KIP-516)."""
AGAIN: Final = "It is retried automatically once that is fixed."
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
    """A channel does not work now; ``remedy``: how to fix it. Neither contains a setting's
    value.
    """

    def __init__(self, reason: str, remedy: str = AGAIN) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


class ChannelProblem:
    """The current problem of a channel, if any. Logged when it begins, changes and ends.
    Thread-safe.

    Args:
        channel: a name for programs.
        sentence: the message for people that precedes the reason.
    """

    def __init__(self, channel: str, sentence: str) -> None:
        self._channel = channel
        self._sentence = sentence
        self._lock = threading.Lock()
        self._now: dict[str, Any] | None = None

    def begin(self, reason: str, remedy: str = AGAIN) -> None:
        with self._lock:
            before, now_ms = self._now, int(time.time() * 1000)
            self._now = {
                "channel": self._channel,
                "reason": f"{self._sentence}: {reason}",
                "remedy": remedy,
                "since_ms": now_ms if before is None else before["since_ms"],
            }
            changed = before is None or before["reason"] != self._now["reason"]
        if changed:
            logger.warning("%s: %s. %s", self._sentence, reason, remedy)

    def end(self) -> None:
        with self._lock:
            ended, self._now = self._now, None
        if ended is not None:
            logger.info("over: %s", ended["reason"])

    def now(self) -> dict[str, Any] | None:
        """``channel``, ``reason``, ``remedy``, ``since_ms``; None: the channel works."""
        with self._lock:
            return self._now


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
