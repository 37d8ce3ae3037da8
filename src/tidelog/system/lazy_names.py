"""Names of a module that are loaded on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    module: str, places: Mapping[str, str], submodules: Sequence[str] = ()
) -> Callable[[str], Any]:
    """Returns the module's ``__getattr__``.

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
        return getattr(import_module(places[name]), name)

    return getattr_
