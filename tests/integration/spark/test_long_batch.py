"""A batch that takes long is reported while it runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.integration.spark.test_failover import Pipeline
from tests.support.build_log import BuiltLog

import tidelog
from tidelog import app
from tidelog.app.overview.build import overview
from tidelog.cli.status_lines import of_deliveries
from tidelog.spark import output_loop

pytestmark = [pytest.mark.spark, pytest.mark.integration]


@pytest.fixture
def answers() -> Iterator[tuple[str, threading.Event]]:
    """An API that answers once the event is set."""
    goes = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            goes.wait(120)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", goes
    goes.set()
    server.shutdown()
    server.server_close()


def test_a_batch_under_way_is_reported_until_it_is_done(
    spark: Any,
    built: BuiltLog,
    tmp_path: Path,
    answers: tuple[str, threading.Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del spark  # runs in this process
    monkeypatch.setattr(output_loop, "LONG_S", 1.0)
    url, goes = answers
    pipeline = Pipeline(built, tmp_path)
    pipeline.configure({"kind": "http", "url": url})
    pipeline.write(5)

    def running_batch() -> str:
        (output,) = app.status(pipeline.config).document["overview"]["outputs"] or [{}]
        return str(output.get("begun_ms") and output["begun_records"])

    with tidelog.Pipeline(pipeline.config):
        pipeline.wait_for(lambda: running_batch() == "5")
        found = overview(app.status(pipeline.config).document, 0).outputs[0]
        assert of_deliveries(found).startswith("a batch of 5 records is under way since ")
        goes.set()
        pipeline.wait_for(lambda: running_batch() == "None")
        found = overview(app.status(pipeline.config).document, 0).outputs[0]
        assert of_deliveries(found).startswith("last batch at ")
