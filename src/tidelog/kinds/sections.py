"""The base of configuration sections, types of their values, and the sections of plugins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args
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
from pydantic_core import CoreSchema, core_schema

from tidelog.errors import ConfigError
from tidelog.kinds.adapters import Registry
from tidelog.model.option_values import (
    URL_SCHEMES,
    ArrayTypes,
    ColumnTypes,
    HstoreTypes,
    JsonTypes,
    StructTypes,
    TimeTypes,
)
from tidelog.model.option_values import Bytes as Bytes
from tidelog.model.option_values import Milliseconds as Milliseconds
from tidelog.model.patterns import (
    EXCLUDE,
    check_column_pattern,
    check_listed,
    check_pattern,
    check_selects,
)
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


_REMOTE = re.compile(r"sc://[^\s/;?#@]+(/(;[^\s;=/?#]+=[^\s;=/?#]*)*)?")


class RemoteUrl(SecretUrl):
    """The address of a Spark Connect server. All its parameters may be secret."""

    __slots__ = ()

    @property
    def redacted(self) -> str:
        """The address without its parameters."""
        place, asked, _ = self._url.partition("/;")
        return f"{place}/;***" if asked else place

    @classmethod
    def _validate(cls, value: Any) -> Self:
        found = super()._validate(value)
        if not _REMOTE.fullmatch(found.reveal()):  # PySpark's own error would show the token
            raise ValueError(
                "expected sc://host[:port][/;name=value;…], where = / ? # of a value are written "
                "%3D %2F %3F %23"
            )
        return found

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the address that the text is. Raises ValueError."""
        return cls._validate(text)


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
    if "://" not in text:
        return str(_resolve_path(Path(text), info))
    keys, found, _ = text.partition("://")[2].partition("/")[0].rpartition("@")
    if (found and ":" in keys) or any(character in text for character in "?#"):
        raise ValueError("expected scheme://bucket/prefix; keys belong under storage_options")
    return text


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
LogLocation = Annotated[str, BeforeValidator(str), AfterValidator(_log_location)]
LocalPath = Annotated[Path, AfterValidator(_resolve_path)]
LibrdkafkaSettings = Annotated[
    dict[str, SecretStr],
    Field(
        description="Settings of librdkafka, for security and tuning.",
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
EXCLUDED_TABLES: Any = Field(
    default=[],
    description="Patterns of tables to leave out: as in `tables` with `!`.",
    examples=[["public.audit", "public.tmp_*"]],
)
"""The option ``exclude`` of a section that has ``tables``."""


def add_excluded(section: Any) -> Any:
    """Return a section, before it is validated, whose ``tables`` have the patterns of ``exclude``
    too. Patterns that are refused there are left out here: they are reported once.
    """
    if not isinstance(section, dict) or not isinstance(section.get("exclude"), list):
        return section
    tables = section.get("tables", ["*.*"])
    if not isinstance(tables, list):
        return section
    found = []
    for pattern in section["exclude"]:
        with suppress(ValueError, AttributeError, TypeError):
            found.append(f"{EXCLUDE}{check_pattern(pattern)}")
    return {**section, "tables": list(dict.fromkeys([*tables, *found]))}


ColumnPatterns = Annotated[
    list[Annotated[str, AfterValidator(check_column_pattern)]], AfterValidator(check_selects)
]
"""A list that selects columns of tables; a pattern with ``!`` in front makes an exception."""
PostgresName = Annotated[str, Field(min_length=1, max_length=63)]
MySqlName = Annotated[str, Field(pattern=r"^[^./\\]{1,64}$")]
SlotName = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,63}$")]


# The section ``types``, of outputs and of the Spark source.


def _check_limits(limits: tuple[int, int]) -> tuple[int, int]:
    precision, scale = limits
    if not 0 <= scale <= precision <= 38 or precision < 1:
        raise ValueError("a decimal has 1 to 38 digits, and 0 to that many after the point")
    return limits


class DecimalSection(Section):
    """The digits of a decimal."""

    decimal: Annotated[tuple[int, int], AfterValidator(_check_limits)] = Field(
        description="Digits in all, at most 38, and digits after the point.", examples=[[38, 18]]
    )


class TypesSection(Section):
    """The types of columns for which not every reader has one; of columns that belong to no key.
    They are for new columns and tables: a column that exists keeps its type.
    """

    arrays: ArrayTypes = Field(
        default="native",
        description="Of PostgreSQL. `native`: arrays of built-in types are arrays. A table with a "
        "value of other `dimensions`, or whose first index is not 1, is left out. `text`: they are "
        "PostgreSQL's text, such as `{1,2}`.",
    )
    numeric: Literal["text"] | DecimalSection = Field(
        default="text",
        description="Of PostgreSQL's `numeric` without limits or of more than 38 digits. "
        "`text`: all digits. `{decimal: [38, 18]}`: a decimal; a table with a value that it "
        "does not hold exactly is left out.",
        examples=[{"decimal": [38, 18]}],
    )
    json_: JsonTypes = Field(
        default="text",
        alias="json",
        description="Of PostgreSQL's `json` and `jsonb`, and MySQL's `json`. `variant`: Spark's "
        "VARIANT, which few other readers know. A table with a value that it does not hold exactly "
        "is left out. Outputs of files have texts.",
    )

    hstore: HstoreTypes = Field(
        default="map",
        description="Of PostgreSQL's `hstore`. `map`: a map of text by text. `text`: PostgreSQL's "
        "text.",
    )
    ranges: StructTypes = Field(
        default="text",
        description="Of PostgreSQL's ranges and multiranges. `struct`: a struct of `lower`, "
        "`upper`, `lower_inclusive`, `upper_inclusive` and `empty`, or an array of them. A bound "
        "that is not there is NULL.",
    )
    composites: StructTypes = Field(
        default="text",
        description="Of PostgreSQL's composite types. `struct`: a struct of their attributes. "
        "A column whose type has lost an attribute stays text.",
    )
    interval: StructTypes = Field(
        default="text",
        description="Of PostgreSQL's `interval`. `struct`: a struct of `months`, `days` and "
        "`microseconds`, as PostgreSQL keeps it. A table with an infinite value is left out.",
    )
    time: TimeTypes = Field(
        default="text",
        description="Of PostgreSQL's `time` and MySQL's and MariaDB's. `time`: a time of day, in "
        "Spark from 4.1 on. A table with another value (`24:00:00`, `-01:00:00`) is left out.",
    )
    dimensions: dict[
        Annotated[str, AfterValidator(check_column_pattern)], Annotated[int, Field(ge=1, le=6)]
    ] = Field(
        default={},
        description="Of PostgreSQL's arrays that are native: the number of their dimensions, by "
        "column or pattern; by default as declared (`int[][]`: 2). Values may have others.",
        examples=[{"public.grids.cells": 2}],
    )

    def beyond(self, of_source: TypesSection) -> TypesSection:
        """Return the source's section with what is set here in place of it."""
        return of_source.model_copy(update={n: getattr(self, n) for n in self.model_fields_set})

    def of_messages(self, own: TypesSection | None) -> TypesSection:
        """Return this section, the source's, for an output where all is text unless it is set
        somewhere. ``own``: what the output sets itself.
        """
        text = TypesSection(arrays="text", hstore="text")
        return self.beyond(text) if own is None else own.beyond(self)

    def column_types(self) -> ColumnTypes:
        """Return the types without the section's form."""
        limits = None if self.numeric == "text" else self.numeric.decimal
        return ColumnTypes(
            arrays=self.arrays,
            numeric=limits,
            json=self.json_,
            hstore=self.hstore,
            ranges=self.ranges,
            composites=self.composites,
            interval=self.interval,
            time=self.time,
            dimensions=tuple(self.dimensions.items()),
        )


SOURCE_TYPES: Any = Field(
    default=None,
    description="For all outputs that have the option `types`, unless they set it "
    "themselves; see *types*.",
    examples=[{"json": "variant"}],
)
TYPES: Any = Field(
    default={},
    description="Types of arrays, JSON and numbers without limits, in new columns; see *types*.",
    examples=[{"arrays": "text"}],
)


# The sections of plugins.

S = TypeVar("S")


def section_of(registry: Registry[Any], kind: str, base: type[S]) -> type[S]:
    """Return the model of the kind's section.

    Raises ConfigError if it can't be loaded, or is no valid section.
    """
    section: Any = getattr(registry.get(kind), "section", None)
    if not (isinstance(section, type) and issubclass(section, base)):
        raise ConfigError(
            f"the {registry.what} {kind!r}: its section is not derived from "
            f"tidelog.ext.{base.__name__}"
        )
    fields: Any = getattr(section, "model_fields", {})
    if "kind" not in fields or get_args(fields["kind"].annotation) != (kind,):
        raise ConfigError(
            f"the {registry.what} {kind!r}: the field kind of its section is not Literal[{kind!r}]"
        )
    return section


def add_sections(registry: Registry[Any], base: type[S], known: dict[str, type[S]]) -> bool:
    """Add the sections of plugins to ``known``; return whether there are new ones.

    It runs when a configuration is read: by then plugins can import all of Tidelog. Broken ones are
    left out; `section_of` says why when a configuration names one.
    """
    before = len(known)
    for kind in registry.others:
        if kind not in known:
            with suppress(ConfigError):
                known[kind] = section_of(registry, kind, base)
    return len(known) > before


class OneOf:
    """Annotates a field with a union of the models in ``kinds``, distinguished by ``kind``.

    The union is that of the time when the schema of the field's model is built.
    """

    def __init__(self, kinds: Mapping[str, type[Any]]) -> None:
        self._kinds = kinds

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        models = reduce(or_, dict.fromkeys(self._kinds.values()))
        return handler.generate_schema(Annotated[models, Field(discriminator="kind")])
