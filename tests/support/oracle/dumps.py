"""The history oracle's part about dumps: is every chunk whole, in its place and read once?

Pure: chunks with the offsets of their rows, what commands did and when, and the source's state at
each chunk's place (`History.check_order` has it) come in as values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from tests.support.oracle.values import Change, Key

from tidelog.model.records import ChunkMeta

SortKey = Callable[[str, Sequence[str | None]], object]
"""Puts a table's keys in the source's order; keys that the source takes for equal are equal."""

REFETCH = "reread"


class DumpError(AssertionError):
    """What is wrong with a dump, and the keys to show the history of."""

    def __init__(self, what: str, table: str, keys: Iterable[Key] = ()) -> None:
        super().__init__(what)
        self.table = table
        self.keys = list(keys)


@dataclass(frozen=True, slots=True)
class PlacedChunk:
    """A chunk and the offsets ``[first, next)`` of its rows."""

    first: int
    next: int
    meta: ChunkMeta


@dataclass(frozen=True, slots=True)
class Asked:
    """What a dump was asked for, where that is not the whole table.

    Attributes:
        keys: given keys, distinct, in order.
        lists: keys that the table lacks are listed, and no record tells of them. After a crash such
            a chunk is read again, because the list may lack them.
        where: the condition, of a table and a key.
    """

    keys: Sequence[Key] | None = None
    lists: bool = False
    where: Callable[[str, Key], bool] | None = None


@dataclass(frozen=True, slots=True)
class Standstill:
    """A time in which a dump, or only some tables of it, had to stand still.

    Attributes:
        dump_id: the dump.
        tables: those that stand still; empty: all.
        what: ``paused`` or ``cancelled``.
        since: a mark of the source (`OracleSource.mark`) after the command had been acted on.
        until: one before the dump was to go on; None: for ever.
        under_way: how many chunks may still have been given to readers.
    """

    dump_id: str
    tables: tuple[str, ...]
    what: str
    since: int
    until: int | None = None
    under_way: int = 0


class Sight(Protocol):
    """What the SELECT of a chunk saw."""

    def sees(self, xid: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Seen:
    """A snapshot of PostgreSQL as its text says."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def of(cls, text: str) -> Seen:
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def sees(self, xid: int) -> bool:
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)


@dataclass(slots=True)
class ChunkRules:
    """Holds each chunk against the source's state at its place, as the event log is gone through.

    Args:
        chunks: as the event log's metadata tells them, in order of their offsets.
        asked: by dump id; a dump that is not named reads whole tables.
        sort_key: see `SortKey`.
        sight: of a snapshot's text.
        blocking: ids of dumps that read at one place; another attempt stands at another place.
    """

    chunks: Sequence[PlacedChunk]
    asked: Mapping[str, Asked]
    sort_key: SortKey
    sight: Callable[[str], Sight] = Seen.of
    blocking: Collection[str] = ()
    superseded: int = 0
    checked: int = 0
    read_again: Collection[str] = ()
    _at: int = 0
    _touches: dict[tuple[str, Key], list[int]] = field(default_factory=dict)
    _truncates: dict[str, list[int]] = field(default_factory=dict)
    _emitted: dict[str, set[Key]] = field(default_factory=dict)
    _rows: Counter[tuple[str, str, str, Key]] = field(default_factory=Counter)
    _sorted: dict[tuple[str, Key], object] = field(default_factory=dict)

    def on_change(self, record: Change) -> None:
        """A record of the source's log was emitted."""
        if record.op == "T":
            self._truncates.setdefault(record.table, []).append(record.xid)
            return
        for key in {record.old_key, record.new_key}:
            if key is not None:
                self._touches.setdefault((record.table, key), []).append(record.xid)

    def on_dump_row(self, record: Change, rows: Mapping[Key, object]) -> None:
        """A dump's record was emitted; ``rows``: the table's at this place."""
        while self._at < len(self.chunks) and self.chunks[self._at].next <= record.offset:
            self._at += 1
        if self._at == len(self.chunks) or record.offset < self.chunks[self._at].first:
            return  # rolled up before its metadata was seen
        chunk = self.chunks[self._at]
        meta = chunk.meta
        key = record.new_key if record.op == "r" else record.old_key
        assert key is not None
        if meta.table != record.table:
            raise DumpError(f"chunk {meta.chunk_id} holds a row of {record.table}", record.table)
        emitted = self._emitted.setdefault(meta.chunk_id, set())
        if not emitted:
            self._check_bounds(meta)
        emitted.add(key)
        if meta.dump_id != REFETCH and not self._in(meta)(key):
            raise DumpError(
                f"chunk {meta.low_key} to {meta.high_key} of dump {meta.dump_id} holds the row "
                f"{key} of {meta.table}",
                meta.table,
                [key],
            )
        asked = self.asked.get(meta.dump_id)
        if meta.dump_id not in (REFETCH, *self.read_again) and not (asked and asked.lists):
            attempt = meta.low_watermark if meta.dump_id in self.blocking else ""
            place = (meta.dump_id, meta.table, attempt, key)
            self._rows[place] += 1
            if self._rows[place] > 1:
                raise DumpError(
                    f"dump {meta.dump_id} gave {meta.table} {key} twice", meta.table, [key]
                )
        if record.offset == chunk.next - 1:
            self._check_whole(meta, emitted, rows)

    def _check_bounds(self, meta: ChunkMeta) -> None:
        low, high = meta.low_key, meta.high_key
        if low is None or high is None:
            return
        if not self.sort_key(meta.table, low) < self.sort_key(meta.table, high):  # type: ignore[operator]
            raise DumpError(f"chunk {meta.chunk_id} reads from {low} to {high}", meta.table)

    def _check_whole(self, meta: ChunkMeta, emitted: set[Key], rows: Mapping[Key, object]) -> None:
        """What the chunk lacks of the table as of its place was changed by what it can't see."""
        asked = self.asked.get(meta.dump_id)
        if not (asked and asked.lists):
            count = meta.rows_read - meta.rows_superseded
            if count != len(emitted):
                raise DumpError(
                    f"chunk {meta.chunk_id} of {meta.table} read {meta.rows_read} rows, "
                    f"{meta.rows_superseded} superseded, and gave {len(emitted)}",
                    meta.table,
                )
        if meta.dump_id == REFETCH:
            return
        self.checked += 1
        snapshot = self.sight(meta.snapshot)
        if any(not snapshot.sees(xid) for xid in self._truncates.get(meta.table, ())):
            return
        belongs = self._in(meta)
        lost = [
            key
            for key in rows
            if key not in emitted and belongs(key) and not self._touched(meta.table, key, snapshot)
        ]
        if lost:
            raise DumpError(
                f"chunk {meta.low_key} to {meta.high_key} of dump {meta.dump_id}, read under "
                f"{meta.snapshot}, lacks {len(lost)} rows of {meta.table} that nothing supersedes; "
                f"the first is {lost[0]}",
                meta.table,
                lost[:1],
            )
        self.superseded += meta.rows_superseded

    def _touched(self, table: str, key: Key, snapshot: Sight) -> bool:
        return any(not snapshot.sees(xid) for xid in self._touches.get((table, key), ()))

    def _in(self, meta: ChunkMeta) -> Callable[[Key], bool]:
        asked, table = self.asked.get(meta.dump_id, Asked()), meta.table
        if asked.keys is not None:
            first = int(meta.order)
            mine = asked.keys[first : first + meta.keys_requested]
            given = {self.sort_key(table, key) for key in mine}
            return lambda key: self._order(table, key) in given
        low = None if meta.low_key is None else self.sort_key(table, meta.low_key)
        high = None if meta.high_key is None else self.sort_key(table, meta.high_key)

        def belongs(key: Key) -> bool:
            place = self._order(table, key)
            return (
                (low is None or place > low)  # type: ignore[operator]
                and (high is None or place <= high)  # type: ignore[operator]
                and (asked.where is None or asked.where(table, key))
            )

        return belongs

    def _order(self, table: str, key: Key) -> object:
        found = self._sorted.get((table, key))
        if found is None:
            found = self._sorted[table, key] = self.sort_key(table, key)
        return found


# ---------------------------------------------------------------- chunks


def check_chunks(
    chunks: Iterable[ChunkMeta],
    asked: Mapping[str, Asked],
    sort_key: SortKey,
    blocking: Collection[str] = (),
) -> int:
    """No completed chunk was read twice: what the chunks of one dump and table read never overlaps,
    and sorts as their orders do. Returns how many chunks there are.
    """
    chunks = list(chunks)
    twice = [chunk_id for chunk_id, n in Counter(c.chunk_id for c in chunks).items() if n > 1]
    if twice:
        raise DumpError(f"chunk {twice[0]} was appended twice", "")
    ranges: dict[tuple[str, str, str], list[ChunkMeta]] = {}
    for chunk in chunks:
        if chunk.dump_id != REFETCH:
            attempt = chunk.low_watermark if chunk.dump_id in blocking else ""
            ranges.setdefault((chunk.dump_id, chunk.table, attempt), []).append(chunk)
    for (dump_id, table, attempt), found in ranges.items():
        if found[0].keys_requested:
            if not asked.get(dump_id, Asked()).lists:
                _check_key_chunks(dump_id, table, found)
            continue
        if not attempt:
            found.sort(key=lambda c: c.order)
        for before, after in pairwise(found):
            high, low = before.high_key, after.low_key
            if high is None or low is None or sort_key(table, high) > sort_key(table, low):  # type: ignore[operator]
                raise DumpError(
                    f"dump {dump_id} read {table} twice between chunks {before.chunk_id} and "
                    f"{after.chunk_id}: {high} and {low}",
                    table,
                )
    return len(chunks)


def _check_key_chunks(dump_id: str, table: str, chunks: list[ChunkMeta]) -> None:
    chunks.sort(key=lambda c: c.order)
    for before, after in pairwise(chunks):
        if before.order + before.keys_requested > after.order:
            raise DumpError(
                f"dump {dump_id} read keys of {table} twice: {before.order:g} and "
                f"{before.keys_requested} following, and from {after.order:g} on",
                table,
            )


def check_standstills(
    chunks: Iterable[ChunkMeta],
    standstills: Iterable[Standstill],
    begun_at: Callable[[ChunkMeta], int],
) -> int:
    """A dump that is paused or cancelled begins no chunk. Returns how many times were checked.

    ``begun_at``: when a chunk was read, to be compared with a standstill's marks.
    """
    times = [(chunk, begun_at(chunk)) for chunk in chunks]
    checked = 0
    for still in standstills:
        begun = [
            chunk
            for chunk, at in times
            if chunk.dump_id == still.dump_id
            and (not still.tables or chunk.table in still.tables)
            and at > still.since
            and (still.until is None or at <= still.until)
        ]
        if len(begun) > still.under_way:
            raise DumpError(
                f"dump {still.dump_id} is {still.what} and begins {len(begun)} chunks, of "
                f"{sorted({chunk.table for chunk in begun})}; under way were {still.under_way}",
                "",
            )
        checked += 1
    return checked
