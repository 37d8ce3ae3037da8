"""The HTTP output: posts change events to an API in batches, a key's in order.

Each request has a key (``Idempotency-Key``) that is the same whenever it is sent again: a batch is
split into requests by its messages alone, and a batch that was begun is repeated unchanged, before
anything new. An API that checks the key accepts each event once.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tidelog.errors import ConfigError
from tidelog.outputs.base.delivery import Delivery
from tidelog.outputs.base.output import ExecutorOutput
from tidelog.outputs.base.writer import StopAtRejection
from tidelog.outputs.http.requests import Body, Endpoint, request_url, trusted_authorities
from tidelog.outputs.http.writer import HttpWriter
from tidelog.ports import StateStore, TargetTable, TaskWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How long the API may still process a request of an earlier attempt. Until then an answer 409 says
# nothing about the request's records.
_IN_PROGRESS_S = 3600.0
_ONE_TASK = 1 << 60  # bytes: splitting a table over tasks would change the content of requests


class HttpOutput(ExecutorOutput):
    """`tidelog.ports.Output` over an API.

    Args:
        spark: any session.
        log_path: the event log that batches refer to.
        state: keeps the output's progress.
        delivery: ordered (key or total), with a formatter.
        endpoint: the API.
        body: how messages become requests.
        lanes: requests of a table that are sent at once.
    """

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
