"""The OpenSearch output: each table's rows as documents of an index, behind an alias.

Idempotent and monotonic: a document's version is the row's. A deleted row leaves a *tombstone*, a
document with nothing but its version, because OpenSearch forgets the version of what it really
deleted after ``index.gc_deletes``. The alias's filter hides tombstones, and documents below the
index's *floor*: what a truncate or a complete dump removed is gone at once, and for a task of
yesterday too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidelog.errors import ConfigError, OutputError, OutputRefusedError
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName
from tidelog.outputs import opensearch_documents as documents
from tidelog.outputs.evolving import ColumnChange
from tidelog.outputs.executing import Delivery, ExecutorOutput
from tidelog.outputs.formatters.messages import topic_of
from tidelog.outputs.opensearch_client import Cluster, ClusterOptions, path
from tidelog.outputs.opensearch_documents import AT, DELETED, META, META_MAPPING, VERSION
from tidelog.outputs.opensearch_writer import Index, OpenSearchWriter
from tidelog.ports import OutputBatch, StateStore, TargetTable, TaskWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FIRST = "-000001"  # as indices that roll over are numbered
_NAME_MAX_BYTES = 255 - len(_FIRST)
_NOT_IN_NAMES = re.compile(r'[\\/*?"<>|,#:\s]')
_PURGE_EVERY_S = 3600.0
# How the output marks an index as its own, in the mapping's `_meta`.
_OWN = "tidelog"


class OpenSearchOutput(ExecutorOutput):
    """`tidelog.ports.Output` over indices.

    Args:
        spark: any session.
        log_path: the event log that batches refer to.
        state: keeps the output's progress.
        delivery: keyed.
        cluster: how the cluster is reached.
        index: pattern of the alias's name: ``{table}``, ``{namespace}``, ``{name}``.
        create_indices: False: what is not there is an error.
        settings: of indices that are created.
        mappings: by table (or pattern), by column: mappings in place of ours.
        tombstone_retention_s: how long tombstones are kept.
        bulk_bytes: about the size of a bulk request.
        timeout_s: how long the cluster may have no room.
    """

    def __init__(
        self,
        spark: SparkSession,
        log_path: str,
        state: StateStore,
        delivery: Delivery,
        *,
        cluster: ClusterOptions,
        index: str = "{namespace}_{name}",
        create_indices: bool = True,
        settings: Mapping[str, Any] | None = None,
        mappings: Mapping[str, Mapping[str, Any]] | None = None,
        tombstone_retention_s: float = 7 * 86_400.0,
        bulk_bytes: int = 4 << 20,
        timeout_s: float = 120.0,
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
        self._indices: dict[str, Index] = {}  # by source table
        self._behind: dict[str, str] = {}  # alias → index
        self._purged_at: float | None = None
        self._client: Cluster | None = None
        super().__init__(spark, log_path, state, delivery)

    def check(self, generation: str) -> None:
        self._cluster().request("GET", "/_cluster/health", params={"level": "cluster"})

    def create(self, table: TargetTable) -> None:
        bad = documents.unfit(table.columns.names)
        if bad:
            raise OutputRefusedError(
                f"output {self.name}: {table.source} has columns that no document can have by "
                f"their name: {', '.join(bad)}. Rename them by a step, or drop them"
            )
        alias = index_name(topic_of(self._pattern, table))
        for source, other in self._indices.items():
            if other.alias == alias and source != str(table.source):
                raise OutputRefusedError(
                    f"output {self.name}: {source} and {table.source} both go to index {alias}. "
                    "Set `index` with {namespace} and {name}"
                )
        found = self._cluster().request("GET", path("_alias", alias), absent=True)
        if found is None:
            self._create(table, alias)
            return
        if len(found) != 1:
            raise OutputRefusedError(
                f"output {self.name}: alias {alias} stands for {len(found)} indices, it must for "
                "one"
            )
        behind = next(iter(found))
        self._behind[alias] = behind
        meta, columns = self._described(behind)
        own = meta.get(_OWN, {})
        if own and own.get("table") != str(table.source):
            raise OutputRefusedError(
                f"output {self.name}: index {behind} holds {own.get('table')}, not "
                f"{table.source}. Set `index` so that each table has its own"
            )
        known = Index(alias, own.get("floor", 0), own.get("purged_below", 0))
        self._indices[str(table.source)] = known
        lacking = [field for field in table.columns if field.name not in columns]
        if lacking or META not in columns or not own:
            self._put_mapping(table, known, pa.schema(lacking))
        # Again: the run before may have ended between the two.
        self._put_filter(known)

    def alter(self, table: TargetTable, change: ColumnChange) -> None:
        # Wider types need nothing: integers are longs, floats doubles from the beginning.
        if change.added:
            bad = documents.unfit([field.name for field in change.added])
            if bad:
                raise OutputRefusedError(
                    f"output {self.name}: {table.source} has columns that no document can have by "
                    f"their name: {', '.join(bad)}. Rename them by a step, or drop them"
                )
            self._put_mapping(table, self._indices[str(table.source)], pa.schema(change.added))

    def remove_below(self, table: TargetTable, version: int) -> bool:
        known = self._indices[str(table.source)]
        if version > known.floor:
            known = replace(known, floor=version)
            self._indices[str(table.source)] = known
            self._put_mapping(table, known, pa.schema([]))
            self._put_filter(known)  # from here on they are gone for who searches
        self._delete(known, {"range": {f"{META}.{VERSION}": {"lt": known.floor}}})
        return True

    def writer(self) -> TaskWriter:
        return OpenSearchWriter(
            self._options, self._indices, bulk_bytes=self._bulk_bytes, timeout_s=self._timeout_s
        )

    def write(self, batch: OutputBatch) -> None:
        super().write(batch)
        now = time.monotonic()
        if self._purged_at is None or now >= self._purged_at + _PURGE_EVERY_S:
            self._purged_at = now
            self.purge()

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
        super().close()

    # ------------------------------------------------------------------ tombstones

    def purge(self) -> None:
        """Really delete tombstones older than the retention, of all tables written in this run.

        Only of versions that the whole output has passed. The index remembers up to where, first:
        a row of a lower version, from a replay, may then only update. So no deleted row comes back.
        """
        done = self._opened(self.log.generation).done
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
        }
        for source, known in list(self._indices.items()):
            behind = path(self._behind[known.alias])
            if not self._cluster().request("POST", f"{behind}/_count", {"query": old})["count"]:
                continue
            table = self._targets.get(TableName.parse(source))
            if table is None:
                continue
            known = replace(known, purged_below=max(known.purged_below, done))
            self._indices[source] = known
            self._put_mapping(table, known, pa.schema([]))
            self._delete(known, old)

    def _delete(self, known: Index, query: Mapping[str, Any]) -> None:
        """In the background, by the cluster. A document that changes meanwhile stays."""
        behind = path(self._behind[known.alias])
        self._cluster().request("POST", f"{behind}/_refresh")
        self._cluster().request(
            "POST",
            f"{behind}/_delete_by_query",
            {"query": query},
            params={"conflicts": "proceed", "wait_for_completion": "false", "slices": "auto"},
        )

    # ------------------------------------------------------------------ indices

    def _cluster(self) -> Cluster:
        if self._client is None:
            self._client = Cluster(self._options)
        return self._client

    def _create(self, table: TargetTable, alias: str) -> None:
        if not self._create_indices:
            raise OutputRefusedError(
                f"output {self.name}: there is no alias {alias}, and create_indices is false"
            )
        if self._cluster().request("GET", path(alias), absent=True) is not None:
            raise OutputRefusedError(
                f"output {self.name}: {alias} is an index, it must be an alias: delete it, or set "
                "`index`"
            )
        known = Index(alias)
        body = {
            # Hidden: a search by a pattern finds the alias, and not what stands behind it.
            "settings": {"index.hidden": True} | self._settings,
            "mappings": {"dynamic": False, **self._mapping(table, known, table.columns)},
            "aliases": {alias: _alias(known)},
        }
        self._cluster().request("PUT", path(alias + _FIRST), body)
        self._indices[str(table.source)] = known
        self._behind[alias] = alias + _FIRST

    def _mapping(self, table: TargetTable, known: Index, columns: pa.Schema) -> dict[str, Any]:
        meta = {
            "output": self.name,
            "generation": self.log.generation,
            "table": str(table.source),
            "floor": known.floor,
            "purged_below": known.purged_below,
        }
        own: dict[str, Any] = {}
        for pattern, chosen in self._mappings.items():
            if matches((pattern,), table.source):
                own |= chosen
        properties = documents.mapping(columns, table, own) | {META: META_MAPPING}
        return {"_meta": {_OWN: meta}, "properties": properties}

    def _put_mapping(self, table: TargetTable, known: Index, columns: pa.Schema) -> None:
        """Columns that are there keep their mapping; so does what others keep in ``_meta``."""
        behind = self._behind[known.alias]
        wanted = self._mapping(table, known, columns)
        wanted["_meta"] = self._described(behind)[0] | wanted["_meta"]
        try:
            self._cluster().request("PUT", path(behind, "_mapping"), wanted)
        except OutputRefusedError as error:
            raise OutputRefusedError(
                f"output {self.name}: index {behind} can't take columns of {table.source} "
                f"({', '.join(columns.names)}): {error}. Reindex it with a mapping that fits"
            ) from None

    def _described(self, behind: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """(``_meta``, properties) of the index's mapping."""
        answer = self._cluster().request("GET", path(behind, "_mapping"))
        found = answer[behind]["mappings"]
        return found.get("_meta", {}), found.get("properties", {})

    def _put_filter(self, known: Index) -> None:
        behind = self._behind[known.alias]
        action = {"index": behind, "alias": known.alias, **_alias(known)}
        answer = self._cluster().request("POST", "/_aliases", {"actions": [{"add": action}]})
        if not answer.get("acknowledged"):
            raise OutputError(f"alias {known.alias} was not changed in time")


def index_name(text: str) -> str:
    """``text`` as OpenSearch's rules for names want it."""
    name = _NOT_IN_NAMES.sub("_", text.lower()).lstrip("-_+.")
    return name.encode()[:_NAME_MAX_BYTES].decode(errors="ignore") or "_"


def _alias(known: Index) -> dict[str, Any]:
    """What the alias shows."""
    shown: dict[str, Any] = {"must_not": [{"term": {f"{META}.{DELETED}": True}}]}
    if known.floor:
        shown["filter"] = [{"range": {f"{META}.{VERSION}": {"gte": known.floor}}}]
    return {"is_write_index": True, "filter": {"bool": shown}}
