"""Settles a batch's changes of a table of history: closes states that ended, and writes new ones.

The rules are in docs/internals/lake-rules.md. Files that have only rows of ended
states are not searched for keys. Runs in tasks: writes data files, commits nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from tidelog.model.records import Bools, Int64s
from tidelog.outputs.base.stores import FileStore
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.keys import KeyQuery, canonical
from tidelog.outputs.lake.data_files.layout import (
    CURRENT,
    VALID_FROM,
    VALID_FROM_VERSION,
    VALID_TO,
    VALID_TO_VERSION,
    FileLayout,
)
from tidelog.outputs.lake.data_files.look_up import KeyIndexCache, RowFinder
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter
from tidelog.outputs.lake.settling.changes import (
    NO_VERSION,
    ChangedRows,
    FoldedChanges,
    OldRows,
    newest_rows,
)
from tidelog.outputs.lake.settling.history import (
    NEVER,
    NO_TIME,
    Chains,
    Entries,
    Removals,
    StateRows,
    states_of,
)
from tidelog.outputs.lake.settling.rows import (
    RowBuffer,
    RowPositions,
    VersionBounds,
    is_closed,
    kept_values,
)
from tidelog.outputs.lake.settling.settle import ChangeFeedWriter, SettledChanges, bitmap_of
from tidelog.spark.formats.shapes import EVENT_SOURCE

# Equal values.


def equal_values(left: pa.Array, right: pa.Array) -> Bools:
    """Return bool[n]: which values are equal; null is equal to null, and NaN to NaN, but −0.0 is
    not 0.0; maps are equal with their entries in one order. Values of a type that can't be compared
    are different.

    Args:
        left: n values.
        right: as many, of the same type.
    """
    kind = left.type
    if pa.types.is_map(kind):
        entries = pa.list_(pa.struct([kind.key_field, kind.item_field]))
        return _equal_lists(left.cast(entries), right.cast(entries))
    if pa.types.is_list(kind):
        return _equal_lists(left, right)
    if pa.types.is_struct(kind):
        found = _flags(pc.equal(left.is_valid(), right.is_valid()))
        for ours, theirs in zip(left.flatten(), right.flatten(), strict=True):
            found &= equal_values(ours, theirs)
        return found
    try:
        same = pc.equal(left, right)
    except pa.ArrowNotImplementedError:
        return np.zeros(len(left), np.bool_)
    found = _flags(same.fill_null(False)) | _both(left.is_null(), right.is_null())
    if pa.types.is_floating(kind):
        signs = (np.signbit(each.fill_null(0).to_numpy()) for each in (left, right))
        found &= np.equal(*signs)
        found |= _both(pc.is_nan(left).fill_null(False), pc.is_nan(right).fill_null(False))
    return found


def _equal_lists(left: pa.Array, right: pa.Array) -> Bools:
    lengths = [
        pc.list_value_length(each).fill_null(-1).to_numpy(zero_copy_only=False)
        for each in (left, right)
    ]
    found: Bools = lengths[0] == lengths[1]
    at = np.flatnonzero(found & (lengths[0] > 0))
    ours, theirs = (each.take(pa.array(at)).flatten() for each in (left, right))
    of_row = np.repeat(at, lengths[0][at])
    found[of_row[~equal_values(ours, theirs)]] = False
    return found


def _both(left: pa.Array, right: pa.Array) -> Bools:
    return _flags(pc.and_(left, right))


def _flags(values: pa.Array) -> Bools:
    found: Bools = values.to_numpy(zero_copy_only=False).astype(np.bool_)
    return found


# States.


def settle_history(
    events: pa.Table | None,
    files: Sequence[DataFile],
    store: FileStore,
    layout: FileLayout,
    columns: Sequence[str],
    cache: KeyIndexCache,
    removals: Removals,
) -> SettledChanges:
    """Decide about the rows of all keys that the events change, and write the new ones.

    Args:
        events: changes (shape `events`, `tidelog.spark.formats.shapes`, with the names of missing
            columns, without truncates), a key's in the order of their versions; None: none. They
            may be a part of the batch's, while other tasks settle those of other keys.
        files: all files of the table.
        store: the store of the table.
        layout: the table's layout.
        columns: columns that the events deliver.
        cache: the files' keys; receives those of the new files.
        removals: the batch's. Rows of other keys are left to `settle_removals`.
    """
    writing = _HistoryWriter(store, layout, cache)
    if events is None or not len(events):
        return writing.close({}, 0)
    changed = ChangedRows.of(FoldedChanges(events), layout, columns)
    key, first = _numbered([changed.values.column(name) for name in layout.key], layout)
    keys = changed.values.select(list(layout.key)).take(pa.array(first))
    reader = DataFileReader(store, layout, cache.rows)
    places = _open_places(files, keys, store, layout, cache)
    old = _OldStates.read(places, reader, layout)
    commits = events.column(EVENT_SOURCE).combine_chunks().field("commit_ts")
    changes = Entries(
        key, changed.version, commits.to_numpy(zero_copy_only=False), ~changed.deletes
    )
    chains = Chains.of(old.entries, changes, removals, _left(changed))
    chains, values = _complete(chains, old.rows, changed)
    same = _repeated(chains, values, layout)
    states = states_of(chains, same, removals)

    of_old = chains.source[states.first]
    is_old = of_old < len(old.rows)
    has_ended = states.to_version != NEVER
    unchanged = is_old & ~has_ended & ~states.confirmed
    dies = np.ones(len(places.key), np.bool_)
    dies[old.place[of_old[unchanged]]] = False
    written = np.flatnonzero(~unchanged)
    rows = _rows(states.taken(written), chains, values, old, layout)
    writing.add(rows)
    if writing.feed is not None:
        replaces = is_old[written]
        before = old.rows.take(pa.array(of_old[written][replaces]))
        writing.feed.add_updates(before, rows.filter(pa.array(replaces)))
        writing.feed.add_inserts(rows.filter(pa.array(~replaces)))
        surplus = np.setdiff1d(np.arange(len(places.key)), old.place)
        names = layout.schema.names
        writing.feed.add_deletes(places.read(surplus, names, reader, layout))
    dead = {file.path: bitmap_of(at) for file, at in places.by_file(np.flatnonzero(dies))}
    return writing.close(dead, len(events))


def settle_removals(
    files: Sequence[DataFile],
    store: FileStore,
    layout: FileLayout,
    cache: KeyIndexCache,
    removals: Removals,
    dead: Mapping[str, bytes],
) -> SettledChanges:
    """Close the rows of keys that the batch removed and did not change.

    Args:
        files: all files of the table.
        store: the store of the table.
        layout: the table's layout.
        cache: the files' keys.
        removals: the batch's.
        dead: by path of a file, the rows that all results of `settle_history` remove (see
            `SettledChanges`): every row of a changed key below a removal is among them.
    """
    writing = _HistoryWriter(store, layout, cache)
    reader = DataFileReader(store, layout, cache.rows)
    closed: dict[str, BitMap] = {}
    for file in files:
        numbers = _removed(file, removals, dead.get(file.path), reader, layout)
        if not len(numbers):
            continue
        before = reader.read(file, None, numbers)
        version = _longs(before, layout.version)
        began = _longs(before, VALID_FROM)
        by = removals.first_after(version)
        valid_to = np.maximum(removals.time[by], began)
        after = _with(before, _endings(valid_to, removals.at[by]), layout)
        writing.add(after)
        if writing.feed is not None:
            writing.feed.add_updates(before, after)
        closed[file.path] = bitmap_of(numbers)
    return writing.close(closed, 0)


class _HistoryWriter:
    """Writes one task's rows: open and closed ones to one file, as a file costs more than rows."""

    def __init__(self, store: FileStore, layout: FileLayout, cache: KeyIndexCache) -> None:
        self._added = RowBuffer(ParquetFileWriter(store, layout, cache=cache))
        self.feed = ChangeFeedWriter(store, layout) if layout.change_feed else None

    def add(self, rows: pa.Table) -> None:
        self._added.add(rows)

    def close(self, dead: Mapping[str, BitMap], rows: int) -> SettledChanges:
        return SettledChanges(
            added=self._added.close(),
            dead={path: numbers.serialize() for path, numbers in dead.items()},
            change_files=() if self.feed is None else self.feed.close(),
            rows=rows,
        )


@dataclass(frozen=True, slots=True)
class _OldStates:
    """The open rows of n keys.

    Attributes:
        rows: all columns.
        place: int64[n], ascending, the position of each among those that were found.
        entries: what they say.
    """

    rows: pa.Table
    place: Int64s
    entries: Entries

    @classmethod
    def read(cls, places: RowPositions, reader: DataFileReader, layout: FileLayout) -> _OldStates:
        """Return the newest row of each key."""
        found = np.arange(len(places.key))
        rows = places.read(found, layout.schema.names, reader, layout)
        version = _longs(rows, layout.version)
        newest = newest_rows(OldRows(places.key, version, np.zeros(len(found), np.bool_)))
        if len(newest) < len(found):
            rows, version = rows.take(pa.array(newest)), version[newest]
        state = np.ones(len(newest), np.bool_)
        entries = Entries(places.key[newest], version, _longs(rows, VALID_FROM), state)
        return cls(rows, newest, entries)


def _open_places(
    files: Sequence[DataFile],
    keys: pa.Table,
    store: FileStore,
    layout: FileLayout,
    cache: KeyIndexCache,
) -> RowPositions:
    """Return the open rows of the keys."""
    searched = [file for file in files if not is_closed(file, layout)]
    if not searched:
        return RowPositions.of([])
    return RowPositions.of(RowFinder(store, layout, cache).find(searched, KeyQuery(keys, layout)))


def _numbered(columns: Sequence[pa.ChunkedArray], layout: FileLayout) -> tuple[Int64s, Int64s]:
    """Return int64[n], a number for each row's key, from 0 on; and int64[keys], a row of each.
    Numbers of a key that is one integer are in its order, as files are: nothing is sorted then.
    """
    if len(columns) == 1 and pa.types.is_integer(columns[0].type) and not columns[0].null_count:
        _, first, codes = np.unique(columns[0].to_numpy(), return_index=True, return_inverse=True)
        return codes, first
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values = canonical(column.combine_chunks()).dictionary_encode(null_encoding="encode")
        codes = codes * len(values.dictionary) + np.asarray(values.indices)
        codes = np.unique(codes, return_inverse=True)[1]
    _, first = np.unique(codes, return_index=True)
    return codes, first


def _left(changed: ChangedRows) -> Int64s:
    """Return int64[n]: for each change of a key the index of the delete of the old key, which is
    the change before it; -1 for other changes.
    """
    version, deletes = changed.version, changed.deletes
    found = np.full(len(version), -1, np.int64)
    moved = np.flatnonzero((version[1:] == version[:-1]) & deletes[:-1] & ~deletes[1:])
    found[moved + 1] = moved
    return found


def _complete(chains: Chains, old: pa.Table, changed: ChangedRows) -> tuple[Chains, pa.Table]:
    """Return the chains with their delivered values, where a value that a change does not have is
    that of the state before; without changes whose rows are not known as a whole.
    """
    known: dict[str, Int64s] = {}
    complete = np.ones(len(chains), np.bool_)
    for name in set(changed.missing) & set(changed.values.column_names):
        missing = np.concatenate([np.zeros(len(old), np.bool_), changed.missing[name]])
        known[name] = chains.known(missing[chains.source])
        complete &= ~chains.entries.state | (known[name] >= 0)
    at, whole = np.arange(len(chains)), chains
    if not complete.all():
        at, chains = at[complete], chains.only(complete)
    columns = {}
    for name in changed.values.column_names:
        positions = known[name][at] if name in known else at
        source = pa.array(whole.source[positions], mask=positions < 0)
        given, before = changed.values.column(name), old.column(name)
        both = pa.chunked_array([*before.chunks, *given.chunks], given.type)
        columns[name] = both.take(source)
    return chains, pa.table(columns)


def _repeated(chains: Chains, values: pa.Table, layout: FileLayout) -> Bools:
    """Return bool[n]: the entry follows a state with the same values."""
    same = chains.follows & chains.entries.state
    at = np.flatnonzero(same)
    if not len(at):
        return same
    for name in values.column_names:
        if name not in layout.key and len(at):
            column = values.column(name)
            pair = [column.take(pa.array(each)).combine_chunks() for each in (at - 1, at)]
            equal = equal_values(*pair)
            same[at[~equal]] = False
            at = at[equal]
    return same


def _rows(
    states: StateRows, chains: Chains, values: pa.Table, old: _OldStates, layout: FileLayout
) -> pa.Table:
    """Return the rows with all columns of the layout. Columns that changes do not deliver are null
    in rows of new states.
    """
    of_old = chains.source[states.first]
    is_new = of_old >= len(old.rows)
    began = chains.entries.version[states.first].copy()
    before = _longs(old.rows, VALID_FROM_VERSION)
    began[~is_new] = before[of_old[~is_new]]
    own = {
        layout.version: pa.array(states.version, mask=states.version == NO_VERSION),
        VALID_FROM: _instants(states.valid_from),
        VALID_FROM_VERSION: pa.array(began, mask=began == NO_VERSION),
        **_endings(states.valid_to, states.to_version),
    }
    first, kept = pa.array(states.first), np.where(is_new, -1, of_old)
    columns = []
    for column in layout.columns:
        name = column.name
        if name in own:
            columns.append(own[name])
        elif name in values.column_names:
            columns.append(values.column(name).take(first))
        else:
            columns.append(kept_values(old.rows, column, kept))
    return pa.Table.from_arrays(columns, schema=layout.schema)


def _endings(valid_to: Int64s, to_version: Int64s) -> dict[str, pa.Array]:
    """Return the columns that say whether states have ended."""
    is_open = to_version == NEVER
    return {
        VALID_TO: _instants(np.where(is_open, NO_TIME, valid_to)),
        VALID_TO_VERSION: pa.array(to_version, mask=is_open),
        CURRENT: pa.array(is_open),
    }


def _removed(
    file: DataFile,
    removals: Removals,
    dead: bytes | None,
    reader: DataFileReader,
    layout: FileLayout,
) -> Int64s:
    """Return the numbers of the file's open rows that removals end."""
    none = np.zeros(0, np.int64)
    bounds = VersionBounds.of(file, layout)
    if is_closed(file, layout):
        return none
    if bounds and (bounds.lowest >= removals.limit or bounds.highest == NO_VERSION):
        return none
    rows = reader.read(file, [layout.version, VALID_TO_VERSION])
    found = removals.first_after(_longs(rows, layout.version)) >= 0
    found &= rows.column(VALID_TO_VERSION).is_null().to_numpy()
    found[reader.deleted_rows(file)] = False
    if dead is not None:
        found[np.asarray(BitMap.deserialize(dead).to_array())] = False
    return np.flatnonzero(found)


def _with(rows: pa.Table, columns: Mapping[str, pa.Array], layout: FileLayout) -> pa.Table:
    arrays = [columns.get(name, rows.column(name)) for name in layout.schema.names]
    return pa.Table.from_arrays(arrays, schema=layout.schema)


def _longs(rows: pa.Table, name: str) -> Int64s:
    """Return int64[n]; `NO_VERSION`, which is also `NO_TIME`, where it is null."""
    found: Int64s = rows.column(name).cast(pa.int64()).fill_null(NO_VERSION).to_numpy()
    return found


def _instants(time: Int64s) -> pa.Array:
    return pa.array(time, mask=time == NO_TIME).cast(pa.timestamp("us", "UTC"))
