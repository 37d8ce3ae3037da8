"""Folds a batch of records to the newest state of every key, for copies by key.

Fewer rows are decoded than the batch has, and the order inside the batch is resolved here, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numba import njit

from tidelog.codecs.cell_positions import MISSING, Image, missing_indices
from tidelog.codecs.decode import Projection, project
from tidelog.codecs.wire_formats import parse
from tidelog.errors import DecodeError
from tidelog.model.records import Bools, Int32s, RecordKind, UInt8s
from tidelog.model.schema import TableSchema

_I, _U, _D, _T = (
    int(RecordKind.INSERT),
    int(RecordKind.UPDATE),
    int(RecordKind.DELETE),
    int(RecordKind.TRUNCATE),
)
_R, _A = int(RecordKind.DUMP_ROW), int(RecordKind.ABSENT)
_MISSING = -2
_FNV_PRIME = np.uint64(0x100000001B3)
_FNV_BASIS = np.uint64(0xCBF29CE484222325)
_MIX = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True, nogil=True)
def _hash(data, start, length, key_rows, i):  # type: ignore[no-untyped-def]
    h = _FNV_BASIS
    for r in key_rows:
        size = np.int64(length[r, i])
        h = (h ^ np.uint64(size + 1)) * _FNV_PRIME
        position = np.int64(start[r, i])
        for k in range(size):
            h = (h ^ np.uint64(data[position + k])) * _FNV_PRIME
    h = (h ^ (h >> np.uint64(32))) * _MIX
    return h ^ (h >> np.uint64(29))


@njit(cache=True, nogil=True)
def _same(data, start, length, i, other_start, other_length, j, key_rows):  # type: ignore[no-untyped-def]
    for r in key_rows:
        size = np.int64(length[r, i])
        if size != np.int64(other_length[r, j]):
            return False
        a = np.int64(start[r, i])
        b = np.int64(other_start[r, j])
        for k in range(size):
            if data[a + k] != data[b + k]:
                return False
    return True


@njit(cache=True, nogil=True)
def _key_missing(length, key_rows, i):  # type: ignore[no-untyped-def]
    for r in key_rows:  # noqa: SIM110 - numba has no any()
        if length[r, i] == _MISSING:
            return True
    return False


@njit(cache=True, nogil=True)
def link_entries(  # type: ignore[no-untyped-def]
    data, kind, first, key_rows, old_present, old_start, old_length, new_start, new_length,
    record, is_old, base, newest,
):  # fmt: skip
    """Add the records from ``first`` on to the key table.

    Fills for each entry ``record`` (int32), ``is_old`` (bool: a delete of the record's old key),
    ``base`` (int32: the entry whose state an upsert builds on, -1 if there is none) and ``newest``
    (bool: the last entry of its key).

    Returns:
        (entries, -1), or (0, row) for the first row whose key is not in its record.
    """
    capacity = 16
    while capacity < 3 * (len(kind) - first):
        capacity *= 2
    mask = np.uint64(capacity - 1)
    slots = np.full(capacity, -1, dtype=np.int32)  # the newest entry of the slot's key
    hashes = np.empty(capacity, dtype=np.uint64)
    entries = 0
    for i in range(first, len(kind)):
        what = kind[i]
        upsert = what in (_I, _U, _R)
        delete = False
        if upsert:
            if _key_missing(new_length, key_rows, i):
                return 0, i
            # An old tuple exists if the identity changed, is stored out of line, or is FULL.
            if old_present[i]:
                if _key_missing(old_length, key_rows, i):
                    return 0, i
                delete = not _same(
                    data, old_start, old_length, i, new_start, new_length, i, key_rows
                )
        else:
            if not old_present[i] or _key_missing(old_length, key_rows, i):
                return 0, i
            delete = True
        moved_from = -1
        for step in range(2):
            if step == 0:
                if not delete:
                    continue
                start, length = old_start, old_length
            else:
                if not upsert:
                    continue
                start, length = new_start, new_length
            h = _hash(data, start, length, key_rows, i)
            at = np.int64(h & mask)
            previous = -1
            while slots[at] >= 0:
                if hashes[at] == h:
                    other = slots[at]
                    j = record[other]
                    if is_old[other]:
                        equal = _same(data, start, length, i, old_start, old_length, j, key_rows)
                    else:
                        equal = _same(data, start, length, i, new_start, new_length, j, key_rows)
                    if equal:
                        previous = other
                        break
                at = (at + 1) & (capacity - 1)
            if previous >= 0:
                newest[previous] = False
            slots[at] = entries
            hashes[at] = h
            record[entries] = i
            is_old[entries] = step == 0
            newest[entries] = True
            base[entries] = -1
            if step == 0:
                moved_from = previous
            elif delete:
                base[entries] = moved_from
            elif what == _U:
                base[entries] = previous
            entries += 1
    return entries, -1


@njit(cache=True, nogil=True)
def collect(  # type: ignore[no-untyped-def]
    chosen, record, is_old, base, key_rows, old_start, old_length, new_start, new_length,
    out_start, out_length,
):  # fmt: skip
    """Collect the cells of the chosen entries; returns whether one of them stays missing.

    An upsert's missing cell is the last present one of the entries that it builds on; `MISSING` if
    they don't have it. A delete has only its key's cells.
    """
    rows = out_start.shape[0]
    missing = False
    for n in range(len(chosen)):
        entry = chosen[n]
        i = record[entry]
        if is_old[entry]:
            for r in range(rows):
                out_start[r, n] = 0
                out_length[r, n] = -1
            for r in key_rows:
                out_start[r, n] = old_start[r, i]
                out_length[r, n] = old_length[r, i]
            continue
        for r in range(rows):
            length = new_length[r, i]
            begin = new_start[r, i]
            if length == _MISSING:
                at = base[entry]
                while at >= 0 and not is_old[at]:
                    j = record[at]
                    if new_length[r, j] != _MISSING:
                        length = new_length[r, j]
                        begin = new_start[r, j]
                        break
                    at = base[at]
                if length == _MISSING:
                    missing = True
            out_start[r, n] = begin
            out_length[r, n] = length
    return missing


_NEGATIVE_ZERO = b"-0"


@dataclass(slots=True)
class KeyedChanges:
    """One row for each match key that the batch changes after its last truncate, by ascending
    version.

    A key change has two rows of one version: the old key's delete, then the new key's upsert.

    Attributes:
        op: string[n], ``u`` (insert or update: the key has this state) or ``d`` (the key is
            deleted).
        version: int64[n].
        rows: the target's columns; a delete has only the key's.
        missing: list<int16>[n], indices of the target's columns that no record of the batch
            contains (unchanged TOAST); null for a complete row. An incomplete row may only update
            the other columns of an existing row, never be inserted.
        truncated_at: version of the batch's last truncate, which removed everything before it; None
            if there is none.
    """

    op: pa.Array
    version: pa.Array
    rows: pa.RecordBatch
    missing: pa.Array
    truncated_at: int | None

    def __len__(self) -> int:
        return len(self.op)

    def to_batch(self, prefix: str = "_") -> pa.RecordBatch:
        """Flat: ``_op, _version``, the target's columns, ``_missing``. ``prefix`` must distinguish
        these three from the table's own columns.
        """
        names = [f"{prefix}op", f"{prefix}version", *self.rows.schema.names, f"{prefix}missing"]
        if len(set(names)) < len(names):
            raise DecodeError(f"a column of the table begins with {prefix!r}: use another prefix")
        columns = [self.op, self.version, *self.rows.columns, self.missing]
        return pa.RecordBatch.from_arrays(columns, names=names)


def fold(
    records: pa.RecordBatch, schema: TableSchema, target: TableSchema | None = None
) -> KeyedChanges:
    """Fold row changes that are all of ``schema`` to the newest state of each match key.

    Args:
        records: a batch in the event log's record layout, in log order.
        schema: the version that the records were written under; its `match_key` is compared by the
            bytes of the key's texts.
        target: the version of the result, as in `tidelog.codecs.decode.decode`.

    Raises:
        DecodeError: as `decode`; or the table has no key, or a record lacks it.
    """
    if not schema.match_key:
        raise DecodeError(f"{schema.table}: rows can't be folded by key: the table has none")
    projection = project(schema, target, extra=schema.match_key)
    key = [schema.column_index(name) for name in schema.match_key]
    cells = parse(records, schema, projection.wanted, old=True, old_columns=key)
    n = len(cells.kind)
    truncates = np.flatnonzero(cells.kind == RecordKind.TRUNCATE)
    first = int(truncates[-1]) + 1 if len(truncates) else 0
    key_rows = _key_rows(projection)
    old = cells.old or _no_image(len(projection.wanted), n)
    for row in _float_rows(projection):
        for image in (old, cells.new):
            _without_sign_of_zero(cells.data, image.start[row], image.length[row])
    # Entries: at most an old and a new key per record.
    record = np.empty(2 * n, dtype=np.int32)
    is_old = np.empty(2 * n, dtype=np.bool_)
    base = np.empty(2 * n, dtype=np.int32)
    newest = np.empty(2 * n, dtype=np.bool_)
    entries, bad = link_entries(
        cells.data, cells.kind, first, key_rows, old.present, old.start, old.length,
        cells.new.start, cells.new.length, record, is_old, base, newest,
    )  # fmt: skip
    if bad >= 0:
        raise DecodeError(
            f"{schema.table}: version {cells.version[bad]}: the record lacks a value of the key "
            f"({', '.join(schema.match_key)}); is the replica identity still that key?"
        )
    chosen = np.flatnonzero(newest[:entries]).astype(np.int32)
    start = np.empty((len(projection.wanted), len(chosen)), dtype=np.int32)
    length = np.empty_like(start)
    any_missing = collect(
        chosen, record, is_old, base, key_rows, old.start, old.length,
        cells.new.start, cells.new.length, start, length,
    )  # fmt: skip
    version = cells.version[record[chosen]]
    arrays = projection.arrays(cells.data, start, length, version)
    return KeyedChanges(
        op=_ops(is_old[chosen]),
        version=pa.array(version),
        rows=pa.RecordBatch.from_arrays(arrays, schema=pa.schema(projection.fields)),
        missing=_missing(projection, length, any_missing),
        truncated_at=int(cells.version[truncates[-1]]) if len(truncates) else None,
    )


def _key_rows(projection: Projection) -> Int32s:
    numbers = [projection.schema.column_index(name) for name in projection.schema.match_key]
    return np.array([projection.wanted.index(number) for number in numbers], dtype=np.int32)


def _float_rows(projection: Projection) -> list[int]:
    """The matrix rows of the match key's floating-point columns."""
    schema = projection.schema
    numbers = [schema.column_index(name) for name in schema.match_key]
    floats = [n for n in numbers if schema.columns[n].logical.startswith("float")]
    return [projection.wanted.index(number) for number in floats]


def _without_sign_of_zero(data: UInt8s, start: Int32s, length: Int32s) -> None:
    """Replace ``-0`` by the key ``0``: databases treat them as equal."""
    chosen = np.flatnonzero(length == len(_NEGATIVE_ZERO))
    for at, byte in enumerate(_NEGATIVE_ZERO):
        chosen = chosen[data[start[chosen] + at] == byte]
    start[chosen] += 1
    length[chosen] -= 1


def _no_image(columns: int, rows: int) -> Image:
    empty = np.empty((columns, 0), dtype=np.int32)
    return Image(empty, empty, np.zeros(rows, dtype=np.bool_))


def _ops(deleted: Bools) -> pa.Array:
    bounds = np.arange(len(deleted) + 1, dtype=np.int32)
    texts = np.where(deleted, np.uint8(ord("d")), np.uint8(ord("u")))
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(texts)]
    return pa.Array.from_buffers(pa.string(), len(deleted), buffers)


def _missing(projection: Projection, length: Int32s, any_missing: bool) -> pa.Array:
    rows = length.shape[1]
    if not any_missing:
        return missing_indices(None, rows)
    absent = np.zeros((rows, len(projection.outputs)), dtype=np.bool_)
    for number, output in enumerate(projection.outputs):
        if output.row >= 0:
            absent[:, number] = length[output.row] == MISSING
    return missing_indices(absent, rows)
