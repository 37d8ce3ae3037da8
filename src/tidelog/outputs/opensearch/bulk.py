"""Sends one task's bulk requests: several at once, with retries while the cluster has no room."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.errors import OutputError, OutputRefusedError
from tidelog.outputs.opensearch.client import (
    BLOCKED,
    BUSY,
    Cluster,
    ClusterBusyError,
    TooLargeError,
    path,
    reason,
)
from tidelog.ports import Rejection
from tidelog.system import failpoints

Versions = npt.NDArray[np.int64]

_AT_ONCE = 2  # while the cluster indexes one, the next is sent
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_FILTER = "errors,items.*.status,items.*.error.type,items.*.error.reason"
GONE = frozenset(("index_not_found_exception", "security_exception"))
# The item is fine, the cluster is not (now): retry all of it later.
_CLUSTER_S = frozenset(
    (
        BLOCKED,
        "index_closed_exception",
        "no_shard_available_action_exception",
        "node_closed_exception",
        "node_not_connected_exception",
        "unavailable_shards_exception",
        "primary_missing_action_exception",
        "shard_not_found_exception",
    )
)


@dataclass(frozen=True)
class _Target:
    index: str
    table: str
    conflicts_again: bool


class Bulk:
    """Sends lines of bulk requests. Call `send` from one thread, `finish` at the end.

    Args:
        cluster: the cluster.
        bulk_bytes: about the size of a request.
        timeout_s: how long the cluster may have no room.
        check_lease: raises LeaseLostError if nothing more may be sent.
    """

    def __init__(
        self,
        cluster: Cluster,
        bulk_bytes: int,
        timeout_s: float,
        check_lease: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._check_lease = check_lease
        self._bulk_bytes = bulk_bytes
        self._timeout_s = timeout_s
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="bulk")
        self._under_way: deque[Future[list[Rejection]]] = deque()
        self._rejections: list[Rejection] = []

    def send(
        self,
        index: str,
        table: str,
        lines: pa.StringArray,
        versions: Versions,
        *,
        conflicts_again: bool = False,
    ) -> None:
        """Write documents; returns when all but the last few are written.

        Args:
            index: name of the alias.
            table: the table's name in rejections.
            lines: string[n], action and source of each document with their line ends.
            versions: int64[n].
            conflicts_again: whether a conflict means another writer of the same document; else it
                means that a newer version exists.
        """
        for part in _parts(lines, self._bulk_bytes):
            while len(self._under_way) > _AT_ONCE:
                self._rejections += self._under_way.popleft().result()
            slices = lines[part], versions[part]
            target = _Target(index, table, conflicts_again)
            self._under_way.append(self._pool.submit(self._send_all, target, *slices))

    def finish(self) -> list[Rejection]:
        """Wait for all requests. Returns the rejections."""
        while self._under_way:
            self._rejections += self._under_way.popleft().result()
        rejections, self._rejections = self._rejections, []
        return rejections

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    # ------------------------------------------------------------------ by the pool's threads

    def _send_all(
        self, target: _Target, lines: pa.StringArray, versions: Versions
    ) -> list[Rejection]:
        rejections: list[Rejection] = []
        deadline = time.monotonic() + self._timeout_s
        pause = _FIRST_PAUSE_S
        while len(lines):
            try:
                again, why = self._send_once(target, lines, versions, rejections)
            except TooLargeError:
                if len(lines) == 1:
                    rejections.append(
                        Rejection(
                            target.table, int(versions[0]), "the document is too large (HTTP 413)"
                        )
                    )
                    break
                half = len(lines) // 2
                rejections += self._send_all(target, lines[:half], versions[:half])
                lines, versions = lines[half:], versions[half:]
                continue
            except ClusterBusyError:
                if time.monotonic() + pause > deadline:
                    raise
                again, why = np.arange(len(lines)), ""
            if not len(again):
                break
            if time.monotonic() + pause > deadline:
                raise OutputError(
                    f"OpenSearch has had no room for documents of {target.index} for "
                    f"{self._timeout_s} s{why and f': {why}'}"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            lines, versions = lines.take(pa.array(again)), versions[again]
        return rejections

    def _send_once(
        self,
        target: _Target,
        lines: pa.StringArray,
        versions: Versions,
        rejections: list[Rejection],
    ) -> tuple[npt.NDArray[np.intp], str]:
        """Send one request. Returns which lines must be sent again, and why the cluster had no room
        for one of them.
        """
        self._check_lease()
        failpoints.hit("output.request")
        answer = self._cluster.request(
            "POST",
            path(target.index, "_bulk"),
            _body(lines),
            # Without the alias, an index of that name would be created, with a guessed mapping.
            params={"require_alias": "true", "filter_path": _FILTER},
        )
        if not answer["errors"]:
            return np.empty(0, np.intp), ""
        again, why = [], ""
        for number, item in enumerate(answer["items"]):
            result: dict[str, Any] = next(iter(item.values()))
            status = result["status"]
            if status < 300 or (status == 409 and not target.conflicts_again):
                continue  # 409: a newer version exists
            if status == 409:
                again.append(number)
                continue
            error = result.get("error", {})
            if status in BUSY and error.get("type") != "unavailable_shards_exception":
                again.append(number)
                why = reason(error)
            elif error.get("type") in GONE:
                raise OutputRefusedError(
                    f"OpenSearch refuses to write to {target.index}: {reason(error)}. Does the "
                    "alias exist, and may the user write? It is created again at the next start; "
                    "then dump its table"
                )
            elif status >= 500 or error.get("type") in _CLUSTER_S:
                raise OutputError(
                    f"OpenSearch can't write to {target.index}: HTTP {status} {reason(error)}"
                )
            else:
                rejections.append(Rejection(target.table, int(versions[number]), reason(error)))
        return np.array(again, np.intp), why


def _parts(lines: pa.StringArray, bulk_bytes: int) -> Iterator[slice]:
    """Yields slices of about that many bytes."""
    offsets = _offsets(lines)
    start = 0
    while start < len(lines):
        end = int(np.searchsorted(offsets, offsets[start] + bulk_bytes, "right")) - 1
        end = min(max(end, start + 1), len(lines))
        yield slice(start, end)
        start = end


def _body(lines: pa.StringArray) -> bytes:
    """Returns the texts as they are in Arrow's buffer: texts without nulls are one after
    the other.
    """
    offsets = _offsets(lines)
    return bytes(memoryview(lines.buffers()[2])[offsets[0] : offsets[-1]])


def _offsets(lines: pa.StringArray) -> npt.NDArray[np.int32]:
    assert lines.null_count == 0
    all_of = np.frombuffer(lines.buffers()[1], np.int32)
    return all_of[lines.offset : lines.offset + len(lines) + 1]
