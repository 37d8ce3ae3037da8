"""The section ``control`` of ``tidelog.yaml``: HTTP interface, signals, notifications, alerts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from tidelog.config.alerts import AnyAlert
from tidelog.config.kafka import NotificationKafka, SignalKafka
from tidelog.config.otlp import Otlp
from tidelog.kinds.sections import LocalPath, Section


class Rest(Section):
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
        description="This token gives access to schemas of Avro messages, and nothing else. "
        "Unset: `token` is needed for that, too.",
        examples=["${TIDELOG_SCHEMA_TOKEN}"],
    )
    metrics_token: SecretStr | None = Field(
        default=None,
        min_length=8,
        description="This token gives access to `/metrics`, and nothing else: for Prometheus. "
        "Unset: `token` is needed for that, too.",
        examples=["${TIDELOG_METRICS_TOKEN}"],
    )
    viewer_token: SecretStr | None = Field(
        default=None,
        min_length=8,
        description="A user who logs in to the web page with this token sees all and changes "
        "nothing; with `token` one may act, too. Unset: only users with `token` can log in.",
        examples=["${TIDELOG_VIEWER_TOKEN}"],
    )

    behind_proxy: bool = Field(
        default=False,
        description="All requests from this host come through a proxy that sets "
        "`X-Forwarded-For` and `X-Forwarded-Proto`, whatever it received: these name the client, "
        "and whether it uses TLS. Otherwise they are ignored.",
    )

    @model_validator(mode="after")
    def _check_viewer_token(self) -> Rest:
        if self.viewer_token is not None and self.viewer_token == self.token:
            raise ValueError("viewer_token must differ from token: a viewer could act with it")
        return self


class Control(Section):
    """Channels for commands and notifications beside the command line."""

    rest: Rest | None = Field(default=None, description="Unset: no HTTP interface.")
    signal_file: LocalPath | None = Field(
        default=None,
        description="File whose appended lines are commands, as Debezium's file channel: one JSON "
        "object `{id, type, data}` a line.",
        examples=["./signals.jsonl"],
    )
    signal_kafka: SignalKafka | None = Field(
        default=None,
        description="Kafka topic whose messages are commands, as Debezium's Kafka channel: for "
        "sources that can't be written to. Unset: none.",
    )
    notifications: list[Literal["log", "file", "eventlog", "kafka"]] = Field(
        default=["eventlog"],
        description="Where notifications of dumps go: the process's own log lines, a file of JSON "
        "lines, control records of the event log, a Kafka topic.",
    )
    notification_file: LocalPath | None = Field(
        default=None, description="For `file`.", examples=["./notifications.jsonl"]
    )
    notification_kafka: NotificationKafka | None = Field(default=None, description="For `kafka`.")
    otlp: Otlp | None = Field(
        default=None, description="Unset: metrics are not pushed by OpenTelemetry."
    )
    alerts: list[AnyAlert] = Field(
        default=[], description="Who gets an alert when something is wrong, and when that is over."
    )

    @model_validator(mode="after")
    def _check_notification_targets(self) -> Control:
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
