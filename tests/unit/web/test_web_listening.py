"""The address of a client: the page believes a proxy only if one is configured."""

from __future__ import annotations

import json
import threading
import urllib.request

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tidelog.app.web.http_server import http_server, listen, url_of


async def who(request: Request) -> JSONResponse:
    assert request.client is not None
    return JSONResponse([request.client.host, request.url.scheme])


@pytest.mark.parametrize(
    ("behind_proxy", "told"),
    [(False, ["127.0.0.1", "http"]), (True, ["10.9.9.9", "https"])],
)
def test_forwarded_headers_are_a_proxys(behind_proxy: bool, told: list[str]) -> None:
    server = http_server(Starlette(routes=[Route("/", who)]), behind_proxy=behind_proxy)
    listening = listen("127.0.0.1", 0)
    assert listening is not None
    thread = threading.Thread(target=server.run, args=([listening],))
    with listening:
        thread.start()
        try:
            given = {"X-Forwarded-For": "10.9.9.9", "X-Forwarded-Proto": "https"}
            asked = urllib.request.Request(url_of(listening), headers=given)
            with urllib.request.urlopen(asked, timeout=30) as answer:
                assert json.load(answer) == told
        finally:
            server.should_exit = True
            thread.join(30)
