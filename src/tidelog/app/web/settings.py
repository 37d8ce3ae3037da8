"""The configuration as it is in effect, without what may be secret."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel, SecretStr

from tidelog.config import Config
from tidelog.config.loading import SECRET
from tidelog.sections import SecretUrl

HIDDEN: Final = "(hidden)"
_HIDDEN_TOO: Final = SECRET | {"command"}
"""Arguments of commands may be tokens; whoever only looks is not to have them."""


def settings_of(config: Config) -> list[dict[str, str]]:
    """Each option by its dotted name, defaults too."""
    return [{"option": name, "value": value} for name, value in _lines("", config)]


def _lines(name: str, value: Any, *, secret: bool = False) -> Iterator[tuple[str, str]]:
    if isinstance(value, SecretUrl):
        place, asked, _ = value.redacted.partition("?")
        yield name, f"{place}?{HIDDEN}" if asked else place  # options may be keys
    elif value is None:
        yield name, "unset"
    elif isinstance(value, SecretStr) or (secret and not isinstance(value, (BaseModel, dict))):
        yield name, HIDDEN
    elif isinstance(value, BaseModel):
        for field in type(value).model_fields:
            inner = f"{name}.{field}" if name else field
            yield from _lines(inner, getattr(value, field), secret=field in _HIDDEN_TOO)
    elif isinstance(value, dict):
        if not value:
            yield name, "{}"
        for key, inner in value.items():
            yield from _lines(f"{name}.{key}", inner, secret=secret or str(key) in SECRET)
    elif isinstance(value, (list, tuple)) and any(
        isinstance(each, (BaseModel, dict)) for each in value
    ):
        for number, each in enumerate(value):
            yield from _lines(f"{name}[{number}]", each, secret=secret)
    elif isinstance(value, (list, tuple)):
        yield name, ", ".join(str(each) for each in value) or "[]"
    else:
        yield name, str(value)
