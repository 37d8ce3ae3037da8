"""Cuts tables into chunks: the next chunk, gaps after a restart, and chunks to read again."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tidelog.capture.dumps.refetch_queue import (
    KEYS_PER_DOCUMENT,
    KeysToRead,
    PrefetchedKeys,
    RefetchQueue,
)
from tidelog.capture.dumps.state import (
    CHUNKS,
    FINISHED_TABLES,
    ChunkInput,
    ChunkStatus,
    DumpState,
    DumpStatus,
    Key,
    TableProgress,
)
from tidelog.capture.windows import Window
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest, ChunkRows
from tidelog.system.backoff import Backoff

_RETRY_S = Backoff(first=0.1, longest=10.0)
REFETCH_KEYS = 5_000  # most keys that one chunk reads again
RESTS = 1 << 16  # most times that the rest of a range can be split off within the order

DumpTable = tuple[str, str]
"""A table of a dump: the dump's id, the table's name."""


@dataclass(slots=True)
class ChunkTask:
    """One chunk to read, and to read again if its window is void."""

    table: TableName
    dump: DumpState | None  # None: the task reads missing rows by their keys
    progress: TableProgress | None
    request: ChunkRequest
    tries: int = 0
    not_before: float = 0.0
    cut: bool = False  # its range is fixed: it was planned, or read once
    taken: KeysToRead | None = None  # the source of its keys, if rows are read again
    order: float = 0.0  # sorts as the range's keys; of keys: the first one's index in their set
    span: float = 1.0  # room in the order before the next range …
    step: float = 0.0  # … and how far the order of the range's rest advances in it
    full_rows: int = 0  # the limit of a chunk that was not halved
    window: Window | None = None
    begun: float = 0.0  # when its last read began, on time.monotonic()
    bytes: int = 0  # of the rows it holds
    failures: int = 0  # failed reads; voided windows are not counted
    losses: int = 0  # connections lost while it was read
    status: ChunkStatus = CHUNKS.start

    def transition(self, event: ChunkInput) -> None:
        self.status = CHUNKS.after(self.status, event)

    def split_off(self, request: ChunkRequest, order: float) -> ChunkTask:
        """Another task for a part of this one's rows."""
        return replace(
            self,
            request=request,
            order=order,
            tries=0,
            failures=0,
            not_before=0.0,
            window=None,
            status=CHUNKS.start,
            bytes=0,
        )

    @property
    def ended(self) -> bool:
        """Was its table cancelled, or did it fail?"""
        return self.progress is not None and self.progress.status in FINISHED_TABLES


@dataclass(slots=True)
class TableCursor:
    """The position in a table of a dump up to which it is cut into chunks."""

    dump: DumpState
    progress: TableProgress
    after: Key | None = None  # the next chunk begins after this key
    number: float = 0.0  # the next chunk's order
    next_key: int = 0  # index in the key set
    keys: PrefetchedKeys = field(default_factory=PrefetchedKeys)  # of the key set
    exhausted: bool = False  # nothing is left to cut
    planning: bool = False  # the planner is finding the next chunk's end
    planned: deque[ChunkTask] = field(default_factory=deque)
    plan_failures: int = 0
    plan_tries: int = 0
    plan_not_before: float = 0.0
    plan_count: int = 1  # chunk ends found by one query
    plan_halvings: int = 0  # of the chunk's rows, because finding its end took too long

    @property
    def dump_table(self) -> DumpTable:
        return self.dump.dump_id, self.progress.table


class ChunkQueue:
    """The tasks being read or to be read again, and each table's cursor.

    With one reader a table is cut while it is read: a chunk ends at the last row within its LIMIT.
    With more, the planner walks the key's index ahead of them (`next_plan`, `add_planned`).

    Guarded by the coordinator's lock; only ``find`` may be called without it.
    """

    def __init__(self) -> None:
        self._retry: deque[ChunkTask] = deque()
        self._given: list[ChunkTask] = []  # to a reader that has not begun
        self._inflight: dict[str, ChunkTask] = {}
        self._doubtful: list[ChunkTask] = []  # their tables are being looked up
        self._cursors: dict[DumpTable, TableCursor] = {}
        self.stuck: list[ChunkTask] = []
        """Ranges whose first row can't be read: the planner finds the key after it."""
        self.refetch_not_before = 0.0

    # ------------------------------------------------------------ being read

    @property
    def inflight(self) -> list[ChunkTask]:
        return list(self._inflight.values())

    @property
    def under_way(self) -> list[ChunkTask]:
        """Tasks being read, and those that a reader is about to begin."""
        return [*self._inflight.values(), *self._given]

    def find(self, chunk_id: str) -> ChunkTask | None:
        return self._inflight.get(chunk_id)

    def give(self, task: ChunkTask) -> None:
        """Note that a reader was given the task; until it begins, the task still counts."""
        task.transition(ChunkInput.GIVE)
        self._given.append(task)

    def reader_began(self, task: ChunkTask) -> None:
        self._given = [given for given in self._given if given is not task]

    def begin(self, task: ChunkTask, window: Window) -> None:
        task.transition(ChunkInput.BEGIN)
        task.window = window
        task.begun, task.bytes = time.monotonic(), 0
        self._inflight[window.chunk_id] = task

    def end(self, window: Window | None) -> ChunkTask | None:
        """Remove the window's task from those being read, and return it."""
        return None if window is None else self._inflight.pop(window.chunk_id, None)

    def await_lookup(self, task: ChunkTask) -> None:
        """Keep the task while its table is looked up in the catalogue."""
        task.transition(ChunkInput.FAIL_OFTEN)
        self._doubtful.append(task)

    def set_stuck(self, task: ChunkTask) -> None:
        """Note that the task's only row can't be read, and its key is not known."""
        task.transition(ChunkInput.ONE_ROW)
        self.stuck.append(task)

    def end_lookup(self, task: ChunkTask) -> None:
        self._doubtful = [doubtful for doubtful in self._doubtful if doubtful is not task]

    def retry(self, task: ChunkTask, event: ChunkInput) -> None:
        """Read the task again because of ``event``."""
        task.transition(event)
        self.retry_later(task)

    def retry_later(self, task: ChunkTask) -> None:
        """Queue the task again, with a growing delay."""
        task.tries += 1
        task.not_before = time.monotonic() + _RETRY_S.after(task.tries)
        task.window, task.bytes = None, 0
        self._retry.append(task)

    def tasks_of(self, progress: TableProgress) -> list[ChunkTask]:
        return [t for t in self._all() if t.progress is progress]

    def has_task(self, table: TableName) -> bool:
        return any(t.table == table for t in self._all())

    def _all(self) -> list[ChunkTask]:
        planned = [task for cursor in self._cursors.values() for task in cursor.planned]
        under_way = [*self._inflight.values(), *self._given, *self._doubtful]
        return [*under_way, *self._retry, *planned, *self.stuck]

    # ------------------------------------------------------------ what is read next

    def next_retry(self, now: float, *, of_dumps: bool = True) -> ChunkTask | None:
        """The next task to read again; without ``of_dumps`` only tasks that read missing rows."""
        for task in list(self._retry):
            if task.dump is not None and not of_dumps:
                continue
            if task.dump is not None and task.dump.status is DumpStatus.PAUSED:
                continue
            if task.not_before <= now:
                self._retry.remove(task)
                return task
        return None

    def next_refetch(self, refetch_queue: RefetchQueue, now: float) -> ChunkTask | None:
        """The next task that reads missing rows by their keys."""
        if now < self.refetch_not_before:
            return None
        keys = refetch_queue.take(REFETCH_KEYS, now)
        if keys is None:
            return None
        table = TableName.parse(keys.refetch_table.table)
        request = ChunkRequest(table, keys=keys.keys, key_columns=keys.refetch_table.columns)
        return ChunkTask(table, None, None, request, taken=keys)

    def next_chunk(
        self, dump_table: DumpTable, limit_rows: int, *, planned: bool
    ) -> ChunkTask | None:
        """The table's next chunk; None if there is none (yet). ``planned``: only chunks whose ends
        the planner found.
        """
        cursor = self._cursors[dump_table]
        if cursor.planned:
            return cursor.planned.popleft()
        if cursor.progress.key_set is not None:
            return self._next_keys(cursor, limit_rows)
        if cursor.exhausted or cursor.planning or planned:
            return None
        if any(not task.cut for task in self.tasks_of(cursor.progress)):
            return None
        return self._ranged(cursor, limit_rows)

    def _next_keys(self, cursor: TableCursor, limit_rows: int) -> ChunkTask | None:
        progress = cursor.progress
        assert progress.key_set is not None
        first, count = progress.keys_left(cursor.next_key, min(KEYS_PER_DOCUMENT, limit_rows))
        keys = cursor.keys.slice(first, count)
        cursor.next_key = first + len(keys)
        if not keys:
            return None
        table = TableName.parse(progress.table)
        request = ChunkRequest(table, keys=keys, key_columns=progress.key_columns)
        return ChunkTask(table, cursor.dump, progress, request, order=first, cut=True)

    def keys_to_fetch(self, dump_table: DumpTable) -> tuple[str, int] | None:
        """The key set, and the index from which `add_fetched_keys` needs more of its keys."""
        cursor = self._cursors[dump_table]
        key_set = cursor.progress.key_set
        if key_set is None or cursor.exhausted or not cursor.keys.start_fetch(cursor.next_key):
            return None
        return key_set, cursor.next_key

    def add_fetched_keys(self, dump_table: DumpTable, first: int, keys: tuple[Key, ...]) -> None:
        """Take over keys of the set from index ``first`` on; none: the set ends there."""
        cursor = self._cursors.get(dump_table)
        if cursor is not None:
            cursor.keys, cursor.exhausted = PrefetchedKeys(first, keys), not keys

    def _ranged(self, cursor: TableCursor, limit_rows: int) -> ChunkTask:
        progress = cursor.progress
        request = progress.request(limit_rows, after=cursor.after)
        task = ChunkTask(request.table, cursor.dump, progress, request, full_rows=limit_rows)
        task.order = cursor.number
        cursor.number += 1
        return task

    # ------------------------------------------------------------ the planner

    def next_plan(
        self, limit_rows: int, ahead: int, now: float
    ) -> tuple[TableCursor, ChunkRequest, int] | None:
        """What the planner does next: the cursor of the table with fewest chunks planned, a request
        from there on, and how many chunk ends to find. None if each table has at least half of
        ``ahead`` chunks.
        """
        open_cursors = [
            cursor
            for cursor in self._cursors.values()
            if cursor.progress.key_set is None
            and not (cursor.exhausted or cursor.planning)
            and cursor.plan_not_before <= now
            and cursor.dump.status is not DumpStatus.PAUSED
            and len(cursor.planned) <= ahead // 2
            and not any(not task.cut for task in self.tasks_of(cursor.progress))
        ]
        if not open_cursors:
            return None
        cursor = min(open_cursors, key=lambda found: len(found.planned))
        cursor.planning = True
        limit_rows = max(1, limit_rows >> cursor.plan_halvings)
        request = cursor.progress.request(limit_rows, after=cursor.after)
        return cursor, request, min(cursor.plan_count, ahead - len(cursor.planned))

    def add_planned(
        self, cursor: TableCursor, request: ChunkRequest, ends: Sequence[Key], *, last: bool
    ) -> None:
        """Add the chunks whose ends were found; ``last``: one more chunk has the rest."""
        cursor.planning, cursor.plan_failures, cursor.plan_tries = False, 0, 0
        if self._cursors.get(cursor.dump_table) is not cursor:
            return
        for end in (*ends, None) if last else ends:
            task = self._ranged(cursor, request.limit_rows)
            task.request, task.cut = replace(task.request, upto=end), True
            cursor.after, cursor.exhausted = end, end is None
            cursor.planned.append(task)

    def on_plan_failure(self, cursor: TableCursor, now: float, *, transient: bool) -> int:
        """Note that the query failed; returns how often by now, ``transient`` failures excluded. It
        is retried with a growing delay.
        """
        cursor.planning = False
        cursor.plan_tries += 1
        cursor.plan_failures += not transient
        cursor.plan_not_before = now + _RETRY_S.after(cursor.plan_tries)
        return cursor.plan_failures

    def plan_unknown(self, cursor: TableCursor, request: ChunkRequest) -> None:
        """Note that the next chunk's end can't be found: its reader cuts it."""
        cursor.plan_failures, cursor.plan_tries = 0, 0
        if self._cursors.get(cursor.dump_table) is cursor:
            cursor.planned.append(self._ranged(cursor, request.limit_rows))

    # ------------------------------------------------------------ where tables are cut

    def is_exhausted(self, progress: TableProgress) -> bool:
        """Is nothing of the table waiting, being read, or left to cut?"""
        cursors = [cursor for cursor in self._cursors.values() if cursor.progress is progress]
        return not self.tasks_of(progress) and all(c.exhausted and not c.planning for c in cursors)

    def start(self, dump: DumpState, progress: TableProgress, limit_rows: int) -> None:
        """Begin to cut the table; after a restart the gaps between completed ranges come first."""
        cursor = self._cursors[dump.dump_id, progress.table] = TableCursor(dump, progress)
        known = progress.known_ranges
        for after, upto, order, span in progress.gaps():
            request = progress.request(limit_rows, after=after, upto=upto)
            gap = ChunkTask(request.table, dump, progress, request, order=order, span=span)
            gap.cut, gap.full_rows = True, limit_rows
            self._retry.append(gap)
        if known:
            last = known[-1]
            cursor.number, cursor.after = last.last_order + 1, last.high
            cursor.exhausted = last.high is None

    def advance(self, task: ChunkTask, rows: ChunkRows) -> None:
        """Set where the next chunk begins: after this one's last key."""
        if task.request.keys is not None:
            self._leave_keys(task, rows.keys_read)
            return
        if task.dump is None or task.ended:
            return
        upto = task.request.upto
        cut_short = not rows.exhausted and rows.last_key != upto
        if not task.cut:
            cursor = self._cursors[task.dump.dump_id, str(task.table)]
            cursor.exhausted = rows.exhausted
            if not rows.exhausted:
                cursor.after = rows.last_key
        elif cut_short:  # rows were inserted since it was planned, or it was halved
            self.put_rest(task, rows.last_key)
        task.cut = True
        if cut_short:
            task.request = replace(task.request, upto=rows.last_key)

    def _leave_keys(self, task: ChunkTask, read: int | None) -> None:
        """Make the keys that did not fit into the chunk a task of their own."""
        keys = task.request.keys or ()
        if read is None or read >= len(keys) or task.ended:
            return
        rest = task.split_off(replace(task.request, keys=keys[read:]), order=task.order + read)
        task.request = replace(task.request, keys=keys[:read])
        self._retry.append(rest)

    def skip_row(self, task: ChunkTask, end: Key | None) -> None:
        """Continue after the task's only row, of key ``end`` (None: the task's range ends)."""
        assert task.dump is not None
        task.transition(ChunkInput.BEHIND_KNOWN)
        self.stuck.remove(task)
        if end is not None and end != task.request.upto:
            if task.cut:
                self.put_rest(task, end)
            task.request = replace(task.request, upto=end)
        if not task.cut:
            cursor = self._cursors[task.dump.dump_id, str(task.table)]
            cursor.after, cursor.exhausted = end, end is None
            task.cut = True

    def put_rest(self, task: ChunkTask, after: Key | None) -> None:
        """Read the rest of the task's range, after ``after``, as another chunk."""
        if task.span < 2 * task.step or not task.step:
            # Not finer than these numbers can distinguish.
            task.step = max(task.span / RESTS, math.ulp(task.order + task.span))
        rest = task.split_off(
            replace(task.request, after=after, limit_rows=task.full_rows),
            order=task.order + task.step,
        )
        rest.cut, rest.span = True, task.span - task.step
        task.span = task.step
        self._retry.append(rest)

    def forget(self, dump: DumpState, progress: TableProgress) -> None:
        """Drop the table's cursor and its waiting tasks."""
        cursor = self._cursors.pop((dump.dump_id, progress.table), None)
        of_table = [task for task in (*self._retry, *self.stuck) if task.progress is progress]
        for task in (*of_table, *(cursor.planned if cursor is not None else ())):
            task.transition(ChunkInput.DROP)
        self._retry = deque(task for task in self._retry if task.progress is not progress)
        self.stuck = [task for task in self.stuck if task.progress is not progress]


SMOOTHING = 0.2
ROOM_SHARE = 0.75
"""The share of a chunk's room to plan for, because row sizes differ; a chunk that needs more ends
early.
"""


class RowWidths:
    """The row width of each table, so that its next chunk stays below a size limit. Guarded by the
    coordinator's lock.
    """

    def __init__(self) -> None:
        self._widths: dict[TableName, float] = {}

    def note(self, table: TableName, rows: int, size: int) -> None:
        """Note that a chunk of ``rows`` rows took ``size`` bytes. Larger rows count at once,
        smaller ones gradually.
        """
        if rows:
            width = size / rows
            before = self._widths.get(table, width)
            self._widths[table] = max(width, before + SMOOTHING * (width - before))

    def rows(self, table: TableName, most: int, room: int) -> int:
        """The number of rows to read, at most ``most``, so that they take less than ``room``."""
        width = self._widths.get(table)
        return most if not width else max(1, min(most, int(ROOM_SHARE * room / width)))
