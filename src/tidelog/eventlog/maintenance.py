"""Roll-up, retention and quarantine: all operations that free the names of segments.

A leader that wakes up late must not overwrite what its successor has rolled up. On a local disk all
operations run under one lock, which a frozen process keeps and a dead one loses. An object store
has no such lock; there, each replacement is conditional: only what was read is replaced.
``chain.json`` is replaced first and names the roll-up that follows, so two of them never overlap: a
process that finds one begun finishes it first, with the same bytes. Deletes need no condition,
because a freed name never belongs to a segment again.

Before a name is freed, ``chain.json`` gets a greater revision: readers with a cached chain then
walk it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Final

import pyarrow as pa

from tidelog.errors import EventLogError, StorageError
from tidelog.eventlog.chain import Chain, ChainReader
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.log_files import ChainState, Merging, load_log, store_chain_state
from tidelog.eventlog.segments import (
    SegmentFile,
    SegmentMeta,
    encode_segment,
    first_offset_of,
    is_segment_name,
    payload_bytes,
)
from tidelog.eventlog.storage import storage_at
from tidelog.eventlog.storage_port import Guard, Storage
from tidelog.system import failpoints
from tidelog.system.processes import unix_ms

_LOCK: Final = "maintenance"
_MERGED_BATCH_BYTES: Final = 4 << 20
_MERGE_AT_MOST: Final = 1024  # segments; bounds the list of merged ones in the metadata


@dataclass(frozen=True, slots=True)
class SweepResult:
    """``deleted``: remains of an interrupted roll-up or retention; ``quarantined``: new names."""

    deleted: list[str]
    quarantined: list[str]


class EventLogMaintenance:
    """Maintenance for the leader. If another process holds the local lock, calls do nothing."""

    def __init__(
        self,
        storage: Storage | str | Path,
        check_lease: Guard | None = None,
        chain: ChainReader | None = None,
    ) -> None:
        """``chain``: a reader for this object only, with a cached chain."""
        if isinstance(storage, (str, Path)):
            storage = storage_at(storage)
        self._storage: Storage = storage
        self._reader = ChainReader(storage, load_log(storage)) if chain is None else chain
        self._check_lease: Guard = check_lease or (lambda: None)

    def rollup(
        self,
        *,
        target_bytes: int,
        min_age_s: float = 60.0,
        min_segments: int = 8,
        now_ms: int | None = None,
    ) -> int:
        """Merge runs of small consecutive segments; returns how many segments were removed.

        Never the tail, which a writer builds on. A crash at any point leaves the log as it was or
        rolled up; the next call cleans up.

        Args:
            target_bytes: payload of a merged segment; segments above half of it are not merged.
            min_age_s: age in seconds; younger segments are not merged.
            min_segments: length; shorter runs are not merged, unless they reach half of
                ``target_bytes``.
            now_ms: the time, for tests.
        """
        youngest_ms = _now_ms(now_ms) - int(min_age_s * 1000)
        removed = 0
        with self._storage.exclusive(_LOCK) as entered:
            if not entered:
                return 0
            chain = self._finish_rollup()
            state, tag = chain.state, chain.state_tag
            for run in _runs(chain, target_bytes, youngest_ms, min_segments):
                merged = _merged_meta(run, token_hex(8))
                data = encode_segment(merged, self._records(run))
                self._check_lease()
                merging = Merging(merged.first, merged.next, merged.nonce)
                state = ChainState(state.head, state.revision + 1, merging)
                tag = store_chain_state(self._storage, state, tag)
                failpoints.hit("rollup.before_replace")
                self._merge(run, merged, data)
                removed += len(run) - 1
        return removed

    def retain(
        self,
        max_age_s: float,
        *,
        hard_cap_age_s: float | None = None,
        hard_cap_bytes: int | None = None,
        now_ms: int | None = None,
    ) -> int:
        """Delete segments older than ``max_age_s`` that no consumer needs; returns the new head
        offset.

        Args:
            max_age_s: seconds since a segment was written; of a rolled-up one: its youngest part.
            hard_cap_age_s: older segments are deleted even if a registered consumer needs them.
            hard_cap_bytes: while more payload than this is kept, the oldest segments are deleted.
            now_ms: the time, for tests.
        """
        now_ms = _now_ms(now_ms)
        with self._storage.exclusive(_LOCK) as entered:
            if not entered:
                return self._reader.refresh().head
            chain = self._finish_rollup()
            needed = min(
                (consumer.offset for consumer in Consumers(self._storage).all()),
                default=chain.next,
            )
            kept_bytes = sum(segment.payload_bytes for segment in chain.segments)
            count = 0
            for segment in chain.segments[:-1]:
                age_s = (now_ms - segment.created_ms) / 1000
                expired = age_s > max_age_s and segment.next <= needed
                capped = (hard_cap_age_s is not None and age_s > hard_cap_age_s) or (
                    hard_cap_bytes is not None and kept_bytes > hard_cap_bytes
                )
                if not (expired or capped):
                    break
                kept_bytes -= segment.payload_bytes
                count += 1
            if not count:
                return chain.head
            head = chain.segments[count].first
            self._check_lease()
            state = ChainState(head, chain.state.revision + 1)
            store_chain_state(self._storage, state, chain.state_tag)
            failpoints.hit("retention.after_head")
            # Oldest first: what a crash leaves then is still linked to the head and recognized.
            for segment in chain.segments[:count]:
                self._check_lease()
                self._storage.delete(segment.name)
                failpoints.hit("retention.after_delete")
            return head

    def quarantine_strays(self) -> SweepResult:
        """Move segments that are not on the chain to ``quarantine/``. They come from writers that
        woke up late. Remains of an interrupted roll-up or retention are deleted.
        """
        with self._storage.exclusive(_LOCK) as entered:
            return self._sweep() if entered else SweepResult([], [])

    def _sweep(self) -> SweepResult:
        swept = SweepResult([], [])
        chain = self._reader.walk()
        if chain.tail is None:
            return swept
        on_chain = {segment.name for segment in chain.segments}
        # Names above the tail are ignored: they were appended after the walk.
        suspects = [
            name
            for name in self._storage.names()
            if is_segment_name(name) and name not in on_chain and name < chain.tail.name
        ]
        if not suspects:
            return swept
        retained = {segment.identity for segment in _leftovers(self._reader, chain)}
        for name in suspects:
            self._check_lease()
            try:
                meta = self._reader.meta(name)
                cover = chain.covering(first_offset_of(name))
                known = meta.identity in retained or (
                    cover is not None and meta.identity in cover.merged
                )
            except FileNotFoundError:
                continue
            except StorageError:
                raise
            except EventLogError:
                known = False
            if known:
                self._storage.delete(name)
                swept.deleted.append(name)
            else:
                with suppress(FileNotFoundError):  # another process was first
                    swept.quarantined.append(self._storage.quarantine(name))
            failpoints.hit("sweep.after_file")
        return swept

    def _finish_rollup(self) -> Chain:
        """The chain, after strays were removed and an unfinished roll-up was finished."""
        self._sweep()
        chain = self._reader.walk()
        merging = chain.state.merging
        run = [] if merging is None else chain.between(merging.first, merging.next)
        if merging is None or not run or run[0].nonce == merging.nonce:
            return chain
        merged = _merged_meta(run, merging.nonce)
        if (merged.first, merged.next) != (merging.first, merging.next):
            raise EventLogError(
                f"{self._storage!r}: offsets {merging.first} to {merging.next} were to be rolled "
                "up, but segments begin or end inside of them. Do two captures write one log?"
            )
        self._merge(run, merged, encode_segment(merged, self._records(run)))
        return self._reader.walk()

    def _merge(self, run: Sequence[SegmentMeta], merged: SegmentMeta, data: pa.Buffer) -> None:
        try:
            tag, stored = self._reader.meta_with_tag(merged.name)
        except FileNotFoundError:
            raise self._conflict(merged.name) from None
        if stored.nonce != merged.nonce:  # else another process finished it
            same = stored.identity == run[0].identity
            if not same or not self._storage.replace_if(merged.name, data, tag, self._check_lease):
                raise self._conflict(merged.name)
        failpoints.hit("rollup.after_replace")
        for segment in run[1:]:
            self._check_lease()
            self._storage.delete(segment.name)
            failpoints.hit("rollup.after_delete")

    def _records(self, run: Sequence[SegmentMeta]) -> Iterator[pa.RecordBatch]:
        pending: list[pa.RecordBatch] = []
        pending_bytes = 0
        for segment in run:
            try:
                file = SegmentFile(self._storage, segment.name)
            except FileNotFoundError:
                raise self._conflict(segment.name) from None
            if file.meta.identity != segment.identity:
                raise self._conflict(segment.name)
            for batch in file.batches():
                pending.append(batch.replace_schema_metadata(None))
                pending_bytes += payload_bytes(batch)
                if pending_bytes >= _MERGED_BATCH_BYTES:
                    yield pa.concat_batches(pending)
                    pending, pending_bytes = [], 0
        if pending:
            yield pa.concat_batches(pending)

    def _conflict(self, name: str) -> StorageError:
        return StorageError(
            f"{self._storage!r}: segment {name} was rolled up by another process in the meantime. "
            "Roll-up is retried in the next round."
        )


def _leftovers(reader: ChainReader, chain: Chain) -> list[SegmentMeta]:
    """Segments before the head that retention was about to delete, newest first."""
    tags = reader.storage.tags()
    names = [name for name in tags if is_segment_name(name)]
    result: list[SegmentMeta] = []
    segment = chain.segments[0] if chain.segments else None
    while segment is not None and segment.pred is not None:
        predecessor = reader.find_predecessor(segment, names, tags)
        segment = predecessor if isinstance(predecessor, SegmentMeta) else None
        if segment is not None:
            result.append(segment)
    return result


def _now_ms(now_ms: int | None) -> int:
    return unix_ms() if now_ms is None else now_ms


def _runs(
    chain: Chain, target_bytes: int, youngest_ms: int, min_segments: int
) -> Iterator[list[SegmentMeta]]:
    """Runs of consecutive segments to merge, in log order."""
    run: list[SegmentMeta] = []
    size = 0

    def worthwhile() -> bool:
        return len(run) > 1 and (len(run) >= min_segments or 2 * size >= target_bytes)

    for segment in chain.segments[:-1]:
        if segment.created_ms > youngest_ms:
            break
        large = 2 * segment.payload_bytes > target_bytes
        full = size + segment.payload_bytes > target_bytes or len(run) == _MERGE_AT_MOST
        if large or full:
            if worthwhile():
                yield run
            run, size = [], 0
        if not large:
            run.append(segment)
            size += segment.payload_bytes
    if worthwhile():
        yield run


def _merged_meta(run: Sequence[SegmentMeta], nonce: str) -> SegmentMeta:
    """The metadata of ``run`` as one segment, which replaces its links in the chain."""
    first, last = run[0], run[-1]
    rows_by_table: dict[str, int] = {}
    rows_by_schema: dict[int, int] = {}
    for segment in run:
        for table, rows in segment.rows_by_table.items():
            rows_by_table[table] = rows_by_table.get(table, 0) + rows
        for schema_id, rows in segment.rows_by_schema.items():
            rows_by_schema[schema_id] = rows_by_schema.get(schema_id, 0) + rows
    kinds = {segment.kind for segment in run}
    low = [s.min_xid for s in run if s.min_xid is not None]
    high = [s.max_xid for s in run if s.max_xid is not None]
    return replace(
        last,
        kind=kinds.pop() if len(kinds) == 1 else "log",
        nonce=nonce,
        pred=first.pred,
        tail=last.tail,
        first=first.first,
        next=last.next,
        first_position=next((s.first_position for s in run if s.first_position is not None), None),
        last_position=next(
            (s.last_position for s in reversed(run) if s.last_position is not None), None
        ),
        min_xid=min(low, default=None),
        max_xid=max(high, default=None),
        rows=sum(segment.rows for segment in run),
        rows_by_table=rows_by_table,
        rows_by_schema=rows_by_schema,
        payload_bytes=sum(segment.payload_bytes for segment in run),
        chunks=tuple(chunk for segment in run for chunk in segment.chunks),
        merged=tuple(segment.identity for segment in run),
        unused=tuple(each for segment in run for each in segment.unused),
    )
