"""How tables are cut into chunks: the next one, the gaps after a restart, what is read again."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, replace

from tidelog.capture.dump_state import FINISHED, DumpState, Key, TableProgress
from tidelog.capture.rereads import Rereads
from tidelog.capture.windows import Window
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest, ChunkRows

KEYS_PER_CHUNK = 1_000


@dataclass(slots=True)
class Task:
    """One chunk to read, and read again if it is voided."""

    table: TableName
    dump: DumpState | None  # None: keys to read again
    progress: TableProgress | None
    request: ChunkRequest
    tries: int = 0
    not_before: float = 0.0
    first_key: int = 0
    cut: bool = False  # its range is fixed: rows were read once
    reread_number: int = 0  # of the newest request that reading the keys again answers
    order: float = 0.0  # sorts as the range's keys
    span: float = 1.0  # room in the order before the next range
    window: Window | None = None
    deadline: float = math.inf  # for the log to show the high watermark, once it is written
    failures: int = 0  # reads that failed, as against windows that were voided

    @property
    def ended(self) -> bool:
        """Was its table cancelled, or did another chunk of it fail?"""
        return self.progress is not None and self.progress.status in FINISHED


class Tasks:
    """Chunks being read and to be read again, and where each table is cut next.

    The coordinator's lock guards it; only ``find`` may be called without.
    """

    def __init__(self) -> None:
        self._retry: deque[Task] = deque()
        self._inflight: dict[str, Task] = {}
        self._cursor: dict[tuple[str, str], Key | None] = {}
        self._cut: dict[tuple[str, str], float] = {}
        self._drained: set[tuple[str, str]] = set()
        self.pause_until = 0.0  # no chunk is read before

    # ------------------------------------------------------------ being read

    @property
    def inflight(self) -> list[Task]:
        return list(self._inflight.values())

    def find(self, chunk_id: str) -> Task | None:
        return self._inflight.get(chunk_id)

    def begin(self, task: Task, window: Window) -> None:
        task.window = window
        task.deadline = math.inf  # a read may take its time
        self._inflight[window.chunk_id] = task

    def end(self, window: Window | None) -> Task | None:
        """The chunk is not being read any more."""
        return None if window is None else self._inflight.pop(window.chunk_id, None)

    def again(self, task: Task) -> None:
        """Read it again, later each time."""
        task.tries += 1
        task.not_before = time.monotonic() + min(10.0, 0.05 * 2 ** min(task.tries, 8))
        task.window, task.deadline = None, math.inf
        self._retry.append(task)

    def of_progress(self, progress: TableProgress) -> list[Task]:
        return [t for t in self._all() if t.progress is progress]

    def any_of(self, table: TableName) -> bool:
        return any(t.table == table for t in self._all())

    def _all(self) -> list[Task]:
        return [*self._inflight.values(), *self._retry]

    # ------------------------------------------------------------ what is read next

    def next_retry(self, now: float) -> Task | None:
        for task in list(self._retry):
            if task.dump is not None and task.dump.status == "paused":
                continue
            if task.not_before <= now:
                self._retry.remove(task)
                return task
        return None

    def next_reread(self, rereads: Rereads) -> Task | None:
        """Keys to be read again, of a table none of whose are being read again."""
        busy = {t.table for t in self._all() if t.dump is None}
        number, waiting = rereads.waiting(KEYS_PER_CHUNK)
        for spot, keys in waiting.items():
            table = TableName.parse(spot.table)
            if keys and table not in busy:
                request = ChunkRequest(table, keys=tuple(keys), key_columns=spot.columns)
                return Task(table, None, None, request, reread_number=number)
        return None

    def next_chunk(self, dump: DumpState, progress: TableProgress, limit_rows: int) -> Task | None:
        spot = (dump.dump_id, progress.table)
        table = TableName.parse(progress.table)
        busy = self.of_progress(progress)
        if progress.keys is not None:
            if busy:  # one after the other, so that a count says which are done
                return None
            first = progress.keys_done
            batch = tuple(progress.keys[first : first + min(KEYS_PER_CHUNK, limit_rows)])
            if not batch:
                return None
            request = ChunkRequest(table, keys=batch, key_columns=progress.key_columns)
            return Task(table, dump, progress, request, first_key=first)
        if spot in self._drained or any(not t.cut for t in busy):
            return None
        request = ChunkRequest(
            table, after=self._cursor.get(spot), limit_rows=limit_rows, where=dump.where
        )
        order = self._cut.get(spot, 0.0)
        self._cut[spot] = order + 1
        return Task(table, dump, progress, request, order=order)

    # ------------------------------------------------------------ where tables are cut

    def start(self, dump: DumpState, progress: TableProgress) -> None:
        self._cursor[dump.dump_id, progress.table] = None

    def refill(self, dump: DumpState, progress: TableProgress, limit_rows: int) -> None:
        """After a restart: read the gaps between completed ranges, then go on behind the last."""
        table, spot = TableName.parse(progress.table), (dump.dump_id, progress.table)
        low: Key | None = None
        order = progress.ranges[0].order - 1 if progress.ranges else 0.0
        for done in progress.ranges:
            if done.low != low:
                request = ChunkRequest(
                    table, after=low, upto=done.low, limit_rows=limit_rows, where=dump.where
                )
                span = (done.order - order) / 2
                task = Task(table, dump, progress, request, cut=True, order=order + span, span=span)
                self._retry.append(task)
            low, order = done.high, done.last_order
        if progress.ranges:
            last = progress.ranges[-1]
            self._cut[spot] = last.last_order + 1
            self._cursor[spot] = last.high
            if last.high is None:
                self._drained.add(spot)

    def advance(self, task: Task, rows: ChunkRows) -> None:
        """The next chunk starts behind this one's last key."""
        if task.dump is None or task.request.keys is not None or task.ended:
            return
        spot = (task.dump.dump_id, str(task.table))
        upto = task.request.upto
        cut_short = not rows.exhausted and rows.last_key != upto
        if not task.cut:
            if rows.exhausted:
                self._drained.add(spot)
            else:
                self._cursor[spot] = rows.last_key
        elif cut_short:  # rows were inserted since it was read first
            task.span /= 2
            rest = replace(task, tries=0, failures=0, not_before=0.0, window=None)
            rest.request = replace(task.request, after=rows.last_key)
            rest.order = task.order + task.span
            self._retry.append(rest)
        task.cut = True
        if cut_short:
            task.request = replace(task.request, upto=rows.last_key)

    def forget(self, dump: DumpState, progress: TableProgress) -> None:
        """Cut no more of the table, and read none of it again."""
        spot = (dump.dump_id, progress.table)
        self._cursor.pop(spot, None)
        self._cut.pop(spot, None)
        self._drained.discard(spot)
        self._retry = deque(task for task in self._retry if task.progress is not progress)
