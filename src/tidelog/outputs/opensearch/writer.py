"""Writes rows of one task to OpenSearch, on executors."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import OutputError, OutputRefusedError
from tidelog.outputs.base.executors.writer import Writer
from tidelog.outputs.opensearch import documents, joined_documents
from tidelog.outputs.opensearch.bulk import GONE, Bulk
from tidelog.outputs.opensearch.client import Cluster, ClusterOptions, path, reason
from tidelog.outputs.opensearch.documents import DELETED, META, VERSION
from tidelog.outputs.opensearch.joined_documents import JoinedPart
from tidelog.ports import Rejection, TargetTable, WriteTask
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION

_SLICE_ROWS = 16_384  # converted to JSON at once
_READ_ROWS = 500  # read at once, to be completed


@dataclass(frozen=True)
class Index:
    """The driver's knowledge about a table's index.

    Attributes:
        alias: its name for readers and writers.
        floor: documents of lower versions are deleted (a truncate, a complete dump), even if they
            still exist.
        purged_below: tombstones of lower versions may be purged: if a row of such a version does
            not exist, it was deleted.
        part: the table's part of documents that several tables contribute to.
    """

    alias: str
    floor: int = 0
    purged_below: int = 0
    part: JoinedPart | None = None


class OpenSearchWriter(Writer):
    """Writes with one client for each task.

    Args:
        options: the cluster's address and credentials.
        indices: index by source table.
        bulk_bytes: about the size of a request.
        timeout_s: how long the cluster may have no room.
    """

    def __init__(
        self,
        options: ClusterOptions,
        indices: Mapping[str, Index],
        *,
        bulk_bytes: int,
        timeout_s: float,
    ) -> None:
        self._options = options
        self._indices = dict(indices)
        self._bulk_bytes = bulk_bytes
        self._timeout_s = timeout_s

    def open(self, task: WriteTask) -> None:
        self._cluster = Cluster(self._options)
        self._bulk = Bulk(self._cluster, self._bulk_bytes, self._timeout_s, task.check_lease)

    def write(self, table: TargetTable, rows: pa.RecordBatch) -> Iterable[Rejection]:
        index = self._indices[str(table.source)]
        for start in range(0, rows.num_rows, _SLICE_ROWS):
            self._write(table, index, rows.slice(start, _SLICE_ROWS))
        return ()

    def commit(self) -> Iterable[Rejection]:
        return self._bulk.finish()

    def close(self) -> None:
        bulk: Bulk | None = getattr(self, "_bulk", None)
        if bulk is not None:
            bulk.close()
            self._cluster.close()

    # ------------------------------------------------------------------ one slice

    def _write(self, table: TargetTable, index: Index, rows: pa.RecordBatch) -> None:
        if index.floor:
            rows = rows.filter(pc.greater_equal(rows.column(CHANGE_VERSION), index.floor))
        deleted = pc.equal(rows.column(CHANGE_OP), "d")
        partial = rows.column(CHANGE_MISSING).is_valid()
        if index.purged_below:
            old = pc.less(rows.column(CHANGE_VERSION), index.purged_below)
            partial = pc.or_(partial, old)
        if index.part is not None:
            self._contribute(table, index, index.part, rows, partial)
            return
        updates = pc.and_not(partial, deleted)
        whole = pc.invert(pc.or_(partial, deleted))
        for chosen, how in (
            (whole, self._index),
            (deleted, self._write_tombstones),
            (updates, self._update),
        ):
            count = chosen.true_count
            if count:
                how(table, index, rows if count == rows.num_rows else rows.filter(chosen))

    def _index(self, table: TargetTable, index: Index, rows: pa.RecordBatch) -> None:
        version = rows.column(CHANGE_VERSION)
        bodies = documents.documents(rows, table.columns.names, version)
        self._send(table, index, documents.ids(rows, table.key), version, bodies)

    def _write_tombstones(self, table: TargetTable, index: Index, rows: pa.RecordBatch) -> None:
        """A delete is a document too: OpenSearch forgets the version of a real delete."""
        version = rows.column(CHANGE_VERSION)
        bodies = documents.tombstones(version, int(time.time() * 1000))
        self._send(table, index, documents.ids(rows, table.key), version, bodies)

    def _send(
        self, table: TargetTable, index: Index, ids: pa.Array, version: pa.Array, bodies: pa.Array
    ) -> None:
        lines = documents.index_lines(ids, version, bodies)
        self._bulk.send(index.alias, table.name, lines, version.to_numpy())

    def _contribute(
        self,
        table: TargetTable,
        index: Index,
        part: JoinedPart,
        rows: pa.RecordBatch,
        only: pa.Array,
    ) -> None:
        if not rows.num_rows:
            return
        now = int(time.time() * 1000)
        lines = joined_documents.lines(table, part, rows, floor=index.floor, only=only, at_ms=now)
        versions = rows.column(CHANGE_VERSION).to_numpy()
        self._bulk.send(index.alias, table.name, lines, versions, conflicts_again=True)

    # ------------------------------------------------------------------ rows that only update

    def _update(self, table: TargetTable, index: Index, rows: pa.RecordBatch) -> None:
        """Read documents, complete them, and write them under the row's version.

        Nobody else writes a key's newer state at the same time: a batch begins when earlier ones
        are finished, and has each key once. The writes of an earlier attempt's task are older than,
        or the same as, what is read here. (OpenSearch's own update increases the version by one,
        and does not accept a version of ours.)
        """
        for start in range(0, rows.num_rows, _READ_ROWS):
            part = rows.slice(start, _READ_ROWS)
            ids = documents.ids(part, table.key)
            found = self._read(index, ids.to_pylist())
            at, bodies = [], []
            for number, body in self._completed(table, index, part, found):
                at.append(number)
                bodies.append(body)
            if at:
                chosen = pa.array(at, pa.int64())
                version = part.column(CHANGE_VERSION).take(chosen)
                self._send(table, index, ids.take(chosen), version, pa.array(bodies, pa.string()))

    def _read(self, index: Index, ids: list[str]) -> list[dict[str, Any] | None]:
        """Returns documents as they are now, refreshed or not; None: does not exist.

        Raises OutputError if the cluster can't read one (its shard moves, or is lost).
        """
        answer = self._cluster.request(
            "POST",
            path(index.alias, "_mget"),
            {"ids": ids},
            params={"filter_path": "docs._source,docs.found,docs.error.type"},
        )
        for each in answer["docs"]:
            if "error" in each:
                raise _unreadable(index.alias, each["error"])
        return [each.get("_source") for each in answer["docs"]]

    def _completed(
        self,
        table: TargetTable,
        index: Index,
        rows: pa.RecordBatch,
        found: list[dict[str, Any] | None],
    ) -> Iterator[tuple[int, str]]:
        versions = rows.column(CHANGE_VERSION).to_pylist()
        missing = rows.column(CHANGE_MISSING).to_pylist()
        texts = {
            name: documents.json_texts(rows.column(name)).to_pylist()
            for name in table.columns.names
        }
        for number, document in enumerate(found):
            if document is None:
                continue  # it never existed, or was purged
            meta = document.get(META) or {}
            if VERSION not in meta:
                # Written by hand: it is replaced, except by a state that may be purged.
                if versions[number] < index.purged_below:
                    continue
                document = {name: document.get(name) for name in texts}
            elif meta.get(DELETED) or not index.floor <= meta[VERSION] < versions[number]:
                continue
            absent = set(missing[number] or ())
            for name, column in texts.items():
                if name not in absent:
                    text = column[number]
                    document[name] = None if text is None else json.loads(text)
            document[META] = {VERSION: versions[number]}
            yield number, json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _unreadable(alias: str, error: Mapping[str, Any]) -> OutputError:
    kind = OutputRefusedError if error.get("type") in GONE else OutputError
    return kind(f"OpenSearch can't read documents of {alias} to complete them: {reason(error)}")
