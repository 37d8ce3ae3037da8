"""The adapters of a configured source, one `SourceKind` for each kind, and its snapshotter.

Nothing else in `tidelog.app` depends on the kind of source. A new kind is a module beside
`tidelog.app.sources.postgres`, a section in `tidelog.config.source` and a line in
`tidelog.kinds.adapters`; its drivers are imported for it alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from tidelog.config import Config
from tidelog.config.source import AnySource, SnapshotSection
from tidelog.errors import ConfigError
from tidelog.kinds.adapters import SOURCE_KINDS
from tidelog.model.records import Resume
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.ports import (
    BlockingReader,
    Catalogue,
    ChunkReader,
    DigestReader,
    KeyExtractor,
    LogReader,
    Published,
    RowsEstimate,
    SchemaRegistry,
    Snapshotter,
    SourceId,
    StateStore,
)
from tidelog.sources.findings import Finding
from tidelog.system.extras import missing_extra


class Estimates(Protocol):
    """Estimates how many rows a dump will read. Used by one thread. Raises ChunkError."""

    def rows(self, table: TableName, where: str | None) -> RowsEstimate | None:
        """Return the estimate; None if there is no such table."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SourceParts:
    """The parts of a capture besides the log's reader.

    Attributes:
        catalogue, keys: ports.
        open_reader: returns a new reader of chunks, with its own connections.
        open_blocking: returns a new reader for a blocking dump of these tables.
        open_keyless: returns a new reader for one table without a key, which is read while the log
            flows: it stops no writer.
        publish: updates the source's publications by the patterns.
        located: adds to a position what is valid on the source's other servers, too. Only of kinds
            that can.
        who_is_open: returns a sentence about the oldest open transactions; empty: they block
            nothing.
        forget_log: makes the source keep no more log for capture, whose reader is closed; all later
            changes are lost to it. Only of kinds that can.
    """

    catalogue: Catalogue
    keys: KeyExtractor
    open_reader: Callable[[], ChunkReader]
    open_blocking: Callable[[Sequence[TableName]], BlockingReader]
    open_keyless: Callable[[], BlockingReader]
    publish: Callable[[], Published]
    located: Callable[[Resume], Resume] = lambda resume: resume
    who_is_open: Callable[[], str] = lambda: ""
    forget_log: Callable[[], None] = lambda: None


class SchemaNotes(Protocol):
    """Stores tables' columns at positions of the source's log. Used by one thread."""

    def of(self, table: TableName) -> list[tuple[str, int | None]]:
        """Return the positions from which the table has which version (None: it is not known)."""
        ...

    def describe(self, column: Column) -> dict[str, Any]:
        """Return a column in the form of `fix`: ``name``, ``type`` and so on."""
        ...

    def fix(
        self, table: TableName, at: str, columns: Sequence[Mapping[str, Any]], key: Sequence[str]
    ) -> TableSchema:
        """Set the columns of the table's records from position ``at`` on, or raise UsageError."""
        ...


class SourceKind(Protocol):
    """The adapters of one configured source. Connects when one of them is first used.

    The results of `log_reader` and `parts` may share state: use one object for one capture.
    """

    @property
    def state_keys(self) -> Sequence[str]:
        """The keys of the state documents that the log's reader reads when it starts."""
        ...

    def prepare(self) -> None:
        """Load compiled code without connecting, so that a standby takes over faster."""
        ...

    def reach(self) -> None:
        """Connect, and disconnect. Raises the error that prevents it."""
        ...

    def log_reader(
        self, registry: SchemaRegistry, state: StateStore, expected: SourceId | None
    ) -> LogReader:
        """Return the reader of the log.

        ``expected``: the source of the event log. ``state`` keeps what the reader needs after a
        restart.
        """
        ...

    def parts(self, registry: SchemaRegistry) -> SourceParts:
        """Return the other parts of a capture."""
        ...

    def catalogue(self) -> Catalogue: ...

    def plain_reader(self, registry: SchemaRegistry) -> ChunkReader:
        """Return a reader of rows without watermarks, for samples and comparisons."""
        ...

    def digests(self) -> DigestReader:
        """Return a reader that computes digests of rows inside the source."""
        ...

    def estimates(self) -> Estimates: ...

    def schema_notes(self, registry: SchemaRegistry, state: StateStore) -> SchemaNotes:
        """Return the schema notes for `tidelog schema`; ``state`` as for `log_reader`."""
        ...

    def check(self) -> list[Finding]:
        """Run the checks of `tidelog check`. Changes nothing; a failed check is no exception."""
        ...

    def check_source(self, expected: SourceId) -> None:
        """Raise SourceChangedError if ``source.url`` is another source. Connects."""
        ...

    @property
    def key_texts(self) -> Callable[[pa.Array], pa.StringArray]:
        """Converts typed values to texts that the source reads as key values."""
        ...


def source_kind(config: Config) -> SourceKind:
    """Return the adapters of the configured source.

    Raises:
        MissingExtraError: the kind's driver is not installed.
    """
    try:
        adapters: SourceKind = SOURCE_KINDS.get(config.source.kind)(config)
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from error
    return adapters


# The snapshotter, from ``snapshot`` and related options.


class _Configured(Snapshotter):
    """A snapshotter that returns configured decisions."""

    def __init__(self, configuration: SnapshotSection) -> None:
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
    "initial": SnapshotSection(),
    "initial_only": SnapshotSection(stream=False),
    "no_data": SnapshotSection(data="never", new_tables=False),
    "when_needed": SnapshotSection(on_gap=True),
    "always": SnapshotSection(data="always"),
}


def snapshotter_of(source: AnySource) -> Snapshotter:
    """Return the snapshotter of a section ``source``. ConfigError: its class can't be loaded."""
    if source.snapshot_class is not None:
        return _load(source.snapshot_class)
    if source.snapshot_configuration is not None:
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
