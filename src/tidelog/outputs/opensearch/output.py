"""The OpenSearch output: each table's rows as documents of an index, behind an alias.

Idempotent and monotonic: a document's version is the row's. A deleted row leaves a *tombstone*, a
document with only its version, because OpenSearch forgets the version of a document that it really
deleted after ``index.gc_deletes``. The alias's filter hides tombstones, and documents below the
index's *floor*: rows that a truncate or a complete dump removed are hidden at once, and remain
deleted for a task of yesterday too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidelog.errors import (
    ConfigError,
    NameRefusedError,
    OutputError,
    OutputRefusedError,
    TableLeftOutError,
)
from tidelog.model.patterns import matches
from tidelog.outputs.base.executor_output import ExecutorOutput
from tidelog.outputs.base.left_out import rename_step, route_step
from tidelog.outputs.base.schema_evolution import ColumnChange
from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.formatters.messages import topic_of
from tidelog.outputs.opensearch import documents
from tidelog.outputs.opensearch.client import Cluster, ClusterOptions
from tidelog.outputs.opensearch.documents import (
    AT,
    DELETED,
    JOINED_MAPPING,
    META,
    META_MAPPING,
    ROOT,
    VERSION,
    JoinedPart,
)
from tidelog.outputs.opensearch.indices import Indices, index_name
from tidelog.outputs.opensearch.writer import Index, OpenSearchWriter
from tidelog.ports import StateStore, TargetTable, TaskWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PURGE_EVERY_S = 3600.0


@dataclass(frozen=True)
class JoinedIndex:
    """A kind of documents that several tables contribute to.

    Attributes:
        index: the alias.
        tables: by source table, the name of the member for its rows and the columns with the root's
            key; of the root itself, "" and ().
    """

    index: str
    tables: Mapping[str, tuple[str, tuple[str, ...]]]


def check_columns(output: str, table: TargetTable, names: Sequence[str]) -> None:
    """Raise NameRefusedError if documents can't have columns of these names."""
    bad = documents.unsupported_names(names)
    if bad:
        raise NameRefusedError(
            f"output {output}: {table.source} has columns that no document can have by "
            f"their name: {', '.join(bad)}. {rename_step(table.source, *bad)}"
        )


class OpenSearchOutput(ExecutorOutput):
    """`tidelog.ports.Output` over indices.

    Args:
        spark, log_path, state: see `ExecutorOutput`.
        delivery: keyed.
        cluster: the cluster's address and credentials.
        index: pattern of the alias's name: ``{table}``, ``{namespace}``, ``{name}``.
        create_indices: False: a missing index is an error.
        settings: settings of indices that are created.
        mappings: by table (or pattern), by column: mappings in place of ours.
        tombstone_retention_s: how long tombstones are kept.
        bulk_bytes: about the size of a bulk request.
        timeout_s: how long the cluster may have no room.
        joined: documents that several tables contribute to.
    """

    frequent = True

    def __init__(
        self,
        spark: SparkSession,
        log_path: str,
        state: StateStore,
        delivery: Delivery,
        *,
        cluster: ClusterOptions,
        index: str,
        create_indices: bool,
        settings: Mapping[str, Any] | None = None,
        mappings: Mapping[str, Mapping[str, Any]] | None = None,
        tombstone_retention_s: float,
        bulk_bytes: int,
        timeout_s: float = 120.0,
        joined: Sequence[JoinedIndex] = (),
    ) -> None:
        if not delivery.keyed:
            raise ConfigError("an opensearch output keeps rows by key")
        self._options = cluster
        self._pattern = index
        self._create_indices = create_indices
        self._settings = dict(settings or {})
        self._mappings = dict(mappings or {})
        self._retention_s = tombstone_retention_s
        self._bulk_bytes = bulk_bytes
        self._timeout_s = timeout_s
        self._joined = {table: each for each in joined for table in each.tables}
        self._known: dict[str, Index] = {}  # by source table
        self._purged_at: float | None = None
        self._client: Cluster | None = None
        self._known_indices: Indices | None = None
        super().__init__(spark, log_path, state, delivery)

    def check(self, generation: str) -> None:
        self._cluster().request("GET", "/_cluster/health", params={"level": "cluster"})

    def create(self, table: TargetTable) -> None:
        source = str(table.source)
        alias, part = self._place(table)
        indices = self._indices()
        known = Index(alias, part=part)
        if not indices.find(alias):
            if not self._create_indices:
                raise TableLeftOutError(
                    f"output {self.name}: there is no alias {alias}, and create_indices is false"
                )
            indices.create(known, self._settings, self._properties(table, known, table.columns))
        known = self._adopt(table, known)
        # Again: an earlier run may have ended between the two.
        indices.update_filter(known)
        if part is not None:
            indices.put_scripts()
        self._known[source] = known

    def has_table(self, table: TargetTable) -> bool:
        return self._indices().find(self._place(table)[0])

    def address(self, table: TargetTable) -> str | None:
        alias, part = self._place(table)
        return f"index {alias}" if part is None else None

    def alter(self, table: TargetTable, change: ColumnChange) -> None:
        # Wider types need nothing: integers are longs, floats doubles from the start.
        if change.added:
            known = self._known[str(table.source)]
            properties = self._properties(table, known, pa.schema(change.added))
            self._indices().add(known.alias, properties)

    def remove_below(self, table: TargetTable, version: int) -> bool:
        source, indices = str(table.source), self._indices()
        known = self._known[source]
        if version > known.floor:
            known = replace(known, floor=version)
            indices.note(known.alias, lambda notes: self._notes_with_table(notes, source, known))
            indices.update_filter(known)  # from now on they are hidden from searches
            self._known[source] = known
        if known.part is None:
            indices.delete(known.alias, {"range": {f"{META}.{VERSION}": {"lt": known.floor}}})
        else:
            indices.remove_parts(known, table.columns.names)
        return True

    def writer(self) -> TaskWriter:
        return OpenSearchWriter(
            self._options, self._known, bulk_bytes=self._bulk_bytes, timeout_s=self._timeout_s
        )

    def after_batch(self) -> None:
        now = time.monotonic()
        if self._purged_at is None or now >= self._purged_at + _PURGE_EVERY_S:
            self._purged_at = now
            try:
                self.purge()
            except OutputRefusedError:
                raise
            except OutputError:
                self._purged_at = None  # after the next batch, again

    def close(self) -> None:
        client, self._client, self._known_indices = self._client, None, None
        if client is not None:
            client.close()
        super().close()

    # ------------------------------------------------------------------ tombstones

    def purge(self) -> None:
        """Really delete tombstones older than the retention, of all tables written in this run.

        Only those of versions that the whole output has passed. First the index stores that
        version: a row of a lower version, from a replay, may then only update. So no deleted row is
        inserted again.
        """
        done = self._progress.done
        if done is None:
            return
        before = int((time.time() - self._retention_s) * 1000)
        old = {
            "bool": {
                "filter": [
                    {"term": {f"{META}.{DELETED}": True}},
                    {"range": {f"{META}.{AT}": {"lt": before}}},
                    {"range": {f"{META}.{VERSION}": {"lt": done}}},
                ]
            }
        }  # a document that other tables still contribute to has no AT
        indices = self._indices()
        for alias in {known.alias for known in self._known.values()}:
            if _log_count(indices.notes(alias)) > 1 or not indices.count(alias, old):
                continue
            notes = indices.note(alias, lambda notes: _purged_notes(notes, done))
            if _log_count(notes) > 1:
                continue
            below = notes["purged_below"]
            for source, known in self._known.items():
                if known.alias == alias:
                    self._known[source] = replace(known, purged_below=below)
            indices.delete(alias, old)

    # ------------------------------------------------------------------ indices

    def _cluster(self) -> Cluster:
        if self._client is None:
            self._client = Cluster(self._options)
        return self._client

    def _indices(self) -> Indices:
        if self._known_indices is None:
            self._known_indices = Indices(self._cluster(), self.name)
        return self._known_indices

    def _place(self, table: TargetTable) -> tuple[str, JoinedPart | None]:
        """Return the alias, and the table's part of documents if other tables have some."""
        document = self._joined.get(str(table.source))
        if document is None:
            return index_name(topic_of(self._pattern, table)), None
        name, key = document.tables[str(table.source)]
        if not name:
            return index_name(document.index), JoinedPart("", table.key, False)
        lost = set(key) - set(table.key)
        if lost:
            raise TableLeftOutError(
                f"output {self.name}: {', '.join(sorted(lost))} are not of the key of "
                f"{table.source}, so a delete does not say whose {name} is deleted. Give the table "
                "a key (in the source, or a surrogate key) that contains them"
            )
        return index_name(document.index), JoinedPart(name, key, set(key) != set(table.key))

    def _adopt(self, table: TargetTable, known: Index) -> Index:
        """Use the index behind an existing alias; it gets all columns of the table."""
        source, indices = str(table.source), self._indices()
        columns = indices.columns(known.alias)
        is_joined = ROOT in columns.get(META, {}).get("properties", {})

        def with_table(notes: dict[str, Any]) -> dict[str, Any]:
            tables = notes.get("tables", {})
            strangers = [each for each in tables if each != source and each not in self._joined]
            if strangers or (tables and is_joined != (known.part is not None)):
                raise NameRefusedError(
                    f"output {self.name}: index {indices.name(known.alias)} holds "
                    f"{', '.join(tables)}, not {source} as configured. Set `index` so that "
                    f"each table has its own, or: {route_step(table.source)}"
                )
            return self._notes_with_table(notes, source, known)

        notes = indices.note(known.alias, with_table)
        known = replace(
            known,
            floor=notes["tables"][source]["floor"],
            purged_below=notes.get("purged_below", 0),
        )
        if known.part is not None and known.part.name:
            columns = columns.get(known.part.name, {}).get("properties", {})
        missing = [field for field in table.columns if field.name not in columns]
        if missing:
            indices.add(known.alias, self._properties(table, known, pa.schema(missing)))
        return known

    def _notes_with_table(
        self, notes: Mapping[str, Any], source: str, known: Index
    ) -> dict[str, Any]:
        """Return the index's notes with the table as it is now."""
        tables = notes.get("tables", {})
        floor = max(known.floor, tables.get(source, {}).get("floor", 0))
        noted = {"floor": floor, "output": self.name, "generation": self.log.generation}
        return {**notes, "tables": {**tables, source: noted}}

    def _properties(self, table: TargetTable, known: Index, columns: pa.Schema) -> dict[str, Any]:
        """Return the mapping of columns. Raises OutputRefusedError if documents can't have
        them.
        """
        check_columns(self.name, table, columns.names)
        own: dict[str, Any] = {}
        for pattern, chosen in self._mappings.items():
            if matches((pattern,), table.source):
                own |= chosen
        properties = documents.mapping(columns, table, own)
        if known.part is None:
            return properties | {META: META_MAPPING}
        return documents.joined_properties(known.part, properties) | {META: JOINED_MAPPING}


def _log_count(notes: Mapping[str, Any]) -> int:
    """Return how many logs fill an index: if documents are joined from several logs, none of their
    outputs knows the common progress.
    """
    return len({each["generation"] for each in notes.get("tables", {}).values()})


def _purged_notes(notes: dict[str, Any], done: int) -> dict[str, Any]:
    """Return the notes with the purged version. It never decreases: after a rewind less is done
    than was purged.
    """
    if _log_count(notes) > 1:
        return notes
    return notes | {"purged_below": max(done, notes.get("purged_below", 0))}
