"""Decides which rows of a table a batch's changes replace, and which rows are written in their
place.

The rules are those of docs/internals/lake-rules.md; this module reads neither files nor values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidelog.model.records import Bools, Int64s
from tidelog.outputs.lake.settling.changes import ChangedRows

# Stands for a version that is null: older than any. Also for one that need not be known.
NO_VERSION = int(np.iinfo(np.int64).min)


@dataclass(frozen=True, slots=True)
class OldRows:
    """The table's n rows whose keys a batch changes, in any order; a key may have several.

    Attributes:
        key: int64[n], the number of the change of the row's key.
        version: int64[n], `NO_VERSION` where there is none or any is older than the change.
        deleted: bool[n], the row is marked as deleted.
    """

    key: Int64s
    version: Int64s
    deleted: Bools


@dataclass(frozen=True, slots=True)
class Decisions:
    """What happens to old rows and changes, by their numbers.

    Attributes:
        dies: bool[old rows], the row is removed.
        inserts: int64[], changes that become rows of keys that are not in the table.
        updates: int64[m], changes that become rows in place of old ones.
        updated: int64[m], the old row of each update, ascending; it has the change's missing
            columns.
        marks: int64[k], ascending, old rows that are written again, marked as deleted.
        mark_versions: int64[k], the versions that these then have.
    """

    dies: Bools
    inserts: Int64s
    updates: Int64s
    updated: Int64s
    marks: Int64s
    mark_versions: Int64s


def decide(changes: ChangedRows, old: OldRows, deleted_below: int, *, soft: bool) -> Decisions:
    """Decide about the old rows and the changes.

    Args:
        changes: one change for each key.
        old: all rows of these keys.
        deleted_below: as in `FoldedChanges`.
        soft: whether deleted rows stay, marked.
    """
    chosen = newest_rows(old)
    key, before = old.key[chosen], old.version[chosen]
    version, deletes = changes.version[key], changes.deletes[key]
    newer = (version > before) | (before == NO_VERSION)
    removed = deletes & (newer | (before < deleted_below) if deleted_below else newer)
    updated = ~deletes & newer
    if soft:
        # The values of a deleted row are not those of a row that was inserted again.
        updated &= ~(changes.partial[key] & old.deleted[chosen])
    dies = np.ones(len(old.key), np.bool_)
    dies[chosen] = removed | updated
    absent = np.ones(len(changes), np.bool_)
    absent[key] = False
    none = np.zeros(0, np.int64)
    return Decisions(
        dies=dies,
        inserts=np.flatnonzero(absent & ~changes.deletes & ~changes.partial),
        updates=key[updated],
        updated=chosen[updated],
        marks=chosen[removed] if soft else none,
        mark_versions=np.maximum(before, version)[removed] if soft else none,
    )


def newest_rows(old: OldRows) -> Int64s:
    """Returns int64[keys]: the row of each key with the highest version, the first of equal
    ones.
    """
    n = len(old.key)
    if not has_doubles(old.key):
        return np.arange(n)
    order = np.lexsort((-np.arange(n), old.version, old.key))
    last = np.append(old.key[order][1:] != old.key[order][:-1], True)
    return np.sort(order[last])


def has_doubles(key: Int64s) -> bool:
    """Returns True if a number is there twice (all are ≥ 0)."""
    return bool(len(key)) and int(np.bincount(key).max()) > 1
