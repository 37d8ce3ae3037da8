"""A source's adapters, as its configuration asks for them: one `SourceKind` for each kind.

Nothing else of `tidelog.app` knows a kind of source. A new one of ours is a module beside
`tidelog.app.sources.postgres`, a section in `tidelog.config.source` and a line in
`tidelog.kinds.adapters`; its drivers are imported only for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from tidelog.config import Config
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
    SchemaRegistry,
    SourceId,
    StateStore,
)
from tidelog.sources.findings import Finding
from tidelog.system.extras import missing_extra


class RowsEstimate(Protocol):
    """``rows`` of a table; ``basis`` says what from."""

    @property
    def rows(self) -> int: ...

    @property
    def basis(self) -> str: ...


class Estimates(Protocol):
    """How many rows a dump will read. Used by one thread. Raises ChunkError."""

    def rows(self, table: TableName, where: str | None) -> RowsEstimate | None:
        """None if there is no such table."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SourceParts:
    """What a capture needs beside the log's reader.

    Attributes:
        catalogue, keys: ports.
        open_reader: a new reader of chunks, over connections of its own.
        open_blocking: a new reader for a blocking dump of these tables.
        publish: brings what the source publishes in step with the patterns.
        located: adds to a place in the log what holds on the source's other servers, too. Only of
            kinds that can.
        who_is_open: a sentence about the oldest open transactions; empty: they hold up nothing.
        forget_log: has the source keep no log any more for capture, whose reader is closed; what is
            written from then on is lost to it. Only of kinds that can.
    """

    catalogue: Catalogue
    keys: KeyExtractor
    open_reader: Callable[[], ChunkReader]
    open_blocking: Callable[[Sequence[TableName]], BlockingReader]
    publish: Callable[[], Published]
    located: Callable[[Resume], Resume] = lambda resume: resume
    who_is_open: Callable[[], str] = lambda: ""
    forget_log: Callable[[], None] = lambda: None


class SchemaNotes(Protocol):
    """What is known of the tables' columns at places of the source's log. Used by one thread."""

    def of(self, table: TableName) -> list[tuple[str, int | None]]:
        """From which positions on the table's records have which version, where that is noted;
        None: it is not known there.
        """
        ...

    def describe(self, column: Column) -> dict[str, Any]:
        """A column as `fix` takes it: ``name``, ``type`` and so on."""
        ...

    def fix(
        self, table: TableName, at: str, columns: Sequence[Mapping[str, Any]], key: Sequence[str]
    ) -> TableSchema:
        """Note that the table's records have these columns from position ``at`` on.

        Raises UsageError: something told is wrong, or the log tells the columns itself.
        """
        ...


class SourceKind(Protocol):
    """The adapters of one configured source. Connects when one of them is first used.

    What `log_reader` and `parts` return may share state: take those of one capture from one object.
    """

    @property
    def state_keys(self) -> Sequence[str]:
        """Documents of the state that the log's reader asks for when it starts."""
        ...

    def prepare(self) -> None:
        """Load compiled code without connecting, so that a standby takes over faster."""
        ...

    def reach(self) -> None:
        """Connect, and leave again. Raises what keeps us from it."""
        ...

    def log_reader(
        self, registry: SchemaRegistry, state: StateStore, expected: SourceId | None
    ) -> LogReader:
        """The reader of the log; ``expected``: which source the event log was captured from.
        ``state`` keeps what it has to know after a restart.
        """
        ...

    def parts(self, registry: SchemaRegistry) -> SourceParts:
        """All else of a capture."""
        ...

    def catalogue(self) -> Catalogue: ...

    def plain_reader(self, registry: SchemaRegistry) -> ChunkReader:
        """A reader of rows that no log has to be told of: for samples and comparisons."""
        ...

    def digests(self) -> DigestReader:
        """A reader that sums rows up inside the source."""
        ...

    def estimates(self) -> Estimates: ...

    def schema_notes(self, registry: SchemaRegistry, state: StateStore) -> SchemaNotes:
        """For `tidelog schema`; ``state`` as for `log_reader`."""
        ...

    def check(self) -> list[Finding]:
        """What `tidelog check` finds out. Changes nothing, never raises for what it checks."""
        ...

    def check_source(self, expected: SourceId) -> None:
        """Raises SourceChangedError if ``source.url`` leads to another source. Connects."""
        ...

    @property
    def key_texts(self) -> Callable[[pa.Array], pa.StringArray]:
        """Typed values as texts that the source reads as values of a key."""
        ...


def source_kind(config: Config) -> SourceKind:
    """The adapters of the configured source.

    Raises:
        MissingExtraError: the kind's driver is not installed.
    """
    try:
        made: SourceKind = SOURCE_KINDS.get(config.source.kind)(config)
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from error
    return made
