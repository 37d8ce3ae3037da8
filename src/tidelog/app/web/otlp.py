"""Pushes metrics by OpenTelemetry, in a thread that nothing waits for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tidelog.app.web.metrics import Known, Metric, MetricValues
from tidelog.config.control import OtlpSection
from tidelog.errors import MissingExtraError
from tidelog.system.version import __version__

if TYPE_CHECKING:
    from tidelog.control.mailbox import ApiBackend


@dataclass(frozen=True, slots=True)
class _Seen:
    """A counter as it was last exported. ``since_ns``: the start of the leadership."""

    since_ns: int
    start_ns: int
    at_ns: int
    value: float


class CounterStarts:
    """Remembers the start time of each counter that this process has exported."""

    def __init__(self) -> None:
        self._exported: dict[tuple[str, tuple[str, ...]], _Seen] = {}

    def of(
        self, metric: Metric, labels: tuple[str, ...], value: float, since_ns: int, now_ns: int
    ) -> int:
        """Return the counter's start time, in nanoseconds since 1970.

        It is the start of the leadership. A counter that survives leaderships, or whose leadership
        has no known start, starts when it was first exported: then its first value has no time in
        which it grew, and gives no rate (OpenTelemetry, metrics data model, "Cumulative streams:
        handling unknown start time"). A counter that went down starts at its last export.

        Args:
            metric: the metric of the counter.
            labels: the values of its labels.
            value: its value.
            since_ns: the start of the leadership; 0: not known.
            now_ns: the time of the value.
        """
        key = (metric.name, labels)
        since_ns = 0 if metric.of_output else since_ns
        exported = self._exported.get(key)
        if exported is None or exported.since_ns != since_ns:
            start_ns = since_ns or now_ns
        elif value < exported.value:
            start_ns = exported.at_ns
        else:
            start_ns = exported.start_ns
        self._exported[key] = _Seen(since_ns, start_ns, now_ns, value)
        return start_ns


logger = logging.getLogger(__name__)

CLOSE_S: Final = 1.0
_EXPORTER: Final = "opentelemetry.exporter.otlp.proto.http.metric_exporter"
_THREAD: Final = "tidelog-otlp"
# UCUM, by the ends of names: translators to Prometheus' names then add no second unit.
_UNITS: Final = {"seconds": "s", "bytes": "By", "ratio": "1"}


class OtlpPush:
    """Pushes metrics, as a `tidelog.app.web.http_server.Service`.

    An endpoint that is unreachable, slow or refuses is logged once, and delays nothing.

    Args:
        section: the configuration of endpoint and interval.
        service: the default of ``service.name``.
        instance: ``service.instance.id``: this process.
        log_path: the event log.

    Raises:
        MissingExtraError: OpenTelemetry is not installed.
    """

    def __init__(self, section: OtlpSection, service: str, instance: str, log_path: str) -> None:
        try:
            import requests
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics.export import MetricExportResult
            from opentelemetry.sdk.resources import Resource
        except ImportError as error:
            raise MissingExtraError(error.name or "opentelemetry-sdk", "otlp") from None
        self._every_s = section.every_ms / 1000
        self._host = urlsplit(section.endpoint.reveal()).hostname or ""
        self._surface: ApiBackend | None = None
        self._readings = MetricValues(self._status, log_path)
        self._starts = CounterStarts()
        self._resource = Resource.create(
            {
                "service.namespace": "tidelog",
                "service.name": section.service_name or service,
                "service.instance.id": instance,
                "service.version": __version__,
            }
        )
        session: Any = requests.Session()
        session.request = self._with_reason(session.request)
        self._exporter = OTLPMetricExporter(
            endpoint=section.endpoint.reveal(),
            headers={name: each.get_secret_value() for name, each in section.headers.items()},
            timeout=section.timeout_ms / 1000,
            session=session,
        )
        self._accepted = MetricExportResult.SUCCESS
        self._refusal = ""
        self._failing = False
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)

    def start(self) -> None:
        logging.getLogger(_EXPORTER).addFilter(_is_not_push)
        self._thread.start()

    def lead(self, surface: Callable[[], ApiBackend]) -> None:
        """Export as the leader from now on."""
        self._surface = surface()
        self._refresh()

    def stand_by(self) -> None:
        """Export as a standby from now on."""
        self._surface = None
        self._refresh()

    def problem(self) -> None:
        """None: an endpoint that does not answer is only logged."""

    def close(self) -> None:
        """Export once more, if the endpoint answers at once."""
        self._surface = None
        self._closed.set()
        self._refresh()
        if self._thread.is_alive():
            self._thread.join(0.0 if self._failing else CLOSE_S)
        self._exporter.shutdown()

    def _refresh(self) -> None:
        self._readings.forget()
        self._wake.set()

    def _status(self) -> dict[str, Any] | None:
        surface = self._surface
        return None if surface is None else surface.status()

    def _run(self) -> None:
        while True:
            last = self._closed.is_set()
            if not (last and self._failing):
                self._push()
            if last:
                return
            self._wake.wait(self._every_s)
            self._wake.clear()

    def _push(self) -> None:
        self._refusal = ""
        try:
            data = _metrics_data(self._readings, self._resource, self._starts)
            accepted = self._exporter.export(data) is self._accepted and not self._refusal
        except Exception as error:  # noqa: BLE001 - of OpenTelemetry, whose texts may have headers
            accepted, self._refusal = False, type(error).__name__
        if not accepted and not self._failing and not self._closed.is_set():
            why = self._refusal or "it failed"
            logger.warning("control.otlp: %s does not take metrics: %s", self._host, why)
        if accepted and self._failing:
            logger.warning("control.otlp: %s takes metrics again", self._host)
        self._failing = not accepted

    def _with_reason(self, request: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `requests.Session.request`: keep why it failed, and follow no redirect. A redirect
        would send the headers elsewhere.
        """

        def send(*arguments: Any, **options: Any) -> Any:
            self._refusal = ""
            try:
                answer = request(*arguments, **{**options, "allow_redirects": False})
            except Exception as error:
                self._refusal = type(error).__name__
                raise
            if answer.status_code >= 300:
                self._refusal = f"HTTP {answer.status_code}"
            return answer

        return send


def _is_not_push(record: logging.LogRecord) -> bool:
    """Return False for the exporter's lines about our pushes, which have others' answers."""
    return record.threadName != _THREAD


def _metrics_data(readings: MetricValues, resource: Any, starts: CounterStarts) -> Any:
    """Return OpenTelemetry's ``MetricsData`` of now."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    now_ns = time.time_ns()
    status = readings.status() or {}
    since_ns = int(status.get("since_ms") or 0) * 1_000_000
    metrics = [
        _metric(metric, samples, starts, since_ns, now_ns)
        for metric, samples in readings.samples()
        if samples
    ]
    scope = ScopeMetrics(InstrumentationScope("tidelog", __version__), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(
    metric: Metric, samples: Iterable[Known], starts: CounterStarts, since_ns: int, now_ns: int
) -> Any:
    """Return a metric named as for Prometheus, so that queries and rules are the same."""
    from opentelemetry.sdk.metrics import export

    counts = metric.kind == "counter"
    points = [
        export.NumberDataPoint(
            attributes=dict(zip(metric.labels, labels, strict=True)),
            start_time_unix_nano=(
                starts.of(metric, labels, value, since_ns, now_ns) if counts else now_ns
            ),
            time_unix_nano=now_ns,
            value=value,
        )
        for labels, value in samples
    ]
    data: Any
    if counts:
        temporality = export.AggregationTemporality.CUMULATIVE
        data = export.Sum(points, aggregation_temporality=temporality, is_monotonic=True)
    else:
        data = export.Gauge(points)
    unit = _UNITS.get(metric.name.removesuffix("_total").rpartition("_")[2], "")
    return export.Metric(metric.name, metric.about, unit, data)
