"""The base of configuration sections, and types of values: URLs, durations, sizes, paths."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlencode

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import core_schema

from tidelog.model.column_patterns import check_column_pattern
from tidelog.model.log_locations import URL_SCHEMES
from tidelog.model.patterns import check_listed, check_pattern, check_selects
from tidelog.model.quantities import Bytes as Bytes
from tidelog.model.quantities import Milliseconds as Milliseconds
from tidelog.model.units import parse_duration

_URI_PASSWORD = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://[^:/?#@]*):.*@", re.DOTALL)
_KEYWORD_PASSWORD = re.compile(
    r"\b((?:ssl)?password\s*=\s*)('(?:\\.|[^'\\])*'?|[^\s&]*)", re.IGNORECASE
)


class Section(BaseModel):
    """The base of all sections: immutable, no unknown keys, no input values in messages."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True
    )


class SecretUrl:
    """A connection URL whose password only `reveal` returns."""

    __slots__ = ("_url",)

    def __init__(self, url: str) -> None:
        self._url = url

    def reveal(self) -> str:
        """Return the URL with its password, for a driver."""
        return self._url

    @property
    def redacted(self) -> str:
        """The URL with ``***`` for each password."""
        return _KEYWORD_PASSWORD.sub(r"\1***", _URI_PASSWORD.sub(r"\1:***@", self._url))

    def __str__(self) -> str:
        return self.redacted

    def __repr__(self) -> str:
        return f"SecretUrl({self.redacted!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretUrl) and other._url == self._url

    def __hash__(self) -> int:
        return hash(self._url)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate,
            json_schema_input_schema=core_schema.str_schema(),
            serialization=core_schema.plain_serializer_function_ser_schema(str),
        )

    @classmethod
    def _validate(cls, value: Any) -> Self:
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise ValueError("expected a URL")
        return cls(value)


class StateUrl(SecretUrl):
    """The URL of a state store. All its options may be secret."""

    __slots__ = ()

    def with_options(self, options: Mapping[str, str]) -> Self:
        """Return the URL with these options added."""
        if not options:
            return self
        return type(self)(f"{self._url}{'&' if '?' in self._url else '?'}{urlencode(options)}")

    @property
    def redacted(self) -> str:
        """The URL without its options, and with ``***`` for the password."""
        place, asked, _ = super().redacted.partition("?")
        return f"{place}?***" if asked else place


def _duration(value: Any) -> Any:
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, timedelta):
        return value
    raise ValueError("expected a duration with its unit, such as 30s, 12h or 7d")


def _resolve_path(path: Path, info: ValidationInfo) -> Path:
    if re.match(r"[A-Za-z]\w+:", str(path)):
        raise ValueError("expected a local directory; a URL is written scheme://bucket/prefix")
    return (base_directory(info) / path.expanduser()).resolve()


def _location(text: str, info: ValidationInfo) -> str:
    return text if "://" in text else str(_resolve_path(Path(text), info))


def _log_location(text: str, info: ValidationInfo) -> str:
    if "://" not in text:
        return str(_resolve_path(Path(text), info))
    scheme, _, rest = text.partition("://")
    if scheme not in URL_SCHEMES:
        why = "HDFS has no conditional writes: " if scheme == "hdfs" else ""
        raise ValueError(f"{why}expected a directory, or a URL of {', '.join(URL_SCHEMES)}")
    host = rest.partition("/")[0]
    # abfss://container@account.dfs.core.windows.net/prefix is Azure's form.
    with_keys = "@" in host and (":" in host or not scheme.startswith("abfs"))
    if with_keys or any(character in rest for character in "?#") or not rest.strip("/"):
        raise ValueError("expected scheme://bucket/prefix; keys belong under storage_options")
    return text.rstrip("/")


def base_directory(info: ValidationInfo) -> Path:
    """Return the directory of relative paths: that of the file."""
    return Path((info.context or {}).get("base", "."))


def as_text(value: Any) -> Any:
    """Convert YAML's ``true`` and numbers, for options that are texts."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else value


Duration = Annotated[
    timedelta,
    BeforeValidator(_duration),
    WithJsonSchema({"type": "string", "examples": ["7d", "12h"]}),
]
StorageOption = Annotated[SecretStr, BeforeValidator(as_text)]
LogPlace = Annotated[str, BeforeValidator(str), AfterValidator(_log_location)]
LocalPath = Annotated[Path, AfterValidator(_resolve_path)]
LibrdkafkaSettings = Annotated[
    dict[str, SecretStr],
    Field(
        description="Settings of librdkafka, for security and tuning. All are treated as secrets.",
        examples=[
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "tidelog",
                "sasl.password": "${KAFKA_PASSWORD}",
            }
        ],
    ),
]
Location = Annotated[str, AfterValidator(_location)]
TablePattern = Annotated[str, AfterValidator(check_pattern)]
"""A pattern that names tables, as the key of a mapping."""
TablePatterns = Annotated[
    list[Annotated[str, AfterValidator(check_listed)]], AfterValidator(check_selects)
]
"""A list that selects tables; a pattern with ``!`` in front excludes."""
ColumnPatterns = Annotated[
    list[Annotated[str, AfterValidator(check_column_pattern)]], AfterValidator(check_selects)
]
"""A list that selects columns of tables; a pattern with ``!`` in front makes an exception."""
PostgresName = Annotated[str, Field(min_length=1, max_length=63)]
MySqlName = Annotated[str, Field(pattern=r"^[^./\\]{1,64}$")]
SlotName = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,63}$")]
