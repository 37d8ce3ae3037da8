"""Sections of the configuration that kinds of other distributions bring."""

from __future__ import annotations

from typing import Any, TypeVar, get_args

from tidelog.errors import ConfigError
from tidelog.registry import Registry

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


def add_sections(registry: Registry[Any], base: type[S], known: dict[str, type[S]]) -> None:
    """Take in what other distributions bring. What is broken is left out, and found again by
    `section_of` when a configuration names it.
    """
    for kind in registry.others:
        try:
            known[kind] = section_of(registry, kind, base)
        except ConfigError:
            continue
