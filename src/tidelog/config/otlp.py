"""The section ``control.otlp``: metrics by OpenTelemetry."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from tidelog.kinds.sections import Milliseconds, SecretUrl, Section
from tidelog.outputs.base.sections import Headers


class Otlp(Section):
    """Metrics that each capture process pushes by OpenTelemetry (OTLP over HTTP, protobuf)."""

    endpoint: SecretUrl = Field(
        description="The URL that metrics are posted to, with its path. Logins go into `headers`.",
        examples=["http://collector:4318/v1/metrics"],
    )
    headers: Headers = Field(
        default={},
        description="Sent with each request. All are treated as secrets.",
        examples=[{"Authorization": "Bearer ${OTLP_TOKEN}"}],
    )
    service_name: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,100}$",
        description="The resource's `service.name`, in the namespace `tidelog`: the same for a "
        "leader and its standbys. With `source.databases` each one's name is added. Unset: the "
        "source's name in notifications.",
        examples=["shop"],
    )
    every_ms: Milliseconds = Field(
        default=15_000, ge=1000, description="How often they are pushed.", examples=["15s"]
    )
    timeout_ms: Milliseconds = Field(
        default=10_000,
        ge=100,
        description="For one push. What could not be pushed is not repeated; the next push has "
        "newer values.",
        examples=["10s"],
    )

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: SecretUrl) -> SecretUrl:
        """Check that the endpoint has no secret: log lines name its host."""
        if not re.fullmatch(r"https?://[^?#@\s]+", endpoint.reveal()):
            raise ValueError("expected http://host:port/path without login and query")
        return endpoint
