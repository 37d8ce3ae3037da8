"""The section ``control`` of ``tidelog.yaml``: the HTTP interface, signals, who is told what."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from tidelog.config.alerts import AnyAlert
from tidelog.sections import LocalPath, Section


class Rest(Section):
    """The HTTP interface for commands and status, served by the capture that leads."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8490, ge=0, le=65_535, description="0: a free one.")
    url: str | None = Field(
        default=None,
        pattern=r"^https?://[^/?#@\s]+(/[^?#\s]*)?$",
        description="Where other hosts reach this process's interface. While it leads, those that "
        "stand by answer with this URL (status 307). Unset: they name the leader alone (503).",
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
        description="With this token schemas of Avro messages can be read, and nothing else. "
        "Unset: `token` is needed for that, too.",
        examples=["${TIDELOG_SCHEMA_TOKEN}"],
    )
    metrics_token: SecretStr | None = Field(
        default=None,
        min_length=8,
        description="With this token `/metrics` can be read, and nothing else: for Prometheus. "
        "Unset: `token` is needed for that, too.",
        examples=["${TIDELOG_METRICS_TOKEN}"],
    )
    viewer_token: SecretStr | None = Field(
        default=None,
        min_length=8,
        description="Who logs in to the web page with this token sees all and changes nothing; "
        "with `token` one may act, too. Unset: the page is for those who have `token`.",
        examples=["${TIDELOG_VIEWER_TOKEN}"],
    )

    behind_proxy: bool = Field(
        default=False,
        description="All that comes from this host comes through a proxy that sets "
        "`X-Forwarded-For` and `X-Forwarded-Proto`, whatever it was sent: these say who asks, and "
        "whether by TLS. Otherwise they are not believed.",
    )

    @model_validator(mode="after")
    def _viewers_are_not_operators(self) -> Rest:
        if self.viewer_token is not None and self.viewer_token == self.token:
            raise ValueError("viewer_token must not be token: who has it could act")
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
    notifications: list[Literal["log", "file", "eventlog"]] = Field(
        default=["eventlog"],
        description="Where notifications of dumps go: the process's own log lines, a file of JSON "
        "lines, control records of the event log.",
    )
    notification_file: LocalPath | None = Field(
        default=None, description="For `file`.", examples=["./notifications.jsonl"]
    )
    alerts: list[AnyAlert] = Field(
        default=[], description="Who is told when something is wrong, and when that is over."
    )

    @model_validator(mode="after")
    def _file_is_named(self) -> Control:
        if "file" in self.notifications and self.notification_file is None:
            raise ValueError("notifications to a file need notification_file")
        return self

    @field_validator("alerts")
    @classmethod
    def _alerts_differ(cls, alerts: list[AnyAlert]) -> list[AnyAlert]:
        keys = [each.key for each in alerts]
        if len(set(keys)) < len(keys):
            raise ValueError("several alerts of one kind: give each a name of its own")
        return alerts
