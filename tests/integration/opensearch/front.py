"""A server before the tests' node: with TLS and users, and with answers that tests change."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.behaviours.outputs.search_index import node

# Gets method, path, status and answer; returns the status and answer in their place.
Change = Callable[[str, str, int, Any], tuple[int, Any]]


class Front:
    """What a test sees of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[tuple[str, str]] = []  # method and path

    def asked(self, part: str) -> int:
        """How many requests had it in their path."""
        return sum(part in path for _, path in self.requests)


@contextmanager
def before_the_node(
    change: Change = lambda method, path, status, answer: (status, answer),
    *,
    certificates: Path | None = None,
    authorization: str | None = None,
) -> Iterator[Front]:
    """With ``certificates`` (a directory) by TLS; without this ``authorization`` it answers 401."""
    server = node()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            front.requests.append((self.command, self.path))
            if authorization is not None and self.headers.get("Authorization") != authorization:
                status, answer = 401, {"error": {"type": "security_exception"}}
            else:
                status, answer = self._ask(body)
                status, answer = change(self.command, self.path, status, answer)
            sent = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def _ask(self, body: bytes) -> tuple[int, Any]:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            kind = {"Content-Type": self.headers.get("Content-Type") or "application/json"}
            connection.request(self.command, self.path, body, kind)
            found = connection.getresponse()
            text = found.read()
            connection.close()
            return found.status, json.loads(text) if text else None

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _forward  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scheme = "http"
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server-cert.pem", certificates / "server-key.pem")
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        scheme = "https"
    front = Front(f"{scheme}://127.0.0.1:{listening.server_port}")
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield front
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()
