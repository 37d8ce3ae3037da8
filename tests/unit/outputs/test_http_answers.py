"""Errors of all HTTP interfaces become answers in one place."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from tidelog.control.channels.http_answers import (
    HttpRefusal,
    answering_refusals,
    json_refusal,
    read_body,
)
from tidelog.control.channels.request_workers import BusyError, SilentError
from tidelog.errors import CommandIdReusedError, OutputError, OutputRefusedError, UsageError

SILENT = HttpRefusal(504, "NoAnswer", "too late")


@pytest.mark.parametrize(
    ("error", "status", "kind", "retry_after"),
    [
        (HttpRefusal(404, "NotFound", "no"), 404, "NotFound", None),
        (HttpRefusal(429, "TooMany", "wait"), 429, "TooMany", "60"),
        (BusyError("full"), 503, "Busy", "5"),
        (SilentError(), 504, "NoAnswer", "5"),
        (CommandIdReusedError("again"), 409, "Conflict", None),
        (UsageError("wrong"), 400, "UsageError", None),
        (OutputError("away"), 503, "OutputError", "1"),
        (OutputRefusedError("never"), 500, "OutputRefusedError", None),
        (ValueError("a value of a row"), 500, "InternalError", None),
    ],
)
def test_an_error_has_its_status(
    error: Exception, status: int, kind: str, retry_after: str | None
) -> None:
    async def fail(_request: Request) -> JSONResponse:
        raise error

    route = Route("/", answering_refusals(fail, json_refusal, SILENT))
    answer = TestClient(Starlette(routes=[route])).get("/")
    assert (answer.status_code, answer.json()["error"]["kind"]) == (status, kind)
    assert answer.headers.get("Retry-After") == retry_after
    assert "of a row" not in answer.text


def test_a_body_is_bounded() -> None:
    async def count(request: Request) -> JSONResponse:
        return JSONResponse(len(await read_body(request, 3)))

    route = Route("/", answering_refusals(count, json_refusal, SILENT), methods=["POST"])
    client = TestClient(Starlette(routes=[route]))
    assert client.post("/", content=b"123").json() == 3
    assert client.post("/", content=b"1234").status_code == 413
