"""Sections of channels on Kafka: ``control.signal_kafka`` and ``control.notification_kafka``."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr, field_validator

from tidelog.kinds.sections import LibrdkafkaSettings, Section

TopicName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]


class KafkaChannel(Section):
    """Options that channels on Kafka share."""

    OURS: ClassVar[frozenset[str]] = frozenset({"bootstrap.servers"})
    """Settings that the user can't change."""

    servers: str = Field(
        min_length=1,
        description="Brokers to begin with, separated by commas.",
        examples=["kafka1:9092,kafka2:9092"],
    )
    settings: LibrdkafkaSettings = Field(default={})

    @field_validator("settings")
    @classmethod
    def _check_own_settings(cls, settings: dict[str, SecretStr]) -> dict[str, SecretStr]:
        taken = sorted(cls.OURS & settings.keys())
        if taken:
            raise ValueError(f"{', '.join(taken)} can't be set here: Tidelog sets it")
        return settings


class SignalKafka(KafkaChannel):
    """A topic whose messages are signals, as in Debezium (docs/how-to/control.md)."""

    OURS: ClassVar[frozenset[str]] = KafkaChannel.OURS | {
        "auto.offset.reset",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "group.id",
        "isolation.level",
    }

    topic: TopicName | None = Field(
        default=None,
        description="As Debezium's `signal.kafka.topic`; it has one partition. Unset: the `key` "
        "with `-signal`.",
        examples=["shop-signal"],
    )
    key: str | None = Field(
        default=None,
        min_length=1,
        description="Messages with this key are for this capture, as those with Debezium's "
        "`topic.prefix`; all others are ignored. Unset: the `connector_name` of notifications.",
        examples=["shop"],
    )
    begin: Literal["earliest", "latest"] = Field(
        default="earliest",
        description="Where to start in a topic that was never read: at its first message, or at "
        "the next new one.",
    )


class NotificationKafka(KafkaChannel):
    """A topic for notifications, as Debezium's sink channel (docs/how-to/control.md)."""

    OURS: ClassVar[frozenset[str]] = KafkaChannel.OURS | {
        "acks",
        "delivery.timeout.ms",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "message.send.max.retries",
        "message.timeout.ms",
        "request.required.acks",
        "retries",
        "transactional.id",
    }

    topic: TopicName = Field(
        description="As Debezium's `notification.sink.topic.name`.",
        examples=["shop-notifications"],
    )
