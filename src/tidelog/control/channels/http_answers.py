"""Refused requests of all HTTP interfaces: each error is one `HttpRefusal`, which every interface
answers in its own format.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidelog.control.channels.rate_limit import TOO_MANY_MESSAGE, TokenRateLimit, carries
from tidelog.control.channels.request_workers import BusyError, SilentError
from tidelog.errors import CommandIdReusedError, Policy, TidelogError, UsageError

logger = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]

_RETRY_AFTER_S: Final = {429: "60", 503: "1"}
_STORE_RETRY_AFTER_S: Final = {"Busy": "5", "NoAnswer": "5"}


class HttpRefusal(Exception):  # noqa: N818 - an answer, not an error of ours
    """Ends a request with a status of 400 or more, or a redirect. ``more``: for the answer."""

    def __init__(self, status: int, kind: str, message: str, **more: Any) -> None:
        self.status = status
        self.kind = kind
        self.message = message
        self.more = more


def json_refusal(refusal: HttpRefusal, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the answer as JSON, ``{"error": {"kind": …, "message": …}}``."""
    body = {"error": {"kind": refusal.kind, "message": refusal.message, **refusal.more}}
    answer = JSONResponse(body, refusal.status, headers)
    after = _STORE_RETRY_AFTER_S.get(refusal.kind) or _RETRY_AFTER_S.get(refusal.status)
    if after is not None:
        answer.headers["Retry-After"] = after
    if refusal.kind == "Unauthorized":
        answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def answering_refusals(
    endpoint: Endpoint, answer: Callable[[HttpRefusal], Response], silent: HttpRefusal
) -> Endpoint:
    """Wrap an endpoint so that each error gets an ``answer``; ``silent`` is that of a state store
    or event log that does not answer in time.
    """

    async def run(request: Request) -> Response:
        try:
            return await endpoint(request)
        except SilentError:
            return answer(silent)
        except Exception as error:  # noqa: BLE001 - its text is not ours and may hold values
            return answer(_refusal_of(error, request))

    return run


def _refusal_of(error: Exception, request: Request) -> HttpRefusal:
    if isinstance(error, HttpRefusal):
        return error
    if isinstance(error, BusyError):
        return HttpRefusal(503, "Busy", str(error))
    if isinstance(error, CommandIdReusedError):
        return HttpRefusal(409, "Conflict", str(error))
    name = type(error).__name__
    if isinstance(error, UsageError):
        return HttpRefusal(400, name, str(error))
    if isinstance(error, TidelogError):
        waits = error.policy in (Policy.RETRY, Policy.RESTART)
        return HttpRefusal(503 if waits else 500, name, str(error))
    logger.error("%s %s failed: %s", request.method, request.url.path, name)
    return HttpRefusal(500, "InternalError", name)


async def check_token(request: Request, tokens: Iterable[str], rate_limit: TokenRateLimit) -> None:
    """Raise HttpRefusal, delayed after many failures, if the request has none of ``tokens``."""
    if carries(request, tokens):
        return
    if "authorization" in request.headers:  # else it is not a guess
        await reject_token(request, rate_limit)
    raise HttpRefusal(401, "Unauthorized", "the token is missing or wrong")


async def reject_token(request: Request, rate_limit: TokenRateLimit) -> None:
    """Count a wrong token; raise HttpRefusal, late, if there were too many."""
    if await rate_limit.reject(request.client.host if request.client else ""):
        raise HttpRefusal(429, "TooMany", TOO_MANY_MESSAGE)


async def read_body(request: Request, most_bytes: int) -> bytes:
    """Return the body. Raises HttpRefusal if it is larger than ``most_bytes``."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > most_bytes:
            raise HttpRefusal(413, "TooLarge", f"a body has at most {most_bytes} bytes")
    return body
