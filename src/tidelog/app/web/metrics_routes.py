"""Serves ``/metrics`` for Prometheus and ``/health/…``, beside the HTTP interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tidelog.app.web.metrics import MetricValues
from tidelog.control.channels.http_answers import (
    HttpRefusal,
    answering_refusals,
    check_token,
    json_refusal,
)
from tidelog.control.channels.rate_limit import TokenRateLimit
from tidelog.control.channels.request_workers import BusyError, RequestWorkers, SilentError

THREADS: Final = 4
PATIENCE_S, HEALTH_PATIENCE_S = 10.0, 3.0
_SILENT: Final = HttpRefusal(503, "NoAnswer", "the metrics could not be read in time")


class Health:
    """Serves the metrics and health of one process.

    Args:
        readings: the metrics.
        leader: returns the name of the leader.
        tokens: the tokens for requests of metrics.
        rate_limit: the limit on wrong tokens.
    """

    def __init__(
        self,
        readings: MetricValues,
        leader: Callable[[], str | None],
        tokens: tuple[str, ...],
        rate_limit: TokenRateLimit | None = None,
    ) -> None:
        self._readings = readings
        self._leader = leader
        self._tokens = tokens
        self._rate_limit = rate_limit or TokenRateLimit()
        self._workers = RequestWorkers(THREADS)
        self._healthy = RequestWorkers(THREADS)  # apart from those for metrics
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(readings))

    def routes(self) -> list[Route]:
        """Return the routes; they answer in every process, and health needs no token."""
        return [
            Route(
                "/metrics",
                answering_refusals(self._metrics, json_refusal, _SILENT),
                methods=["GET"],
            ),
            Route("/health/live", self._live, methods=["GET"]),
            Route("/health/ready", self._ready, methods=["GET"]),
        ]

    async def _metrics(self, request: Request) -> Response:
        await check_token(request, self._tokens, self._rate_limit)
        encode, media = choose_encoder(request.headers.get("accept", ""))
        body = await self._workers.run(lambda: encode(self._registry), PATIENCE_S)
        return Response(body, media_type=media)

    async def _live(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, _request: Request) -> Response:
        try:
            code, role = await self._healthy.run(self._role, HEALTH_PATIENCE_S)
        except (BusyError, SilentError):
            code, role = 503, "state store that does not answer"
        return JSONResponse({"status": "ok" if code == 200 else "not ready", "role": role}, code)

    def _role(self) -> tuple[int, str]:
        status = self._readings.status()
        if status is not None:
            away = (status.get("source") or {}).get("error") is not None
            return (503, "leader without its source") if away else (200, "leader")
        return (503, "nobody leads") if self._leader() is None else (200, "standby")


class _Collector(Collector):
    """Exports the readings to Prometheus."""

    def __init__(self, readings: MetricValues) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Family]:
        for metric, samples in self._readings.samples():
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.about, labels=metric.labels)
            for labels, value in samples:
                family.add_metric(labels, value)
            yield family
