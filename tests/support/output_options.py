"""Options of outputs as a configuration that names none has them, and with changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from pydantic import TypeAdapter

from tidelog.outputs.files.config import FilesSection, file_format_of
from tidelog.outputs.files.writer import FileFormat
from tidelog.outputs.http.config import HttpSection, body_of, endpoint_of
from tidelog.outputs.http.requests import Body, Endpoint

_FILES: Final = TypeAdapter(FilesSection).validate_python({"kind": "files", "path": "x"})
_HTTP: Final = TypeAdapter(HttpSection).validate_python({"kind": "http", "url": "http://x"})
LAYOUT: Final = _FILES.layout


def file_format(**changes: Any) -> FileFormat:
    return replace(file_format_of(_FILES), **changes)


def body(**changes: Any) -> Body:
    return replace(body_of(_HTTP), **changes)


def endpoint(url: str, **changes: Any) -> Endpoint:
    return replace(endpoint_of(_HTTP), url=url, **changes)
