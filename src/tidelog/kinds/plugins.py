"""Sections of the configuration that kinds of other distributions bring."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import reduce
from operator import or_
from typing import Annotated, Any, TypeVar, get_args

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from tidelog.errors import ConfigError
from tidelog.kinds.registry import Registry

S = TypeVar("S")


def section_of(registry: Registry[Any], kind: str, base: type[S]) -> type[S]:
    """The model of the kind's section. Raises ConfigError if it is none that a configuration can
    hold, or can't be loaded.
    """
    section: Any = getattr(registry.get(kind), "section", None)
    if not (isinstance(section, type) and issubclass(section, base)):
        raise ConfigError(
            f"the {registry.what} {kind!r}: its section is not derived from tidelog.{base.__name__}"
        )
    fields: Any = getattr(section, "model_fields", {})
    if "kind" not in fields or get_args(fields["kind"].annotation) != (kind,):
        raise ConfigError(
            f"the {registry.what} {kind!r}: the field kind of its section is not Literal[{kind!r}]"
        )
    return section


def add_sections(registry: Registry[Any], base: type[S], known: dict[str, type[S]]) -> bool:
    """Take in what other distributions bring, when a configuration is read: by then they can import
    all of Tidelog. Is there anything new? What is broken is left out; `section_of` says why when a
    configuration names it.
    """
    before = len(known)
    for kind in registry.others:
        if kind not in known:
            with suppress(ConfigError):
                known[kind] = section_of(registry, kind, base)
    return len(known) > before


class OneOf:
    """Annotates a field that holds one of the models of ``kinds`` as it is when the schema of the
    field's model is built, told apart by ``kind``.
    """

    def __init__(self, kinds: Mapping[str, type[Any]]) -> None:
        self._kinds = kinds

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        models = reduce(or_, dict.fromkeys(self._kinds.values()))
        return handler.generate_schema(Annotated[models, Field(discriminator="kind")])
