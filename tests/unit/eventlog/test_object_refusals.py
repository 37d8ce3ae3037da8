"""What an object store answers, for people."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tidelog.errors import AccessRefusedError
from tidelog.eventlog.object_storage import ObjectStorage


class _OtherRegion(BaseHTTPRequestHandler):
    """As S3 answers for a bucket that is in another region."""

    def do_GET(self) -> None:
        body = b"<Error><Code>PermanentRedirect</Code></Error>"
        self.send_response(301)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_bucket_in_another_region_is_reported_as_such() -> None:
    with HTTPServer(("127.0.0.1", 0), _OtherRegion) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        options = {"endpoint": endpoint, "allow_http": "true", "skip_signature": "true"}
        with pytest.raises(AccessRefusedError, match="another region: name it, as `region`"):
            ObjectStorage("s3://bucket/lake", options).names()
        server.shutdown()
