"""Decides which rows a table of history gets from a batch's changes: one for each state of a key.

A state begins with the change that made it, and ends with the next change of its key, or when rows
are removed without a change of their own. The rules are those of docs/internals/lake-rules.md; this
module reads neither files nor values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numba import njit

from tidelog.model.records import Bools, Int64s
from tidelog.outputs.lake.settling.changes import NO_VERSION

NEVER = int(np.iinfo(np.int64).max)
"""Stands for the version where a state ends that has not ended."""

NO_TIME = int(np.iinfo(np.int64).min)
"""Stands for a time that is null: earlier than any."""


@dataclass(frozen=True, slots=True)
class Removals:
    """Truncates and complete dumps of the whole table, each of which ended all states that are
    older than a limit. Picklable.

    Attributes:
        at: int64[n], ascending, versions of their records in the log.
        below: int64[n], the limits: all states of a lower version ended.
        time: int64[n], times of their records, in microseconds since 1970 UTC.
    """

    at: Int64s
    below: Int64s
    time: Int64s

    @classmethod
    def of(cls, found: Iterable[tuple[int, int, int]]) -> Removals:
        """Return removals by their ``at``, ``below`` and ``time``, in any order."""
        rows = np.array(sorted(found), np.int64).reshape(-1, 3)
        return cls(rows[:, 0], rows[:, 1], rows[:, 2])

    def __len__(self) -> int:
        return len(self.at)

    @property
    def limit(self) -> int:
        """States of this version or a higher one are not ended by any removal."""
        return int(self.below.max(initial=0))

    def first_after(self, version: Int64s) -> Int64s:
        """Return int64[n]: the first removal that ended a state of each version; -1: none. A state
        without a version (`NO_VERSION`) is not removed, like rows of a copy.
        """
        limits = np.maximum.accumulate(self.below)
        found = np.searchsorted(limits, version, side="right")
        found[(found == len(limits)) | (version == NO_VERSION)] = -1
        return found


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries of the histories of some keys, in any order. An entry is the open row of a key in the
    table, or a change of the key in the batch.

    Attributes:
        key: int64[n], the key's number.
        version: int64[n], the version of the last record that showed the entry; `NO_VERSION`: it
            has none.
        time: int64[n], when it happened, in microseconds since 1970 UTC; `NO_TIME`: unknown.
        state: bool[n], True: from then on the key has a row. False: the key was deleted.
    """

    key: Int64s
    version: Int64s
    time: Int64s
    state: Bools


@dataclass(frozen=True, slots=True)
class Chains:
    """Open rows and newer changes, sorted by key and then by version.

    Attributes:
        source: int64[n], the number of each entry before sorting: first come the open rows, then
            the changes.
        entries: the sorted entries.
        removal: int64[n], the number of the removal that ended the entry's state before the key's
            next entry; -1: none did.
        left: int64[n], for a change that moved a row to another key: the position of the entry that
            deleted the row's former key; -1: the entry is no such change.
    """

    source: Int64s
    entries: Entries
    removal: Int64s
    left: Int64s

    @classmethod
    def of(
        cls, rows: Entries, changes: Entries, removals: Removals, left: Int64s | None = None
    ) -> Chains:
        """Return the chains.

        Args:
            rows: open rows, one for a key at most.
            changes: changes, a key's in the order in which they happened. Those that are not newer
                than the key's row are left out.
            removals: as in the batch.
            left: int64[changes], the number of the change that deleted the key which the row had
                before this one; -1, None: the change of no row's key.
        """
        known = np.full(max(_size(rows.key), _size(changes.key)), NO_VERSION, np.int64)
        known[rows.key] = rows.version
        newer = np.flatnonzero(changes.version > known[changes.key])
        source = np.concatenate([np.arange(len(rows.key)), len(rows.key) + newer])
        whole = Entries(
            *(
                np.concatenate([of_rows, of_changes[newer]])
                for of_rows, of_changes in (
                    (rows.key, changes.key),
                    (rows.version, changes.version),
                    (rows.time, changes.time),
                    (rows.state, changes.state),
                )
            )
        )
        order = np.lexsort((whole.version, whole.key))  # stable
        entries = _taken(whole, order)
        removal = removals.first_after(entries.version)
        removal[~entries.state] = -1  # there is nothing to remove
        n = len(order)
        until = np.full(n, NEVER, np.int64)
        if n:
            same = entries.key[1:] == entries.key[:-1]
            until[:-1][same] = entries.version[1:][same]
        chosen = np.flatnonzero(removal >= 0)
        lasted = removals.at[removal[chosen]] > until[chosen]
        removal[chosen[lasted]] = -1
        source = source[order]
        position = np.full(len(rows.key) + len(changes.key) + 1, -1, np.int64)
        position[source] = np.arange(n)
        of_change = np.full(len(changes.key), -1, np.int64) if left is None else left
        # The last number stands for -1.
        of_change = np.where(of_change < 0, -1, of_change + len(rows.key))
        given = np.concatenate([np.full(len(rows.key), -1, np.int64), of_change])
        return cls(source, entries, removal, position[given[source]])

    def __len__(self) -> int:
        return len(self.source)

    @property
    def same_key(self) -> Bools:
        """bool[n]: the entry before is of the same key."""
        key = self.entries.key
        return np.concatenate([np.zeros(min(1, len(key)), np.bool_), key[1:] == key[:-1]])

    @property
    def follows(self) -> Bools:
        """bool[n]: the entry before is of the same key, and its state held until this entry."""
        found = self.same_key
        found[1:] &= self.entries.state[:-1] & (self.removal[:-1] < 0)
        return found

    def known(self, missing: Bools) -> Int64s:
        """Return int64[n]: for each entry the position of the newest entry up to it, in the same
        history, that has the column's value; -1: none has it. A history continues under another
        key.

        Args:
            missing: bool[n], the entry does not have the column's value.
        """
        at, follows = np.arange(len(self)), self.follows
        before = np.where(follows, at - 1, -1)
        moved = np.flatnonzero((self.left >= 0) & ~follows)
        before[moved] = before[self.left[moved]]
        found = np.where(missing, before, at)
        while True:  # each time from twice as far
            further = np.where(found < 0, -1, found[found])
            if (further == found).all():
                return found
            found = further

    def only(self, kept: Bools) -> Chains:
        """Return the chains without the entries that are not ``kept``. Ask `known` before."""
        at = np.flatnonzero(kept)
        none = np.full(len(at), -1, np.int64)
        return Chains(self.source[at], _taken(self.entries, at), self.removal[at], none)


@dataclass(frozen=True, slots=True)
class StateRows:
    """The n rows of chains, by key and version.

    Attributes:
        first: int64[n], the position of the entry that began the state: the row has its values.
        version: int64[n], of the last entry that showed the state.
        valid_from: int64[n], when it began, in microseconds since 1970 UTC; `NO_TIME`: not known.
        valid_to: int64[n], when it ended; `NO_TIME`: it has not.
        to_version: int64[n], where it ended; `NEVER`: it has not.
        confirmed: bool[n], later entries showed the state once more.
    """

    first: Int64s
    version: Int64s
    valid_from: Int64s
    valid_to: Int64s
    to_version: Int64s
    confirmed: Bools

    def __len__(self) -> int:
        return len(self.first)

    def taken(self, at: Int64s) -> StateRows:
        """Return the rows at these positions, in this order."""
        return StateRows(
            self.first[at],
            self.version[at],
            self.valid_from[at],
            self.valid_to[at],
            self.to_version[at],
            self.confirmed[at],
        )


def states_of(chains: Chains, same: Bools, removals: Removals) -> StateRows:
    """Return the rows of chains, whose states are complete.

    Args:
        chains: the chains.
        same: bool[n], the entry follows a state with the same values.
        removals: as in the batch.
    """
    entries, removal, n = chains.entries, chains.removal, len(chains)
    begins = entries.state & ~same
    first = np.flatnonzero(begins)
    # The last entry of a state: those that show it once more come directly after it.
    whole = np.append(np.flatnonzero(~same), n)
    last = whole[np.searchsorted(whole, first, side="right")] - 1
    same_key = np.append(chains.same_key, False)
    time = _times(chains, same, removals)
    valid_to, to_version = np.full(len(first), NO_TIME), np.full(len(first), NEVER)
    ended = np.flatnonzero(same_key[last + 1])
    valid_to[ended] = time[last[ended] + 1]
    to_version[ended] = entries.version[last[ended] + 1]
    gone = np.flatnonzero(removal[last] >= 0)
    by = removal[last[gone]]
    valid_to[gone] = np.maximum(removals.time[by], time[first[gone]])
    to_version[gone] = removals.at[by]
    return StateRows(
        first=first,
        version=entries.version[last],
        valid_from=time[first],
        valid_to=valid_to,
        to_version=to_version,
        confirmed=last > first,
    )


def _times(chains: Chains, same: Bools, removals: Removals) -> Int64s:
    """Return int64[n]: the times of entries that begin or end a state; never earlier than those of
    the key's entries before. Clocks may be set back, and dumps have another clock than changes.
    """
    entries, removal = chains.entries, chains.removal
    matters = (entries.state & ~same) | chains.follows
    time = np.where(matters & ~same, entries.time, NO_TIME)
    cut = np.flatnonzero(removal[:-1] >= 0)
    cut = cut[chains.same_key[cut + 1]]
    time[cut + 1] = np.maximum(time[cut + 1], removals.time[removal[cut]])
    _never_back(time, chains.same_key)
    return time


@njit(cache=True, nogil=True)
def _never_back(time: Int64s, same_key: Bools) -> None:
    for at in range(1, len(time)):
        if same_key[at] and time[at] < time[at - 1]:
            time[at] = time[at - 1]


def _taken(entries: Entries, at: Int64s) -> Entries:
    return Entries(entries.key[at], entries.version[at], entries.time[at], entries.state[at])


def _size(numbers: Int64s) -> int:
    return int(numbers.max(initial=-1)) + 1
