"""Request bodies of the HTTP interface, and its OpenAPI document, built from the same models."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tidelog.control.commands import (
    DumpId,
    ExecuteSnapshot,
    Key,
    Priority,
    SetDumpOptions,
    TablePattern,
)
from tidelog.system.version import __version__

_REFERENCE = "#/components/schemas/{model}"


class DumpBody(BaseModel):
    """A dump to start. All except ``dump_id`` as in `ExecuteSnapshot`, which checks them."""

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
        """The data of an `ExecuteSnapshot`."""
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


# (method, path, body, status of success, summary)
ROUTES: tuple[tuple[str, str, type[BaseModel] | None, int, str], ...] = (
    ("get", "/health", None, 200, "Is this process up, and is it the leader? Needs no token."),
    ("get", "/status", None, 200, "Position, lag, dumps, throttle: as `tidelog status --json`."),
    ("get", "/dumps", None, 200, "The unfinished dumps and the last finished ones."),
    ("post", "/dumps", DumpBody, 202, "Start a dump."),
    ("get", "/dumps/{id}", None, 200, "One dump with its progress."),
    ("post", "/dumps/{id}/pause", None, 202, "Pause a dump; it stays paused over restarts."),
    ("post", "/dumps/{id}/resume", None, 202, "Resume a paused dump."),
    ("post", "/dumps/{id}/cancel", None, 202, "Cancel a dump, or its `table`s."),
    ("post", "/pause", None, 202, "Pause all dumps."),
    ("post", "/resume", None, 202, "Resume all paused dumps."),
    ("post", "/cancel", None, 202, "Cancel all dumps."),
    ("post", "/log/pause", None, 202, "Stop reading the source's log until resumed."),
    ("post", "/log/resume", None, 202, "Resume reading the source's log."),
    ("post", "/pipelines/{id}/pause", None, 202, "Pause a pipeline; it stays so over restarts."),
    ("post", "/pipelines/{id}/resume", None, 202, "Resume a paused pipeline."),
    ("get", "/options", None, 200, "The options with which dumps read now."),
    ("patch", "/options", SetDumpOptions, 202, "Change these options, also for running dumps."),
    ("post", "/signals", SignalBody, 202, "Send a Debezium signal."),
    ("get", "/commands/{id}", None, 200, "The outcome of a command."),
    ("get", "/notifications", None, 200, "Notifications, oldest first."),
    ("get", "/openapi.json", None, 200, "This document."),
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
    for method, path, body, status, summary in ROUTES:
        paths.setdefault(path, {})[method] = _operation(method, path, body, status, summary)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidelog",
            "version": __version__,
            "description": f"Commands and status of a capture. {ExecuteSnapshot.__doc__}",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(
    method: str, path: str, body: type[BaseModel] | None, status: int, summary: str
) -> dict[str, Any]:
    words = [word.strip("{}") for word in path.strip("/").replace(".", "/").split("/")]
    answer: dict[str, Any] = {"type": "object"} if status == 200 else _ref("Accepted")
    operation: dict[str, Any] = {
        "operationId": "_".join([method, *words]),
        "summary": summary,
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
