"""Sections of those who are told when something is wrong: ``control.alerts``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from tidelog.kinds.sections import Milliseconds, Section
from tidelog.outputs.base.sections import Headers


class _Alert(Section):
    name: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_-]{0,64}$",
        description="Tells it from others of its kind; what it was told is kept under this name.",
        examples=["night-shift"],
    )
    severity: Literal["warning", "critical"] = Field(
        default="warning", description="It is told of problems that are at least so bad."
    )
    after_ms: Milliseconds = Field(
        default=60_000,
        ge=0,
        description="How long a problem has lasted before it is told, and has been gone before its "
        "end is.",
        examples=["1m"],
    )
    timeout_ms: Milliseconds = Field(
        default=10_000,
        ge=100,
        description="For the connection, each wait for the answer, and the whole command. What "
        "could not be told is tried again.",
        examples=["10s"],
    )

    @property
    def key(self) -> str:
        """Names it among all."""
        return f"{self.kind}/{self.name}"  # type: ignore[attr-defined]


class WebhookAlert(_Alert):
    """A JSON object, posted (docs/how-to/monitor.md)."""

    kind: Literal["webhook"] = Field(description="How it is told.")
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
    """A program that reads the JSON object from its standard input."""

    kind: Literal["command"] = Field(description="How it is told.")
    command: list[str] = Field(
        min_length=1,
        description="The program and its arguments; no shell reads them. It has told if it ends "
        "with 0.",
        examples=[["/usr/local/bin/page", "--team", "data"]],
    )


AnyAlert = Annotated[WebhookAlert | CommandAlert, Field(discriminator="kind")]
