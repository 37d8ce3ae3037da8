"""Which catalogs are asked without Java."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tidelog.errors import OutputError
from tidelog.outputs.lake.iceberg.metadata_locations import find_locations


@pytest.mark.parametrize(
    "properties",
    [
        {"type": "hive", "uri": "thrift://m:9083"},
        {"catalog-impl": "org.apache.iceberg.rest.RESTCatalog", "uri": "http://127.0.0.1:1"},
        {"type": "rest", "uri": "http://127.0.0.1:1", "rest.sigv4-enabled": "true"},
        {"type": "jdbc", "uri": "jdbc:mysql://127.0.0.1:1/lake"},
        {"type": "jdbc", "uri": "jdbc:postgresql://a:1,b:1/lake"},
        {"type": "jdbc", "uri": "jdbc:postgresql://127.0.0.1:1/lake?targetServerType=primary"},
    ],
)
def test_a_catalog_that_may_be_another_one_is_not_asked(properties: dict[str, str]) -> None:
    assert find_locations(properties, []) is None


def test_a_token_is_sent_to_no_other_server() -> None:
    asked: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(OutputError, match="status 302"):
            find_locations({"type": "rest", "uri": uri, "token": "t0ken"}, [])
        server.shutdown()
    assert asked == ["/v1/config?"]
