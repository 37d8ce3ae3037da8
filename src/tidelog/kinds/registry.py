"""Registries of adapters by name: Tidelog's own, and plugins found by entry points.

A plugin is used as our own adapters are; docs/how-to/extend.md describes each sort. Nothing is
imported before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, reduce
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, cast

from tidelog.errors import ConfigError

T = TypeVar("T")


class Registry(Generic[T]):
    """All adapters of one sort, by name.

    Args:
        group: the group of the entry points.
        what: the name of this sort, for messages, e.g. ``kind of output``.
        built_in: ``module:attribute`` by name.
    """

    def __init__(self, group: str, what: str, built_in: Mapping[str, str]) -> None:
        self.group = group
        self.what = what
        self._built_in = dict(built_in)

    @cached_property
    def _entries(self) -> Mapping[str, EntryPoint]:
        entries: dict[str, EntryPoint] = {}
        for entry in entry_points(group=self.group):
            other = "Tidelog" if entry.name in self._built_in else ""
            if entry.name in entries:
                other = _distribution(entries[entry.name])
            if other:
                raise ConfigError(
                    f"the {self.what} {entry.name!r} is provided by {_distribution(entry)} and by "
                    f"{other}: uninstall one of them"
                )
            entries[entry.name] = entry
        return entries

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all adapters, Tidelog's own first."""
        return (*self._built_in, *sorted(self._entries))

    @property
    def others(self) -> tuple[str, ...]:
        """The names of plugins."""
        return tuple(sorted(self._entries))

    def get(self, name: str) -> T:
        """Return the adapter of this name.

        Raises:
            ConfigError: there is none, or the plugin can't be imported.
            ModuleNotFoundError: one of ours needs a package that is not installed.
        """
        if name in self._built_in:
            return cast(T, _attribute(self._built_in[name]))
        entry = self._entries.get(name)
        if entry is None:
            raise ConfigError(f"{name!r} is no {self.what}; there are {', '.join(self.names)}")
        try:
            return cast(T, entry.load())
        except Exception as error:
            raise ConfigError(
                f"the {self.what} {name!r} of {_distribution(entry)} ({entry.value}) can't be "
                f"loaded: {type(error).__name__}: {error}"
            ) from error


def _attribute(place: str) -> Any:
    module, _, names = place.partition(":")
    return reduce(getattr, names.split("."), import_module(module))


def _distribution(entry: EntryPoint) -> str:
    return "an unknown distribution" if entry.dist is None else entry.dist.name
