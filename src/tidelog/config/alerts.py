"""The section ``control.alerts``: who gets alerts when something is wrong."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from tidelog.kinds.sections import Milliseconds, Section
from tidelog.outputs.base.sections import Headers


class _Alert(Section):
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


class WebhookAlert(_Alert):
    """An alert that posts a JSON object (docs/how-to/monitor.md)."""

    kind: Literal["webhook"] = Field(description="The kind of alert.")
    url: SecretStr = Field(
        description="Where it is posted. Treated as a secret: services have a key in its path.",
        examples=["${ALERT_URL}"],
    )
    headers: Headers = Field(
        default={},
        description="Sent with it. All are treated as secrets.",
        examples=[{"Authorization": "Bearer ${ALERT_TOKEN}"}],
    )


class CommandAlert(_Alert):
    """An alert that runs a program, which reads the JSON object from its standard input."""

    kind: Literal["command"] = Field(description="The kind of alert.")
    command: list[str] = Field(
        min_length=1,
        description="The program and its arguments; no shell reads them. The alert is delivered "
        "if it ends with 0.",
        examples=[["/usr/local/bin/page", "--team", "data"]],
    )


AnyAlert = Annotated[WebhookAlert | CommandAlert, Field(discriminator="kind")]
