"""Reads checkpoints: classic, multi-part and UUID-named ones, with their sidecars (Delta protocol,
"Checkpoints" and "Checkpoint Schema").
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.errors import TableLeftOutError
from tidelog.outputs.base.stores.port import FileStore
from tidelog.outputs.lake.delta_log.actions import DataFile, DeletionVector
from tidelog.outputs.lake.delta_log.log_files import (
    FOLDER,
    SIDECARS,
    CheckpointFiles,
    parse_actions,
)

_FEW: Final = ("protocol", "metaData", "txn", "domainMetadata", "sidecar")
"""Actions of which a table has few."""
_OF_FILES: Final = (
    "path", "partitionValues", "size", "modificationTime", "stats", "deletionVector", "tags",
    "clusteringProvider",
)  # fmt: skip


@dataclass
class Checkpoint:
    """Actions of a checkpoint, without tombstones.

    Attributes:
        actions: ``protocol``, ``metaData``, ``txn`` and ``domainMetadata``, as in a commit.
        files: the table's files.
        sidecars: names of the files, below the table, with its ``add`` and ``remove`` actions;
            empty: the checkpoint contains them itself.
    """

    actions: list[dict[str, Any]] = field(default_factory=list)
    files: list[DataFile] = field(default_factory=list)
    sidecars: list[str] = field(default_factory=list)


def read_checkpoint(store: FileStore, found: CheckpointFiles) -> Checkpoint:
    """Read a checkpoint. Raises TableLeftOutError for one in an unknown format."""
    checkpoint = Checkpoint()
    for name in found.names:
        _read(store, f"{FOLDER}/{name}", checkpoint)
    for name in checkpoint.sidecars:
        _read(store, name, checkpoint)
    return checkpoint


def read_tombstones(store: FileStore, found: CheckpointFiles) -> list[pa.Array]:
    """Returns struct arrays of the ``remove`` actions in the checkpoint, as it has them."""
    arrays = []
    names = [f"{FOLDER}/{name}" for name in found.names]
    for name in names:  # the list grows by sidecars
        if name.endswith(".json"):
            actions = _lines(store, name)
            removes = [each["remove"] for each in actions if "remove" in each]
            arrays.append(pa.array(removes) if removes else pa.nulls(0))
            sidecars = [each["sidecar"] for each in actions if "sidecar" in each]
        else:
            with _open_parquet(store, name) as file:
                arrays.append(_read_kind(file, "remove"))
                sidecars = _read_kind(file, "sidecar").to_pylist()
        names += map(_sidecar, sidecars)
    return [array for array in arrays if len(array)]


def _read(store: FileStore, name: str, into: Checkpoint) -> None:
    if name.endswith(".json"):
        for action in _lines(store, name):
            (kind, body), *_ = action.items()
            if kind == "add":
                into.files.append(DataFile.parse(body))
            elif kind in _FEW:
                _take(kind, body, into)
        return
    with _open_parquet(store, name) as file:
        for kind in _FEW:
            for body in _read_kind(file, kind).to_pylist(maps_as_pydicts="strict"):
                _take(kind, _without_nulls(body), into)
        into.files += _files(_read_kind(file, "add", _OF_FILES))


def _take(kind: str, body: dict[str, Any], into: Checkpoint) -> None:
    if kind == "sidecar":
        into.sidecars.append(_sidecar(body))
    else:
        into.actions.append({kind: body})


def _sidecar(body: Mapping[str, Any]) -> str:
    """Returns the sidecar's name below the table; it is in one folder, whatever its path."""
    return f"{SIDECARS}/{unquote(body['path']).rpartition('/')[2]}"


def _lines(store: FileStore, name: str) -> list[dict[str, Any]]:
    try:
        return list(parse_actions(store.read(name)))
    except ValueError:
        raise unreadable(store, name) from None


class _open_parquet:  # noqa: N801 - used as a function
    """Opens a Parquet file of the log; turns its errors into TableLeftOutError."""

    def __init__(self, store: FileStore, name: str) -> None:
        self._store, self._name = store, name

    def __enter__(self) -> pq.ParquetFile:
        try:
            source = self._store.open_input(self._name)
            self._file = pq.ParquetFile(source, pre_buffer=True)
        except pa.ArrowInvalid:
            raise unreadable(self._store, self._name) from None
        return self._file

    def __exit__(self, kind: Any, error: BaseException | None, _trace: Any) -> None:
        self._file.close(force=True)
        if isinstance(error, pa.ArrowInvalid):
            raise unreadable(self._store, self._name) from None


def unreadable(store: FileStore, name: str) -> TableLeftOutError:
    """Returns the error for a damaged file of the log."""
    return TableLeftOutError(
        f"{store.path}/{name} can't be read: it is damaged. Restore the file, or move the table "
        "away and dump it again."
    )


def _read_kind(file: pq.ParquetFile, kind: str, fields: Sequence[str] = ()) -> pa.Array:
    """Returns the actions of a kind: a struct array without NULLs, of ``fields`` if given."""
    schema = file.schema_arrow
    at = schema.get_field_index(kind)
    if at < 0:
        return pa.nulls(0, pa.struct([]))
    wanted = [kind]
    if fields:
        existing = [each.name for each in schema.field(at).type]
        wanted = [f"{kind}.{name}" for name in fields if name in existing]
        if "stats" not in existing and "stats_parsed" in existing:
            wanted.append(f"{kind}.stats_parsed")
    chunks = file.read(columns=wanted).column(kind).chunks
    whole = pa.concat_arrays(chunks) if chunks else pa.nulls(0, schema.field(at).type)
    return whole.filter(whole.is_valid())


def _files(adds: pa.Array) -> Iterator[DataFile]:
    columns = {each.name: adds.field(index) for index, each in enumerate(adds.type)}
    none = pa.nulls(len(adds))
    if "stats" in columns or "stats_parsed" not in columns:
        stats = columns.get("stats", none).to_pylist()
    else:
        parsed = columns["stats_parsed"].to_pylist()
        stats = [None if each is None else stats_text(each) for each in parsed]
    return map(
        DataFile,
        columns.get("path", none).to_pylist(),
        (each or {} for each in _few(columns.get("partitionValues", none))),
        columns.get("size", none).to_pylist(),
        columns.get("modificationTime", none).to_pylist(),
        stats,
        (
            None if each is None else DeletionVector.parse(each)
            for each in _few(columns.get("deletionVector", none))
        ),
        _few(columns.get("tags", none)),
        columns.get("clusteringProvider", none).to_pylist(),
    )


def _few(column: pa.Array) -> list[Any]:
    """Returns maps and structs, of which most are NULL or empty: as dictionaries, else None."""
    found: list[Any] = [None] * len(column)
    existing = column.is_valid()
    if pa.types.is_map(column.type):
        existing = pc.greater(pc.fill_null(_map_sizes(column), 0), 0)
    rows = np.flatnonzero(existing.to_numpy(zero_copy_only=False))
    for row, each in zip(
        rows.tolist(), column.take(pa.array(rows)).to_pylist(maps_as_pydicts="strict"), strict=True
    ):
        found[row] = each
    return found


def _map_sizes(column: pa.Array) -> pa.Array:
    entries = pa.ListArray.from_arrays(column.offsets, column.keys)
    return pc.list_value_length(entries)


def stats_text(parsed: Mapping[str, Any]) -> str:
    """Returns a file's statistics as the JSON text of a commit, from their columns in a
    checkpoint.
    """
    return json.dumps(
        _without_nulls(parsed), ensure_ascii=False, separators=(",", ":"), default=_json_value
    )


def _json_value(value: Any) -> Any:
    """Converts by protocol, "Per-file Statistics": times in milliseconds, decimals as numbers."""
    if isinstance(value, datetime):
        at = value.astimezone(UTC) if value.tzinfo else value
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"no statistics of type {type(value).__name__}")


def _without_nulls(value: Any) -> Any:
    """Remove NULL fields: in actions they mean the same as missing ones, except in values
    of maps.
    """
    if isinstance(value, Mapping):
        return {k: _without_nulls(each) for k, each in value.items() if each is not None}
    return value
