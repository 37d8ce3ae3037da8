"""A receiver of OTLP over HTTP: it decodes what is posted by OpenTelemetry's own protobuf."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class OtlpReceiver:
    """It keeps requests, and fails as it is told to.

    Attributes:
        requests: those that were taken, decoded.
        headers: of every request.
        status: of its answers.
        answer: their body, and with 307 where else to post.
        wait: set; clear: answers wait until it is set again.
    """

    def __init__(self) -> None:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
            ExportMetricsServiceRequest,
        )

        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.status, self.answer = 200, ""
        self.wait = threading.Event()
        self.wait.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.headers.append({k.lower(): v for k, v in self.headers.items()})
                receiver.wait.wait(30)
                if receiver.status == 200:
                    receiver.requests.append(ExportMetricsServiceRequest.FromString(body))
                answer = receiver.answer.encode()
                self.send_response(receiver.status)
                if receiver.status == 307:
                    self.send_header("Location", receiver.answer)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1/metrics"

    def close(self) -> None:
        self.wait.set()
        self._server.shutdown()
        self._server.server_close()

    def metrics(self) -> list[Any]:
        """Of the newest request."""
        [of_resource] = self.requests[-1].resource_metrics
        [of_scope] = of_resource.scope_metrics
        return list(of_scope.metrics)

    def resource(self) -> dict[str, str]:
        [of_resource] = self.requests[-1].resource_metrics
        return {each.key: each.value.string_value for each in of_resource.resource.attributes}

    def series(self) -> Series:
        """Of the newest request: values by name and labels."""
        if not self.requests:
            return {}
        return {
            (metric.name, labels(point)): point.as_double
            for metric in self.metrics()
            for point in getattr(metric, metric.WhichOneof("data")).data_points
        }


def labels(point: Any) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((each.key, each.value.string_value) for each in point.attributes))
