"""``/metrics`` for Prometheus and ``/health/…``, beside the HTTP interface."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tidelog.app.metrics.table import METRICS
from tidelog.app.overview import outputs_of, overview
from tidelog.control.channels.tokens import carries
from tidelog.errors import TidelogError
from tidelog.eventlog.reader import EventLog

logger = logging.getLogger(__name__)

STATUS_EVERY_S: Final = 1.0
OUTPUTS_EVERY_S: Final = 5.0
"""What the outputs noted is read from the event log, which may be on an object store."""


class Health:
    """Answers of one process.

    Args:
        status: the status document of the capture that leads in this process; None: it does not.
        leader: the name of who leads.
        log_path: the event log, beside which pipelines note how far they are.
        tokens: what requests for metrics carry.
    """

    def __init__(
        self,
        status: Callable[[], dict[str, Any] | None],
        leader: Callable[[], str | None],
        log_path: str,
        tokens: tuple[str, ...],
    ) -> None:
        self._status = status
        self._leader = leader
        self._log_path = log_path
        self._tokens = tokens
        self._lock = threading.Lock()
        self._outputs: list[dict[str, Any]] = []
        self._outputs_due = 0.0
        self._log: EventLog | None = None
        self._first: dict[tuple[int, int], tuple[int, int]] = {}
        self._status_at = 0.0
        self._known: dict[str, Any] | None = None
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(self.document))

    def routes(self) -> list[Route]:
        """They answer in every process, whoever leads; those about health need no token."""
        return [
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/health/live", self._live, methods=["GET"]),
            Route("/health/ready", self._ready, methods=["GET"]),
        ]

    def document(self) -> dict[str, Any] | None:
        """The status with what the outputs noted; None where this process does not lead."""
        status = self._now()
        if status is None:
            return None
        with self._lock:
            now = time.monotonic()
            if now >= self._outputs_due:
                self._outputs_due = now + OUTPUTS_EVERY_S
                self._look_at_outputs()
            return {**status, "leader": status.get("holder"), "outputs": self._outputs}

    def _look_at_outputs(self) -> None:
        """What can't be read now is as it was: an alert must not end because of that."""
        try:
            self._log = self._log or EventLog.open(self._log_path)
            self._outputs = list(outputs_of(self._log, self._first))
        except (TidelogError, OSError) as error:
            self._log = None
            logger.warning("metrics of outputs are as they were: %s", error)

    async def _metrics(self, request: Request) -> Response:
        if not carries(request, self._tokens):
            headers = {"WWW-Authenticate": "Bearer"}
            return JSONResponse({"error": {"kind": "Unauthorized"}}, 401, headers=headers)
        encode, media = choose_encoder(request.headers.get("accept", ""))
        body = await run_in_threadpool(encode, self._registry)
        return Response(body, media_type=media)

    async def _live(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, _request: Request) -> Response:
        code, role = await run_in_threadpool(self._role)
        return JSONResponse({"status": "ok" if code == 200 else "not ready", "role": role}, code)

    def _now(self) -> dict[str, Any] | None:
        """The status, at most a second old: to make it takes a moment, and anybody may ask for
        health.
        """
        with self._lock:
            now = time.monotonic()
            if now >= self._status_at:
                self._known, self._status_at = self._status(), now + STATUS_EVERY_S
            return self._known

    def _role(self) -> tuple[int, str]:
        status = self._now()
        if status is not None:
            away = (status.get("source") or {}).get("error") is not None
            return (503, "leader without its source") if away else (200, "leader")
        return (503, "nobody leads") if self._leader() is None else (200, "standby")


class _Collector(Collector):
    def __init__(self, document: Callable[[], dict[str, Any] | None]) -> None:
        self._document = document

    def collect(self) -> Iterator[Metric]:
        status = self._document()
        leads = GaugeMetricFamily("tidelog_leading", "1 if this process captures, else 0.")
        leads.add_metric([], int(status is not None))
        yield leads
        if status is None:
            return
        found = overview(status, time.time_ns() // 1_000_000)
        for metric in METRICS:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.about, labels=metric.labels)
            for labels, value in metric.samples(status, found):
                if value is not None:
                    family.add_metric(labels, value)
            yield family
