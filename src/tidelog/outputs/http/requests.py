"""Splits messages into requests, and sends each until the API has accepted or rejected it.

Messages are split equally whenever the same messages are written, so that a repeated request has
the same content and the same key.
"""

from __future__ import annotations

import gzip
import hashlib
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import ConfigError, OutputError, OutputRefusedError
from tidelog.ports import TargetTable
from tidelog.system import failpoints
from tidelog.system.backoff import Backoff

_Ints = npt.NDArray[np.int64]

KEY_HEADER = "Idempotency-Key"
TABLE_HEADER = "Tidelog-Table"
VERSIONS_HEADER = "Tidelog-Versions"
_LONGEST_KEY = 255


@dataclass(frozen=True)
class Body:
    """The body of requests.

    Attributes:
        kind: array or ndjson.
        rows: the most messages of a request.
        size_bytes: the most bytes of a request. Messages of one version are never split: their keys
            would be equal.
    """

    kind: str
    rows: int
    size_bytes: int

    @property
    def content_type(self) -> str:
        return "application/json" if self.kind == "array" else "application/x-ndjson"

    @property
    def separator(self) -> bytes:
        return b"," if self.kind == "array" else b"\n"


@dataclass(frozen=True)
class RequestMessages:
    """Consecutive messages of one lane, ``start`` to ``end`` of arrays that requests share.

    ``data[bounds[i]:bounds[i + 1]]`` is message i with the separator after it, ``tables`` the names
    of their tables.
    """

    tables: pa.Array
    versions: _Ints
    bounds: _Ints
    data: pa.Buffer
    start: int
    end: int

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last version."""
        return int(self.versions[self.start]), int(self.versions[self.end - 1])

    @property
    def table(self) -> str:
        """The table of the first message."""
        return str(self.tables[self.start].as_py())

    def body(self, kind: str) -> bytes:
        """Return all messages as one text."""
        found = memoryview(self.data)[self.bounds[self.start] : self.bounds[self.end]]
        if kind == "array":
            return b"".join((b"[", found[:-1], b"]"))
        return bytes(found)

    def halves(self) -> tuple[RequestMessages, RequestMessages] | None:
        """Return two parts, to find the rejected one; None if all messages have one version."""
        middle = (self.start + self.end) // 2
        for at in (_next(self.versions, middle, self.end), _last(self.versions, middle)):
            if self.start < at < self.end:
                return replace(self, end=at), replace(self, start=at)
        return None


def build_messages(rows: pa.RecordBatch, body: Body) -> RequestMessages:
    """Return ``table``, ``version``, ``value`` (binary, none null) as `RequestMessages`."""
    joined = pc.binary_join_element_wise(rows.column("value"), body.separator, b"").cast(
        pa.large_binary()
    )
    buffers = joined.buffers()
    bounds = np.frombuffer(buffers[1], np.int64, len(joined) + 1)
    data = buffers[2] if buffers[2] is not None else pa.py_buffer(b"")
    versions: _Ints = rows.column("version").to_numpy(zero_copy_only=False)
    return RequestMessages(rows.column("table"), versions, bounds, data, 0, len(joined))


def split_requests(
    messages: RequestMessages, body: Body, *, final: bool
) -> tuple[list[RequestMessages], int]:
    """Return the requests that are full, and the start of the rest; ``final``: all requests, no
    rest. The split depends on the messages alone, not on how many there were at a time.
    """
    versions, bounds = messages.versions, messages.bounds
    start, n = messages.start, messages.end
    found = []
    while start < n:
        by_size = int(np.searchsorted(bounds, bounds[start] + body.size_bytes, side="right")) - 1
        end = max(start + 1, min(start + body.rows, by_size))
        if end < n:
            end = _next(versions, end, n)
        if end >= n and not final:
            break  # more messages of the same version, or that fit, may follow
        found.append(replace(messages, start=start, end=min(end, n)))
        start = end
    return found, min(start, n)


def request_key(output: str, generation: str, table: str, lane: int, span: Sequence[int]) -> str:
    """Return the request's key: the same for the same messages."""
    key = f"{output}/{generation}/{quote(table, safe='.*')}/{lane}/{span[0]}-{span[1]}"
    if len(key) > _LONGEST_KEY:
        key = hashlib.sha256(key.encode()).hexdigest()
    return key


def _next(versions: _Ints, at: int, end: int) -> int:
    """Return the first position from ``at`` on where a version begins, or ``end``."""
    while at < end and versions[at] == versions[at - 1]:
        at += 1
    return at


def _last(versions: _Ints, at: int) -> int:
    """Return the last position up to ``at`` where a version begins."""
    while at > 0 and versions[at] == versions[at - 1]:
        at -= 1
    return at


# Meanings of statuses: retry; error of the records; error of the configuration. Any other 4xx is an
# error of the records.
_AGAIN = frozenset({408, 409, 425, 429})
_CREDENTIALS = frozenset({401, 407})
_FORBIDDEN = 403
_WRONG = frozenset({404, 405, 406, 410, 415, 501, 505})
_CONFLICT = 409  # the key is in use elsewhere; if that lasts, the records are at fault
_GATEWAY = frozenset({502, 504})  # the gateway does not know the request's result

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

_PAUSE_S = Backoff(first=0.2, longest=10.0)
_LONGEST_ASKED_S = 300.0
_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True)
class Endpoint:
    """The address and form of requests. ``headers`` and ``url`` may be secret.

    Attributes:
        url: a pattern, see `request_url`.
        timeout_s: seconds for the connection, and for each part of the answer.
        retry_for_s: seconds to retry a request before the whole batch fails and is left to the
            pipeline's retries; pauses that the API requests may exceed it.
    """

    url: str
    method: str
    headers: Mapping[str, str] = field(repr=False)
    gzip: bool
    timeout_s: float
    retry_for_s: float
    ca_file: str | None

    @property
    def host(self) -> str:
        """The host, for messages: without the path, which may be secret."""
        return urlsplit(self.url).hostname or "the API"


class RejectedError(Exception):
    """The API will never accept the request; its records are at fault."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class StoppedError(Exception):
    """The request is abandoned because the task ends."""


class HttpSender:
    """Sends requests and retries them. Thread-safe.

    Args:
        endpoint: the API.
        connections: the most connections that are kept open.
        in_doubt: whether the API may still process requests of an earlier process or task with the
            same keys.
        check_lease: raises LeaseLostError if nothing more may be sent.
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
            verify=trusted_authorities(endpoint.ca_file),
        )

    def send(self, url: str, body: bytes, content_type: str, headers: Mapping[str, str]) -> None:
        """Return when the API has confirmed the records.

        Raises RejectedError; OutputError if time is up; OutputRefusedError if the API refuses us;
        LeaseLostError before an attempt that is not allowed any more.
        """
        whole = httpx.Headers({"Content-Type": content_type})
        whole.update(self._endpoint.headers)
        whole.update(headers)
        if self._endpoint.gzip:
            body = gzip.compress(body, compresslevel=6, mtime=0)
            whole["Content-Encoding"] = "gzip"
        until = time.monotonic() + self._endpoint.retry_for_s
        failures, unanswered = 0, self._in_doubt  # unanswered: an attempt's result is unknown
        while True:
            if self._stopping.is_set():
                raise StoppedError
            # The API can't detect a late request: it must not be sent.
            self._check_lease()
            failpoints.hit("output.request")
            asked_s: float | None = None
            status = 0
            try:
                status, asked_s = self._send_once(url, body, whole)
                if status < 300:
                    return
                why = f"HTTP {status}"
                unanswered |= status in _GATEWAY
            except (httpx.UnsupportedProtocol, httpx.InvalidURL):
                raise OutputRefusedError("http: the output's url is not a URL") from None
            except httpx.TransportError as error:
                why = type(error).__name__
                unanswered |= not isinstance(error, _NOT_SENT)
            failures += 1
            wait_s = _PAUSE_S.after(failures) * random.uniform(0.5, 1.0)  # noqa: S311
            if asked_s is not None:
                wait_s = max(wait_s, min(asked_s, _LONGEST_ASKED_S))
            if asked_s is None and time.monotonic() + wait_s > until:
                # After an unanswered attempt, that attempt is in progress: parts of the request,
                # under keys of their own, would be accepted beside it.
                if status == _CONFLICT and not unanswered:
                    raise RejectedError(status)
                raise OutputError(f"http: {self._endpoint.host} does not accept requests: {why}")
            if time.monotonic() > until + _LONGEST_ASKED_S:
                raise OutputError(f"http: {self._endpoint.host} still asks to wait: {why}")
            self._stopping.wait(wait_s)

    def stop(self) -> None:
        """End pauses, and all sending at the next attempt."""
        self._stopping.set()

    def close(self) -> None:
        self._stopping.set()
        self._client.close()

    def _send_once(self, url: str, body: bytes, headers: httpx.Headers) -> tuple[int, float | None]:
        """Send once. Returns the status, 2xx or worth a retry, and the pause that the API wants."""
        host = self._endpoint.host
        with self._client.stream(
            self._endpoint.method, url, content=body, headers=headers
        ) as answer:
            status = answer.status_code
            read = 0
            for part in answer.iter_raw():
                # Read to the end, so that the connection can be used again; an incomplete answer is
                # no answer.
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


def request_url(pattern: str, table: TargetTable) -> str:
    """Fill in ``{table}``, ``{namespace}`` and ``{name}``, as a part of a path. Raises ConfigError
    for any other name.
    """
    names = {"table": table.name, "namespace": table.source.namespace, "name": table.source.name}
    try:
        return pattern.format(**{name: quote(text, safe="") for name, text in names.items()})
    except (KeyError, IndexError, ValueError):
        raise ConfigError(
            "url of an http output: only {table}, {namespace} and {name} can stand in it; write "
            "{{ and }} for braces"
        ) from None


def trusted_authorities(ca_file: str | None) -> ssl.SSLContext:
    """Return the trusted authorities. Raises ConfigError if the file can't be read."""
    try:
        return _authorities(ca_file, Path(ca_file).stat().st_mtime_ns if ca_file else 0)
    except OSError as error:
        raise ConfigError(f"ca_file {ca_file}: {error.strerror}") from None


@cache
def _authorities(ca_file: str | None, _changed_ns: int) -> ssl.SSLContext:
    """Read them: it takes longer than sending a small batch."""
    return ssl.create_default_context(cafile=ca_file) if ca_file else httpx.create_ssl_context()


def _asked_s(header: str | None) -> float | None:
    """Parses Retry-After (RFC 9110, 10.2.3): seconds, or a date."""
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
