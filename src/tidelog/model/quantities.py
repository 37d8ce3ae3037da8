"""Types of values that people write with a unit: ``50ms``, ``4MiB``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from tidelog.model.units import parse_bytes, parse_milliseconds


def _with_unit(parse: Callable[[str], int], expected: str) -> BeforeValidator:
    def validate(value: Any) -> Any:
        if isinstance(value, str) and not value.strip().isdigit():
            return parse(value)
        if isinstance(value, bool) or (not isinstance(value, (int, str, timedelta))):
            raise ValueError(expected)
        return value

    return BeforeValidator(validate)


Milliseconds = Annotated[
    int,
    _with_unit(parse_milliseconds, "expected a duration such as 50ms or 10s"),
    WithJsonSchema({"type": ["integer", "string"], "examples": ["50ms", 50]}),
]
Bytes = Annotated[
    int,
    _with_unit(parse_bytes, "expected a size such as 4MiB"),
    WithJsonSchema({"type": ["integer", "string"], "examples": ["4MiB", 4194304]}),
]
