"""Names of a module that are loaded on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import FunctionType
from typing import Any, Final

_PUBLIC: Final = ("tidelog.errors", "tidelog.results")
"""Modules whose names are public where they are defined."""


def lazy_names(
    module: str, places: Mapping[str, str], submodules: Sequence[str] = ()
) -> Callable[[str], Any]:
    """Return the module's ``__getattr__``. Classes and functions show the module as theirs.

    Args:
        module: its name.
        places: by name, the module that has it.
        submodules: modules below it that it gives as well.
    """

    def getattr_(name: str) -> Any:
        if name in submodules:
            return import_module(f"{module}.{name}")
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(places[name]), name)
        if isinstance(value, type | FunctionType) and value.__module__ not in _PUBLIC:
            value.__module__ = module
        return value

    return getattr_
