"""The HTTP output; and its writer, which sends messages of one task to an API, on executors.

A table's keys are spread over lanes; a lane sends its requests one after the other, the lanes in
parallel. So a key's messages arrive in order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import ConfigError, OutputRefusedError
from tidelog.outputs.base.executor_output import ExecutorOutput
from tidelog.outputs.base.tasks import partition_numbers
from tidelog.outputs.base.writer import Delivery, StopAtRejection, Writer, is_retry
from tidelog.outputs.http.requests import (
    KEY_HEADER,
    TABLE_HEADER,
    VERSIONS_HEADER,
    Body,
    Endpoint,
    HttpSender,
    RejectedError,
    RequestMessages,
    StoppedError,
    build_messages,
    request_key,
    request_url,
    split_requests,
    trusted_authorities,
)
from tidelog.ports import Rejection, StateStore, TargetTable, TaskWriter, WriteTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AHEAD = 2  # requests that a lane prepares
_TOO_LARGE = 413


class HttpWriter(Writer):
    """Writes with one client for each task.

    Args:
        endpoint: the API.
        body: how messages become requests.
        lanes: requests at once.
        total: whether all tables' messages have one order: one lane.
        keep_rejected: whether to continue after a rejected request; else it ends the task at once.
        in_doubt: whether requests of an earlier attempt may still be in progress.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        body: Body,
        *,
        lanes: int,
        total: bool,
        keep_rejected: bool,
        in_doubt: bool,
    ) -> None:
        self._endpoint = endpoint
        self._body = body
        self._lane_count = 1 if total else lanes
        self._total = total
        self._keep_rejected = keep_rejected
        self._in_doubt = in_doubt

    def open(self, task: WriteTask) -> None:
        self._task = task
        in_doubt = self._in_doubt or is_retry()
        self._sender = HttpSender(
            self._endpoint, self._lane_count, in_doubt=in_doubt, check_lease=task.check_lease
        )
        self._lanes = [
            _Lane(self._sender, self._endpoint, self._body, task, n, self._keep_rejected)
            for n in range(self._lane_count)
        ]
        self._target: tuple[str, str] | None = None

    def write(self, table: TargetTable, rows: pa.RecordBatch) -> Iterable[Rejection]:
        if rows.column("value").null_count:  # tombstones
            rows = rows.filter(rows.column("value").is_valid())
        target = (request_url(self._endpoint.url, table), "*" if self._total else table.name)
        if target != self._target:
            self._drain()
            self._target = target
            for lane in self._lanes:
                lane.set_target(*target)
        names = pa.repeat(pa.scalar(table.name), rows.num_rows)
        rows = pa.RecordBatch.from_pydict(
            {"table": names} | {name: rows.column(name) for name in ("key", "version", "value")}
        )
        if self._lane_count == 1 or not table.key:
            self._lanes[0].add(rows)
            return self._rejections()
        # A truncate has no key and concerns all keys: first everything before it, then the
        # truncate.
        alone = np.flatnonzero(rows.column("key").is_null().to_numpy(zero_copy_only=False))
        start = 0
        for at in [*alone.tolist(), rows.num_rows]:
            self._spread(rows.slice(start, at - start))
            if at < rows.num_rows:
                self._drain()
                self._lanes[0].add(rows.slice(at, 1))
                self._drain()
            start = at + 1
        return self._rejections()

    def commit(self) -> Iterable[Rejection]:
        self._drain()
        return self._rejections()

    def close(self) -> None:
        sender = getattr(self, "_sender", None)
        if sender is None:
            return
        sender.stop()
        for lane in self._lanes:
            lane.close()
        sender.close()

    def _spread(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        lane_of = partition_numbers(rows, ["key"], self._lane_count)
        for number, lane in enumerate(self._lanes):
            lane.add(rows.filter(pa.array(lane_of == number)))

    def _drain(self) -> None:
        for lane in self._lanes:
            lane.flush()
        for lane in self._lanes:
            lane.wait()

    def _rejections(self) -> list[Rejection]:
        return [rejection for lane in self._lanes for rejection in lane.rejections()]


class _Lane:
    """A queue of requests. Used by the task's thread; its own thread sends."""

    def __init__(
        self,
        sender: HttpSender,
        endpoint: Endpoint,
        body: Body,
        task: WriteTask,
        number: int,
        keep_rejected: bool,
    ) -> None:
        self._sender = sender
        self._endpoint = endpoint
        self._body = body
        self._task = task
        self._number = number
        self._keep_rejected = keep_rejected
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"http-{number}")
        self._running: deque[Future[None]] = deque()
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0
        self._rejected: deque[Rejection] = deque()
        self._broken = False
        self._url, self._table = "", ""

    def set_target(self, url: str, table: str) -> None:
        """Set the address of later requests. Call it only while nothing waits or runs."""
        self._url, self._table = url, table

    def add(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += int(pc.sum(pc.binary_length(rows.column("value"))).as_py())
        if self._rows > self._body.rows or self._bytes > self._body.size_bytes:
            self._split(final=False)

    def flush(self) -> None:
        """Turn all waiting messages into requests."""
        if self._waiting:
            self._split(final=True)

    def wait(self) -> None:
        """Wait until all requests are answered. Raises the error of one of them."""
        while self._running:
            self._running.popleft().result()

    def rejections(self) -> list[Rejection]:
        found = []
        while self._rejected:
            found.append(self._rejected.popleft())
        return found

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _split(self, *, final: bool) -> None:
        rows = pa.Table.from_batches(self._waiting).combine_chunks().to_batches()[0]
        whole = build_messages(rows, self._body)
        requests, rest = split_requests(whole, self._body, final=final)
        left = rows.slice(rest)
        self._waiting = [left] if left.num_rows else []
        self._rows = left.num_rows
        self._bytes = int(whole.bounds[-1] - whole.bounds[rest]) - left.num_rows
        for request in requests:
            while len(self._running) >= _AHEAD:
                self._running.popleft().result()
            self._running.append(self._pool.submit(self._run, request, self._url, self._table))

    def _run(self, messages: RequestMessages, url: str, table: str) -> None:
        if self._broken:
            raise StoppedError  # nothing may overtake a request that failed
        try:
            self._send(messages, url, table)
        except BaseException:
            self._broken = True
            raise

    def _send(self, messages: RequestMessages, url: str, table: str) -> None:
        """Send messages; split rejected ones in halves until the rejected records are known.

        If a rejection ends the task, no halves are sent: once the API is fixed, the whole request
        is sent again, under its own key, and the accepted part would be accepted twice. A request
        that is too large is always sent again in halves.
        """
        task, (first, last) = self._task, messages.span
        headers = {
            KEY_HEADER: request_key(
                task.output, task.generation, table, self._number, (first, last)
            ),
            VERSIONS_HEADER: f"{first}-{last}",
        }
        if table.isascii() and table.isprintable():
            headers[TABLE_HEADER] = table
        body = messages.body(self._body.kind)
        try:
            self._sender.send(url, body, self._body.content_type, headers)
        except RejectedError as rejected:
            halves = messages.halves()
            if halves is not None and (self._keep_rejected or rejected.status == _TOO_LARGE):
                for half in halves:
                    self._send(half, url, table)
                return
            if not self._keep_rejected:
                raise OutputRefusedError(
                    f"output {task.output}: {self._endpoint.host} rejects {_named(messages)} "
                    f"(HTTP {rejected.status}). Fix the API, or set the output's dead_letter: then "
                    "such records go there and the others continue."
                ) from None
            self._rejected.append(Rejection(messages.table, first, f"HTTP {rejected.status}"))


def _named(messages: RequestMessages) -> str:
    """Describes where the rejected records are."""
    first, last = messages.span
    if first == last:
        return f"the record of {messages.table} at version {first}"
    tables = ", ".join(dict.fromkeys(messages.tables[messages.start : messages.end].to_pylist()))
    return f"a record of {tables} at versions {first} to {last}"


# How long the API may still process a request of an earlier attempt. Until then an answer 409 says
# nothing about the request's records.
_IN_PROGRESS_S = 3600.0
_ONE_TASK = 1 << 60  # bytes: splitting a table over tasks would change the content of requests


class HttpOutput(ExecutorOutput):
    """`tidelog.ports.Output` over an API.

    Args:
        spark, log_path, state: see `ExecutorOutput`.
        delivery: ordered (key or total), with a formatter.
        endpoint: the API.
        body: how messages become requests.
        lanes: requests of a table that are sent at once.
    """

    frequent = True
    repeats_same_batches = True  # its requests are the same then

    def __init__(
        self,
        spark: SparkSession,
        log_path: str,
        state: StateStore,
        delivery: Delivery,
        *,
        endpoint: Endpoint,
        body: Body,
        lanes: int,
    ) -> None:
        if delivery.keyed or delivery.formatter is None or delivery.order == "none":
            raise ConfigError("an http output delivers every change, as messages, in order")
        trusted_authorities(endpoint.ca_file)
        self._endpoint = endpoint
        self._body = body
        self._lanes = lanes
        self._in_doubt = False
        self._in_doubt_until: float | None = None
        super().__init__(spark, log_path, state, replace(delivery, part_bytes=_ONE_TASK))

    def create(self, table: TargetTable) -> None:
        request_url(self._endpoint.url, table)

    def writer(self) -> TaskWriter:
        return HttpWriter(
            self._endpoint,
            self._body,
            lanes=self._lanes,
            total=self.delivery.order == "total",
            keep_rejected=not isinstance(self.delivery.dead_letters, StopAtRejection),
            in_doubt=self._in_doubt,
        )

    def before_batch(self, *, again: bool) -> None:
        if not again:
            self._in_doubt_until = None
        elif self._in_doubt_until is None:
            self._in_doubt_until = time.monotonic() + _IN_PROGRESS_S
        until = self._in_doubt_until
        self._in_doubt = until is not None and time.monotonic() < until
