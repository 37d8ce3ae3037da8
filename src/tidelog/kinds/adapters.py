"""The registries of adapters by name: Tidelog's own, and plugins found by entry points.

Only this module has the names of our adapters, and where each is. A plugin is used as they are;
docs/how-to/extend.md describes each sort. Nothing is imported before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, reduce
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, cast

from tidelog.errors import ConfigError
from tidelog.ports import FormatterKind, OutputKind, StateBackend

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
    def built_in(self) -> tuple[str, ...]:
        """The names of Tidelog's own."""
        return tuple(self._built_in)

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


OUTPUT_KINDS: Registry[OutputKind[Any]] = Registry(
    "tidelog.outputs",
    "kind of output",
    {
        "delta": "tidelog.outputs.lake.delta.config:KIND",
        "files": "tidelog.outputs.files.config:KIND",
        "http": "tidelog.outputs.http.config:KIND",
        "iceberg": "tidelog.outputs.lake.iceberg.config:KIND",
        "kafka": "tidelog.outputs.kafka.config:KIND",
        "opensearch": "tidelog.outputs.opensearch.config:KIND",
        "python": "tidelog.outputs.custom.config:KIND",
        "postgres": "tidelog.outputs.database.config:POSTGRES",
        "mysql": "tidelog.outputs.database.config:MYSQL",
    },
)

FORMATTERS: Registry[FormatterKind] = Registry(
    "tidelog.formatters",
    "format",
    {
        "debezium": "tidelog.outputs.formatters.json_formats:Debezium.of",
        "flat": "tidelog.outputs.formatters.json_formats:Flat.of",
        "cloudevents": "tidelog.outputs.formatters.json_formats:CloudEvents.of",
        "avro": "tidelog.outputs.formatters.avro:Avro.of",
        "avro_flat": "tidelog.outputs.formatters.avro:AvroFlat.of",
    },
)

WIRE_FORMATS: Registry[Any] = Registry(  # of tidelog.codecs.wire_formats.WireFormat
    "tidelog.wire_formats",
    "wire format",
    {
        "pgoutput": "tidelog.codecs.postgres.formats:PGOUTPUT",
        "binlog": "tidelog.codecs.mysql.formats:BINLOG",
    },
)

NATIVE_TYPES: Registry[Any] = Registry(  # functions, see tidelog.codecs.wire_formats
    "tidelog.native_types",
    "wire format with native types",
    {
        "pgoutput": "tidelog.codecs.postgres.formats:native_logical",
        "binlog": "tidelog.codecs.mysql.types:native_logical",
    },
)

SOURCE_BLOCKS: Registry[Any] = Registry(  # of tidelog.codecs.source_blocks.SourceBlocks
    "tidelog.source_blocks",
    "source block",
    {
        "postgres": "tidelog.codecs.postgres.formats:SOURCE_BLOCKS",
        "mysql": "tidelog.codecs.mysql.formats:SOURCE_BLOCKS",
        "mariadb": "tidelog.codecs.mysql.formats:SOURCE_BLOCKS",
    },
)

SOURCE_KINDS: Registry[Any] = Registry(  # of tidelog.app.sources.kinds.SourceKind
    "tidelog.sources",
    "kind of source",
    {
        "postgres": "tidelog.app.sources.postgres:PostgresKind",
        "mysql": "tidelog.app.sources.mysql:MySqlKind",
        "mariadb": "tidelog.app.sources.mysql:MySqlKind",
    },
)

STATES: Registry[StateBackend] = Registry(
    "tidelog.state",
    "scheme of state.url",
    {
        "sqlite": "tidelog.state.sqlite:BACKEND",
        "log": "tidelog.state.log_store:BACKEND",
        "zookeeper": "tidelog.state.zookeeper:BACKEND",
        "postgresql": "tidelog.state.postgres:BACKEND",
    },
)
