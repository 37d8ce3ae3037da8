"""Writes rows of one task to OpenSearch, on executors, by bulk requests.

Several requests are sent at once, and again while the cluster has no room.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import OutputError, OutputRefusedError, RowsLeftOutError
from tidelog.outputs.base.writer import Writer
from tidelog.outputs.opensearch import documents
from tidelog.outputs.opensearch.client import (
    BLOCKED,
    BUSY,
    Cluster,
    ClusterBusyError,
    ClusterOptions,
    TooLargeError,
    path,
    reason,
)
from tidelog.outputs.opensearch.documents import DELETED, META, VERSION, JoinedPart
from tidelog.ports import Rejection, TargetTable, WriteTask
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION
from tidelog.system import failpoints
from tidelog.system.backoff import Backoff
from tidelog.system.processes import unix_ms

# Bulk requests.

Versions = npt.NDArray[np.int64]

_AT_ONCE = 2  # while the cluster indexes one, the next is sent
_PAUSE_S = Backoff(first=0.1, longest=5.0)
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
        failures, pause = 0, _PAUSE_S.first
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
            failures += 1
            pause = _PAUSE_S.after(failures + 1)
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
                raise RowsLeftOutError(
                    f"{target.table}: OpenSearch refuses to write to {target.index}: "
                    f"{reason(error)}. Does the alias exist, and may the user write? One that is "
                    "missing is created by the next dump"
                )
            elif status >= 500 or error.get("type") in _CLUSTER_S:
                raise OutputError(
                    f"OpenSearch can't write to {target.index}: HTTP {status} {reason(error)}"
                )
            else:
                rejections.append(Rejection(target.table, int(versions[number]), reason(error)))
        return np.array(again, np.intp), why


def _parts(lines: pa.StringArray, bulk_bytes: int) -> Iterator[slice]:
    """Yield slices of about that many bytes."""
    offsets = _offsets(lines)
    start = 0
    while start < len(lines):
        end = int(np.searchsorted(offsets, offsets[start] + bulk_bytes, "right")) - 1
        end = min(max(end, start + 1), len(lines))
        yield slice(start, end)
        start = end


def _body(lines: pa.StringArray) -> bytes:
    """Return the texts as Arrow's buffer has them, one after the other, if none is null."""
    offsets = _offsets(lines)
    return bytes(memoryview(lines.buffers()[2])[offsets[0] : offsets[-1]])


def _offsets(lines: pa.StringArray) -> npt.NDArray[np.int32]:
    assert lines.null_count == 0
    all_of = np.frombuffer(lines.buffers()[1], np.int32)
    return all_of[lines.offset : lines.offset + len(lines) + 1]


# The writer.

_SLICE_ROWS = 16_384  # converted to JSON at once
_READ_ROWS = 500  # read at once, to be completed


@dataclass(frozen=True)
class Index:
    """The driver's knowledge about a table's index.

    Attributes:
        alias: its name for readers and writers.
        floor: documents of lower versions are deleted (a truncate, a complete dump), even if they
            still exist.
        purged_below: tombstones of lower versions may be purged: if a row of such a version does
            not exist, it was deleted.
        part: the table's part of documents that several tables contribute to.
    """

    alias: str
    floor: int = 0
    purged_below: int = 0
    part: JoinedPart | None = None


class OpenSearchWriter(Writer):
    """Writes with one client for each task.

    Args:
        options: the cluster's address and credentials.
        indices: index by source table.
        bulk_bytes: about the size of a request.
        timeout_s: how long the cluster may have no room.
    """

    def __init__(
        self,
        options: ClusterOptions,
        indices: Mapping[str, Index],
        *,
        bulk_bytes: int,
        timeout_s: float,
    ) -> None:
        self._options = options
        self._indices = dict(indices)
        self._bulk_bytes = bulk_bytes
        self._timeout_s = timeout_s

    def open(self, task: WriteTask) -> None:
        self._cluster = Cluster(self._options)
        self._bulk = Bulk(self._cluster, self._bulk_bytes, self._timeout_s, task.check_lease)

    def write(self, table: TargetTable, rows: pa.RecordBatch) -> Iterable[Rejection]:
        index = self._indices[str(table.source)]
        for start in range(0, rows.num_rows, _SLICE_ROWS):
            self._write(table, index, rows.slice(start, _SLICE_ROWS))
        return ()

    def commit(self) -> Iterable[Rejection]:
        return self._bulk.finish()

    def close(self) -> None:
        bulk: Bulk | None = getattr(self, "_bulk", None)
        if bulk is not None:
            bulk.close()
            self._cluster.close()

    # ------------------------------------------------------------------ one slice

    def _write(self, table: TargetTable, index: Index, rows: pa.RecordBatch) -> None:
        if index.floor:
            rows = rows.filter(pc.greater_equal(rows.column(CHANGE_VERSION), index.floor))
        deleted = pc.equal(rows.column(CHANGE_OP), "d")
        partial = rows.column(CHANGE_MISSING).is_valid()
        if index.purged_below:
            old = pc.less(rows.column(CHANGE_VERSION), index.purged_below)
            partial = pc.or_(partial, old)
        if index.part is not None:
            self._contribute(table, index, index.part, rows, partial)
            return
        updates = pc.and_not(partial, deleted)
        whole = pc.invert(pc.or_(partial, deleted))
        for chosen, how in (
            (whole, self._index),
            (deleted, self._write_tombstones),
            (updates, self._update),
        ):
            count = chosen.true_count
            if count:
                how(table, index, rows if count == rows.num_rows else rows.filter(chosen))

    def _index(self, table: TargetTable, index: Index, rows: pa.RecordBatch) -> None:
        version = rows.column(CHANGE_VERSION)
        bodies = documents.documents(rows, table.columns.names, version)
        self._send(table, index, documents.ids(rows, table.key), version, bodies)

    def _write_tombstones(self, table: TargetTable, index: Index, rows: pa.RecordBatch) -> None:
        """A delete is a document too: OpenSearch forgets the version of a real delete."""
        version = rows.column(CHANGE_VERSION)
        bodies = documents.tombstones(version, unix_ms())
        self._send(table, index, documents.ids(rows, table.key), version, bodies)

    def _send(
        self, table: TargetTable, index: Index, ids: pa.Array, version: pa.Array, bodies: pa.Array
    ) -> None:
        lines = documents.index_lines(ids, version, bodies)
        self._bulk.send(index.alias, table.name, lines, version.to_numpy())

    def _contribute(
        self,
        table: TargetTable,
        index: Index,
        part: JoinedPart,
        rows: pa.RecordBatch,
        only: pa.Array,
    ) -> None:
        if not rows.num_rows:
            return
        now = unix_ms()
        lines = documents.joined_lines(table, part, rows, floor=index.floor, only=only, at_ms=now)
        versions = rows.column(CHANGE_VERSION).to_numpy()
        self._bulk.send(index.alias, table.name, lines, versions, conflicts_again=True)

    # ------------------------------------------------------------------ rows that only update

    def _update(self, table: TargetTable, index: Index, rows: pa.RecordBatch) -> None:
        """Read documents, complete them, and write them under the row's version.

        Nobody else writes a key's newer state at the same time: a batch begins when earlier ones
        are finished, and has each key once. The writes of an earlier attempt's task are older than,
        or the same as, what is read here. (OpenSearch's own update increases the version by one,
        and does not accept a version of ours.)
        """
        for start in range(0, rows.num_rows, _READ_ROWS):
            part = rows.slice(start, _READ_ROWS)
            ids = documents.ids(part, table.key)
            found = self._read(index, ids.to_pylist())
            at, bodies = [], []
            for number, body in self._completed(table, index, part, found):
                at.append(number)
                bodies.append(body)
            if at:
                chosen = pa.array(at, pa.int64())
                version = part.column(CHANGE_VERSION).take(chosen)
                self._send(table, index, ids.take(chosen), version, pa.array(bodies, pa.string()))

    def _read(self, index: Index, ids: list[str]) -> list[dict[str, Any] | None]:
        """Return documents as they are now, refreshed or not; None: does not exist. Raises
        OutputError if the cluster can't read one (its shard moves, or is lost).
        """
        answer = self._cluster.request(
            "POST",
            path(index.alias, "_mget"),
            {"ids": ids},
            params={"filter_path": "docs._source,docs.found,docs.error.type"},
        )
        for each in answer["docs"]:
            if "error" in each:
                raise _unreadable(index.alias, each["error"])
        return [each.get("_source") for each in answer["docs"]]

    def _completed(
        self,
        table: TargetTable,
        index: Index,
        rows: pa.RecordBatch,
        found: list[dict[str, Any] | None],
    ) -> Iterator[tuple[int, str]]:
        versions = rows.column(CHANGE_VERSION).to_pylist()
        missing = rows.column(CHANGE_MISSING).to_pylist()
        texts = {
            name: documents.json_texts(rows.column(name)).to_pylist()
            for name in table.columns.names
        }
        for number, document in enumerate(found):
            if document is None:
                continue  # it never existed, or was purged
            meta = document.get(META) or {}
            if VERSION not in meta:
                # Written by hand: it is replaced, except by a state that may be purged.
                if versions[number] < index.purged_below:
                    continue
                document = {name: document.get(name) for name in texts}
            elif meta.get(DELETED) or not index.floor <= meta[VERSION] < versions[number]:
                continue
            absent = set(missing[number] or ())
            for name, column in texts.items():
                if name not in absent:
                    text = column[number]
                    document[name] = None if text is None else json.loads(text)
            document[META] = {VERSION: versions[number]}
            yield number, json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _unreadable(alias: str, error: Mapping[str, Any]) -> OutputError:
    kind = OutputRefusedError if error.get("type") in GONE else OutputError
    return kind(f"OpenSearch can't read documents of {alias} to complete them: {reason(error)}")
