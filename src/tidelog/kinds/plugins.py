"""Adds the configuration sections of plugins."""

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
