"""Kind ``http``: its section, its probe, and how it is opened."""

from __future__ import annotations

import string
from dataclasses import replace
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from tidelog.kinds.sections import Bytes, Milliseconds, SecretUrl
from tidelog.outputs.base.builtin_kind import BuiltinKind, check_port
from tidelog.outputs.base.progress import has_whole_log
from tidelog.outputs.base.sections import (
    DEBEZIUM,
    SKIPPED,
    DebeziumSection,
    Headers,
    HeaderValue,
    JsonFormatName,
    MessageSection,
    SkippedOperations,
    name_field,
)
from tidelog.outputs.delivery_settings import delivery_of, handling_of, skipped_of
from tidelog.ports import LogExtent, Output, OutputContext, OutputLocation

if TYPE_CHECKING:
    from tidelog.outputs.http.requests import Body, Endpoint


class HttpSection(MessageSection):
    """Change events posted to an API in batches (docs/outputs/http.md)."""

    kind: Literal["http"] = Field(description="The kind of output.")
    name: str = name_field(
        "http",
        "Names the output's progress, and is a part of each request's key: keep it.",
    )
    url: SecretUrl = Field(
        description="Where requests go; `{namespace}`, `{name}` stand for the source's table, "
        "`{table}` for the name that a step `route` gives.",
        examples=["https://api.example.com/events/{table}"],
    )
    method: Literal["POST", "PUT", "PATCH"] = Field(
        default="POST", description="Method of requests."
    )
    token: HeaderValue | None = Field(
        default=None,
        min_length=1,
        description="Sent as `Authorization: Bearer`.",
        examples=["${API_TOKEN}"],
    )
    headers: Headers = Field(
        default={},
        description="Sent with each request.",
        examples=[{"X-Api-Key": "${API_KEY}"}],
    )
    format: JsonFormatName = Field(default="debezium", description="The form of the events.")
    debezium: DebeziumSection | None = DEBEZIUM
    skipped_operations: SkippedOperations | None = SKIPPED
    body: Literal["array", "ndjson"] = Field(
        default="array",
        description="The body of a request: a JSON array of events, or one event a line.",
    )
    order: Literal["key", "total"] = Field(
        default="key",
        description="`key`: a key's changes in order. `total`: one request after the other, all "
        "in the log's order.",
    )
    connections: int = Field(
        default=4,
        ge=1,
        le=256,
        description="Requests of a table that are sent at once. Those of a key are sent one after "
        "the other.",
    )
    batch_rows: int = Field(default=500, ge=1, description="Events in a request at most.")
    batch_bytes: Bytes = Field(
        default=1 << 20, ge=1, le=64 << 20, description="Size of a request, before gzip, at most."
    )
    gzip: bool = Field(default=False, description="Compress requests (`Content-Encoding: gzip`).")
    timeout_ms: Milliseconds = Field(
        default=30_000,
        ge=1,
        description="To connect, and for each part of the answer.",
        examples=["30s"],
    )
    retry_for_ms: Milliseconds = Field(
        default=60_000,
        ge=0,
        description="How long a task retries a request. Then the batch fails, and the pipeline "
        "retries it.",
        examples=["60s"],
    )
    ca_file: str | None = Field(
        default=None, description="Certificates of authorities, PEM, on driver and executors."
    )

    @field_validator("url")
    @classmethod
    def _url_of_an_api(cls, url: SecretUrl) -> SecretUrl:
        text = url.reveal()
        if not text.isprintable() or " " in text:
            raise ValueError("a url has no line ends, spaces or control characters")
        try:
            parts = urlsplit(text)
            parts.port  # noqa: B018 - raises if it is not a number
            placeholders = {
                name for _, name, _, _ in string.Formatter().parse(text) if name is not None
            }
        except ValueError:
            raise ValueError("expected a url; {{ and }} stand for braces") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("expected http://host/path or https://host/path")
        if not placeholders <= {"table", "namespace", "name"}:
            raise ValueError(
                "only {table}, {namespace} and {name} can stand in a url; {{ and }} are braces"
            )
        return url


def _probe(section: HttpSection) -> str:
    # A connection without a request, which would be a record.
    url = urlsplit(section.url.reveal())
    return check_port(url.hostname or "", url.port or (443 if url.scheme == "https" else 80))


def endpoint_of(section: HttpSection) -> Endpoint:
    """Return the address and form of requests."""
    from tidelog.outputs.http.requests import Endpoint

    headers = {name: value.get_secret_value() for name, value in section.headers.items()}
    if section.token is not None:
        headers["Authorization"] = f"Bearer {section.token.get_secret_value()}"
    return Endpoint(
        section.url.reveal(),
        section.method,
        headers,
        gzip=section.gzip,
        timeout_s=section.timeout_ms / 1000,
        retry_for_s=section.retry_for_ms / 1000,
        ca_file=section.ca_file,
    )


def body_of(section: HttpSection) -> Body:
    """Return the body of requests."""
    from tidelog.outputs.http.requests import Body

    return Body(section.body, section.batch_rows, section.batch_bytes)


def _open(section: HttpSection, context: OutputContext) -> Output:
    from tidelog.outputs.formatters import formatter
    from tidelog.outputs.http.writer import HttpOutput

    delivery = delivery_of(section, keyed=False, order=section.order)
    return HttpOutput(
        context.spark,
        context.log_path,
        context.open_state(),
        replace(
            delivery,
            formatter=formatter(section.format, tombstones=False, handling=handling_of(section)),
            skipped=skipped_of(section),
            types=section.column_types(),
        ),
        endpoint=endpoint_of(section),
        body=body_of(section),
        lanes=section.connections,
    )


def _location(section: HttpSection) -> OutputLocation:
    url = urlsplit(section.url.reveal())
    # A query may contain a key, which changes now and then.
    return OutputLocation([url.hostname, url.port, url.path], qualifier=url.query)


def _idle(section: HttpSection, log: LogExtent) -> bool:
    return has_whole_log(log, section.name)  # without records nothing is requested of the API


KIND = BuiltinKind(HttpSection, _open, _location, "httpx", _probe, idle=_idle)
