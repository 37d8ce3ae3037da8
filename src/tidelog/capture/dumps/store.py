"""Stores dumps, their progress and the options for reading chunks."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tidelog.capture.dumps.refetch_queue import REFETCH_DUMP_ID, KeySets, missing_set
from tidelog.capture.dumps.state import (
    FINISHED_TABLES,
    TABLE_GONE,
    UNFINISHED_DUMPS,
    DumpInput,
    DumpState,
    DumpStatus,
    Key,
    Rejected,
    TableProgress,
    TableStatus,
    asks_for_all,
    whole_table,
)
from tidelog.capture.source_monitor import UnansweredRequests
from tidelog.capture.state_writes import DeferredWrites
from tidelog.errors import UsageError
from tidelog.model.dump_options import DumpMode, DumpOptions
from tidelog.model.records import ChunkMeta
from tidelog.ports import StateStore
from tidelog.system.processes import unix_ms

DUMP_PREFIX = "dump/"
AUTOMATIC = "auto-"
"""Prefix of the ids of dumps that capture requests because rows changed without row events."""
CATCH_UP = "catch-up-"
"""Prefix of the ids of dumps that outputs need."""
OWN = ("start-", "gap-", CATCH_UP)
"""Prefixes of the ids of other dumps that no user requests."""
OPTIONS_KEY = "dump-options"
KEEP_FINISHED = 500  # dumps; a request for a kept id is not executed again
STORE_EVERY_S = 0.2
EVENTS_KEPT = 200


@dataclass(slots=True)
class Counters:
    """Counts since start, for status and the demo."""

    chunks: int = 0
    rows: int = 0
    superseded: int = 0
    failed: int = 0
    voided: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LogView:
    """What the event log has: ``now`` returns its end, ``holds`` whether it still has what was at
    an offset. It does not if an older copy was restored, or its end was lost.
    """

    now: Callable[[], int]
    holds: Callable[[int], bool]


class DumpStore:
    """All dumps, as stored. Guarded by the coordinator's lock, except `load` and `flush`, which
    call the state store: changes made under the lock are durable after the next `flush`.
    """

    def __init__(self, state: StateStore, options: DumpOptions) -> None:
        self._state = state
        self._changes = DeferredWrites(state)
        self._defaults = options
        self._set: dict[str, Any] = {}  # options that were set at run time
        self._dumps: dict[str, DumpState] = {}
        self._changed: set[str] = set()
        self._end: LogView | None = None
        self._stored_at = 0.0
        self._key_sets = KeySets(state)
        self.flush = self._changes.flush
        """Make all changes durable; call it without the lock."""
        self.after = self._changes.call
        """Call a function once earlier changes are durable, and before later ones."""
        self.keys_of = self._key_sets.slice
        """The keys of a set; calls the state store, so call it without the lock."""
        self.options = options
        self.counters = Counters()
        self.chunks_read = UnansweredRequests()
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)

    def load(self) -> None:
        stored = self._state.get(OPTIONS_KEY)
        self._set = {} if stored is None else dict(stored.value)
        self.options = self._defaults.model_copy(update=self._set)
        documents = map(self._state.get, self._state.keys(DUMP_PREFIX))
        dumps = [
            DumpState.from_json(document.value) for document in documents if document is not None
        ]
        self._dumps = {dump.dump_id: dump for dump in dumps}

    def reconcile(
        self, chunks: Iterable[tuple[int, ChunkMeta]], end: LogView | None = None
    ) -> None:
        """Reset progress that the event log does not hold any more, and add the chunks that it
        holds beyond what is stored.
        """
        self._end = end
        changed: dict[str, DumpState] = {}
        for dump in self.ahead_of_log():
            if not dump.finished and dump.mode == "incremental":
                dump.reset_progress(end.holds if end is not None else lambda _: True)
                changed[dump.dump_id] = dump
        for offset, meta in chunks:
            found = None if meta.dump_id == REFETCH_DUMP_ID else self._dumps.get(meta.dump_id)
            if found is None or found.finished or found.mode == "blocking":
                continue
            for progress in found.tables:
                first = progress.first_offset
                # it belongs to an earlier dump of this id, or an earlier reading of the table
                if first is None or offset < max(first, progress.begun_offset):
                    continue
                if progress.table == meta.table and _add(progress, meta):
                    progress.chunks += 1
                    progress.rows_read += meta.rows_read
                    progress.rows_superseded += meta.rows_superseded
                    changed[found.dump_id] = found
        for dump in changed.values():
            self.store(dump)

    def ahead_of_log(self) -> list[DumpState]:
        """Dumps that were stored when the event log held more than it does now."""
        end = self._end
        return [] if end is None else [d for d in self.all() if not end.holds(d.rests_on)]

    def request(
        self,
        dump_id: str,
        tables: list[TableProgress],
        *,
        mode: DumpMode,
        reason: str,
        now_ms: int,
        rejected: Sequence[Rejected] = (),
        priority: int = 0,
    ) -> DumpState:
        """Queue a dump, or return the existing one of that id."""
        if dump_id in self._dumps:
            return self._dumps[dump_id]
        number = 1 + max((d.number for d in self._dumps.values()), default=0)
        dump = DumpState(
            dump_id=dump_id,
            number=number,
            tables=tables,
            mode=mode,
            reason=reason,
            requested_ms=now_ms,
            rejected=list(rejected),
            priority=priority,
        )
        self._dumps[dump_id] = dump
        self.store(dump)
        return dump

    def join_pending(self, table: str, reason: str) -> str | None:
        """The id of a queued dump that has not begun to read the table and will read all of it,
        noted as due for ``reason``; None: there is none.
        """
        for dump in self.all():
            if dump.finished or not all(whole_table(t) for t in dump.tables):
                continue
            for progress in dump.tables:
                if progress.table == table and progress.status is TableStatus.PENDING:
                    progress.due = progress.due or reason
                    self.store(dump)
                    return dump.dump_id
        return None

    def request_due(self, table: str, reason: str, now_ms: int) -> str:
        """Join a queued dump, or queue another; returns its id."""
        pending = self.join_pending(table, reason)
        if pending is not None:
            return pending
        dump_id = f"{AUTOMATIC}{uuid.uuid4().hex[:12]}"
        tables = [TableProgress(table)]
        self.request(dump_id, tables, mode="incremental", reason=reason, now_ms=now_ms)
        return dump_id

    def all(self) -> list[DumpState]:
        """All dumps, in the order of their requests."""
        return sorted(self._dumps.values(), key=lambda dump: dump.number)

    def selected(self, dump_id: str | None, statuses: Collection[DumpStatus]) -> list[DumpState]:
        """The dump of that id, or all if None, in one of ``statuses``."""
        if dump_id is not None and dump_id not in self._dumps:
            raise UsageError(f"there is no dump {dump_id!r}; `tidelog status` lists them")
        return [
            d
            for d in self.all()
            if d.status in statuses and (dump_id is None or d.dump_id == dump_id)
        ]

    def pause(self, dump_id: str | None, by: str, now_ms: int) -> list[DumpState]:
        selected = self.selected(dump_id, UNFINISHED_DUMPS - {DumpStatus.PAUSED})
        if dump_id is not None and any(dump.mode == "blocking" for dump in selected):
            raise UsageError(
                f"dump {dump_id!r} is blocking: the log waits for it, so it can't be paused; "
                "cancel it instead"
            )
        selected = [dump for dump in selected if dump.mode != "blocking"]
        for dump in selected:
            dump.paused_by, dump.paused_ms = by, now_ms
        return self._change(selected, DumpInput.PAUSE)

    def resume(self, dump_id: str | None) -> list[DumpState]:
        paused = self.selected(dump_id, {DumpStatus.PAUSED})
        for dump in paused:
            dump.paused_by, dump.paused_ms = "", None
            begun = any(
                t.started_ms is not None or t.status is not TableStatus.PENDING for t in dump.tables
            )
            self._change([dump], DumpInput.RESUME if begun else DumpInput.RESUME_UNBEGUN)
        return paused

    def set_options(self, **changes: int) -> DumpOptions:
        self.options = self.options.model_copy(update=changes)
        self._set = {**self._set, **changes}
        self._changes.put(OPTIONS_KEY, self._set)
        return self.options

    def finish_if_done(self, dump: DumpState) -> bool:
        """Finish the dump if all its tables have ended, and delete the oldest finished ones."""
        finishes = not dump.finished and all(t.status in FINISHED_TABLES for t in dump.tables)
        if finishes:
            done = any(t.status is TableStatus.DONE for t in dump.tables)
            dump.transition(DumpInput.TABLES_ENDED if done else DumpInput.NONE_DONE)
            dump.finished_ms = unix_ms()
            self.store(dump)  # before its keys are deleted: it could not be resumed without them
            unfinished = [d for d in self._dumps.values() if not d.finished]
            used = {table.key_set for other in unfinished for table in other.tables}
            for table in dump.tables:
                # There may be many, and they are not needed any more.
                if table.key_set is not None and table.key_set not in used:
                    self._delete_keys(table.key_set)
            finished = [d for d in self.all() if d.finished and d.reason != "initial"]
            kept = self._later_than_initial(finished) | self._last_failed(finished)
            for old in finished[:-KEEP_FINISHED]:
                if old.dump_id in kept:
                    continue
                del self._dumps[old.dump_id]
                self._changes.delete(DUMP_PREFIX + old.dump_id)
                self._delete_keys(missing_set(old.dump_id))
        return finishes

    def _later_than_initial(self, finished: Iterable[DumpState]) -> set[str]:
        """The newest dumps of tables that failed in the initial one, which is kept for ever:
        without them those tables would be requested again.
        """
        failed = {
            table.table
            for dump in self._dumps.values()
            if dump.reason == "initial"
            for table in dump.tables
            if table.status is TableStatus.FAILED
        }
        return set(
            {
                table.table: dump.dump_id
                for dump in finished
                for table in dump.tables
                if table.table in failed and asks_for_all(table)
            }.values()
        )

    def _last_failed(self, finished: Iterable[DumpState]) -> set[str]:
        """The tables' newest dumps that failed: shown until one succeeds."""
        last = {
            table.table: (dump.dump_id, table)
            for dump in finished
            for table in dump.tables
            if asks_for_all(table)
        }
        failed = [
            dump_id
            for dump_id, table in last.values()
            if table.status is TableStatus.FAILED and table.reason != TABLE_GONE
        ]
        return set(failed[-KEEP_FINISHED:])

    def summary(self, finished: int) -> dict[str, Any]:
        """For status: options, counters, unfinished dumps and the last ``finished``.

        Automatic dumps are counted apart, so that they displace no others: the last ``finished`` of
        each table's newest ones.
        """
        dumps = self.all()
        done = [dump for dump in dumps if dump.finished]
        automatic = {d.tables[0].table: d for d in done if d.dump_id.startswith(AUTOMATIC)}
        newest = sorted(automatic.values(), key=lambda dump: dump.number)
        others = [dump for dump in done if not dump.dump_id.startswith(AUTOMATIC)]
        recent = {dump.dump_id for dump in [*newest[-finished:], *others[-finished:]]}
        return {
            "dump_options": self.options.model_dump(),
            "dump_counters": asdict(self.counters),
            "chunks_unanswered": self.chunks_read.summary(),
            "dumps": [
                dump.summary() for dump in dumps if not dump.finished or dump.dump_id in recent
            ],
        }

    def store(self, dump: DumpState) -> None:
        """Store the dump. Durable after the next `flush`."""
        self._changed.discard(dump.dump_id)
        if self._end is not None:
            dump.rests_on = self._end.now()
        self._changes.put(DUMP_PREFIX + dump.dump_id, dump.to_json())

    def list_absent(self, dump: DumpState, first: int, count: int, keys: Sequence[Key]) -> None:
        """List ``keys`` as absent: of the ``count`` keys from index ``first`` on, the table does
        not have these.
        """
        name = missing_set(dump.dump_id)
        self._changes.call(lambda: self._key_sets.put_piece(name, first, keys, covers=count))

    def _delete_keys(self, set_id: str) -> None:
        self._changes.call(lambda: self._key_sets.delete(set_id))

    def store_soon(self, dump: DumpState) -> None:
        """Store progress that the event log also shows: a crash before that loses nothing."""
        self._changed.add(dump.dump_id)

    def store_changed(self, now: float) -> None:
        if self._changed and now - self._stored_at >= STORE_EVERY_S:
            self._stored_at = now
            for dump_id in self._changed & self._dumps.keys():
                self.store(self._dumps[dump_id])

    def note(self, event: str, chunk_id: str, table: str, **numbers: int) -> None:
        """Add a chunk's event to those that status shows."""
        at_ms = unix_ms()
        self.events.append(
            {"at_ms": at_ms, "chunk": chunk_id[:8], "table": table, "event": event, **numbers}
        )

    def _change(self, dumps: list[DumpState], event: DumpInput) -> list[DumpState]:
        for dump in dumps:
            dump.transition(event)
            self.store(dump)
        return dumps


def is_own(dump: DumpState) -> bool:
    """Does capture itself, or an output, need the dump? If it fails, it is requested again."""
    return dump.reason == "initial" or dump.dump_id.startswith((AUTOMATIC, *OWN))


def _add(progress: TableProgress, meta: ChunkMeta) -> bool:
    if progress.key_set is None:
        return progress.add_range(_tuple(meta.low_key), _tuple(meta.high_key), meta.order)
    if progress.missing == "list":  # it is not known whether they were listed
        return False
    return progress.add_keys(int(meta.order), meta.keys_requested)


def _tuple(key: list[str | None] | None) -> Key | None:
    return None if key is None else tuple(key)
