"""Sends one request until the API has taken it, refused it, or time is up."""

from __future__ import annotations

import gzip
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote, urlsplit

import httpx

from tidelog.errors import ConfigError, OutputError, OutputRefusedError
from tidelog.ports import TargetTable
from tidelog.system import failpoints

# What an answer means: tried again; of these records; of us and not of the records. Any other 4xx
# is of the records.
_AGAIN = frozenset({408, 409, 425, 429})
_CREDENTIALS = frozenset({401, 407})
_FORBIDDEN = 403
_WRONG = frozenset({404, 405, 406, 410, 415, 501, 505})
_CONFLICT = 409  # the same key is at work elsewhere; if it stays, the records are at fault
_GATEWAY = frozenset({502, 504})  # who answers does not know what became of the request

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_LONGEST_ASKED_S = 300.0
_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True)
class Endpoint:
    """Where and how requests go. ``headers`` and ``url`` may hold secrets.

    ``url``: a pattern, see `url_of`. ``timeout_s``: for the connection, and for each wait for a
    part of the answer. ``retry_for_s``: how long a request is tried again before the whole batch
    fails and is left to the pipeline's pauses; pauses that the API asks for are kept beyond it.
    """

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    gzip: bool = False
    timeout_s: float = 30.0
    retry_for_s: float = 60.0
    ca_file: str | None = None

    @property
    def host(self) -> str:
        """For messages: no path, which may be a secret."""
        return urlsplit(self.url).hostname or "the API"


class RejectedError(Exception):
    """The API will never take the request; its records are at fault."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class StoppedError(Exception):
    """Given up because the task ends."""


class HttpSender:
    """Thread-safe. ``connections`` are kept open at most. ``in_doubt``: the API may be at work on
    requests of an earlier process or task with the same keys. ``check_lease``: raises
    LeaseLostError where nothing more may be sent.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        connections: int,
        *,
        in_doubt: bool,
        check_lease: Callable[[], None],
    ) -> None:
        self._endpoint = endpoint
        self._check_lease = check_lease
        self._in_doubt = in_doubt
        self._stopping = threading.Event()
        self._client = httpx.Client(
            timeout=endpoint.timeout_s,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            verify=authorities(endpoint.ca_file),
        )

    def send(self, url: str, body: bytes, content_type: str, headers: Mapping[str, str]) -> None:
        """Returns when the API has said that it has the records.

        Raises RejectedError; OutputError if time is up; OutputRefusedError if the API refuses us;
        LeaseLostError before a try that nobody may make any more.
        """
        whole = httpx.Headers({"Content-Type": content_type})
        whole.update(self._endpoint.headers)
        whole.update(headers)
        if self._endpoint.gzip:
            body = gzip.compress(body, compresslevel=6, mtime=0)
            whole["Content-Encoding"] = "gzip"
        until = time.monotonic() + self._endpoint.retry_for_s
        pause_s = _FIRST_PAUSE_S
        unanswered = self._in_doubt  # a try of which nobody has told what became of it
        while True:
            if self._stopping.is_set():
                raise StoppedError
            # Nothing at the API tells a late request from another: it must not be sent.
            self._check_lease()
            failpoints.hit("output.request")
            asked_s: float | None = None
            status = 0
            try:
                status, asked_s = self._once(url, body, whole)
                if status < 300:
                    return
                why = f"HTTP {status}"
                unanswered |= status in _GATEWAY
            except (httpx.UnsupportedProtocol, httpx.InvalidURL):
                raise OutputRefusedError("http: the output's url is not a URL") from None
            except httpx.TransportError as error:
                why = type(error).__name__
                unanswered |= not isinstance(error, _NOT_SENT)
            wait_s = pause_s * random.uniform(0.5, 1.0)  # noqa: S311
            if asked_s is not None:
                wait_s = max(wait_s, min(asked_s, _LONGEST_ASKED_S))
            if asked_s is None and time.monotonic() + wait_s > until:
                # After a try that was left unanswered it is that one that is at work: parts of the
                # request, under keys of their own, would be taken beside it.
                if status == _CONFLICT and not unanswered:
                    raise RejectedError(status)
                raise OutputError(f"http: {self._endpoint.host} does not take requests: {why}")
            if time.monotonic() > until + _LONGEST_ASKED_S:
                raise OutputError(f"http: {self._endpoint.host} goes on asking to wait: {why}")
            self._stopping.wait(wait_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def stop(self) -> None:
        """End pauses, and all sending at the next try."""
        self._stopping.set()

    def close(self) -> None:
        self._stopping.set()
        self._client.close()

    def _once(self, url: str, body: bytes, headers: httpx.Headers) -> tuple[int, float | None]:
        """The status, and the pause that the API asks for; only those worth another try or 2xx."""
        host = self._endpoint.host
        with self._client.stream(
            self._endpoint.method, url, content=body, headers=headers
        ) as answer:
            status = answer.status_code
            read = 0
            for part in answer.iter_raw():
                # To its end, so that the connection can be used again; an answer that breaks off
                # is none.
                read += len(part)
                if read > _ANSWER_BYTES:
                    break
            asked_s = _asked_s(answer.headers.get("Retry-After"))
        if 200 <= status < 300:
            return status, None
        if status in _CREDENTIALS:
            raise OutputRefusedError(
                f"http: {host} refuses our credentials (HTTP {status}): check the output's token "
                "and headers"
            )
        if status == _FORBIDDEN:
            raise OutputRefusedError(
                f"http: {host} forbids it (HTTP {status}): check what the output's token and "
                "headers may do, and whether the API takes writes now"
            )
        if status in _WRONG or status < 400:
            raise OutputRefusedError(
                f"http: {host} answers HTTP {status}: check the output's url, method and body"
            )
        if status in _AGAIN or status >= 500:
            return status, asked_s
        raise RejectedError(status)


def url_of(pattern: str, table: TargetTable) -> str:
    """``{table}``, ``{namespace}`` and ``{name}`` filled in, as a part of a path.

    Raises ConfigError for any other name.
    """
    names = {
        "table": table.name,
        "namespace": table.source.namespace,
        "name": table.source.name,
    }
    try:
        return pattern.format(**{name: quote(text, safe="") for name, text in names.items()})
    except (KeyError, IndexError, ValueError):
        raise ConfigError(
            "url of an http output: only {table}, {namespace} and {name} can stand in it; write "
            "{{ and }} for braces"
        ) from None


def authorities(ca_file: str | None) -> ssl.SSLContext | bool:
    """Who is trusted. Raises ConfigError if the file can't be read."""
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigError(f"ca_file {ca_file}: {error.strerror}") from None


def _asked_s(header: str | None) -> float | None:
    """Retry-After (RFC 9110, 10.2.3): seconds, or a date."""
    if header is None:
        return None
    text = header.strip()
    if text.isdigit():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())
