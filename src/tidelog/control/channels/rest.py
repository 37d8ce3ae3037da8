"""The HTTP interface: commands and status of the leading capture, as a Starlette application.

Every answer is JSON. Requests are handled in threads: one that waits for a command's outcome does
not delay the others.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tidelog.control.channels.http_answers import (
    Endpoint,
    HttpRefusal,
    answering_refusals,
    check_token,
    json_refusal,
    read_body,
)
from tidelog.control.channels.rate_limit import TokenRateLimit
from tidelog.control.channels.request_workers import RequestWorkers
from tidelog.control.commands import (
    CancelDump,
    Command,
    DumpId,
    Key,
    PauseDump,
    PauseLog,
    PausePipeline,
    Priority,
    ResumeDump,
    ResumeLog,
    ResumePipeline,
    SetDumpOptions,
    StartDump,
    TablePattern,
    build_command,
)
from tidelog.control.debezium import from_document, parse
from tidelog.control.mailbox import ApiBackend, Outcome, new_id
from tidelog.errors import UsageError
from tidelog.system.version import __version__

# Request bodies, and the OpenAPI document, built from the same models.

_REFERENCE = "#/components/schemas/{model}"


class DumpBody(BaseModel):
    """A dump to start. All except ``dump_id`` as in `StartDump`, which checks them."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    dump_id: DumpId | None = Field(
        default=None,
        description="Id of the dump; a repeated request with the same body does nothing.",
    )
    tables: list[TablePattern] = Field(
        default=[],
        description="`namespace.table`, `*` for any text, `!` in front to exclude; none: all "
        "captured tables; only ones that exclude: all but these.",
        examples=[["public.orders"], ["public.*", "!public.audit"]],
    )
    where: str | None = Field(default=None, description="SQL condition on rows of the one table.")
    conditions: dict[TablePattern, str] = Field(
        default={}, description="SQL condition by table; the first that matches it."
    )
    keys: list[Key] | None = Field(
        default=None, description="Keys of the one table, each as the texts of its key columns."
    )
    key_columns: list[str] | None = Field(
        default=None, description="The order of the columns in `keys`."
    )
    missing: str = Field(
        default="delete",
        pattern="^(delete|list)$",
        description="For keys that the table does not have: a delete event each, or a list.",
    )
    mode: str = Field(default="incremental", pattern="^(incremental|blocking)$")
    priority: Priority = Field(
        default=0, description="Dumps with the highest priority are read first."
    )

    def command(self, dump_id: str) -> dict[str, Any]:
        """The data of an `StartDump`."""
        return {**self.model_dump(exclude_none=True), "dump_id": dump_id}


class SignalBody(BaseModel):
    """A signal in Debezium's form."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)
    id: str = Field(default="", description="Id of the dump of an `execute-snapshot`.")
    type: str = Field(examples=["execute-snapshot"])
    data: dict[str, Any] | str | None = Field(
        default=None, examples=[{"data-collections": ["public.orders"], "type": "incremental"}]
    )


class Accepted(BaseModel):
    """The outcome of a command."""

    id: str = Field(description="Id of the command; see `GET /commands/{id}`.")
    state: str = Field(
        description="`done`, `failed`, or `waiting`: capture has not executed it yet."
    )
    dump: str | None = Field(default=None, description="The dump's id, for one that starts a dump.")
    details: dict[str, Any] = Field(description="E.g. its `tables`, and the `rejected` ones.")
    error: str | None = None


class Failure(BaseModel):
    """The body of every answer above 399."""

    error: dict[str, Any] = Field(
        examples=[{"kind": "UsageError", "message": "no captured table matches"}]
    )


_WAIT = ("wait", "number", "Seconds to wait for the outcome, 10 at most.")
_QUERIES = {
    "/notifications": [
        ("after", "integer", "Only those with a greater `number`."),
        ("limit", "integer", "Largest number of notifications to return."),
    ],
    "/dumps/{id}/cancel": [_WAIT, ("table", "string", "Only this table; may be repeated.")],
}
_FAILURES = {
    "400": "The request can't be executed; the message says why.",
    "401": "The token is missing or wrong.",
    "429": "Too many wrong tokens within a minute, from anyone; a right one is accepted at once.",
    "404": "It does not exist.",
    "409": "A dump of that id exists, for something else.",
    "413": "The body is too large.",
    "503": "Another process leads (its name is in `error.leader`), or the state store fails.",
}


def openapi() -> dict[str, Any]:
    """The interface as an OpenAPI 3.1 document."""
    schemas: dict[str, Any] = {}
    for model in (DumpBody, SignalBody, SetDumpOptions, Accepted, Failure):
        schema = model.model_json_schema(ref_template=_REFERENCE)
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidelog",
            "version": __version__,
            "description": f"Commands and status of a capture. {StartDump.__doc__}",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: ApiRoute) -> dict[str, Any]:
    method, path, status, body = route.method, route.path, route.status, route.body
    words = [word.strip("{}") for word in path.strip("/").replace(".", "/").split("/")]
    answer: dict[str, Any] = {"type": "object"} if status == 200 else _ref("Accepted")
    operation: dict[str, Any] = {
        "operationId": "_".join([method, *words]),
        "summary": route.summary,
        "responses": {str(status): {"description": "Done.", "content": _content(answer)}}
        | {
            code: {"description": text, "content": _content(_ref("Failure"))}
            for code, text in _FAILURES.items()
        },
    }
    queries = _QUERIES.get(path, [_WAIT] if status == 202 else [])
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "query", "description": text, "schema": {"type": kind}}
        for name, kind, text in queries
    ]
    if "{id}" in path:
        schema = {"type": "string"}
        parameters.append({"name": "id", "in": "path", "required": True, "schema": schema})
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        content = _content(_ref(body.__name__))
        operation["requestBody"] = {"required": True, "content": content}
    if path == "/health":
        operation["security"] = []
    return operation


def _ref(model: str) -> dict[str, Any]:
    return {"$ref": _REFERENCE.format(model=model)}


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


# The application.

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 16 << 20
WAIT_S = 5.0
MAX_WAIT_S = 10.0
THREADS = 32
PATIENCE_S, HEALTH_PATIENCE_S = 30.0, 3.0
_BY = "the HTTP interface"
_SILENT = HttpRefusal(
    503,
    "NoAnswer",
    "the state store does not answer; whether a command was given is not known: ask again with its "
    "dump_id",
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
        Route(each.path, interface.endpoint(each), methods=[each.method.upper()]) for each in ROUTES
    ]
    return Starlette(routes=[*routes, *further], exception_handlers={HTTPException: _not_routed})


async def _not_routed(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    kind = {404: "NotFound", 405: "MethodNotAllowed"}.get(error.status_code, "BadRequest")
    return json_refusal(HttpRefusal(error.status_code, kind, error.detail), error.headers)


class _Interface:
    def __init__(
        self, leadership: Callable[[], Leadership], token: str, rate_limit: TokenRateLimit
    ) -> None:
        self._leadership = leadership
        self._token = token
        self._rate_limit = rate_limit
        self._workers = RequestWorkers(THREADS)
        self._healthy = RequestWorkers(2)  # its own: health requests need no token

    def endpoint(self, route: ApiRoute) -> Endpoint:
        handler = route.handler

        async def endpoint(request: Request) -> JSONResponse:
            if handler is None:
                return await self._healthy.run(self._health, HEALTH_PATIENCE_S)
            await check_token(request, [self._token], self._rate_limit)
            body = await read_body(request, MAX_BODY_BYTES)
            status, document = await self._workers.run(
                lambda: self._answer(handler, request, body), PATIENCE_S
            )
            return JSONResponse(document, status)

        return answering_refusals(endpoint, _answer_refusal, _SILENT)

    def _health(self) -> JSONResponse:
        leads = self._leadership().backend is not None
        return JSONResponse({"status": "ok", "role": "leader" if leads else "standby"})

    def _answer(self, handler: Handler, request: Request, body: bytes) -> tuple[int, Any]:
        leadership = self._leadership()
        if leadership.backend is None:
            leader = leadership.leader
            text = "no capture leads at the moment"
            if leader:
                text = f"{leader} leads; send the request there"
            if leadership.url is None:
                raise HttpRefusal(503, "Standby", text, leader=leader, url=None)
            path = request.scope.get("raw_path", request.url.path.encode()).decode("latin-1")
            query = request.scope.get("query_string", b"").decode("latin-1")
            url = leadership.url.rstrip("/") + path + (f"?{query}" if query else "")
            raise HttpRefusal(_REDIRECT, "Standby", text, leader=leader, url=url)
        return handler(_Call(request, body, leadership.backend))


def _answer_refusal(refusal: HttpRefusal) -> JSONResponse:
    to = {"Location": refusal.more["url"]} if refusal.status == _REDIRECT else None
    return json_refusal(refusal, to)


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
            raise HttpRefusal(
                400 if outcome.usage else 500, kind, outcome.error, command=command_id
            )
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
        build_command(StartDump, {"dump_id": "x", **_mapping(call.document())})
        raise UsageError("the body is not a dump; see /openapi.json") from None
    dump_id = body.dump_id or new_id().lower()
    command = build_command(StartDump, body.command(dump_id))
    key = f"rest:dump:{dump_id}"
    if not call.backend.mailbox.key_used(key) and _find_dump(call, dump_id) is not None:
        raise HttpRefusal(409, "Conflict", f"there is a dump {dump_id} already")
    return call.send(command, key, dump_id)


def _pause(call: _Call) -> tuple[int, Any]:
    return call.send(PauseDump(dump_id=_dump_id(call), by=_BY))


def _pipeline(call: _Call, command: type[Command], **more: str) -> tuple[int, Any]:
    return call.send(build_command(command, {"pipeline": call.request.path_params["id"], **more}))


def _cancel(call: _Call) -> tuple[int, Any]:
    tables = call.request.query_params.getlist("table")
    return call.send(build_command(CancelDump, {"dump_id": _dump_id(call), "tables": tables}))


def _signal(call: _Call) -> tuple[int, Any]:
    signal = from_document(call.document())
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return call.send(parse(signal, coordinates=stamp))


def _outcome(call: _Call) -> tuple[int, Any]:
    command_id = call.request.path_params["id"]
    outcome: Outcome | None = call.backend.mailbox.outcome(command_id)
    if outcome is not None:
        return 200, outcome.to_dict()
    if call.backend.mailbox.is_waiting(command_id):
        return 200, Outcome(command_id, handled=False).to_dict()
    raise HttpRefusal(404, "NotFound", "there is no such command (any more)")


def _notifications(call: _Call) -> tuple[int, Any]:
    after, limit = int(call.number("after", 0)), int(call.number("limit", 1000))
    return 200, {"notifications": call.backend.notifications(after, limit)}


def _find_dump(call: _Call, dump_id: str) -> dict[str, Any] | None:
    dumps: list[dict[str, Any]] = call.backend.summary()["dumps"]
    return next((dump for dump in dumps if dump["dump_id"] == dump_id), None)


def _dump(call: _Call) -> dict[str, Any]:
    dump = _find_dump(call, call.request.path_params["id"])
    if dump is None:
        raise HttpRefusal(404, "NotFound", "there is no such dump (any more); see /dumps")
    return dump


def _dump_id(call: _Call) -> str:
    return str(_dump(call)["dump_id"])


def _mapping(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise UsageError("the body is a JSON object")
    return document


# The routes.

Handler = Callable[[_Call], tuple[int, Any]]


class ApiRoute(NamedTuple):
    """A route. ``handler``: None: the health request. ``body``: the model of the request's body."""

    method: str
    path: str
    summary: str
    handler: Handler | None
    body: type[BaseModel] | None = None

    @property
    def status(self) -> int:
        """The status of success."""
        return 200 if self.method == "get" else 202


ROUTES: Final = (
    ApiRoute("get", "/health", "Is this process up, and is it the leader? Needs no token.", None),
    ApiRoute(
        "get",
        "/status",
        "Position, lag, dumps, throttle: as `tidelog status --json`.",
        lambda c: (200, c.backend.status()),
    ),
    ApiRoute(
        "get",
        "/dumps",
        "The unfinished dumps and the last finished ones.",
        lambda c: (200, {"dumps": c.backend.summary()["dumps"]}),
    ),
    ApiRoute("post", "/dumps", "Start a dump.", _start, DumpBody),
    ApiRoute("get", "/dumps/{id}", "One dump with its progress.", lambda c: (200, _dump(c))),
    ApiRoute("post", "/dumps/{id}/pause", "Pause a dump; it stays paused over restarts.", _pause),
    ApiRoute(
        "post",
        "/dumps/{id}/resume",
        "Resume a paused dump.",
        lambda c: c.send(ResumeDump(dump_id=_dump_id(c))),
    ),
    ApiRoute("post", "/dumps/{id}/cancel", "Cancel a dump, or its `table`s.", _cancel),
    ApiRoute("post", "/pause", "Pause all dumps.", lambda c: c.send(PauseDump(by=_BY))),
    ApiRoute("post", "/resume", "Resume all paused dumps.", lambda c: c.send(ResumeDump())),
    ApiRoute("post", "/cancel", "Cancel all dumps.", lambda c: c.send(CancelDump())),
    ApiRoute(
        "post",
        "/log/pause",
        "Stop reading the source's log until resumed.",
        lambda c: c.send(PauseLog(by=_BY)),
    ),
    ApiRoute(
        "post", "/log/resume", "Resume reading the source's log.", lambda c: c.send(ResumeLog())
    ),
    ApiRoute(
        "post",
        "/pipelines/{id}/pause",
        "Pause a pipeline; it stays so over restarts.",
        lambda c: _pipeline(c, PausePipeline, by=_BY),
    ),
    ApiRoute(
        "post",
        "/pipelines/{id}/resume",
        "Resume a paused pipeline.",
        lambda c: _pipeline(c, ResumePipeline),
    ),
    ApiRoute(
        "get",
        "/options",
        "The options with which dumps read now.",
        lambda c: (200, c.backend.summary()["dump_options"]),
    ),
    ApiRoute(
        "patch",
        "/options",
        "Change these options, also for running dumps.",
        lambda c: c.send(build_command(SetDumpOptions, c.document())),
        SetDumpOptions,
    ),
    ApiRoute("post", "/signals", "Send a Debezium signal.", _signal, SignalBody),
    ApiRoute("get", "/commands/{id}", "The outcome of a command.", _outcome),
    ApiRoute("get", "/notifications", "Notifications, oldest first.", _notifications),
    ApiRoute("get", "/openapi.json", "This document.", lambda _call: (200, openapi())),
)
