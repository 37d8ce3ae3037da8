"""The section ``control``: HTTP interface, signals, notifications, alerts, and metrics."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from tidelog.kinds.sections import LibrdkafkaSettings, LocalPath, Milliseconds, SecretUrl, Section
from tidelog.outputs.base.sections import Headers

# The section ``control.alerts``: who gets alerts when something is wrong.


class _AlertSection(Section):
    name: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_-]{0,64}$",
        description="Its name among alerts of its kind; its reports are stored under this name.",
        examples=["night-shift"],
    )
    severity: Literal["warning", "critical"] = Field(
        default="warning", description="Report problems of this severity or worse."
    )
    after_ms: Milliseconds = Field(
        default=60_000,
        ge=0,
        description="How long a problem must last before it is reported, and be over before its "
        "end is reported.",
        examples=["1m"],
    )
    timeout_ms: Milliseconds = Field(
        default=10_000,
        ge=100,
        description="For the connection, each wait for the answer, and the whole command. An alert "
        "that failed is retried.",
        examples=["10s"],
    )

    @property
    def key(self) -> str:
        """The name of this alert among all."""
        return f"{self.kind}/{self.name}"  # type: ignore[attr-defined]


class WebhookAlertSection(_AlertSection):
    """An alert that posts a JSON object (docs/how-to/monitor.md)."""

    kind: Literal["webhook"] = Field(description="The kind of alert.")
    url: SecretStr = Field(
        description="Where it is posted. Treated as a secret: services have a key in its path.",
        examples=["${ALERT_URL}"],
    )
    headers: Headers = Field(
        default={},
        description="Sent with it.",
        examples=[{"Authorization": "Bearer ${ALERT_TOKEN}"}],
    )


class CommandAlertSection(_AlertSection):
    """An alert that runs a program, which reads the JSON object from its standard input."""

    kind: Literal["command"] = Field(description="The kind of alert.")
    command: list[str] = Field(
        min_length=1,
        description="The program and its arguments; no shell reads them. The alert is delivered "
        "if it ends with 0.",
        examples=[["/usr/local/bin/page", "--team", "data"]],
    )


AnyAlert = Annotated[WebhookAlertSection | CommandAlertSection, Field(discriminator="kind")]


# The sections ``control.signal_kafka`` and ``control.notification_kafka``.

TopicName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]


class KafkaChannelSection(Section):
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


class SignalKafkaSection(KafkaChannelSection):
    """A topic whose messages are signals, as in Debezium (docs/how-to/control.md)."""

    OURS: ClassVar[frozenset[str]] = KafkaChannelSection.OURS | {
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


class NotificationKafkaSection(KafkaChannelSection):
    """A topic for notifications, as Debezium's sink channel (docs/how-to/control.md)."""

    OURS: ClassVar[frozenset[str]] = KafkaChannelSection.OURS | {
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


# The section ``control.otlp``: metrics by OpenTelemetry.


class OtlpSection(Section):
    """Metrics that each capture process pushes by OpenTelemetry (OTLP over HTTP, protobuf)."""

    endpoint: SecretUrl = Field(
        description="The URL that metrics are posted to, with its path. Logins go into `headers`.",
        examples=["http://collector:4318/v1/metrics"],
    )
    headers: Headers = Field(
        default={},
        description="Sent with each request.",
        examples=[{"Authorization": "Bearer ${OTLP_TOKEN}"}],
    )
    service_name: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,100}$",
        description="The resource's `service.name`. Unset: the source's name in notifications.",
        examples=["shop"],
    )
    every_ms: Milliseconds = Field(
        default=15_000, ge=1000, description="How often they are pushed.", examples=["15s"]
    )
    timeout_ms: Milliseconds = Field(
        default=10_000,
        ge=100,
        description="For one push. A failed push is not repeated.",
        examples=["10s"],
    )

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: SecretUrl) -> SecretUrl:
        """Check that the endpoint has no secret: log lines name its host."""
        if not re.fullmatch(r"https?://[^?#@\s]+", endpoint.reveal()):
            raise ValueError("expected http://host:port/path without login and query")
        return endpoint


# The section ``control.rest``, and the whole section.


class RestSection(Section):
    """The HTTP interface for commands and status, served by the leading capture."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8490, ge=0, le=65_535, description="0: a free one.")
    url: str | None = Field(
        default=None,
        pattern=r"^https?://[^/?#@\s]+(/[^?#\s]*)?$",
        description="Where other hosts reach this process's interface. While it leads, standbys "
        "answer with this URL (status 307). Unset: they only name the leader (503).",
        examples=["http://host1.internal:8490"],
    )
    token: SecretStr = Field(
        min_length=8,
        description="Every request carries it as `Authorization: Bearer …`. Never printed.",
        examples=["${TIDELOG_TOKEN}"],
    )
    schema_token: SecretStr | None = Field(
        default=None,
        min_length=8,
        description="Gives access to schemas of Avro messages alone.",
        examples=["${TIDELOG_SCHEMA_TOKEN}"],
    )
    metrics_token: SecretStr | None = Field(
        default=None,
        min_length=8,
        description="Gives access to `/metrics` alone.",
        examples=["${TIDELOG_METRICS_TOKEN}"],
    )
    viewer_token: SecretStr | None = Field(
        default=None,
        min_length=8,
        description="Who logs in to the web page with it sees all and changes nothing.",
        examples=["${TIDELOG_VIEWER_TOKEN}"],
    )

    behind_proxy: bool = Field(
        default=False,
        description="All requests from this host come through a proxy that sets "
        "`X-Forwarded-For` and `X-Forwarded-Proto`. Otherwise these headers are ignored.",
    )

    @model_validator(mode="after")
    def _check_viewer_token(self) -> RestSection:
        if self.viewer_token is not None and self.viewer_token == self.token:
            raise ValueError("viewer_token must differ from token: a viewer could act with it")
        return self


class ControlSection(Section):
    """Channels for commands and notifications beside the command line."""

    rest: RestSection | None = Field(default=None, description="Unset: no HTTP interface.")
    signal_file: LocalPath | None = Field(
        default=None,
        description="File whose appended lines are commands, as Debezium's file channel: one JSON "
        "object `{id, type, data}` a line.",
        examples=["./signals.jsonl"],
    )
    signal_kafka: SignalKafkaSection | None = Field(
        default=None,
        description="Kafka topic whose messages are commands, as Debezium's Kafka channel: for "
        "sources that can't be written to. Unset: none.",
    )
    notifications: list[Literal["log", "file", "eventlog", "kafka"]] = Field(
        default=["eventlog"],
        description="Where notifications of dumps go: `log` (lines), `file`, `eventlog`, `kafka`.",
    )
    notification_file: LocalPath | None = Field(
        default=None, description="For `file`.", examples=["./notifications.jsonl"]
    )
    notification_kafka: NotificationKafkaSection | None = Field(
        default=None, description="For `kafka`."
    )
    otlp: OtlpSection | None = Field(
        default=None, description="Unset: metrics are not pushed by OpenTelemetry."
    )
    alerts: list[AnyAlert] = Field(
        default=[], description="Who gets an alert when something is wrong, and when that is over."
    )

    @model_validator(mode="after")
    def _check_notification_targets(self) -> ControlSection:
        if "file" in self.notifications and self.notification_file is None:
            raise ValueError("notifications to a file need notification_file")
        if "kafka" in self.notifications and self.notification_kafka is None:
            raise ValueError("notifications to kafka need notification_kafka")
        return self

    @field_validator("alerts")
    @classmethod
    def _check_alert_names(cls, alerts: list[AnyAlert]) -> list[AnyAlert]:
        keys = [each.key for each in alerts]
        if len(set(keys)) < len(keys):
            raise ValueError("several alerts of one kind: give each a name of its own")
        return alerts
