"""Splits messages into requests: equally whenever the same messages are written, so that a repeated
request has the same content and the same key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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

    kind: str = "array"
    rows: int = 500
    size_bytes: int = 1 << 20

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
        """Returns all messages as one text."""
        found = memoryview(self.data)[self.bounds[self.start] : self.bounds[self.end]]
        if kind == "array":
            return b"".join((b"[", found[:-1], b"]"))
        return bytes(found)

    def halves(self) -> tuple[RequestMessages, RequestMessages] | None:
        """Returns two parts, to find the rejected one; None if all messages have one version."""
        middle = (self.start + self.end) // 2
        for at in (_next(self.versions, middle, self.end), _last(self.versions, middle)):
            if self.start < at < self.end:
                return replace(self, end=at), replace(self, start=at)
        return None


def build_messages(rows: pa.RecordBatch, body: Body) -> RequestMessages:
    """Returns ``table``, ``version``, ``value`` (binary, none null) as `RequestMessages`."""
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
    """Returns the requests that are full, and the start of the rest; ``final``: all requests, no
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


def key_of(output: str, generation: str, table: str, lane: int, span: Sequence[int]) -> str:
    """Returns the request's key: the same for the same messages."""
    key = f"{output}/{generation}/{quote(table, safe='.*')}/{lane}/{span[0]}-{span[1]}"
    if len(key) > _LONGEST_KEY:
        key = hashlib.sha256(key.encode()).hexdigest()
    return key


def _next(versions: _Ints, at: int, end: int) -> int:
    """Returns the first position from ``at`` on where a version begins, or ``end``."""
    while at < end and versions[at] == versions[at - 1]:
        at += 1
    return at


def _last(versions: _Ints, at: int) -> int:
    """Returns the last position up to ``at`` where a version begins."""
    while at > 0 and versions[at] == versions[at - 1]:
        at -= 1
    return at
