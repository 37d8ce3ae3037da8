"""Creates the `Snapshotter` of a section ``source``, from ``snapshot`` and related options."""

from __future__ import annotations

import importlib
from typing import Any, Final

from tidelog.config.source import SnapshotConfiguration
from tidelog.errors import ConfigError
from tidelog.ports import Snapshotter


class _Configured(Snapshotter):
    """A snapshotter that returns configured decisions."""

    def __init__(self, configuration: SnapshotConfiguration) -> None:
        self._configuration = configuration

    def should_snapshot(self, begun: bool, unfinished: bool) -> bool:
        data = self._configuration.data
        return data == "always" or (data == "once" and not begun)

    def should_stream(self) -> bool:
        return self._configuration.stream

    def should_snapshot_on_gap(self) -> bool:
        return self._configuration.on_gap

    def should_snapshot_new_tables(self) -> bool:
        return self._configuration.new_tables


MODES: Final = {
    "initial": SnapshotConfiguration(),
    "initial_only": SnapshotConfiguration(stream=False),
    "no_data": SnapshotConfiguration(data="never", new_tables=False),
    "when_needed": SnapshotConfiguration(on_gap=True),
    "always": SnapshotConfiguration(data="always"),
}


def snapshotter_of(source: Any) -> Snapshotter:
    """Return the snapshotter of a section ``source``.

    Raises ConfigError if the class that it names can't be loaded.
    """
    if source.snapshot == "custom":
        return _load(source.snapshot_class)
    if source.snapshot == "configuration_based":
        return _Configured(source.snapshot_configuration)
    return _Configured(MODES[source.snapshot])


def _load(name: str) -> Snapshotter:
    module, _, attribute = name.partition(":")
    try:
        snapshotter = getattr(importlib.import_module(module), attribute)()
    except Exception as error:
        raise ConfigError(
            f"source.snapshot_class: {name} can't be created ({type(error).__name__})"
        ) from error
    if not isinstance(snapshotter, Snapshotter):
        raise ConfigError(
            f"source.snapshot_class: {name} is not derived from tidelog.ext.Snapshotter"
        )
    return snapshotter
