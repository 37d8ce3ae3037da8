"""The web page of a process: its routes, sessions, files, and the stream of the overview.

``/`` is the page; all else is under ``/web/``. Routes answer in every process, leader or not: the
content comes from state store and event log, and commands go the same way.

A session is a signed text in a cookie, so that it lasts when another process answers or this one is
restarted. Its signing key is derived from the login token: a new token in the configuration ends
all sessions of the old one.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tidelog.app.web.site import PollResult, Site
from tidelog.config import RestSection
from tidelog.control.channels.http_answers import (
    Endpoint,
    HttpRefusal,
    answering_refusals,
    json_refusal,
    read_body,
    reject_token,
)
from tidelog.control.channels.rate_limit import TokenRateLimit
from tidelog.control.channels.request_workers import RequestWorkers
from tidelog.control.commands import COMMANDS, Command, StartDump, command_from_json
from tidelog.control.mailbox import new_id
from tidelog.errors import UsageError
from tidelog.system.version import __version__

# Sessions of users who have logged in. Pure: the time is an argument.

LASTS_S: Final = 12 * 3600
NAME_LENGTH: Final = 60
_CLOSED: Final = 10_000


class Role(StrEnum):
    """What a user may do."""

    VIEWER = "viewer"
    """May see everything."""
    OPERATOR = "operator"
    """May also act."""


@dataclass(frozen=True, slots=True)
class WebSession:
    """A user who has logged in.

    Attributes:
        name: the name that the user gave; nobody has checked it.
        until_s: the end of the session, in seconds since 1970.
        nonce: differs from those of all other sessions.
    """

    role: Role
    name: str
    until_s: int
    nonce: str


class Sessions:
    """Opens, verifies and closes sessions. ``tokens``: the tokens, by the role that they give."""

    def __init__(self, tokens: Mapping[Role, str]) -> None:
        self._tokens = dict(tokens)
        self._closed: deque[str] = deque(maxlen=_CLOSED)

    def open(self, token: str, name: str, now_s: float) -> tuple[Role, str] | None:
        """Return the role and the cookie of a new session; None: the token is wrong."""
        given = token.encode("utf-8", "replace")
        for role, known in self._tokens.items():
            if hmac.compare_digest(given, known.encode()):
                shown = "".join(filter(str.isprintable, name)).strip()[:NAME_LENGTH]
                session = WebSession(role, shown, int(now_s) + LASTS_S, secrets.token_hex(16))
                body = base64.urlsafe_b64encode(json.dumps(asdict(session)).encode()).decode()
                return role, f"{body}.{self._mac(role, 'session', body)}"
        return None

    def of(self, cookie: str, now_s: float) -> WebSession | None:
        """Return the session of the cookie; None: it is not ours, or has ended."""
        body, _, mac = cookie.partition(".")
        role = next(
            (role for role in self._tokens if _equal(self._mac(role, "session", body), mac)), None
        )
        if role is None:
            return None
        try:  # only once the signature is verified; perhaps of another version
            session = WebSession(**json.loads(base64.urlsafe_b64decode(body)))
        except TypeError:
            return None
        if session.role != role or session.until_s <= now_s or session.nonce in self._closed:
            return None
        return WebSession(role, session.name, session.until_s, session.nonce)

    def marks(self) -> dict[Role, str]:
        """Return the name of the cookies for each role's token. Only a holder of the token gets
        one, so it reveals nothing to others.
        """
        return {role: self._mac(role, "name", "")[:8] for role in self._tokens}

    def csrf(self, session: WebSession) -> str:
        """Return the text that each changing request must send beside the cookie."""
        return self._mac(session.role, "csrf", session.nonce)

    def has_csrf(self, session: WebSession, csrf: str) -> bool:
        """Return whether our page sent the request."""
        return _equal(self.csrf(session), csrf)

    def close(self, session: WebSession) -> None:
        """End the session in this process; the caller deletes the cookie."""
        self._closed.append(session.nonce)

    def _mac(self, role: Role, what: str, text: str) -> str:
        key = hashlib.sha256(b"tidelog web\0" + self._tokens[role].encode()).digest()
        signed = f"{what}\0{text}".encode("utf-8", "replace")
        return hmac.new(key, signed, hashlib.sha256).hexdigest()


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode("utf-8", "replace"))


# The page's own files, and the headers of all its answers.

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "md": "text/markdown; charset=utf-8",
}
_HELP: Final = "failure-modes.md"
PAGE_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page, as it is sent."""

    body: bytes
    media_type: str
    etag: str


def page_files() -> dict[str, PageFile]:
    """Read all files, by name; requests are looked up among them, never on disk."""
    files = {}
    for entry in _entries():
        media_type = _TYPES.get(entry.name.rpartition(".")[2])
        if media_type is not None:
            body = entry.read_bytes()
            digest = hashlib.sha256(__version__.encode() + body).hexdigest()[:20]
            files[entry.name] = PageFile(body, media_type, f'"{digest}"')
    return files


def _entries() -> Iterator[Traversable]:
    yield from (resources.files("tidelog.app.web") / "static").iterdir()
    in_clone = Path(__file__).parents[4] / "docs" / _HELP
    if in_clone.is_file():  # in a wheel it is beside the others
        yield in_clone


# The stream of the overview: once a second if it has changed; tables less often.

OVERVIEW_EVERY_S: Final = 1.0
TURN_S: Final = 0.2
BEAT_EVERY_S: Final = 4.0
"""A page that gets no event for a while says so, and reconnects."""
TABLES_EVERY_S: Final = 3.0
MOST_STREAMS: Final = 64
STREAM_THREADS: Final = 4
"""Threads that read for all pages."""


class OverviewStream:
    """The stream of one page.

    Args:
        sites: the sites on the page.
        chosen: the number of the site whose tables it shows.
        limiter: the limit of its threads.
    """

    def __init__(self, sites: Sequence[Site], chosen: int, limiter: anyio.CapacityLimiter) -> None:
        self._sites = sites
        self._limiter = limiter
        self._chosen = chosen
        self._sent: dict[int, PollResult] = {}
        self._tables: dict[str, dict[str, Any]] | None = None
        self._tables_due = 0.0
        self._beat_due = 0.0

    async def events(
        self, is_valid: Callable[[], bool], closed: Callable[[], bool]
    ) -> AsyncIterator[bytes]:
        """Yield events until the session or the process ends."""
        yield b"retry: 1000\n\n"
        due = 0.0
        while not closed() and is_valid():
            now = time.monotonic()
            if now < due:
                await asyncio.sleep(TURN_S)
                continue
            for event in self._beat(now):  # before anything slow
                yield event
            for event in await self._read(now):
                yield event
            all_sent = len(self._sent) == len(self._sites)
            due = now + (OVERVIEW_EVERY_S if all_sent else TURN_S)
        if not closed():
            yield _event("ended", {})

    async def _read(self, now: float) -> list[bytes]:
        """Read in other threads: it compares thousands of tables, and commands need theirs."""
        return await anyio.to_thread.run_sync(self._changes, now, limiter=self._limiter)

    def _beat(self, now: float) -> list[bytes]:
        """Return a heartbeat event if no event was sent for a while."""
        if now < self._beat_due:
            return []
        self._beat_due = now + BEAT_EVERY_S
        return [_event("beat", {})]

    def _changes(self, now: float) -> list[bytes]:
        events_out = []
        for number, site in enumerate(self._sites):
            latest = site.latest()
            if latest is None:
                continue
            if latest.overview and number == self._chosen and now >= self._tables_due:
                self._tables_due = now + TABLES_EVERY_S
                events_out += self._table_events(latest.tables)
            sent = self._sent.get(number)
            if sent is None or (sent is not latest and _differ(sent, latest)):
                events_out.insert(0, _event("overview", _shown(number, sent, latest)))
                self._sent[number] = latest
        if events_out:
            self._beat_due = now + BEAT_EVERY_S
        return events_out

    def _table_events(self, current: dict[str, dict[str, Any]]) -> list[bytes]:
        """Return only changed tables: there may be thousands."""
        before = self._tables or {}
        changed = [row for name, row in current.items() if before.get(name) != row]
        removed = [name for name in before if name not in current]
        first, self._tables = self._tables is None, current
        if not (changed or removed or first):
            return []
        return [_event("tables", {"first": first, "changed": changed, "gone": removed})]


def _differ(sent: PollResult, latest: PollResult) -> bool:
    return sent.overview != latest.overview or sent.trouble != latest.trouble


def _shown(number: int, sent: PollResult | None, latest: PollResult) -> dict[str, Any]:
    """Return the overview without unchanged problems: a thousand tables may have one each."""
    if latest.overview is None:
        return {"site": number, "trouble": latest.trouble}
    shown, before = latest.overview, sent and sent.overview
    if before and before["problems"] == shown["problems"]:
        shown = {key: value for key, value in shown.items() if key != "problems"}
    return {"site": number, "overview": shown}


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


# Requests: sessions, bodies and commands.

MAX_BODY_BYTES: Final = 256 << 10
CSRF_HEADER: Final = "x-tidelog-csrf"


def json_answer(document: Any, status: int = 200) -> JSONResponse:
    """Return a JSON answer with the page's headers."""
    return JSONResponse(document, status, headers=dict(PAGE_HEADERS))


def cookie_names(request: Request, sessions: Sessions) -> dict[Role, str]:
    """Return the names of cookies, by role.

    Cookies have no ports, and ours no paths: with equal names, two Tidelogs on one host, or below
    two paths of a proxy, would log each other's users out.
    """
    port = request.url.port or "web"
    return {role: f"tidelog_{port}_{mark}" for role, mark in sessions.marks().items()}


def find_session(request: Request, sessions: Sessions) -> WebSession | None:
    """Return the session of the request; None: nobody has logged in."""
    for name in cookie_names(request, sessions).values():
        session = sessions.of(request.cookies.get(name, ""), time.time())
        if session is not None:
            return session
    return None


def session_of(request: Request, sessions: Sessions) -> WebSession:
    """Return the session of the request. Raises HttpRefusal if nobody has logged in."""
    session = find_session(request, sessions)
    if session is None:
        raise HttpRefusal(401, "LoggedOut", "log in first")
    return session


def check_same_site(request: Request) -> None:
    """Raise HttpRefusal if the browser says that another site's page sent the request."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HttpRefusal(403, "CrossSite", "another site's page sent this request")


def operator_of(request: Request, sessions: Sessions) -> WebSession:
    """Return the operator's session. Raises HttpRefusal for others, and for other sites' pages."""
    session = session_of(request, sessions)
    check_same_site(request)
    if not sessions.has_csrf(session, request.headers.get(CSRF_HEADER, "")):
        raise HttpRefusal(403, "CrossSite", "the request has no check against forgery")
    if session.role is not Role.OPERATOR:
        raise HttpRefusal(403, "NotAllowed", "viewers can't act; log in with control.rest.token")
    return session


async def body_of(request: Request) -> Mapping[str, Any]:
    """Return the body's JSON object, which other sites' forms can't send. Raises HttpRefusal."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HttpRefusal(415, "BadRequest", "the body is application/json")
    body = await read_body(request, MAX_BODY_BYTES)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise HttpRefusal(400, "BadRequest", "the body is not JSON") from None
    if not isinstance(document, dict):
        raise HttpRefusal(400, "BadRequest", "the body is a JSON object")
    return document


def command_of(document: Mapping[str, Any], by: str) -> tuple[Command, str]:
    """Return the command that ``document`` describes, as `command_from_json` reads it, and its
    subject, for the audit list. ``by``: who pauses.

    Raises:
        UsageError: it describes none, or one that the page does not have.
    """
    kind, data = document.get("type"), document.get("data", {})
    known = {name: each for name, each in COMMANDS.items() if each.on_page}
    if not isinstance(kind, str) or kind not in known:
        raise UsageError(f"type is one of {', '.join(known)}")
    if not isinstance(data, Mapping):
        raise UsageError("data is a JSON object")
    if kind == StartDump.type:
        data = {**data, "dump_id": new_id().lower()}
    elif "by" in known[kind].model_fields:
        data = {**data, "by": by}
    command = command_from_json({"type": kind, "data": data})
    return command, command.subject()


def texts_of(document: Mapping[str, Any], name: str) -> list[str]:
    """Return a list of texts in ``document``; absent: none."""
    found = document.get(name, [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise UsageError(f"{name} is a list of texts")
    return found


# The routes.

logger = logging.getLogger(__name__)

READ_S: Final = 10.0
SEND_S: Final = 15.0
PLAN_S: Final = 280.0
"""How long a request waits; the work may continue."""
SITE_THREADS: Final = 8
FULL: Final = f"{MOST_STREAMS} pages are open already"
SILENT: Final = (
    "its state store or event log does not answer yet; the work continues, and a command may be "
    "done later: the audit list shows it"
)


class Web:
    """The web page of one process.

    Args:
        sites: the sites to show.
        tokens: the tokens, by the role that they give.
        rate_limit: the limit on wrong tokens.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        tokens: Mapping[Role, str],
        rate_limit: TokenRateLimit | None = None,
    ) -> None:
        self._sites = sites
        self._sessions = Sessions(tokens)
        self._rate_limit = rate_limit or TokenRateLimit()
        self._workers = [RequestWorkers(SITE_THREADS) for _ in sites]
        self._files = page_files()
        self._closed = threading.Event()
        self._streams = 0
        self._limiter = anyio.CapacityLimiter(STREAM_THREADS)

    def start(self) -> None:
        """Start to poll and to collect the history."""
        for site in self._sites:
            site.start()

    def lead(self, leads: bool) -> None:
        """Set whether the capture of this process leads."""
        for site in self._sites:
            site.leads = leads

    def end_streams(self) -> None:
        """End the streams; the server waits for open answers before it ends."""
        self._closed.set()

    def close(self) -> None:
        self.end_streams()
        for site in self._sites:
            site.close()

    def routes(self) -> list[Route]:
        """Return the routes, see the module."""
        gets: dict[str, Endpoint] = {
            "/": self._page,
            "/web/files/{name}": self._file,
            "/web/session": self._session,
            "/web/stream": self._stream,
            "/web/sites/{site}/history": self._memory_endpoint(Site.history),
            "/web/sites/{site}/activity": self._memory_endpoint(Site.activity),
            "/web/sites/{site}/results": self._memory_endpoint(Site.results),
            "/web/sites/{site}/settings": self._memory_endpoint(Site.settings),
            "/web/sites/{site}/audit": self._read_endpoint(lambda site, _: site.audit()),
            "/web/sites/{site}/schema": self._read_endpoint(
                lambda site, request: site.schema(request.query_params.get("table", ""))
            ),
        }
        posts: dict[str, Endpoint] = {
            "/web/login": self._login,
            "/web/logout": self._logout,
            "/web/sites/{site}/check": self._check,
            "/web/sites/{site}/plan": self._plan,
            "/web/sites/{site}/commands": self._command,
        }
        return [
            *(
                Route(path, _with_error_answers(each), methods=["GET"])
                for path, each in gets.items()
            ),
            *(
                Route(path, _with_error_answers(each), methods=["POST"])
                for path, each in posts.items()
            ),
        ]

    # ------------------------------------------------------------ files

    async def _page(self, request: Request) -> Response:
        return self._sent("index.html", request)

    async def _file(self, request: Request) -> Response:
        return self._sent(request.path_params["name"], request)

    def _sent(self, name: str, request: Request) -> Response:
        file = self._files.get(name)
        if file is None:
            raise HttpRefusal(404, "NotFound", "there is no such file")
        headers = {**PAGE_HEADERS, "Cache-Control": "no-cache", "ETag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.body, headers=headers, media_type=file.media_type)

    # ------------------------------------------------------------ sessions

    async def _login(self, request: Request) -> Response:
        check_same_site(request)
        body = await body_of(request)
        token, name = body.get("token"), body.get("name", "")
        if not isinstance(token, str) or not isinstance(name, str):
            raise HttpRefusal(400, "BadRequest", "token and name are texts")
        cookie = self._sessions.open(token, name, time.time())
        if cookie is None:
            # A right token never has to wait: nobody can lock others out by guessing.
            await reject_token(request, self._rate_limit)
            raise HttpRefusal(403, "WrongToken", "this token is wrong")
        role, value = cookie
        response = json_answer({})
        names = cookie_names(request, self._sessions)
        response.set_cookie(
            names.pop(role),
            value,
            max_age=LASTS_S,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        for former in request.cookies.keys() & names.values():  # of another role
            response.delete_cookie(former, httponly=True, samesite="strict")
        return response

    async def _logout(self, request: Request) -> Response:
        session = session_of(request, self._sessions)
        check_same_site(request)
        self._sessions.close(session)
        response = json_answer({})
        for name in cookie_names(request, self._sessions).values():
            response.delete_cookie(name, httponly=True, samesite="strict")
        return response

    async def _session(self, request: Request) -> Response:
        session = session_of(request, self._sessions)
        return json_answer(
            {
                "role": session.role,
                "name": session.name,
                "csrf": self._sessions.csrf(session),
                "sites": [{"name": site.name, "kind": site.kind} for site in self._sites],
                "version": __version__,
                "full": FULL if self._streams >= MOST_STREAMS else "",
            }
        )

    # ------------------------------------------------------------ reading

    async def _stream(self, request: Request) -> Response:
        session = session_of(request, self._sessions)
        if self._streams >= MOST_STREAMS:
            raise HttpRefusal(503, "TooMany", FULL)
        number = self._number(request.query_params.get("site", "0"))
        stream = OverviewStream(self._sites, number, self._limiter)
        events = stream.events(
            lambda: find_session(request, self._sessions) == session, self._closed.is_set
        )

        async def counted() -> Any:
            self._streams += 1
            try:
                async for event in events:
                    yield event
            finally:
                self._streams -= 1

        headers = {**PAGE_HEADERS, "X-Accel-Buffering": "no"}
        return StreamingResponse(counted(), media_type="text/event-stream", headers=headers)

    def _memory_endpoint(self, get: Callable[[Site], Any]) -> Endpoint:
        """Return an endpoint for what a site has in memory."""

        async def endpoint(request: Request) -> Response:
            session_of(request, self._sessions)
            return json_answer(get(self._site(request)))

        return endpoint

    def _read_endpoint(self, get: Callable[[Site, Request], Any]) -> Endpoint:
        """Return an endpoint that reads a site's state store or event log."""

        async def endpoint(request: Request) -> Response:
            session_of(request, self._sessions)
            return json_answer(
                await self._run_work(request, lambda site: get(site, request), READ_S)
            )

        return endpoint

    async def _run_work(
        self, request: Request, work: Callable[[Site], Any], timeout_s: float
    ) -> Any:
        """Run the work on the site's own threads: a store that hangs delays no other site."""
        number = self._number(request.path_params["site"])
        return await self._workers[number].run(lambda: work(self._sites[number]), timeout_s)

    # ------------------------------------------------------------ commands

    async def _check(self, request: Request) -> Response:
        operator_of(request, self._sessions)
        self._site(request).check()
        return json_answer({}, 202)

    async def _plan(self, request: Request) -> Response:
        operator_of(request, self._sessions)
        tables = texts_of(await body_of(request), "tables")
        return json_answer(await self._run_work(request, lambda site: site.plan(tables), PLAN_S))

    async def _command(self, request: Request) -> Response:
        session = operator_of(request, self._sessions)
        body = await body_of(request)
        who = _who(session, request)
        command, about = command_of(body, f"{who['name']} on the web page")
        outcome = await self._run_work(
            request, lambda site: site.send(command, who, about[:200]), SEND_S
        )
        if outcome["state"] == "failed":
            raise HttpRefusal(400 if outcome["usage"] else 500, "Failed", outcome["error"])
        return json_answer(outcome, 202)

    def _site(self, request: Request) -> Site:
        return self._sites[self._number(request.path_params["site"])]

    def _number(self, text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text[:9]) >= len(self._sites):
            raise HttpRefusal(404, "NotFound", "there is no such site on this page")
        return int(text[:9])


def tokens_of(rest: RestSection) -> dict[Role, str]:
    """Return the tokens by role."""
    tokens = {Role.OPERATOR: rest.token.get_secret_value()}
    if rest.viewer_token is not None:
        tokens[Role.VIEWER] = rest.viewer_token.get_secret_value()
    return tokens


def _who(session: WebSession, request: Request) -> dict[str, str]:
    address = request.client.host if request.client else ""
    return {"name": session.name or "an operator", "role": session.role, "address": address}


def _with_error_answers(endpoint: Endpoint) -> Endpoint:
    silent = HttpRefusal(504, "NoAnswer", SILENT)
    return answering_refusals(endpoint, lambda refusal: json_refusal(refusal, PAGE_HEADERS), silent)
