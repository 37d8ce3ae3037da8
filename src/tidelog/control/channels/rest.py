"""The HTTP interface: commands and status of the leading capture, as a Starlette application.

Every answer is JSON. Requests are handled in threads: one that waits for a command's outcome does
not delay the others.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tidelog.control.channels.api_protocol import ApiBackend
from tidelog.control.channels.rate_limit import (
    ACCEPTED,
    MISSING,
    TOO_MANY_MESSAGE,
    TokenRateLimit,
    check_token,
)
from tidelog.control.channels.rest_bodies import ROUTES, DumpBody, openapi
from tidelog.control.channels.worker_threads import BusyError, RequestWorkers, SilentError
from tidelog.control.commands import (
    Command,
    ExecuteSnapshot,
    PauseLog,
    PausePipeline,
    PauseSnapshot,
    ResumeLog,
    ResumePipeline,
    ResumeSnapshot,
    SetDumpOptions,
    StopSnapshot,
    build,
)
from tidelog.control.debezium import from_document, parse
from tidelog.control.mailbox import CommandIdReusedError, Outcome, new_id
from tidelog.errors import Policy, TidelogError, UsageError

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 16 << 20
WAIT_S = 5.0
MAX_WAIT_S = 10.0
THREADS = 32
PATIENCE_S, HEALTH_PATIENCE_S = 30.0, 3.0
_BY = "the HTTP interface"
_NO_ANSWER_MESSAGE = (
    "the state store does not answer; whether a command was given is not known: ask again with its "
    "dump_id"
)
_REDIRECT = 307  # the same request, there


@dataclass(frozen=True, slots=True)
class Leadership:
    """The current leader: this process with ``backend``, or another one, ``leader``, if any;
    ``url``: URL of its interface, if known.
    """

    backend: ApiBackend | None
    leader: str | None = None
    url: str | None = None


class HttpError(Exception):
    """Ends a request with a status of 400 or more, or a redirect."""

    def __init__(self, status: int, kind: str, message: str, **more: Any) -> None:
        self.status = status
        self.body = {"error": {"kind": kind, "message": message, **more}}


def application(
    leadership: Callable[[], Leadership],
    token: str,
    further: Sequence[Route] = (),
    rate_limit: TokenRateLimit | None = None,
) -> Starlette:
    """Build the application.

    Args:
        leadership: called for each request.
        token: the token that requests carry as ``Authorization: Bearer …``.
        further: other routes of the application.
        rate_limit: limit on wrong tokens, shared by all routes.
    """
    interface = _Interface(leadership, token, rate_limit or TokenRateLimit())
    routes = [
        Route(path, interface.endpoint(method, path), methods=[method.upper()])
        for method, path, *_ in ROUTES
    ]
    return Starlette(routes=[*routes, *further], exception_handlers={HTTPException: _not_routed})


async def _not_routed(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    kind = {404: "NotFound", 405: "MethodNotAllowed"}.get(error.status_code, "BadRequest")
    body = {"error": {"kind": kind, "message": error.detail}}
    return JSONResponse(body, error.status_code, headers=error.headers)


class _Interface:
    def __init__(
        self, leadership: Callable[[], Leadership], token: str, rate_limit: TokenRateLimit
    ) -> None:
        self._leadership = leadership
        self._token = token
        self._rate_limit = rate_limit
        self._workers = RequestWorkers(THREADS)
        self._healthy = RequestWorkers(2)  # its own: health requests need no token
        self._handlers: dict[tuple[str, str], Callable[[_Call], tuple[int, Any]]] = {
            ("get", "/status"): lambda call: (200, call.backend.status()),
            ("get", "/dumps"): lambda call: (200, {"dumps": call.backend.summary()["dumps"]}),
            ("post", "/dumps"): _start,
            ("get", "/dumps/{id}"): lambda call: (200, _dump(call)),
            ("post", "/dumps/{id}/pause"): _pause,
            ("post", "/dumps/{id}/resume"): lambda c: c.send(ResumeSnapshot(dump_id=_dump_id(c))),
            ("post", "/dumps/{id}/cancel"): _cancel,
            ("post", "/pause"): lambda call: call.send(PauseSnapshot(by=_BY)),
            ("post", "/resume"): lambda call: call.send(ResumeSnapshot()),
            ("post", "/cancel"): lambda call: call.send(StopSnapshot()),
            ("post", "/log/pause"): lambda call: call.send(PauseLog(by=_BY)),
            ("post", "/log/resume"): lambda call: call.send(ResumeLog()),
            ("post", "/pipelines/{id}/pause"): lambda c: _pipeline(c, PausePipeline, by=_BY),
            ("post", "/pipelines/{id}/resume"): lambda c: _pipeline(c, ResumePipeline),
            ("get", "/options"): lambda call: (200, call.backend.summary()["dump_options"]),
            ("patch", "/options"): lambda call: call.send(build(SetDumpOptions, call.document())),
            ("post", "/signals"): _signal,
            ("get", "/commands/{id}"): _outcome,
            ("get", "/notifications"): _notifications,
            ("get", "/openapi.json"): lambda _call: (200, openapi()),
        }

    def endpoint(self, method: str, path: str) -> Callable[[Request], Awaitable[JSONResponse]]:
        handler = self._handlers.get((method, path))

        async def endpoint(request: Request) -> JSONResponse:
            try:
                if handler is None:
                    return await self._healthy.run(self._health, HEALTH_PATIENCE_S)
                await self._authorise(request)
                body = await _body(request)
                status, document = await self._workers.run(
                    lambda: self._answer(handler, request, body), PATIENCE_S
                )
                return JSONResponse(document, status)
            except BusyError as busy:
                body_ = {"error": {"kind": "Busy", "message": str(busy)}}
                return JSONResponse(body_, 503, {"Retry-After": "5"})
            except SilentError:
                body_ = {"error": {"kind": "NoAnswer", "message": _NO_ANSWER_MESSAGE}}
                return JSONResponse(body_, 503, {"Retry-After": "5"})
            except HttpError as failed:
                headers = {
                    401: {"WWW-Authenticate": "Bearer"},
                    429: {"Retry-After": "60"},
                    503: {"Retry-After": "1"},
                }
                if failed.status == _REDIRECT:
                    headers[_REDIRECT] = {"Location": failed.body["error"]["url"]}
                return JSONResponse(failed.body, failed.status, headers.get(failed.status))
            except Exception as error:  # noqa: BLE001 - its text is not ours and may hold values
                logger.error("%s %s failed: %s", method, path, type(error).__name__)
                body_ = {"error": {"kind": "InternalError", "message": type(error).__name__}}
                return JSONResponse(body_, 500)

        return endpoint

    def _health(self) -> JSONResponse:
        leads = self._leadership().backend is not None
        return JSONResponse({"status": "ok", "role": "leader" if leads else "standby"})

    async def _authorise(self, request: Request) -> None:
        status = await check_token(request, [self._token], self._rate_limit)
        if status == MISSING:
            raise HttpError(401, "Unauthorized", "Authorization: Bearer TOKEN is missing or wrong")
        if status != ACCEPTED:
            raise HttpError(status, "TooMany", TOO_MANY_MESSAGE)

    def _answer(
        self, handler: Callable[[_Call], tuple[int, Any]], request: Request, body: bytes
    ) -> tuple[int, Any]:
        leadership = self._leadership()
        if leadership.backend is None:
            leader = leadership.leader
            text = "no capture leads at the moment"
            if leader:
                text = f"{leader} leads; send the request there"
            if leadership.url is None:
                raise HttpError(503, "Standby", text, leader=leader, url=None)
            path = request.scope.get("raw_path", request.url.path.encode()).decode("latin-1")
            query = request.scope.get("query_string", b"").decode("latin-1")
            url = leadership.url.rstrip("/") + path + (f"?{query}" if query else "")
            raise HttpError(_REDIRECT, "Standby", text, leader=leader, url=url)
        try:
            return handler(_Call(request, body, leadership.backend))
        except CommandIdReusedError as error:
            raise HttpError(409, "Conflict", str(error)) from None
        except TidelogError as error:
            if isinstance(error, UsageError):
                status = 400
            else:
                status = 503 if error.policy in (Policy.RETRY, Policy.RESTART) else 500
            raise HttpError(status, type(error).__name__, str(error)) from None


async def _body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise HttpError(413, "TooLarge", f"a body has at most {MAX_BODY_BYTES} bytes")
    return body


@dataclass(frozen=True, slots=True)
class _Call:
    """One request, and the backend that answers it."""

    request: Request
    body: bytes
    backend: ApiBackend

    def document(self) -> Any:
        """The body's JSON; ``{}`` if there is no body."""
        try:
            return json.loads(self.body) if self.body.strip() else {}
        except (ValueError, RecursionError):
            raise UsageError("the body is not JSON") from None

    def number(self, name: str, default: float) -> float:
        """A query parameter that is a number, 0 or more."""
        try:
            value = float(self.request.query_params.get(name, default))
        except ValueError:
            value = -1.0
        if not 0 <= value < 2**53:
            raise UsageError(f"{name} is a number, 0 or more")
        return value

    def send(
        self, command: Command, key: str | None = None, dump: str | None = None
    ) -> tuple[int, Any]:
        """Send the command and wait shortly for its outcome."""
        wait_s = min(self.number("wait", WAIT_S), MAX_WAIT_S)
        command_id = self.backend.mailbox.send(command, key)
        outcome = self.backend.mailbox.wait(command_id, wait_s, poll_s=0.05)
        if outcome is not None and outcome.error is not None:
            kind = "UsageError" if outcome.usage else "TidelogError"
            raise HttpError(400 if outcome.usage else 500, kind, outcome.error, command=command_id)
        answer: dict[str, Any] = {"id": command_id, "state": "waiting", "dump": dump, "details": {}}
        if outcome is not None:
            details = outcome.details
            answer |= {"state": "done", "details": details, "dump": details.get("dump_id", dump)}
        return 202, answer


def _start(call: _Call) -> tuple[int, Any]:
    try:
        body = DumpBody.model_validate(call.document())
    except ValidationError:
        # The command's own message names the field without its value.
        build(ExecuteSnapshot, {"dump_id": "x", **_mapping(call.document())})
        raise UsageError("the body is not a dump; see /openapi.json") from None
    dump_id = body.dump_id or new_id().lower()
    command = build(ExecuteSnapshot, body.command(dump_id))
    key = f"rest:dump:{dump_id}"
    if not call.backend.mailbox.key_used(key) and _find_dump(call, dump_id) is not None:
        raise HttpError(409, "Conflict", f"there is a dump {dump_id} already")
    return call.send(command, key, dump_id)


def _pause(call: _Call) -> tuple[int, Any]:
    return call.send(PauseSnapshot(dump_id=_dump_id(call), by=_BY))


def _pipeline(call: _Call, command: type[Command], **more: str) -> tuple[int, Any]:
    return call.send(build(command, {"pipeline": call.request.path_params["id"], **more}))


def _cancel(call: _Call) -> tuple[int, Any]:
    tables = call.request.query_params.getlist("table")
    return call.send(build(StopSnapshot, {"dump_id": _dump_id(call), "tables": tables}))


def _signal(call: _Call) -> tuple[int, Any]:
    signal = from_document(call.document())
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return call.send(parse(signal, coordinates=stamp))


def _outcome(call: _Call) -> tuple[int, Any]:
    command_id = call.request.path_params["id"]
    outcome: Outcome | None = call.backend.mailbox.outcome(command_id)
    if outcome is not None:
        state = "done" if outcome.error is None else "failed"
        return 200, {"state": state, **outcome.to_json()}
    if call.backend.mailbox.is_waiting(command_id):
        return 200, {"state": "waiting", **Outcome(command_id, {}).to_json()}
    raise HttpError(404, "NotFound", "there is no such command (any more)")


def _notifications(call: _Call) -> tuple[int, Any]:
    after, limit = int(call.number("after", 0)), int(call.number("limit", 1000))
    return 200, {"notifications": call.backend.notifications(after, limit)}


def _find_dump(call: _Call, dump_id: str) -> dict[str, Any] | None:
    dumps: list[dict[str, Any]] = call.backend.summary()["dumps"]
    return next((dump for dump in dumps if dump["dump_id"] == dump_id), None)


def _dump(call: _Call) -> dict[str, Any]:
    dump = _find_dump(call, call.request.path_params["id"])
    if dump is None:
        raise HttpError(404, "NotFound", "there is no such dump (any more); see /dumps")
    return dump


def _dump_id(call: _Call) -> str:
    return str(_dump(call)["dump_id"])


def _mapping(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise UsageError("the body is a JSON object")
    return document
