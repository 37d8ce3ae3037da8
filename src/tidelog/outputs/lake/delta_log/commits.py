"""Writes commits and checkpoints of a Delta table.

A commit is one file, created only if its number is free (Delta protocol, "Delta Log Entries").

A checkpoint is a table's state in one Parquet file, so that readers need not read all commits:
a classic one (Delta protocol, "Classic checkpoint"), which appears as a whole. Its content follows
the V2 spec where the table's ``delta.checkpointPolicy`` is ``v2``, without sidecars, else V1.
Statistics are written as JSON texts.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.errors import ConflictError, TidelogError
from tidelog.outputs.base.stores import FileStore
from tidelog.outputs.lake.delta_log.table_state import (
    IN_COMMIT_TIMESTAMPS,
    LAST_CHECKPOINT,
    LOG_FOLDER,
    PREVIOUS,
    CheckpointFiles,
    TableState,
    commit_name,
    read_tombstones,
    removed_files_ms,
    version_of,
)
from tidelog.system import failpoints
from tidelog.system.processes import unix_ms
from tidelog.system.version import __version__

# Commits.

ENGINE: Final = f"Tidelog/{__version__}"


class CommitWriter:
    """Writes commits of one table.

    Args:
        store: the table's store.
    """

    def __init__(self, store: FileStore) -> None:
        self._store = store

    def commit(
        self,
        state: TableState,
        actions: Sequence[Mapping[str, Any]],
        *,
        operation: str,
        parameters: Mapping[str, str],
        note: str | None,
        blind_append: bool = False,
    ) -> int:
        """Commit the version after that of ``state``, apply it to the state, and return it.

        Args:
            state: the state that ``actions`` are based on.
            actions: as in `tidelog.outputs.lake.delta_log.actions`.
            operation: as DESCRIBE HISTORY shows it.
            parameters: parameters of the operation; values are texts, or JSON texts of other
                values.
            note: ``userMetadata`` of the commit.
            blind_append: whether nothing was read for it, and it only adds rows.

        Raises:
            ConflictError: another writer has taken the number; our commit does not exist.
            TidelogError: the store failed. If it is an OutcomeUnknownError, the commit may still
                happen: refresh the state, and check whether its transaction is there.
        """
        version = state.version + 1
        info = _info(state, actions, operation, parameters, note, blind_append=blind_append)
        lines = [{"commitInfo": info}, *actions]
        data = "".join(
            f"{json.dumps(line, ensure_ascii=False, separators=(',', ':'))}\n" for line in lines
        ).encode()
        name = commit_name(version)
        failpoints.hit("delta.commit.before")
        try:
            tag = self._store.put_if_absent(name, data)
        except TidelogError as error:
            # The answer may be lost, and not the commit.
            found = self._read_after_error(name, error)
            tag = self._store.tag(name) if found == data else None
        if tag is not None and not self._is_next(version):
            self._store.delete([name])
            tag = None
        if tag is None:
            raise ConflictError(
                f"{self._store.path}: another writer committed version {version} first"
            )
        failpoints.hit("delta.commit.after")
        state.apply(version, lines, data, tag)
        return version

    def _is_next(self, version: int) -> bool:
        """Was the number free because it is the next one, or because it was cleaned up?

        A clean-up keeps the commit of a checkpoint and all after it. So a commit whose predecessor
        is missing is not the newest: its writer was delayed for long.
        """
        if version:
            return self._store.tag(commit_name(version - 1)) is not None
        return all(version_of(name) <= 0 for name in self._store.names(LOG_FOLDER))

    def _read_after_error(self, name: str, error: TidelogError) -> bytes:
        """Return the file's content after an error; raises the error if there is no file or it
        can't be read.
        """
        try:
            found = self._store.read_optional(name)
        except TidelogError:
            found = None
        if found is None:
            raise error
        return found


def _info(
    state: TableState,
    actions: Sequence[Mapping[str, Any]],
    operation: str,
    parameters: Mapping[str, str],
    note: str | None,
    *,
    blind_append: bool,
) -> dict[str, Any]:
    now = unix_ms()
    info: dict[str, Any] = {}
    if _has_exact_times(state, actions):
        now = max(now, state.timestamp_ms + 1)
        info["inCommitTimestamp"] = now
    info |= {"timestamp": now, "operation": operation, "operationParameters": dict(parameters)}
    if state.version >= 0:
        info["readVersion"] = state.version
        if state.digest:
            info[PREVIOUS] = state.digest
    info |= {
        "isolationLevel": "Serializable",
        "isBlindAppend": blind_append,
        "engineInfo": ENGINE,
        "txnId": str(uuid.uuid4()),  # no two commits have the same content
    }
    if note is not None:
        info["userMetadata"] = note
    return info


def _has_exact_times(state: TableState, actions: Sequence[Mapping[str, Any]]) -> bool:
    """Does the table have in-commit timestamps, once the commit is done?"""
    configuration = {} if state.metadata is None else state.metadata.configuration
    for action in actions:
        if "metaData" in action:
            configuration = action["metaData"].get("configuration") or {}
    return configuration.get(IN_COMMIT_TIMESTAMPS) == "true"


# Checkpoints.

_INTERVAL: Final = 10  # commits, where the table has no delta.checkpointInterval
_SOONER, _ACTIONS_A_COMMIT = 20, 1_000
"""After a checkpoint the next one follows after this many commits, or as many as it has times these
actions: each commit costs every reader 0.3 ms, and a checkpoint us 2 µs an action.
"""

_TEXTS: Final = pa.map_(pa.string(), pa.string())
_VECTOR: Final = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_ADD: Final = pa.struct(
    [
        ("path", pa.string()),
        ("partitionValues", _TEXTS),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("tags", _TEXTS),
        ("deletionVector", _VECTOR),
        ("clusteringProvider", pa.string()),
        ("stats", pa.string()),
    ]
)
_REMOVE: Final = pa.struct(
    [
        ("path", pa.string()),
        ("deletionTimestamp", pa.int64()),
        ("dataChange", pa.bool_()),
        ("extendedFileMetadata", pa.bool_()),
        ("partitionValues", _TEXTS),
        ("size", pa.int64()),
        ("deletionVector", _VECTOR),
    ]
)
_OTHERS: Final = {
    "metaData": pa.struct(
        [
            ("id", pa.string()),
            ("name", pa.string()),
            ("description", pa.string()),
            ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
            ("schemaString", pa.string()),
            ("partitionColumns", pa.list_(pa.string())),
            ("configuration", _TEXTS),
            ("createdTime", pa.int64()),
        ]
    ),
    "protocol": pa.struct(
        [
            ("minReaderVersion", pa.int32()),
            ("minWriterVersion", pa.int32()),
            ("readerFeatures", pa.list_(pa.string())),
            ("writerFeatures", pa.list_(pa.string())),
        ]
    ),
    "txn": pa.struct(
        [("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]
    ),
    "domainMetadata": pa.struct(
        [("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())]
    ),
}
_OF_V2: Final = pa.struct([("version", pa.int64()), ("tags", _TEXTS)])


def is_checkpoint_due(state: TableState) -> bool:
    """Return True if a checkpoint of the table is due by ``delta.checkpointInterval``, or sooner
    because it costs little. Every writer checkpoints its own commits; if another one did not, we
    do.
    """
    assert state.metadata is not None
    interval = int(state.metadata.configuration.get("delta.checkpointInterval", _INTERVAL))
    newest = state.checkpoint
    commits = state.version + 1 if newest is None else state.version - newest.version
    if commits <= 0:
        return False
    actions = len(state.files) if newest is None else newest.actions
    if actions is not None and commits >= max(_SOONER, actions // _ACTIONS_A_COMMIT):
        return True
    return (state.version > 0 and state.version % interval == 0) or commits > 2 * interval


def write_checkpoint(store: FileStore, state: TableState) -> None:
    """Write a checkpoint of the state and record it in the state. Raises TableLeftOutError, as
    `TableState.check_commits` does: otherwise a checkpoint would contain what the log does not.
    """
    state.check_commits()
    assert state.protocol is not None
    assert state.metadata is not None
    arrays: dict[str, pa.Array] = {
        kind: pa.array(list(_bodies(kind, state)), type_) for kind, type_ in _OTHERS.items()
    }
    if state.metadata.configuration.get("delta.checkpointPolicy") == "v2":
        arrays["checkpointMetadata"] = pa.array([{"version": state.version, "tags": {}}], _OF_V2)
    arrays["add"] = _adds(state)
    arrays["remove"] = _tombstones(store, state, arrays["add"])
    count = sum(map(len, arrays.values()))
    sink = pa.BufferOutputStream()
    rows, tombstones_at = _stack_kinds(arrays), count - len(arrays["remove"])
    with pq.ParquetWriter(sink, rows.schema, compression="zstd", use_dictionary=False) as writer:
        # Groups of their own: delta-rs opens a table without those of tombstones.
        for part in (rows[:tombstones_at], rows[tombstones_at:]):
            if len(part):
                writer.write_table(part)
    data = sink.getvalue()
    files = CheckpointFiles(state.version, (f"{state.version:020d}.checkpoint.parquet",), count)
    store.put(f"{LOG_FOLDER}/{files.names[0]}", data.to_pybytes())
    failpoints.hit("delta.checkpoint.written")
    hint = {
        "version": state.version,
        "size": count,
        "sizeInBytes": data.size,
        "numOfAddFiles": len(state.files),
    }
    store.put(LAST_CHECKPOINT, json.dumps(hint).encode())
    state.record_checkpoint(files)


def _bodies(kind: str, state: TableState) -> Iterator[Mapping[str, Any]]:
    """Yield the actions of which a table has few."""
    if kind == "protocol" and state.protocol is not None:
        yield state.protocol.to_json()
    elif kind == "metaData" and state.metadata is not None:
        yield state.metadata.to_json()
    elif kind == "txn":
        for app, version in state.transactions.items():
            updated = state.transaction_times_ms[app]
            yield {"appId": app, "version": version, "lastUpdated": updated}
    elif kind == "domainMetadata":
        for name, text in state.domains.items():
            yield {"domain": name, "configuration": text, "removed": False}


def _adds(state: TableState) -> pa.Array:
    files = state.files.values()
    columns: dict[str, Sequence[Any]] = {
        "path": [each.path for each in files],
        "partitionValues": [list(each.partition_values.items()) for each in files],
        "size": [each.size for each in files],
        "modificationTime": [each.modification_time_ms for each in files],
        "dataChange": [False] * len(files),
        "tags": [None if each.tags is None else list(each.tags.items()) for each in files],
        "deletionVector": [
            None if each.deletion_vector is None else each.deletion_vector.to_json()
            for each in files
        ],
        "clusteringProvider": [each.clustering_provider for each in files],
        "stats": [each.stats for each in files],
    }
    arrays = [pa.array(columns[each.name], each.type) for each in _ADD]
    return pa.StructArray.from_arrays(arrays, fields=list(_ADD))


def _tombstones(store: FileStore, state: TableState, adds: pa.Array) -> pa.Array:
    """Return the tombstones that still protect files from VACUUM, which is their only purpose
    (protocol, "Action Reconciliation").

    Those are the newest tombstone of each data file, and of each file of vectors, that the table
    does not have any more. A file that the table has is protected by that, and gets a newer
    tombstone when it is removed. A batch gives new vectors to many files, all in one file of
    vectors: one of their tombstones is kept.
    """
    assert state.metadata is not None
    kept_ms = removed_files_ms(state.metadata.configuration)
    since_ms = None if kept_ms is None else unix_ms() - kept_ms
    found = tombstones(store, state.checkpoint, state.removed, since_ms)
    rows = [
        _newest(found, _paths(found), _paths(adds)),
        _newest(found, _vector_files(found), _vector_files(adds)),
    ]
    return found.take(pc.unique(pa.chunked_array(rows)).sort())


def _newest(found: pa.Array, keys: pa.Array, alive: pa.Array) -> pa.Array:
    """Return the last removed row of each key; none for keys that are ``alive`` or NULL."""
    times = pc.fill_null(pc.struct_field(found, "deletionTimestamp"), 0)
    rows = pa.table({"key": keys, "at": times, "row": pa.array(np.arange(len(keys)))})
    rows = rows.filter(pc.and_(pc.is_valid(keys), pc.invert(pc.is_in(keys, value_set=alive))))
    rows = rows.sort_by([("at", "ascending"), ("row", "ascending")])
    last = rows.group_by("key", use_threads=False).aggregate([("row", "last")])
    return last.column("row_last").combine_chunks()


def tombstones(
    store: FileStore,
    checkpoint: CheckpointFiles | None,
    removed: Sequence[Mapping[str, Any]],
    since_ms: int | None,
) -> pa.Array:
    """Return the ``remove`` actions of a checkpoint, and then those ``removed`` after it, as a
    struct array; only those later than ``since_ms``, if it is given.
    """
    parts = [] if checkpoint is None else read_tombstones(store, checkpoint)
    parts = [_cast_to(part, _REMOVE) for part in parts]
    parts.append(pa.array([{**each, "dataChange": False} for each in removed], _REMOVE))
    found = pa.concat_arrays(parts)
    if since_ms is None:
        return found
    times = pc.fill_null(pc.struct_field(found, "deletionTimestamp"), 0)
    return found.filter(pc.greater(times, since_ms))


def _paths(files: pa.Array) -> pa.Array:
    return pc.struct_field(files, "path")


def _vector_files(files: pa.Array) -> pa.Array:
    """Return the locations of files' vectors; NULL: there is no vector, or it is in the log."""
    vector = pc.struct_field(files, "deletionVector")
    storage = pc.struct_field(vector, "storageType")
    place = pc.binary_join_element_wise(storage, pc.struct_field(vector, "pathOrInlineDv"), ":")
    return pc.if_else(pc.equal(storage, "i"), None, place)


def _cast_to(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return a struct array with the fields of ``wanted``; missing fields are NULL."""
    if not pa.types.is_struct(wanted):
        return array.cast(wanted)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    by_name = {each.name: array.field(at) for at, each in enumerate(array.type)}
    columns = [
        _cast_to(by_name[each.name], each.type)
        if each.name in by_name
        else pa.nulls(len(array), each.type)
        for each in wanted
    ]
    return pa.StructArray.from_arrays(columns, fields=list(wanted), mask=array.is_null())


def _stack_kinds(arrays: Mapping[str, pa.Array]) -> pa.Table:
    """Return a row for each action: the column of its kind has it, the others are NULL."""
    total, start = sum(map(len, arrays.values())), 0
    columns = {}
    for kind, array in arrays.items():
        before, after = start, total - start - len(array)
        parts = [pa.nulls(before, array.type), array, pa.nulls(after, array.type)]
        columns[kind] = pa.chunked_array([part for part in parts if len(part)], array.type)
        start += len(array)
    return pa.table(columns)
