"""Appends what a dump reads under one snapshot whose position in the log is known: no window
compares its rows with the log.
"""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidelog.capture.buffer import ChunkItem
from tidelog.capture.dumps.dump_notifications import DumpNotices
from tidelog.capture.dumps.state import DumpState, TableProgress
from tidelog.capture.dumps.store import DumpStore
from tidelog.capture.dumps.thread_messages import Actions
from tidelog.model.records import ChunkMeta
from tidelog.ports import ChunkRequest, ChunkRows


@dataclass(slots=True)
class AppendedRecord:
    """A control record; its ``offset`` is known once it is ``durable``."""

    durable: threading.Event = field(default_factory=threading.Event)
    offset: int = 0

    def done(self, offset: int) -> None:
        self.offset = offset
        self.durable.set()


class SnapshotRows:
    """Appends and counts the rows of dumps. Any thread may call it without the coordinator's lock,
    unless said otherwise.
    """

    def __init__(self, actions: Actions, store: DumpStore, notices: DumpNotices) -> None:
        self._actions = actions
        self._store = store
        self._notices = notices

    def append_record(self, record: dict[str, Any]) -> AppendedRecord:
        """Append a control record after all that was emitted."""
        appended = AppendedRecord()
        self._actions.engine.append_control(record, appended.done)
        return appended

    def append(
        self,
        dump: DumpState,
        progress: TableProgress,
        request: ChunkRequest | None,
        rows: ChunkRows,
        position: int,
        *,
        ordinal: int | None = None,
        while_paused: bool = False,
    ) -> threading.Event:
        """Append rows that were read under the snapshot at ``position``; the returned event is set
        when they are durable.

        The range of ``request`` is noted, if one is given. ``ordinal`` is given to each row: the
        offset of the dump's first record, if the table has no key. ``while_paused``: see
        `ChunkItem`.
        """
        chunk_id, count = uuid.uuid4().hex, len(rows.rows)
        low_key, high_key = None, None
        if request is not None:
            low_key = None if request.after is None else list(request.after)
            high_key = None if rows.exhausted or rows.last_key is None else list(rows.last_key)
        meta = ChunkMeta(
            dump_id=dump.dump_id,
            table=progress.table,
            chunk_id=chunk_id,
            low_key=low_key,
            high_key=high_key,
            low_watermark=str(position),
            high_watermark=str(position),
            snapshot=rows.snapshot.to_text(),
            rows_read=count,
            rows_superseded=0,
        )
        rows.rows.commit_ts = np.full(count, time.time_ns() // 1000, np.int64)
        if ordinal is not None:
            rows.rows.ordinal = np.full(count, ordinal, np.int64)
        durable = threading.Event()
        item = ChunkItem(rows.rows, meta, position, lambda _offset: durable.set(), while_paused)
        self._actions.engine.append_chunk(item)
        with self._actions.lock:
            self._store.note("read", chunk_id, progress.table, rows=count)
        return durable

    def count(self, dump: DumpState, progress: TableProgress, rows: ChunkRows) -> None:
        """Count rows that were read. Called under the coordinator's lock."""
        progress.chunks += 1
        progress.rows_read += len(rows.rows)
        self._store.counters.chunks += 1
        self._store.counters.rows += len(rows.rows)
        self._store.chunks_read.answered()
        self._notices.in_progress(dump, progress)
