"""Serves message schemas over HTTP with the API of Confluent's schema registry; read-only.

Paths, answers and error codes:
https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tidelog.control.channels.http_answers import (
    Endpoint,
    HttpRefusal,
    answering_refusals,
    check_token,
    read_body,
)
from tidelog.control.channels.rate_limit import TokenRateLimit
from tidelog.control.channels.request_workers import RequestWorkers
from tidelog.eventlog.schemas import MessageSchema, MessageSchemaStore

_MEDIA = "application/vnd.schemaregistry.v1+json"
_MAX_BODY_BYTES = 1 << 20
_THREADS, _PATIENCE_S = 8, 30.0
_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA = 40401, 40402, 40403
_BAD_VERSION, _READ_ONLY, _BAD_SCHEMA = 42202, 42205, 42201


def _refused(code: int, message: str) -> HttpRefusal:
    return HttpRefusal(int(str(code)[:3]), "Refused", message, code=code)


_SILENT = HttpRefusal(503, "NoAnswer", "the storage of schemas does not answer")
_CODES = {"Unauthorized": 401, "TooMany": 429, "TooLarge": 413, "Busy": 50003, "NoAnswer": 50003}


def _answer_refusal(refusal: HttpRefusal) -> JSONResponse:
    code = refusal.more.get("code", _CODES.get(refusal.kind, 50001))
    body = {"error_code": code, "message": refusal.message}
    headers = {"WWW-Authenticate": "Basic"} if code == 401 else None
    return JSONResponse(body, int(str(code)[:3]), headers, media_type=_MEDIA)


def routes(
    store: MessageSchemaStore, tokens: tuple[str, ...], rate_limit: TokenRateLimit | None = None
) -> list[Route]:
    """The interface's routes. Every process serves them, leader or not."""
    rate_limit, workers = rate_limit or TokenRateLimit(), RequestWorkers(_THREADS)
    registry = _Registry(store)
    result = []
    for method, path, answer in (
        ("GET", "/subjects", registry.subjects),
        ("GET", "/subjects/{subject}/versions", registry.versions),
        ("POST", "/subjects/{subject}/versions", registry.refuse),
        ("POST", "/subjects/{subject}", registry.look_up),
        ("GET", "/subjects/{subject}/versions/{version}", registry.version),
        ("GET", "/subjects/{subject}/versions/{version}/schema", registry.version_text),
        ("GET", "/schemas/types", lambda _request, _body: ["AVRO"]),
        ("GET", "/schemas/ids/{id}", registry.schema),
        ("GET", "/schemas/ids/{id}/schema", registry.schema_text),
        ("GET", "/schemas/ids/{id}/subjects", registry.schema_subjects),
        ("GET", "/schemas/ids/{id}/versions", registry.schema_versions),
        ("GET", "/config", lambda _request, _body: {"compatibilityLevel": "BACKWARD"}),
        ("GET", "/config/{subject}", lambda _request, _body: {"compatibilityLevel": "BACKWARD"}),
        ("GET", "/mode", lambda _request, _body: {"mode": "READONLY"}),
        ("GET", "/mode/{subject}", lambda _request, _body: {"mode": "READONLY"}),
    ):
        result.append(Route(path, _endpoint(answer, tokens, rate_limit, workers), methods=[method]))
    return result


_Answer = Callable[[Request, bytes], Any]


def _endpoint(
    answer: _Answer, tokens: tuple[str, ...], rate_limit: TokenRateLimit, workers: RequestWorkers
) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        await check_token(request, tokens, rate_limit)
        body = await read_body(request, _MAX_BODY_BYTES)
        document = await workers.run(lambda: answer(request, body), _PATIENCE_S)
        return JSONResponse(document, media_type=_MEDIA)

    return answering_refusals(endpoint, _answer_refusal, _SILENT)


class _Registry:
    def __init__(self, store: MessageSchemaStore) -> None:
        self._store = store

    def subjects(self, _request: Request, _body: bytes) -> Any:
        return self._store.subjects()

    def versions(self, request: Request, _body: bytes) -> Any:
        return [known.version for known in self._subject_versions(request)]

    def version(self, request: Request, _body: bytes) -> Any:
        found = self._version(request)
        return _describe(found)

    def version_text(self, request: Request, _body: bytes) -> Any:
        return json.loads(self._version(request).text)

    def look_up(self, request: Request, body: bytes) -> Any:
        """The version with the schema in the body."""
        known = self._subject_versions(request)
        try:
            wanted = json.loads(json.loads(body)["schema"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _refused(_BAD_SCHEMA, 'the body is {"schema": "…"}, an Avro schema') from None
        for each in known:
            if json.loads(each.text) == wanted:
                return _describe(each)
        raise _refused(_NO_SCHEMA, "Schema not found")

    def refuse(self, request: Request, _body: bytes) -> Any:
        subject = request.path_params["subject"]
        raise _refused(_READ_ONLY, f"Subject '{subject}' is in read-only mode")

    def schema(self, request: Request, _body: bytes) -> Any:
        return {"schema": self._schemas_by_id(request)[0].text}

    def schema_text(self, request: Request, _body: bytes) -> Any:
        return json.loads(self._schemas_by_id(request)[0].text)

    def schema_subjects(self, request: Request, _body: bytes) -> Any:
        return sorted(known.subject for known in self._schemas_by_id(request))

    def schema_versions(self, request: Request, _body: bytes) -> Any:
        return [{"subject": k.subject, "version": k.version} for k in self._schemas_by_id(request)]

    def _subject_versions(self, request: Request) -> list[MessageSchema]:
        subject = request.path_params["subject"]
        versions = self._store.by_subject(subject)
        if not versions:
            raise _refused(_NO_SUBJECT, f"Subject '{subject}' not found.")
        return versions

    def _version(self, request: Request) -> MessageSchema:
        known, wanted = self._subject_versions(request), request.path_params["version"]
        if wanted in ("latest", "-1"):
            return known[-1]
        if not wanted.isdecimal():
            raise _refused(_BAD_VERSION, "a version is a number from 1 up, or latest")
        for each in known:
            if each.version == int(wanted):
                return each
        raise _refused(_NO_VERSION, f"Version {wanted} not found.")

    def _schemas_by_id(self, request: Request) -> list[MessageSchema]:
        wanted = request.path_params["id"]
        schemas = self._store.by_id(int(wanted)) if wanted.isdecimal() else []
        if not schemas:
            raise _refused(_NO_SCHEMA, f"Schema {wanted} not found")
        return schemas


def _describe(known: MessageSchema) -> dict[str, Any]:
    return {
        "subject": known.subject,
        "version": known.version,
        "id": known.schema_id,
        "schema": known.text,
    }
