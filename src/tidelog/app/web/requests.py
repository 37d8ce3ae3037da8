"""Who asks, and may they? What every request of the page goes through."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidelog.app.web.sessions import Role, Sessions, WebSession
from tidelog.app.web.static_files import HEADERS

MAX_BODY_BYTES: Final = 256 << 10
CSRF_HEADER: Final = "x-tidelog-csrf"


class Refused(Exception):  # noqa: N818 - an answer, not an error of ours
    """Ends a request with a status above 399."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        self.status = status
        self.kind = kind
        self.message = message


def answer(document: Any, status: int = 200) -> JSONResponse:
    """A JSON answer with the page's headers."""
    return JSONResponse(document, status, headers=dict(HEADERS))


def refusal(refused: Refused) -> Response:
    """Why a request is refused."""
    body = {"error": {"kind": refused.kind, "message": refused.message}}
    headers = {"Retry-After": "60"} if refused.status == 429 else {}
    return JSONResponse(body, refused.status, headers={**HEADERS, **headers})


def cookie_names(request: Request, sessions: Sessions) -> dict[Role, str]:
    """Cookies know no ports, and ours no paths: two Tidelogs on one host, or below two paths of a
    proxy, would log each other's users out.
    """
    port = request.url.port or "web"
    return {role: f"tidelog_{port}_{mark}" for role, mark in sessions.marks().items()}


def find_session(request: Request, sessions: Sessions) -> WebSession | None:
    """The session of the request; None: nobody has logged in."""
    for name in cookie_names(request, sessions).values():
        found = sessions.of(request.cookies.get(name, ""), time.time())
        if found is not None:
            return found
    return None


def session_of(request: Request, sessions: Sessions) -> WebSession:
    """The session of the request. Raises Refused if nobody has logged in."""
    found = find_session(request, sessions)
    if found is None:
        raise Refused(401, "LoggedOut", "log in first")
    return found


def check_from_here(request: Request) -> None:
    """Raises Refused if the browser says that another site's page sent the request."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Refused(403, "CrossSite", "another site's page sent this request")


def operator_of(request: Request, sessions: Sessions) -> WebSession:
    """Who wants something done. Raises Refused unless it is an operator, by means of our page."""
    session = session_of(request, sessions)
    check_from_here(request)
    if not sessions.is_meant(session, request.headers.get(CSRF_HEADER, "")):
        raise Refused(403, "CrossSite", "the request lacks its check against forgery")
    if session.role is not Role.OPERATOR:
        raise Refused(403, "NotAllowed", "viewers only look; log in with control.rest.token to act")
    return session


async def body_of(request: Request) -> Mapping[str, Any]:
    """The body's JSON object. Raises Refused if it is none: forms of other sites can't send it."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Refused(415, "BadRequest", "the body is application/json")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise Refused(413, "TooLarge", f"a body has at most {MAX_BODY_BYTES} bytes")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "BadRequest", "the body is not JSON") from None
    if not isinstance(found, dict):
        raise Refused(400, "BadRequest", "the body is a JSON object")
    return found
