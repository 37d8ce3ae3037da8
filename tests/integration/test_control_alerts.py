"""`control.alerts` against a running capture: a webhook and a command hear of a problem, once, and
of its end, also where another process leads by then.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tidelog.app.capture.run import Capture
from tidelog.app.overview import alerts
from tidelog.config import parse_config

pytestmark = pytest.mark.integration

PATH = "/services/T000/secret-part"
KEEP = (
    "import pathlib, sys; file = pathlib.Path(sys.argv[1]); "
    "file.open('a').write(sys.stdin.read() + chr(10))"
)


class Hook:
    """A service that keeps what is posted; it fails as often as it is told to."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.failures = 0
        self.paths: set[str] = set()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.paths.add(self.path)
                if hook.failures:
                    hook.failures -= 1
                    self.send_response(503)
                else:
                    hook.heard.append(json.loads(body))
                    self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}{PATH}"

    def subjects(self, which: str) -> list[str]:
        return [each["about"] for message in self.heard for each in message[which]]


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook()
    yield found
    found.server.shutdown()
    found.server.server_close()


@contextmanager
def running(text: str, base: Path) -> Iterator[None]:
    with Capture(parse_config(text, "test.yaml", base, {})):
        yield


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_problem_and_its_end_are_reported_once_whoever_leads(
    database: str,
    hook: Hook,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(alerts, "POLL_EVERY_S", 0.2)
    file = tmp_path / "told.jsonl"
    command = json.dumps([sys.executable, "-c", KEEP, str(file)])
    text = f"""
source: {{kind: postgres, url: "{database}", slot: alerts, tables: ["public.*"]}}
log: {{path: log}}
control:
  alerts:
    - {{kind: webhook, url: "{hook.url}", after_ms: 0}}
    - {{kind: command, command: {command}, after_ms: 300ms}}
    - {{kind: command, name: pager, severity: critical, command: ["false"], after_ms: 0}}
"""
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute("CREATE TABLE good (id int PRIMARY KEY); CREATE TABLE keyless (a int)")
        sql.execute("INSERT INTO keyless VALUES (1)")
        hook.failures = 2  # it is tried again
        with running(text, tmp_path):
            wait_for(lambda: "public.keyless" in hook.subjects("begun"), "the webhook is told")
            wait_for(
                lambda: file.exists() and "public.keyless" in file.read_text(),
                "the command is told",
            )
        with running(text, tmp_path):
            time.sleep(1)
            assert hook.subjects("begun").count("public.keyless") == 1, "it was told before"
            sql.execute("ALTER TABLE keyless ADD PRIMARY KEY (a)")
            wait_for(lambda: "public.keyless" in hook.subjects("ended"), "its end is told")
            wait_for(lambda: '"ended": [{' in file.read_text(), "to both")
    heard = next(m for m in hook.heard if "public.keyless" in m["text"])
    assert heard["version"] == 1
    assert hook.paths == {PATH}
    commands = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["about"] for m in commands for each in m["begun"]].count("public.keyless") == 1
    # What went wrong meanwhile is in the log, without the URL's path, which is a secret.
    assert "webhook/ was not delivered, and is retried: 127.0.0.1 answers HTTP 503" in caplog.text
    assert "secret-part" not in caplog.text
