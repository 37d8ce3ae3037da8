"""The configuration as it is in effect, without what may be secret."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel, SecretStr

from tidelog.app.redaction import redacted
from tidelog.config import Config
from tidelog.config.loading import SECRET
from tidelog.kinds.sections import SecretUrl

HIDDEN: Final = "(hidden)"
FROM_VARIABLE: Final = "(from a variable)"
_HIDDEN_TOO: Final = SECRET | {"command"}
"""Arguments of commands may be tokens; whoever only looks is not to have them."""

Place = tuple[str | int, ...]


def settings_of(config: Config) -> list[dict[str, str]]:
    """Each option by its dotted name, defaults too. Of what a variable filled in no value is shown:
    it is kept out of the file for a reason.
    """
    return [{"option": name, "value": value} for name, value in _Settings(config).lines()]


class _Settings:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._variables = config.from_variables
        if ("log", "path") in self._variables:
            self._variables |= {("state", "url")}  # which may be made of it

    def lines(self) -> Iterator[tuple[str, str]]:
        return self._lines((), self._config, secret=False)

    def _lines(self, place: Place, value: Any, *, secret: bool) -> Iterator[tuple[str, str]]:
        name = _dotted(place)
        if place in self._variables:
            yield name, FROM_VARIABLE
        elif isinstance(value, SecretUrl):
            shown, asked, _ = value.redacted.partition("?")
            yield name, redacted(f"{shown}?{HIDDEN}" if asked else shown)  # options may be keys
        elif value is None:
            yield name, "unset"
        elif isinstance(value, SecretStr):
            yield name, HIDDEN if value.get_secret_value() else "unset"
        elif secret and not isinstance(value, (BaseModel, dict)):
            yield name, HIDDEN
        elif isinstance(value, BaseModel):
            for field, told in type(value).model_fields.items():
                inner = (*place, told.alias or field)
                yield from self._lines(inner, getattr(value, field), secret=field in _HIDDEN_TOO)
        elif isinstance(value, dict):
            if not value:
                yield name, "{}"
            for key, each in value.items():
                hidden = secret or str(key) in SECRET
                yield from self._lines((*place, str(key)), each, secret=hidden)
        elif isinstance(value, (list, tuple)) and any(
            isinstance(each, (BaseModel, dict)) for each in value
        ):
            for number, each in enumerate(value):
                yield from self._lines((*place, number), each, secret=secret)
        elif isinstance(value, (list, tuple)):
            yield name, ", ".join(self._items(place, value)) or "[]"
        else:
            yield name, redacted(str(value))

    def _items(self, place: Place, values: list[Any] | tuple[Any, ...]) -> Iterator[str]:
        for number, each in enumerate(values):
            hidden = (*place, number) in self._variables
            yield FROM_VARIABLE if hidden else redacted(str(each))


def _dotted(place: Place) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")
